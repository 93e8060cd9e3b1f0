/*
 * register.c - finds TensorFlow's C API and registers ops and kernels while the library is
 * loaded.
 *
 * Kernels for GPUs take tensors in device memory; handles and row counts lie in host memory.
 * HVD_TF_GPU=host registers them with all arguments in host memory: TensorFlow then copies.
 */
#include "ops.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tf_capi tf;
static char missing[TEXT_SIZE];

/* ---- shapes --------------------------------------------------------------------- */

static void scalar_shape(struct TF_ShapeInferenceContext *ctx, struct TF_Status *s)
{
    struct TF_ShapeHandle *h = tf.TF_ShapeInferenceContextScalar(ctx);

    tf.TF_ShapeInferenceContextSetOutput(ctx, 0, h, s);
    tf.TF_DeleteShapeHandle(h);
}

static void unknown_shape(struct TF_ShapeInferenceContext *ctx, struct TF_Status *s)
{
    tf.TF_ShapeInferenceContextSetUnknownShape(ctx, s);
}

/* Output `output` has the shape of input `input`. */
static void same_shape(struct TF_ShapeInferenceContext *ctx, int64_t input,
                       int64_t output, struct TF_Status *s)
{
    struct TF_ShapeHandle *h = tf.TF_NewShapeHandle();

    tf.TF_ShapeInferenceContextGetInput(ctx, (int)input, h, s);
    if (tf.TF_GetCode(s) == TF_OK)
        tf.TF_ShapeInferenceContextSetOutput(ctx, (int)output, h, s);
    tf.TF_DeleteShapeHandle(h);
}

/* N tensors give N handles of two numbers and N buffers. */
static void start_over_shape(struct TF_ShapeInferenceContext *ctx, struct TF_Status *s)
{
    int64_t n = tf.TF_ShapeInferenceContextNumInputs(ctx);
    struct TF_ShapeHandle *pair = tf.TF_ShapeInferenceContextVectorFromSize(ctx, 2);

    for (int64_t i = 0; i < n && tf.TF_GetCode(s) == TF_OK; i++) {
        tf.TF_ShapeInferenceContextSetOutput(ctx, (int)i, pair, s);
        if (tf.TF_GetCode(s) == TF_OK)
            same_shape(ctx, i, n + i, s);
    }
    tf.TF_DeleteShapeHandle(pair);
}

/* N handles and N buffers give N results. */
static void wait_shape(struct TF_ShapeInferenceContext *ctx, struct TF_Status *s)
{
    int64_t n = tf.TF_ShapeInferenceContextNumInputs(ctx) / 2;

    for (int64_t i = 0; i < n && tf.TF_GetCode(s) == TF_OK; i++)
        same_shape(ctx, n + i, i, s);
}

/* ---- registration --------------------------------------------------------------- */

enum { SPEC_LIST = 10 };

struct op_spec {
    const char *op;
    const char *attrs[SPEC_LIST], *inputs[2], *outputs[2]; /* NULL ends a list */
    tf_shape_fn *shape;
    tf_create_fn *create;
    tf_compute_fn *compute, *gpu_compute; /* NULL: the same */
    const char *on_host[2];               /* arguments of the GPU's kernel */
    tf_delete_fn *destroy;
};

#define START_ATTRS                                                                    \
    "tensor_name: string = ''", "kind: int", "reduce_op: int = 1", "pset: int = 0",    \
        "root: int = 0", "prescale: int = 0", "postscale: int = 0"

static const struct op_spec op_specs[] = {
    {.op = "HvdStartOver",
     .attrs = {"N: int >= 1", "Ts: list(type) >= 1", START_ATTRS},
     .inputs = {"tensors: Ts"},
     .outputs = {"handles: N * int32", "buffers: Ts"},
     .shape = start_over_shape,
     .create = hvi_tf_start_over_create,
     .compute = hvi_tf_start,
     .gpu_compute = hvi_tf_start_gpu,
     .on_host = {"handles"},
     .destroy = hvi_tf_start_delete},
    {.op = "HvdStart",
     .attrs = {"N: int >= 1", "Ts: list(type) >= 1", START_ATTRS},
     .inputs = {"tensors: Ts"},
     .outputs = {"handles: N * int32", "buffers: Ts"},
     .shape = unknown_shape,
     .create = hvi_tf_start_create,
     .compute = hvi_tf_start,
     .gpu_compute = hvi_tf_start_gpu,
     .on_host = {"handles"},
     .destroy = hvi_tf_start_delete},
    {.op = "HvdStartSplits",
     .attrs = {"T: type", START_ATTRS},
     .inputs = {"tensor: T", "splits: int64"},
     .outputs = {"handle: int32", "buffer: T"},
     .shape = unknown_shape,
     .create = hvi_tf_start_splits_create,
     .compute = hvi_tf_start,
     .gpu_compute = hvi_tf_start_gpu,
     .on_host = {"splits", "handle"},
     .destroy = hvi_tf_start_delete},
    {.op = "HvdWait",
     .attrs = {"N: int >= 1", "Ts: list(type) >= 1"},
     .inputs = {"handles: N * int32", "buffers: Ts"},
     .outputs = {"results: Ts"},
     .shape = wait_shape,
     .compute = hvi_tf_wait,
     .gpu_compute = hvi_tf_wait_gpu,
     .on_host = {"handles"}},
    {.op = "HvdWaitSplits",
     .attrs = {"T: type"},
     .inputs = {"handle: int32", "buffer: T"},
     .outputs = {"result: T", "received_splits: int32"},
     .shape = unknown_shape,
     .compute = hvi_tf_wait_splits,
     .gpu_compute = hvi_tf_wait_splits_gpu,
     .on_host = {"handle", "received_splits"}},
    {.op = "HvdFact",
     .attrs = {"what: int", "pset: int = 0"},
     .outputs = {"value: int32"},
     .shape = scalar_shape,
     .create = hvi_tf_fact_create,
     .compute = hvi_tf_fact,
     .on_host = {"value"},
     .destroy = hvi_tf_fact_delete},
};

static void define_op(const struct op_spec *spec, struct TF_Status *s)
{
    struct TF_OpDefinitionBuilder *b = tf.TF_NewOpDefinitionBuilder(spec->op);

    for (int i = 0; i < SPEC_LIST && spec->attrs[i] != NULL; i++)
        tf.TF_OpDefinitionBuilderAddAttr(b, spec->attrs[i]);
    for (int i = 0; i < 2 && spec->inputs[i] != NULL; i++)
        tf.TF_OpDefinitionBuilderAddInput(b, spec->inputs[i]);
    for (int i = 0; i < 2 && spec->outputs[i] != NULL; i++)
        tf.TF_OpDefinitionBuilderAddOutput(b, spec->outputs[i]);
    tf.TF_OpDefinitionBuilderSetIsStateful(b, true);
    tf.TF_OpDefinitionBuilderSetShapeInferenceFunction(b, spec->shape);
    tf.TF_RegisterOpDefinition(b, s); /* takes b */
}

/* "handles: N * int32" is the argument "handles" */
static void host_memory(struct TF_KernelBuilder *b, const char *spec)
{
    char name[32];
    size_t len = strcspn(spec, ":");

    snprintf(name, sizeof(name), "%.*s", (int)len, spec);
    tf.TF_KernelBuilder_HostMemory(b, name);
}

enum memory { CPU, GPU, GPU_COPIED };

/* Saying on the CPU that an argument lies in host memory would keep TensorFlow from handing
 * over an input's memory. */
static void define_kernel(const struct op_spec *spec, enum memory memory,
                          struct TF_Status *s)
{
    bool own = memory == GPU && spec->gpu_compute != NULL;
    struct TF_KernelBuilder *b =
        tf.TF_NewKernelBuilder(spec->op, memory == CPU ? "CPU" : "GPU", spec->create,
                               own ? spec->gpu_compute : spec->compute, spec->destroy);

    for (int i = 0; memory == GPU && i < 2 && spec->on_host[i] != NULL; i++)
        tf.TF_KernelBuilder_HostMemory(b, spec->on_host[i]);
    for (int i = 0; memory == GPU_COPIED && i < 2 && spec->inputs[i] != NULL; i++)
        host_memory(b, spec->inputs[i]);
    for (int i = 0; memory == GPU_COPIED && i < 2 && spec->outputs[i] != NULL; i++)
        host_memory(b, spec->outputs[i]);
    tf.TF_RegisterKernelBuilder(spec->op, b, s); /* takes b */
}

static void note_missing(const char *name)
{
    size_t used = strlen(missing);

    snprintf(missing + used, sizeof(missing) - used, "%s%s", used > 0 ? " " : "", name);
}

static void find_symbols(void)
{
    void *lib = dlopen("libtensorflow_framework.so.2", RTLD_NOW | RTLD_NOLOAD);

    if (lib == NULL) {
        note_missing("libtensorflow_framework.so.2");
        return;
    }
#define X(ret, name, args)                                                             \
    *(void **)&tf.name = dlsym(lib, #name);                                            \
    if (tf.name == NULL)                                                               \
        note_missing(#name);
    TF_CAPI_LIST(X)
#undef X
}

static enum memory gpu_memory(void)
{
    const char *wanted = getenv("HVD_TF_GPU");

    return wanted != NULL && strcmp(wanted, "host") == 0 ? GPU_COPIED : GPU;
}

__attribute__((constructor)) static void register_ops(void)
{
    struct TF_Status *s;

    find_symbols();
    if (missing[0] != '\0')
        return; /* load_op_library then finds no ops, and Python asks why */
    s = tf.TF_NewStatus();
    for (size_t i = 0; i < sizeof(op_specs) / sizeof(op_specs[0]); i++) {
        define_op(&op_specs[i], s);
        if (tf.TF_GetCode(s) == TF_OK)
            define_kernel(&op_specs[i], CPU, s);
        if (tf.TF_GetCode(s) == TF_OK)
            define_kernel(&op_specs[i], gpu_memory(), s);
        if (tf.TF_GetCode(s) != TF_OK)
            note_missing(tf.TF_Message(s));
    }
    tf.TF_DeleteStatus(s);
}

/* ---- for Python ------------------------------------------------------------------- */

/** What of TensorFlow is not there, names separated by blanks; "" when all is. */
TF_EXPORT const char *hvd_tf_missing(void);
const char *hvd_tf_missing(void)
{
    return missing;
}
