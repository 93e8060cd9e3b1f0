/*
 * Planes tcp and hosts: readiness of known ids, and the order (PROTOCOL.md section 5).
 * An id is complete when every member of its set is ready or has joined; what became
 * complete in one step is fused and sent to all ranks as one ORDER, higher priority
 * first. On plane hosts a READY speaks for all members on the sender's host, and ORDER
 * goes to one rank of each host, with what concerns it. Where process sets leave that
 * rank out it goes to a second one as well, so that none of them waits for a rank that is
 * stopped and not a member.
 */
#include "coordinator/core/state.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"

#define GROUP_MAX_IDS 1024 /* as on the host board */
/* ORDER to one of two forwarders that has said nothing meanwhile: it is asked, then left
 * out while the other one reads. Less than a stopped rank's socket holds. */
#define UNHEARD_ASK_BYTES (16 * 1024)
#define UNHEARD_MAX_BYTES (32 * 1024)

void hvi_ready_clear(struct slot *slot)
{
    memset(&slot->ready, 0, sizeof slot->ready);
    slot->nready = 0;
    slot->queued = slot->joined = false;
    hvi_list_remove(&slot->partial);
}

void hvi_ready_complete(struct hvi_core *core, struct slot *slot)
{
    HVI_ASSERT(!slot->queued && core->nqueue < core->cfg.cache_capacity);
    slot->queued = true;
    hvi_list_remove(&slot->partial);
    core->queue[core->nqueue++] = slot->id;
}

static void check_complete(struct hvi_core *core, struct slot *s)
{
    if (s->nready + hvi_negotiate_joined(core, s->set, &s->ready) == s->set->nranks)
        hvi_ready_complete(core, s);
}

static const struct host *host_of(const struct hvi_core *core, int32_t rank)
{
    return &core->hosts[core->places[rank].host_index];
}

/* Who a READY of this rank speaks for. */
static struct host speaks_for(const struct hvi_core *core, int32_t rank)
{
    if (core->plane == HVI_PLANE_HOSTS)
        return *host_of(core, rank);
    return (struct host){.first = rank, .count = 1};
}

/* What keeps READY from counting, NULL: nothing. */
static const char *check_ready(const struct slot *s, struct host from)
{
    bool any = false;

    for (int32_t r = from.first; r < from.first + from.count; r++) {
        if (rankset_has(&s->ready, r))
            return "twice";
        any = any || rankset_has(&s->set->set, r);
    }
    return any ? NULL : "of another process set";
}

bool hvi_ready_mark(struct hvi_core *core, struct conn *c, uint32_t id,
                    uint32_t generation)
{
    bool joined = core->plane == HVI_PLANE_HOSTS && (id & HVI_READY_JOINED) != 0;
    struct host from = speaks_for(core, c->rank);
    const char *wrong;
    struct slot *s;

    if (joined)
        id &= ~HVI_READY_JOINED;
    s = id < core->nslots_used ? &core->slots[id] : NULL;
    if (s == NULL || generation > s->generation) {
        hvi_core_violation(core, c, "READY of unknown id %u, generation %u", id,
                           generation);
        return false;
    }
    if (s->req == NULL || generation < s->generation)
        return true; /* the EVICT is on its way */
    wrong = check_ready(s, from);
    if (wrong != NULL) {
        hvi_core_violation(core, c, "READY of id %u %s", id, wrong);
        return false;
    }
    for (size_t i = 0; core->gone_any && i < HVD_RANKS_MAX / 64; i++)
        if ((s->set->set.w[i] & core->gone.w[i]) != 0)
            return true; /* PEER_BYE is on its way */
    if (s->nready == 0) {
        hvi_list_append(&core->partial, &s->partial);
    }
    for (int32_t r = from.first; r < from.first + from.count; r++)
        if (rankset_has(&s->set->set, r)) {
            rankset_add(&s->ready, r);
            s->nready++;
        }
    s->joined = s->joined || joined;
    check_complete(core, s);
    return true;
}

void hvi_ready_frame(struct hvi_core *core, struct conn *c, uint32_t epoch,
                     const struct hvi_ready_id *ids, uint32_t nids)
{
    if (epoch != core->epoch) {
        hvi_core_violation(core, c, "READY of epoch %u in epoch %u", epoch,
                           core->epoch);
        return;
    }
    if (core->plane == HVI_PLANE_SHM) {
        hvi_core_violation(core, c, "READY on plane shm");
        return;
    }
    for (uint32_t i = 0; i < nids && !core->oom; i++)
        if (!hvi_ready_mark(core, c, ids[i].id, ids[i].generation))
            return;
}

void hvi_ready_recheck(struct hvi_core *core)
{
    struct hvi_link *it, *tmp;

    HVI_LIST_EACH(&core->partial, it, tmp)
    check_complete(core, HVI_CONTAINER(it, struct slot, partial));
}

/* ---- the order */

/* Stable: what was complete first stays first among equals. */
static void sort_by_priority(struct hvi_core *core)
{
    for (uint32_t i = 1; i < core->nqueue; i++) {
        uint32_t id = core->queue[i];
        int32_t priority = core->slots[id].req->priority;
        uint32_t k = i;

        for (; k > 0 && core->slots[core->queue[k - 1]].req->priority < priority; k--)
            core->queue[k] = core->queue[k - 1];
        core->queue[k] = id;
    }
}

static bool spoiled(const struct hvi_core *core, const struct slot *s)
{
    return s->req->kind != HVD_ALLREDUCE &&
           (s->joined || hvi_negotiate_joined(core, s->set, &s->ready) > 0);
}

/* Moves the ids that run with queue[at] to ids; what is taken is marked as not queued. */
static uint32_t collect_group(struct hvi_core *core, uint32_t at, uint32_t *ids)
{
    struct slot *first = &core->slots[core->queue[at]];
    uint64_t bytes = (uint64_t)hvi_request_bytes(first->req);
    bool fuses = hvi_request_fuses(first->req, first->req) && !spoiled(core, first);
    uint32_t n = 0;

    ids[n++] = first->id;
    first->queued = false;
    for (uint32_t i = at + 1; fuses && i < core->nqueue && n < GROUP_MAX_IDS &&
                              bytes < core->cfg.fusion_bytes;
         i++) {
        struct slot *s = &core->slots[core->queue[i]];
        uint64_t more = (uint64_t)hvi_request_bytes(s->req);

        if (!s->queued || bytes + more > core->cfg.fusion_bytes ||
            !hvi_request_fuses(first->req, s->req) || spoiled(core, s))
            continue;
        ids[n++] = s->id;
        s->queued = false;
        bytes += more;
    }
    return n;
}

static struct hvi_out *order_frame(struct hvi_core *core,
                                   const struct hvi_order_group *groups, uint32_t count)
{
    struct hvi_out *f = hvi_core_alloc(core, 1, sizeof *f);

    if (f == NULL)
        return NULL;
    f->refs = 1;
    if (hvi_order_put(&f->head, core->epoch, groups, count) != HVD_OK)
        core->oom = true;
    return f;
}

static void send_to_ranks(struct hvi_core *core, const struct hvi_order_group *groups,
                          uint32_t count)
{
    struct hvi_out *f = order_frame(core, groups, count);

    for (int32_t r = 0; r < core->size && !core->oom; r++)
        if (hvi_member_live(&core->members[r]))
            hvi_emit_send(core, core->members[r].conn, f, false, false);
    hvi_out_unref(f);
}

void hvi_ready_mark_seq(struct hvi_core *core, const struct conn *c)
{
    Hvi__Mark m = HVI__MARK__INIT;
    uint64_t *told;

    if (c == NULL || core->plane != HVI_PLANE_HOSTS || core->phase != EP_OPEN)
        return;
    told = &core->members[c->rank].told_seq;
    m.epoch = core->epoch;
    m.seq = host_of(core, c->rank)->sent_seq;
    if (*told >= m.seq)
        return;
    *told = m.seq;
    hvi_emit_msg(core, c, HVI_MSG_MARK, &m, false);
}

/* The lowest living rank of a host in a process set, -1: none, or `without` is a member. */
static int32_t lowest(const struct hvi_core *core, const struct host *h,
                      const struct pset *set, int32_t without)
{
    if (without >= 0 && rankset_has(&set->set, without))
        return -1;
    for (int32_t r = h->first; r < h->first + h->count; r++)
        if (hvi_member_live(&core->members[r]) && rankset_has(&set->set, r))
            return r;
    return -1;
}

static bool still_forwards(const struct hvi_core *core, int32_t rank)
{
    return rank < 0 || hvi_member_live(&core->members[rank]);
}

/* The lowest rank of the host, and the lowest of those in process sets without it. */
static void choose_forwarders(struct hvi_core *core, struct host *h)
{
    struct pset *set, *tmp;
    int32_t first, second = -1;

    if (h->chosen == core->pset_changes && still_forwards(core, h->forwarders[0]) &&
        still_forwards(core, h->forwarders[1]))
        return;
    first = lowest(core, h, hvi_psets_find(core, 0), -1);
    HASH_ITER(hh, core->psets, set, tmp)
    {
        int32_t r = first >= 0 ? lowest(core, h, set, first) : -1;

        if (r >= 0 && (second < 0 || r < second))
            second = r;
    }
    h->chosen = core->pset_changes;
    h->forwarders[0] = first;
    h->forwarders[1] = second;
}

/* Forwarder i of the two seems not to read, and the other one does. */
static bool lags(const struct hvi_core *core, const struct host *h, int i)
{
    return core->members[h->forwarders[i]].unheard_bytes > UNHEARD_MAX_BYTES &&
           core->members[h->forwarders[1 - i]].unheard_bytes <= UNHEARD_MAX_BYTES;
}

static void ask_whether_it_reads(struct hvi_core *core, const struct member *m)
{
    Hvi__Probe probe = HVI__PROBE__INIT;

    probe.epoch = core->epoch;
    probe.name = (char *)"";
    hvi_emit_msg(core, m->conn, HVI_MSG_PROBE, &probe, false);
}

/* seq: what follows the last group of the frame. */
static void send_to_forwarder(struct hvi_core *core, struct member *m,
                              struct hvi_out *order, uint64_t seq, bool alone)
{
    size_t before = m->unheard_bytes;

    hvi_ready_mark_seq(core, m->conn);
    hvi_emit_send(core, m->conn, order, false, false);
    m->told_seq = seq;
    if (alone || order == NULL)
        return;
    m->unheard_bytes += hvi_buf_size(&order->head);
    if (before <= UNHEARD_ASK_BYTES && m->unheard_bytes > UNHEARD_ASK_BYTES)
        ask_whether_it_reads(core, m);
}

static void send_to_host(struct hvi_core *core, struct host *h, struct hvi_out *order,
                         uint64_t seq)
{
    bool alone = h->forwarders[1] < 0;
    bool skip[2] = {!alone && lags(core, h, 0), alone || lags(core, h, 1)};

    for (int i = 0; i < 2; i++)
        if (!skip[i])
            send_to_forwarder(core, &core->members[h->forwarders[i]], order, seq,
                              alone);
    h->sent_seq = seq;
}

/* Those of the groups that have members on host i; mine has room for all. */
static uint32_t groups_of(const struct hvi_core *core, int32_t i,
                          const struct hvi_order_group *groups, uint32_t count,
                          struct hvi_order_group *mine)
{
    uint32_t n = 0;

    for (uint32_t k = 0; k < count; k++)
        if (rankset_has(&core->slots[groups[k].ids[0]].set->hosts, i))
            mine[n++] = groups[k];
    return n;
}

static void send_to_hosts(struct hvi_core *core, const struct hvi_order_group *groups,
                          uint32_t count)
{
    struct hvi_order_group *mine = hvi_core_alloc(core, count, sizeof *mine);
    struct hvi_out *all = order_frame(core, groups, count);

    for (int32_t i = 0; i < core->nhosts && mine != NULL && !core->oom; i++) {
        struct host *h = &core->hosts[i];
        uint32_t n = groups_of(core, i, groups, count, mine);
        struct hvi_out *some;

        if (n == 0)
            continue;
        choose_forwarders(core, h);
        if (h->forwarders[0] < 0)
            continue;
        some = n < count ? order_frame(core, mine, n) : NULL;
        send_to_host(core, h, n < count ? some : all, mine[n - 1].seq + 1);
        hvi_out_unref(some);
    }
    hvi_out_unref(all);
    free(mine);
}

void hvi_ready_flush(struct hvi_core *core)
{
    struct hvi_order_group *groups;
    uint32_t *ids;
    uint32_t ngroups = 0;
    uint32_t nids = 0;

    if (core->nqueue == 0 || core->phase != EP_OPEN)
        return;
    groups = hvi_core_alloc(core, core->nqueue, sizeof *groups);
    ids = hvi_core_alloc(core, core->nqueue, sizeof *ids);
    if (groups == NULL || ids == NULL)
        goto done;
    sort_by_priority(core);
    for (uint32_t i = 0; i < core->nqueue; i++) {
        struct slot *s = &core->slots[core->queue[i]];
        struct hvi_order_group *g = &groups[ngroups];

        if (!s->queued)
            continue;
        g->seq = core->seq++;
        g->status = spoiled(core, s) ? HVD_EUNSUPPORTED : HVD_OK;
        g->ids = ids + nids;
        g->nids = collect_group(core, i, ids + nids);
        nids += g->nids;
        ngroups++;
    }
    if (core->plane == HVI_PLANE_HOSTS)
        send_to_hosts(core, groups, ngroups);
    else
        send_to_ranks(core, groups, ngroups);
    for (uint32_t i = 0; i < core->nqueue; i++) {
        struct slot *s = &core->slots[core->queue[i]];

        hvi_ready_clear(s);
        hvi_list_remove(&s->lru);
        hvi_list_append(&core->lru, &s->lru);
    }
    core->nqueue = 0;
done:
    free(groups);
    free(ids);
}
