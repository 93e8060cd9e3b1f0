/*
 * Happy path: hvi_board_publish appends (id, generation) to the rank's ring and raises
 * its head. hvi_board_poll takes the try-lock, drains every ring into the arrival
 * masks, moves complete ids to the ready list, and writes each group to the log of
 * every member.
 *
 * No publication is lost when the try-lock fails: the publisher raised its head before
 * it tried, and the holder compares all heads with what it drained after it unlocked (both
 * seq_cst), so one of the two sees the other. Outside the lock every word has one writer:
 * a line that goes from core to core costs more than all the rest.
 *
 * A complete id is not sealed while a member still has a group to read: what becomes
 * complete until that member moves on goes into one group with it, up to the fusion
 * threshold. Who reads and sees the backlog polls. A poll that fails because the holder
 * is just deciding to wait is not lost either: the reader stored its cursor before it
 * tried the lock, and the holder looks at the cursors again after it unlocked. Joining,
 * leaving and what changes an id first seal all that is complete.
 *
 * A forwarding board stops at the ready list. `claimed` says that a rank has been told to
 * empty it, so that one rank of the host is woken for it and not all.
 *
 * A holder that dies keeps the lock: nothing is sealed any more, and the coordinator
 * closes the epoch. Those that must have the lock spin at most LOCK_SPINS yields, then
 * go on without: the epoch is over anyway.
 */
#include "worker/board/board.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include <hvd/hvd.h>

#define MAGIC 0x48564442u /* "HVDB" */
#define LAYOUT 4u
#define RING_ENTRIES 8192u /* > ids a rank can have unsealed, plus stale ones */
#define LOG_WORDS 32768u
#define JOIN_ID 0xffffffffu
#define LOCK_SPINS 2000000

struct ring { /* writer: its rank; reader: lock holder */
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) uint64_t tail; /* under the lock */
    uint64_t entry[RING_ENTRIES];
};

struct id_state { /* all under the lock */
    struct hvi_board_meta meta;
    struct hvi_board_mask arrived; /* of this generation, not sealed */
    struct hvi_board_mask stale;   /* published in an older generation, not sealed */
    uint32_t generation;           /* 0: never defined */
    bool dead;                     /* evicted */
    bool ready;                    /* in the ready list */
};

/* A rank's copy of the order log: only the groups that it is a member of, so that an
 * idle rank never holds the others up. */
struct rank_log {
    _Alignas(64) _Atomic uint64_t head;   /* words written; writer: lock holder */
    _Alignas(64) _Atomic uint64_t cursor; /* words read; writer: the rank */
    _Alignas(64) uint32_t word[LOG_WORDS];
};

struct hvi_board {
    uint32_t magic, layout;
    int32_t nlocal;
    uint64_t fusion_bytes;
    bool forwards;            /* constant: see board.h */
    _Atomic uint64_t ordered; /* written under the lock by hvi_board_order */
    _Alignas(64) _Atomic uint32_t lock;
    /* under the lock: */
    _Alignas(64) uint64_t drained; /* publications ever seen */
    _Atomic uint32_t backlog; /* 1: ready ids wait for readers; read without lock */
    uint64_t ready_bytes;
    struct hvi_board_mask owed; /* sealed outside a poll: to be woken by the next one */
    struct hvi_board_mask joined, left;
    uint32_t join_generation;
    bool claimed; /* forwarding: a rank sees to the ready list */
    uint32_t nready;
    uint32_t ready[HVI_BOARD_MAX_IDS]; /* ids in order of completion */
    struct id_state ids[HVI_BOARD_MAX_IDS];
    uint64_t next_seq;
    struct rank_part {
        struct ring ring;
        struct rank_log log;
    } ranks[]; /* [nlocal] */
};

_Static_assert(sizeof(struct rank_part) % 64 == 0, "parts keep cache line alignment");
_Static_assert(offsetof(struct hvi_board, ranks) % 64 == 0, "parts are aligned");

size_t hvi_board_size(int nlocal)
{
    return sizeof(struct hvi_board) + (size_t)nlocal * sizeof(struct rank_part);
}

void hvi_board_format(void *mem, int nlocal, uint64_t fusion_bytes)
{
    struct hvi_board *b = mem;

    b->layout = LAYOUT;
    b->nlocal = nlocal;
    b->fusion_bytes = fusion_bytes;
    atomic_thread_fence(memory_order_release);
    b->magic = MAGIC;
}

void hvi_board_set_forwarding(void *mem)
{
    ((struct hvi_board *)mem)->forwards = true;
}

struct hvi_board *hvi_board_attach(void *mem, int nlocal)
{
    struct hvi_board *b = mem;

    if (b->magic != MAGIC || b->layout != LAYOUT || b->nlocal != nlocal)
        return NULL;
    atomic_thread_fence(memory_order_acquire);
    return b;
}

static bool lock_try(struct hvi_board *b)
{
    uint32_t zero = 0;

    return atomic_load(&b->lock) == 0 &&
           atomic_compare_exchange_strong(&b->lock, &zero, 1);
}

/* false: the holder seems dead; the epoch is ending. */
static bool lock_spin(struct hvi_board *b)
{
    for (int i = 0; i < LOCK_SPINS; i++) {
        if (lock_try(b))
            return true;
        sched_yield();
    }
    return false;
}

static void unlock(struct hvi_board *b)
{
    atomic_store(&b->lock, 0);
}

static void mask_clear(struct hvi_board_mask *m, int r)
{
    m->w[r / 64] &= ~((uint64_t)1 << (r % 64));
}

/* Every member is in `arrived`, or has joined. */
static bool complete(const struct hvi_board *b, const struct id_state *s)
{
    for (int i = 0; i < HVI_BOARD_MASK_WORDS; i++)
        if ((s->meta.members.w[i] & ~(s->arrived.w[i] | b->joined.w[i])) != 0)
            return false;
    return hvi_board_mask_any(&s->arrived);
}

static bool touches(const struct hvi_board_mask *a, const struct hvi_board_mask *c)
{
    for (int i = 0; i < HVI_BOARD_MASK_WORDS; i++)
        if ((a->w[i] & c->w[i]) != 0)
            return true;
    return false;
}

static void consider(struct hvi_board *b, uint32_t id)
{
    struct id_state *s = &b->ids[id];

    if (s->dead || s->ready || !complete(b, s) || touches(&s->meta.members, &b->left))
        return;
    s->ready = true;
    b->ready[b->nready++] = id;
    b->ready_bytes += (uint64_t)s->meta.bytes;
}

static void settle(struct hvi_board *b);

static void arrive(struct hvi_board *b, int r, uint32_t id, uint32_t generation)
{
    struct id_state *s;

    if (id == JOIN_ID) {
        if (generation != b->join_generation)
            return;
        settle(b); /* what was complete before does not know of it */
        hvi_board_mask_set(&b->joined, r);
        for (uint32_t i = 0; i < HVI_BOARD_MAX_IDS; i++)
            if (hvi_board_mask_any(&b->ids[i].arrived))
                consider(b, i);
        return;
    }
    if (id >= HVI_BOARD_MAX_IDS)
        return;
    s = &b->ids[id];
    if (generation != s->generation || s->dead) {
        hvi_board_mask_set(&s->stale, r);
        return;
    }
    hvi_board_mask_set(&s->arrived, r);
    consider(b, id);
}

/* Publications ever. */
static uint64_t published(const struct hvi_board *b)
{
    uint64_t n = 0;

    for (int r = 0; r < b->nlocal; r++)
        n += atomic_load(&b->ranks[r].ring.head);
    return n;
}

static void drain(struct hvi_board *b)
{
    uint64_t n = 0;

    for (int r = 0; r < b->nlocal; r++) {
        struct ring *ring = &b->ranks[r].ring;
        uint64_t head = atomic_load_explicit(&ring->head, memory_order_acquire);

        while (ring->tail != head) {
            uint64_t e = ring->entry[ring->tail % RING_ENTRIES];

            ring->tail++;
            n++;
            arrive(b, r, (uint32_t)e, (uint32_t)(e >> 32));
        }
    }
    b->drained += n;
}

/* Words free in the fullest log. */
static uint64_t log_room(const struct hvi_board *b)
{
    uint64_t room = LOG_WORDS;

    for (int r = 0; r < b->nlocal; r++) {
        const struct rank_log *log = &b->ranks[r].log;
        uint64_t used = atomic_load_explicit(&log->head, memory_order_relaxed) -
                        atomic_load_explicit(&log->cursor, memory_order_acquire);

        if (!hvi_board_mask_has(&b->left, r) && LOG_WORDS - used < room)
            room = LOG_WORDS - used;
    }
    return room;
}

static bool may_fuse(const struct hvi_board_meta *a, const struct hvi_board_meta *c)
{
    return a->fuses && c->fuses && a->kind == c->kind && a->reduce_op == c->reduce_op &&
           a->dtype == c->dtype && a->pset == c->pset && a->device == c->device &&
           a->root == c->root &&
           memcmp(&a->prescale, &c->prescale, sizeof(double)) == 0 &&
           memcmp(&a->postscale, &c->postscale, sizeof(double)) == 0;
}

/* Largest priority first, else order of completion: ready is short, a stable insertion.
 */
static void sort_ready(struct hvi_board *b)
{
    for (uint32_t i = 1; i < b->nready; i++) {
        uint32_t id = b->ready[i];
        uint32_t k = i;

        while (k > 0 &&
               b->ids[b->ready[k - 1]].meta.priority < b->ids[id].meta.priority) {
            b->ready[k] = b->ready[k - 1];
            k--;
        }
        b->ready[k] = id;
    }
}

/* Picks what runs together with ready[0] into group; compacts the list. */
static uint32_t pick(struct hvi_board *b, uint32_t *group)
{
    const struct hvi_board_meta *first = &b->ids[b->ready[0]].meta;
    uint64_t bytes = (uint64_t)first->bytes;
    uint32_t n = 1;
    uint32_t kept = 0;

    group[0] = b->ready[0];
    for (uint32_t i = 1; i < b->nready; i++) {
        uint32_t id = b->ready[i];
        const struct hvi_board_meta *m = &b->ids[id].meta;

        if (n < HVI_BOARD_GROUP_MAX_IDS && may_fuse(first, m) &&
            bytes + (uint64_t)m->bytes <= b->fusion_bytes) {
            group[n++] = id;
            bytes += (uint64_t)m->bytes;
        } else {
            b->ready[kept++] = id;
        }
    }
    b->nready = kept;
    b->ready_bytes -= bytes;
    return n;
}

static void log_put(struct rank_log *log, uint64_t *at, uint32_t word)
{
    log->word[(*at)++ % LOG_WORDS] = word;
}

/* Record: seq (two words), nids | joined_bad << 31, then (id, generation) each. */
static void log_group(const struct hvi_board *b, struct rank_log *log, uint64_t seq,
                      const uint32_t *group, uint32_t n, uint32_t bad)
{
    uint64_t at = atomic_load_explicit(&log->head, memory_order_relaxed);

    log_put(log, &at, (uint32_t)seq);
    log_put(log, &at, (uint32_t)(seq >> 32));
    log_put(log, &at, n | bad << 31);
    for (uint32_t i = 0; i < n; i++) {
        log_put(log, &at, group[i]);
        log_put(log, &at, b->ids[group[i]].generation);
    }
    atomic_store_explicit(&log->head, at, memory_order_release);
}

/* A member has joined without bringing it. */
static bool joined_without(const struct hvi_board *b, const struct id_state *s)
{
    for (int i = 0; i < HVI_BOARD_MASK_WORDS; i++)
        if ((s->meta.members.w[i] & b->joined.w[i] & ~s->arrived.w[i]) != 0)
            return true;
    return false;
}

/* It has left the ready list: the next round of this id begins. */
static void next_round(struct id_state *s)
{
    memset(&s->arrived, 0, sizeof s->arrived);
    s->ready = false;
}

/* To the log of every member. */
static void log_to_members(struct hvi_board *b, uint64_t seq, const uint32_t *group,
                           uint32_t n, uint32_t bad, struct hvi_board_mask *wake)
{
    const struct hvi_board_mask *members = &b->ids[group[0]].meta.members;

    for (int r = 0; r < b->nlocal; r++)
        if (hvi_board_mask_has(members, r))
            log_group(b, &b->ranks[r].log, seq, group, n, bad);
    for (int i = 0; i < HVI_BOARD_MASK_WORDS; i++)
        wake->w[i] |= members->w[i];
}

static void append_group(struct hvi_board *b, const uint32_t *group, uint32_t n,
                         struct hvi_board_mask *wake)
{
    uint32_t bad = 0;

    for (uint32_t i = 0; i < n; i++) {
        struct id_state *s = &b->ids[group[i]];

        bad |= s->meta.kind != HVD_ALLREDUCE && joined_without(b, s);
        next_round(s);
    }
    log_to_members(b, b->next_seq++, group, n, bad, wake);
}

/* One of these ranks has a group to read. */
static bool lags(const struct hvi_board *b, const struct hvi_board_mask *members)
{
    for (int r = 0; r < b->nlocal; r++) {
        const struct rank_log *log = &b->ranks[r].log;

        if (hvi_board_mask_has(members, r) && !hvi_board_mask_has(&b->left, r) &&
            atomic_load_explicit(&log->head, memory_order_relaxed) !=
                atomic_load(&log->cursor))
            return true;
    }
    return false;
}

/* More may come that runs together with what is ready. */
static bool may_grow(const struct hvi_board *b)
{
    return b->ready_bytes < b->fusion_bytes && b->nready < HVI_BOARD_GROUP_MAX_IDS;
}

/* Only a change is written: others read it all the time. */
static void set_backlog(struct hvi_board *b)
{
    uint32_t now = b->nready > 0;

    if (atomic_load_explicit(&b->backlog, memory_order_relaxed) != now)
        atomic_store(&b->backlog, now);
}

/* awaited: the members whose reading is waited for, empty when nothing waits for that. */
static bool seal(struct hvi_board *b, bool all, struct hvi_board_mask *wake,
                 struct hvi_board_mask *awaited)
{
    uint32_t group[HVI_BOARD_GROUP_MAX_IDS];
    uint64_t room;
    bool any = false;
    bool sorted = b->nready < 2;

    memset(awaited, 0, sizeof *awaited);
    set_backlog(b); /* before the cursors are looked at */
    if (b->nready == 0)
        return false;
    if (!all && may_grow(b) && lags(b, &b->ids[b->ready[0]].meta.members)) {
        *awaited = b->ids[b->ready[0]].meta.members;
        return false;
    }
    room = log_room(b);
    while (b->nready > 0 && room >= 3 + 2 * HVI_BOARD_GROUP_MAX_IDS) {
        const struct hvi_board_mask *members = &b->ids[b->ready[0]].meta.members;
        uint32_t n;

        if (!all && may_grow(b) && lags(b, members)) {
            *awaited = *members;
            break;
        }
        if (!sorted) { /* another one may be first then */
            sort_ready(b);
            sorted = true;
            continue;
        }
        n = pick(b, group);
        append_group(b, group, n, wake);
        room -= 3 + 2 * (uint64_t)n;
        any = true;
    }
    set_backlog(b);
    if (b->nready > 0 &&
        !hvi_board_mask_any(awaited)) /* readers that lag must move on */
        for (int r = 0; r < b->nlocal; r++)
            hvi_board_mask_set(wake, r);
    return any;
}

/* All that is complete gets its place now. */
static void settle(struct hvi_board *b)
{
    struct hvi_board_mask awaited;

    if (!b->forwards)
        seal(b, true, &b->owed, &awaited);
}

/* Forwarding: one rank at a time is told. */
static bool claim(struct hvi_board *b)
{
    bool first = b->nready > 0 && !b->claimed;

    b->claimed = b->nready > 0;
    return first;
}

/* What is complete and need not wait, and what settle has sealed before. */
static bool seal_some(struct hvi_board *b, struct hvi_board_mask *wake,
                      struct hvi_board_mask *awaited)
{
    bool any = seal(b, false, wake, awaited) || hvi_board_mask_any(&b->owed);

    for (int i = 0; i < HVI_BOARD_MASK_WORDS; i++)
        wake->w[i] |= b->owed.w[i];
    memset(&b->owed, 0, sizeof b->owed);
    return any;
}

bool hvi_board_poll(struct hvi_board *b, struct hvi_board_mask *wake)
{
    struct hvi_board_mask awaited;
    bool any = false;

    memset(wake, 0, sizeof *wake);
    memset(&awaited, 0, sizeof awaited);
    do {
        if (!lock_try(b))
            return any;
        drain(b);
        any |= b->forwards ? claim(b) : seal_some(b, wake, &awaited);
        uint64_t drained = b->drained;
        unlock(b);
        if (published(b) == drained &&
            (!hvi_board_mask_any(&awaited) || lags(b, &awaited)))
            return any;
    } while (1);
}

uint32_t hvi_board_take(struct hvi_board *b, struct hvi_board_ready *out, uint32_t cap,
                        bool *more)
{
    uint32_t n = 0;
    uint64_t drained;

    *more = false;
    do {
        uint32_t taken = 0;

        if (!lock_spin(b))
            return n;
        drain(b);
        for (; taken < b->nready && n < cap; taken++) {
            struct id_state *s = &b->ids[b->ready[taken]];

            out[n++] = (struct hvi_board_ready){b->ready[taken], s->generation,
                                                joined_without(b, s)};
            b->ready_bytes -= (uint64_t)s->meta.bytes;
            next_round(s);
        }
        b->nready -= taken;
        memmove(b->ready, b->ready + taken, b->nready * sizeof *b->ready);
        b->claimed = *more = b->nready > 0;
        drained = b->drained;
        unlock(b);
    } while (!*more && published(b) != drained);
    return n;
}

bool hvi_board_order(struct hvi_board *b, uint64_t seq, bool bad, const uint32_t *ids,
                     uint32_t nids, struct hvi_board_mask *wake)
{
    bool done;

    if (!lock_spin(b))
        return false;
    done = seq < atomic_load(&b->ordered);
    if (!done && log_room(b) >= 3 + 2 * (uint64_t)nids) {
        log_to_members(b, seq, ids, nids, bad, wake);
        atomic_store(&b->ordered, seq + 1);
        done = true;
    }
    unlock(b);
    return done;
}

uint64_t hvi_board_ordered(const struct hvi_board *b)
{
    return atomic_load(&b->ordered);
}

static void ring_put(struct hvi_board *b, int r, uint32_t id, uint32_t generation)
{
    struct ring *ring = &b->ranks[r].ring;
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);

    ring->entry[head % RING_ENTRIES] = (uint64_t)generation << 32 | id;
    atomic_store(&ring->head, head + 1); /* before the lock is looked at */
}

void hvi_board_publish(struct hvi_board *b, int r, uint32_t id, uint32_t generation)
{
    ring_put(b, r, id, generation);
}

void hvi_board_join(struct hvi_board *b, int r, uint32_t generation)
{
    ring_put(b, r, JOIN_ID, generation);
}

void hvi_board_join_done(struct hvi_board *b, uint32_t generation)
{
    if (!lock_spin(b))
        return;
    drain(b);
    settle(b);
    if (b->join_generation < generation) {
        b->join_generation = generation;
        memset(&b->joined, 0, sizeof b->joined);
    }
    unlock(b);
}

/* An id that was complete but is evicted, or gets another meaning, before it was sealed or
 * taken leaves the ready list. */
static void unready(struct hvi_board *b, uint32_t id)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < b->nready; i++)
        if (b->ready[i] != id)
            b->ready[kept++] = b->ready[i];
    b->nready = kept;
    b->ready_bytes -= (uint64_t)b->ids[id].meta.bytes;
    b->ids[id].ready = false;
}

void hvi_board_define(struct hvi_board *b, uint32_t id, uint32_t generation,
                      const struct hvi_board_meta *meta)
{
    struct id_state *s;

    if (id >= HVI_BOARD_MAX_IDS || !lock_spin(b))
        return;
    s = &b->ids[id];
    if (s->generation < generation) {
        drain(b);
        settle(b);
        for (int i = 0; i < HVI_BOARD_MASK_WORDS; i++)
            s->stale.w[i] |= s->arrived.w[i];
        memset(&s->arrived, 0, sizeof s->arrived);
        if (s->ready)
            unready(b, id);
        s->meta = *meta;
        s->generation = generation;
        s->dead = false;
    }
    unlock(b);
}

bool hvi_board_evict(struct hvi_board *b, int r, uint32_t id, uint32_t generation)
{
    struct id_state *s;
    bool mine = false;

    if (id >= HVI_BOARD_MAX_IDS || !lock_spin(b))
        return false;
    drain(b);
    settle(b);
    s = &b->ids[id];
    if (s->generation == generation && !s->dead) {
        s->dead = true;
        if (s->ready)
            unready(b, id);
        for (int i = 0; i < HVI_BOARD_MASK_WORDS; i++)
            s->stale.w[i] |= s->arrived.w[i];
        memset(&s->arrived, 0, sizeof s->arrived);
    }
    if (hvi_board_mask_has(&s->stale, r)) {
        mask_clear(&s->stale, r);
        mine = true;
    }
    unlock(b);
    return mine;
}

bool hvi_board_withdraw(struct hvi_board *b, int r, uint32_t id)
{
    struct id_state *s;
    bool mine;

    if (id >= HVI_BOARD_MAX_IDS || !lock_spin(b))
        return false;
    drain(b);
    settle(b);
    s = &b->ids[id];
    mine = hvi_board_mask_has(&s->arrived, r) || hvi_board_mask_has(&s->stale, r);
    if (mine && s->ready)
        unready(b, id);
    mask_clear(&s->arrived, r);
    mask_clear(&s->stale, r);
    unlock(b);
    return mine;
}

void hvi_board_leave(struct hvi_board *b, int r)
{
    if (!lock_spin(b))
        return;
    drain(b);
    settle(b);
    hvi_board_mask_set(&b->left, r);
    for (uint32_t id = 0; id < HVI_BOARD_MAX_IDS; id++) {
        struct id_state *s = &b->ids[id];

        if (s->ready && hvi_board_mask_has(&s->meta.members, r))
            unready(b, id);
        mask_clear(&s->arrived, r);
        mask_clear(&s->stale, r);
    }
    unlock(b);
}

bool hvi_board_missing(struct hvi_board *b, int r, uint32_t id, uint32_t generation,
                       struct hvi_board_mask *out)
{
    struct id_state *s;
    bool waiting = false;

    if (id >= HVI_BOARD_MAX_IDS || !lock_spin(b))
        return false;
    drain(b);
    s = &b->ids[id];
    if (s->generation == generation && hvi_board_mask_has(&s->arrived, r)) {
        waiting = true;
        for (int i = 0; i < HVI_BOARD_MASK_WORDS; i++)
            out->w[i] = s->meta.members.w[i] & ~(s->arrived.w[i] | b->joined.w[i]);
    }
    unlock(b);
    return waiting;
}

bool hvi_board_unread(const struct hvi_board *b, int r)
{
    const struct rank_log *log = &b->ranks[r].log;

    return atomic_load_explicit(&log->head, memory_order_acquire) !=
           atomic_load_explicit(&log->cursor, memory_order_relaxed);
}

bool hvi_board_read(struct hvi_board *b, int r, struct hvi_board_group *out)
{
    struct rank_log *log = &b->ranks[r].log;
    uint64_t at = atomic_load_explicit(&log->cursor, memory_order_relaxed);
    uint32_t word;

    if (at == atomic_load_explicit(&log->head, memory_order_acquire))
        return false;
    out->seq = log->word[at % LOG_WORDS];
    out->seq |= (uint64_t)log->word[(at + 1) % LOG_WORDS] << 32;
    word = log->word[(at + 2) % LOG_WORDS];
    at += 3;
    out->joined_bad = word >> 31 != 0;
    out->nids = word & 0x7fffffffu;
    for (uint32_t i = 0; i < out->nids; i++) {
        out->ids[i].id = log->word[at++ % LOG_WORDS];
        out->ids[i].generation = log->word[at++ % LOG_WORDS];
    }
    atomic_store(&log->cursor, at); /* before the backlog is looked at */
    return true;
}

bool hvi_board_backlog(const struct hvi_board *b)
{
    return atomic_load(&b->backlog) != 0;
}
