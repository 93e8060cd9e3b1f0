/**
 * tf_capi.h - the part of TensorFlow's C API that the op library uses, as own prototypes.
 *
 * TensorFlow's headers are not included: tensorflow/c/ops.h is not C, and kernels.h defines
 * an object and pulls in C++ headers. The prototypes were compared with
 * tensorflow/c/{ops,kernels,tf_status,tf_tensor,tf_datatype}.h of TensorFlow 2.21.0.
 * TF_DataType and TF_Code are enums without negative values; they are passed as int here,
 * which has the same representation in the x86-64 and aarch64 ABIs.
 */
#ifndef HVD_TF_CAPI_H
#define HVD_TF_CAPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;

/* TF_DataType */
enum {
    TF_FLOAT = 1,
    TF_DOUBLE = 2,
    TF_INT32 = 3,
    TF_UINT8 = 4,
    TF_INT16 = 5,
    TF_INT8 = 6,
    TF_INT64 = 9,
    TF_BOOL = 10,
    TF_BFLOAT16 = 14,
    TF_UINT16 = 17,
    TF_HALF = 19,
    TF_UINT32 = 22,
    TF_UINT64 = 23
};

/* TF_Code */
enum {
    TF_OK = 0,
    TF_UNKNOWN = 2,
    TF_INVALID_ARGUMENT = 3,
    TF_RESOURCE_EXHAUSTED = 8,
    TF_FAILED_PRECONDITION = 9,
    TF_UNIMPLEMENTED = 12,
    TF_INTERNAL = 13
};

typedef void tf_shape_fn(struct TF_ShapeInferenceContext *ctx,
                         struct TF_Status *status);
typedef void *tf_create_fn(struct TF_OpKernelConstruction *ctx);
typedef void tf_compute_fn(void *kernel, struct TF_OpKernelContext *ctx);
typedef void tf_delete_fn(void *kernel);
typedef void tf_dealloc_fn(void *data, size_t len, void *arg);

/** X(return type, name, arguments): every symbol that must be there. */
#define TF_CAPI_LIST(X)                                                                \
    /* status */                                                                       \
    X(struct TF_Status *, TF_NewStatus, (void))                                        \
    X(void, TF_DeleteStatus, (struct TF_Status *))                                     \
    X(void, TF_SetStatus, (struct TF_Status *, int code, const char *text))            \
    X(void, TF_SetPayload, (struct TF_Status *, const char *key, const char *value))   \
    X(int, TF_GetCode, (const struct TF_Status *))                                     \
    X(const char *, TF_Message, (const struct TF_Status *))                            \
    /* op definition */                                                                \
    X(struct TF_OpDefinitionBuilder *, TF_NewOpDefinitionBuilder, (const char *name))  \
    X(void, TF_RegisterOpDefinition,                                                   \
      (struct TF_OpDefinitionBuilder *, struct TF_Status *))                           \
    X(void, TF_OpDefinitionBuilderAddAttr,                                             \
      (struct TF_OpDefinitionBuilder *, const char *spec))                             \
    X(void, TF_OpDefinitionBuilderAddInput,                                            \
      (struct TF_OpDefinitionBuilder *, const char *spec))                             \
    X(void, TF_OpDefinitionBuilderAddOutput,                                           \
      (struct TF_OpDefinitionBuilder *, const char *spec))                             \
    X(void, TF_OpDefinitionBuilderSetIsStateful,                                       \
      (struct TF_OpDefinitionBuilder *, bool on))                                      \
    X(void, TF_OpDefinitionBuilderSetShapeInferenceFunction,                           \
      (struct TF_OpDefinitionBuilder *, tf_shape_fn * fn))                             \
    /* shape inference */                                                              \
    X(int64_t, TF_ShapeInferenceContextNumInputs, (struct TF_ShapeInferenceContext *)) \
    X(struct TF_ShapeHandle *, TF_NewShapeHandle, (void))                              \
    X(void, TF_DeleteShapeHandle, (struct TF_ShapeHandle *))                           \
    X(void, TF_ShapeInferenceContextGetInput,                                          \
      (struct TF_ShapeInferenceContext *, int i, struct TF_ShapeHandle *,              \
       struct TF_Status *))                                                            \
    X(void, TF_ShapeInferenceContextSetOutput,                                         \
      (struct TF_ShapeInferenceContext *, int i, struct TF_ShapeHandle *,              \
       struct TF_Status *))                                                            \
    X(struct TF_ShapeHandle *, TF_ShapeInferenceContextVectorFromSize,                 \
      (struct TF_ShapeInferenceContext *, size_t size))                                \
    X(struct TF_ShapeHandle *, TF_ShapeInferenceContextScalar,                         \
      (struct TF_ShapeInferenceContext *))                                             \
    X(void, TF_ShapeInferenceContextSetUnknownShape,                                   \
      (struct TF_ShapeInferenceContext *, struct TF_Status *))                         \
    /* kernel registration and construction */                                         \
    X(struct TF_KernelBuilder *, TF_NewKernelBuilder,                                  \
      (const char *op, const char *device, tf_create_fn *, tf_compute_fn *,            \
       tf_delete_fn *))                                                                \
    X(void, TF_KernelBuilder_HostMemory, (struct TF_KernelBuilder *, const char *arg)) \
    X(void, TF_RegisterKernelBuilder,                                                  \
      (const char *name, struct TF_KernelBuilder *, struct TF_Status *))               \
    X(void, TF_OpKernelConstruction_Failure,                                           \
      (struct TF_OpKernelConstruction *, struct TF_Status *))                          \
    X(void, TF_OpKernelConstruction_GetAttrSize,                                       \
      (struct TF_OpKernelConstruction *, const char *attr, int32_t *list_size,         \
       int32_t *total_size, struct TF_Status *))                                       \
    X(void, TF_OpKernelConstruction_GetAttrString,                                     \
      (struct TF_OpKernelConstruction *, const char *attr, char *, size_t cap,         \
       struct TF_Status *))                                                            \
    X(void, TF_OpKernelConstruction_GetAttrInt32,                                      \
      (struct TF_OpKernelConstruction *, const char *attr, int32_t *,                  \
       struct TF_Status *))                                                            \
    X(void, TF_OpKernelConstruction_GetAttrInt64,                                      \
      (struct TF_OpKernelConstruction *, const char *attr, int64_t *,                  \
       struct TF_Status *))                                                            \
    /* kernel execution */                                                             \
    X(int, TF_NumInputs, (struct TF_OpKernelContext *))                                \
    X(int, TF_NumOutputs, (struct TF_OpKernelContext *))                               \
    X(void, TF_GetInput,                                                               \
      (struct TF_OpKernelContext *, int i, struct TF_Tensor **, struct TF_Status *))   \
    X(void, TF_SetOutput,                                                              \
      (struct TF_OpKernelContext *, int i, const struct TF_Tensor *,                   \
       struct TF_Status *))                                                            \
    X(struct TF_Tensor *, TF_AllocateOutput,                                           \
      (struct TF_OpKernelContext *, int i, int dtype, const int64_t *dims, int ndim,   \
       size_t size_bytes, struct TF_Status *))                                         \
    X(struct TF_Tensor *, TF_ForwardInputOrAllocateOutput,                             \
      (struct TF_OpKernelContext *, const int *inputs, int ninputs, int output,        \
       const int64_t *dims, int ndim, int *forwarded, struct TF_Status *))             \
    X(void, TF_OpKernelContext_Failure,                                                \
      (struct TF_OpKernelContext *, struct TF_Status *))                               \
    /* tensors */                                                                      \
    X(struct TF_Tensor *, TF_NewTensor,                                                \
      (int dtype, const int64_t *dims, int ndim, void *data, size_t size_bytes,        \
       tf_dealloc_fn *, void *arg))                                                    \
    X(void, TF_DeleteTensor, (struct TF_Tensor *))                                     \
    X(int, TF_TensorType, (const struct TF_Tensor *))                                  \
    X(int, TF_NumDims, (const struct TF_Tensor *))                                     \
    X(int64_t, TF_Dim, (const struct TF_Tensor *, int i))                              \
    X(void *, TF_TensorData, (const struct TF_Tensor *))                               \
    X(int64_t, TF_TensorElementCount, (const struct TF_Tensor *))

struct tf_capi {
/* a declaration: neither a name nor a list of parameters takes parentheses
 * NOLINTNEXTLINE(bugprone-macro-parentheses) */
#define X(ret, name, args) ret(*name) args;
    TF_CAPI_LIST(X)
#undef X
};

#endif
