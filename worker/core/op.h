/**
 * Operations of this rank: one struct hvi_op per handle, and the table that turns
 * handles into them. The table belongs to the process, not to the membership: a handle
 * that completed with HVD_ESHUTDOWN can still be asked after hvd_shutdown().
 */
#ifndef HVI_CORE_OP_H
#define HVI_CORE_OP_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "proto/base/err.h"

struct hvi_event; /* worker/plane/nccl/device.h */

struct hvi_op {
    _Atomic int refs; /* the handle's, and the flight's */
    _Atomic uint32_t
        status;          /* enum hvd_status as bits; futex; INPROGRESS until complete */
    _Atomic int waiters; /* threads asleep on status */
    int32_t device, device_id; /* enum hvd_device_type, GPU ordinal */
    struct hvi_event *ready;   /* GPU: after it `in` has its contents; or NULL */
    struct hvi_event *queued; /* GPU: after it the result is there; set before QUEUED */
    hvd_handle handle;
    uint32_t kind, dtype;
    int32_t pset, ndim, out_ndim, nmembers, last_joined;
    const void *in;
    void *out;      /* where the result goes; NULL until known */
    void *user_out; /* the caller's buffer for results of unknown size */
    void *owned;    /* library-owned result, or NULL */
    struct hvi_region *in_region, *out_region; /* of hvd_alloc; held until complete */
    size_t out_capacity_bytes;
    int64_t count, row;      /* elements of in; of one row */
    int64_t *splits, *rows;  /* [nmembers], owned or NULL */
    void *ghost, *ghost_out; /* rows without elements: one element stands for each */
    enum hvd_status late;    /* failure found while running (no memory, too small) */
    char *error;             /* text of a failure, owned or NULL; set before status */
    void (*done)(void *, hvd_handle, enum hvd_status);
    void *(*alloc)(void *, const struct hvd_tensor *, size_t);
    void *arg;
    int64_t dims[HVD_NDIM_MAX], out_dims[HVD_NDIM_MAX]; /* [ndim], [out_ndim]; last */
};

/** A status inside only: the work is queued on the device, hvd_stream_wait() orders
 *  streams after it. Everyone else sees HVD_INPROGRESS. */
#define HVI_OP_QUEUED 2u

/** One reference, for the caller. NULL: out of memory. Behind it lie extra_bytes for the
 *  caller's use, not cleared, that live as long. */
struct hvi_op *hvi_op_new(size_t extra_bytes);
void hvi_op_ref(struct hvi_op *op);
void hvi_op_unref(struct hvi_op *op); /* NULL allowed */
static inline enum hvd_status hvi_op_status(const struct hvi_op *op)
{
    uint32_t status = atomic_load_explicit(&op->status, memory_order_acquire);

    return status == HVI_OP_QUEUED ? HVD_INPROGRESS : (enum hvd_status)(int32_t)status;
}
/** true: waiting in this mode is over. */
static inline bool hvi_op_settled(const struct hvi_op *op, enum hvd_wait_mode mode)
{
    uint32_t status = atomic_load_explicit(&op->status, memory_order_acquire);

    return status != (uint32_t)HVD_INPROGRESS &&
           (status != HVI_OP_QUEUED || mode == HVD_WAIT_ENQUEUED);
}
/** The work of op is queued: waiters in mode ENQUEUED go on. Not after complete. */
void hvi_op_set_queued(struct hvi_op *op);

/** 64-byte aligned; released with hvi_result_free(). NULL: no memory. */
void *hvi_result_alloc(size_t size_bytes);
void hvi_result_free(void *data);

/**
 * Complete: text (may be NULL) is copied, waiters wake, `done` is called, the done
 * queue gets the handle. Exactly once per op. No lock may be held.
 */
void hvi_op_complete(struct hvi_op *op, enum hvd_status status, const char *text);
/** true on a thread that is inside a done callback. */
bool hvi_op_in_callback(void);

/** The handle table. add takes a reference of its own. HVD_ENOMEM, HVD_ELIMIT. */
enum hvd_status hvi_handle_add(struct hvi_op *op);
/** A new reference, or NULL for a stale or unknown handle. */
struct hvi_op *hvi_handle_get(hvd_handle handle);
/** How many of the first handles have completed well. */
int32_t hvi_handles_done(const hvd_handle *handles, int32_t count);
/** Drops the table's reference. HVD_EHANDLE. */
enum hvd_status hvi_handle_drop(hvd_handle handle);

/** The done queue behind hvd_eventfd(). */
int hvi_done_fd(void);
int hvi_done_take(hvd_handle *out, int cap);
/** After fork in the child: forget locks and descriptors that the parent held. */
void hvi_op_forked(void);

#endif
