/**
 * The tree is walked depth first, so that log2(nsrc) vectors of scratch are enough: a
 * node leaves its left half in the vector it was given and its right half in the vector
 * of its level, then combines the second into the first. Vectors are read in blocks
 * widened to double; a dot product keeps LANES running sums (element i goes to sum i %
 * LANES), which fixes the order of additions whatever the compiler vectorizes.
 */
#include "worker/plane/sched/adasum.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "proto/base/assert.h"
#include "proto/base/names.h"
#include "worker/plane/reduce/reduce.h"

#define LANES 8
#define BLOCK 512 /* elements, a multiple of LANES: 4 KiB as double */

/* A source or an inner node of the tree. */
struct vec {
    const void *data; /* NULL: zeros */
    uint32_t dtype;   /* inner nodes: float32 or float64 */
};

struct tree {
    const void *const *src;
    int64_t count;
    uint32_t dtype; /* of the sources */
    uint32_t work;  /* of inner nodes */
    char *scratch;
    size_t vec_bytes; /* of one inner node */
};

static bool is_power_of_two(int n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static uint32_t work_dtype(uint32_t dtype)
{
    return dtype == HVD_FLOAT64 ? HVD_FLOAT64 : HVD_FLOAT32;
}

enum hvd_status hvi_adasum_check(int nranks, uint32_t dtype, struct hvi_err *err)
{
    if (dtype != HVD_FLOAT16 && dtype != HVD_FLOAT32 && dtype != HVD_FLOAT64)
        return hvi_fail(
            err, HVD_EUNSUPPORTED,
            "Adasum of %s is not supported: use float16, float32 or float64",
            hvi_dtype_name(dtype));
    if (!is_power_of_two(nranks))
        return hvi_fail(err, HVD_EUNSUPPORTED,
                        "Adasum needs a power of two of ranks, not %d", nranks);
    return HVD_OK;
}

static int log2_of(int n)
{
    return n < 1 ? 0 : 31 - __builtin_clz((unsigned)n);
}

size_t hvi_adasum_scratch_size(int nsrc, int64_t count, uint32_t dtype)
{
    size_t bytes;

    HVI_ASSERT(count >= 0);
    if (__builtin_mul_overflow((size_t)count, hvi_dtype_size(work_dtype(dtype)),
                               &bytes) ||
        __builtin_mul_overflow(bytes, (size_t)log2_of(nsrc), &bytes))
        return SIZE_MAX;
    return bytes;
}

/* Elements [at, at + n) as double, n <= BLOCK. */
static void load(const struct vec *v, int64_t at, int n, double *out)
{
    float narrow[BLOCK];

    if (v->data == NULL) {
        memset(out, 0, (size_t)n * sizeof(*out));
        return;
    }
    if (v->dtype == HVD_FLOAT64) {
        memcpy(out, (const char *)v->data + at * 8, (size_t)n * sizeof(*out));
        return;
    }
    if (v->dtype == HVD_FLOAT16)
        hvi_reduce_widen_f16(narrow, (const char *)v->data + at * 2, n);
    else
        memcpy(narrow, (const char *)v->data + at * 4, (size_t)n * sizeof(*narrow));
    for (int i = 0; i < n; i++)
        out[i] = (double)narrow[i];
}

static void store(void *out, uint32_t dtype, int64_t at, int n, const double *in)
{
    float narrow[BLOCK];

    if (dtype == HVD_FLOAT64) {
        memcpy((char *)out + at * 8, in, (size_t)n * sizeof(*in));
        return;
    }
    for (int i = 0; i < n; i++)
        narrow[i] = (float)in[i];
    if (dtype == HVD_FLOAT16)
        hvi_reduce_narrow_f16((char *)out + at * 2, narrow, n);
    else
        memcpy((char *)out + at * 4, narrow, (size_t)n * sizeof(*narrow));
}

struct dots {
    double aa[LANES], bb[LANES], ab[LANES];
};

static void add_block(struct dots *d, const double *a, const double *b, int n)
{
    int i = 0;

    for (; i + LANES <= n; i += LANES)
        for (int k = 0; k < LANES; k++) {
            d->aa[k] += a[i + k] * a[i + k];
            d->bb[k] += b[i + k] * b[i + k];
            d->ab[k] += a[i + k] * b[i + k];
        }
    for (int k = 0; i + k < n; k++) {
        d->aa[k] += a[i + k] * a[i + k];
        d->bb[k] += b[i + k] * b[i + k];
        d->ab[k] += a[i + k] * b[i + k];
    }
}

static double sum_lanes(const double *s)
{
    return ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
}

static int block_size(int64_t count, int64_t at)
{
    return count - at < BLOCK ? (int)(count - at) : BLOCK;
}

/* What a and b are multiplied by. */
static void factors(const struct vec *a, const struct vec *b, int64_t count, double *fa,
                    double *fb)
{
    struct dots d = {{0}, {0}, {0}};
    double x[BLOCK];
    double y[BLOCK];
    double aa, bb, ab;

    for (int64_t at = 0; at < count; at += BLOCK) {
        int n = block_size(count, at);

        load(a, at, n, x);
        load(b, at, n, y);
        add_block(&d, x, y, n);
    }
    aa = sum_lanes(d.aa);
    bb = sum_lanes(d.bb);
    ab = sum_lanes(d.ab);
    *fa = aa == 0.0 || bb == 0.0 ? 1.0 : 1.0 - ab / (2.0 * aa);
    *fb = aa == 0.0 || bb == 0.0 ? 1.0 : 1.0 - ab / (2.0 * bb);
}

/* out = Adasum of a and b, as dtype; out may be a's or b's memory. */
static void combine(const struct vec *a, const struct vec *b, int64_t count, void *out,
                    uint32_t dtype)
{
    double x[BLOCK];
    double y[BLOCK];
    double fa, fb;

    factors(a, b, count, &fa, &fb);
    for (int64_t at = 0; at < count; at += BLOCK) {
        int n = block_size(count, at);

        load(a, at, n, x);
        load(b, at, n, y);
        for (int i = 0; i < n; i++) {
            double r = x[i] * fa + y[i] * fb;

            x[i] = r == r ? r : (double)NAN; /* one NaN on every kind of CPU */
        }
        store(out, dtype, at, n, x);
    }
}

/* Adasum of sources [first, first + 2^level) into vector `to`; level 0 is the source
 * itself. Vector k of scratch holds the right halves of 2^k sources, k > 0. Vector 0
 * would hold a bare source, which needs none: the right half of the root has it. */
static struct vec fold_node(const struct tree *t, int first, int level, char *to)
{
    struct vec a, b;
    char *side;

    if (level == 0)
        return (struct vec){t->src[first], t->dtype};
    side = t->scratch + (size_t)(level - 1) * t->vec_bytes;
    a = fold_node(t, first, level - 1, to);
    b = fold_node(t, first + (1 << (level - 1)), level - 1, side);
    combine(&a, &b, t->count, to, t->work);
    return (struct vec){to, t->work};
}

void hvi_adasum_fold(void *out, const void *const *src, int nsrc, int64_t count,
                     uint32_t dtype, void *scratch)
{
    struct tree t = {src, count, dtype, work_dtype(dtype), scratch, 0};
    int level = 0; /* of the root's halves */
    struct vec a, b;

    HVI_ASSERT(hvi_adasum_check(nsrc, dtype, NULL) == HVD_OK);
    t.vec_bytes = (size_t)count * hvi_dtype_size(t.work);
    if (nsrc == 1) {
        if (src[0] != NULL)
            hvi_reduce_scale(out, src[0], count, dtype, 1.0);
        else
            hvi_reduce_neutral(out, count, dtype, HVD_SUM);
        return;
    }
    for (int n = nsrc; n > 2; n /= 2)
        level++;
    /* The root goes straight into out, which may be a source and is written last. */
    a = fold_node(&t, 0, level, t.scratch + (size_t)level * t.vec_bytes);
    b = fold_node(&t, 1 << level, level, t.scratch);
    combine(&a, &b, count, out, dtype);
}
