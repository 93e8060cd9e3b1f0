/*
 * Plane tcp: readiness of known ids, and the order (PROTOCOL.md section 5). An id is
 * complete when every member of its set is ready or has joined; what became complete in
 * one step is fused and sent to all ranks as one ORDER, higher priority first.
 */
#include "coordinator/core/state.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"

#define GROUP_MAX_IDS 1024 /* as on the host board */

void hvi_ready_clear(struct slot *slot)
{
    memset(&slot->ready, 0, sizeof slot->ready);
    slot->nready = 0;
    slot->queued = false;
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

bool hvi_ready_mark(struct hvi_core *core, struct conn *c, uint32_t id,
                    uint32_t generation)
{
    struct slot *s = id < core->nslots_used ? &core->slots[id] : NULL;

    if (s == NULL || generation > s->generation) {
        hvi_core_violation(core, c, "READY of unknown id %u, generation %u", id,
                           generation);
        return false;
    }
    if (s->req == NULL || generation < s->generation)
        return true; /* the EVICT is on its way */
    if (!rankset_has(&s->set->set, c->rank) || rankset_has(&s->ready, c->rank)) {
        hvi_core_violation(core, c, "READY of id %u %s", id,
                           rankset_has(&s->ready, c->rank) ? "twice"
                                                           : "of another process set");
        return false;
    }
    for (size_t i = 0; core->gone_any && i < HVD_RANKS_MAX / 64; i++)
        if ((s->set->set.w[i] & core->gone.w[i]) != 0)
            return true; /* PEER_BYE is on its way */
    rankset_add(&s->ready, c->rank);
    if (s->nready++ == 0) {
        s->since_ms = core->now;
        hvi_list_append(&core->partial, &s->partial);
    }
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
           hvi_negotiate_joined(core, s->set, &s->ready) > 0;
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

static void send_order(struct hvi_core *core, const struct hvi_order_group *groups,
                       uint32_t count)
{
    struct hvi_out *f = hvi_core_alloc(core, 1, sizeof *f);

    if (f == NULL)
        return;
    f->refs = 1;
    if (hvi_order_put(&f->head, core->epoch, groups, count) != HVD_OK)
        core->oom = true;
    for (int32_t r = 0; r < core->size && !core->oom; r++)
        if (hvi_member_live(&core->members[r]))
            hvi_emit_send(core, core->members[r].conn, f, false, false);
    hvi_out_unref(f);
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
    send_order(core, groups, ngroups);
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
