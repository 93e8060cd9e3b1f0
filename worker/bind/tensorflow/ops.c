/**
 * ops.c - TensorFlow ops in plain C over libhvd; register.c makes them known.
 *
 * A collective is two ops. A Start op gives a tensor to libhvd and returns a handle at once,
 * so it runs as soon as its tensor exists. Wait takes the handles of one or many Starts,
 * blocks until all are complete and returns the results. One Wait for all gradients blocks
 * one thread, and its data edges put every Start before it.
 *
 *   HvdStartOver    allreduce and broadcast of N tensors: handle and buffer for each
 *   HvdStart        allgather, alltoall and reducescatter of N tensors
 *   HvdStartSplits  alltoall of one tensor with the rows for every rank
 *   HvdWait         results of N Starts
 *   HvdWaitSplits   result of one alltoall and the rows that came from every rank
 *   HvdFact         rank, size, ... as a scalar
 *
 * The buffer of HvdStartOver is the result's memory: TensorFlow hands over the input's where
 * no one else refers to it, and the reduction is then in place. Of the others it is an empty
 * tensor. Wait takes the buffers as inputs, which gives gradients a path from a result to
 * its tensor and lets TensorFlow know the result's type and shape.
 *
 * What lives from Start to Wait is a slot, owned by two: libhvd's `done` and Wait. A step
 * that fails in between never runs its Wait; such a slot is dropped when its kernel has
 * started SLOTS_KEPT more operations, and by hvd_tf_drop().
 *
 * Tensors on a GPU are given to libhvd where they lie. A kernel cannot learn its stream, so
 * they are ready when all is over that the GPU's context has been given before (READY_CUCTX);
 * Wait returns when the work is queued, and all that comes after is ordered behind it
 * (hvd_ctx_wait). The inputs' memory is held until the device is done.
 *
 * Errors carry the payload "hvd.status" with libhvd's number and "hvd.text" with the plain
 * text, since TensorFlow wraps the message.
 */
#include "ops.h"

#include <hvd/hvd.h>

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS_KEPT = 4 };

static const char not_initialized[] =
    "Horovod has not been initialized; use hvd.init().";

static atomic_long live_count, in_place_count;

/* ---- slots ---------------------------------------------------------------------- */

struct slot {
    atomic_int refs; /* of libhvd until done, of the table until Wait */
    struct TF_Tensor *in;
    struct TF_Tensor *buffer; /* result of HvdStartOver */
    hvd_handle handle;
    bool on_gpu;
    int32_t dtype; /* TensorFlow's */
    int32_t ndim;
    int64_t dims[]; /* [ndim], of the input */
};

/* Slots that wait for their Wait, by the low half of the handle. */
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;
static struct slot **table;
static size_t table_cap;

static void slot_unref(struct slot *slot)
{
    if (slot == NULL || atomic_fetch_sub(&slot->refs, 1) != 1)
        return;
    if (slot->in != NULL)
        tf.TF_DeleteTensor(slot->in);
    if (slot->buffer != NULL)
        tf.TF_DeleteTensor(slot->buffer);
    free(slot);
    atomic_fetch_sub(&live_count, 1);
}

static size_t table_index(hvd_handle handle)
{
    return (size_t)((uint64_t)handle & UINT32_MAX);
}

/* False: no memory. */
static bool table_put(struct slot *slot)
{
    size_t i = table_index(slot->handle);
    bool ok = true;

    pthread_mutex_lock(&table_lock);
    if (i >= table_cap) {
        size_t cap = 2 * i + 256;
        struct slot **grown = realloc(table, cap * sizeof(struct slot *));

        ok = grown != NULL;
        if (ok) {
            memset(grown + table_cap, 0, (cap - table_cap) * sizeof(struct slot *));
            table = grown;
            table_cap = cap;
        }
    }
    if (ok)
        table[i] = slot;
    pthread_mutex_unlock(&table_lock);
    return ok;
}

/* Takes the slot of a handle; NULL when there is none. With complete_only it stays there
 * while the operation is in flight. */
static struct slot *table_take(hvd_handle handle, bool complete_only)
{
    size_t i = table_index(handle);
    struct slot *slot = NULL;

    pthread_mutex_lock(&table_lock);
    if (i < table_cap && table[i] != NULL && table[i]->handle == handle &&
        !(complete_only && hvd_poll(handle) == HVD_INPROGRESS)) {
        slot = table[i];
        table[i] = NULL;
    }
    pthread_mutex_unlock(&table_lock);
    return slot;
}

static void slot_drop(struct slot *slot)
{
    if (slot == NULL)
        return;
    hvd_release(slot->handle);
    slot_unref(slot);
}

/* ---- errors --------------------------------------------------------------------- */

static int code_of(enum hvd_status status)
{
    switch (status) {
    case HVD_EINVAL:
    case HVD_EUNSUPPORTED:
    case HVD_EDUPLICATE:
    case HVD_EHANDLE:
        return TF_INVALID_ARGUMENT;
    case HVD_EMISMATCH:
    case HVD_ESTATE:
        return TF_FAILED_PRECONDITION;
    case HVD_ENOMEM:
        return TF_RESOURCE_EXHAUSTED;
    default:
        return TF_UNKNOWN;
    }
}

static void fail(struct TF_OpKernelContext *ctx, enum hvd_status status,
                 const char *text)
{
    struct TF_Status *s = tf.TF_NewStatus();
    char number[16];

    if (status == HVD_ESTATE && hvd_rank() < 0)
        text = not_initialized;
    snprintf(number, sizeof(number), "%d", (int)status);
    tf.TF_SetStatus(s, code_of(status), text);
    tf.TF_SetPayload(s, "hvd.status", number);
    tf.TF_SetPayload(s, "hvd.text", text);
    tf.TF_OpKernelContext_Failure(ctx, s);
    tf.TF_DeleteStatus(s);
}

/* ---- types ---------------------------------------------------------------------- */

/* 0: not supported. Data that is only moved may have types that libhvd does not know. */
static int32_t hvd_dtype_of(int dtype, int32_t kind)
{
    bool moved = kind == HVD_ALLGATHER || kind == HVD_BROADCAST || kind == HVD_ALLTOALL;

    switch (dtype) {
    case TF_FLOAT:
        return HVD_FLOAT32;
    case TF_DOUBLE:
        return HVD_FLOAT64;
    case TF_HALF:
        return HVD_FLOAT16;
    case TF_BFLOAT16:
        return HVD_BFLOAT16;
    case TF_INT8:
        return HVD_INT8;
    case TF_UINT8:
        return HVD_UINT8;
    case TF_INT16:
        return HVD_INT16;
    case TF_UINT16:
        return HVD_UINT16;
    case TF_INT32:
        return HVD_INT32;
    case TF_INT64:
        return HVD_INT64;
    case TF_BOOL:
        return HVD_BOOL;
    case TF_UINT32:
        return moved ? HVD_INT32 : 0;
    case TF_UINT64:
        return moved ? HVD_INT64 : 0;
    default:
        return 0;
    }
}

/* ---- Start ---------------------------------------------------------------------- */

struct start_kernel {
    char *name; /* "": unnamed */
    int32_t tensors;
    int32_t kind, reduce_op, pset, root;
    double prescale, postscale;
    bool over, with_splits;
    pthread_mutex_t lock;
    hvd_handle recent[SLOTS_KEPT]; /* of the first tensor's operations */
    hvd_handle *others;            /* [SLOTS_KEPT][tensors - 1], of the rest */
    int next;
};

void hvi_tf_start_delete(void *kernel)
{
    struct start_kernel *k = kernel;

    if (k == NULL)
        return;
    pthread_mutex_destroy(&k->lock);
    free(k->others);
    free(k->name);
    free(k);
}

static void attr_double(struct TF_OpKernelConstruction *ctx, const char *attr,
                        double *out, struct TF_Status *s)
{
    int64_t bits = 0;

    if (tf.TF_GetCode(s) == TF_OK)
        tf.TF_OpKernelConstruction_GetAttrInt64(ctx, attr, &bits, s);
    memcpy(out, &bits, sizeof(*out));
}

static void attr_int(struct TF_OpKernelConstruction *ctx, const char *attr,
                     int32_t *out, struct TF_Status *s)
{
    if (tf.TF_GetCode(s) == TF_OK)
        tf.TF_OpKernelConstruction_GetAttrInt32(ctx, attr, out, s);
}

static void attr_name(struct TF_OpKernelConstruction *ctx, char **out,
                      struct TF_Status *s)
{
    int32_t list_size = 0, total_size = 0;

    tf.TF_OpKernelConstruction_GetAttrSize(ctx, "tensor_name", &list_size, &total_size,
                                           s);
    if (tf.TF_GetCode(s) != TF_OK)
        return;
    *out = calloc(1, (size_t)total_size + 1);
    if (*out == NULL)
        tf.TF_SetStatus(s, TF_RESOURCE_EXHAUSTED, "out of memory");
    else if (total_size > 0)
        tf.TF_OpKernelConstruction_GetAttrString(ctx, "tensor_name", *out,
                                                 (size_t)total_size + 1, s);
}

static void *start_new(struct TF_OpKernelConstruction *ctx, bool over, bool with_splits)
{
    struct start_kernel *k = calloc(1, sizeof(*k));
    struct TF_Status *s = tf.TF_NewStatus();

    if (k == NULL) {
        tf.TF_SetStatus(s, TF_RESOURCE_EXHAUSTED, "out of memory");
        goto done;
    }
    pthread_mutex_init(&k->lock, NULL);
    k->over = over;
    k->with_splits = with_splits;
    k->tensors = 1;
    attr_name(ctx, &k->name, s);
    if (!with_splits)
        attr_int(ctx, "N", &k->tensors, s);
    attr_int(ctx, "kind", &k->kind, s);
    attr_int(ctx, "reduce_op", &k->reduce_op, s);
    attr_int(ctx, "pset", &k->pset, s);
    attr_int(ctx, "root", &k->root, s);
    attr_double(ctx, "prescale", &k->prescale, s);
    attr_double(ctx, "postscale", &k->postscale, s);
    if (tf.TF_GetCode(s) == TF_OK && k->tensors > 1) {
        k->others = calloc((size_t)(k->tensors - 1) * SLOTS_KEPT, sizeof(hvd_handle));
        if (k->others == NULL)
            tf.TF_SetStatus(s, TF_RESOURCE_EXHAUSTED, "out of memory");
    }
done:
    if (tf.TF_GetCode(s) != TF_OK)
        tf.TF_OpKernelConstruction_Failure(ctx, s);
    tf.TF_DeleteStatus(s);
    return k;
}

void *hvi_tf_start_create(struct TF_OpKernelConstruction *ctx)
{
    return start_new(ctx, false, false);
}

void *hvi_tf_start_over_create(struct TF_OpKernelConstruction *ctx)
{
    return start_new(ctx, true, false);
}

void *hvi_tf_start_splits_create(struct TF_OpKernelConstruction *ctx)
{
    return start_new(ctx, false, true);
}

/* Remembers what this kernel started and drops what of it no Wait came for. */
static void remember(struct start_kernel *k, const hvd_handle *handles)
{
    hvd_handle old;

    pthread_mutex_lock(&k->lock);
    old = k->recent[k->next];
    k->recent[k->next] = handles[0];
    slot_drop(old != 0 ? table_take(old, true) : NULL);
    for (int i = 0; i < k->tensors - 1; i++) {
        hvd_handle *other = &k->others[k->next * (k->tensors - 1) + i];

        slot_drop(*other != 0 ? table_take(*other, true) : NULL);
        *other = handles[i + 1];
    }
    k->next = (k->next + 1) % SLOTS_KEPT;
    pthread_mutex_unlock(&k->lock);
}

/* The buffer of output `output`: the input's memory where TensorFlow gives it. */
static void make_buffer(struct TF_OpKernelContext *ctx, int i, int output,
                        struct slot *slot, struct TF_Status *s)
{
    int forwarded = -1;

    tf.TF_DeleteTensor(slot->in); /* a reference of ours would prevent it */
    slot->in = NULL;
    slot->buffer = tf.TF_ForwardInputOrAllocateOutput(ctx, &i, 1, output, slot->dims,
                                                      slot->ndim, &forwarded, s);
    if (tf.TF_GetCode(s) != TF_OK)
        return;
    if (forwarded == i)
        atomic_fetch_add(&in_place_count, 1);
    else
        tf.TF_GetInput(ctx, i, &slot->in, s);
}

static struct slot *slot_new(struct TF_OpKernelContext *ctx,
                             const struct start_kernel *k, int i, bool on_gpu,
                             struct TF_Status *s)
{
    const int64_t none[] = {0};
    struct TF_Tensor *in = NULL, *empty;
    struct slot *slot = NULL;
    int ndim;

    tf.TF_GetInput(ctx, i, &in, s);
    if (tf.TF_GetCode(s) != TF_OK)
        return NULL;
    ndim = tf.TF_NumDims(in);
    slot = calloc(1, sizeof(*slot) + (size_t)ndim * sizeof(int64_t));
    if (slot == NULL) {
        tf.TF_SetStatus(s, TF_RESOURCE_EXHAUSTED, "out of memory");
        tf.TF_DeleteTensor(in);
        return NULL;
    }
    atomic_fetch_add(&live_count, 1);
    atomic_store(&slot->refs, 1);
    slot->in = in;
    slot->on_gpu = on_gpu;
    slot->dtype = tf.TF_TensorType(in);
    slot->ndim = ndim;
    for (int d = 0; d < ndim; d++)
        slot->dims[d] = tf.TF_Dim(in, d);
    if (k->over) {
        make_buffer(ctx, i, k->tensors + i, slot, s);
    } else {
        empty = tf.TF_AllocateOutput(ctx, k->tensors + i, slot->dtype, none, 1, 0, s);
        if (empty != NULL)
            tf.TF_DeleteTensor(empty);
    }
    if (tf.TF_GetCode(s) == TF_OK)
        return slot;
    slot_unref(slot);
    return NULL;
}

static void on_done(void *arg, hvd_handle handle, enum hvd_status status)
{
    struct slot *slot = arg;

    (void)handle;
    (void)status;
    if (slot->in != NULL)
        tf.TF_DeleteTensor(slot->in);
    slot->in = NULL;
    slot_unref(slot);
}

/* libhvd has a limit of dimensions, TensorFlow a higher one: rows stay rows. */
static void fill_tensor(struct hvd_tensor *t, const struct slot *slot,
                        const struct start_kernel *k, void *data, int64_t folded[2])
{
    t->data = data;
    t->device = slot->on_gpu ? HVD_CUDA : HVD_CPU;
    t->device_id = slot->on_gpu ? HVD_DEVICE_OF_DATA : 0;
    t->dtype = hvd_dtype_of(slot->dtype, k->kind);
    t->dims = slot->dims;
    t->ndim = slot->ndim;
    if (slot->ndim > HVD_NDIM_MAX) {
        folded[0] = slot->dims[0];
        folded[1] = 1;
        for (int d = 1; d < slot->ndim; d++)
            folded[1] *= slot->dims[d];
        t->dims = folded;
        t->ndim = 2;
    }
}

static void fill_op(struct hvd_op *op, struct slot *slot, const struct start_kernel *k,
                    int64_t folded[2])
{
    struct TF_Tensor *source = slot->in != NULL ? slot->in : slot->buffer;

    op->size = sizeof(*op);
    op->kind = k->kind;
    op->reduce_op = k->reduce_op;
    op->pset = k->pset;
    op->root = k->root;
    op->name = k->name[0] != '\0' ? k->name : NULL;
    op->prescale = k->prescale;
    op->postscale = k->postscale;
    fill_tensor(&op->in, slot, k, tf.TF_TensorData(source), folded);
    if (slot->buffer != NULL)
        fill_tensor(&op->out, slot, k, tf.TF_TensorData(slot->buffer), folded);
    if (slot->on_gpu)
        op->ready.kind = HVD_READY_CUCTX; /* of the context that TensorFlow uses, too */
    op->done = on_done;
    op->arg = slot;
}

struct start_call {
    struct slot **slots;
    struct hvd_op *ops;
    hvd_handle *handles;
    int64_t (*folded)[2];
    struct TF_Tensor *splits;
};

static void set_splits(struct TF_OpKernelContext *ctx, struct start_call *call,
                       struct TF_Status *s)
{
    static const int64_t no_rows[1];

    tf.TF_GetInput(ctx, 1, &call->splits, s);
    if (tf.TF_GetCode(s) != TF_OK)
        return;
    call->ops[0].nsplits = (int32_t)tf.TF_TensorElementCount(call->splits);
    call->ops[0].splits =
        call->ops[0].nsplits > 0 ? tf.TF_TensorData(call->splits) : no_rows;
}

/* Gives the operations to libhvd; the slots are then libhvd's and the table's. */
static enum hvd_status enqueue(struct start_kernel *k, struct start_call *call)
{
    enum hvd_status rc;

    for (int i = 0; i < k->tensors; i++)
        atomic_fetch_add(&call->slots[i]->refs, 1); /* done may come at once */
    if (k->tensors == 1)
        rc = hvd_enqueue(call->ops, call->handles);
    else
        rc = hvd_enqueue_group(call->ops, k->tensors, call->ops[0].name, call->handles);
    if (rc != HVD_OK) {
        for (int i = 0; i < k->tensors; i++)
            slot_unref(call->slots[i]);
        return rc;
    }
    for (int i = 0; i < k->tensors; i++) {
        call->slots[i]->handle = call->handles[i];
        if (!table_put(call->slots[i])) {
            hvd_release(call->handles[i]);
            rc = HVD_ENOMEM;
        } else {
            call->slots[i] = NULL;
        }
    }
    if (rc == HVD_OK)
        remember(k, call->handles);
    return rc;
}

/* As two int32: between ops in eager mode TensorFlow keeps those, and no other type, in host
 * memory; an int64 would wait for a GPU on its way there and back. */
static void give_handles(struct TF_OpKernelContext *ctx, const struct start_kernel *k,
                         const struct start_call *call, struct TF_Status *s)
{
    const int64_t pair[] = {2};

    for (int i = 0; i < k->tensors && tf.TF_GetCode(s) == TF_OK; i++) {
        struct TF_Tensor *out =
            tf.TF_AllocateOutput(ctx, i, TF_INT32, pair, 1, sizeof(hvd_handle), s);

        if (tf.TF_GetCode(s) == TF_OK)
            memcpy(tf.TF_TensorData(out), &call->handles[i], sizeof(hvd_handle));
        if (out != NULL)
            tf.TF_DeleteTensor(out);
    }
}

/* What one rank can see by itself. */
static bool types_are_fine(struct TF_OpKernelContext *ctx, const struct start_kernel *k,
                           const struct slot *slot)
{
    char text[TEXT_SIZE];

    if (hvd_dtype_of(slot->dtype, k->kind) != 0)
        return true;
    snprintf(text, sizeof(text),
             "tensor %s: TensorFlow's type number %d is not supported",
             k->name[0] != '\0' ? k->name : "without a name", (int)slot->dtype);
    fail(ctx, HVD_EUNSUPPORTED, text);
    return false;
}

static void start(struct start_kernel *k, struct TF_OpKernelContext *ctx, bool on_gpu)
{
    size_t n = (size_t)k->tensors;
    struct TF_Status *s = tf.TF_NewStatus();
    struct start_call call = {.slots = calloc(n, sizeof(struct slot *)),
                              .ops = calloc(n, sizeof(struct hvd_op)),
                              .handles = calloc(n, sizeof(hvd_handle)),
                              .folded = calloc(n, sizeof(*call.folded))};
    enum hvd_status rc;

    if (call.slots == NULL || call.ops == NULL || call.handles == NULL ||
        call.folded == NULL) {
        fail(ctx, HVD_ENOMEM, "out of memory");
        goto done;
    }
    for (size_t i = 0; i < n; i++) {
        call.slots[i] = slot_new(ctx, k, (int)i, on_gpu, s);
        if (call.slots[i] == NULL)
            goto done;
        if (!types_are_fine(ctx, k, call.slots[i]))
            goto done;
        fill_op(&call.ops[i], call.slots[i], k, call.folded[i]);
    }
    if (k->with_splits) {
        set_splits(ctx, &call, s);
        if (tf.TF_GetCode(s) != TF_OK)
            goto done;
    }
    rc = enqueue(k, &call);
    if (rc != HVD_OK) {
        fail(ctx, rc, rc == HVD_ENOMEM ? "out of memory" : hvd_last_error());
        goto done;
    }
    give_handles(ctx, k, &call, s);
done:
    if (tf.TF_GetCode(s) != TF_OK)
        tf.TF_OpKernelContext_Failure(ctx, s);
    for (size_t i = 0; call.slots != NULL && i < n; i++)
        slot_unref(call.slots[i]);
    if (call.splits != NULL)
        tf.TF_DeleteTensor(call.splits);
    free(call.folded);
    free(call.handles);
    free(call.ops);
    free(call.slots);
    tf.TF_DeleteStatus(s);
}

void hvi_tf_start(void *kernel, struct TF_OpKernelContext *ctx)
{
    start(kernel, ctx, false);
}

void hvi_tf_start_gpu(void *kernel, struct TF_OpKernelContext *ctx)
{
    start(kernel, ctx, true);
}

/* ---- Wait ----------------------------------------------------------------------- */

/* What TensorFlow has queued may still read it. */
static void free_gpu_result(void *data, size_t size_bytes, void *arg)
{
    const struct hvd_ready last_use = {.kind = HVD_READY_CUCTX};

    (void)size_bytes;
    (void)arg;
    hvd_buffer_free_after(data, &last_use);
}

static void free_result(void *data, size_t size_bytes, void *arg)
{
    (void)size_bytes;
    (void)arg;
    hvd_buffer_free(data);
}

/* A result that libhvd owns becomes output i without a copy. Its first dimension is the
 * news, the others are the input's. */
static enum hvd_status give_owned(struct TF_OpKernelContext *ctx, int i,
                                  const struct slot *slot, struct TF_Status *s)
{
    struct hvd_tensor result;
    struct TF_Tensor *out = NULL;
    int64_t dims[HVD_NDIM_MAX], *shape = dims, elems = 1;
    void *data = NULL;
    enum hvd_status rc = hvd_result(slot->handle, &result);
    int ndim = slot->ndim > 0 ? slot->ndim : 1;

    if (rc != HVD_OK)
        return rc;
    if (ndim > HVD_NDIM_MAX)
        shape = malloc((size_t)ndim * sizeof(int64_t));
    if (shape == NULL)
        return HVD_ENOMEM;
    memcpy(shape, slot->dims, (size_t)slot->ndim * sizeof(int64_t));
    shape[0] = result.ndim > 0 ? result.dims[0] : 1;
    for (int d = 0; d < ndim; d++)
        elems *= shape[d];
    if (elems == 0) {
        out = tf.TF_AllocateOutput(ctx, i, slot->dtype, shape, ndim, 0, s);
    } else {
        rc = hvd_result_take(slot->handle, &data);
        if (rc == HVD_OK) {
            out = tf.TF_NewTensor(slot->dtype, shape, ndim, data,
                                  (size_t)elems *
                                      hvd_dtype_size((enum hvd_dtype)result.dtype),
                                  slot->on_gpu ? free_gpu_result : free_result, NULL);
            if (out == NULL)
                hvd_buffer_free(data);
            else
                tf.TF_SetOutput(ctx, i, out, s);
        }
    }
    if (rc == HVD_OK && out == NULL)
        rc = HVD_ENOMEM;
    if (out != NULL)
        tf.TF_DeleteTensor(out);
    if (shape != dims)
        free(shape);
    return rc;
}

static enum hvd_status give_splits(struct TF_OpKernelContext *ctx, hvd_handle handle,
                                   struct TF_Status *s)
{
    int count = hvd_result_splits(handle, NULL, 0);
    int64_t *rows = calloc((size_t)(count > 0 ? count : 1), sizeof(int64_t));
    int64_t dims[1] = {count};
    struct TF_Tensor *out = NULL;
    int32_t *to;

    if (rows == NULL)
        return HVD_ENOMEM;
    if (count >= 0) {
        hvd_result_splits(handle, rows, count);
        out = tf.TF_AllocateOutput(ctx, 1, TF_INT32, dims, 1,
                                   (size_t)count * sizeof(int32_t), s);
    }
    if (out != NULL && tf.TF_GetCode(s) == TF_OK) {
        to = tf.TF_TensorData(out);
        for (int i = 0; i < count; i++)
            to[i] = (int32_t)rows[i];
    }
    if (out != NULL)
        tf.TF_DeleteTensor(out);
    free(rows);
    return count < 0 ? (enum hvd_status)count : HVD_OK;
}

static hvd_handle input_handle(struct TF_OpKernelContext *ctx, int i)
{
    struct TF_Status *s = tf.TF_NewStatus();
    struct TF_Tensor *t = NULL;
    hvd_handle handle = 0;

    tf.TF_GetInput(ctx, i, &t, s);
    if (t != NULL && tf.TF_TensorElementCount(t) == 2)
        memcpy(&handle, tf.TF_TensorData(t), sizeof(handle));
    if (t != NULL)
        tf.TF_DeleteTensor(t);
    tf.TF_DeleteStatus(s);
    return handle;
}

/* Orders what TensorFlow does next after the results. */
static enum hvd_status order_after(struct TF_OpKernelContext *ctx,
                                   const hvd_handle *handles, int n)
{
    enum hvd_status rc = HVD_OK;

    for (int i = 0; i < n && rc == HVD_OK; i++)
        rc = hvd_ctx_wait(handles[i], NULL);
    if (rc != HVD_OK)
        fail(ctx, rc, hvd_last_error());
    return rc;
}

/* Blocks until all are complete, on a GPU: queued; the first failure is the op's, with its
 * text. */
static enum hvd_status wait_for(struct TF_OpKernelContext *ctx,
                                const hvd_handle *handles, int n, bool on_gpu)
{
    enum hvd_wait_mode mode = on_gpu ? HVD_WAIT_ENQUEUED : HVD_WAIT_DONE;

    char text[TEXT_SIZE] = "";
    enum hvd_status rc;

    do {
        rc = hvd_wait_all(handles, n, mode, -1);
    } while (rc == HVD_EINTR);
    if (rc == HVD_OK)
        return on_gpu ? order_after(ctx, handles, n) : rc;
    for (int i = 0; i < n && text[0] == '\0'; i++)
        if (hvd_handle_error(handles[i], text, sizeof(text)) != HVD_OK)
            text[0] = '\0';
    fail(ctx, rc, text[0] != '\0' ? text : hvd_strerror(rc));
    return rc;
}

static void give_results(struct TF_OpKernelContext *ctx, struct slot **slots, int n,
                         bool with_splits)
{
    struct TF_Status *s = tf.TF_NewStatus();
    enum hvd_status rc = HVD_OK;

    for (int i = 0; i < n && rc == HVD_OK && tf.TF_GetCode(s) == TF_OK; i++) {
        if (slots[i]->buffer != NULL)
            tf.TF_SetOutput(ctx, i, slots[i]->buffer, s);
        else
            rc = give_owned(ctx, i, slots[i], s);
        if (rc == HVD_OK && with_splits && tf.TF_GetCode(s) == TF_OK)
            rc = give_splits(ctx, slots[i]->handle, s);
    }
    if (rc != HVD_OK)
        fail(ctx, rc, hvd_strerror(rc));
    else if (tf.TF_GetCode(s) != TF_OK)
        tf.TF_OpKernelContext_Failure(ctx, s);
    tf.TF_DeleteStatus(s);
}

/* The results go where their tensors lay: the kernel's outputs must lie there, too. */
static bool placed_together(struct TF_OpKernelContext *ctx, const struct slot *slot,
                            bool on_gpu)
{
    if (slot->on_gpu == on_gpu)
        return true;
    fail(ctx, HVD_EINVAL,
         on_gpu ? "an operation was started on the CPU and is waited for on a GPU: put "
                  "both under one tf.device()"
                : "an operation was started on a GPU and is waited for on the CPU: put "
                  "both under one tf.device()");
    return false;
}

static void wait_some(struct TF_OpKernelContext *ctx, int n, bool with_splits,
                      bool on_gpu)
{
    struct slot **slots = calloc((size_t)n, sizeof(struct slot *));
    hvd_handle *handles = calloc((size_t)n, sizeof(hvd_handle));
    bool stale = false;
    bool together = true;

    if (slots == NULL || handles == NULL) {
        fail(ctx, HVD_ENOMEM, "out of memory");
        goto done;
    }
    for (int i = 0; i < n; i++) {
        handles[i] = input_handle(ctx, i);
        slots[i] = table_take(handles[i], false);
        stale = stale || slots[i] == NULL;
    }
    if (stale)
        fail(ctx, HVD_EHANDLE,
             "an operation to wait for was dropped or waited for before");
    for (int i = 0; i < n && !stale && together; i++)
        together = placed_together(ctx, slots[i], on_gpu);
    if (!stale && together && wait_for(ctx, handles, n, on_gpu) == HVD_OK)
        give_results(ctx, slots, n, with_splits);
    for (int i = 0; i < n; i++)
        slot_drop(slots[i]);
done:
    free(handles);
    free(slots);
}

void hvi_tf_wait(void *kernel, struct TF_OpKernelContext *ctx)
{
    (void)kernel;
    wait_some(ctx, tf.TF_NumOutputs(ctx), false, false);
}

void hvi_tf_wait_gpu(void *kernel, struct TF_OpKernelContext *ctx)
{
    (void)kernel;
    wait_some(ctx, tf.TF_NumOutputs(ctx), false, true);
}

void hvi_tf_wait_splits(void *kernel, struct TF_OpKernelContext *ctx)
{
    (void)kernel;
    wait_some(ctx, 1, true, false);
}

void hvi_tf_wait_splits_gpu(void *kernel, struct TF_OpKernelContext *ctx)
{
    (void)kernel;
    wait_some(ctx, 1, true, true);
}

/* ---- facts ---------------------------------------------------------------------- */

enum fact { FACT_RANK, FACT_SIZE, FACT_LOCAL_RANK, FACT_LOCAL_SIZE, FACT_INCLUDED };

struct fact_kernel {
    int32_t what, pset;
};

void *hvi_tf_fact_create(struct TF_OpKernelConstruction *ctx)
{
    struct fact_kernel *k = calloc(1, sizeof(*k));
    struct TF_Status *s = tf.TF_NewStatus();

    if (k == NULL) {
        tf.TF_SetStatus(s, TF_RESOURCE_EXHAUSTED, "out of memory");
    } else {
        attr_int(ctx, "what", &k->what, s);
        attr_int(ctx, "pset", &k->pset, s);
    }
    if (tf.TF_GetCode(s) != TF_OK)
        tf.TF_OpKernelConstruction_Failure(ctx, s);
    tf.TF_DeleteStatus(s);
    return k;
}

void hvi_tf_fact(void *kernel, struct TF_OpKernelContext *ctx)
{
    const struct fact_kernel *k = kernel;
    struct TF_Status *s;
    struct TF_Tensor *out;
    int32_t value = HVD_EINVAL;

    switch ((enum fact)k->what) {
    case FACT_RANK:
        value = hvd_rank();
        break;
    case FACT_SIZE:
        value = k->pset == 0 ? hvd_size() : hvd_pset_size(k->pset);
        break;
    case FACT_LOCAL_RANK:
        value = hvd_local_rank();
        break;
    case FACT_LOCAL_SIZE:
        value = hvd_local_size();
        break;
    case FACT_INCLUDED:
        value = hvd_pset_included(k->pset);
        break;
    }
    if (value < 0) {
        fail(ctx, (enum hvd_status)value, hvd_last_error());
        return;
    }
    s = tf.TF_NewStatus();
    out = tf.TF_AllocateOutput(ctx, 0, TF_INT32, NULL, 0, sizeof(value), s);
    if (tf.TF_GetCode(s) == TF_OK)
        memcpy(tf.TF_TensorData(out), &value, sizeof(value));
    else
        tf.TF_OpKernelContext_Failure(ctx, s);
    if (out != NULL)
        tf.TF_DeleteTensor(out);
    tf.TF_DeleteStatus(s);
}

void hvi_tf_fact_delete(void *kernel)
{
    free(kernel);
}

/* ---- for Python ------------------------------------------------------------------- */

/** Operations whose memory is held; results that took over their input's memory. */
TF_EXPORT long hvd_tf_live(void);
long hvd_tf_live(void)
{
    return atomic_load(&live_count);
}
TF_EXPORT long hvd_tf_in_place(void);
long hvd_tf_in_place(void)
{
    return atomic_load(&in_place_count);
}

/** Forget what no Wait came for. After hvd_shutdown, when nothing is in flight. */
TF_EXPORT void hvd_tf_drop(void);
void hvd_tf_drop(void)
{
    for (size_t i = 0;; i++) {
        struct slot *slot = NULL;

        pthread_mutex_lock(&table_lock);
        if (i >= table_cap) {
            pthread_mutex_unlock(&table_lock);
            return;
        }
        slot = table[i];
        table[i] = NULL;
        pthread_mutex_unlock(&table_lock);
        slot_drop(slot);
    }
}
