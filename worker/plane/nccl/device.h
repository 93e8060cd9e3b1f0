/**
 * One GPU of this process: its primary context (the one frameworks use), events, memory
 * that libhvd owns, the kernel. Devices live as long as the process, because handles and
 * results outlive a membership.
 */
#ifndef HVI_PLANE_NCCL_DEVICE_H
#define HVI_PLANE_NCCL_DEVICE_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "worker/plane/nccl/api.h"

struct hvi_device {
    struct hvi_device *next;
    const struct hvi_cuda *cu;
    int id; /* ordinal among the visible GPUs */
    struct CUctx_st *context;
    struct CUstream_st *import; /* turns a caller's event into one of ours */
    struct CUfunc_st *pack;     /* NULL: why_no_pack says why */
    char name[64], bus[20];
    uint8_t uuid[16];
    char why_no_pack[160];
    pthread_mutex_t lock; /* free_events */
    struct hvi_event *free_events;
};

/** A recorded event, counted. */
struct hvi_event {
    _Atomic int refs;
    struct hvi_device *dev;
    struct CUevent_st *event;
    struct hvi_event *next; /* in the device's pool */
};

/** The visible GPU of that ordinal; the first call starts driver and context.
 *  HVD_EUNSUPPORTED (no driver), HVD_EINVAL (no such GPU), HVD_EIO, HVD_ENOMEM. */
enum hvd_status hvi_device_get(int id, struct hvi_device **out, struct hvi_err *err);

/** The GPU of a rank that has named none: by local rank among those that this process may
 *  see, which is one where the launcher has chosen it. Errors of hvi_cuda_get. */
enum hvd_status hvi_device_of_rank(int local_rank, int *out, struct hvi_err *err);

/** The GPU that memory lies on, if the driver says: *known false else. Errors of
 *  hvi_cuda_get. */
enum hvd_status hvi_device_of_data(const void *data, bool *known, int *out,
                                   struct hvi_err *err);

/**
 * Make the context current on this thread, and put back what was. Between the two the
 * thread may call what a capture into a CUDA graph, anywhere in the process, forbids
 * others (memory, asking events): our calls touch no captured stream, and one that is
 * refused would spoil the program's graph. Pairs nest.
 */
void hvi_device_enter(struct hvi_device *dev);
void hvi_device_leave(struct hvi_device *dev);

/** HVD_OK for success; else "what: text of the driver (cuda:1, NAME)"; HVD_ENOMEM when the
 *  GPU has no memory left, HVD_EIO. */
enum hvd_status hvi_device_check(struct hvi_device *dev, int cu_result,
                                 const char *what, struct hvi_err *err);

/** An event of the pool with one reference, recorded on stream. Context current. */
enum hvd_status hvi_event_record(struct hvi_device *dev, struct CUstream_st *stream,
                                 struct hvi_event **out, struct hvi_err *err);
void hvi_event_ref(struct hvi_event *e);
void hvi_event_unref(struct hvi_event *e); /* NULL allowed */

/**
 * An event after which a caller's tensor is ready; *out NULL: it is ready now. Never
 * blocks but for HVD_READY_CUCTX with a driver that cannot record a context.
 * HVD_EUNSUPPORTED: the stream is being captured into a graph.
 */
enum hvd_status hvi_device_ready(struct hvi_device *dev, const struct hvd_ready *ready,
                                 struct hvi_event **out, struct hvi_err *err);

/** Is that memory which this GPU's kernels may touch: its own, managed, or of the host and
 *  registered with CUDA? HVD_EINVAL: it is not, or lies on another GPU; a kernel would
 *  leave the context broken for good. A driver too old to tell: HVD_OK. */
enum hvd_status hvi_device_owns(struct hvi_device *dev, const void *data,
                                struct hvi_err *err);

/** Order stream or context after e. */
enum hvd_status hvi_event_stream_wait(struct hvi_event *e, void *stream,
                                      struct hvi_err *err);
enum hvd_status hvi_event_ctx_wait(struct hvi_event *e, void *context,
                                   struct hvi_err *err);

/** Device memory that hvi_device_free takes back by its address alone, from any thread.
 *  NULL: none left, err says how much was asked. */
void *hvi_device_alloc(struct hvi_device *dev, size_t size_bytes, struct hvi_err *err);
/** false: not one of ours. The driver waits for work that uses it. */
bool hvi_device_free(void *data);
/** The same for memory that work may still use which is over at last_use: the call does not
 *  wait for it, but where a driver cannot record a context. */
bool hvi_device_free_after(void *data, const struct hvd_ready *last_use);

/** "driver 12.4, NCCL 2.28.9, 8 GPUs: NVIDIA H100 ..." for people; what is missing is
 *  said. Loads both libraries. */
void hvi_device_report(char *out, size_t cap);

#endif
