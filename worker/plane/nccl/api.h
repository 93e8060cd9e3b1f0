/**
 * Our own tables of the CUDA driver's and NCCL's functions, filled by dlopen: libhvd
 * links neither, so every build has the GPU plane and no machine without a GPU notices.
 * Types and numbers are those of cuda.h and nccl.h; headers.c holds them against the
 * real headers where a toolkit is installed.
 *
 * Both libraries are looked for at the first GPU tensor, never in hvd_init: the copy that
 * the process has loaded already comes first (a framework's own), then the variable
 * HVD_CUDA_LIBRARY or HVD_NCCL_LIBRARY, for NCCL the package nvidia-nccl beside a loaded
 * framework, then the linker's search. They are never unloaded.
 */
#ifndef HVI_PLANE_NCCL_API_H
#define HVI_PLANE_NCCL_API_H

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
struct CUmod_st;
struct CUfunc_st;
struct ncclComm;

enum hvi_cu {
    HVI_CU_SUCCESS = 0,
    HVI_CU_INVALID_VALUE = 1,
    HVI_CU_OUT_OF_MEMORY = 2,
    HVI_CU_DEINITIALIZED = 4,
    HVI_CU_STUB_LIBRARY = 34,
    HVI_CU_NO_DEVICE = 100,
    HVI_CU_INVALID_CONTEXT = 201,
    HVI_CU_NOT_READY = 600,
    HVI_CU_CAPTURE_UNSUPPORTED = 900,
    HVI_CU_CAPTURE_IMPLICIT = 906,
    HVI_CU_CAPTURED_EVENT = 907
};
#define HVI_CU_STREAM_NON_BLOCKING 1u
#define HVI_CU_EVENT_BLOCKING_SYNC 1u
#define HVI_CU_EVENT_DISABLE_TIMING 2u
#define HVI_CU_CAPTURE_RELAXED 2
enum hvi_cu_pointer { /* CUpointer_attribute */
                      HVI_CU_POINTER_MEMORY_TYPE = 2,
                      HVI_CU_POINTER_IS_MANAGED = 8,
                      HVI_CU_POINTER_DEVICE = 9
};
#define HVI_CU_MEMORY_DEVICE 2u

/** X(member, symbol, (arguments)): all return CUresult, here int. */
#define HVI_CUDA_NEEDED(X)                                                             \
    X(init, cuInit, (unsigned))                                                        \
    X(driver_version, cuDriverGetVersion, (int *))                                     \
    X(error_name, cuGetErrorName, (int, const char **))                                \
    X(error_string, cuGetErrorString, (int, const char **))                            \
    X(device_count, cuDeviceGetCount, (int *))                                         \
    X(device_get, cuDeviceGet, (int *, int))                                           \
    X(device_name, cuDeviceGetName, (char *, int, int))                                \
    X(device_uuid, cuDeviceGetUuid, (void *, int))                                     \
    X(device_bus, cuDeviceGetPCIBusId, (char *, int, int))                             \
    X(ctx_retain, cuDevicePrimaryCtxRetain, (struct CUctx_st **, int))                 \
    X(ctx_push, cuCtxPushCurrent_v2, (struct CUctx_st *))                              \
    X(ctx_pop, cuCtxPopCurrent_v2, (struct CUctx_st **))                               \
    X(ctx_sync, cuCtxSynchronize, (void))                                              \
    X(stream_create, cuStreamCreateWithPriority,                                       \
      (struct CUstream_st **, unsigned, int))                                          \
    X(stream_destroy, cuStreamDestroy_v2, (struct CUstream_st *))                      \
    X(stream_wait, cuStreamWaitEvent,                                                  \
      (struct CUstream_st *, struct CUevent_st *, unsigned))                           \
    X(stream_capturing, cuStreamIsCapturing, (struct CUstream_st *, int *))            \
    X(event_create, cuEventCreate, (struct CUevent_st **, unsigned))                   \
    X(event_destroy, cuEventDestroy_v2, (struct CUevent_st *))                         \
    X(event_record, cuEventRecord, (struct CUevent_st *, struct CUstream_st *))        \
    X(event_query, cuEventQuery, (struct CUevent_st *))                                \
    X(event_sync, cuEventSynchronize, (struct CUevent_st *))                           \
    X(mem_alloc, cuMemAlloc_v2, (uint64_t *, size_t))                                  \
    X(mem_free, cuMemFree_v2, (uint64_t))                                              \
    X(host_alloc, cuMemHostAlloc, (void **, size_t, unsigned))                         \
    X(host_free, cuMemFreeHost, (void *))                                              \
    X(copy_htod, cuMemcpyHtoDAsync_v2,                                                 \
      (uint64_t, const void *, size_t, struct CUstream_st *))                          \
    X(copy_dtoh, cuMemcpyDtoHAsync_v2,                                                 \
      (void *, uint64_t, size_t, struct CUstream_st *))                                \
    X(copy_dtod, cuMemcpyDtoDAsync_v2,                                                 \
      (uint64_t, uint64_t, size_t, struct CUstream_st *))                              \
    X(module_load, cuModuleLoadData, (struct CUmod_st **, const void *))               \
    X(module_function, cuModuleGetFunction,                                            \
      (struct CUfunc_st **, struct CUmod_st *, const char *))                          \
    X(launch, cuLaunchKernel,                                                          \
      (struct CUfunc_st *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
       unsigned, struct CUstream_st *, void **, void **))
/** Newer entries: NULL where the driver lacks them. */
#define HVI_CUDA_OPTIONAL(X)                                                           \
    X(uuid_v2, cuDeviceGetUuid_v2, (void *, int))                                      \
    X(stream_priority, cuCtxGetStreamPriorityRange, (int *, int *))                    \
    X(capture_mode, cuThreadExchangeStreamCaptureMode, (int *))                        \
    X(pointer_get, cuPointerGetAttribute, (void *, int, uint64_t))                     \
    X(ctx_record, cuCtxRecordEvent, (struct CUctx_st *, struct CUevent_st *))          \
    X(ctx_wait, cuCtxWaitEvent, (struct CUctx_st *, struct CUevent_st *))

struct hvi_cuda {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define HVI_MEMBER_(member, symbol, arguments) int(*member) arguments;
    HVI_CUDA_NEEDED(HVI_MEMBER_)
    HVI_CUDA_OPTIONAL(HVI_MEMBER_)
    char path[256]; /* where it was found */
    int version;    /* the driver's, 12040 = CUDA 12.4 */
};

/* ---- NCCL */

#define HVI_NCCL_MIN_VERSION 21800 /* ncclCommSplit, non-blocking communicators */
#define HVI_NCCL_ID_BYTES 128

enum hvi_nccl_result {
    HVI_NCCL_SUCCESS = 0,
    HVI_NCCL_UNHANDLED_CUDA = 1,
    HVI_NCCL_SYSTEM = 2,
    HVI_NCCL_REMOTE = 6,
    HVI_NCCL_IN_PROGRESS = 7
};
enum hvi_nccl_op {
    HVI_NCCL_SUM = 0,
    HVI_NCCL_PROD = 1,
    HVI_NCCL_MAX = 2,
    HVI_NCCL_MIN = 3,
    HVI_NCCL_AVG = 4
};
enum hvi_nccl_type {
    HVI_NCCL_INT8 = 0,
    HVI_NCCL_UINT8 = 1,
    HVI_NCCL_INT32 = 2,
    HVI_NCCL_UINT32 = 3,
    HVI_NCCL_INT64 = 4,
    HVI_NCCL_FLOAT16 = 6,
    HVI_NCCL_FLOAT32 = 7,
    HVI_NCCL_FLOAT64 = 8,
    HVI_NCCL_BFLOAT16 = 9
};

struct hvi_nccl_id {
    char bytes[HVI_NCCL_ID_BYTES];
};

/** ncclConfig_t as NCCL 2.18 has it; `size` tells a newer one what to leave alone. The last
 *  member lies in 2.18's padding, which `size` covers, and is 2.26's traffic class: undefined,
 *  and not what happens to lie on the stack. */
struct hvi_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cga_cluster_size, min_ctas, max_ctas;
    const char *net_name;
    int split_share;
    int traffic_class;
};
_Static_assert(sizeof(struct hvi_nccl_config) == 48, "2.18's size, without padding");
#define HVI_NCCL_CONFIG                                                                \
    {                                                                                  \
        .size = sizeof(struct hvi_nccl_config), .magic = 0xcafebeef,                   \
        .version = HVI_NCCL_MIN_VERSION, .blocking = 0, .cga_cluster_size = INT_MIN,   \
        .min_ctas = INT_MIN, .max_ctas = INT_MIN, .net_name = NULL,                    \
        .split_share = INT_MIN, .traffic_class = INT_MIN                               \
    }

/** X(member, symbol, result type, (arguments)); ncclResult_t is int here. */
#define HVI_NCCL_NEEDED(X)                                                             \
    X(version_get, ncclGetVersion, int, (int *))                                       \
    X(error_string, ncclGetErrorString, const char *, (int))                           \
    X(last_error, ncclGetLastError, const char *, (struct ncclComm *))                 \
    X(unique_id, ncclGetUniqueId, int, (struct hvi_nccl_id *))                         \
    X(comm_init, ncclCommInitRankConfig, int,                                          \
      (struct ncclComm **, int, struct hvi_nccl_id, int, struct hvi_nccl_config *))    \
    X(comm_split, ncclCommSplit, int,                                                  \
      (struct ncclComm *, int, int, struct ncclComm **, struct hvi_nccl_config *))     \
    X(comm_finalize, ncclCommFinalize, int, (struct ncclComm *))                       \
    X(comm_destroy, ncclCommDestroy, int, (struct ncclComm *))                         \
    X(comm_abort, ncclCommAbort, int, (struct ncclComm *))                             \
    X(async_error, ncclCommGetAsyncError, int, (struct ncclComm *, int *))             \
    X(group_start, ncclGroupStart, int, (void))                                        \
    X(group_end, ncclGroupEnd, int, (void))                                            \
    X(allreduce, ncclAllReduce, int,                                                   \
      (const void *, void *, size_t, int, int, struct ncclComm *,                      \
       struct CUstream_st *))                                                          \
    X(reduce, ncclReduce, int,                                                         \
      (const void *, void *, size_t, int, int, int, struct ncclComm *,                 \
       struct CUstream_st *))                                                          \
    X(reduce_scatter, ncclReduceScatter, int,                                          \
      (const void *, void *, size_t, int, int, struct ncclComm *,                      \
       struct CUstream_st *))                                                          \
    X(allgather, ncclAllGather, int,                                                   \
      (const void *, void *, size_t, int, struct ncclComm *, struct CUstream_st *))    \
    X(broadcast, ncclBroadcast, int,                                                   \
      (const void *, void *, size_t, int, int, struct ncclComm *,                      \
       struct CUstream_st *))                                                          \
    X(send, ncclSend, int,                                                             \
      (const void *, size_t, int, int, struct ncclComm *, struct CUstream_st *))       \
    X(recv, ncclRecv, int,                                                             \
      (void *, size_t, int, int, struct ncclComm *, struct CUstream_st *))
#define HVI_NCCL_OPTIONAL(X)                                                           \
    X(comm_register, ncclCommRegister, int,                                            \
      (struct ncclComm *, void *, size_t, void **))                                    \
    X(comm_deregister, ncclCommDeregister, int, (struct ncclComm *, void *))

struct hvi_nccl_api {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define HVI_NCCL_MEMBER_(member, symbol, type, arguments) type(*member) arguments;
    HVI_NCCL_NEEDED(HVI_NCCL_MEMBER_)
    HVI_NCCL_OPTIONAL(HVI_NCCL_MEMBER_)
    char path[256];
    int version; /* 22809 = 2.28.9 */
};

/**
 * The driver, found, initialised and kept for the life of the process.
 *
 * Returns  HVD_OK; HVD_EUNSUPPORTED: no driver, no GPU, or an entry is missing, with a
 *          text that says which and where. A failure is tried again at the next call.
 * Threads  any.    Blocks  while the driver starts.
 */
enum hvd_status hvi_cuda_get(const struct hvi_cuda **out, struct hvi_err *err);

/** The same for NCCL. HVD_EVERSION: older than 2.18; the text names version and path. */
enum hvd_status hvi_nccl_get(const struct hvi_nccl_api **out, struct hvi_err *err);

/** The number of the NCCL that this process has loaded, ours or a framework's; where none
 *  is: HVI_NCCL_MIN_VERSION, what the table is written for. Loads nothing. */
int hvi_nccl_known_version(void);

/** "2.28.9" of 22809; "12.4" of 12040. Returns out. */
char *hvi_nccl_version_text(int version, char out[16]);
char *hvi_cuda_version_text(int version, char out[16]);

#endif
