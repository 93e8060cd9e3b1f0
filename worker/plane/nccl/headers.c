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
SAME(HVI_NCCL_BFLOAT16, ncclBfloat16);
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

/* Number and kind of arguments: never called, only typed. */
#define P ((void *)0)
FITS(cuInit(0), int);
FITS(cuDriverGetVersion((int *)P), int);
FITS(cuGetErrorName(CUDA_SUCCESS, (const char **)P), int);
FITS(cuGetErrorString(CUDA_SUCCESS, (const char **)P), int);
FITS(cuDeviceGetCount((int *)P), int);
FITS(cuDeviceGet((CUdevice *)P, 0), int);
FITS(cuDeviceGetName((char *)P, 0, (CUdevice)0), int);
FITS(cuDeviceGetUuid((CUuuid *)P, (CUdevice)0), int);
FITS(cuDeviceGetPCIBusId((char *)P, 0, (CUdevice)0), int);
FITS(cuDevicePrimaryCtxRetain((CUcontext *)P, (CUdevice)0), int);
FITS(cuCtxPushCurrent_v2((CUcontext)P), int);
FITS(cuCtxPopCurrent_v2((CUcontext *)P), int);
FITS(cuCtxSynchronize(), int);
FITS(cuStreamCreateWithPriority((CUstream *)P, 0u, 0), int);
FITS(cuStreamDestroy_v2((CUstream)P), int);
FITS(cuStreamWaitEvent((CUstream)P, (CUevent)P, 0u), int);
FITS(cuStreamIsCapturing((CUstream)P, (CUstreamCaptureStatus *)P), int);
FITS(cuEventCreate((CUevent *)P, 0u), int);
FITS(cuEventDestroy_v2((CUevent)P), int);
FITS(cuEventRecord((CUevent)P, (CUstream)P), int);
FITS(cuEventQuery((CUevent)P), int);
FITS(cuEventSynchronize((CUevent)P), int);
FITS(cuMemAlloc_v2((CUdeviceptr *)P, (size_t)0), int);
FITS(cuMemFree_v2((CUdeviceptr)0), int);
FITS(cuMemHostAlloc((void **)P, (size_t)0, 0u), int);
FITS(cuMemFreeHost((void *)P), int);
FITS(cuMemcpyHtoDAsync_v2((CUdeviceptr)0, (const void *)P, (size_t)0, (CUstream)P),
     int);
FITS(cuMemcpyDtoHAsync_v2((void *)P, (CUdeviceptr)0, (size_t)0, (CUstream)P), int);
FITS(cuMemcpyDtoDAsync_v2((CUdeviceptr)0, (CUdeviceptr)0, (size_t)0, (CUstream)P), int);
FITS(cuModuleLoadData((CUmodule *)P, (const void *)P), int);
FITS(cuModuleGetFunction((CUfunction *)P, (CUmodule)P, (const char *)P), int);
FITS(cuLaunchKernel((CUfunction)P, 1u, 1u, 1u, 1u, 1u, 1u, 0u, (CUstream)P, (void **)P,
                    (void **)P),
     int);
FITS(cuDeviceGetUuid_v2((CUuuid *)P, (CUdevice)0), int);
FITS(cuCtxGetStreamPriorityRange((int *)P, (int *)P), int);
FITS(cuThreadExchangeStreamCaptureMode((CUstreamCaptureMode *)P), int);
FITS(cuPointerGetAttribute((void *)P, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, (CUdeviceptr)0),
     int);
#if CUDA_VERSION >= 12050
FITS(cuCtxRecordEvent((CUcontext)P, (CUevent)P), int);
FITS(cuCtxWaitEvent((CUcontext)P, (CUevent)P), int);
#endif
FITS(ncclGetVersion((int *)P), int);
FITS(ncclGetErrorString(ncclSuccess), const char *);
FITS(ncclGetLastError((ncclComm_t)P), const char *);
FITS(ncclGetUniqueId((ncclUniqueId *)P), int);
FITS(ncclCommInitRankConfig((ncclComm_t *)P, 1, *(ncclUniqueId *)P, 0,
                            (ncclConfig_t *)P),
     int);
FITS(ncclCommSplit((ncclComm_t)P, 0, 0, (ncclComm_t *)P, (ncclConfig_t *)P), int);
FITS(ncclCommFinalize((ncclComm_t)P), int);
FITS(ncclCommDestroy((ncclComm_t)P), int);
FITS(ncclCommAbort((ncclComm_t)P), int);
FITS(ncclCommGetAsyncError((ncclComm_t)P, (ncclResult_t *)P), int);
FITS(ncclGroupStart(), int);
FITS(ncclGroupEnd(), int);
FITS(ncclAllReduce((const void *)P, (void *)P, (size_t)0, ncclInt8, ncclSum,
                   (ncclComm_t)P, (cudaStream_t)P),
     int);
FITS(ncclReduce((const void *)P, (void *)P, (size_t)0, ncclInt8, ncclSum, 0,
                (ncclComm_t)P, (cudaStream_t)P),
     int);
FITS(ncclReduceScatter((const void *)P, (void *)P, (size_t)0, ncclInt8, ncclSum,
                       (ncclComm_t)P, (cudaStream_t)P),
     int);
FITS(ncclAllGather((const void *)P, (void *)P, (size_t)0, ncclInt8, (ncclComm_t)P,
                   (cudaStream_t)P),
     int);
FITS(ncclBroadcast((const void *)P, (void *)P, (size_t)0, ncclInt8, 0, (ncclComm_t)P,
                   (cudaStream_t)P),
     int);
FITS(ncclSend((const void *)P, (size_t)0, ncclInt8, 0, (ncclComm_t)P, (cudaStream_t)P),
     int);
FITS(ncclRecv((void *)P, (size_t)0, ncclInt8, 0, (ncclComm_t)P, (cudaStream_t)P), int);
#if NCCL_VERSION_CODE >= 21901
FITS(ncclCommRegister((ncclComm_t)P, (void *)P, (size_t)0, (void **)P), int);
FITS(ncclCommDeregister((ncclComm_t)P, (void *)P), int);
#endif
_Static_assert(NCCL_VERSION_CODE >= HVI_NCCL_MIN_VERSION,
               "the toolkit's NCCL is too old");
