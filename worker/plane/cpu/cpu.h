/**
 * The two CPU planes. shm: all ranks of one host map one segment. tcp: every rank is
 * its own host; a full mesh of authenticated connections. Same results bit for bit only
 * within a plane; see the fold in DESIGN.md section 4.
 */
#ifndef HVI_PLANE_CPU_CPU_H
#define HVI_PLANE_CPU_CPU_H

#include "worker/plane/plane.h"

/* ---- shared memory */

#define HVI_SHM_MAX_RANKS 256
#define HVI_SHM_PARTS 64 /* hvi_group.nparts */

/** Bytes of the plane's part of the segment for nranks ranks. slot_bytes: staging slot,
 *  a power of two, 256 KiB to 1 MiB (smaller allowed in tests); nslots per rank >= 3.
 */
size_t hvi_shm_size(int nranks, size_t slot_bytes, int nslots);
/** Once per segment, before anyone attaches: lays out zeroed memory of that size. */
void hvi_shm_format(void *mem, int nranks, size_t slot_bytes, int nslots);

/** Wakes and sleeps, shared by the plane and the host board, one per segment. A rank
 *  sleeps only on its own doorbell word; whoever changes what others may wait for calls
 *  hvi_bell_ring for them. Lives in the segment, 64-byte aligned. */
struct hvi_bells {
    _Alignas(64) _Atomic uint64_t sleepers[HVI_SHM_MAX_RANKS / 64]; /* bit = asleep */
    struct {
        _Alignas(64) _Atomic uint32_t word; /* futex; grows */
    } bell[HVI_SHM_MAX_RANKS];
};
_Static_assert(sizeof(struct hvi_bells) == 64 * (1 + HVI_SHM_MAX_RANKS),
               "bells layout");

/** Wake local rank r if it sleeps. The change must be stored before (the call fences). */
void hvi_bell_ring(struct hvi_bells *b, int r);
/** Wake all set bits of mask[4] that sleep. */
void hvi_bell_ring_mask(struct hvi_bells *b, const uint64_t *mask);
/** Wake r whether or not it says it sleeps (abort, new work of another thread). */
void hvi_bell_force(struct hvi_bells *b, int r);
/**
 * Sleep as local rank r until somebody rings, ready(arg) is true, or timeout_ms (< 0:
 * for ever). ready is asked again after the sleeper bit is set. spin_us: spin (yielding
 * when `yield`) that long before sleeping. One thread of the rank at a time. Returns
 * true when a signal ended the sleep.
 */
bool hvi_bell_sleep(struct hvi_bells *b, int r, bool (*ready)(void *arg), void *arg,
                    int spin_us, bool yield, int timeout_ms);

/**
 * Attach as local rank `local` of nlocal; ranks[nlocal] gives the global rank of every
 * local one, ascending. mem was formatted; bells may be shared with the board. Copies
 * ranks; mem and bells stay the caller's and must outlive the plane.
 */
enum hvd_status hvi_shm_attach(void *mem, struct hvi_bells *bells, int local,
                               int nlocal, const int32_t *ranks, struct hvi_plane **out,
                               struct hvi_err *err);

/** The running group can go on, or was stopped: what its wait waits for. */
bool hvi_shm_ready(void *plane);

/* ---- tcp */

/** Takes over fds[size] (fds[rank] = -1): connected stream sockets to every other rank
 * of the job, already authenticated, made non-blocking here. Closed by free. On error
 * the fds stay the caller's. */
enum hvd_status hvi_tcp_new(int rank, int size, const int *fds, struct hvi_plane **out,
                            struct hvi_err *err);
/** A peer that owes an answer for limit_ms (its kernel acknowledges nothing) breaks the
 *  running group with HVD_EPEER; one that is stopped or busy does not. Without a call
 *  there is no limit. Before the first group. */
void hvi_tcp_watch(struct hvi_plane *p, int limit_ms);
/** An allreduce of at least nmembers members, with at least member_bytes of payload for
 *  each of them, goes along a chain of its members (tcp_chain.c); the result is the same,
 *  bit by bit. Without a call none does. Equal on all ranks, before the first group. */
void hvi_tcp_use_chain(struct hvi_plane *p, int32_t nmembers, int64_t member_bytes);
/** All ranks run on one host: keeps less on its way at a time. Equal on all ranks, before
 *  the first group. */
void hvi_tcp_one_host(struct hvi_plane *p);

/* An allreduce or a broadcast whose input comes bit by bit, and whose result is used as
 * it comes. Elements of the group's tensors, one tensor after another. */

/** Right after start, then as it grows: so many elements of the input are there. Without
 *  a call all are. */
void hvi_tcp_feed(struct hvi_plane *p, int64_t elems);
/** So many elements of the result are there. Not before start, nor after the end. */
int64_t hvi_tcp_done(struct hvi_plane *p);
/** Of a running allgather or alltoall: all outputs have their memory. */
bool hvi_tcp_placed(struct hvi_plane *p);
/** An allreduce of so many bytes waits for so many more bytes of input, at most, before
 *  a byte of its result is there. Grows with total_bytes. */
int64_t hvi_tcp_cut_bytes(struct hvi_plane *p, int32_t nmembers, int64_t total_bytes);
/** As ops->wait, and returns when also(arg) is true. It is asked again at least every
 *  millisecond; nobody has to wake this rank for it. */
bool hvi_tcp_wait_with(struct hvi_plane *p, int timeout_ms, bool (*also)(void *arg),
                       void *arg);

#endif
