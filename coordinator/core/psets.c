/*
 * Process sets. Adding and removing are calls of all ranks of the epoch: each rank's
 * calls queue here, and when every rank has one its oldest are compared and answered.
 */
#include "coordinator/core/state.h"

#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12's analyzer loses what is owned by a hash table or a list of actions */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

static int compare_ranks(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a;
    int32_t y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

static void sort_ranks(int32_t *ranks, size_t n)
{
    if (n > 1)
        qsort(ranks, n, sizeof *ranks, compare_ranks);
}

struct pset *hvi_psets_find(struct hvi_core *core, uint32_t id)
{
    struct pset *set;

    HASH_FIND(hh, core->psets, &id, sizeof id, set);
    return set;
}

enum hvd_status hvi_psets_check(int32_t *ranks, size_t nranks, int32_t size,
                                struct text *t)
{
    sort_ranks(ranks, nranks);
    if (nranks == 0) {
        hvi_text_add(t, "a process set needs at least one rank");
        return HVD_EINVAL;
    }
    for (size_t i = 0; i < nranks; i++) {
        if (ranks[i] < 0 || ranks[i] >= size) {
            hvi_text_add(t, "process set: there is no rank %d (0 to %d)", ranks[i],
                         size - 1);
            return HVD_EINVAL;
        }
        if (i > 0 && ranks[i] == ranks[i - 1]) {
            hvi_text_add(t, "process set: rank %d is repeated", ranks[i]);
            return HVD_EINVAL;
        }
    }
    return HVD_OK;
}

struct pset *hvi_psets_equal(struct hvi_core *core, const int32_t *ranks,
                             int32_t nranks)
{
    struct pset *set, *tmp;

    HASH_ITER(hh, core->psets, set, tmp)
    {
        if (set->nranks == nranks &&
            memcmp(set->ranks, ranks, (size_t)nranks * sizeof *ranks) == 0)
            return set;
    }
    return NULL;
}

static void free_set(struct hvi_core *core, struct pset *set)
{
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it does not follow the table */
    HASH_DEL(core->psets, set);
    core->pset_changes++;
    free(set->ranks);
    free(set);
}

struct pset *hvi_psets_make(struct hvi_core *core, const int32_t *ranks, int32_t nranks)
{
    struct pset *set = hvi_core_alloc(core, 1, sizeof *set);

    if (set == NULL)
        return NULL;
    set->ranks = hvi_core_alloc(core, (size_t)nranks, sizeof *set->ranks);
    if (set->ranks == NULL) {
        free(set);
        return NULL;
    }
    memcpy(set->ranks, ranks, (size_t)nranks * sizeof *ranks);
    set->nranks = nranks;
    for (int32_t i = 0; i < nranks; i++) {
        rankset_add(&set->set, ranks[i]);
        rankset_add(&set->hosts, core->places[ranks[i]].host_index);
    }
    set->id = core->next_pset;
    HASH_ADD(hh, core->psets, id, sizeof set->id, set);
    if (set->hh.tbl == NULL) {
        core->oom = true;
        free(set->ranks);
        free(set);
        return NULL;
    }
    core->next_pset++;
    core->pset_changes++;
    return set;
}

/* ---- calls */

static void free_calls(struct hvi_core *core, struct member *m)
{
    core->ncalling -= m->calls != NULL;
    while (m->calls != NULL) {
        struct pset_call *call = m->calls;

        m->calls = call->next;
        free(call->ranks);
        free(call);
    }
    m->last_call = NULL;
    m->ncalls = 0;
}

static void pop_calls(struct hvi_core *core)
{
    for (int32_t r = 0; r < core->size; r++) {
        struct member *m = &core->members[r];
        struct pset_call *call = m->calls;

        m->calls = call->next;
        if (m->calls == NULL) {
            m->last_call = NULL;
            core->ncalling--;
        }
        m->ncalls--;
        m->call_ms = core->now;
        free(call->ranks);
        free(call);
    }
}

static bool same_call(const struct pset_call *a, const struct pset_call *b)
{
    return a->add == b->add && a->pset == b->pset && a->nranks == b->nranks &&
           (a->nranks == 0 ||
            memcmp(a->ranks, b->ranks, (size_t)a->nranks * sizeof *a->ranks) == 0);
}

static void add_call(struct text *t, const struct pset_call *call, int32_t rank)
{
    if (!call->add) {
        hvi_text_add(t, "hvd_pset_remove(%u) on rank %d", call->pset, rank);
        return;
    }
    hvi_text_add(t, "hvd_pset_add([");
    for (int32_t i = 0; i < call->nranks && i < 16; i++)
        hvi_text_add(t, "%s%d", i > 0 ? ", " : "", call->ranks[i]);
    hvi_text_add(t, "%s]) on rank %d", call->nranks > 16 ? ", ..." : "", rank);
}

static void reply(struct hvi_core *core, const struct conn *only,
                  const struct pset_call *call, uint32_t id, enum hvd_status status,
                  const char *text)
{
    Hvi__PsetReply m = HVI__PSET_REPLY__INIT;

    m.epoch = core->epoch;
    m.add = call->add;
    m.pset = id;
    m.status = status;
    m.text = (char *)(uintptr_t)text;
    if (status == HVD_OK && call->add) {
        m.n_ranks = (size_t)call->nranks;
        m.ranks = call->ranks;
    }
    if (only != NULL)
        hvi_emit_msg(core, only, HVI_MSG_PSET_REPLY, &m, false);
    else
        hvi_emit_all(core, NULL, -1, HVI_MSG_PSET_REPLY, &m);
}

static enum hvd_status do_add(struct hvi_core *core, const struct pset_call *call,
                              uint32_t *id, struct text *t)
{
    struct pset *set;
    enum hvd_status rc =
        hvi_psets_check(call->ranks, (size_t)call->nranks, core->size, t);

    if (rc != HVD_OK)
        return rc;
    set = hvi_psets_equal(core, call->ranks, call->nranks);
    if (set != NULL) {
        *id = set->id;
        hvi_text_add(t, "process set %u has the same ranks", set->id);
        return HVD_EDUPLICATE;
    }
    if (HASH_COUNT(core->psets) > HVI_PSETS_MAX) {
        hvi_text_add(t, "more than %d process sets", HVI_PSETS_MAX);
        return HVD_ELIMIT;
    }
    set = hvi_psets_make(core, call->ranks, call->nranks);
    if (set != NULL)
        *id = set->id;
    return HVD_OK;
}

static enum hvd_status do_remove(struct hvi_core *core, const struct pset_call *call,
                                 uint32_t *id, struct text *t)
{
    struct pset *set = hvi_psets_find(core, call->pset);

    *id = call->pset;
    if (set == NULL || set->id == 0) {
        hvi_text_add(t, "process set %u %s", call->pset,
                     set == NULL ? "does not exist" : "cannot be removed");
        return HVD_EINVAL;
    }
    hvi_negotiate_drop_set(core, set);
    free_set(core, set);
    return HVD_OK;
}

static void answer(struct hvi_core *core)
{
    const struct pset_call *first = core->members[0].calls;
    enum hvd_status rc = HVD_OK;
    struct text t = {.n = 0};
    uint32_t id = 0;

    for (int32_t r = 1; r < core->size && rc == HVD_OK; r++)
        if (!same_call(first, core->members[r].calls)) {
            hvi_text_add(&t, "the ranks disagree: ");
            add_call(&t, first, 0);
            hvi_text_add(&t, ", ");
            add_call(&t, core->members[r].calls, r);
            rc = HVD_EMISMATCH;
        }
    hvi_ready_flush(core);
    if (rc == HVD_OK)
        rc =
            first->add ? do_add(core, first, &id, &t) : do_remove(core, first, &id, &t);
    if (!core->oom)
        reply(core, NULL, first, id, rc, t.s);
    pop_calls(core);
}

static bool push_call(struct hvi_core *core, struct member *m, bool add, uint32_t pset,
                      const int32_t *ranks, size_t nranks)
{
    struct pset_call *call = hvi_core_alloc(core, 1, sizeof *call);

    if (call == NULL)
        return false;
    call->add = add;
    call->pset = pset;
    call->ranks = hvi_core_alloc(core, nranks, sizeof *ranks);
    if (call->ranks == NULL) {
        free(call);
        return false;
    }
    call->nranks = (int32_t)nranks;
    if (nranks > 0)
        memcpy(call->ranks, ranks, nranks * sizeof *ranks);
    sort_ranks(call->ranks, nranks);
    if (m->last_call != NULL)
        m->last_call->next = call;
    else
        m->calls = call;
    m->last_call = call;
    if (m->ncalls++ == 0) {
        m->call_ms = core->now;
        core->ncalling++;
    }
    return true;
}

void hvi_psets_call(struct hvi_core *core, struct conn *c, bool add, uint32_t pset,
                    const int32_t *ranks, size_t nranks)
{
    struct member *m = hvi_core_member(core, c);

    if (m->ncalls == HVI_PSET_CALLS_MAX) {
        hvi_core_violation(core, c, "more than %d process set calls pending",
                           HVI_PSET_CALLS_MAX);
        return;
    }
    if (core->gone_any) {
        struct pset_call call = {.add = add};

        reply(core, c, &call, pset, HVD_ESHUTDOWN,
              "a rank has left the job (hvd_shutdown)");
        return;
    }
    if (!push_call(core, m, add, pset, ranks, nranks))
        return;
    if (core->ncalling == core->size)
        answer(core);
}

/* PEER_BYE answers what waits here. */
void hvi_psets_gone(struct hvi_core *core)
{
    for (int32_t r = 0; r < core->size; r++)
        free_calls(core, &core->members[r]);
}

void hvi_psets_end(struct hvi_core *core)
{
    struct pset *set, *tmp;

    HASH_ITER(hh, core->psets, set, tmp)
    {
        free_set(core, set);
    }
    for (int32_t r = 0; core->members != NULL && r < core->size; r++)
        free_calls(core, &core->members[r]);
}
