/*
 * Holds api.h against the toolkit's own headers: compiled only where they are installed
 * (Makefile), produces no code.
 */
#include <cuda.h>
#include <nccl.h>

#include "worker/plane/nccl/api.h"

#define SAME(ours, theirs)                                                             \
    _Static_assert((int)(ours) == (int)(theirs), #ours " is not " #theirs)
#define FITS(expression, type)                                                         \
    _Static_assert(sizeof(expression) == sizeof(type), #expression)

SAME(HVI_CU_SUCCESS, CUDA_SUCCESS);
SAME(HVI_CU_INVALID_VALUE, CUDA_ERROR_INVALID_VALUE);
SAME(HVI_CU_DEINITIALIZED, CUDA_ERROR_DEINITIALIZED);
SAME(HVI_CU_STUB_LIBRARY, CUDA_ERROR_STUB_LIBRARY);
SAME(HVI_CU_OUT_OF_MEMORY, CUDA_ERROR_OUT_OF_MEMORY);
SAME(HVI_CU_NO_DEVICE, CUDA_ERROR_NO_DEVICE);
SAME(HVI_CU_INVALID_CONTEXT, CUDA_ERROR_INVALID_CONTEXT);
SAME(HVI_CU_NOT_READY, CUDA_ERROR_NOT_READY);
SAME(HVI_CU_CAPTURE_UNSUPPORTED, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
SAME(HVI_CU_CAPTURE_IMPLICIT, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
SAME(HVI_CU_CAPTURED_EVENT, CUDA_ERROR_CAPTURED_EVENT);
SAME(HVI_CU_CAPTURE_RELAXED, CU_STREAM_CAPTURE_MODE_RELAXED);
SAME(HVI_CU_POINTER_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
SAME(HVI_CU_POINTER_IS_MANAGED, CU_POINTER_ATTRIBUTE_IS_MANAGED);
SAME(HVI_CU_POINTER_DEVICE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
SAME(HVI_CU_MEMORY_DEVICE, CU_MEMORYTYPE_DEVICE);
SAME(HVI_CU_STREAM_NON_BLOCKING, CU_STREAM_NON_BLOCKING);
SAME(HVI_CU_EVENT_BLOCKING_SYNC, CU_EVENT_BLOCKING_SYNC);
SAME(HVI_CU_EVENT_DISABLE_TIMING, CU_EVENT_DISABLE_TIMING);
SAME(CU_STREAM_CAPTURE_STATUS_NONE, 0);
FITS(CUresult, int);
FITS(CUdevice, int);
FITS(CUdeviceptr, uint64_t);
FITS(CUstreamCaptureStatus, int);
FITS(CUstreamCaptureMode, int);
FITS(CUmemorytype, unsigned);
_Static_assert(sizeof(CUuuid) == 16, "CUuuid");

SAME(HVI_NCCL_SUCCESS, ncclSuccess);
SAME(HVI_NCCL_UNHANDLED_CUDA, ncclUnhandledCudaError);
SAME(HVI_NCCL_SYSTEM, ncclSystemError);
SAME(HVI_NCCL_REMOTE, ncclRemoteError);
SAME(HVI_NCCL_IN_PROGRESS, ncclInProgress);
SAME(HVI_NCCL_SUM, ncclSum);
SAME(HVI_NCCL_PROD, ncclProd);
SAME(HVI_NCCL_MAX, ncclMax);
SAME(HVI_NCCL_MIN, ncclMin);
SAME(HVI_NCCL_AVG, ncclAvg);
SAME(HVI_NCCL_INT8, ncclInt8);
SAME(HVI_NCCL_UINT8, ncclUint8);
SAME(HVI_NCCL_INT32, ncclInt32);
SAME(HVI_NCCL_UINT32, ncclUint32);
SAME(HVI_NCCL_INT64, ncclInt64);
SAME(HVI_NCCL_FLOAT16, ncclFloat16);
SAME(HVI_NCCL_FLOAT32, ncclFloat32);
SAME(HVI_NCCL_FLOAT64, ncclFloat64);
#if NCCL_VERSION_CODE >= 22500 || defined(__CUDA_BF16_TYPES_EXIST__)
SAME(HVI_NCCL_BFLOAT16, ncclBfloat16); /* older headers declare it in C++ only */
#endif
FITS(ncclResult_t, int);
FITS(ncclDataType_t, int);
FITS(ncclRedOp_t, int);
FITS(ncclUniqueId, struct hvi_nccl_id);

/* A newer ncclConfig_t only grows at its end. */
#define AT(ours, theirs)                                                               \
    _Static_assert(offsetof(struct hvi_nccl_config, ours) ==                           \
                       offsetof(ncclConfig_t, theirs),                                 \
                   #ours)
AT(size, size);
AT(magic, magic);
AT(version, version);
AT(blocking, blocking);
AT(cga_cluster_size, cgaClusterSize);
AT(min_ctas, minCTAs);
AT(max_ctas, maxCTAs);
AT(net_name, netName);
AT(split_share, splitShare);
#if NCCL_VERSION_CODE >= 22600
AT(traffic_class, trafficClass);
#endif
SAME(INT_MIN, NCCL_CONFIG_UNDEF_INT);
_Static_assert(NCCL_CONFIG_UNDEF_PTR == NULL, "net_name");
SAME(-1, NCCL_SPLIT_NOCOLOR);

/* Number and kind of arguments: never called, only typed. An entry of the tables that has no
 * CALL here does not compile. */
#define CALL(symbol, arguments, type)                                                  \
    FITS(symbol arguments, type);                                                      \
    enum { typed_##symbol = 1 }
#define P ((void *)0)
CALL(cuInit, (0), int);
CALL(cuDriverGetVersion, ((int *)P), int);
CALL(cuGetErrorName, (CUDA_SUCCESS, (const char **)P), int);
CALL(cuGetErrorString, (CUDA_SUCCESS, (const char **)P), int);
CALL(cuDeviceGetCount, ((int *)P), int);
CALL(cuDeviceGet, ((CUdevice *)P, 0), int);
CALL(cuDeviceGetName, ((char *)P, 0, (CUdevice)0), int);
CALL(cuDeviceGetUuid, ((CUuuid *)P, (CUdevice)0), int);
CALL(cuDeviceGetPCIBusId, ((char *)P, 0, (CUdevice)0), int);
CALL(cuDevicePrimaryCtxRetain, ((CUcontext *)P, (CUdevice)0), int);
CALL(cuCtxPushCurrent_v2, ((CUcontext)P), int);
CALL(cuCtxPopCurrent_v2, ((CUcontext *)P), int);
CALL(cuCtxSynchronize, (), int);
CALL(cuStreamCreateWithPriority, ((CUstream *)P, 0u, 0), int);
CALL(cuStreamDestroy_v2, ((CUstream)P), int);
CALL(cuStreamWaitEvent, ((CUstream)P, (CUevent)P, 0u), int);
CALL(cuStreamIsCapturing, ((CUstream)P, (CUstreamCaptureStatus *)P), int);
CALL(cuEventCreate, ((CUevent *)P, 0u), int);
CALL(cuEventDestroy_v2, ((CUevent)P), int);
CALL(cuEventRecord, ((CUevent)P, (CUstream)P), int);
CALL(cuEventQuery, ((CUevent)P), int);
CALL(cuEventSynchronize, ((CUevent)P), int);
CALL(cuMemAlloc_v2, ((CUdeviceptr *)P, (size_t)0), int);
CALL(cuMemFree_v2, ((CUdeviceptr)0), int);
CALL(cuMemHostAlloc, ((void **)P, (size_t)0, 0u), int);
CALL(cuMemFreeHost, ((void *)P), int);
CALL(cuMemcpyHtoDAsync_v2, ((CUdeviceptr)0, (const void *)P, (size_t)0, (CUstream)P),
     int);
CALL(cuMemcpyDtoHAsync_v2, ((void *)P, (CUdeviceptr)0, (size_t)0, (CUstream)P), int);
CALL(cuMemcpyDtoDAsync_v2, ((CUdeviceptr)0, (CUdeviceptr)0, (size_t)0, (CUstream)P),
     int);
CALL(cuModuleLoadData, ((CUmodule *)P, (const void *)P), int);
CALL(cuModuleGetFunction, ((CUfunction *)P, (CUmodule)P, (const char *)P), int);
CALL(cuLaunchKernel,
     ((CUfunction)P, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (CUstream)P, (void **)P, (void **)P),
     int);
CALL(cuDeviceGetUuid_v2, ((CUuuid *)P, (CUdevice)0), int);
CALL(cuCtxGetStreamPriorityRange, ((int *)P, (int *)P), int);
CALL(cuThreadExchangeStreamCaptureMode, ((CUstreamCaptureMode *)P), int);
CALL(cuPointerGetAttribute,
     ((void *)P, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)0), int);
#if CUDA_VERSION >= 12050
CALL(cuCtxRecordEvent, ((CUcontext)P, (CUevent)P), int);
CALL(cuCtxWaitEvent, ((CUcontext)P, (CUevent)P), int);
#else
enum { typed_cuCtxRecordEvent = 1, typed_cuCtxWaitEvent = 1 };
#endif
CALL(ncclGetVersion, ((int *)P), int);
CALL(ncclGetErrorString, (ncclSuccess), const char *);
CALL(ncclGetLastError, ((ncclComm_t)P), const char *);
CALL(ncclGetUniqueId, ((ncclUniqueId *)P), int);
CALL(ncclCommInitRankConfig,
     ((ncclComm_t *)P, 1, *(ncclUniqueId *)P, 0, (ncclConfig_t *)P), int);
CALL(ncclCommSplit, ((ncclComm_t)P, 0, 0, (ncclComm_t *)P, (ncclConfig_t *)P), int);
CALL(ncclCommFinalize, ((ncclComm_t)P), int);
CALL(ncclCommDestroy, ((ncclComm_t)P), int);
CALL(ncclCommAbort, ((ncclComm_t)P), int);
CALL(ncclCommGetAsyncError, ((ncclComm_t)P, (ncclResult_t *)P), int);
CALL(ncclGroupStart, (), int);
CALL(ncclGroupEnd, (), int);
CALL(ncclAllReduce,
     ((const void *)P, (void *)P, (size_t)0, ncclInt8, ncclSum, (ncclComm_t)P,
      (cudaStream_t)P),
     int);
CALL(ncclReduce,
     ((const void *)P, (void *)P, (size_t)0, ncclInt8, ncclSum, 0, (ncclComm_t)P,
      (cudaStream_t)P),
     int);
CALL(ncclReduceScatter,
     ((const void *)P, (void *)P, (size_t)0, ncclInt8, ncclSum, (ncclComm_t)P,
      (cudaStream_t)P),
     int);
CALL(ncclAllGather,
     ((const void *)P, (void *)P, (size_t)0, ncclInt8, (ncclComm_t)P, (cudaStream_t)P),
     int);
CALL(ncclBroadcast,
     ((const void *)P, (void *)P, (size_t)0, ncclInt8, 0, (ncclComm_t)P,
      (cudaStream_t)P),
     int);
CALL(ncclSend,
     ((const void *)P, (size_t)0, ncclInt8, 0, (ncclComm_t)P, (cudaStream_t)P), int);
CALL(ncclRecv, ((void *)P, (size_t)0, ncclInt8, 0, (ncclComm_t)P, (cudaStream_t)P),
     int);
#if NCCL_VERSION_CODE >= 21901
CALL(ncclCommRegister, ((ncclComm_t)P, (void *)P, (size_t)0, (void **)P), int);
CALL(ncclCommDeregister, ((ncclComm_t)P, (void *)P), int);
#else
enum { typed_ncclCommRegister = 1, typed_ncclCommDeregister = 1 };
#endif
#define CUDA_TYPED(member, symbol, arguments) _Static_assert(typed_##symbol, #symbol);
#define NCCL_TYPED(member, symbol, type, arguments)                                    \
    _Static_assert(typed_##symbol, #symbol);
HVI_CUDA_NEEDED(CUDA_TYPED)
HVI_CUDA_OPTIONAL(CUDA_TYPED)
HVI_NCCL_NEEDED(NCCL_TYPED)
HVI_NCCL_OPTIONAL(NCCL_TYPED)
_Static_assert(NCCL_VERSION_CODE >= HVI_NCCL_MIN_VERSION,
               "the toolkit's NCCL is too old");
