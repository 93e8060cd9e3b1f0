/**
 * hvd.h - data-parallel collectives for training programs. The only installed header.
 *
 * A training program runs once per accelerator (a *rank*). Every rank calls hvd_init(),
 * then the same collectives by the same names, in any order; libhvd agrees on one order
 * for all ranks and runs them. Start the ranks with `hvdrun -np N ./train`.
 *
 *     hvd_init(NULL);
 *     hvd_allreduce(grad, grad, count, HVD_FLOAT32, HVD_AVERAGE, "grad/w1");
 *     hvd_shutdown();
 *
 * Threads  every call may be made from any thread unless its comment says otherwise.
 * Errors   calls return enum hvd_status: 0 is OK, > 0 still in progress, < 0 failure.
 *          hvd_last_error() has the text of this thread's last failed call.
 * Fork     in a forked child every call fails with HVD_EFORKED; the parent is unharmed.
 * Signals  libhvd installs no handlers and its threads block all signals.
 */
#ifndef HVD_HVD_H
#define HVD_HVD_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define HVD_API __attribute__((visibility("default")))
#else
#define HVD_API
#endif

/** Version of the API this header describes; hvd_abi_version() tells the library's. */
#define HVD_VERSION_MAJOR 0
#define HVD_VERSION_MINOR 1
#define HVD_VERSION_PATCH 0
#define HVD_ABI_VERSION 1

/** Limits. Bytes, without the terminating NUL. */
#define HVD_NAME_MAX 1023       /* tensor and group names */
#define HVD_NDIM_MAX 16         /* dimensions of a tensor */
#define HVD_GROUP_MAX 4096      /* tensors in one user group */
#define HVD_RANKS_MAX 1024      /* ranks in one job */
#define HVD_ERROR_TEXT_MAX 1024 /* bytes of any error text, with its NUL */

/** X(name, value, text): every status, once. */
#define HVD_STATUS_LIST(X)                                                             \
    X(HVD_OK, 0, "success")                                                            \
    X(HVD_INPROGRESS, 1, "still in progress")                                          \
    X(HVD_EINVAL, -1, "invalid argument")                                              \
    X(HVD_ENOMEM, -2, "out of memory")                                                 \
    X(HVD_ESTATE, -3, "not initialized")                                               \
    X(HVD_EMISMATCH, -4, "ranks disagree about an operation")                          \
    X(HVD_EDUPLICATE, -5, "the same name is already in flight")                        \
    X(HVD_ETIMEDOUT, -6, "timed out")                                                  \
    X(HVD_EPEER, -7, "a peer was lost")                                                \
    X(HVD_ESHUTDOWN, -8, "shut down")                                                  \
    X(HVD_EPROTO, -9, "protocol error")                                                \
    X(HVD_EIO, -10, "input/output error")                                              \
    X(HVD_EUNSUPPORTED, -11, "not supported")                                          \
    X(HVD_EDEADLOCK, -12, "would deadlock")                                            \
    X(HVD_EFORKED, -13, "used in a forked child")                                      \
    X(HVD_EINTR, -14, "interrupted by a signal")                                       \
    X(HVD_EVERSION, -15, "version mismatch")                                           \
    X(HVD_EAUTH, -16, "authentication failed")                                         \
    X(HVD_ELIMIT, -17, "a limit was exceeded")                                         \
    X(HVD_EHANDLE, -18, "unknown or released handle")                                  \
    X(HVD_EINTERNAL, -19, "internal error")

enum hvd_status {
#define HVD_STATUS_ENUM_(name, value, text) name = (value),
    HVD_STATUS_LIST(HVD_STATUS_ENUM_)
#undef HVD_STATUS_ENUM_
};

/** Element types. bool is one byte, 0 or 1. */
enum hvd_dtype {
    HVD_DTYPE_UNSET = 0,
    HVD_UINT8 = 1,
    HVD_INT8 = 2,
    HVD_UINT16 = 3,
    HVD_INT16 = 4,
    HVD_INT32 = 5,
    HVD_INT64 = 6,
    HVD_FLOAT16 = 7,
    HVD_BFLOAT16 = 8,
    HVD_FLOAT32 = 9,
    HVD_FLOAT64 = 10,
    HVD_BOOL = 11,
    HVD_DTYPE_COUNT = 12
};

/**
 * Reductions. The numbers are Horovod's.
 * AVERAGE is the sum times 1/size before the last rounding; integers are scaled as double
 * and truncated towards zero. On bool: SUM and MAX are "or", MIN and PRODUCT are "and",
 * AVERAGE is HVD_EUNSUPPORTED. ADASUM: f16, f32, f64, a power-of-two number of ranks, the
 * global process set; else HVD_EUNSUPPORTED.
 */
enum hvd_reduce_op {
    HVD_AVERAGE = 0,
    HVD_SUM = 1,
    HVD_ADASUM = 2,
    HVD_MIN = 3,
    HVD_MAX = 4,
    HVD_PRODUCT = 5,
    HVD_REDUCE_OP_COUNT = 6
};

enum hvd_kind {
    HVD_KIND_UNSET = 0,
    HVD_ALLREDUCE = 1,
    HVD_ALLGATHER = 2,
    HVD_BROADCAST = 3,
    HVD_ALLTOALL = 4,
    HVD_REDUCESCATTER = 5,
    HVD_BARRIER = 6,
    HVD_JOIN = 7,
    HVD_KIND_COUNT = 8
};

enum hvd_device_type { HVD_CPU = 0, HVD_CUDA = 1 };

/** For hvd_tensor.device_id: the GPU that the memory lies on. Without memory, or where a
 *  driver cannot tell: the one that the rank has used, or would for its local rank. */
#define HVD_DEVICE_OF_DATA (-1)

/** What hvd_wait() waits for. DONE: the result may be read by the host. ENQUEUED: the
 *  work is queued on the device and hvd_stream_wait() orders a stream after it; on CPU
 *  tensors the same as DONE. */
enum hvd_wait_mode { HVD_WAIT_DONE = 0, HVD_WAIT_ENQUEUED = 1 };

/** How a tensor's contents become ready. NONE: they are ready now. */
enum hvd_ready_kind {
    HVD_READY_NONE = 0,
    HVD_READY_CUSTREAM = 1, /* event is recorded on this CUstream during enqueue */
    HVD_READY_CUEVENT = 2,  /* a CUevent recorded by the caller */
    HVD_READY_CUCTX = 3 /* cuCtxRecordEvent on this CUcontext; NULL: the primary one */
};

struct hvd_ready {
    int32_t kind; /* enum hvd_ready_kind */
    void *object; /* CUstream, CUevent or CUcontext */
};

/** A dense, contiguous, row-major tensor. dims are elements; ndim 0 is a scalar. */
struct hvd_tensor {
    void *data;          /* NULL allowed when it has no elements */
    const int64_t *dims; /* [ndim], copied by the callee */
    int32_t ndim;
    int32_t dtype;  /* enum hvd_dtype */
    int32_t device; /* enum hvd_device_type */
    int32_t
        device_id; /* GPU ordinal among the visible ones, or HVD_DEVICE_OF_DATA; 0 on CPU.
                    * A rank uses one GPU in a membership: that of its first GPU tensor */
};

/** Handles are (generation << 32 | slot); 0 is never a handle; stale ones fail. */
typedef int64_t hvd_handle;

/**
 * One collective. Zero the struct, set `size = sizeof(struct hvd_op)`, fill in fields:
 * fields added in later versions are then zero, which always means the default.
 */
struct hvd_op {
    uint32_t size;
    int32_t kind;      /* enum hvd_kind, not HVD_JOIN */
    int32_t reduce_op; /* enum hvd_reduce_op; allreduce, reducescatter */
    int32_t pset;      /* process set id; 0 = all ranks */
    int32_t root;      /* broadcast: *global* rank of the source */
    int32_t priority;  /* larger runs earlier among operations ready together; a hint */
    /** UTF-8, at most HVD_NAME_MAX bytes, copied. Equal on every rank. NULL or "": the
     *  k-th unnamed operation of this kind and set matches the k-th on the others; the
     *  count starts anew when a join completes. */
    const char *name;
    /** Multiplied in before / after the reduction. 0 means 1.0: scale by
     *  `scale_to_zero` is not a use case. */
    double prescale, postscale;
    struct hvd_tensor in;
    /** Result. Same dims as `in` for allreduce and broadcast; `out.data == in.data` is in
     *  place. data == NULL: libhvd owns the result (see hvd_result), or `alloc` gives it.
     *  allgather, alltoall and reducescatter ignore out.dims; with out.data set,
     *  out_capacity says how many bytes it holds and too small is HVD_EINVAL. */
    struct hvd_tensor out;
    size_t out_capacity_bytes;
    /** alltoall: rows of `in` for every member, [nsplits = set size]; NULL: even. */
    const int64_t *splits;
    int32_t nsplits;
    struct hvd_ready ready;
    /** Called once when the handle completes, on whichever thread ran it. May enqueue;
     *  waiting in it is HVD_EDEADLOCK. Never called if enqueue failed. */
    void (*done)(void *arg, hvd_handle handle, enum hvd_status status);
    /** Called when an output size becomes known (allgather, alltoall, reducescatter with
     *  out.data == NULL); returns memory of that size or NULL (HVD_ENOMEM). Must not
     *  block on peers or take an interpreter lock that a waiting thread holds. */
    void *(*alloc)(void *arg, const struct hvd_tensor *shape, size_t size_bytes);
    void *arg; /* handed to done and alloc */
};

/** NULL config = everything from the environment. Zero the struct and set size. */
struct hvd_config {
    uint32_t size;
    /** Static process sets: nsets lists; ids are given in order from 1. */
    int32_t nsets;
    const int32_t *const *set_ranks; /* [nsets][set_sizes[i]], global ranks */
    const int32_t *set_sizes;        /* [nsets] */
    /** 0: environment (HVD_START_TIMEOUT, HOROVOD_START_TIMEOUT) or 30 s. */
    int64_t start_timeout_ms;
    /** Ranks of the launcher's plan that form this job; NULL = all. Order gives rank. */
    const int32_t *ranks;
    int32_t nranks;
};

/* ---- life cycle -------------------------------------------------------------- */

/**
 * Join the job. Finds it by HVD_COORDINATOR + HVD_KEY_FILE (set by hvdrun, or by hand
 * for a standalone hvd-coordinator); without them this is a job of size 1, unless mpirun,
 * srun or torchrun has started the process as one of several and HVD_SOLO is not set.
 *
 * @param config  NULL, or caller-owned, read during the call only
 *
 * Returns  HVD_OK (also when already up), HVD_EINVAL, HVD_ETIMEDOUT with the missing
 *          ranks named, HVD_EVERSION, HVD_EAUTH, HVD_EIO, HVD_ENOMEM, HVD_EFORKED.
 * Blocks   until every rank of the job has called it, at most the start timeout.
 */
HVD_API enum hvd_status hvd_init(const struct hvd_config *config);

/**
 * Leave the job. Operations already agreed on are finished; others still pending here,
 * and those of other ranks that need this one, complete with HVD_ESHUTDOWN. libhvd calls
 * it at a normal exit (atexit). hvd_init() may follow; handles and process sets of before
 * are then stale. Returns HVD_OK also when not initialized.
 */
HVD_API enum hvd_status hvd_shutdown(void);

enum hvd_state { HVD_DOWN = 0, HVD_UP = 1, HVD_FAILED = 2, HVD_FORKED = 3 };
HVD_API enum hvd_state hvd_get_state(void);
/** Counts memberships: 1 for the first, +1 for every re-formation; 0 when down. */
HVD_API uint32_t hvd_epoch(void);

/** Facts of the running job; HVD_ESTATE (negative) before hvd_init. */
HVD_API int hvd_rank(void);
HVD_API int hvd_size(void);
HVD_API int hvd_local_rank(void);
HVD_API int hvd_local_size(void);
HVD_API int hvd_cross_rank(void);
HVD_API int hvd_cross_size(void);
/** 1 when every host has the same number of ranks, else 0; negative before hvd_init. */
HVD_API int hvd_is_homogeneous(void);

/** 1 or 0 for "shm", "tcp", "nccl", "cuda", ...: compiled in; with "enabled:" before the
 *  name: in use by the running job. "version:nccl": the number of the NCCL that the
 *  process has loaded (22809 is 2.28.9), else of the oldest that will do; loads nothing.
 *  Unknown names are 0. */
HVD_API int hvd_feature(const char *name);
HVD_API int hvd_abi_version(void);
HVD_API const char *hvd_version_string(void); /* "0.1.0", static */

/* ---- process sets ------------------------------------------------------------ */

/**
 * Create a process set. Collective over all ranks: every rank calls it with the same
 * ranks, members or not. Set 0 holds every rank and always exists.
 *
 * @param ranks   [nranks] global ranks, any order, no repeats
 * @param out_id  the set's id, equal on every rank
 *
 * Returns  HVD_EINVAL (empty, repeated or unknown rank), HVD_EMISMATCH, HVD_EDUPLICATE (a
 *          set of these ranks exists), HVD_ESTATE, HVD_EPEER, HVD_ESHUTDOWN.
 * Blocks   until every rank has called it.
 */
HVD_API enum hvd_status hvd_pset_add(const int32_t *ranks, int32_t nranks,
                                     int32_t *out_id);
/** Collective over all ranks. HVD_EINVAL: unknown set, or set 0. */
HVD_API enum hvd_status hvd_pset_remove(int32_t id);
/** Number of members / this rank's place in the set (HVD_EINVAL if not a member). */
HVD_API int hvd_pset_size(int32_t id);
HVD_API int hvd_pset_rank(int32_t id);
/** 1 or 0; negative: unknown set. */
HVD_API int hvd_pset_included(int32_t id);
/** Copies at most cap global ranks, ascending; returns how many the set has. */
HVD_API int hvd_pset_ranks(int32_t id, int32_t *out, int32_t cap);
/** Number of sets, with set 0; and their ids, as hvd_pset_ranks. */
HVD_API int hvd_pset_count(void);
HVD_API int hvd_pset_ids(int32_t *out, int32_t cap);

/* ---- asynchronous collectives -------------------------------------------------- */

/**
 * Queue one collective.
 *
 * @param op   read during the call only; tensors' memory stays caller-owned and must
 *             stay valid and untouched until the handle completes
 * @param out  new handle, caller-owned; release with hvd_release()
 *
 * Returns  HVD_OK once queued, HVD_EINVAL (what is wrong is in hvd_last_error),
 *          HVD_EDUPLICATE (an operation of this name is in flight; a completed one whose
 *          handle is not released yet does not count), HVD_ENOMEM, HVD_ESTATE,
 *          HVD_ESHUTDOWN, HVD_EUNSUPPORTED.
 *          Late failures (mismatch, lost peer) are reported by the handle.
 * Blocks   never.
 */
HVD_API enum hvd_status hvd_enqueue(const struct hvd_op *op, hvd_handle *out);

/**
 * Queue a group: nothing of it runs before every member is ready on every rank. All ops
 * have one kind and one process set.
 *
 * @param ops   [count]      @param name  of the group; NULL = unnamed
 * @param out   [count] handles, one per op, in order; written only on success
 */
HVD_API enum hvd_status hvd_enqueue_group(const struct hvd_op *ops, int32_t count,
                                          const char *name, hvd_handle *out);

/**
 * Say that this rank has no more data. It then takes part in allreduces of others with
 * zeros until all ranks have joined. Completes when all have; hvd_result_last_joined()
 * tells the rank that joined last. Collective over all ranks (set 0).
 */
HVD_API enum hvd_status hvd_enqueue_join(int32_t device_id, hvd_handle *out);

/** HVD_INPROGRESS, HVD_OK, or the error it completed with. */
HVD_API enum hvd_status hvd_poll(hvd_handle handle);

/**
 * Wait for completion; may run collectives on this thread meanwhile.
 *
 * @param timeout_ms  < 0: for ever; 0: as hvd_poll
 *
 * Returns  the handle's status; HVD_ETIMEDOUT (the handle stays valid, what is missing is
 *          in hvd_last_error); HVD_EINTR (a signal came; call again); HVD_EHANDLE;
 *          HVD_EDEADLOCK inside a done callback, when it would have to wait.
 */
HVD_API enum hvd_status hvd_wait(hvd_handle handle, enum hvd_wait_mode mode,
                                 int64_t timeout_ms);
/** Waits for all, also after a failure or HVD_EHANDLE among them; returns the first failure
 *  in order of the array. timeout_ms is for all together; HVD_ETIMEDOUT and HVD_EINTR leave
 *  every handle as it was. */
HVD_API enum hvd_status hvd_wait_all(const hvd_handle *handles, int32_t count,
                                     enum hvd_wait_mode mode, int64_t timeout_ms);

/** Text of a failed handle, at most cap bytes with the NUL; "" when it has not failed. */
HVD_API enum hvd_status hvd_handle_error(hvd_handle handle, char *buf, size_t cap);

/** Free the handle. Still in flight: it is detached, the tensors must stay valid until it
 *  would have completed (use `done` to learn when). */
HVD_API enum hvd_status hvd_release(hvd_handle handle);
/** The same for count handles, also after HVD_EHANDLE among them; returns the first failure
 *  in order of the array. */
HVD_API enum hvd_status hvd_release_all(const hvd_handle *handles, int32_t count);

/** Order `custream` after the result of an ENQUEUED handle. CPU handles: HVD_OK. */
HVD_API enum hvd_status hvd_stream_wait(hvd_handle handle, void *custream);
/** The counterpart of HVD_READY_CUCTX: order all later work of CUcontext `cuctx` after the
 *  result; blocks until DONE where the driver cannot. CPU handles: HVD_OK. */
HVD_API enum hvd_status hvd_ctx_wait(hvd_handle handle, void *cuctx);

/** Result of a completed handle (GPU tensors: already of an ENQUEUED one, after whose work
 *  hvd_stream_wait() orders a stream): shape, and pointer valid until hvd_release (or the
 *  caller's own buffer). dims points into the handle. */
HVD_API enum hvd_status hvd_result(hvd_handle handle, struct hvd_tensor *out);
/** Take the library-owned result buffer, 64-byte aligned; free it with hvd_buffer_free(),
 *  from any thread, at any time (after release, shutdown, in atexit). A result without
 *  elements is HVD_OK and may be NULL. HVD_EINVAL when it lies in the caller's memory. */
HVD_API enum hvd_status hvd_result_take(hvd_handle handle, void **out);
HVD_API void hvd_buffer_free(void *data);
/** The same, as soon as `last_use` is reached, without waiting for it: for GPU results that
 *  queued work still reads (kind CUSTREAM, CUEVENT or CUCTX; blocks where hvd_enqueue would).
 *  Up to 256 MB of such memory stay with libhvd for the next results. CPU memory goes at
 *  once. Any thread. */
HVD_API void hvd_buffer_free_after(void *data, const struct hvd_ready *last_use);
/** alltoall: rows received from every member, [set size]; returns how many there are. */
HVD_API int hvd_result_splits(hvd_handle handle, int64_t *out, int32_t cap);
/** join: the global rank that joined last. */
HVD_API int hvd_result_last_joined(hvd_handle handle);

/** A descriptor that polls readable while completed handles wait in hvd_next_done().
 *  Owned by libhvd, -1 with HVD_ESTATE when down; off (no cost) before the first call. */
HVD_API int hvd_eventfd(void);
/** Takes up to cap handles that completed since and are not released; returns their
 *  number, 0 if none. */
HVD_API int hvd_next_done(hvd_handle *out, int32_t cap);

/* ---- blocking forms: enqueue, wait, release ---------------------------------------- */

/** Sum (or op) of `count` elements over all ranks of set 0; in == out is in place. */
HVD_API enum hvd_status hvd_allreduce(const void *in, void *out, int64_t count,
                                      enum hvd_dtype dtype, enum hvd_reduce_op op,
                                      const char *name);
/** root's `count` elements to every rank, in place. */
HVD_API enum hvd_status hvd_broadcast(void *buf, int64_t count, enum hvd_dtype dtype,
                                      int32_t root, const char *name);
/** Every rank's `count` elements after one another in rank order; counts may differ.
 *  `out` holds out_count elements, which must be the sum of all counts. */
HVD_API enum hvd_status hvd_allgather(const void *in, int64_t count, void *out,
                                      int64_t out_count, enum hvd_dtype dtype,
                                      const char *name);
HVD_API enum hvd_status hvd_barrier(int32_t pset);
/** Blocking join; *out_last_rank (may be NULL) as hvd_result_last_joined. */
HVD_API enum hvd_status hvd_join(int32_t *out_last_rank);

/* ---- memory, errors, observability ------------------------------------------------- */

/** Memory that collectives can share between ranks of a host without a copy: an allreduce
 *  of more than 64 KiB reads tensors in it, whole or in part, where they lie, and stores
 *  results there; they are the same bit for bit. 64-byte aligned, zeroed, valid across
 *  shutdown and init; freed by hvd_free (while an operation uses it: at that operation's
 *  end). After a failed operation the pages of its tensors are others with the same
 *  contents: what was registered with a device (cudaHostRegister) has to be anew. NULL: no
 *  memory. */
HVD_API void *hvd_alloc(size_t size_bytes);
HVD_API void hvd_free(void *data);

/** What GPU tensors would use, in words: driver, GPUs, NCCL and where it was found, or what
 *  is missing; at most cap bytes with the NUL. Loads driver and NCCL: not for a program
 *  before its framework has. Works without hvd_init. */
HVD_API enum hvd_status hvd_gpu_info(char *buf, size_t cap);

HVD_API const char *hvd_last_error(void); /* this thread's, "" if none; never NULL */
HVD_API const char *hvd_strerror(enum hvd_status status);

/** Elements' size in bytes; 0 for an unknown dtype. */
HVD_API size_t hvd_dtype_size(enum hvd_dtype dtype);

/** Write a Chrome trace. Rank 0's path counts; the file holds all ranks. HVD_EINVAL when
 *  one is being written to another path or this is no regular file, HVD_EIO when it cannot
 *  be opened; same path again is HVD_OK, and so is stopping where nothing is written. */
HVD_API enum hvd_status hvd_timeline_start(const char *path, int32_t mark_cycles);
HVD_API enum hvd_status hvd_timeline_stop(void);

/** Counters since hvd_init. Set size before the call. */
struct hvd_stats {
    uint32_t size;
    uint64_t ops_enqueued, ops_completed, ops_failed;
    uint64_t groups_run;    /* sealed (fused) groups executed */
    uint64_t bytes_reduced; /* payload of allreduce and reducescatter */
    uint64_t cache_hits;    /* submissions that needed no coordinator */
    uint64_t cache_misses;  /* submissions announced to the coordinator */
    uint64_t cache_evictions;
};
HVD_API enum hvd_status hvd_get_stats(struct hvd_stats *out);

#ifdef __cplusplus
}
#endif
#endif /* HVD_HVD_H */
