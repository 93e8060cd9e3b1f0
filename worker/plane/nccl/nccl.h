/**
 * The plane of GPU tensors: NCCL, or the host where NCCL cannot (two ranks on one GPU,
 * Adasum, no memory or driver for the kernels). One object per membership and rank, one
 * GPU, one stream; groups are launched in the total order, so all communicators see one
 * order on every rank. It stands on the CPU plane, over which ranks agree (who has which
 * GPU, NCCL's id, sizes of gathered results) before anything is launched.
 */
#ifndef HVI_PLANE_NCCL_NCCL_H
#define HVI_PLANE_NCCL_NCCL_H

#include "worker/plane/nccl/device.h"
#include "worker/plane/plane.h"

struct hvi_nccl_setup {
    int device_id;
    int rank, size;        /* global */
    const char *host;      /* copied */
    struct hvi_plane *cpu; /* must outlive this plane; used by whoever runs groups */
    /** Sets that every rank has known since it joined (hvd_config): their communicators
     *  are split off the one of all ranks. [nsets], may be NULL; must stay valid. */
    const int32_t *const *set_ranks;
    const int32_t *set_sizes;
    int32_t nsets;
    size_t
        buffer_bytes;   /* of the fusion buffer; 0: as in real jobs (tests take less) */
    int64_t timeout_ms; /* of a launch; 0: HVD_NCCL_TIMEOUT_SECONDS */
    int64_t abort_ms;   /* what an abort may take; 0: HVD_NCCL_ABORT_SECONDS */
    /** Called once, from any thread, when this rank finds the plane broken (not for
     *  abort). */
    void (*broken)(void *arg, enum hvd_status status, const char *text);
    void *arg;
    /** An abort has not come back: all that was queued has been completed with its failure
     *  a moment ago, but this process never gets its GPU back. Called at most once, from a
     *  thread of the plane, maybe after free(); need not return. NULL: nobody is told. */
    void (*stuck)(const char *text);
};

/**
 * Starts the driver, makes stream, buffer and threads. NCCL itself is first needed by a
 * group. HVD_EUNSUPPORTED, HVD_EINVAL (no such GPU), HVD_ENOMEM, HVD_EIO.
 *
 * The plane's progress() also returns HVD_EUNSUPPORTED, HVD_EVERSION, HVD_EINVAL and
 * HVD_ENOMEM for a group that failed alike on every member; the plane is then still good.
 * free() waits for what is queued, at most a few seconds, and leaves behind what hangs.
 */
enum hvd_status hvi_nccl_new(const struct hvi_nccl_setup *setup, struct hvi_plane **out,
                             struct hvi_err *err);

struct hvi_device *hvi_nccl_device(const struct hvi_plane *p);

#endif
