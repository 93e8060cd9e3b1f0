/*
 * The worker's half of the negotiation (PROTOCOL.md section 5).
 *
 * Happy path, first time: announce -> ASSIGN gives the name an id -> publish on the
 * host board (plane tcp, and plane hosts when ASSIGN says so: the coordinator already
 * counts us ready) -> the order names the id -> a struct hvi_run for the engine.
 * Afterwards the name is known: publish at once.
 *
 * Failure paths: FAIL completes an announced entry with the coordinator's text. EVICT
 * takes an id away: a published and not yet sealed entry is announced again. PEER_BYE
 * and shutdown cancel what has no place in the order; what has one is run to its end.
 *
 * The log is always read (pump) before an id changes its meaning, so that sealed ids
 * are resolved to the entries they meant.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/names.h"
#include "worker/core/ctx.h"
#include "worker/core/timeline.h"

#define ANNOUNCE_MAX_REQUESTS 256
#define ANNOUNCE_MAX_BYTES (256 * 1024) /* estimate; a frame holds 1 MiB */
/* A look-up walks a chain, a cache miss a link: the default lets chains grow to ten. */
#undef HASH_BKT_CAPACITY_THRESH
#define HASH_BKT_CAPACITY_THRESH 2U

/* ---- known names ---------------------------------------------------------------- */

static void known_free(struct hvi_known *k)
{
    if (k == NULL)
        return;
    hvi_request_free(k->req);
    free(k->key);
    free(k);
}

static void known_remove(struct hvi_ctx *c, struct hvi_known *k)
{
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): it does not follow the table */
    HASH_DEL(c->known, k);
    if (c->by_id[k->id] == k)
        c->by_id[k->id] = NULL;
    if (c->last_known == k)
        c->last_known = NULL;
    known_free(k);
}

static struct hvi_known *known_find(struct hvi_ctx *c, const char *key)
{
    struct hvi_known *k;

    HASH_FIND_STR(c->known, key, k);
    return k;
}

static bool is_key(const struct hvi_known *k, const struct hvi_entry *e)
{
    return k->hh.hashv == e->key_hash && k->hh.keylen == e->key_chars &&
           memcmp(k->key, e->key, e->key_chars) == 0;
}

/* Programs submit in much the same order again and again: the next one is looked for
 * behind the last, and on its way into the cache meanwhile. */
static void expect_next(struct hvi_ctx *c, struct hvi_known *k)
{
    const struct hvi_known *next;

    if (c->last_known != NULL)
        c->last_known->follower = k->id;
    c->last_known = k;
    next = c->by_id[k->follower];
    if (next != NULL) {
        __builtin_prefetch(next->key);
        __builtin_prefetch(next->req->shapes);
    }
    next = next != NULL ? c->by_id[next->follower] : NULL;
    if (next != NULL) {
        __builtin_prefetch(next);
        __builtin_prefetch((const char *)next + 64);
    }
}

static struct hvi_known *known_of(struct hvi_ctx *c, const struct hvi_entry *e)
{
    struct hvi_known *k = c->last_known;

    if (k != NULL && is_key(k, e))
        return k;
    k = k != NULL ? c->by_id[k->follower] : NULL;
    if (k != NULL && is_key(k, e))
        return k;
    HASH_FIND_BYHASHVALUE(hh, c->known, e->key, e->key_chars, e->key_hash, k);
    return k;
}

struct hvi_request *hvi_negotiate_known(struct hvi_ctx *c, const struct hvi_entry *e,
                                        const struct hvi_request *wanted)
{
    struct hvi_known *k = known_of(c, e);

    if (k == NULL)
        return NULL;
    expect_next(c, k);
    return hvi_request_equal(k->req, wanted) ? hvi_request_ref(k->req) : NULL;
}

static struct hvi_entry **chain_of(struct hvi_ctx *c, unsigned hash)
{
    return &c->flights[hash % HVI_FLIGHT_CHAINS];
}

/* The entry in flight under a key. */
static struct hvi_entry *find_flight(struct hvi_ctx *c, const char *key, unsigned chars,
                                     unsigned hash)
{
    struct hvi_entry *e = *chain_of(c, hash);

    while (e != NULL && (e->key_hash != hash || e->key_chars != chars ||
                         memcmp(e->key, key, chars) != 0))
        e = e->next_flight;
    return e;
}

static struct hvi_entry *entry_find(struct hvi_ctx *c, const char *key)
{
    unsigned chars = (unsigned)strlen(key);
    unsigned hash;

    HASH_VALUE(key, chars, hash);
    return find_flight(c, key, chars, hash);
}

static void flight_add(struct hvi_ctx *c, struct hvi_entry *e)
{
    struct hvi_entry **chain = chain_of(c, e->key_hash);

    e->next_flight = *chain;
    *chain = e;
    hvi_list_append(&c->inflight, &e->link);
    c->ninflight++;
}

static void flight_remove(struct hvi_ctx *c, struct hvi_entry *e)
{
    struct hvi_entry **at = chain_of(c, e->key_hash);

    while (*at != e)
        at = &(*at)->next_flight;
    *at = e->next_flight;
    hvi_list_remove(&e->link);
    c->ninflight--;
}

/* Something is to be written. A caller that waits at once writes it himself. */
static void want_flush(struct hvi_ctx *c)
{
    if (!c->sends_now)
        hvi_link_kick(c);
}

void hvi_negotiate_send_now(struct hvi_ctx *c)
{
    if (c->nannounce == 0 && c->nready == 0 && !c->claimed)
        return;
    hvi_negotiate_flush(c);
    if (hvi_conn_flush(&c->conn, NULL) != HVD_OK)
        hvi_link_kick(c);
}

/* ---- submitting ----------------------------------------------------------------- */

static enum hvd_status announce(struct hvi_ctx *c, struct hvi_entry *e)
{
    if (c->nannounce == c->announce_cap) {
        uint32_t cap = c->announce_cap > 0 ? c->announce_cap * 2 : 64;
        struct hvi_entry **a = realloc(c->announce, cap * sizeof(struct hvi_entry *));

        if (a == NULL)
            return HVD_ENOMEM;
        c->announce = a;
        c->announce_cap = cap;
    }
    e->state = HVI_ENTRY_ANNOUNCED;
    c->announce[c->nannounce++] = e;
    c->stats.cache_misses++;
    want_flush(c);
    return HVD_OK;
}

static enum hvd_status publish_tcp(struct hvi_ctx *c, uint32_t id, uint32_t generation)
{
    if (c->nready == c->ready_cap) {
        uint32_t cap = c->ready_cap > 0 ? c->ready_cap * 2 : 256;
        struct hvi_ready_id *r = realloc(c->ready, cap * sizeof *r);

        if (r == NULL)
            return HVD_ENOMEM;
        c->ready = r;
        c->ready_cap = cap;
    }
    c->ready[c->nready++] = (struct hvi_ready_id){id, generation};
    want_flush(c);
    return HVD_OK;
}

void hvi_negotiate_poll(struct hvi_ctx *c)
{
    struct hvi_board_mask wake;
    bool any;

    c->poll_owed = false;
    if (c->board_left)
        return;
    any = hvi_board_poll(c->board, &wake);
    if (c->mode == HVI_MODE_HOSTS && any) {
        c->claimed = true;
        want_flush(c);
    } else if (hvi_board_mask_any(&wake)) {
        hvi_bell_ring_mask(c->bells, wake.w);
    }
}

static enum hvd_status publish(struct hvi_ctx *c, struct hvi_entry *e,
                               struct hvi_known *k)
{
    enum hvd_status rc = HVD_OK;

    if (c->mode == HVI_MODE_TCP)
        rc = publish_tcp(c, k->id, k->generation);
    if (rc != HVD_OK)
        return rc;
    e->state = HVI_ENTRY_PUBLISHED;
    e->id = k->id;
    e->generation = k->generation;
    k->entry = e;
    if (c->board != NULL) {
        hvi_board_publish(c->board, c->bell, k->id, k->generation);
        /* nothing is sealed while this rank has a group to read; reading it polls */
        if (c->mode == HVI_MODE_SHM && hvi_board_unread(c->board, c->bell))
            c->poll_owed = true;
        else
            hvi_negotiate_poll(c);
    }
    return HVD_OK;
}

static void append_run(struct hvi_ctx *c, struct hvi_run *run)
{
    hvi_list_append(&c->runs, &run->link);
    atomic_fetch_add(&c->nruns, 1);
}

/* A job of one rank needs nobody's consent. */
static enum hvd_status run_solo(struct hvi_ctx *c, struct hvi_entry *e)
{
    static _Atomic uint64_t seq;
    struct hvi_run *run = hvi_run_new(e->pset, atomic_fetch_add(&seq, 1), 1);

    if (run == NULL)
        return HVD_ENOMEM;
    e->state = HVI_ENTRY_SEALED;
    run->items[0] = (struct hvi_run_item){e, e->req};
    append_run(c, run);
    return HVD_OK;
}

/* Its key is free: put it in flight. */
static enum hvd_status start(struct hvi_ctx *c, struct hvi_entry *e)
{
    struct hvi_known *k = known_of(c, e);
    enum hvd_status rc;

    flight_add(c, e);
    if (c->mode == HVI_MODE_SOLO) {
        rc = run_solo(c, e);
    } else if (k != NULL && (k->req == e->req || hvi_request_same(k->req, e->req))) {
        rc = publish(c, e, k);
        c->stats.cache_hits++;
    } else {
        rc = announce(c, e);
    }
    if (rc != HVD_OK)
        flight_remove(c, e);
    return rc;
}

static enum hvd_status check_gone(const struct hvi_ctx *c, const struct hvi_entry *e,
                                  struct hvi_err *err)
{
    for (int32_t i = 0; c->ngone > 0 && i < e->pset->size; i++) {
        int32_t r = e->pset->ranks[i];

        if (c->peers[r].gone)
            return hvi_fail(err, HVD_ESHUTDOWN,
                            "%s: rank %d (%s) has left the job (hvd_shutdown)",
                            e->req->name, r, c->peers[r].host);
    }
    return HVD_OK;
}

static bool unnamed(const struct hvi_entry *e)
{
    return strstr(e->req->name, ".noname.") != NULL ||
           strstr(e->req->name, ".unnamed_group.") != NULL;
}

enum hvd_status hvi_negotiate_submit(struct hvi_ctx *c, struct hvi_entry *e,
                                     struct hvi_err *err)
{
    enum hvd_status rc = check_gone(c, e, err);

    if (rc != HVD_OK)
        return rc;
    if (find_flight(c, e->key, e->key_chars, e->key_hash) != NULL) {
        if (!unnamed(e))
            return hvi_fail(err, HVD_EDUPLICATE,
                            "%s: a collective of the same name is already in flight in "
                            "process set %d; wait for it or use another name",
                            e->req->name, e->pset->id);
        e->state = HVI_ENTRY_LANE;
        hvi_list_append(&c->lanes, &e->link);
        c->ninflight++;
        return HVD_OK;
    }
    rc = start(c, e);
    if (rc != HVD_OK)
        return hvi_fail(err, rc, "%s: out of memory", e->req->name);
    return HVD_OK;
}

/* true: it was not written yet. */
static bool drop_announce(struct hvi_ctx *c, const struct hvi_entry *e)
{
    uint32_t before = c->nannounce;
    uint32_t kept = 0;

    for (uint32_t i = 0; i < c->nannounce; i++)
        if (c->announce[i] != e)
            c->announce[kept++] = c->announce[i];
    c->nannounce = kept;
    return kept < before;
}

/* The lane of an unnamed operation is free: the oldest that waits for it goes on. */
static void start_lane(struct hvi_ctx *c, const char *key)
{
    struct hvi_link *it;
    struct hvi_link *tmp;

    HVI_LIST_EACH(&c->lanes, it, tmp)
    {
        struct hvi_entry *e = HVI_CONTAINER(it, struct hvi_entry, link);

        if (strcmp(e->key, key) != 0)
            continue;
        hvi_list_remove(&e->link);
        c->ninflight--; /* start counts it again */
        if (start(c, e) != HVD_OK) {
            hvi_list_append(&c->lanes, &e->link);
            c->ninflight++;
        }
        return;
    }
}

/* JOIN, or JOIN again once nothing of before is in flight (PROTOCOL.md section 5). */
static void put_join(struct hvi_ctx *c)
{
    Hvi__Join m = HVI__JOIN__INIT;

    m.epoch = c->epoch;
    m.pending = c->join_pending = c->ninflight > 1; /* the join itself is one */
    hvi_conn_put(&c->conn, HVI_MSG_JOIN, &m);
    hvi_link_kick(c);
}

/* An entry has gone. */
static void settle_join(struct hvi_ctx *c)
{
    if (c->join_pending && c->join_op != NULL && c->ninflight == 1 && !c->closing &&
        atomic_load(&c->failed) == 0)
        put_join(c);
}

void hvi_negotiate_remove(struct hvi_ctx *c, struct hvi_entry *e)
{
    if (e->state == HVI_ENTRY_LANE) {
        hvi_list_remove(&e->link);
        c->ninflight--;
        settle_join(c);
        return;
    }
    flight_remove(c, e);
    if (e->state == HVI_ENTRY_ANNOUNCED)
        drop_announce(c, e);
    if (e->state == HVI_ENTRY_PUBLISHED && c->by_id[e->id] != NULL &&
        c->by_id[e->id]->entry == e)
        c->by_id[e->id]->entry = NULL;
    if (!hvi_list_empty(&c->lanes) && !c->closing && atomic_load(&c->failed) == 0)
        start_lane(c, e->key);
    settle_join(c);
}

void hvi_negotiate_join(struct hvi_ctx *c)
{
    c->ninflight++;
    if (c->mode == HVI_MODE_SOLO)
        return; /* the engine completes it after all runs */
    hvi_negotiate_flush(c);
    put_join(c);
    /* before the board knows: who joins because of it should come after it */
    hvi_conn_flush(&c->conn, NULL);
    if (c->board != NULL) {
        hvi_board_join(c->board, c->bell, c->join_generation);
        hvi_negotiate_poll(c);
    }
}

/* ---- writing to the coordinator -------------------------------------------------- */

static size_t estimate_bytes(const struct hvi_request *r)
{
    return 64 + strlen(r->name) + (size_t)r->ntensors * 48;
}

static void flush_announce(struct hvi_ctx *c)
{
    Hvi__Request *reqs[ANNOUNCE_MAX_REQUESTS];
    uint32_t i = 0;

    while (i < c->nannounce) {
        Hvi__Announce m = HVI__ANNOUNCE__INIT;
        size_t bytes = 0;
        size_t n = 0;

        while (i < c->nannounce && n < ANNOUNCE_MAX_REQUESTS &&
               (n == 0 || bytes < ANNOUNCE_MAX_BYTES)) {
            bytes += estimate_bytes(c->announce[i]->req);
            reqs[n] = hvi_request_to_msg(c->announce[i]->req);
            if (reqs[n] == NULL)
                break;
            n++;
            i++;
        }
        m.epoch = c->epoch;
        m.requests = reqs;
        m.n_requests = n;
        if (n > 0)
            hvi_conn_put(&c->conn, HVI_MSG_ANNOUNCE, &m);
        hvi_failpoint("announced");
        for (size_t k = 0; k < n; k++)
            hvi_request_msg_free(reqs[k]);
        if (n == 0)
            break; /* out of memory: try again at the next flush */
    }
    memmove(c->announce, c->announce + i, (c->nannounce - i) * sizeof *c->announce);
    c->nannounce -= i;
}

void hvi_negotiate_flush_paced(struct hvi_ctx *c)
{
    if (!hvi_gpu_holds(c))
        hvi_negotiate_flush(c);
    else if (c->nannounce > 0)
        flush_announce(c);
}

void hvi_negotiate_flush(struct hvi_ctx *c)
{
    if (c->nannounce > 0)
        flush_announce(c);
    if (c->claimed)
        hvi_forward_take(c);
    if (c->nready > 0) {
        struct hvi_buf frame = {0};

        if (hvi_ready_put(&frame, c->epoch, c->ready, c->nready) == HVD_OK &&
            hvi_conn_put_frame(&c->conn, &frame, false) == HVD_OK)
            c->nready = 0;
        hvi_buf_fini(&frame);
    }
}

/* ---- the order ------------------------------------------------------------------- */

/* Ids of one sealed group to a run. NULL: not a member, or no memory. */
static struct hvi_run *resolve(struct hvi_ctx *c, uint64_t seq, const uint32_t *ids,
                               uint32_t nids, uint32_t stride)
{
    struct hvi_known *k =
        nids > 0 && ids[0] < HVI_BOARD_MAX_IDS ? c->by_id[ids[0]] : NULL;
    struct hvi_pset *set = NULL;
    struct hvi_run *run;
    int64_t now_us = hvi_now_us();

    if (k != NULL)
        set = hvi_pset_find(c, (int32_t)k->req->pset);
    if (set == NULL || set->me < 0)
        return NULL;
    run = hvi_run_new(set, seq, nids);
    for (uint32_t i = 0; run != NULL && i < nids; i++) {
        uint32_t id = ids[i * stride];

        k = id < HVI_BOARD_MAX_IDS ? c->by_id[id] : NULL;
        if (k == NULL) {
            hvi_run_free(run);
            return NULL;
        }
        run->items[i].entry = k->entry;
        if (k->entry != NULL) {
            k->entry->state = HVI_ENTRY_SEALED;
            run->items[i].req = k->entry->req;
            k->entry->sealed_us = now_us;
            k->entry = NULL;
        } else {
            run->items[i].req = hvi_request_ref(k->req);
        }
    }
    return run;
}

static const char joined_text[] =
    "a rank has joined (hvd_join); only allreduce can run until every rank has joined";

/* Every id of the group has come from the coordinator. A rank that has joined may see a
 * group sealed by the others before its own ASSIGN arrives. */
static bool all_known(const struct hvi_ctx *c, const struct hvi_board_group *g)
{
    for (uint32_t i = 0; i < g->nids; i++) {
        uint32_t id = g->ids[i].id;

        if (id < HVI_BOARD_MAX_IDS &&
            (c->by_id[id] == NULL || c->by_id[id]->generation < g->ids[i].generation))
            return false;
    }
    return true;
}

/* The next so many groups of the board's log. */
static void pump(struct hvi_ctx *c, int most)
{
    if (c->board == NULL)
        return;
    for (; most > 0; most--) {
        struct hvi_board_group *g = &c->next_group;
        struct hvi_run *run;

        if (!c->have_next_group && !hvi_board_read(c->board, c->bell, g))
            break;
        c->have_next_group = !all_known(c, g);
        if (c->have_next_group)
            break; /* what is behind it has to wait too */
        run = resolve(c, g->seq, &g->ids[0].id, g->nids, 2);
        if (run == NULL)
            continue;
        if (g->joined_bad) {
            run->status = HVD_EUNSUPPORTED;
            run->text = joined_text;
        }
        append_run(c, run);
    }
    if (c->poll_owed || hvi_board_backlog(c->board))
        hvi_negotiate_poll(c);
}

void hvi_negotiate_pump(struct hvi_ctx *c)
{
    pump(c, INT_MAX);
}

void hvi_negotiate_next(struct hvi_ctx *c)
{
    if (hvi_list_empty(&c->runs))
        pump(c, 1);
}

static enum hvd_status on_order(struct hvi_ctx *c, const uint8_t *payload,
                                size_t size_bytes, struct hvi_err *err)
{
    struct hvi_order_group *groups = NULL;
    uint32_t count = 0;
    uint32_t epoch = 0;
    enum hvd_status rc;

    rc = hvi_order_get(payload, size_bytes, &epoch, &groups, &count, err);
    if (rc != HVD_OK)
        return rc;
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < count && epoch == c->epoch; i++) {
        struct hvi_run *run =
            resolve(c, groups[i].seq, groups[i].ids, groups[i].nids, 1);

        if (run == NULL)
            continue;
        run->status = (enum hvd_status)groups[i].status;
        run->text = groups[i].status == HVD_EUNSUPPORTED ? joined_text : NULL;
        append_run(c, run);
    }
    pthread_mutex_unlock(&c->lock);
    free(groups);
    hvi_engine_kick(c);
    return HVD_OK;
}

/* ---- messages of the coordinator ------------------------------------------------- */

static struct hvi_board_meta board_meta(const struct hvi_ctx *c,
                                        const struct hvi_pset *set,
                                        const struct hvi_request *r)
{
    struct hvi_board_meta m;

    memset(&m, 0, sizeof m);
    for (int32_t i = 0; i < set->size; i++) {
        int32_t local = set->ranks[i] - c->host_first;

        if (local >= 0 && local < c->host_count)
            hvi_board_mask_set(&m.members, local);
    }
    m.bytes = hvi_request_bytes(r);
    m.prescale = r->prescale;
    m.postscale = r->postscale;
    m.kind = r->kind;
    m.reduce_op = r->reduce_op;
    m.dtype = r->shapes[0].dtype;
    m.pset = r->pset;
    m.device = r->device;
    m.root = r->root;
    m.priority = r->priority;
    m.fuses = hvi_request_fuses(r, r);
    return m;
}

/* Replaces whatever the name and the id meant before. */
static struct hvi_known *known_set(struct hvi_ctx *c, const char *key, uint32_t id,
                                   uint32_t generation, struct hvi_request *req)
{
    struct hvi_known *old = known_find(c, key);
    struct hvi_known *k;

    if (old != NULL)
        known_remove(c, old);
    if (c->by_id[id] != NULL)
        known_remove(c, c->by_id[id]);
    k = calloc(1, sizeof *k);
    if (k == NULL)
        return NULL;
    k->key = strdup(key);
    if (k->key == NULL) {
        free(k);
        return NULL;
    }
    k->req = req;
    k->id = id;
    k->generation = generation;
    HASH_ADD_KEYPTR(hh, c->known, k->key, strlen(k->key), k);
    if (!hvi_hash_added(k)) {
        free(k->key);
        free(k);
        return NULL;
    }
    c->by_id[id] = k;
    return k;
}

/* The announcement of this rank that the id answers, or NULL. */
static struct hvi_entry *announced(struct hvi_ctx *c, const struct hvi_known *k)
{
    struct hvi_entry *e = entry_find(c, k->key);

    if (e == NULL || e->state != HVI_ENTRY_ANNOUNCED ||
        !hvi_request_same(k->req, e->req))
        return NULL; /* or our own announcement is still on its way */
    return e;
}

/* The id has come, readiness is given on the board. */
static enum hvd_status publish_announced(struct hvi_ctx *c, struct hvi_known *k)
{
    struct hvi_entry *e;

    hvi_negotiate_pump(c); /* others may have sealed it while we have joined */
    e = announced(c, k);
    if (e == NULL)
        return HVD_OK;
    drop_announce(c, e);
    return publish(c, e, k);
}

/* The coordinator counts us ready already, unless it has not seen our announcement. */
static enum hvd_status adopt_announced(struct hvi_ctx *c, struct hvi_known *k)
{
    struct hvi_entry *e = announced(c, k);

    if (e == NULL)
        return HVD_OK;
    if (drop_announce(c, e))
        return publish(c, e, k);
    e->state = HVI_ENTRY_PUBLISHED;
    e->id = k->id;
    e->generation = k->generation;
    k->entry = e;
    return HVD_OK;
}

static enum hvd_status on_assign(struct hvi_ctx *c, const Hvi__Assign *m,
                                 struct hvi_err *err)
{
    char key[HVD_NAME_MAX + 32];
    struct hvi_request *req = NULL;
    struct hvi_pset *set;
    struct hvi_known *k;
    enum hvd_status rc;

    if (m->id >= HVI_BOARD_MAX_IDS || m->request == NULL)
        return hvi_fail(err, HVD_EPROTO, "ASSIGN of id %u", m->id);
    rc = hvi_request_from_msg(m->request, &req, err);
    if (rc != HVD_OK)
        return rc;
    hvi_negotiate_pump(c);
    set = hvi_pset_find(c, (int32_t)req->pset);
    if (set != NULL && c->board != NULL) {
        struct hvi_board_meta meta = board_meta(c, set, req);

        hvi_board_define(c->board, m->id, m->generation, &meta);
    }
    if (set == NULL || set->me < 0) {
        hvi_request_free(req);
        return HVD_OK; /* removed meanwhile; not ours */
    }
    snprintf(key, sizeof key, "%u/%s", req->pset, req->name);
    k = known_set(c, key, m->id, m->generation, req);
    if (k == NULL) {
        hvi_request_free(req);
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    }
    if (c->mode != HVI_MODE_TCP && !m->ordered)
        return publish_announced(c, k);
    rc = adopt_announced(c, k);
    hvi_negotiate_pump(c); /* its group may have come first, and waits for this */
    return rc;
}

static enum hvd_status on_evict(struct hvi_ctx *c, const Hvi__Evict *m)
{
    struct hvi_known *k = m->id < HVI_BOARD_MAX_IDS ? c->by_id[m->id] : NULL;
    struct hvi_entry *e;
    bool waiting = true;

    if (k == NULL || k->generation != m->generation)
        return HVD_OK;
    if (c->board != NULL) {
        bool was = hvi_board_evict(c->board, c->bell, m->id, m->generation);

        /* plane hosts: what was ordered before is in the log, the rest waits */
        waiting = was || c->mode == HVI_MODE_HOSTS;
        hvi_negotiate_pump(c);
        k = c->by_id[m->id];
        if (k == NULL)
            return HVD_OK;
    }
    e = k->entry;
    k->entry = NULL;
    known_remove(c, k);
    c->stats.cache_evictions++;
    if (e != NULL && waiting && e->state == HVI_ENTRY_PUBLISHED)
        return announce(c, e);
    return HVD_OK;
}

/* true: e has no place in the order, and will not get one. */
static bool withdraw(struct hvi_ctx *c, struct hvi_entry *e)
{
    if (e->state == HVI_ENTRY_SEALED)
        return false;
    if (c->closing) /* the board has forgotten ours (hvi_board_leave) */
        return true;
    if (e->state == HVI_ENTRY_PUBLISHED && c->board != NULL &&
        !hvi_board_withdraw(c->board, c->bell, e->id) && c->mode == HVI_MODE_SHM) {
        hvi_negotiate_pump(c);
        return false;
    }
    return true;
}

/* FAIL: which entry to complete, or NULL. */
static struct hvi_entry *on_fail(struct hvi_ctx *c, const Hvi__Fail *m)
{
    char key[HVD_NAME_MAX + 32];
    struct hvi_entry *e;

    snprintf(key, sizeof key, "%u/%.*s", m->pset, HVD_NAME_MAX, m->name);
    hvi_negotiate_pump(c);
    e = entry_find(c, key);
    if (e == NULL || !withdraw(c, e))
        return NULL;
    hvi_negotiate_remove(c, e);
    return e;
}

static bool needs(const struct hvi_entry *e, int rank)
{
    for (int32_t i = 0; rank >= 0 && i < e->pset->size; i++)
        if (e->pset->ranks[i] == rank)
            return true;
    return rank < 0;
}

/* Moves what is to be cancelled to `out`. */
static void collect(struct hvi_ctx *c, int rank, const struct hvi_pset *set,
                    struct hvi_link *out)
{
    struct hvi_entry *e;
    struct hvi_link *it;
    struct hvi_link *tmp;

    hvi_negotiate_pump(c);
    HVI_LIST_EACH(&c->lanes, it, tmp)
    {
        e = HVI_CONTAINER(it, struct hvi_entry, link);
        if (needs(e, rank) && (set == NULL || e->pset == set)) {
            hvi_negotiate_remove(c, e);
            hvi_list_append(out, &e->link);
        }
    }
    HVI_LIST_EACH(&c->inflight, it, tmp)
    {
        e = HVI_CONTAINER(it, struct hvi_entry, link);
        if (!needs(e, rank) || (set != NULL && e->pset != set) || !withdraw(c, e))
            continue;
        hvi_negotiate_remove(c, e);
        hvi_list_append(out, &e->link);
    }
}

static void finish_list(struct hvi_link *list, enum hvd_status status, const char *text)
{
    while (!hvi_list_empty(list)) {
        struct hvi_entry *e = HVI_CONTAINER(list->next, struct hvi_entry, link);

        hvi_list_remove(&e->link);
        hvi_entry_finish(e, status, text);
    }
}

void hvi_negotiate_cancel(struct hvi_ctx *c, int rank, enum hvd_status status,
                          const char *text)
{
    struct hvi_link list;

    hvi_list_init(&list);
    pthread_mutex_lock(&c->lock);
    collect(c, rank, NULL, &list);
    pthread_mutex_unlock(&c->lock);
    finish_list(&list, status, text);
}

static void on_peer_bye(struct hvi_ctx *c, const Hvi__PeerBye *m)
{
    char text[160];
    struct hvi_op *join = NULL;

    if (m->rank < 0 || m->rank >= c->size)
        return;
    pthread_mutex_lock(&c->lock);
    if (m->rank == c->rank) {
        c->bye_acked = true;
        pthread_cond_broadcast(&c->bye_cond);
        pthread_mutex_unlock(&c->lock);
        return;
    }
    if (!c->peers[m->rank].gone)
        c->ngone++;
    c->peers[m->rank].gone = true;
    if (c->join_op != NULL) {
        join = c->join_op;
        c->join_op = NULL;
        c->ninflight--;
    }
    if (c->pset_call.busy && !c->pset_call.answered) {
        c->pset_call.answered = true;
        c->pset_call.status = HVD_ESHUTDOWN;
        snprintf(c->pset_call.text, sizeof c->pset_call.text,
                 "rank %d (%s) has left the job (hvd_shutdown)", m->rank,
                 c->peers[m->rank].host);
        pthread_cond_broadcast(&c->pset_cond);
    }
    pthread_mutex_unlock(&c->lock);
    snprintf(text, sizeof text, "rank %d (%s) has left the job (hvd_shutdown)", m->rank,
             c->peers[m->rank].host);
    if (join != NULL) {
        hvi_op_complete(join, HVD_ESHUTDOWN, text);
        hvi_op_unref(join);
    }
    hvi_negotiate_cancel(c, m->rank, HVD_ESHUTDOWN, text);
}

static void on_join_done(struct hvi_ctx *c, const Hvi__JoinDone *m)
{
    struct hvi_op *op;

    pthread_mutex_lock(&c->lock);
    if (c->board != NULL && !c->board_left) {
        hvi_board_join_done(c->board, m->generation);
        hvi_negotiate_pump(c);
    }
    c->join_generation = m->generation;
    /* what ranks did alone before they joined is not counted: from here on the k-th unnamed
       operation is the k-th after this join, everywhere */
    for (int32_t i = 0; i < c->npsets; i++)
        memset(c->psets[i]->unnamed, 0, sizeof c->psets[i]->unnamed);
    op = c->join_op;
    c->join_op = NULL;
    if (op != NULL)
        c->ninflight--;
    pthread_mutex_unlock(&c->lock);
    if (op != NULL) {
        op->last_joined = m->last_rank;
        hvi_op_complete(op, HVD_OK, NULL);
        hvi_op_unref(op);
    }
    hvi_engine_kick(c);
}

static enum hvd_status pset_changed(struct hvi_ctx *c, const Hvi__PsetReply *m,
                                    struct hvi_link *cancelled, struct hvi_err *err)
{
    struct hvi_pset *set = hvi_pset_find(c, (int32_t)m->pset);

    if (!m->add) {
        if (set != NULL) {
            hvi_negotiate_pump(c);
            collect(c, -1, set, cancelled);
            set->removed = true;
        }
        return HVD_OK;
    }
    if (set != NULL || m->n_ranks == 0 || m->n_ranks > (size_t)c->size)
        return hvi_fail(err, HVD_EPROTO, "PSET_REPLY for set %u", m->pset);
    for (size_t i = 0; i < m->n_ranks; i++)
        if (m->ranks[i] < 0 || m->ranks[i] >= c->size)
            return hvi_fail(err, HVD_EPROTO, "PSET_REPLY with rank %d", m->ranks[i]);
    return hvi_pset_insert(c, (int32_t)m->pset, m->ranks, (int32_t)m->n_ranks);
}

static enum hvd_status on_pset_reply(struct hvi_ctx *c, const Hvi__PsetReply *m,
                                     struct hvi_err *err)
{
    struct hvi_link cancelled;
    enum hvd_status rc = HVD_OK;

    hvi_list_init(&cancelled);
    pthread_mutex_lock(&c->lock);
    if (m->status == 0)
        rc = pset_changed(c, m, &cancelled, err);
    if (c->pset_call.busy) {
        c->pset_call.answered = true;
        c->pset_call.status = rc != HVD_OK ? rc : (enum hvd_status)m->status;
        c->pset_call.id = (int32_t)m->pset;
        snprintf(c->pset_call.text, sizeof c->pset_call.text, "%s", m->text);
        pthread_cond_broadcast(&c->pset_cond);
    }
    pthread_mutex_unlock(&c->lock);
    finish_list(&cancelled, HVD_ESHUTDOWN, "its process set was removed");
    return rc;
}

static void on_probe(struct hvi_ctx *c, const Hvi__Probe *m)
{
    char doing[512];
    char key[HVD_NAME_MAX + 32];
    Hvi__ProbeReply reply = HVI__PROBE_REPLY__INIT;
    const struct hvi_entry *e;

    pthread_mutex_lock(&c->lock);
    hvi_describe_rank(c, doing, sizeof doing);
    snprintf(key, sizeof key, "%u/%.*s", m->pset, HVD_NAME_MAX, m->name);
    e = m->name[0] != '\0' ? entry_find(c, key) : NULL;
    reply.waits = e != NULL;
    reply.ordered = e != NULL && e->state == HVI_ENTRY_SEALED;
    reply.epoch = c->epoch;
    reply.probe = m->probe;
    reply.doing = doing;
    hvi_conn_put(&c->conn, HVI_MSG_PROBE_REPLY, &reply);
    pthread_mutex_unlock(&c->lock);
}

static void on_closed(struct hvi_ctx *c, const Hvi__Closed *m)
{
    char cause[600];
    char host[80];
    enum hvd_status status = m->status < 0 ? (enum hvd_status)m->status : HVD_EPEER;

    hvi_escape(cause, sizeof cause, m->cause, strlen(m->cause));
    hvi_escape(host, sizeof host, m->host, strlen(m->host));
    if (m->rank >= 0)
        hvi_ctx_fail(c, status, "rank %d (%s) was lost: %s", m->rank, host, cause);
    else
        hvi_ctx_fail(c, status, "%s", cause);
}

/* Messages that finish nothing: under the lock as a whole. */
static enum hvd_status dispatch_locked(struct hvi_ctx *c, const struct hvi_msg *msg,
                                       struct hvi_err *err)
{
    enum hvd_status rc;

    pthread_mutex_lock(&c->lock);
    if (c->board_left)
        rc = HVD_OK;
    else if (msg->type == HVI_MSG_ASSIGN)
        rc = on_assign(c, msg->body, err);
    else
        rc = on_evict(c, msg->body);
    pthread_mutex_unlock(&c->lock);
    hvi_engine_kick(c);
    return rc;
}

static enum hvd_status dispatch(struct hvi_ctx *c, const struct hvi_msg *msg,
                                struct hvi_err *err)
{
    struct hvi_entry *e;

    switch (msg->type) {
    case HVI_MSG_ASSIGN:
    case HVI_MSG_EVICT:
        return dispatch_locked(c, msg, err);
    case HVI_MSG_FAIL: {
        const Hvi__Fail *m = msg->body;

        pthread_mutex_lock(&c->lock);
        e = on_fail(c, m);
        pthread_mutex_unlock(&c->lock);
        if (e != NULL)
            hvi_entry_finish(e, m->status < 0 ? (enum hvd_status)m->status : HVD_EPROTO,
                             m->text);
        return HVD_OK;
    }
    case HVI_MSG_JOIN_DONE:
        on_join_done(c, msg->body);
        return HVD_OK;
    case HVI_MSG_PSET_REPLY:
        return on_pset_reply(c, msg->body, err);
    case HVI_MSG_PEER_BYE:
        on_peer_bye(c, msg->body);
        return HVD_OK;
    case HVI_MSG_CLOSED:
        on_closed(c, msg->body);
        return HVD_OK;
    case HVI_MSG_PROBE:
        on_probe(c, msg->body);
        return HVD_OK;
    case HVI_MSG_HEARTBEAT: /* that it came is all */
        return HVD_OK;
    case HVI_MSG_TIMELINE_CTL:
        hvi_timeline_control(c, msg->body);
        return HVD_OK;
    case HVI_MSG_TIMELINE_CHUNK:
        hvi_timeline_chunk(c, msg->body);
        return HVD_OK;
    default:
        return hvi_fail(err, HVD_EPROTO, "unexpected message %s from the coordinator",
                        hvi_msg_name(msg->type));
    }
}

enum hvd_status hvi_negotiate_message(struct hvi_ctx *c, uint32_t type,
                                      const uint8_t *payload, size_t size_bytes,
                                      struct hvi_err *err)
{
    struct hvi_msg msg;
    enum hvd_status rc;

    if (type == HVI_MSG_ORDER)
        return on_order(c, payload, size_bytes, err);
    rc = hvi_msg_get(type, payload, size_bytes, &msg, err);
    if (rc != HVD_OK)
        return rc;
    rc = dispatch(c, &msg, err);
    hvi_msg_free(&msg);
    if (c->board != NULL) { /* the board's lock was held: see board.h */
        pthread_mutex_lock(&c->lock);
        hvi_negotiate_poll(c);
        pthread_mutex_unlock(&c->lock);
    }
    hvi_engine_kick(c); /* its thread may wait for what has just been completed */
    return rc;
}

void hvi_negotiate_fini(struct hvi_ctx *c)
{
    struct hvi_known *k;
    struct hvi_known *next;
    struct hvi_link *it;
    struct hvi_link *tmp;

    HASH_ITER(hh, c->known, k, next)
    {
        /* NOLINTNEXTLINE(clang-analyzer-unix.Malloc): it does not follow the table */
        HASH_DEL(c->known, k);
        known_free(k);
    }
    HVI_LIST_EACH(&c->runs, it, tmp)
    {
        hvi_run_free(HVI_CONTAINER(it, struct hvi_run, link));
    }
    for (int32_t i = 0; i < c->npsets; i++) {
        free(c->psets[i]->ranks);
        free(c->psets[i]);
    }
    free(c->psets);
    free(c->by_id);
    free(c->announce);
    free(c->ready);
}
