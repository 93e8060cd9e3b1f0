/**
 * The host board: readiness of one host's ranks, in shared memory (DESIGN.md section 3,
 * mechanism 2). Each rank publishes ids on a ring of its own; whoever holds the
 * try-lock counts arrivals and seals complete operations, fused, into the order log.
 * Each rank has a copy of the log that holds the groups it is a member of, in the one
 * total order (seq grows). Pure over a memory block: no system calls, no clock;
 * wake-ups are the caller's (hvi_board_poll tells whom). Ranks here are *local* ranks,
 * 0..nlocal-1.
 *
 * With several hosts the coordinator orders: a *forwarding* board seals nothing.
 * What is complete here is taken (hvi_board_take) by one rank, which tells the
 * coordinator; what that has ordered comes back by hvi_board_order.
 */
#ifndef HVI_BOARD_BOARD_H
#define HVI_BOARD_BOARD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

#define HVI_BOARD_MAX_RANKS 256
#define HVI_BOARD_MASK_WORDS (HVI_BOARD_MAX_RANKS / 64)
#define HVI_BOARD_MAX_IDS 4096
#define HVI_BOARD_GROUP_MAX_IDS 1024 /* ids in one sealed group */

struct hvi_board; /* lives in the segment */

struct hvi_board_mask {
    uint64_t w[HVI_BOARD_MASK_WORDS];
};

static inline void hvi_board_mask_set(struct hvi_board_mask *m, int r)
{
    m->w[r / 64] |= (uint64_t)1 << (r % 64);
}
static inline bool hvi_board_mask_has(const struct hvi_board_mask *m, int r)
{
    return (m->w[r / 64] >> (r % 64) & 1) != 0;
}

static inline bool hvi_board_mask_any(const struct hvi_board_mask *m)
{
    uint64_t any = 0;

    for (int i = 0; i < HVI_BOARD_MASK_WORDS; i++)
        any |= m->w[i];
    return any != 0;
}

/** What the sealer must know of an id. Equal on every rank that defines it. */
struct hvi_board_meta {
    struct hvi_board_mask members; /* local ranks of the process set */
    int64_t bytes;                 /* payload, for the fusion threshold */
    double prescale, postscale;
    uint32_t kind, reduce_op, dtype, pset, device;
    int32_t root, priority;
    bool fuses; /* false: always a group of its own */
};

/** One sealed group as read from the log. */
struct hvi_board_group {
    uint64_t seq;    /* place in the total order; grows */
    bool joined_bad; /* a member had joined and the kind is not allreduce: fails */
    uint32_t nids;
    struct hvi_board_id {
        uint32_t id, generation;
    } ids[HVI_BOARD_GROUP_MAX_IDS];
};

size_t hvi_board_size(int nlocal);
/** Once, over zeroed memory, 64-byte aligned. fusion_bytes: threshold of a fused group.
 */
void hvi_board_format(void *mem, int nlocal, uint64_t fusion_bytes);
/** Right after it: this is the board of one of several hosts. */
void hvi_board_set_forwarding(void *mem);
/** NULL when mem was not formatted by this version for nlocal ranks. */
struct hvi_board *hvi_board_attach(void *mem, int nlocal);

/* hvi_board_define, join_done, evict, withdraw, leave and missing hold the lock for a
 * moment and may count arrivals: a poll of another rank that failed meanwhile relies on
 * the caller to call hvi_board_poll after them. */

/** Tell the board about an id; every rank does before it publishes it. A generation
 *  already known, or older, changes nothing. Takes the lock, spinning. */
void hvi_board_define(struct hvi_board *b, uint32_t id, uint32_t generation,
                      const struct hvi_board_meta *meta);
/** Rank r has this operation ready. One thread of the rank at a time. */
void hvi_board_publish(struct hvi_board *b, int r, uint32_t id, uint32_t generation);
/** Rank r has joined: counts as arrived for allreduce. generation: that of the last
 *  hvi_board_join_done, 0 at first. */
void hvi_board_join(struct hvi_board *b, int r, uint32_t generation);
/** All had joined: forget it. The first rank that learns of it (generation grows) acts.
 */
void hvi_board_join_done(struct hvi_board *b, uint32_t generation);

/**
 * Count and seal what can be, unless another rank is at it (it will see ours too). What
 * is complete waits while a member has a group to read, and is sealed as one then.
 *
 * @param wake  set: local ranks whose log has grown; empty when nothing was sealed
 * Returns true when something was sealed by this call; on a forwarding board when
 *         something is complete that nobody has seen to: the caller calls
 *         hvi_board_take, soon.
 */
bool hvi_board_poll(struct hvi_board *b, struct hvi_board_mask *wake);

/** Complete on this host, as one rank tells the coordinator. */
struct hvi_board_ready {
    uint32_t id, generation;
    bool joined; /* a member had joined without it */
};

/** Forwarding board: takes what is complete here, each id once. *more: out was too
 *  small, take again. Returns how many, at most cap. */
uint32_t hvi_board_take(struct hvi_board *b, struct hvi_board_ready *out, uint32_t cap,
                        bool *more);

/**
 * Forwarding board: the next group of the coordinator's order, to the logs of the
 * members here. Each rank that calls it has every group that concerns this host, with
 * seq growing, and has defined the ids; what another one has brought before is left out.
 *
 * @param bad   it fails: a member had joined and the kind is not allreduce
 * @param wake  members here are added to it
 * Returns false when a log has no room: later again.
 */
bool hvi_board_order(struct hvi_board *b, uint64_t seq, bool bad, const uint32_t *ids,
                     uint32_t nids, struct hvi_board_mask *wake);
/** All groups below this seq that concern this host are in the logs. */
uint64_t hvi_board_ordered(const struct hvi_board *b);

/** Rank r's next unread group, or false. One thread of the rank at a time. */
bool hvi_board_read(struct hvi_board *b, int r, struct hvi_board_group *out);
/** Cheap: is there an unread group for r? */
bool hvi_board_unread(const struct hvi_board *b, int r);

/** Something complete waits for readers: a rank that has read on calls hvi_board_poll. */
bool hvi_board_backlog(const struct hvi_board *b);

/** Id goes out of use: nobody seals it in this generation any more.
 *  Returns true when r had published it and it was not sealed: r announces again. */
bool hvi_board_evict(struct hvi_board *b, int r, uint32_t id, uint32_t generation);
/** Take back r's publication. true: it was waiting and is withdrawn; false: it is
 * sealed (and in the log) or was never published. */
bool hvi_board_withdraw(struct hvi_board *b, int r, uint32_t id);
/** Rank r leaves: its publications that are not sealed are withdrawn, nothing that
 * needs it is sealed any more. What was sealed stays in the log, for r too. */
void hvi_board_leave(struct hvi_board *b, int r);

/** Members that have not published id (nor joined), for stall reports. false when r's
 * own publication of id is not waiting. */
bool hvi_board_missing(struct hvi_board *b, int r, uint32_t id, uint32_t generation,
                       struct hvi_board_mask *out);

#endif
