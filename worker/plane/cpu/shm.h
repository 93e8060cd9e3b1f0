/**
 * Inside the shared-memory plane: the segment's layout, the words ranks tell each other
 * progress with, and the running group's state. Only shm*.c include this.
 *
 * Words. Every step of every group has a *ticket*, seq << 24 | first + step + 1, so
 * tickets grow over all groups and process sets, and zeroed memory is before all of them.
 * first is 0, but for the later ones of several groups of one seq: part * 2^24 / nparts.
 * A word is written by its owner alone, only ever upwards; whoever waits for a ticket
 * waits for >=. filled[slot]  the owner's slot holds what it stages for the step
 *   reduced       the owner has folded its slice of the step into its slot
 *   consumed      the owner needs nobody's slot of the step any more
 * Widths: 2^24 - 1 steps of at least 4 KiB are 64 GiB a rank (4 TiB with 256 KiB
 * slots); 2^40 groups are 12 days at a million groups a second. Both are checked at the
 * start.
 *
 * Slots. Step k of a group uses slot (seq + part + k) % nslots of every member, known to
 * all without asking. Before a rank fills a slot again it waits until every reader of its
 * last use has consumed that use's ticket; who that was it keeps for itself (struct
 * hvi_shm_use). There is no other back pressure and no barrier per step.
 */
#ifndef HVI_PLANE_CPU_SHM_H
#define HVI_PLANE_CPU_SHM_H

#include <stdatomic.h>
#include <stddef.h>

#include "worker/plane/cpu/cpu.h"
#include "worker/plane/cpu/group.h"
#include "worker/plane/cpu/spin.h"
#include "worker/plane/cpu/stores.h"
#include "worker/plane/sched/chunk.h"

enum {
    HVI_SHM_MIN_SLOT_BYTES = 4096,
    HVI_SHM_INLINE_BYTES = 48, /* payload beside its ticket, in one cache line */
    HVI_SHM_STEP_BITS = 24,
    HVI_SHM_MASK_WORDS = HVI_SHM_MAX_RANKS / 64
};
#define HVI_SHM_SMALL_BYTES                                                            \
    (64 *                                                                              \
     1024) /* of all members: everyone folds everything                           \
                 */
#define HVI_SHM_MIN_CHUNK_BYTES (32 * 1024)

struct hvi_shm_head {
    uint64_t magic;
    uint32_t nranks, nslots;
    uint64_t slot_bytes;
    uint8_t pad[40];
};
_Static_assert(sizeof(struct hvi_shm_head) == 64, "shm head layout");

/** A word on its own cache line. Written by the owner (release), read by all (acquire).
 */
struct hvi_shm_word {
    _Alignas(64) _Atomic uint64_t ticket;
};
/** The word `filled` of one slot, with what travels beside it. The other fields are
 *  written before the ticket is, and stay until the use is consumed. */
struct hvi_shm_line {
    _Alignas(64) _Atomic uint64_t ticket;
    uint16_t joined;  /* the owner takes part with the neutral element */
    uint16_t places;  /* the owner has written where its tensors lie (shm_share.c) */
    uint32_t inlined; /* the payload is in data, not in the slot */
    uint8_t data[HVI_SHM_INLINE_BYTES];
};
_Static_assert(sizeof(struct hvi_shm_word) == 64, "shm word layout");
_Static_assert(sizeof(struct hvi_shm_line) == 64, "shm line layout");
_Static_assert(offsetof(struct hvi_shm_line, data) == 16, "shm line layout");

/** A block of memory a rank lets others read. Written by its owner between groups, but
 *  for `mapped`, where each rank that has mapped it sets its bit. */
struct hvi_shm_block {
    _Alignas(64) _Atomic uint64_t generation; /* grows with each use; 0: none */
    uint64_t inode, device, size_bytes;
    int32_t pid, fd;
    _Atomic uint64_t mapped[HVI_SHM_MASK_WORDS];
};
_Static_assert(sizeof(struct hvi_shm_block) == 128, "shm block layout");
/** What others do with a side of a piece where it lies. */
enum hvi_shm_reach {
    HVI_SHM_STAGED = 0, /* nothing: it goes through the slots */
    HVI_SHM_READ,
    HVI_SHM_WRITTEN /* they read the output, and store what they fold of it, too */
};
/** Where the input and the output of a piece lie: index of a block + 1, or 0; enum
 *  hvi_shm_reach. Written by the owner before the first `filled` of a group, and valid
 *  until all have consumed its last step. */
struct hvi_shm_place {
    uint32_t in_block, out_block;
    uint32_t in_reach, out_reach;
    uint64_t in_offset, out_offset;
};
_Static_assert(sizeof(struct hvi_shm_place) == 32, "shm place layout");
enum {
    HVI_SHM_BLOCKS = 256,  /* of a rank */
    HVI_SHM_PLACES = 1024, /* of a group; one with more pieces is staged */
};

/** Who still reads a slot of ours: local ranks that have not consumed `ticket`. */
struct hvi_shm_use {
    uint64_t ticket;
    uint64_t readers[HVI_SHM_MASK_WORDS];
};

enum hvi_shm_phase {
    HVI_SHM_IDLE = 0,
    HVI_SHM_SMALL_FILL,
    HVI_SHM_SMALL_FOLD,
    HVI_SHM_LARGE,
    HVI_SHM_ENDING, /* until nobody reads the own tensors any more */
    HVI_SHM_FILL,   /* FILL, FOLD, COPY: step i, i - 1, i - 2 of a pipeline */
    HVI_SHM_FOLD,
    HVI_SHM_COPY,
    HVI_SHM_HEAD_FILL,
    HVI_SHM_HEAD_READ,
    HVI_SHM_MEET,
    HVI_SHM_MEETING,
    HVI_SHM_DONE
};

struct hvi_gather;
struct hvi_shm_share;
struct hvi_shm_cursor {
    int32_t piece;
    int64_t at; /* elements of the piece already passed */
};

struct hvi_shm {
    struct hvi_plane base; /* first */
    uint64_t magic;
    struct hvi_bells *bells;
    struct hvi_shm_word *words;   /* [nlocal][3]: reduced, consumed, revoked */
    struct hvi_shm_line *lines;   /* [nlocal][nslots] */
    struct hvi_shm_block *blocks; /* [nlocal][HVI_SHM_BLOCKS] */
    struct hvi_shm_place *places; /* [nlocal][HVI_SHM_PLACES] */
    uint8_t *slots;               /* [nlocal][nslots][slot_bytes] */
    size_t slot_bytes;
    int nslots, local, nlocal;
    int32_t *ranks;           /* [nlocal] global */
    struct hvi_shm_use *uses; /* [nslots] */
    struct hvi_shm_share *share;
    int64_t cache_bytes; /* last-level cache, this rank's share */
    struct hvi_spin spin;
    _Atomic int aborted; /* enum hvd_status; 0: no */
    uint64_t last_seq;
    uint32_t last_part;
    bool ran; /* last_seq means something */

    /* the running group */
    const struct hvi_group *g;
    struct hvi_facts facts;
    enum hvd_status (*progress)(struct hvi_shm *s, struct hvi_err *err);
    enum hvi_shm_phase phase;
    int64_t first;  /* what its steps count from, in tickets */
    int64_t step;   /* pipeline iteration */
    int64_t nsteps; /* steps with data */
    int32_t seen;   /* members already found to be past what is waited for */
    int32_t seen_reduced, seen_consumed; /* the same of those words */
    int64_t filled, folded, copied;      /* large allreduce: the next step of each */
    int nlines;                          /* all_direct: lines already published */
    bool shares;                         /* this rank has places in this group */
    bool all_direct;                     /* nobody needs this rank's slots */
    bool stream; /* outputs do not fit the cache: non-temporal stores */
    struct hvi_stores slot_stores;       /* how to store into slots; of all groups */
    struct hvi_stores out_stores;        /* and elsewhere */
    int32_t *peers;                      /* [nlocal] local rank of every member */
    uint64_t others[HVI_SHM_MASK_WORDS]; /* all members but this one, by local rank */
    struct hvi_chunks plan;
    struct hvi_gather *gather; /* allgather, alltoall, adasum */
    struct hvi_shm_cursor
        *cursors;       /* [nlocal + 1] reducescatter: fill by member, fold */
    int64_t part_elems; /* reducescatter: one member's part of a slot */
    const _Atomic uint64_t *awaited; /* what the last HVD_INPROGRESS waits for */
    uint64_t awaited_ticket;
};

/* ---- shm.c: words and slots */

static inline uint64_t hvi_shm_ticket(const struct hvi_shm *s, int64_t step)
{
    return s->g->seq << HVI_SHM_STEP_BITS | (uint64_t)(s->first + step + 1);
}
static inline int hvi_shm_slot(const struct hvi_shm *s, int64_t step)
{
    return (int)((s->g->seq + s->g->part + (uint64_t)step) % (uint64_t)s->nslots);
}
/** Line and staging memory of a member (index in the group) for a step. What a member
 * has filled is in its payload: the line itself when it is tiny, else its slot. */
static inline struct hvi_shm_line *hvi_shm_line(const struct hvi_shm *s, int32_t member,
                                                int64_t step)
{
    return &s->lines[s->peers[member] * s->nslots + hvi_shm_slot(s, step)];
}
static inline uint8_t *hvi_shm_data(const struct hvi_shm *s, int32_t member,
                                    int64_t step)
{
    size_t i =
        (size_t)s->peers[member] * (size_t)s->nslots + (size_t)hvi_shm_slot(s, step);

    return s->slots + i * s->slot_bytes;
}

static inline uint8_t *hvi_shm_payload(const struct hvi_shm *s, int32_t member,
                                       int64_t step)
{
    struct hvi_shm_line *line = hvi_shm_line(s, member, step);

    return line->inlined ? line->data : hvi_shm_data(s, member, step);
}

/** Where to fill size_bytes for this step (its slot is free). */
uint8_t *hvi_shm_room(struct hvi_shm *s, int64_t step, int64_t size_bytes);
/** Bytes of a pipeline step for so much payload: several steps when that pays. */
int64_t hvi_shm_chunk_bytes(const struct hvi_shm *s, int64_t total_bytes);

/** True: every reader of this slot's last use is done with it. */
bool hvi_shm_slot_free(struct hvi_shm *s, int64_t step);
/** The slot of this step is filled, by me, for all other members to read. */
void hvi_shm_set_filled(struct hvi_shm *s, int64_t step);
void hvi_shm_set_reduced(struct hvi_shm *s, int64_t step);
void hvi_shm_set_consumed(struct hvi_shm *s, int64_t step);
/** True: this member, or all other members, have come that far. False: noted for wait. */
bool hvi_shm_is_filled(struct hvi_shm *s, int32_t member, int64_t step);
bool hvi_shm_all_filled(struct hvi_shm *s, int64_t step);
bool hvi_shm_all_reduced(struct hvi_shm *s, int64_t step);
bool hvi_shm_all_consumed(struct hvi_shm *s, int64_t step);
/** The line of this slot says that all steps are filled; false: it is not free yet. */
bool hvi_shm_fill_slot_to_end(struct hvi_shm *s, int slot, int64_t nsteps);
bool hvi_shm_is_revoked(const struct hvi_shm *s, int32_t member);
/** HVD_ELIMIT: the running group may not have so many. */
enum hvd_status hvi_shm_check_steps(const struct hvi_shm *s, int64_t nsteps,
                                    struct hvi_err *err);

/* ---- shm_share.c: tensors that peers read and write where they lie */

static inline struct hvi_shm_place *hvi_shm_places(const struct hvi_shm *s, int local)
{
    return &s->places[local * HVI_SHM_PLACES];
}
struct hvi_shm_share *hvi_shm_share_new(int nlocal);
void hvi_shm_share_free(struct hvi_shm_share *h, int nlocal); /* NULL allowed */
/** Decide for the running group: writes the own places, s->shares and s->all_direct. */
void hvi_shm_share_begin(struct hvi_shm *s);
/** All members have filled this step: look where their tensors lie. HVD_EPROTO: a
 *  peer's table makes no sense. HVD_ENOMEM. */
enum hvd_status hvi_shm_share_read(struct hvi_shm *s, int64_t step,
                                   struct hvi_err *err);
/** The first element of a member's piece; NULL: it is in the member's slots. */
const uint8_t *hvi_shm_share_in(const struct hvi_shm *s, int32_t member, int32_t piece);
uint8_t *hvi_shm_share_out(const struct hvi_shm *s, int32_t member, int32_t piece);
/** Elements of a piece that whoever folds them stores into the output of every member,
 *  equally known to all of them after the read; count 0: there are none. */
struct hvi_span hvi_shm_share_written(const struct hvi_shm *s, int32_t piece);
/** Most of the group is stored so: there is next to nothing to copy. */
bool hvi_shm_share_writes_most(const struct hvi_shm *s);
/** The group has gone well: nobody is in the own tensors any more. */
void hvi_shm_share_end(struct hvi_shm *s);
/** The group has failed, or may have: nobody gets into the own tensors any more. */
void hvi_shm_share_take_back(struct hvi_shm *s);
/** After the last read of others' tensors: they were not given back meanwhile. */
enum hvd_status hvi_shm_share_check(const struct hvi_shm *s, struct hvi_err *err);

/* ---- one start per kind (facts, peers are set); each sets `progress` and `phase` */

enum hvd_status hvi_shm_allreduce_start(struct hvi_shm *s, struct hvi_err *err);
enum hvd_status hvi_shm_reducescatter_start(struct hvi_shm *s, struct hvi_err *err);
enum hvd_status hvi_shm_broadcast_start(struct hvi_shm *s, struct hvi_err *err);
enum hvd_status hvi_shm_gather_start(struct hvi_shm *s, struct hvi_err *err);
enum hvd_status hvi_shm_barrier_start(struct hvi_shm *s, struct hvi_err *err);

#endif
