/*
 * The shared-memory plane: segment, words, slots, and the operations table. What each
 * kind does with them is in shm_reduce.c and shm_move.c.
 *
 * A group: start checks it and maps members to local ranks; progress runs the kind's
 * state machine until a word is not yet where it must be, and remembers that word; wait
 * spins, yields, then sleeps on this rank's doorbell until the word is there. Who moves
 * a word rings all members that sleep. A group is over for a rank when its outputs are
 * written; peers may still read its slots, which is seen to when the slot is used
 * again.
 *
 * Failure: a peer that dies never moves its words. The engine learns of it elsewhere
 * and calls abort, which any thread may do at any time: a flag, then our own doorbell.
 */
#include "worker/plane/cpu/shm.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"
#include "worker/plane/cpu/cache.h"
#include "worker/plane/cpu/gather.h"

#define SEGMENT_MAGIC UINT64_C(0x6876645f73686d33) /* "hvd_shm3" */
#define PLANE_MAGIC UINT64_C(0x68766470736d3031)
enum {
    PAGE_BYTES = 4096,
    PIPELINE_STEPS = 4 /* enough to overlap, few enough to be cheap */
};
enum word { REDUCED = 0, CONSUMED, REVOKED, NWORDS };

/* ---- segment */

struct layout {
    size_t words, lines, blocks, places, slots, size;
};

static struct layout lay_out(int nranks, size_t slot_bytes, int nslots)
{
    size_t n = (size_t)nranks;
    size_t k = (size_t)nslots;
    struct layout l;

    l.words = sizeof(struct hvi_shm_head);
    l.lines = l.words + n * NWORDS * sizeof(struct hvi_shm_word);
    l.blocks = l.lines + n * k * sizeof(struct hvi_shm_line);
    l.places = l.blocks + n * HVI_SHM_BLOCKS * sizeof(struct hvi_shm_block);
    l.slots = l.places + n * HVI_SHM_PLACES * sizeof(struct hvi_shm_place);
    l.slots = (l.slots + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    l.size = l.slots + n * k * slot_bytes;
    return l;
}

size_t hvi_shm_size(int nranks, size_t slot_bytes, int nslots)
{
    return lay_out(nranks, slot_bytes, nslots).size;
}

void hvi_shm_format(void *mem, int nranks, size_t slot_bytes, int nslots)
{
    struct hvi_shm_head *h = mem;

    HVI_ASSERT(nranks > 0 && nranks <= HVI_SHM_MAX_RANKS && nslots >= 3);
    HVI_ASSERT(slot_bytes >= HVI_SHM_MIN_SLOT_BYTES);
    HVI_ASSERT((slot_bytes & (slot_bytes - 1)) == 0);
    h->nranks = (uint32_t)nranks;
    h->nslots = (uint32_t)nslots;
    h->slot_bytes = slot_bytes;
    h->magic = SEGMENT_MAGIC;
}

static enum hvd_status check_segment(const struct hvi_shm_head *h, int local,
                                     int nlocal, const int32_t *ranks,
                                     struct hvi_err *err)
{
    if (h->magic != SEGMENT_MAGIC)
        return hvi_fail(err, HVD_EINVAL, "shm: the segment is not formatted");
    if (nlocal <= 0 || nlocal > HVI_SHM_MAX_RANKS || h->nranks != (uint32_t)nlocal)
        return hvi_fail(err, HVD_EINVAL, "shm: the segment is for %u ranks, not %d",
                        h->nranks, nlocal);
    if (local < 0 || local >= nlocal)
        return hvi_fail(err, HVD_EINVAL, "shm: local rank %d of %d", local, nlocal);
    for (int i = 1; i < nlocal; i++)
        if (ranks[i] <= ranks[i - 1])
            return hvi_fail(err, HVD_EINVAL, "shm: local ranks do not ascend");
    return HVD_OK;
}

/* ---- words and slots */

static struct hvi_shm_word *word_of(const struct hvi_shm *s, int local, enum word w)
{
    return &s->words[local * NWORDS + (int)w];
}

/* True, or the word is noted for wait. */
static bool reached(struct hvi_shm *s, const _Atomic uint64_t *word, uint64_t ticket)
{
    if (atomic_load_explicit(word, memory_order_acquire) >= ticket)
        return true;
    s->awaited = word;
    s->awaited_ticket = ticket;
    return false;
}

static void publish(struct hvi_shm *s, _Atomic uint64_t *word, uint64_t ticket)
{
    atomic_store_explicit(word, ticket, memory_order_release);
    hvi_bell_ring_mask(s->bells, s->others);
}

uint8_t *hvi_shm_room(struct hvi_shm *s, int64_t step, int64_t size_bytes)
{
    struct hvi_shm_line *line = hvi_shm_line(s, s->g->me, step);

    line->inlined = size_bytes <= HVI_SHM_INLINE_BYTES;
    return line->inlined ? line->data : hvi_shm_data(s, s->g->me, step);
}

int64_t hvi_shm_chunk_bytes(const struct hvi_shm *s, int64_t total_bytes)
{
    int64_t chunk = (total_bytes / PIPELINE_STEPS + 63) / 64 * 64;

    if (chunk < HVI_SHM_MIN_CHUNK_BYTES)
        chunk = HVI_SHM_MIN_CHUNK_BYTES;
    return chunk < (int64_t)s->slot_bytes ? chunk : (int64_t)s->slot_bytes;
}

bool hvi_shm_slot_free(struct hvi_shm *s, int64_t step)
{
    struct hvi_shm_use *u = &s->uses[hvi_shm_slot(s, step)];

    for (int w = 0; w < HVI_SHM_MASK_WORDS; w++) {
        for (; u->readers[w] != 0; u->readers[w] &= u->readers[w] - 1) {
            int r = w * 64 + __builtin_ctzll(u->readers[w]);

            if (!reached(s, &word_of(s, r, CONSUMED)->ticket, u->ticket))
                return false;
        }
    }
    return true;
}

void hvi_shm_set_filled(struct hvi_shm *s, int64_t step)
{
    struct hvi_shm_use *u = &s->uses[hvi_shm_slot(s, step)];
    struct hvi_shm_line *line = hvi_shm_line(s, s->g->me, step);

    u->ticket = hvi_shm_ticket(s, step);
    memcpy(u->readers, s->others, sizeof(u->readers));
    line->joined = s->facts.joined;
    line->places = s->shares;
    publish(s, &line->ticket, u->ticket);
}

bool hvi_shm_fill_slot_to_end(struct hvi_shm *s, int slot, int64_t nsteps)
{
    struct hvi_shm_use *u = &s->uses[hvi_shm_slot(s, slot)];
    struct hvi_shm_line *line = hvi_shm_line(s, s->g->me, slot);

    if (!hvi_shm_slot_free(s, slot))
        return false;
    u->ticket = hvi_shm_ticket(s, nsteps - 1);
    memcpy(u->readers, s->others, sizeof(u->readers));
    line->joined = 0;
    line->inlined = 0;
    line->places = s->shares;
    publish(s, &line->ticket, u->ticket);
    return true;
}

bool hvi_shm_is_revoked(const struct hvi_shm *s, int32_t member)
{
    return atomic_load(&word_of(s, s->peers[member], REVOKED)->ticket) != 0;
}

void hvi_shm_set_reduced(struct hvi_shm *s, int64_t step)
{
    publish(s, &word_of(s, s->local, REDUCED)->ticket, hvi_shm_ticket(s, step));
}

void hvi_shm_set_consumed(struct hvi_shm *s, int64_t step)
{
    publish(s, &word_of(s, s->local, CONSUMED)->ticket, hvi_shm_ticket(s, step));
}

bool hvi_shm_is_filled(struct hvi_shm *s, int32_t member, int64_t step)
{
    return reached(s, &hvi_shm_line(s, member, step)->ticket, hvi_shm_ticket(s, step));
}

bool hvi_shm_all_filled(struct hvi_shm *s, int64_t step)
{
    for (; s->seen < s->g->nmembers; s->seen++)
        if (s->seen != s->g->me && !hvi_shm_is_filled(s, s->seen, step))
            return false;
    s->seen = 0;
    return true;
}

static bool all_at(struct hvi_shm *s, enum word w, int32_t *seen, int64_t step)
{
    uint64_t ticket = hvi_shm_ticket(s, step);

    for (; *seen < s->g->nmembers; (*seen)++)
        if (*seen != s->g->me &&
            !reached(s, &word_of(s, s->peers[*seen], w)->ticket, ticket))
            return false;
    *seen = 0;
    return true;
}

bool hvi_shm_all_reduced(struct hvi_shm *s, int64_t step)
{
    return all_at(s, REDUCED, &s->seen_reduced, step);
}

bool hvi_shm_all_consumed(struct hvi_shm *s, int64_t step)
{
    return all_at(s, CONSUMED, &s->seen_consumed, step);
}

/* ---- operations */

static struct hvi_shm *from_plane(struct hvi_plane *p)
{
    struct hvi_shm *s = (struct hvi_shm *)(void *)p;

    HVI_ASSERT(s->magic == PLANE_MAGIC);
    return s;
}

static enum hvd_status check_aborted(const struct hvi_shm *s, struct hvi_err *err)
{
    int status = atomic_load_explicit(&s->aborted, memory_order_acquire);

    if (status == 0)
        return HVD_OK;
    return hvi_fail(err, (enum hvd_status)status, "shm plane was stopped: %s",
                    hvi_status_text((enum hvd_status)status));
}

/* Both lists ascend: one walk finds every member's local rank. */
static enum hvd_status map_members(struct hvi_shm *s, const struct hvi_group *g,
                                   struct hvi_err *err)
{
    int at = 0;

    memset(s->others, 0, sizeof(s->others));
    for (int32_t m = 0; m < g->nmembers; m++) {
        while (at < s->nlocal && s->ranks[at] < g->members[m])
            at++;
        if (at == s->nlocal || s->ranks[at] != g->members[m])
            return hvi_fail(err, HVD_EINTERNAL, "shm: rank %d is not on this host",
                            (int)g->members[m]);
        s->peers[m] = at;
        if (at != s->local)
            s->others[at / 64] |= UINT64_C(1) << (at % 64);
    }
    if (s->peers[g->me] != s->local)
        return hvi_fail(err, HVD_EINTERNAL,
                        "shm: member %d is rank %d, this is rank %d", (int)g->me,
                        (int)g->members[g->me], s->base.rank);
    return HVD_OK;
}

static enum hvd_status check_seq(const struct hvi_shm *s, const struct hvi_group *g,
                                 struct hvi_err *err)
{
    if (g->nparts > HVI_SHM_PARTS || (g->nparts > 0 && g->part >= g->nparts))
        return hvi_fail(err, HVD_EINTERNAL, "shm: part %u of %u", g->part, g->nparts);
    if (s->ran &&
        (g->seq < s->last_seq || (g->seq == s->last_seq && g->part <= s->last_part)))
        return hvi_fail(err, HVD_EINTERNAL, "shm: group %llu after group %llu",
                        (unsigned long long)g->seq, (unsigned long long)s->last_seq);
    if (g->seq >> (64 - HVI_SHM_STEP_BITS) != 0)
        return hvi_fail(err, HVD_ELIMIT, "shm: too many groups (%llu)",
                        (unsigned long long)g->seq);
    return HVD_OK;
}

/* Tickets that one group of a seq has to itself. */
static int64_t tickets_of(const struct hvi_group *g)
{
    return (INT64_C(1) << HVI_SHM_STEP_BITS) / (g->nparts > 1 ? g->nparts : 1);
}

enum hvd_status hvi_shm_check_steps(const struct hvi_shm *s, int64_t nsteps,
                                    struct hvi_err *err)
{
    int64_t most = tickets_of(s->g) - 2;

    if (nsteps <= most)
        return HVD_OK;
    return hvi_fail(err, HVD_ELIMIT, "shm: more than %lld steps in one group",
                    (long long)most);
}

static enum hvd_status start_kind(struct hvi_shm *s, struct hvi_err *err)
{
    switch (s->g->kind) {
    case HVD_ALLREDUCE:
        return s->g->reduce_op == HVD_ADASUM ? hvi_shm_gather_start(s, err)
                                             : hvi_shm_allreduce_start(s, err);
    case HVD_REDUCESCATTER:
        return hvi_shm_reducescatter_start(s, err);
    case HVD_BROADCAST:
        return hvi_shm_broadcast_start(s, err);
    case HVD_BARRIER:
        return hvi_shm_barrier_start(s, err);
    default: /* hvi_group_check knows only these two more */
        return hvi_shm_gather_start(s, err);
    }
}

static enum hvd_status shm_start(struct hvi_plane *p, const struct hvi_group *g,
                                 struct hvi_err *err)
{
    struct hvi_shm *s = from_plane(p);
    enum hvd_status rc = check_aborted(s, err);

    HVI_ASSERT(s->g == NULL);
    if (rc == HVD_OK)
        rc = check_seq(s, g, err);
    if (rc == HVD_OK)
        rc = hvi_group_check(g, s->nlocal, &s->facts, err);
    if (rc == HVD_OK)
        rc = map_members(s, g, err);
    if (rc != HVD_OK)
        return rc;
    s->g = g;
    s->first = g->part * tickets_of(g);
    s->step = 0;
    s->seen = s->seen_reduced = s->seen_consumed = 0;
    s->shares = s->all_direct = false;
    s->stream = s->facts.total_bytes > s->cache_bytes;
    rc = start_kind(s, err);
    if (rc != HVD_OK) {
        s->g = NULL;
        return rc;
    }
    s->last_seq = g->seq;
    s->last_part = g->part;
    s->ran = true;
    return HVD_OK;
}

static enum hvd_status shm_progress(struct hvi_plane *p, struct hvi_err *err)
{
    struct hvi_shm *s = from_plane(p);
    enum hvd_status rc = check_aborted(s, err);

    HVI_ASSERT(s->g != NULL || rc != HVD_OK);
    if (rc == HVD_OK)
        rc = s->progress(s, err);
    if (rc == HVD_INPROGRESS)
        return rc;
    s->g = NULL;
    s->awaited = NULL;
    s->phase = HVI_SHM_IDLE;
    return rc;
}

static void shm_abort(struct hvi_plane *p, enum hvd_status status)
{
    struct hvi_shm *s = from_plane(p);
    int none = 0;

    HVI_ASSERT(status < 0);
    atomic_compare_exchange_strong(&s->aborted, &none, (int)status);
    atomic_store(&word_of(s, s->local, REVOKED)->ticket, 1);
    atomic_thread_fence(memory_order_seq_cst); /* before the tensors change */
    hvi_bell_force(s->bells, s->local);
}

static void shm_take_back(struct hvi_plane *p)
{
    hvi_shm_share_take_back(from_plane(p));
}

bool hvi_shm_ready(void *plane)
{
    const struct hvi_shm *s = from_plane(plane);

    return atomic_load_explicit(&s->aborted, memory_order_acquire) != 0 ||
           s->awaited == NULL ||
           atomic_load_explicit(s->awaited, memory_order_acquire) >= s->awaited_ticket;
}

static bool shm_wait(struct hvi_plane *p, int timeout_ms)
{
    struct hvi_shm *s = from_plane(p);

    if (timeout_ms != 0 && hvi_spin(&s->spin, false, hvi_shm_ready, s))
        return false;
    return hvi_bell_sleep(s->bells, s->local, hvi_shm_ready, s, 0, false, timeout_ms);
}

static void shm_free(struct hvi_plane *p)
{
    struct hvi_shm *s;

    if (p == NULL)
        return;
    s = from_plane(p);
    s->magic = 0;
    hvi_gather_free(s->gather);
    if (s->share != NULL)
        hvi_shm_share_take_back(s); /* freed in the middle of a group */
    hvi_shm_share_free(s->share, s->nlocal);
    hvi_chunks_fini(&s->plan);
    free(s->cursors);
    free(s->peers);
    free(s->uses);
    free(s->ranks);
    free(s);
}

static const struct hvi_plane_ops shm_ops = {
    .name = "shm",
    .start = shm_start,
    .progress = shm_progress,
    .abort = shm_abort,
    .take_back = shm_take_back,
    .wait = shm_wait,
    .free = shm_free,
};

/* ---- attach */

/* A page that is first touched in the middle of a step would cost its fault there. */
static void prefault(struct hvi_shm *s)
{
    size_t size = (size_t)s->nslots * s->slot_bytes;
    volatile uint8_t *mine = s->slots + (size_t)s->local * size;

    for (size_t i = 0; i < size; i += PAGE_BYTES)
        mine[i] = 0;
}

static void map_segment(struct hvi_shm *s, void *mem)
{
    const struct hvi_shm_head *h = mem;
    struct layout l = lay_out((int)h->nranks, h->slot_bytes, (int)h->nslots);

    s->slot_bytes = h->slot_bytes;
    s->nslots = (int)h->nslots;
    s->words = (struct hvi_shm_word *)(void *)((uint8_t *)mem + l.words);
    s->lines = (struct hvi_shm_line *)(void *)((uint8_t *)mem + l.lines);
    s->blocks = (struct hvi_shm_block *)(void *)((uint8_t *)mem + l.blocks);
    s->places = (struct hvi_shm_place *)(void *)((uint8_t *)mem + l.places);
    s->slots = (uint8_t *)mem + l.slots;
}

static enum hvd_status set_up(struct hvi_shm *s, void *mem, const int32_t *ranks,
                              struct hvi_err *err)
{
    size_t n = (size_t)s->nlocal;

    map_segment(s, mem);
    s->ranks = malloc(n * sizeof(*s->ranks));
    s->peers = malloc(n * sizeof(*s->peers));
    s->uses = calloc((size_t)s->nslots, sizeof(*s->uses));
    s->cursors = malloc((n + 1) * sizeof(*s->cursors));
    s->gather = hvi_gather_new();
    s->share = hvi_shm_share_new(s->nlocal);
    if (s->ranks == NULL || s->peers == NULL || s->uses == NULL || s->cursors == NULL ||
        s->gather == NULL || s->share == NULL)
        return hvi_fail(err, HVD_ENOMEM, "shm: no memory for %d ranks", s->nlocal);
    memcpy(s->ranks, ranks, n * sizeof(*ranks));
    s->cache_bytes = hvi_cache_share(s->nlocal);
    hvi_spin_init(&s->spin, s->nlocal);
    prefault(s);
    return HVD_OK;
}

enum hvd_status hvi_shm_attach(void *mem, struct hvi_bells *bells, int local,
                               int nlocal, const int32_t *ranks, struct hvi_plane **out,
                               struct hvi_err *err)
{
    enum hvd_status rc = check_segment(mem, local, nlocal, ranks, err);
    struct hvi_shm *s;

    if (rc != HVD_OK)
        return rc;
    s = calloc(1, sizeof(*s));
    if (s == NULL)
        return hvi_fail(err, HVD_ENOMEM, "shm: no memory for the plane");
    s->base = (struct hvi_plane){.ops = &shm_ops, .rank = ranks[local]};
    s->magic = PLANE_MAGIC;
    s->bells = bells;
    s->local = local;
    s->nlocal = nlocal;
    rc = set_up(s, mem, ranks, err);
    if (rc == HVD_OK)
        *out = (struct hvi_plane *)(void *)s; /* base is first */
    else
        shm_free(&s->base);
    return rc;
}
