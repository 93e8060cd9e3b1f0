/**
 * Data planes: one table of operations per backend. A plane moves and reduces payload
 * for one sealed group at a time, in the total order. Objects, no globals: P ranks can
 * be P threads of a test.
 */
#ifndef HVI_PLANE_PLANE_H
#define HVI_PLANE_PLANE_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/clock.h"
#include "proto/base/err.h"

struct hvi_shared; /* worker/plane/shared.h */
struct hvi_event;  /* worker/plane/nccl/device.h */

/** One tensor of a sealed group on this rank. */
struct hvi_piece {
    const void *in; /* NULL: this rank has joined: take part with the neutral element */
    void *out;      /* NULL with in == NULL; allreduce, broadcast: may equal in, else it
                     * must not overlap it */
    int64_t count;  /* elements of `in` (broadcast, allreduce: equal on every rank) */
    int64_t row;    /* elements of one row (product of dims[1..]); 1 for vectors */
    /* gather-like kinds: */
    const int64_t *splits; /* alltoall: rows for every member, [nmembers]; NULL: even */
    const int64_t *keep;   /* reducescatter: rows that every member keeps, [nmembers];
                            * NULL: as even as may be */
    int64_t *rows;         /* [nmembers], plane writes rows received from every member:
                            * allgather, alltoall. NULL for other kinds */
    void *cookie;          /* handed to hvi_group.alloc */
    /* the block that holds `in`, `out` when peers may read them there; else NULL */
    struct hvi_shared *in_mem, *out_mem;
    /* device tensors: */
    struct hvi_event *ready; /* its contents are there after it; NULL: they are now */
    int64_t nrows;           /* rows of `in` where row == 0 (they have no elements) */
};

/** A device plane uses the numbers up to the next group's for exchanges of its own on the
 *  CPU plane. */
#define HVI_SEQ_STEP 8u

/** One sealed group: pieces of one kind, op, dtype and process set. */
struct hvi_group {
    uint64_t seq; /* place in the order; grows by >= HVI_SEQ_STEP between calls */
    uint32_t part, nparts; /* shm: of one seq, groups of the same members that follow
                            * one another, at most HVI_SHM_PARTS; 0, 0: it is alone */
    uint32_t kind;         /* enum hvd_kind: allreduce, allgather, broadcast, alltoall,
                         * reducescatter, barrier */
    uint32_t reduce_op;    /* enum hvd_reduce_op */
    uint32_t dtype;        /* enum hvd_dtype */
    double prescale, postscale; /* 1/size of AVERAGE not yet in postscale */
    int32_t root;               /* index in members, broadcast */
    int32_t nmembers;
    const int32_t *members; /* [nmembers] global ranks, ascending; this rank is one */
    int32_t me;             /* this rank's index in members */
    int32_t npieces;
    struct hvi_piece *pieces; /* [npieces] */
    /** Gives the output memory of piece `cookie` once its size is known (rows[] is
     *  filled). Called at most once a piece, only where out == NULL and in != NULL (or
     * the kind gathers). NULL return: the group fails with HVD_ENOMEM on this rank only
     * after taking part to the end (payload dropped), so that peers do not hang. */
    void *(*alloc)(void *cookie, const int64_t *rows, int32_t nmembers,
                   int64_t total_rows, size_t size_bytes);
    /**
     * Device tensors. done == NULL: progress is over when the outputs are written. Else it
     * is over (HVD_OK) when the work is queued on the device: `queued` was called with the
     * event that comes after it (borrowed: take a reference), and `done` is called once,
     * from another thread, when the outputs are written or the plane has failed.
     */
    void (*queued)(void *arg, struct hvi_event *event);
    void (*done)(void *arg, enum hvd_status status, const char *text);
    void *arg;
};

struct hvi_plane; /* a backend's object begins with `const struct hvi_plane_ops *ops` */

struct hvi_plane_ops {
    const char *name; /* "shm", "tcp", "nccl" */
    /** Begin a group. HVD_EUNSUPPORTED, HVD_EINVAL at once and equally on every member
     *  (nothing was sent). The group stays borrowed until progress says it is over. */
    enum hvd_status (*start)(struct hvi_plane *p, const struct hvi_group *group,
                             struct hvi_err *err);
    /** Never blocks. HVD_OK: complete, all outputs written. HVD_INPROGRESS: call
     * `wait`, then again. Error: the plane is broken for good (abort it). */
    enum hvd_status (*progress)(struct hvi_plane *p, struct hvi_err *err);
    /** From any thread, at any time: the running group and all later ones fail with
     *  status. Wakes a thread that waits. Afterwards peers take nothing for valid that
     *  they read in this rank's tensors: it may change them. */
    void (*abort)(struct hvi_plane *p, enum hvd_status status);
    /** After abort, while no other call runs: peers that still work on the group cannot
     *  change this rank's tensors any more. NULL: they never do. */
    void (*take_back)(struct hvi_plane *p);
    /** Wait (spin, yield, sleep) until progress may have something to do, at most
     *  timeout_ms (< 0: for ever); may return early; returns on abort. true: a signal
     * came (EINTR). */
    bool (*wait)(struct hvi_plane *p, int timeout_ms);
    void (*free)(struct hvi_plane *p); /* accepts NULL */
};

/** Time that copying payload into and out of staging memory took, summed up. */
struct hvi_copy_times {
    int64_t in_ns, out_ns;
};

struct hvi_plane {
    const struct hvi_plane_ops *ops;
    int rank; /* global */
    struct hvi_copy_times
        *copies; /* counted here from `start` on; NULL: not measured */
};

/** Around a copy in or out: begin, copy, then in or out with what begin returned. */
static inline int64_t hvi_copy_begin(const struct hvi_plane *p)
{
    return p->copies == NULL ? 0 : hvi_now_ns();
}
static inline void hvi_copy_in(const struct hvi_plane *p, int64_t begun_ns)
{
    if (p->copies != NULL)
        p->copies->in_ns += hvi_now_ns() - begun_ns;
}
static inline void hvi_copy_out(const struct hvi_plane *p, int64_t begun_ns)
{
    if (p->copies != NULL)
        p->copies->out_ns += hvi_now_ns() - begun_ns;
}

/** start + progress until over: what tests use. The engine goes step by step. */
enum hvd_status hvi_plane_run(struct hvi_plane *p, const struct hvi_group *group,
                              struct hvi_err *err);

#endif
