/**
 * ops.c - TensorFlow ops in plain C, registered while the library is being loaded.
 *
 * Start keeps its input and a result buffer alive in a slot, enqueues and returns the
 * handle at once. WaitAll takes handles, blocks until all are complete, and hands the
 * result buffers to TensorFlow without a copy. On failure it still waits for all, since
 * their buffers are in use, and reports the first error.
 * Mark and Async are probes: when is a tensor ready, and where does an asynchronous
 * kernel's `done` live.
 */
#define _GNU_SOURCE
#include "pair.h"
#include "tf_capi.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRIAL_API __attribute__((visibility("default")))

enum { NDIM_MAX = 8 };

/* What must live from Start to the end of WaitAll. */
struct slot {
    struct TF_Tensor *in;  /* NULL when in place, and once complete */
    struct TF_Tensor *out; /* NULL for a gather, until WaitAll */
    int ndim;
    int64_t dims[NDIM_MAX];
};

struct start_kernel {
    char name[PAIR_NAME_SIZE];
    int32_t kind;
};

static struct tf_capi tf;
static int missing_count;
static void *last_result; /* data of the last output of WaitAll, for the copy test */
static long dealloc_count, done_count;

/* ---- shared helpers ------------------------------------------------------------- */

static void fail(struct TF_OpKernelContext *ctx, int code, int hvd_code,
                 const char *text)
{
    struct TF_Status *s = tf.TF_NewStatus();
    char number[16];

    snprintf(number, sizeof(number), "%d", hvd_code);
    tf.TF_SetStatus(s, code, text);
    tf.TF_SetPayload(s, "hvd.status", number);
    tf.TF_OpKernelContext_Failure(ctx, s);
    tf.TF_DeleteStatus(s);
}

static void free_slot(struct slot *s)
{
    if (s == NULL)
        return;
    if (s->in != NULL)
        tf.TF_DeleteTensor(s->in);
    if (s->out != NULL)
        tf.TF_DeleteTensor(s->out);
    free(s);
}

/* On completion the input is no longer needed, whenever WaitAll comes. */
static void drop_input(void *arg)
{
    struct slot *slot = arg;

    if (slot->in != NULL)
        tf.TF_DeleteTensor(slot->in);
    slot->in = NULL;
    __atomic_add_fetch(&done_count, 1, __ATOMIC_RELAXED);
}

static void free_result(void *data, size_t size_bytes, void *arg)
{
    (void)size_bytes;
    (void)arg;
    __atomic_add_fetch(&dealloc_count, 1, __ATOMIC_RELAXED);
    free(data);
}

/* ---- Start ---------------------------------------------------------------------- */

static void *start_create(struct TF_OpKernelConstruction *ctx)
{
    struct start_kernel *k = calloc(1, sizeof(*k));
    struct TF_Status *s = tf.TF_NewStatus();
    int32_t list_size, total_size = 0;

    if (k == NULL) {
        tf.TF_SetStatus(s, TF_INTERNAL, "out of memory");
        goto done;
    }
    tf.TF_OpKernelConstruction_GetAttrSize(ctx, "tensor_name", &list_size, &total_size,
                                           s);
    if (tf.TF_GetCode(s) == TF_OK && total_size >= PAIR_NAME_SIZE)
        tf.TF_SetStatus(s, TF_INVALID_ARGUMENT, "tensor_name is too long");
    if (tf.TF_GetCode(s) == TF_OK)
        tf.TF_OpKernelConstruction_GetAttrString(ctx, "tensor_name", k->name,
                                                 PAIR_NAME_SIZE, s);
    if (tf.TF_GetCode(s) == TF_OK)
        tf.TF_OpKernelConstruction_GetAttrInt32(ctx, "kind", &k->kind, s);
done:
    if (tf.TF_GetCode(s) != TF_OK)
        tf.TF_OpKernelConstruction_Failure(ctx, s);
    tf.TF_DeleteStatus(s);
    return k;
}

static void start_delete(void *kernel)
{
    free(kernel);
}

/* The result buffer of a sum. HvdTrialStartOver has a second output of the input's
 * shape: it is TensorFlow's only way to take over an input that nobody else refers to.
 */
static struct TF_Tensor *sum_buffer(struct TF_OpKernelContext *ctx, struct slot *slot,
                                    struct TF_Status *status)
{
    struct TF_AllocatorAttributes attrs = {
        .struct_size = offsetof(struct TF_AllocatorAttributes, on_host) + 1,
        .on_host = 1};
    const int from[] = {0};
    int forwarded = -1;
    struct TF_Tensor *out;

    if (tf.TF_NumOutputs(ctx) == 1)
        return tf.TF_AllocateTemp(ctx, TF_FLOAT, slot->dims, slot->ndim, &attrs,
                                  status);
    tf.TF_DeleteTensor(slot->in); /* a reference of ours would prevent it */
    slot->in = NULL;
    out = tf.TF_ForwardInputOrAllocateOutput(ctx, from, 1, 1, slot->dims, slot->ndim,
                                             &forwarded, status);
    pair_note(forwarded == 0 ? "over" : "fresh", "-");
    if (forwarded != 0 && tf.TF_GetCode(status) == TF_OK)
        tf.TF_GetInput(ctx, 0, &slot->in, status);
    return out;
}

/* Takes the input, and for a sum gets the result's memory from TensorFlow. */
static struct slot *new_slot(struct TF_OpKernelContext *ctx, int32_t kind,
                             struct TF_Status *status)
{
    struct slot *slot = calloc(1, sizeof(*slot));

    if (slot == NULL) {
        tf.TF_SetStatus(status, TF_INTERNAL, "out of memory");
        return NULL;
    }
    tf.TF_GetInput(ctx, 0, &slot->in, status);
    if (tf.TF_GetCode(status) != TF_OK)
        goto fail;
    slot->ndim = tf.TF_NumDims(slot->in);
    if (slot->ndim > NDIM_MAX || tf.TF_TensorType(slot->in) != TF_FLOAT) {
        tf.TF_SetStatus(status, TF_UNIMPLEMENTED, "the trial sums float32, ndim <= 8");
        goto fail;
    }
    for (int i = 0; i < slot->ndim; i++)
        slot->dims[i] = tf.TF_Dim(slot->in, i);
    if (kind == PAIR_SUM)
        slot->out = sum_buffer(ctx, slot, status);
    if (tf.TF_GetCode(status) == TF_OK)
        return slot;
fail:
    free_slot(slot);
    return NULL;
}

static void start_compute(void *kernel, struct TF_OpKernelContext *ctx)
{
    const struct start_kernel *k = kernel;
    struct TF_Status *s = tf.TF_NewStatus();
    struct slot *slot = new_slot(ctx, k->kind, s);
    struct TF_Tensor *out = NULL;
    struct pair_op op = {.kind = (enum pair_kind)k->kind};
    enum pair_status rc;
    int64_t handle;

    if (slot == NULL)
        goto done;
    out = tf.TF_AllocateOutput(ctx, 0, TF_INT64, NULL, 0, sizeof(handle), s);
    if (tf.TF_GetCode(s) != TF_OK)
        goto done;
    memcpy(op.name, k->name, sizeof(op.name));
    op.in = tf.TF_TensorData(slot->in != NULL ? slot->in : slot->out);
    op.elem_count =
        (size_t)tf.TF_TensorElementCount(slot->in != NULL ? slot->in : slot->out);
    op.out = slot->out != NULL ? tf.TF_TensorData(slot->out) : NULL;
    op.done = drop_input;
    op.arg = slot;
    rc = pair_enqueue(&op, &handle);
    if (rc != PAIR_OK) {
        fail(ctx, TF_ABORTED, rc,
             rc == PAIR_EDUPLICATE ? "the same name is in flight" : "enqueue failed");
        goto done;
    }
    slot = NULL; /* now the operation's */
    memcpy(tf.TF_TensorData(out), &handle, sizeof(handle));
done:
    if (tf.TF_GetCode(s) != TF_OK)
        tf.TF_OpKernelContext_Failure(ctx, s);
    free_slot(slot);
    if (out != NULL)
        tf.TF_DeleteTensor(out);
    tf.TF_DeleteStatus(s);
}

/* ---- WaitAll -------------------------------------------------------------------- */

static struct pair_op *wait_input(struct TF_OpKernelContext *ctx, int i)
{
    struct TF_Status *s = tf.TF_NewStatus();
    struct TF_Tensor *t = NULL;
    struct pair_op *op = NULL;
    int64_t handle;

    tf.TF_GetInput(ctx, i, &t, s);
    if (tf.TF_GetCode(s) == TF_OK) {
        memcpy(&handle, tf.TF_TensorData(t), sizeof(handle));
        op = pair_wait(handle);
        tf.TF_DeleteTensor(t);
    }
    tf.TF_DeleteStatus(s);
    return op;
}

/* Makes the result of a completed operation output i, without a copy. */
static void set_output(struct TF_OpKernelContext *ctx, int i, struct pair_op *op,
                       struct TF_Status *s)
{
    struct slot *slot = op->arg;

    if (op->kind == PAIR_GATHER) {
        int64_t row_elems = 1;

        for (int d = 1; d < slot->ndim; d++)
            row_elems *= slot->dims[d];
        slot->dims[0] = row_elems == 0 ? 0 : (int64_t)op->out_elem_count / row_elems;
        slot->out =
            tf.TF_NewTensor(TF_FLOAT, slot->dims, slot->ndim, op->out,
                            op->out_elem_count * sizeof(float), free_result, NULL);
    }
    tf.TF_SetOutput(ctx, i, slot->out, s);
    last_result = op->out;
}

static void wait_compute(void *kernel, struct TF_OpKernelContext *ctx)
{
    struct TF_Status *s = tf.TF_NewStatus();
    int n = tf.TF_NumInputs(ctx), failed = 0;
    struct pair_op **waited = calloc((size_t)n, sizeof(struct pair_op *));

    (void)kernel;
    pair_note("wait", "-");
    if (waited == NULL) {
        fail(ctx, TF_INTERNAL, PAIR_ENOMEM, "out of memory");
        goto done;
    }
    for (int i = 0; i < n; i++) {
        waited[i] = wait_input(ctx, i);
        if (!failed && waited[i] == NULL) {
            failed = 1;
            fail(ctx, TF_INTERNAL, PAIR_EINVAL, "stale handle");
        } else if (!failed && waited[i]->status != PAIR_OK) {
            failed = 1;
            fail(ctx, TF_ABORTED, waited[i]->status, waited[i]->error);
        }
    }
    for (int i = 0; i < n && !failed; i++) {
        set_output(ctx, i, waited[i], s);
        if (tf.TF_GetCode(s) != TF_OK) {
            failed = 1;
            tf.TF_OpKernelContext_Failure(ctx, s);
        }
    }
    for (int i = 0; i < n; i++) {
        if (waited[i] == NULL)
            continue;
        free_slot(waited[i]->arg);
        pair_release(waited[i]);
    }
done:
    free(waited);
    tf.TF_DeleteStatus(s);
}

/* ---- probes --------------------------------------------------------------------- */

static void mark_compute(void *kernel, struct TF_OpKernelContext *ctx)
{
    const struct start_kernel *k = kernel;

    (void)ctx;
    pair_note("mark", k->name);
}

/* Says where `done` lives; completes at once, or with TRIAL_ASYNC_LATE from a thread.
 */
static void *finish_late(void *done)
{
    usleep(100 * 1000);
    tf.TF_RunAsyncOpKernelDoneCallback(done);
    return NULL;
}

static void async_compute(void *kernel, struct TF_OpKernelContext *ctx,
                          struct TF_AsyncOpKernelDoneCallback *done)
{
    pthread_attr_t attr;
    pthread_t late;
    void *base = NULL;
    size_t size_bytes = 0;
    uintptr_t at = (uintptr_t)done;

    (void)kernel;
    (void)ctx;
    pthread_getattr_np(pthread_self(), &attr);
    pthread_attr_getstack(&attr, &base, &size_bytes);
    pthread_attr_destroy(&attr);
    pair_note(at >= (uintptr_t)base && at < (uintptr_t)base + size_bytes ? "stack"
                                                                         : "heap",
              "done");
    if (getenv("TRIAL_ASYNC_LATE") == NULL) {
        tf.TF_RunAsyncOpKernelDoneCallback(done);
    } else if (pthread_create(&late, NULL, finish_late, done) == 0) {
        pthread_detach(late);
    }
}

static void keep_result(void *data, size_t size_bytes, void *arg)
{
    (void)data;
    (void)size_bytes;
    (void)arg;
}

/** Does TF_NewTensor keep memory `offset` bytes past a 128-byte boundary, or copy it?
 */
TRIAL_API int trial_newtensor_keeps(int offset);
int trial_newtensor_keeps(int offset)
{
    static _Alignas(128) char memory[256];
    const int64_t dims[] = {16};
    char *data = memory + offset;
    struct TF_Tensor *t =
        tf.TF_NewTensor(TF_FLOAT, dims, 1, data, 64, keep_result, NULL);
    int keeps = tf.TF_TensorData(t) == (void *)data;

    tf.TF_DeleteTensor(t);
    return keeps;
}

/** Does TF_NewTensor accept an empty tensor whose data is NULL? */
TRIAL_API int trial_newtensor_empty(void);
int trial_newtensor_empty(void)
{
    const int64_t dims[] = {0, 4};
    struct TF_Tensor *t =
        tf.TF_NewTensor(TF_FLOAT, dims, 2, NULL, 0, keep_result, NULL);

    if (t == NULL)
        return 0;
    tf.TF_DeleteTensor(t);
    return 1;
}

TRIAL_API int trial_symbols(int *missing);
int trial_symbols(int *missing)
{
    *missing = missing_count;
    return (int)(sizeof(tf) / sizeof(void (*)(void)));
}

TRIAL_API void *trial_last_result(void);
void *trial_last_result(void)
{
    return last_result;
}

TRIAL_API long trial_deallocs(void);
long trial_deallocs(void)
{
    return __atomic_load_n(&dealloc_count, __ATOMIC_RELAXED);
}

TRIAL_API long trial_dones(void);
long trial_dones(void)
{
    return __atomic_load_n(&done_count, __ATOMIC_RELAXED);
}

TRIAL_API int trial_live(void);
int trial_live(void)
{
    return pair_live();
}

TRIAL_API int trial_notes(char *buf, int cap);
int trial_notes(char *buf, int cap)
{
    return pair_notes(buf, cap);
}

/* ---- registration --------------------------------------------------------------- */

static void scalar_shape(struct TF_ShapeInferenceContext *ctx, struct TF_Status *status)
{
    struct TF_ShapeHandle *h = tf.TF_ShapeInferenceContextScalar(ctx);

    tf.TF_ShapeInferenceContextSetOutput(ctx, 0, h, status);
    tf.TF_DeleteShapeHandle(h);
}

static void unknown_shape(struct TF_ShapeInferenceContext *ctx,
                          struct TF_Status *status)
{
    tf.TF_ShapeInferenceContextSetUnknownShape(ctx, status);
}

struct op_spec {
    const char *op;
    const char *attrs[4], *input, *outputs[2]; /* NULL: none */
    tf_shape_fn *shape;
    tf_create_fn *create;
    tf_compute_fn *compute;
    tf_compute_async_fn *compute_async; /* instead of compute */
    tf_delete_fn *destroy;
};

static const struct op_spec op_specs[] = {
    {.op = "HvdTrialStart",
     .attrs = {"T: {half, bfloat16, float, double, int32, int64}",
               "tensor_name: string", "kind: int = 0"},
     .input = "tensor: T",
     .outputs = {"handle: int64"},
     .shape = scalar_shape,
     .create = start_create,
     .compute = start_compute,
     .destroy = start_delete},
    {.op = "HvdTrialStartOver",
     .attrs = {"T: {float}", "tensor_name: string", "kind: int = 0"},
     .input = "tensor: T",
     .outputs = {"handle: int64", "buffer: T"},
     .shape = unknown_shape,
     .create = start_create,
     .compute = start_compute,
     .destroy = start_delete},
    {.op = "HvdTrialWaitAll",
     .attrs = {"N: int >= 1", "Ts: list(type) >= 1"},
     .input = "handles: N * int64",
     .outputs = {"outputs: Ts"},
     .shape = unknown_shape,
     .compute = wait_compute},
    {.op = "HvdTrialMark",
     .attrs = {"T: type", "tensor_name: string", "kind: int = 0"},
     .input = "tensor: T",
     .shape = unknown_shape,
     .create = start_create,
     .compute = mark_compute,
     .destroy = start_delete},
    {.op = "HvdTrialAsync", .shape = unknown_shape, .compute_async = async_compute},
};

static void define_op(const struct op_spec *spec, struct TF_Status *s)
{
    struct TF_OpDefinitionBuilder *b = tf.TF_NewOpDefinitionBuilder(spec->op);

    for (int i = 0; i < 4 && spec->attrs[i] != NULL; i++)
        tf.TF_OpDefinitionBuilderAddAttr(b, spec->attrs[i]);
    if (spec->input != NULL)
        tf.TF_OpDefinitionBuilderAddInput(b, spec->input);
    for (int i = 0; i < 2 && spec->outputs[i] != NULL; i++)
        tf.TF_OpDefinitionBuilderAddOutput(b, spec->outputs[i]);
    tf.TF_OpDefinitionBuilderSetIsStateful(b, true);
    tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(b, spec->shape);
    tf.TF_RegisterOpDefinition(b, s); /* takes b */
}

static void define_kernel(const struct op_spec *spec, struct TF_Status *s)
{
    struct TF_KernelBuilder *b =
        spec->compute_async != NULL
            ? tf.TF_NewAsyncKernelBuilder(spec->op, "CPU", spec->create,
                                          spec->compute_async, spec->destroy)
            : tf.TF_NewKernelBuilder(spec->op, "CPU", spec->create, spec->compute,
                                     spec->destroy);

    tf.TF_RegisterKernelBuilder(spec->op, b, s); /* takes b */
}

static void find_symbols(void)
{
    void *lib = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);

#define X(ret, name, args)                                                             \
    *(void **)&tf.name = lib != NULL ? dlsym(lib, #name) : NULL;                       \
    if (tf.name == NULL) {                                                             \
        fprintf(stderr, "hvd trial: TensorFlow has no %s\n", #name);                   \
        missing_count++;                                                               \
    }
    TF_CAPI_LIST(X)
#undef X
}

__attribute__((constructor)) static void register_ops(void)
{
    struct TF_Status *s;

    find_symbols();
    if (missing_count > 0)
        return; /* load_op_library then finds no ops */
    s = tf.TF_NewStatus();
    for (size_t i = 0; i < sizeof(op_specs) / sizeof(op_specs[0]); i++) {
        define_op(&op_specs[i], s);
        if (tf.TF_GetCode(s) == TF_OK)
            define_kernel(&op_specs[i], s);
        if (tf.TF_GetCode(s) != TF_OK)
            fprintf(stderr, "hvd trial: %s: %s\n", op_specs[i].op, tf.TF_Message(s));
    }
    tf.TF_DeleteStatus(s);
}
