/**
 * tf_capi.h - the part of TensorFlow's C API that the op library uses, as own
 * prototypes.
 *
 * TensorFlow's headers are not included: tensorflow/c/ops.h is not C, and kernels.h
 * defines an object and pulls in C++ headers. The prototypes were compared with
 * tensorflow/c/{ops,kernels,tf_status,tf_tensor,tf_datatype}.h of TensorFlow 2.21.0.
 * TensorFlow's TF_DataType and TF_Code are enums without negative values; they are
 * passed as int here, which has the same representation in the x86-64 and aarch64 ABIs.
 */
#ifndef HVD_TRIAL_TF_CAPI_H
#define HVD_TRIAL_TF_CAPI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct TF_Status;
struct TF_Tensor;
struct TF_OpDefinitionBuilder;
struct TF_ShapeInferenceContext;
struct TF_ShapeHandle;
struct TF_DimensionHandle;
struct TF_KernelBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_AsyncOpKernelDoneCallback;

/* TF_DataType */
enum { TF_FLOAT = 1, TF_INT64 = 9 };
/* TF_Code */
enum {
    TF_OK = 0,
    TF_INVALID_ARGUMENT = 3,
    TF_ABORTED = 10,
    TF_UNIMPLEMENTED = 12,
    TF_INTERNAL = 13
};

/* struct_size counts to the end of the last field, without tail padding. */
struct TF_AllocatorAttributes {
    size_t struct_size;
    unsigned char on_host;
};

struct TF_InputRange_Args {
    size_t struct_size;
    void *priv;
    int start, stop;
    struct TF_Status *status;
};

/* TF_StringView, returned by value */
struct TF_StringView {
    const char *data;
    size_t len;
};

typedef void tf_shape_fn(struct TF_ShapeInferenceContext *ctx,
                         struct TF_Status *status);
typedef void *tf_create_fn(struct TF_OpKernelConstruction *ctx);
typedef void tf_compute_fn(void *kernel, struct TF_OpKernelContext *ctx);
typedef void tf_compute_async_fn(void *kernel, struct TF_OpKernelContext *ctx,
                                 struct TF_AsyncOpKernelDoneCallback *done);
typedef void tf_delete_fn(void *kernel);
typedef void tf_dealloc_fn(void *data, size_t len, void *arg);

/** X(return type, name, arguments): every symbol the real op library is expected to
 * need; the trial calls about half of them and looks all of them up. */
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
    X(void, TF_DeleteOpDefinitionBuilder, (struct TF_OpDefinitionBuilder *))           \
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
    X(struct TF_DimensionHandle *, TF_NewDimensionHandle, (void))                      \
    X(void, TF_DeleteDimensionHandle, (struct TF_DimensionHandle *))                   \
    X(void, TF_ShapeInferenceContextGetInput,                                          \
      (struct TF_ShapeInferenceContext *, int i, struct TF_ShapeHandle *,              \
       struct TF_Status *))                                                            \
    X(void, TF_ShapeInferenceContextSetOutput,                                         \
      (struct TF_ShapeInferenceContext *, int i, struct TF_ShapeHandle *,              \
       struct TF_Status *))                                                            \
    X(struct TF_ShapeHandle *, TF_ShapeInferenceContextScalar,                         \
      (struct TF_ShapeInferenceContext *))                                             \
    X(struct TF_ShapeHandle *, TF_ShapeInferenceContextVectorFromSize,                 \
      (struct TF_ShapeInferenceContext *, size_t size))                                \
    X(int, TF_ShapeInferenceContextRankKnown,                                          \
      (struct TF_ShapeInferenceContext *, struct TF_ShapeHandle *))                    \
    X(int64_t, TF_ShapeInferenceContextRank,                                           \
      (struct TF_ShapeInferenceContext *, struct TF_ShapeHandle *))                    \
    X(void, TF_ShapeInferenceContextWithRank,                                          \
      (struct TF_ShapeInferenceContext *, struct TF_ShapeHandle *, int64_t rank,       \
       struct TF_ShapeHandle *, struct TF_Status *))                                   \
    X(void, TF_ShapeInferenceContextDim,                                               \
      (struct TF_ShapeInferenceContext *, struct TF_ShapeHandle *, int64_t i,          \
       struct TF_DimensionHandle *))                                                   \
    X(void, TF_ShapeInferenceContextSubshape,                                          \
      (struct TF_ShapeInferenceContext *, struct TF_ShapeHandle *, int64_t start,      \
       int64_t end, struct TF_ShapeHandle *, struct TF_Status *))                      \
    X(void, TF_ShapeInferenceContextConcatenateShapes,                                 \
      (struct TF_ShapeInferenceContext *, struct TF_ShapeHandle *,                     \
       struct TF_ShapeHandle *, struct TF_ShapeHandle *, struct TF_Status *))          \
    X(void, TF_ShapeInferenceContextSetUnknownShape,                                   \
      (struct TF_ShapeInferenceContext *, struct TF_Status *))                         \
    X(void, TF_ShapeInferenceContext_GetAttrType,                                      \
      (struct TF_ShapeInferenceContext *, const char *attr, int *,                     \
       struct TF_Status *))                                                            \
    /* kernel registration and construction */                                         \
    X(struct TF_KernelBuilder *, TF_NewKernelBuilder,                                  \
      (const char *op, const char *device, tf_create_fn *, tf_compute_fn *,            \
       tf_delete_fn *))                                                                \
    X(struct TF_KernelBuilder *, TF_NewAsyncKernelBuilder,                             \
      (const char *op, const char *device, tf_create_fn *, tf_compute_async_fn *,      \
       tf_delete_fn *))                                                                \
    X(void, TF_RunAsyncOpKernelDoneCallback, (struct TF_AsyncOpKernelDoneCallback *))  \
    X(void, TF_KernelBuilder_TypeConstraint,                                           \
      (struct TF_KernelBuilder *, const char *attr, int dtype, struct TF_Status *))    \
    X(void, TF_KernelBuilder_HostMemory, (struct TF_KernelBuilder *, const char *arg)) \
    X(void, TF_RegisterKernelBuilder,                                                  \
      (const char *name, struct TF_KernelBuilder *, struct TF_Status *))               \
    X(void, TF_DeleteKernelBuilder, (struct TF_KernelBuilder *))                       \
    X(void, TF_OpKernelConstruction_Failure,                                           \
      (struct TF_OpKernelConstruction *, struct TF_Status *))                          \
    X(struct TF_StringView, TF_OpKernelConstruction_GetName,                           \
      (struct TF_OpKernelConstruction *))                                              \
    X(void, TF_OpKernelConstruction_GetAttrSize,                                       \
      (struct TF_OpKernelConstruction *, const char *attr, int32_t *list_size,         \
       int32_t *total_size, struct TF_Status *))                                       \
    X(void, TF_OpKernelConstruction_GetAttrString,                                     \
      (struct TF_OpKernelConstruction *, const char *attr, char *, size_t cap,         \
       struct TF_Status *))                                                            \
    X(void, TF_OpKernelConstruction_GetAttrType,                                       \
      (struct TF_OpKernelConstruction *, const char *attr, int *, struct TF_Status *)) \
    X(void, TF_OpKernelConstruction_GetAttrInt32,                                      \
      (struct TF_OpKernelConstruction *, const char *attr, int32_t *,                  \
       struct TF_Status *))                                                            \
    X(void, TF_OpKernelConstruction_GetAttrInt64,                                      \
      (struct TF_OpKernelConstruction *, const char *attr, int64_t *,                  \
       struct TF_Status *))                                                            \
    X(void, TF_OpKernelConstruction_GetAttrInt64List,                                  \
      (struct TF_OpKernelConstruction *, const char *attr, int64_t *, int cap,         \
       struct TF_Status *))                                                            \
    X(void, TF_OpKernelConstruction_GetAttrFloat,                                      \
      (struct TF_OpKernelConstruction *, const char *attr, float *,                    \
       struct TF_Status *))                                                            \
    X(void, TF_OpKernelConstruction_GetAttrBool,                                       \
      (struct TF_OpKernelConstruction *, const char *attr, unsigned char *,            \
       struct TF_Status *))                                                            \
    /* kernel execution */                                                             \
    X(int, TF_NumInputs, (struct TF_OpKernelContext *))                                \
    X(int, TF_NumOutputs, (struct TF_OpKernelContext *))                               \
    X(void, TF_GetInput,                                                               \
      (struct TF_OpKernelContext *, int i, struct TF_Tensor **, struct TF_Status *))   \
    X(void, TF_InputRange,                                                             \
      (struct TF_OpKernelContext *, const char *arg, struct TF_InputRange_Args *))     \
    X(int, TF_ExpectedOutputDataType, (struct TF_OpKernelContext *, int i))            \
    X(void, TF_SetOutput,                                                              \
      (struct TF_OpKernelContext *, int i, const struct TF_Tensor *,                   \
       struct TF_Status *))                                                            \
    X(struct TF_Tensor *, TF_AllocateOutput,                                           \
      (struct TF_OpKernelContext *, int i, int dtype, const int64_t *dims, int ndim,   \
       size_t size_bytes, struct TF_Status *))                                         \
    X(struct TF_Tensor *, TF_AllocateTemp,                                             \
      (struct TF_OpKernelContext *, int dtype, const int64_t *dims, int ndim,          \
       struct TF_AllocatorAttributes *, struct TF_Status *))                           \
    X(struct TF_Tensor *, TF_ForwardInputOrAllocateOutput,                             \
      (struct TF_OpKernelContext *, const int *inputs, int ninputs, int output,        \
       const int64_t *dims, int ndim, int *forwarded, struct TF_Status *))             \
    X(void, TF_OpKernelContext_Failure,                                                \
      (struct TF_OpKernelContext *, struct TF_Status *))                               \
    X(int64_t, TF_GetStepId, (struct TF_OpKernelContext *))                            \
    X(int, TF_GetDeviceId, (struct TF_OpKernelContext *))                              \
    /* tensors */                                                                      \
    X(struct TF_Tensor *, TF_NewTensor,                                                \
      (int dtype, const int64_t *dims, int ndim, void *data, size_t size_bytes,        \
       tf_dealloc_fn *, void *arg))                                                    \
    X(void, TF_DeleteTensor, (struct TF_Tensor *))                                     \
    X(int, TF_TensorType, (const struct TF_Tensor *))                                  \
    X(int, TF_NumDims, (const struct TF_Tensor *))                                     \
    X(int64_t, TF_Dim, (const struct TF_Tensor *, int i))                              \
    X(size_t, TF_TensorByteSize, (const struct TF_Tensor *))                           \
    X(void *, TF_TensorData, (const struct TF_Tensor *))                               \
    X(int64_t, TF_TensorElementCount, (const struct TF_Tensor *))                      \
    X(bool, TF_TensorIsAligned, (const struct TF_Tensor *))                            \
    X(size_t, TF_DataTypeSize, (int dtype))

struct tf_capi {
#define X(ret, name, args) ret(*name) args;
    TF_CAPI_LIST(X)
#undef X
};

#endif
