/**
 * Everything about folding that is decided once: which pairs exist, in which order and
 * where rounding happens. The loops themselves come from the instruction set in use
 * (isa.h).
 *
 * A fold walks the elements in blocks small enough for the first-level cache. Per
 * block, sources are taken in groups of HVI_FOLD_GROUP: one that must be scaled or
 * widened goes through a scratch block, any other is read where it lies. The running
 * value replaces the first source of the next group, so the order is a left fold for
 * any number of sources. `out` is written only after every source of that block was
 * read: out may be any of them.
 */
#include "worker/plane/reduce/reduce.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/assert.h"
#include "proto/base/env.h"
#include "proto/base/log.h"
#include "proto/base/names.h"
#include "worker/plane/reduce/half.h"
#include "worker/plane/reduce/isa.h"

/* Bytes of one scratch block: five of them stay well inside a 32 KiB cache. */
#define BLOCK_BYTES 4096

/* ---- the table */

enum {
    ADD = HVI_FOLD_ADD,
    MUL = HVI_FOLD_MUL,
    LOW = HVI_FOLD_LOWEST,
    HIGH = HVI_FOLD_HIGHEST,
    OR = HVI_FOLD_OR,
    AND = HVI_FOLD_AND,
    PAIR = HVI_FOLD_ADASUM,
    NONE = HVI_FOLD_REFUSED
};

/* clang-format off */
static const uint8_t rule_table[HVD_DTYPE_COUNT][HVD_REDUCE_OP_COUNT] = {
    /*               AVERAGE SUM  ADASUM MIN  MAX   PRODUCT */
    [HVD_UINT8] =    {ADD,    ADD, NONE,  LOW, HIGH, MUL},
    [HVD_INT8] =     {ADD,    ADD, NONE,  LOW, HIGH, MUL},
    [HVD_UINT16] =   {ADD,    ADD, NONE,  LOW, HIGH, MUL},
    [HVD_INT16] =    {ADD,    ADD, NONE,  LOW, HIGH, MUL},
    [HVD_INT32] =    {ADD,    ADD, NONE,  LOW, HIGH, MUL},
    [HVD_INT64] =    {ADD,    ADD, NONE,  LOW, HIGH, MUL},
    [HVD_FLOAT16] =  {ADD,    ADD, PAIR,  LOW, HIGH, MUL},
    [HVD_BFLOAT16] = {ADD,    ADD, NONE,  LOW, HIGH, MUL},
    [HVD_FLOAT32] =  {ADD,    ADD, PAIR,  LOW, HIGH, MUL},
    [HVD_FLOAT64] =  {ADD,    ADD, PAIR,  LOW, HIGH, MUL},
    [HVD_BOOL] =     {NONE,   OR,  NONE,  AND, OR,   AND},
};
/* clang-format on */

static bool is_float(uint32_t dtype)
{
    return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16 || dtype == HVD_FLOAT32 ||
           dtype == HVD_FLOAT64;
}

enum hvd_status hvi_reduce_check(uint32_t dtype, uint32_t op, double prescale,
                                 double postscale, struct hvi_err *err)
{
    bool scaled = prescale != 1.0 || postscale != 1.0;

    if (dtype == HVD_DTYPE_UNSET || dtype >= HVD_DTYPE_COUNT)
        return hvi_fail(err, HVD_EINVAL, "unknown dtype %u", dtype);
    if (op >= HVD_REDUCE_OP_COUNT)
        return hvi_fail(err, HVD_EINVAL, "unknown reduce op %u", op);
    if (rule_table[dtype][op] == HVI_FOLD_REFUSED)
        return hvi_fail(err, HVD_EUNSUPPORTED, "%s of %s is not supported%s",
                        hvi_reduce_op_name(op), hvi_dtype_name(dtype),
                        op == HVD_ADASUM ? ": use float16, float32 or float64" : "");
    if (scaled && dtype == HVD_BOOL)
        return hvi_fail(err, HVD_EUNSUPPORTED, "bool tensors cannot be scaled (%g, %g)",
                        prescale, postscale);
    if (!is_float(dtype) && !(isfinite(prescale) && isfinite(postscale)))
        return hvi_fail(err, HVD_EINVAL, "%s cannot be scaled by %g and %g",
                        hvi_dtype_name(dtype), prescale, postscale);
    return HVD_OK;
}

/* ---- which code runs */

static _Atomic(const struct hvi_reduce_isa *) isa_in_use;

static const struct hvi_reduce_isa *find_isa(const char *name)
{
    for (int i = 0; i < hvi_reduce_ncandidates; i++) {
        const struct hvi_reduce_candidate *c = &hvi_reduce_candidates[i];

        if ((name == NULL || strcmp(name, c->isa->name) == 0) && c->supported())
            return c->isa;
    }
    return NULL;
}

bool hvi_reduce_knows(const char *name)
{
    for (int i = 0; i < hvi_reduce_ncandidates; i++)
        if (strcmp(name, hvi_reduce_candidates[i].isa->name) == 0)
            return true;
    return false;
}

const char *hvi_reduce_names(void)
{
    static char names[64];
    size_t n = 0;

    for (int i = 0; i < hvi_reduce_ncandidates && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i > 0 ? ", " : "",
                              hvi_reduce_candidates[i].isa->name);
    return names;
}

static const struct hvi_reduce_isa *isa_get(void)
{
    const struct hvi_reduce_isa *isa =
        atomic_load_explicit(&isa_in_use, memory_order_acquire);
    const char *wanted;

    if (isa != NULL)
        return isa;
    wanted = hvi_env("SIMD");
    isa = find_isa(wanted);
    if (isa == NULL) {
        isa = find_isa(NULL);
        HVI_ASSERT(isa != NULL); /* scalar runs everywhere */
        hvi_log_warn("reduce", "HVD_SIMD=%s is not known here; using %s", wanted,
                     isa->name);
    }
    atomic_store_explicit(&isa_in_use, isa, memory_order_release);
    return isa;
}

const char *hvi_reduce_isa(void)
{
    return isa_get()->name;
}

enum hvd_status hvi_reduce_force(const char *name)
{
    const struct hvi_reduce_isa *isa = find_isa(name);

    if (isa == NULL)
        return HVD_EUNSUPPORTED;
    atomic_store_explicit(&isa_in_use, isa, memory_order_release);
    return HVD_OK;
}

/* ---- scale and copy */

/* In place or apart, 16-bit types through f32; rounds to dtype. */
static void scale_block(const struct hvi_reduce_isa *isa, void *out, const void *in,
                        int64_t count, uint32_t dtype, double scale)
{
    float wide[BLOCK_BYTES / sizeof(float)];

    if (isa->widen[dtype] == NULL) {
        isa->scale[dtype](out, in, count, scale);
        return;
    }
    isa->widen[dtype](wide, in, count);
    isa->scale[HVD_FLOAT32](wide, wide, count, scale);
    isa->narrow[dtype](out, wide, count);
}

static int64_t block_elems(uint32_t dtype)
{
    uint32_t size = hvi_dtype_size(dtype);
    bool widened = dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16;

    return BLOCK_BYTES / (int64_t)(widened ? sizeof(float) : size);
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void hvi_reduce_scale(void *out, const void *in, int64_t count, uint32_t dtype,
                      double scale)
{
    const struct hvi_reduce_isa *isa = isa_get();
    int64_t size = hvi_dtype_size(dtype);
    int64_t step = block_elems(dtype);

    if (scale == 1.0) {
        hvi_reduce_copy(out, in, (size_t)(count * size), false);
        return;
    }
    HVI_ASSERT(dtype != HVD_BOOL);
    for (int64_t at = 0; at < count; at += step)
        scale_block(isa, (char *)out + at * size, (const char *)in + at * size,
                    min_i64(step, count - at), dtype, scale);
}

void hvi_reduce_copy(void *out, const void *in, size_t size_bytes, bool stream)
{
    const struct hvi_reduce_isa *isa = isa_get();

    if (size_bytes == 0 || out == in)
        return;
    if (!stream || isa->stream == NULL) {
        memcpy(out, in, size_bytes);
        return;
    }
    isa->stream(out, in, size_bytes);
    isa->fence();
}

/* ---- fold */

struct fold {
    const struct hvi_reduce_isa *isa;
    hvi_fold_fn *fn;
    hvi_widen_fn *widen;   /* 16-bit floats, else NULL */
    hvi_narrow_fn *narrow; /* likewise */
    hvi_scale_fn *scale;   /* of the type that folds */
    const void *const *src;
    char *out;
    void *const *also; /* [nalso] out is copied there */
    int nsrc, nalso;
    uint32_t dtype;
    int64_t count, size; /* elements; bytes of one in memory */
    double pre, post;
    bool staged;
    int own;
    bool again; /* one source alone is folded with itself: makes bool 0 or 1 */
    bool stream, also_stream;
};

/* Source k of this block as the type that folds: in place, or in scratch. With `staged`
 * the others were rounded after their scaling, so own is as well: the result must not
 * depend on which rank folds. */
static const void *fetch(const struct fold *f, int k, int64_t at, int64_t count,
                         void *scratch)
{
    const void *p = (const char *)f->src[k] + at * f->size;
    bool scaled = f->pre != 1.0 && (!f->staged || k == f->own);

    if (scaled && f->staged) {
        scale_block(f->isa, scratch, p, count, f->dtype, f->pre);
        p = scratch;
        scaled = false;
    }
    if (f->widen != NULL) {
        uint16_t half[BLOCK_BYTES / sizeof(float)];

        if (p == scratch)
            p = memcpy(half, scratch, (size_t)count * sizeof(*half));
        f->widen(scratch, p, count);
        p = scratch;
    }
    if (scaled) {
        f->scale(scratch, p, count, f->pre);
        p = scratch;
    }
    return p;
}

/* The folded block (`value`, maybe the scratch block acc) to out: scale, round, store. */
static void finish(const struct fold *f, const void *value, void *acc, void *out,
                   int64_t count)
{
    size_t size_bytes = (size_t)(count * f->size);
    char half[BLOCK_BYTES / 2];

    if (f->post != 1.0) {
        f->scale(acc, value, count, f->post);
        value = acc;
    }
    if (f->narrow != NULL) {
        void *to = f->stream ? half : out;

        f->narrow(to, value, count);
        value = to;
    }
    if (f->stream)
        f->isa->stream(out, value, size_bytes);
    else if (value != out)
        memcpy(out, value, size_bytes);
}

static void put_also(const struct fold *f, const void *out, int64_t at, int64_t count)
{
    size_t size_bytes = (size_t)(count * f->size);

    for (int k = 0; k < f->nalso; k++) {
        char *to = (char *)f->also[k] + at * f->size;

        if (f->also_stream)
            f->isa->stream(to, out, size_bytes);
        else
            memcpy(to, out, size_bytes);
    }
}

static void fold_block(const struct fold *f, int64_t at, int64_t count)
{
    _Alignas(64) char acc[BLOCK_BYTES];
    _Alignas(64) char scratch[HVI_FOLD_GROUP][BLOCK_BYTES];
    const void *group[HVI_FOLD_GROUP] = {NULL};
    char *out = f->out + at * f->size;
    bool direct = f->narrow == NULL && f->post == 1.0 && !f->stream;
    int n = 0;

    for (int k = 0; k < f->nsrc; k++) {
        if (f->src[k] == NULL)
            continue;
        if (n == HVI_FOLD_GROUP) {
            f->fn(acc, group, n, count);
            group[0] = acc;
            n = 1;
        }
        group[n] = fetch(f, k, at, count, scratch[n]);
        n++;
    }
    if (n == 1 && f->again)
        group[n++] = group[0];
    if (n > 1) {
        void *to = direct ? out : acc;

        f->fn(to, group, n, count);
        group[0] = to;
    }
    HVI_ASSERT(n > 0);
    finish(f, group[0], acc, out, count);
    put_also(f, out, at, count); /* from the first-level cache */
}

static int count_sources(const void *const *src, int nsrc, int *last)
{
    int n = 0;

    for (int k = 0; k < nsrc; k++)
        if (src[k] != NULL) {
            n++;
            *last = k;
        }
    return n;
}

static void choose(struct fold *f, uint32_t op)
{
    uint32_t work;

    HVI_ASSERT(f->dtype < HVD_DTYPE_COUNT && op < HVD_REDUCE_OP_COUNT);
    f->isa = isa_get();
    work = f->isa->widen[f->dtype] != NULL ? HVD_FLOAT32 : f->dtype;
    f->fn = f->isa->fold[work][rule_table[f->dtype][op]];
    f->widen = f->isa->widen[f->dtype];
    f->narrow = f->isa->narrow[f->dtype];
    f->scale = f->isa->scale[work];
    f->size = hvi_dtype_size(f->dtype);
    f->again = f->dtype == HVD_BOOL;
    f->stream = f->stream && f->isa->stream != NULL;
    f->also_stream = f->also_stream && f->isa->stream != NULL;
    HVI_ASSERT(f->fn != NULL);
    HVI_ASSERT(f->dtype != HVD_BOOL || (f->pre == 1.0 && f->post == 1.0));
}

/* The only source is the result. */
static bool is_copy(const struct fold *f, int k)
{
    return !f->again && f->post == 1.0 && (f->pre == 1.0 || (f->staged && k != f->own));
}

static void fold_all(struct fold *f, uint32_t op)
{
    int last = -1;
    int n = count_sources(f->src, f->nsrc, &last);
    int64_t step = block_elems(f->dtype);

    choose(f, op);
    if (n > 1 || (n == 1 && !is_copy(f, last))) {
        for (int64_t at = 0; at < f->count; at += step)
            fold_block(f, at, min_i64(step, f->count - at));
        if (f->stream || f->also_stream)
            f->isa->fence();
        return;
    }
    if (n == 0)
        hvi_reduce_neutral(f->out, f->count, f->dtype, op);
    else
        hvi_reduce_copy(f->out, f->src[last], (size_t)(f->count * f->size), f->stream);
    for (int k = 0; k < f->nalso; k++)
        hvi_reduce_copy(f->also[k], f->out, (size_t)(f->count * f->size),
                        f->also_stream);
}

void hvi_reduce_fold(void *out, const void *const *src, int nsrc, int64_t count,
                     uint32_t dtype, uint32_t op, double pre, bool staged, int own,
                     double post, bool stream)
{
    struct fold f = {.src = src,
                     .out = out,
                     .nsrc = nsrc,
                     .dtype = dtype,
                     .count = count,
                     .pre = pre,
                     .post = post,
                     .staged = staged,
                     .own = own,
                     .stream = stream};

    fold_all(&f, op);
}

void hvi_reduce_fold_to_all(void *out, void *const *also, int nalso,
                            const void *const *src, int nsrc, int64_t count,
                            uint32_t dtype, uint32_t op, double pre, double post,
                            bool also_stream)
{
    struct fold f = {.src = src,
                     .out = out,
                     .also = also,
                     .nalso = nalso,
                     .nsrc = nsrc,
                     .dtype = dtype,
                     .count = count,
                     .pre = pre,
                     .post = post,
                     .own = -1,
                     .also_stream = also_stream};

    fold_all(&f, op);
}

/* ---- neutral elements */

/* The bytes of one neutral element. */
static void neutral_value(uint32_t dtype, enum hvi_fold_rule rule, void *out)
{
    bool low = rule == HVI_FOLD_LOWEST;
    bool one = rule == HVI_FOLD_MUL || rule == HVI_FOLD_AND;

#define PUT(type, smallest, largest)                                                   \
    do {                                                                               \
        type v_ = one ? (type)1 : low ? (type)(largest) : (type)(smallest);            \
        memcpy(out, &v_, sizeof(v_));                                                  \
    } while (0)
    switch ((enum hvd_dtype)dtype) {
    case HVD_UINT8:
        PUT(uint8_t, 0, UINT8_MAX);
        break;
    case HVD_INT8:
        PUT(int8_t, INT8_MIN, INT8_MAX);
        break;
    case HVD_UINT16:
        PUT(uint16_t, 0, UINT16_MAX);
        break;
    case HVD_INT16:
        PUT(int16_t, INT16_MIN, INT16_MAX);
        break;
    case HVD_INT32:
        PUT(int32_t, INT32_MIN, INT32_MAX);
        break;
    case HVD_INT64:
        PUT(int64_t, INT64_MIN, INT64_MAX);
        break;
    case HVD_FLOAT16: {
        uint16_t v = one ? 0x3c00 : low ? 0x7c00 : 0xfc00;
        memcpy(out, &v, sizeof(v));
        break;
    }
    case HVD_BFLOAT16: {
        uint16_t v = one ? 0x3f80 : low ? 0x7f80 : 0xff80;
        memcpy(out, &v, sizeof(v));
        break;
    }
    case HVD_FLOAT32:
        PUT(float, -INFINITY, INFINITY);
        break;
    case HVD_FLOAT64:
        PUT(double, -INFINITY, INFINITY);
        break;
    case HVD_BOOL:
        PUT(uint8_t, 0, 1);
        break;
    case HVD_DTYPE_UNSET:
    case HVD_DTYPE_COUNT:
        break;
    }
#undef PUT
}

void hvi_reduce_neutral(void *out, int64_t count, uint32_t dtype, uint32_t op)
{
    size_t size = hvi_dtype_size(dtype);
    size_t whole = size * (size_t)count;
    enum hvi_fold_rule rule;
    size_t done = size;

    HVI_ASSERT(dtype < HVD_DTYPE_COUNT && op < HVD_REDUCE_OP_COUNT);
    rule = (enum hvi_fold_rule)rule_table[dtype][op];
    if (count <= 0)
        return;
    if (rule != HVI_FOLD_MUL && rule != HVI_FOLD_AND && rule != HVI_FOLD_LOWEST &&
        rule != HVI_FOLD_HIGHEST) {
        memset(out, 0, whole); /* zero of every type is zero bytes */
        return;
    }
    neutral_value(dtype, rule, out);
    while (done < whole) { /* copy what is there behind itself: 1, 2, 4 ... elements */
        size_t more = done < whole - done ? done : whole - done;

        memcpy((char *)out + done, out, more);
        done += more;
    }
}

/* ---- single conversions */

float hvi_f16_to_f32(uint16_t h)
{
    return half_widen_f16(h);
}

uint16_t hvi_f32_to_f16(float f)
{
    return half_narrow_f16(f);
}

float hvi_bf16_to_f32(uint16_t b)
{
    return half_widen_bf16(b);
}

uint16_t hvi_f32_to_bf16(float f)
{
    return half_narrow_bf16(f);
}

void hvi_reduce_widen_f16(float *out, const void *in, int64_t count)
{
    isa_get()->widen[HVD_FLOAT16](out, in, count);
}

void hvi_reduce_narrow_f16(void *out, const float *in, int64_t count)
{
    isa_get()->narrow[HVD_FLOAT16](out, in, count);
}
