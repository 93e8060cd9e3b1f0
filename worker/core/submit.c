/*
 * From a caller's struct hvd_op to an entry: every check that needs no peer is made
 * here, worded for the caller, before anything is queued.
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/names.h"
#include "worker/core/alloc.h"
#include "worker/core/ctx.h"
#include "worker/core/timeline.h"
#include "worker/plane/nccl/nccl.h"
#include "worker/plane/reduce/reduce.h"

static const char *shown_name(const struct hvd_op *op)
{
    return op->name != NULL && op->name[0] != '\0' ? op->name : "(unnamed)";
}

/* Elements of t; checks everything that a tensor alone can have wrong. */
static enum hvd_status check_tensor(const struct hvd_op *op, const struct hvd_tensor *t,
                                    int64_t *count, struct hvi_err *err)
{
    int64_t n = 1;
    int64_t size = (int64_t)hvi_dtype_size((uint32_t)t->dtype);
    const char *name = shown_name(op);

    if (size == 0)
        return hvi_fail(err, HVD_EINVAL, "%s: dtype %d is unknown", name, t->dtype);
    if (t->ndim < 0 || t->ndim > HVD_NDIM_MAX)
        return hvi_fail(err, HVD_EINVAL, "%s: ndim %d is not in 0..%d", name, t->ndim,
                        HVD_NDIM_MAX);
    if (t->ndim > 0 && t->dims == NULL)
        return hvi_fail(err, HVD_EINVAL, "%s: dims is NULL with ndim %d", name,
                        t->ndim);
    for (int32_t i = 0; i < t->ndim; i++) {
        if (t->dims[i] < 0)
            return hvi_fail(err, HVD_EINVAL, "%s: dims[%d] is %" PRId64, name, i,
                            t->dims[i]);
        if (__builtin_mul_overflow(n, t->dims[i], &n))
            return hvi_fail(err, HVD_EINVAL, "%s: the element count overflows", name);
    }
    if (n > INT64_MAX / 64 / size)
        return hvi_fail(err, HVD_EINVAL, "%s: %" PRId64 " elements of %s are too many",
                        name, n, hvi_dtype_name((uint32_t)t->dtype));
    if (n > 0 && t->data == NULL)
        return hvi_fail(err, HVD_EINVAL,
                        "%s: data is NULL for a tensor of %" PRId64 " elements", name,
                        n);
    *count = n;
    return HVD_OK;
}

static enum hvd_status check_head(const struct hvd_op *op, struct hvi_err *err)
{
    if (op->size < offsetof(struct hvd_op, arg) + sizeof op->arg)
        return hvi_fail(err, HVD_EINVAL, "hvd_op.size is %u, not sizeof(struct hvd_op)",
                        op->size);
    if (op->kind <= HVD_KIND_UNSET || op->kind >= HVD_JOIN)
        return hvi_fail(err, HVD_EINVAL, "kind %d is unknown", op->kind);
    if (op->name != NULL && strlen(op->name) > HVD_NAME_MAX)
        return hvi_fail(err, HVD_EINVAL, "name is longer than %d bytes", HVD_NAME_MAX);
    if (op->in.device != HVD_CPU && op->in.device != HVD_CUDA)
        return hvi_fail(err, HVD_EUNSUPPORTED, "%s: device type %d is unknown",
                        shown_name(op), op->in.device);
    if (op->ready.kind != HVD_READY_NONE && op->in.device != HVD_CUDA)
        return hvi_fail(err, HVD_EINVAL, "%s: ready events are for GPU tensors",
                        shown_name(op));
    if (op->out.data != NULL && op->kind != HVD_BARRIER &&
        (op->out.device != op->in.device ||
         (op->in.device == HVD_CUDA && op->out.device_id != op->in.device_id)))
        return hvi_fail(err, HVD_EINVAL, "%s: in and out are on different devices",
                        shown_name(op));
    if (!isfinite(op->prescale) || !isfinite(op->postscale))
        return hvi_fail(err, HVD_EINVAL, "%s: scale is not finite", shown_name(op));
    return HVD_OK;
}

static bool power_of_two(int n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

static enum hvd_status check_reduce(const struct hvd_op *op, const struct hvi_pset *set,
                                    struct hvi_err *err)
{
    double pre = op->prescale == 0 ? 1.0 : op->prescale;
    double post = op->postscale == 0 ? 1.0 : op->postscale;
    struct hvi_err why;
    enum hvd_status rc;

    if (op->reduce_op < 0 || op->reduce_op >= HVD_REDUCE_OP_COUNT)
        return hvi_fail(err, HVD_EINVAL, "%s: reduce_op %d is unknown", shown_name(op),
                        op->reduce_op);
    rc = hvi_reduce_check((uint32_t)op->in.dtype, (uint32_t)op->reduce_op, pre, post,
                          &why);
    if (rc != HVD_OK)
        return hvi_fail(err, rc, "%s: %s", shown_name(op), why.text);
    if (op->reduce_op != HVD_ADASUM)
        return HVD_OK;
    if (op->kind != HVD_ALLREDUCE)
        return hvi_fail(err, HVD_EUNSUPPORTED, "%s: Adasum is for allreduce only",
                        shown_name(op));
    if (set->id != 0 || !power_of_two(set->size))
        return hvi_fail(err, HVD_EUNSUPPORTED,
                        "%s: Adasum needs the global process set and a power-of-two "
                        "number of ranks, not %d",
                        shown_name(op), set->size);
    return HVD_OK;
}

static enum hvd_status check_splits(const struct hvd_op *op, const struct hvi_pset *set,
                                    int64_t rows, struct hvi_err *err)
{
    int64_t sum = 0;

    if (op->splits == NULL) {
        if (rows % set->size != 0)
            return hvi_fail(err, HVD_EINVAL,
                            "%s: alltoall without splits: %" PRId64
                            " rows do not divide by %d ranks",
                            shown_name(op), rows, set->size);
        return HVD_OK;
    }
    if (op->nsplits != set->size)
        return hvi_fail(err, HVD_EINVAL, "%s: %d splits for a process set of %d ranks",
                        shown_name(op), op->nsplits, set->size);
    for (int32_t i = 0; i < op->nsplits; i++) {
        if (op->splits[i] < 0 || __builtin_add_overflow(sum, op->splits[i], &sum))
            return hvi_fail(err, HVD_EINVAL, "%s: splits[%d] is %" PRId64,
                            shown_name(op), i, op->splits[i]);
    }
    if (sum > rows)
        return hvi_fail(err, HVD_EINVAL,
                        "%s: splits add up to %" PRId64 ", the tensor has %" PRId64
                        " rows",
                        shown_name(op), sum, rows);
    return HVD_OK;
}

static bool by_rows(int32_t kind)
{
    return kind == HVD_ALLGATHER || kind == HVD_ALLTOALL || kind == HVD_REDUCESCATTER;
}

/* The planes write results of another layout while they still read the input. */
static enum hvd_status check_overlap(const struct hvd_op *op, int64_t count,
                                     struct hvi_err *err)
{
    uintptr_t in = (uintptr_t)op->in.data;
    uintptr_t out = (uintptr_t)op->out.data;
    uintptr_t in_bytes = (uintptr_t)count * hvi_dtype_size((uint32_t)op->in.dtype);

    if (in_bytes == 0 || out == 0 || op->out_capacity_bytes == 0)
        return HVD_OK;
    if (out < in + in_bytes && in < out + op->out_capacity_bytes)
        return hvi_fail(err, HVD_EINVAL, "%s: out must not overlap in for %s",
                        shown_name(op), hvi_kind_name((uint32_t)op->kind));
    return HVD_OK;
}

static enum hvd_status check_kind(const struct hvd_op *op, const struct hvi_pset *set,
                                  struct hvi_err *err)
{
    if (by_rows(op->kind) && op->in.ndim == 0)
        return hvi_fail(err, HVD_EINVAL, "%s: %s of a scalar; give it one dimension",
                        shown_name(op), hvi_kind_name((uint32_t)op->kind));
    if (op->kind == HVD_ALLREDUCE || op->kind == HVD_REDUCESCATTER) {
        enum hvd_status rc = check_reduce(op, set, err);

        if (rc != HVD_OK)
            return rc;
    }
    if (op->kind == HVD_BROADCAST) {
        bool member = false;

        for (int32_t i = 0; i < set->size; i++)
            member |= set->ranks[i] == op->root;
        if (!member)
            return hvi_fail(err, HVD_EINVAL,
                            "%s: root rank %d is not in process set %d (%d ranks)",
                            shown_name(op), op->root, set->id, set->size);
    }
    if (op->kind == HVD_ALLTOALL)
        return check_splits(op, set, op->in.dims[0], err);
    return HVD_OK;
}

static bool kind_reduces(uint32_t kind)
{
    return kind == HVD_ALLREDUCE || kind == HVD_REDUCESCATTER;
}

/* Dimensions, sizes and where the result goes. */
static enum hvd_status fill_op(struct hvi_op *o, const struct hvd_op *op,
                               const struct hvi_pset *set, int64_t count,
                               struct hvi_err *err)
{
    bool same_size = op->kind == HVD_ALLREDUCE || op->kind == HVD_BROADCAST;
    size_t bytes = (size_t)count * hvi_dtype_size((uint32_t)op->in.dtype);
    bool gpu = op->in.device == HVD_CUDA;

    o->device = op->in.device;
    o->kind = (uint32_t)op->kind;
    o->dtype = (uint32_t)op->in.dtype;
    o->pset = op->pset;
    o->nmembers = set->size;
    o->in = op->in.data;
    o->count = count;
    o->row = 1;
    o->done = op->done;
    o->alloc = op->alloc;
    o->arg = op->arg;
    o->out_capacity_bytes = op->out_capacity_bytes;
    if (op->kind == HVD_BARRIER)
        return HVD_OK;
    o->ndim = o->out_ndim = op->in.ndim;
    for (int32_t i = 0; i < op->in.ndim; i++) {
        o->dims[i] = o->out_dims[i] = op->in.dims[i];
        if (i > 0)
            o->row *= op->in.dims[i];
    }
    if (same_size)
        o->out = op->out.data;
    else
        o->user_out = op->out.data;
    if (same_size && o->out == NULL && count > 0) {
        o->owned = hvi_op_memory(o, (size_t)count * hvi_dtype_size(o->dtype), err);
        if (o->owned == NULL)
            return HVD_ENOMEM;
        o->out = o->owned;
    }
    if (!gpu) {
        o->in_region = hvi_region_find(op->in.data, bytes);
        o->out_region =
            hvi_region_find(op->out.data, same_size ? bytes : op->out_capacity_bytes);
    }
    if (!by_rows(op->kind))
        return HVD_OK;
    o->rows = calloc((size_t)set->size, sizeof *o->rows);
    if (op->splits != NULL && op->kind == HVD_ALLTOALL)
        o->splits = malloc((size_t)set->size * sizeof *o->splits);
    if (o->rows == NULL ||
        (op->splits != NULL && op->kind == HVD_ALLTOALL && o->splits == NULL))
        return hvi_fail(err, HVD_ENOMEM, "%s: out of memory", shown_name(op));
    if (o->row == 0 && o->dims[0] > 0 && op->kind != HVD_REDUCESCATTER && !gpu) {
        o->ghost = calloc((size_t)o->dims[0], hvi_dtype_size(o->dtype));
        if (o->ghost == NULL)
            return hvi_fail(err, HVD_ENOMEM, "%s: out of memory", shown_name(op));
    }
    if (o->splits != NULL && op->splits != NULL)
        memcpy(o->splits, op->splits, (size_t)set->size * sizeof *o->splits);
    return HVD_OK;
}

static void fill_shape(struct hvi_shape *s, const struct hvd_op *op)
{
    s->dtype = op->kind == HVD_BARRIER ? HVD_UINT8 : (uint32_t)op->in.dtype;
    s->ndim = op->kind == HVD_BARRIER ? 0 : (uint32_t)op->in.ndim;
    for (uint32_t i = 0; i < s->ndim; i++)
        s->dims[i] = op->in.dims[i];
    if (op->kind == HVD_ALLGATHER || op->kind == HVD_ALLTOALL)
        s->dims[0] = 0;
}

static void fill_request(struct hvi_request *r, const struct hvd_op *op, bool grouped)
{
    r->kind = (uint32_t)op->kind;
    r->pset = (uint32_t)op->pset;
    r->priority = op->priority;
    r->grouped = grouped;
    r->prescale = r->postscale = 1.0;
    if (kind_reduces(r->kind)) {
        r->reduce_op = (uint32_t)op->reduce_op;
        r->prescale = op->prescale == 0 ? 1.0 : op->prescale;
        r->postscale = op->postscale == 0 ? 1.0 : op->postscale;
    } else {
        r->reduce_op = HVD_SUM;
    }
    r->root = op->kind == HVD_BROADCAST ? op->root : 0;
    r->device = (uint32_t)op->in.device;
}

/* All ops of a group run as one: what must be equal among them. */
static enum hvd_status check_group(const struct hvd_op *ops, int32_t count,
                                   struct hvi_err *err)
{
    for (int32_t i = 1; i < count; i++) {
        if (ops[i].kind != ops[0].kind || ops[i].pset != ops[0].pset ||
            ops[i].reduce_op != ops[0].reduce_op || ops[i].root != ops[0].root ||
            ops[i].in.device != ops[0].in.device ||
            (ops[0].in.device == HVD_CUDA &&
             ops[i].in.device_id != ops[0].in.device_id) ||
            memcmp(&ops[i].prescale, &ops[0].prescale, sizeof(double)) != 0 ||
            memcmp(&ops[i].postscale, &ops[0].postscale, sizeof(double)) != 0)
            return hvi_fail(
                err, HVD_EINVAL,
                "group: member %d differs from member 0 in kind, process set, "
                "op, root, scale or device",
                i);
    }
    return HVD_OK;
}

static enum hvd_status check_op(const struct hvd_op *op, const struct hvi_pset *set,
                                int64_t *count, struct hvi_err *err)
{
    struct hvd_tensor t = op->in;
    enum hvd_status rc;

    *count = 0;
    if (op->kind == HVD_BARRIER)
        return HVD_OK;
    /* off the root a broadcast only writes */
    if (op->kind == HVD_BROADCAST && t.data == NULL)
        t.data = op->out.data;
    rc = check_tensor(op, &t, count, err);
    if (rc == HVD_OK)
        rc = check_kind(op, set, err);
    if (rc == HVD_OK && by_rows(op->kind))
        rc = check_overlap(op, *count, err);
    return rc;
}

/* The driver knows its memory: a pointer of the host would end in a broken context. */
static enum hvd_status check_memory(struct hvi_device *dev, const struct hvd_op *op,
                                    int64_t count, struct hvi_err *err)
{
    const void *out = op->out.data;

    if (op->kind == HVD_BARRIER || count == 0)
        return HVD_OK;
    if (op->in.data != NULL && hvi_device_owns(dev, op->in.data, err) != HVD_OK)
        return HVD_EINVAL;
    return out != NULL && out != op->in.data ? hvi_device_owns(dev, out, err) : HVD_OK;
}

/* After it the caller's tensor is there; recorded now, on the caller's stream. */
static enum hvd_status record_ready(struct hvi_ctx *c, const struct hvd_op *op,
                                    struct hvi_op *o, struct hvi_err *err)
{
    struct hvi_err why = {{0}};
    enum hvd_status rc = check_memory(hvi_nccl_device(c->gpu), op, o->count, &why);

    if (rc == HVD_OK)
        rc = hvi_device_ready(hvi_nccl_device(c->gpu), &op->ready, &o->ready, &why);
    if (rc != HVD_OK)
        hvi_fail(err, rc, "%s: %s", shown_name(op), why.text);
    return rc;
}

static enum hvd_status make_op(struct hvi_ctx *c, const struct hvd_op *op,
                               const struct hvi_pset *set, struct hvi_op **at,
                               struct hvi_err *err)
{
    int64_t count;
    struct hvi_op *o;
    enum hvd_status rc = check_op(op, set, &count, err);

    if (rc != HVD_OK)
        return rc;
    o = *at != NULL ? *at : hvi_op_new(0);
    if (o == NULL)
        return hvi_fail(err, HVD_ENOMEM, "%s: out of memory", shown_name(op));
    *at = o; /* the entry's, whatever happens */
    if (op->in.device == HVD_CUDA)
        o->device_id = hvi_nccl_device(c->gpu)->id;
    rc = fill_op(o, op, set, count, err);
    if (rc == HVD_OK && op->in.device == HVD_CUDA)
        rc = record_ready(c, op, o, err);
    if (rc == HVD_OK) {
        rc = hvi_handle_add(o);
        if (rc != HVD_OK)
            hvi_fail(err, rc, "%s: too many handles in use", shown_name(op));
    }
    return rc;
}

/* Unnamed: the k-th of a class takes lane k mod HVI_UNNAMED_LANES. Under the lock. */
static void make_name(struct hvi_pset *set, const struct hvd_op *op, const char *name,
                      bool grouped, char out[HVD_NAME_MAX + 1], uint64_t *instance)
{
    if (name != NULL && name[0] != '\0') {
        size_t chars = strnlen(name, HVD_NAME_MAX);

        memcpy(out, name, chars);
        out[chars] = '\0';
        *instance = 0;
        return;
    }
    *instance = set->unnamed[grouped][op->kind]++;
    snprintf(out, HVD_NAME_MAX + 1, "%s.%s.%u", hvi_kind_name((uint32_t)op->kind),
             grouped ? "unnamed_group" : "noname",
             (unsigned)(*instance % HVI_UNNAMED_LANES));
}

/* A single operation and its entry are one piece of memory. */
static struct hvi_entry *entry_new(struct hvi_pset *set, const char *name,
                                   uint32_t nops, bool on_timeline)
{
    size_t ops_bytes = nops * sizeof(struct hvi_op *);
    size_t name_chars = strlen(name);
    char id[16] = "0/";
    size_t id_chars =
        set->id == 0 ? 2 : (size_t)snprintf(id, sizeof id, "%d/", set->id);
    size_t size = sizeof(struct hvi_entry) + ops_bytes + id_chars + name_chars + 1;
    struct hvi_op *op = nops == 1 ? hvi_op_new(size) : NULL;
    struct hvi_entry *e = op != NULL  ? (struct hvi_entry *)(void *)(op + 1)
                          : nops == 1 ? NULL
                                      : malloc(size);

    if (e == NULL)
        return NULL;
    memset(e, 0, sizeof *e + ops_bytes);
    hvi_list_init(&e->link);
    e->pset = set;
    e->ops = (struct hvi_op **)(void *)(e + 1);
    e->nops = nops;
    e->key = (char *)(e + 1) + ops_bytes;
    memcpy(e->key, id, id_chars);
    memcpy(e->key + id_chars, name, name_chars + 1);
    e->key_chars = (unsigned)(id_chars + name_chars);
    HASH_VALUE(e->key, e->key_chars, e->key_hash);
    e->in_op = op != NULL;
    if (e->in_op)
        e->ops[0] = op;
    e->since_ms = hvi_now_coarse_ms();
    e->submit_us = on_timeline ? hvi_now_us() : e->since_ms * 1000;
    return e;
}

/* What e is negotiated by. Most operations repeat an earlier one, and share its request
 * then. */
static enum hvd_status make_request(struct hvi_ctx *c, struct hvi_entry *e,
                                    const struct hvd_op *ops, const char *name,
                                    bool grouped, uint64_t instance,
                                    struct hvi_err *err)
{
    struct hvi_request *r;

    if (e->nops == 1) {
        struct hvi_shape shape;
        struct hvi_request one;

        memset(&one, 0, sizeof one);
        one.ntensors = 1;
        one.shapes = &shape;
        one.instance = instance;
        fill_request(&one, &ops[0], grouped);
        fill_shape(&shape, &ops[0]);
        e->req = hvi_negotiate_known(c, e, &one);
        if (e->req != NULL)
            return HVD_OK;
    }
    r = hvi_request_new(name, e->nops);
    if (r == NULL)
        return hvi_fail(err, HVD_ENOMEM, "%s: out of memory", name);
    e->req = r;
    for (uint32_t i = 0; i < e->nops; i++)
        fill_shape(&r->shapes[i], &ops[i]);
    fill_request(r, &ops[0], grouped);
    r->instance = instance;
    if (hvi_request_bytes(r) == INT64_MAX) /* the coordinator would refuse us for it */
        return hvi_fail(err, HVD_EINVAL, "%s: the dimensions overflow", name);
    hvi_request_seal(r);
    return HVD_OK;
}

static enum hvd_status check_state(struct hvi_ctx *c, struct hvi_err *err)
{
    int failed = atomic_load(&c->failed);

    if (c->closing)
        return hvi_fail(err, HVD_ESHUTDOWN, "hvd_shutdown has been called");
    if (failed != 0)
        return hvi_fail(err, (enum hvd_status)failed, "%s", c->failed_text);
    return HVD_OK;
}

static enum hvd_status find_set(struct hvi_ctx *c, int32_t id, struct hvi_pset **out,
                                struct hvi_err *err)
{
    struct hvi_pset *set = hvi_pset_find(c, id);

    if (set == NULL)
        return hvi_fail(err, HVD_EINVAL, "process set %d does not exist", id);
    if (set->me < 0)
        return hvi_fail(err, HVD_EINVAL, "rank %d is not in process set %d", c->rank,
                        id);
    *out = set;
    return HVD_OK;
}

/* Undo of an entry whose handles already exist. */
static void discard(struct hvi_entry *e)
{
    if (e == NULL)
        return;
    for (uint32_t i = 0; i < e->nops; i++)
        if (e->ops[i] != NULL)
            hvi_handle_drop(e->ops[i]->handle);
    hvi_entry_free(e);
}

static enum hvd_status submit_locked(struct hvi_ctx *c, const struct hvd_op *ops,
                                     int32_t count, const char *name, bool grouped,
                                     hvd_handle *out, struct hvi_err *err)
{
    char full[HVD_NAME_MAX + 1];
    struct hvi_entry *e = NULL;
    struct hvi_pset *set = NULL;
    uint64_t instance;
    enum hvd_status rc = check_state(c, err);

    if (rc == HVD_OK)
        rc = find_set(c, ops[0].pset, &set, err);
    if (rc != HVD_OK)
        return rc;
    if (name == NULL || name[0] == '\0')
        name = ops[0].name;
    /* the number of an unnamed operation is only used up when the submission succeeds */
    make_name(set, &ops[0], name, grouped, full, &instance);
    e = entry_new(set, full, (uint32_t)count, hvi_timeline_on(c));
    if (e == NULL) {
        rc = hvi_fail(err, HVD_ENOMEM, "%s: out of memory", full);
        goto done;
    }
    for (int32_t i = 0; i < count && rc == HVD_OK; i++)
        rc = make_op(c, &ops[i], set, &e->ops[i], err);
    if (rc == HVD_OK)
        rc = make_request(c, e, ops, full, grouped, instance, err);
    if (rc != HVD_OK)
        goto done;
    for (int32_t i = 0; i < count; i++)
        out[i] = e->ops[i]->handle;
    memcpy(c->last_name, full, strnlen(full, sizeof c->last_name - 1) + 1);
    c->last_name[sizeof c->last_name - 1] = '\0';
    c->last_submit_ms = e->since_ms;
    rc = hvi_negotiate_submit(c, e, err);
    if (rc == HVD_OK) {
        c->stats.ops_enqueued += (uint64_t)count;
        return HVD_OK;
    }
done:
    if (name == NULL || name[0] == '\0')
        set->unnamed[grouped][ops[0].kind]--;
    discard(e);
    return rc;
}

enum hvd_status hvi_submit(struct hvi_ctx *c, const struct hvd_op *ops, int32_t count,
                           const char *name, bool grouped, bool kick, hvd_handle *out,
                           struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    if (ops == NULL || out == NULL)
        return hvi_fail(err, HVD_EINVAL, "ops and out must not be NULL");
    if (count < 1 || count > HVD_GROUP_MAX)
        return hvi_fail(err, HVD_EINVAL, "a group has 1 to %d members, not %d",
                        HVD_GROUP_MAX, count);
    if (name != NULL && strlen(name) > HVD_NAME_MAX)
        return hvi_fail(err, HVD_EINVAL, "name is longer than %d bytes", HVD_NAME_MAX);
    for (int32_t i = 0; i < count && rc == HVD_OK; i++)
        rc = check_head(&ops[i], err);
    if (rc == HVD_OK && grouped)
        rc = check_group(ops, count, err);
    if (rc == HVD_OK && ops[0].in.device == HVD_CUDA)
        rc = hvi_gpu_open_for(c, ops, count, err);
    if (rc != HVD_OK)
        return rc;
    pthread_mutex_lock(&c->lock);
    c->sends_now = !kick;
    rc = submit_locked(c, ops, count, name, grouped, out, err);
    c->sends_now = false;
    if (!kick)
        hvi_negotiate_send_now(c);
    pthread_mutex_unlock(&c->lock);
    if (rc == HVD_OK && kick)
        hvi_engine_submitted(c);
    return rc;
}

enum hvd_status hvi_submit_join(struct hvi_ctx *c, int32_t device_id, hvd_handle *out,
                                struct hvi_err *err)
{
    struct hvi_op *op = hvi_op_new(0);
    enum hvd_status rc;

    if (op == NULL)
        return hvi_fail(err, HVD_ENOMEM, "join: out of memory");
    op->kind = HVD_JOIN;
    pthread_mutex_lock(&c->lock);
    rc = check_state(c, err);
    if (rc == HVD_OK && c->join_op != NULL)
        rc = hvi_fail(err, HVD_EDUPLICATE, "join: this rank has already joined");
    if (rc == HVD_OK) {
        rc = hvi_handle_add(op);
        if (rc != HVD_OK)
            hvi_fail(err, rc, "join: too many handles in use");
    }
    if (rc == HVD_OK) {
        *out = op->handle;
        c->join_op = op; /* takes our reference */
        c->join_device = device_id;
        c->join_since_ms = hvi_now_ms();
        op = NULL;
        hvi_negotiate_join(c);
    }
    pthread_mutex_unlock(&c->lock);
    hvi_op_unref(op);
    if (rc == HVD_OK)
        hvi_engine_kick(c);
    return rc;
}
