#include "proto/msg/request.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

#include "proto/base/buf.h"
#include "proto/base/names.h"

struct hvi_request *hvi_request_new(const char *name, uint32_t ntensors)
{
    size_t name_bytes = strlen(name) + 1;
    size_t shapes_bytes = ntensors * sizeof(struct hvi_shape);
    struct hvi_request *r = calloc(1, sizeof *r + shapes_bytes + name_bytes);

    if (r == NULL)
        return NULL;
    atomic_init(&r->refs, 1);
    r->ntensors = ntensors;
    r->prescale = 1.0;
    r->postscale = 1.0;
    r->shapes = (struct hvi_shape *)(void *)(r + 1);
    r->name = (char *)(r + 1) + shapes_bytes;
    memcpy(r->name, name, name_bytes);
    return r;
}

struct hvi_request *hvi_request_ref(struct hvi_request *r)
{
    atomic_fetch_add_explicit(&r->refs, 1, memory_order_relaxed);
    return r;
}

void hvi_request_free(struct hvi_request *r)
{
    if (r != NULL && atomic_fetch_sub_explicit(&r->refs, 1, memory_order_acq_rel) == 1)
        free(r);
}

/* ---- signature and comparison */

static uint64_t double_bits(double v)
{
    uint64_t bits;

    memcpy(&bits, &v, sizeof bits);
    return bits;
}

static uint64_t hash_shape(const struct hvi_shape *s, uint64_t seed)
{
    uint8_t bytes[8 + 8 * HVD_NDIM_MAX];
    struct hvi_cursor c;

    hvi_cursor_init(&c, bytes, sizeof bytes);
    hvi_put_u32(&c, s->dtype);
    hvi_put_u32(&c, s->ndim);
    for (uint32_t i = 0; i < s->ndim && i < HVD_NDIM_MAX; i++)
        hvi_put_u64(&c, (uint64_t)s->dims[i]);
    return XXH3_64bits_withSeed(bytes, sizeof bytes - c.left, seed);
}

void hvi_request_seal(struct hvi_request *r)
{
    uint8_t bytes[64];
    struct hvi_cursor c;
    uint64_t hash;

    hvi_cursor_init(&c, bytes, sizeof bytes);
    hvi_put_u32(&c, r->kind);
    hvi_put_u32(&c, r->reduce_op);
    hvi_put_u32(&c, r->pset);
    hvi_put_u32(&c, r->device);
    hvi_put_u32(&c, (uint32_t)r->root);
    hvi_put_u32(&c, r->grouped);
    hvi_put_u32(&c, r->ntensors);
    hvi_put_u64(&c, double_bits(r->prescale));
    hvi_put_u64(&c, double_bits(r->postscale));
    hash = XXH3_64bits(bytes, sizeof bytes - c.left);
    for (uint32_t i = 0; i < r->ntensors; i++)
        hash = hash_shape(&r->shapes[i], hash);
    r->signature = hash;
}

/* Scales are compared by their bits: no rounding may pass for equal. */
static bool same_double(double a, double b)
{
    return double_bits(a) == double_bits(b);
}

static bool same_shape(const struct hvi_shape *a, const struct hvi_shape *b)
{
    return a->ndim == b->ndim &&
           memcmp(a->dims, b->dims, a->ndim * sizeof a->dims[0]) == 0;
}

static bool same_fields(const struct hvi_request *a, const struct hvi_request *b)
{
    if (a->kind != b->kind || a->reduce_op != b->reduce_op || a->pset != b->pset ||
        a->device != b->device || a->root != b->root || a->grouped != b->grouped ||
        a->ntensors != b->ntensors || !same_double(a->prescale, b->prescale) ||
        !same_double(a->postscale, b->postscale))
        return false;
    for (uint32_t i = 0; i < a->ntensors; i++)
        if (a->shapes[i].dtype != b->shapes[i].dtype ||
            !same_shape(&a->shapes[i], &b->shapes[i]))
            return false;
    return true;
}

bool hvi_request_same(const struct hvi_request *a, const struct hvi_request *b)
{
    return a->signature == b->signature && same_fields(a, b);
}

bool hvi_request_equal(const struct hvi_request *a, const struct hvi_request *b)
{
    return a->priority == b->priority && a->instance == b->instance &&
           same_fields(a, b);
}

/* ---- the first difference, in words */

/* Where the text goes, and the two ranks it speaks of. */
struct words {
    char *out;
    size_t cap;
    int rank_a, rank_b;
};

/* "WHAT A on rank 0, B on rank 1"; returns true: a difference was found. */
__attribute__((format(printf, 4, 5))) static bool
differ(const struct words *w, const char *a, const char *b, const char *what, ...)
{
    va_list ap;
    int n;

    va_start(ap, what);
    n = vsnprintf(w->out, w->cap, what, ap);
    va_end(ap);
    if (n >= 0 && (size_t)n < w->cap)
        snprintf(w->out + n, w->cap - (size_t)n, " %s on rank %d, %s on rank %d", a,
                 w->rank_a, b, w->rank_b);
    return true;
}

static bool differ_int(const struct words *w, const char *what, int64_t a, int64_t b)
{
    char text_a[24];
    char text_b[24];

    if (a == b)
        return false;
    snprintf(text_a, sizeof text_a, "%" PRId64, a);
    snprintf(text_b, sizeof text_b, "%" PRId64, b);
    return differ(w, text_a, text_b, "%s", what);
}

static bool differ_double(const struct words *w, const char *what, double a, double b)
{
    char text_a[40];
    char text_b[40];

    if (same_double(a, b))
        return false;
    snprintf(text_a, sizeof text_a, "%.17g", a);
    snprintf(text_b, sizeof text_b, "%.17g", b);
    return differ(w, text_a, text_b, "%s", what);
}

/* "[2, 3]"; a first dimension that may differ between ranks is "*". */
static void word_shape(const struct hvi_shape *s, bool first_free, char *out,
                       size_t cap)
{
    size_t used = (size_t)snprintf(out, cap, "[");

    for (uint32_t i = 0; i < s->ndim && used < cap; i++) {
        const char *comma = i > 0 ? ", " : "";

        if (i == 0 && first_free)
            used += (size_t)snprintf(out + used, cap - used, "*");
        else
            used += (size_t)snprintf(out + used, cap - used, "%s%" PRId64, comma,
                                     s->dims[i]);
    }
    if (used < cap)
        snprintf(out + used, cap - used, "]");
}

/* "tensor 3: " before what is said of one of a group. */
static const char *tensor_prefix(const struct hvi_request *a, uint32_t i, char out[40])
{
    out[0] = '\0';
    if (a->ntensors > 1)
        snprintf(out, 40, "tensor %u of %u: ", i + 1, a->ntensors);
    return out;
}

static bool differ_dtype(const struct words *w, const struct hvi_request *a,
                         const struct hvi_request *b)
{
    char prefix[40];

    for (uint32_t i = 0; i < a->ntensors && i < b->ntensors; i++)
        if (a->shapes[i].dtype != b->shapes[i].dtype)
            return differ(w, hvi_dtype_name(a->shapes[i].dtype),
                          hvi_dtype_name(b->shapes[i].dtype), "%sdtype",
                          tensor_prefix(a, i, prefix));
    return false;
}

static bool differ_shape(const struct words *w, const struct hvi_request *a,
                         const struct hvi_request *b)
{
    bool first_free = a->kind == HVD_ALLGATHER || a->kind == HVD_ALLTOALL;
    char text_a[24 * HVD_NDIM_MAX];
    char text_b[24 * HVD_NDIM_MAX];
    char prefix[40];

    for (uint32_t i = 0; i < a->ntensors && i < b->ntensors; i++) {
        if (same_shape(&a->shapes[i], &b->shapes[i]))
            continue;
        word_shape(&a->shapes[i], first_free, text_a, sizeof text_a);
        word_shape(&b->shapes[i], first_free, text_b, sizeof text_b);
        return differ(w, text_a, text_b, "%sshape", tensor_prefix(a, i, prefix));
    }
    return false;
}

static const char *device_name(uint32_t device)
{
    return device == HVD_CPU ? "cpu" : "cuda";
}

void hvi_request_explain(const struct hvi_request *a, int rank_a,
                         const struct hvi_request *b, int rank_b, char *out, size_t cap)
{
    struct words w = {out, cap, rank_a, rank_b};

    if (cap == 0)
        return;
    out[0] = '\0';
    if (a->kind != b->kind)
        differ(&w, hvi_kind_name(a->kind), hvi_kind_name(b->kind), "operation");
    else if (a->reduce_op != b->reduce_op)
        differ(&w, hvi_reduce_op_name(a->reduce_op), hvi_reduce_op_name(b->reduce_op),
               "reduce op");
    else if (differ_dtype(&w, a, b) ||
             differ_int(&w, "number of tensors", a->ntensors, b->ntensors) ||
             differ_shape(&w, a, b) || differ_int(&w, "root", a->root, b->root) ||
             differ_double(&w, "prescale", a->prescale, b->prescale) ||
             differ_double(&w, "postscale", a->postscale, b->postscale))
        return;
    else if (a->device != b->device)
        differ(&w, device_name(a->device), device_name(b->device), "device");
    else if (a->grouped != b->grouped)
        differ(&w, a->grouped ? "in a group" : "alone",
               b->grouped ? "in a group" : "alone", "submitted");
    else
        differ_int(&w, "process set", a->pset, b->pset);
}

/* ---- sizes and fusing */

enum hvd_status hvi_shape_count(const struct hvi_shape *s, int64_t *count,
                                int64_t *bytes)
{
    int64_t product = 1;
    int64_t size;
    bool empty = false;

    if (s->ndim > HVD_NDIM_MAX)
        return HVD_EINVAL;
    for (uint32_t i = 0; i < s->ndim; i++) {
        if (s->dims[i] < 0)
            return HVD_EINVAL;
        if (s->dims[i] == 0)
            empty = true;
        else if (__builtin_mul_overflow(product, s->dims[i], &product))
            return HVD_ELIMIT;
    }
    if (__builtin_mul_overflow(product, (int64_t)hvi_dtype_size(s->dtype), &size))
        return HVD_ELIMIT;
    *count = empty ? 0 : product;
    *bytes = empty ? 0 : size;
    return HVD_OK;
}

int64_t hvi_request_bytes(const struct hvi_request *r)
{
    int64_t sum = 0;

    for (uint32_t i = 0; i < r->ntensors; i++) {
        int64_t count;
        int64_t bytes;

        if (hvi_shape_count(&r->shapes[i], &count, &bytes) != HVD_OK ||
            __builtin_add_overflow(sum, bytes, &sum))
            return INT64_MAX;
    }
    return sum;
}

static bool all_of_dtype(const struct hvi_request *r, uint32_t dtype)
{
    for (uint32_t i = 0; i < r->ntensors; i++)
        if (r->shapes[i].dtype != dtype)
            return false;
    return r->ntensors > 0;
}

bool hvi_request_fuses(const struct hvi_request *a, const struct hvi_request *b)
{
    bool kind_fuses = (a->kind == HVD_ALLREDUCE && a->reduce_op != HVD_ADASUM) ||
                      (a->kind == HVD_BROADCAST && a->root == b->root);

    return kind_fuses && a->kind == b->kind && a->reduce_op == b->reduce_op &&
           a->pset == b->pset && a->device == b->device && a->ntensors > 0 &&
           same_double(a->prescale, b->prescale) &&
           same_double(a->postscale, b->postscale) &&
           all_of_dtype(a, a->shapes[0].dtype) && all_of_dtype(b, a->shapes[0].dtype);
}

/* ---- to and from the wire */

static enum hvd_status bad_request(const Hvi__Request *m, struct hvi_err *err,
                                   const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static enum hvd_status bad_request(const Hvi__Request *m, struct hvi_err *err,
                                   const char *fmt, ...)
{
    char name[128];
    char what[160];
    va_list ap;

    hvi_escape(name, sizeof name, m->name, strlen(m->name));
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return hvi_fail(err, HVD_EPROTO, "request '%s': %s", name, what);
}

static enum hvd_status check_request(const Hvi__Request *m, struct hvi_err *err)
{
    size_t name_bytes = strlen(m->name);
    size_t least = m->kind == HVD_BARRIER ? 0 : 1;

    if (name_bytes == 0 || name_bytes > HVD_NAME_MAX)
        return bad_request(m, err, "a name of %zu bytes", name_bytes);
    if (m->kind == HVD_KIND_UNSET || m->kind >= HVD_JOIN)
        return bad_request(m, err, "unknown operation %u", m->kind);
    if (m->reduce_op >= HVD_REDUCE_OP_COUNT)
        return bad_request(m, err, "unknown reduce op %u", m->reduce_op);
    if (m->device > HVD_CUDA)
        return bad_request(m, err, "unknown device %u", m->device);
    if (!isfinite(m->prescale) || !isfinite(m->postscale))
        return bad_request(m, err, "a scale is not finite");
    if (m->kind == HVD_BROADCAST && (m->root < 0 || m->root >= HVD_RANKS_MAX))
        return bad_request(m, err, "root %d", m->root);
    if (m->n_tensors < least || m->n_tensors > HVD_GROUP_MAX)
        return bad_request(m, err, "%zu tensors", m->n_tensors);
    if (!m->grouped && m->n_tensors > 1)
        return bad_request(m, err, "%zu tensors outside a group", m->n_tensors);
    return HVD_OK;
}

static enum hvd_status take_shape(const Hvi__Request *m, const Hvi__Tensor *t,
                                  struct hvi_shape *s, struct hvi_err *err)
{
    int64_t count;
    int64_t bytes;
    bool untyped = m->kind == HVD_BARRIER && t->dtype == HVD_DTYPE_UNSET;

    if (hvi_dtype_size(t->dtype) == 0 && !untyped)
        return bad_request(m, err, "unknown dtype %u", t->dtype);
    if (t->n_dims > HVD_NDIM_MAX)
        return bad_request(m, err, "%zu dimensions, at most %d", t->n_dims,
                           HVD_NDIM_MAX);
    s->dtype = t->dtype;
    s->ndim = (uint32_t)t->n_dims;
    for (uint32_t i = 0; i < s->ndim; i++) {
        if (t->dims[i] < 0)
            return bad_request(m, err, "dimension %u is %" PRId64, i, t->dims[i]);
        s->dims[i] = t->dims[i];
    }
    if (hvi_shape_count(s, &count, &bytes) != HVD_OK)
        return bad_request(m, err, "a tensor of more than 2^63 bytes");
    return HVD_OK;
}

enum hvd_status hvi_request_from_msg(const Hvi__Request *m, struct hvi_request **out,
                                     struct hvi_err *err)
{
    struct hvi_request *r = NULL;
    enum hvd_status rc = check_request(m, err);

    if (rc != HVD_OK)
        goto done;
    r = hvi_request_new(m->name, (uint32_t)m->n_tensors);
    if (r == NULL) {
        rc = hvi_fail(err, HVD_ENOMEM, "request: out of memory");
        goto done;
    }
    for (size_t i = 0; i < m->n_tensors && rc == HVD_OK; i++)
        rc = take_shape(m, m->tensors[i], &r->shapes[i], err);
    if (rc != HVD_OK)
        goto done;
    r->kind = m->kind;
    r->reduce_op = m->reduce_op;
    r->pset = m->pset;
    r->device = m->device;
    r->root = m->root;
    r->priority = m->priority;
    r->prescale = fpclassify(m->prescale) == FP_ZERO ? 1.0 : m->prescale;
    r->postscale = fpclassify(m->postscale) == FP_ZERO ? 1.0 : m->postscale;
    r->grouped = m->grouped;
    r->instance = m->instance;
    if (hvi_request_bytes(r) == INT64_MAX) {
        rc = bad_request(m, err, "tensors of more than 2^63 bytes");
        goto done;
    }
    hvi_request_seal(r);
    *out = r;
    r = NULL;
done:
    hvi_request_free(r);
    return rc;
}

/* One block: the message, its pointers, its tensors. Name and dims stay r's. */
Hvi__Request *hvi_request_to_msg(const struct hvi_request *r)
{
    size_t n = r->ntensors;
    Hvi__Request *m =
        malloc(sizeof *m + n * sizeof(Hvi__Tensor) + n * sizeof(Hvi__Tensor *));
    Hvi__Tensor *tensors;

    if (m == NULL)
        return NULL;
    hvi__request__init(m);
    tensors = (Hvi__Tensor *)(void *)(m + 1);
    m->tensors = (Hvi__Tensor **)(void *)(tensors + n);
    m->n_tensors = n;
    for (size_t i = 0; i < n; i++) {
        hvi__tensor__init(&tensors[i]);
        tensors[i].dtype = r->shapes[i].dtype;
        tensors[i].n_dims = r->shapes[i].ndim;
        tensors[i].dims = r->shapes[i].dims;
        m->tensors[i] = &tensors[i];
    }
    m->name = r->name;
    m->kind = r->kind;
    m->reduce_op = r->reduce_op;
    m->pset = r->pset;
    m->device = r->device;
    m->root = r->root;
    m->priority = r->priority;
    m->prescale = r->prescale;
    m->postscale = r->postscale;
    m->grouped = r->grouped;
    m->instance = r->instance;
    return m;
}

void hvi_request_msg_free(Hvi__Request *m)
{
    free(m);
}
