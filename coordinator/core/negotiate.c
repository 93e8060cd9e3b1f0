/*
 * First-time operations (PROTOCOL.md section 5). Happy path: every member announces the
 * name; the requests are equal; the name gets an id (ASSIGN to all members). On plane
 * tcp that also makes the id ready on those who announced it, on plane hosts if these
 * are all members.
 *
 * Failure paths: requests differ, or a member has joined and the kind is not allreduce:
 * FAIL to all members, the job goes on. A rank announces another request under a name
 * that has an id: EVICT, and those who have it published announce again. A member that
 * said BYE takes the operation with it; PEER_BYE tells the others.
 */
#include "coordinator/core/state.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"

/* A request must also fit an ASSIGN, which holds a little more than its ANNOUNCE. */
#define REQUEST_MAX_BYTES (HVI_FRAME_MAX_BYTES - 256)

struct keybuf {
    uint8_t bytes[4 + HVD_NAME_MAX];
    unsigned size;
};

static void make_key(struct keybuf *k, uint32_t pset, const char *name)
{
    struct hvi_cursor cur;
    size_t n = strnlen(name, HVD_NAME_MAX);

    hvi_cursor_init(&cur, k->bytes, sizeof k->bytes);
    hvi_put_u32(&cur, pset);
    hvi_put_bytes(&cur, name, n);
    k->size = (unsigned)(4 + n);
}

struct op *hvi_negotiate_op(struct hvi_core *core, uint32_t pset, const char *name)
{
    struct keybuf k;
    struct op *op;

    make_key(&k, pset, name);
    HASH_FIND(hh, core->ops, k.bytes, k.size, op);
    return op;
}

struct slot *hvi_negotiate_slot(struct hvi_core *core, uint32_t pset, const char *name)
{
    struct keybuf k;
    struct slot *slot;

    make_key(&k, pset, name);
    HASH_FIND(hh, core->by_name, k.bytes, k.size, slot);
    return slot;
}

static bool set_has_gone(const struct hvi_core *core, const struct pset *set)
{
    for (size_t i = 0; core->gone_any && i < HVD_RANKS_MAX / 64; i++)
        if ((set->set.w[i] & core->gone.w[i]) != 0)
            return true;
    return false;
}

int32_t hvi_negotiate_joined(const struct hvi_core *core, const struct pset *set,
                             const struct rankset *who)
{
    int32_t n = 0;

    for (int32_t i = 0; core->njoined > 0 && i < set->nranks; i++)
        n += core->members[set->ranks[i]].joined && !rankset_has(who, set->ranks[i]);
    return n;
}

static uint64_t request_cost(const struct hvi_request *r)
{
    return sizeof *r + strlen(r->name) + (uint64_t)r->ntensors * sizeof *r->shapes;
}

/* ---- operations */

static void uncount(struct hvi_core *core, int32_t rank, const struct hvi_request *r)
{
    core->members[rank].npending--;
    core->members[rank].pending_bytes -= request_cost(r);
}

static void free_op(struct hvi_core *core, struct op *op)
{
    while (op->variants != NULL) {
        struct variant *v = op->variants;

        op->variants = v->next;
        for (int32_t r = 0; v->req != NULL && r < core->size; r++)
            if (rankset_has(&v->who, r))
                uncount(core, r, v->req);
        hvi_request_free(v->req);
        free(v);
    }
    /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it does not follow the table */
    HASH_DEL(core->ops, op);
    free(op->key.bytes);
    free(op);
}

static struct op *new_op(struct hvi_core *core, struct pset *set, const char *name)
{
    struct op *op = hvi_core_alloc(core, 1, sizeof *op);
    struct keybuf k;

    if (op == NULL)
        return NULL;
    make_key(&k, set->id, name);
    op->key.bytes = hvi_core_alloc(core, k.size, 1);
    if (op->key.bytes == NULL) {
        free(op);
        return NULL;
    }
    memcpy(op->key.bytes, k.bytes, k.size);
    op->key.size = k.size;
    op->set = set;
    HASH_ADD_KEYPTR(hh, core->ops, op->key.bytes, op->key.size, op);
    if (op->hh.tbl != NULL)
        return op;
    core->oom = true;
    free(op->key.bytes);
    free(op);
    return NULL;
}

/* Takes req: an equal one of another rank is kept instead. false: out of memory. */
static bool add_variant(struct hvi_core *core, struct op *op, struct hvi_request *req,
                        int32_t rank)
{
    struct variant **at = &op->variants;

    core->members[rank].npending++;
    core->members[rank].pending_bytes += request_cost(req);
    op->nannounced++;
    rankset_add(&op->announced, rank);
    for (; *at != NULL; at = &(*at)->next)
        if (hvi_request_same((*at)->req, req)) {
            rankset_add(&(*at)->who, rank);
            hvi_request_free(req);
            return true;
        }
    *at = hvi_core_alloc(core, 1, sizeof **at);
    if (*at == NULL) {
        hvi_request_free(req);
        return false;
    }
    (*at)->req = req;
    (*at)->first = rank;
    rankset_add(&(*at)->who, rank);
    return true;
}

/* ---- failing */

static void send_fail(struct hvi_core *core, const struct rankset *who,
                      const char *name, uint32_t pset, enum hvd_status status,
                      const char *text)
{
    Hvi__Fail m = HVI__FAIL__INIT;

    m.epoch = core->epoch;
    m.name = (char *)(uintptr_t)name;
    m.pset = pset;
    m.status = status;
    m.text = (char *)(uintptr_t)text;
    hvi_emit_all(core, who, -1, HVI_MSG_FAIL, &m);
}

static void add_ranks(struct text *t, const struct rankset *who, int32_t size)
{
    int32_t n = 0, i = 0;

    for (int32_t r = 0; r < size; r++)
        n += rankset_has(who, r);
    hvi_text_add(t, n == 1 ? "rank " : "ranks ");
    for (int32_t r = 0; r < size && i < 16; r++)
        if (rankset_has(who, r)) {
            hvi_text_sep(t, i, n);
            hvi_text_add(t, "%d", r);
            i++;
        }
    if (i < n)
        hvi_text_add(t, " and %d more", n - i);
}

static int32_t lowest(const struct rankset *who)
{
    int32_t r = 0;

    while (!rankset_has(who, r))
        r++;
    return r;
}

/* The variant whose lowest rank follows `after`; NULL: none. */
static const struct variant *next_variant(const struct op *op, int32_t after)
{
    const struct variant *best = NULL;

    for (const struct variant *v = op->variants; v != NULL; v = v->next)
        if (lowest(&v->who) > after &&
            (best == NULL || lowest(&v->who) < lowest(&best->who)))
            best = v;
    return best;
}

/* "the ranks disagree: shape [2] on rank 0, [3] on rank 2 (ranks 0 and 1 against ...)" */
static void fail_mismatch(struct hvi_core *core, struct op *op)
{
    const struct variant *a = next_variant(op, -1);
    const struct variant *b = next_variant(op, lowest(&a->who));
    struct text t = {.n = 0};
    char what[512], safe[600];

    HVI_ASSERT(b != NULL);
    hvi_request_explain(a->req, lowest(&a->who), b->req, lowest(&b->who), what,
                        sizeof what);
    hvi_text_add(&t, "the ranks disagree: %s",
                 hvi_escape(safe, sizeof safe, what, strlen(what)));
    if (op->nannounced > 2) {
        hvi_text_add(&t, " (");
        add_ranks(&t, &a->who, core->size);
        for (; b != NULL; b = next_variant(op, lowest(&b->who))) {
            hvi_text_add(&t, " against ");
            add_ranks(&t, &b->who, core->size);
        }
        hvi_text_add(&t, ")");
    }
    send_fail(core, &op->set->set, a->req->name, op->set->id, HVD_EMISMATCH, t.s);
    free_op(core, op);
}

static void fail_joined(struct hvi_core *core, struct op *op)
{
    struct rankset joined = {{0}};
    struct text t = {.n = 0};

    for (int32_t i = 0; i < op->set->nranks; i++)
        if (core->members[op->set->ranks[i]].joined)
            rankset_add(&joined, op->set->ranks[i]);
    add_ranks(&t, &joined, core->size);
    hvi_text_add(&t, " joined (hvd_join); only allreduce can run until all have");
    send_fail(core, &op->set->set, op->variants->req->name, op->set->id,
              HVD_EUNSUPPORTED, t.s);
    free_op(core, op);
}

/* ---- ids */

void hvi_negotiate_evict(struct hvi_core *core, struct slot *slot)
{
    Hvi__Evict m = HVI__EVICT__INIT;

    if (slot->queued)
        hvi_ready_flush(core);
    m.epoch = core->epoch;
    m.id = slot->id;
    m.generation = slot->generation;
    hvi_emit_all(core, NULL, -1, HVI_MSG_EVICT, &m);
    hvi_ready_clear(slot);
    HASH_DELETE(hh, core->by_name, slot);
    hvi_list_remove(&slot->lru);
    hvi_request_free(slot->req);
    free(slot->key.bytes);
    slot->req = NULL;
    slot->key.bytes = NULL;
    slot->set = NULL;
    core->free_ids[core->nfree++] = slot->id;
}

static struct slot *oldest(struct hvi_core *core)
{
    struct hvi_link *it, *tmp;

    HVI_LIST_EACH(&core->lru, it, tmp)
    {
        struct slot *s = HVI_CONTAINER(it, struct slot, lru);

        if (s->nready == 0)
            return s;
    }
    return HVI_CONTAINER(core->lru.next, struct slot, lru);
}

static struct slot *take_slot(struct hvi_core *core)
{
    struct slot *s;

    if (core->nfree == 0 && core->nslots_used == core->cfg.cache_capacity) {
        hvi_ready_flush(core);
        hvi_negotiate_evict(core, oldest(core));
    }
    if (core->nfree > 0) {
        s = &core->slots[core->free_ids[--core->nfree]];
    } else {
        s = &core->slots[core->nslots_used];
        s->id = core->nslots_used++;
        hvi_list_init(&s->lru);
        hvi_list_init(&s->partial);
    }
    return s;
}

static void assign(struct hvi_core *core, struct op *op)
{
    Hvi__Assign m = HVI__ASSIGN__INIT;
    struct slot *s = take_slot(core);
    struct variant *v = op->variants;
    struct rankset announced = op->announced;
    int32_t nannounced = op->nannounced;
    bool hosts = core->plane == HVI_PLANE_HOSTS;

    for (int32_t r = 0; r < core->size; r++)
        if (rankset_has(&v->who, r))
            uncount(core, r, v->req);
    s->generation++;
    s->req = v->req;
    s->set = op->set;
    s->key = op->key;
    v->req = NULL;
    op->key.bytes = NULL;
    free_op(core, op);
    HASH_ADD_KEYPTR(hh, core->by_name, s->key.bytes, s->key.size, s);
    if (!hvi_hash_added(s))
        core->oom = true;
    hvi_list_append(&core->lru, &s->lru);
    m.epoch = core->epoch;
    m.id = s->id;
    m.generation = s->generation;
    m.ordered = hosts && nannounced == s->set->nranks;
    m.request = hvi_request_to_msg(s->req);
    /* plane hosts: a forwarder need not be a member */
    if (m.request != NULL)
        hvi_emit_all(core, hosts ? NULL : &s->set->set, -1, HVI_MSG_ASSIGN, &m);
    else
        core->oom = true;
    hvi_request_msg_free(m.request);
    if (core->oom)
        return;
    if (core->plane == HVI_PLANE_SHM || (hosts && !m.ordered))
        return;
    s->ready = announced;
    s->nready = nannounced;
    hvi_ready_complete(core, s);
}

static void decide_op(struct hvi_core *core, struct op *op)
{
    int32_t joined = hvi_negotiate_joined(core, op->set, &op->announced);

    if (op->nannounced + joined < op->set->nranks)
        return;
    if (op->variants->next != NULL)
        fail_mismatch(core, op);
    else if (joined > 0 && op->variants->req->kind != HVD_ALLREDUCE)
        fail_joined(core, op);
    else
        assign(core, op);
}

/* ---- messages */

/* Of a request that is not of this coordinator's memory limits. The others will name
 * the rank as missing. */
static bool over_limit(struct hvi_core *core, struct conn *c,
                       const struct hvi_request *r)
{
    const struct member *m = hvi_core_member(core, c);
    struct rankset only = {{0}};
    struct text t = {.n = 0};

    if (m->npending < HVI_PENDING_MAX &&
        m->pending_bytes + request_cost(r) <= HVI_PENDING_MAX_BYTES)
        return false;
    hvi_text_add(
        &t, "rank %d has %u operations pending that other ranks have not submitted",
        c->rank, m->npending);
    rankset_add(&only, c->rank);
    send_fail(core, &only, r->name, r->pset, HVD_ELIMIT, t.s);
    return true;
}

static const char *check_request(const struct hvi_core *core, const struct pset *set,
                                 const struct hvi_request *r)
{
    uint64_t bytes = 64 + strlen(r->name);

    for (uint32_t i = 0; i < r->ntensors; i++)
        bytes += 10 + (uint64_t)r->shapes[i].ndim * 10;
    if (bytes > REQUEST_MAX_BYTES)
        return "is too large";
    if (r->kind == HVD_BROADCAST &&
        (r->root >= core->size || !rankset_has(&set->set, r->root)))
        return "has a root outside of its process set";
    return NULL;
}

/* false: the connection is gone. Frees or keeps req. */
static bool take_request(struct hvi_core *core, struct conn *c, struct hvi_request *req)
{
    struct pset *set = hvi_psets_find(core, req->pset);
    const char *wrong = NULL;
    struct slot *slot;
    struct op *op;

    if (set == NULL && req->pset < core->next_pset) {
        hvi_request_free(req); /* removed meanwhile; the worker knows soon */
        return true;
    }
    if (set == NULL)
        wrong = "names an unknown process set";
    else if (!rankset_has(&set->set, c->rank))
        wrong = "is for a process set without this rank";
    else
        wrong = check_request(core, set, req);
    op = wrong == NULL ? hvi_negotiate_op(core, set->id, req->name) : NULL;
    if (op != NULL && rankset_has(&op->announced, c->rank))
        wrong = "was announced twice";
    if (wrong != NULL) {
        struct text t = {.n = 0};

        hvi_text_add_peer(&t, req->name);
        hvi_request_free(req);
        hvi_core_violation(core, c, "request '%s' %s", t.s, wrong);
        return false;
    }
    if (set_has_gone(core, set)) {
        hvi_request_free(req); /* PEER_BYE is on its way */
        return true;
    }
    slot = hvi_negotiate_slot(core, set->id, req->name);
    if (slot != NULL && hvi_request_same(slot->req, req)) {
        hvi_request_free(req); /* our ASSIGN is on its way; it counts as ready then */
        return core->plane != HVI_PLANE_TCP ||
               hvi_ready_mark(core, c, slot->id, slot->generation);
    }
    if (over_limit(core, c, req)) {
        hvi_request_free(req);
        return true;
    }
    if (slot != NULL)
        hvi_negotiate_evict(core, slot);
    if (op == NULL)
        op = new_op(core, set, req->name);
    if (op == NULL) {
        hvi_request_free(req);
        return true;
    }
    if (add_variant(core, op, req, c->rank))
        decide_op(core, op);
    return true;
}

void hvi_negotiate_announce(struct hvi_core *core, struct conn *c,
                            const Hvi__Announce *m)
{
    for (size_t i = 0; i < m->n_requests && !core->oom; i++) {
        struct hvi_request *req = NULL;
        struct hvi_err err = {""};
        enum hvd_status rc = hvi_request_from_msg(m->requests[i], &req, &err);

        if (rc == HVD_ENOMEM) {
            core->oom = true;
            return;
        }
        if (rc != HVD_OK) {
            hvi_core_violation(core, c, "%s", err.text);
            return;
        }
        if (!take_request(core, c, req))
            return;
    }
}

void hvi_negotiate_gone(struct hvi_core *core, int32_t rank)
{
    struct hvi_link *it, *tmp;
    struct op *op, *next;

    HASH_ITER(hh, core->ops, op, next)
    {
        if (rankset_has(&op->set->set, rank))
            free_op(core, op);
    }
    HVI_LIST_EACH(&core->partial, it, tmp)
    {
        struct slot *s = HVI_CONTAINER(it, struct slot, partial);

        if (rankset_has(&s->set->set, rank))
            hvi_ready_clear(s);
    }
}

void hvi_negotiate_recheck(struct hvi_core *core)
{
    struct op *op, *next;

    HASH_ITER(hh, core->ops, op, next)
    {
        decide_op(core, op);
        if (core->oom)
            return;
    }
}

void hvi_negotiate_drop_set(struct hvi_core *core, struct pset *set)
{
    struct hvi_link *it, *tmp;
    struct op *op, *next;

    HASH_ITER(hh, core->ops, op, next)
    {
        if (op->set == set)
            free_op(core, op);
    }
    HVI_LIST_EACH(&core->lru, it, tmp)
    {
        struct slot *s = HVI_CONTAINER(it, struct slot, lru);

        if (s->set == set)
            hvi_negotiate_evict(core, s);
    }
}

/* ---- begin and end of an epoch */

/* A host's ranks follow one another on plane hosts; on others nobody asks. */
static void list_hosts(struct hvi_core *core)
{
    core->nhosts = 0;
    for (int32_t r = 0; r < core->size; r++)
        if (core->places[r].host_index >= core->nhosts)
            core->nhosts = core->places[r].host_index + 1;
    free(core->hosts);
    core->hosts = hvi_core_alloc(core, (size_t)core->nhosts, sizeof *core->hosts);
    for (int32_t r = 0; core->hosts != NULL && r < core->size; r++) {
        struct host *h = &core->hosts[core->places[r].host_index];

        if (h->count++ == 0)
            h->first = r;
    }
}

void hvi_negotiate_begin(struct hvi_core *core)
{
    int32_t all[HVD_RANKS_MAX];

    for (int32_t r = 0; r < core->size; r++)
        all[r] = r;
    list_hosts(core);
    core->next_pset = 0;
    core->seq = 0;
    core->njoined = core->nsettled = 0;
    core->join_generation = 0;
    core->gone_any = false;
    core->stall_over = false;
    core->called_ms = -1;
    memset(&core->gone, 0, sizeof core->gone);
    (void)hvi_psets_make(core, all, core->size);
}

void hvi_negotiate_end(struct hvi_core *core)
{
    struct op *op, *next;

    HASH_ITER(hh, core->ops, op, next)
    {
        free_op(core, op);
    }
    HASH_CLEAR(hh, core->by_name);
    for (uint32_t i = 0; i < core->nslots_used; i++) {
        hvi_request_free(core->slots[i].req);
        free(core->slots[i].key.bytes);
    }
    memset(core->slots, 0, core->nslots_used * sizeof *core->slots);
    core->nslots_used = core->nfree = core->nqueue = 0;
    hvi_list_init(&core->lru);
    hvi_list_init(&core->partial);
    hvi_stall_end(core);
    hvi_psets_end(core);
}
