/*
 * Events reach the core one at a time: step() runs the core, performs its actions, then
 * takes what ended meanwhile (a peer too slow to read) as the next event. Connections
 * that have not said a right hello are few: beyond HVI_FRESH_MAX the oldest of the source
 * that has most of them makes room once it is HVI_FRESH_YIELD_MS old, or HVI_GREEDY_YIELD_MS
 * when that source has more than half of all; until then new ones wait in the listener's
 * backlog. So one machine cannot keep others out, and a rank on that machine comes in as
 * long as its hello is there when it is accepted, as it mostly is; else it tries again.
 * Those whose hello was right and whose first record is still to come may be a whole
 * job's ranks, or replays.
 */
#include "coordinator/net/server.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordinator/net/conn.h"
#include "coordinator/net/listen.h"
#include "proto/base/assert.h"
#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/spinrule.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12's analyzer loses what is owned by a hash table */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#define HVI_FRESH_MAX 64
#define HVI_FRESH_YIELD_MS 100
#define HVI_GREEDY_YIELD_MS 10
#define HVI_FRESH_MS 5000 /* for the hello, then for the first record */
#define HVI_PROVING_MAX (HVD_RANKS_MAX + 64)
#define HVI_ENDING_MS 2000 /* our end is written: the peer's must come */
#define HVI_FINISH_MS 1000 /* at the end of the job, for all */
#define LOG_BURST 10       /* lines about strangers; then one in LOG_EVERY_MS */
#define LOG_EVERY_MS 10000
#define SPIN_MAX_IDS 2 /* of many at once it is the bytes that take the time */

struct hvi_server {
    uv_loop_t *loop;
    struct hvi_core *core;
    struct hvi_actions actions;
    const struct hvi_server_ops *ops;
    void *data;
    uint8_t key[HVI_KEY_BYTES], job_id[HVI_JOB_ID_BYTES];
    struct hvi_listeners listeners;
    size_t turn; /* of the listeners: the first to be asked who waits */
    uv_timer_t timer;
    uv_idle_t spin; /* active: more is expected at once */
    int64_t spin_until_us;
    int spin_us;
    uint32_t nready;
    struct hvi_net_conn *conns; /* by id */
    uint64_t next_id;
    struct hvi_link fresh, proving, ending, dirty, ended;
    uint32_t nfresh, nproving;
    bool stepping, closing, finished, told;
    int status;
    int64_t finish_by_ms, core_deadline_ms;
    char *stop_cause;
    uint32_t log_tokens, log_dropped;
    int64_t log_ms;
};

static void step(struct hvi_server *s, const struct hvi_event *ev);
static void spin(struct hvi_server *s);
static void try_accept(struct hvi_server *s);
static void arm(struct hvi_server *s);

/* ---- strangers in the log, at a bounded rate */

static void log_stranger(struct hvi_server *s, const struct hvi_net_conn *c,
                         const char *why)
{
    int64_t now = hvi_now_ms();
    char safe[HVD_ERROR_TEXT_MAX];

    while (s->log_tokens < LOG_BURST && now >= s->log_ms + LOG_EVERY_MS) {
        s->log_ms += LOG_EVERY_MS;
        s->log_tokens++;
    }
    if (s->log_tokens == LOG_BURST)
        s->log_ms = now;
    if (s->log_tokens == 0) {
        s->log_dropped++;
        return;
    }
    s->log_tokens--;
    hvi_escape(safe, sizeof safe, why, strlen(why));
    if (s->log_dropped > 0)
        hvi_log_warn("net", "turned away %s: %s (and %u more since the last line)",
                     c->peer, safe, s->log_dropped);
    else
        hvi_log_warn("net", "turned away %s: %s", c->peer, safe);
    s->log_dropped = 0;
}

/* ---- lists of connections with a deadline */

static void unlist(struct hvi_server *s, struct hvi_net_conn *c)
{
    if (hvi_list_empty(&c->list))
        return;
    hvi_list_remove(&c->list);
    if (c->state == HVI_NET_HELLO)
        s->nfresh--;
    else if (c->state == HVI_NET_PROOF)
        s->nproving--;
}

static void enlist(struct hvi_link *list, struct hvi_net_conn *c)
{
    c->since_ms = hvi_now_ms();
    hvi_list_append(list, &c->list);
}

static void close_conn(struct hvi_server *s, struct hvi_net_conn *c)
{
    bool fresh = c->state == HVI_NET_HELLO;

    unlist(s, c);
    hvi_list_remove(&c->dirty);
    hvi_list_remove(&c->ended);
    hvi_net_close(c);
    if (fresh)
        try_accept(s);
}

static void end_conn(struct hvi_server *s, struct hvi_net_conn *c)
{
    if (c->state != HVI_NET_OPEN) {
        close_conn(s, c);
        return;
    }
    hvi_list_remove(&c->ended);
    enlist(&s->ending, c);
    hvi_net_end(c);
}

static struct hvi_net_conn *first_of(struct hvi_link *list)
{
    return hvi_list_empty(list) ? NULL
                                : HVI_CONTAINER(list->next, struct hvi_net_conn, list);
}

/* ---- performing actions */

static struct hvi_net_conn *find(struct hvi_server *s, uint64_t id)
{
    struct hvi_net_conn *c;

    HASH_FIND(hh, s->conns, &id, sizeof id, c);
    return c;
}

static void do_send(struct hvi_server *s, const struct hvi_action *a)
{
    struct hvi_net_conn *c = find(s, a->conn);
    struct hvi_buf frame = {0};

    if (c == NULL)
        return;
    if (a->frame->tail == NULL) {
        hvi_net_send(c, &a->frame->head, a->last, a->droppable);
    } else if (hvi_out_flatten(a->frame, &frame) == HVD_OK) {
        hvi_net_send(c, &frame, a->last, a->droppable);
    }
    hvi_buf_fini(&frame);
    if (hvi_list_empty(&c->dirty))
        hvi_list_append(&s->dirty, &c->dirty);
    if (c->state == HVI_NET_ENDING && hvi_list_empty(&c->list))
        enlist(&s->ending, c);
}

static void perform(struct hvi_server *s, const struct hvi_action *a)
{
    struct hvi_net_conn *c;
    char text[512];

    if (hvi_log_wants(HVI_LOG_DEBUG, "core"))
        hvi_log_debug("core", "%s", hvi_action_text(a, text, sizeof text));
    switch (a->kind) {
    case HVI_ACT_SEND:
        do_send(s, a);
        break;
    case HVI_ACT_CLOSE:
        c = find(s, a->conn);
        if (c != NULL && c->state != HVI_NET_ENDING && c->state != HVI_NET_CLOSED)
            end_conn(s, c);
        break;
    case HVI_ACT_NOTE:
        s->ops->on_note(s->data, a->note, a->rank, a->text != NULL ? a->text : "");
        break;
    case HVI_ACT_FINISH:
        s->finished = true;
        s->status = a->status;
        break;
    default:
        HVI_ASSERT(a->kind != HVI_ACT_UNSET);
    }
}

static void flush_dirty(struct hvi_server *s)
{
    while (!hvi_list_empty(&s->dirty)) {
        struct hvi_net_conn *c =
            HVI_CONTAINER(s->dirty.next, struct hvi_net_conn, dirty);

        hvi_list_remove(&c->dirty);
        hvi_net_flush(c);
    }
}

/* Closes what is left; tells the owner when all is gone or the time is over. */
static void finish(struct hvi_server *s)
{
    struct hvi_net_conn *c, *tmp;

    if (s->finish_by_ms < 0) {
        s->finish_by_ms = hvi_now_ms() + HVI_FINISH_MS;
        hvi_listen_close(&s->listeners);
        HASH_ITER(hh, s->conns, c, tmp)
        {
            if (c->state == HVI_NET_OPEN)
                end_conn(s, c);
            else if (c->state != HVI_NET_ENDING)
                close_conn(s, c);
        }
    }
    if (!s->told && (s->conns == NULL || hvi_now_ms() >= s->finish_by_ms)) {
        s->told = true;
        s->ops->on_finished(s->data, s->status);
    }
}

static void step_once(struct hvi_server *s, const struct hvi_event *ev)
{
    enum hvd_status rc;

    if (s->finished)
        return;
    s->stepping = true;
    rc = hvi_core_step(s->core, ev, hvi_now_ms(), &s->actions);
    s->core_deadline_ms = s->actions.deadline_ms;
    for (uint32_t i = 0; i < s->actions.count; i++)
        perform(s, &s->actions.list[i]);
    hvi_actions_clear(&s->actions);
    flush_dirty(s);
    s->stepping = false;
    if (rc != HVD_OK) {
        s->ops->on_note(s->data, HVI_NOTE_FATAL, -1,
                        "the coordinator is out of memory");
        s->finished = true;
        s->status = 125;
    }
}

/* What ended, and the wish to stop, after the step that they came in. */
static void take_ended(struct hvi_server *s)
{
    struct hvi_event ev = {.kind = HVI_EV_CLOSED};

    while (!hvi_list_empty(&s->ended)) {
        struct hvi_net_conn *c =
            HVI_CONTAINER(s->ended.next, struct hvi_net_conn, ended);

        hvi_list_remove(&c->ended);
        ev.conn = c->id;
        ev.clean = c->end_clean;
        ev.text = c->end_text;
        step_once(s, &ev);
        close_conn(s, c);
    }
    if (s->stop_cause != NULL) {
        ev = (struct hvi_event){.kind = HVI_EV_STOP, .text = s->stop_cause};
        step_once(s, &ev);
        free(s->stop_cause);
        s->stop_cause = NULL;
    }
}

static void step(struct hvi_server *s, const struct hvi_event *ev)
{
    step_once(s, ev);
    while (!hvi_list_empty(&s->ended) || s->stop_cause != NULL)
        take_ended(s);
    if (s->finished)
        finish(s);
    arm(s);
}

/* ---- connections */

static void on_hello(struct hvi_net_conn *c)
{
    struct hvi_server *s = c->owner;

    hvi_list_remove(&c->list); /* of the fresh */
    s->nfresh--;
    if (s->nproving == HVI_PROVING_MAX)
        close_conn(s, first_of(&s->proving));
    enlist(&s->proving, c);
    s->nproving++;
    try_accept(s);
}

static void on_open(struct hvi_net_conn *c)
{
    struct hvi_server *s = c->owner;
    uint8_t entropy[HVI_EPOCH_KEY_BYTES];
    struct hvi_event ev = {.kind = HVI_EV_OPENED,
                           .conn = c->id,
                           .agent = c->role == HVI_ROLE_AGENT,
                           .entropy = entropy};

    hvi_list_remove(&c->list); /* of the proving */
    s->nproving--;
    hvi_log_debug("net", "conn=%llu peer=%s %s", (unsigned long long)c->id, c->peer,
                  ev.agent ? "agent" : "worker");
    if (hvi_random(entropy, sizeof entropy) != HVD_OK) {
        close_conn(s, c);
        return;
    }
    step(s, &ev);
    hvi_wipe(entropy, sizeof entropy);
}

/* To look and leave is no offence; on a Unix socket, which only this user reaches, neither
 * is to be stopped in the handshake. Nor is it where the hello was right: that is a rank
 * that failed, of which others tell. */
static void unproven_end(struct hvi_server *s, const struct hvi_net_conn *c,
                         const char *why)
{
    if (c->state == HVI_NET_PROOF && c->peer_ended)
        hvi_log_info("net", "conn=%llu peer=%s ended in the handshake",
                     (unsigned long long)c->id, c->peer);
    else if (why != NULL || (c->nhello > 0 && c->u.handle.type == UV_TCP))
        log_stranger(s, c, why != NULL ? why : "it hung up in the handshake");
}

static void on_end(struct hvi_net_conn *c, bool clean, const char *why)
{
    struct hvi_server *s = c->owner;

    if (c->state != HVI_NET_OPEN) {
        unproven_end(s, c, why);
        close_conn(s, c);
        return;
    }
    if (why != NULL)
        hvi_log_info("net", "conn=%llu peer=%s ended: %s", (unsigned long long)c->id,
                     c->peer, why);
    c->end_clean = clean;
    free(c->end_text);
    c->end_text = why != NULL ? strdup(why) : NULL;
    hvi_list_append(&s->ended, &c->ended);
    if (!s->stepping) {
        take_ended(s);
        if (s->finished)
            finish(s);
        arm(s);
    }
}

static void on_frame(struct hvi_net_conn *c, uint32_t type, const uint8_t *payload,
                     size_t size_bytes)
{
    struct hvi_server *s = c->owner;
    struct hvi_event ev = {.conn = c->id};
    struct hvi_ready_id *ids = NULL;
    struct hvi_err err = {""};
    struct hvi_msg msg = {0};
    enum hvd_status rc;

    hvi_log_debug("net", "conn=%llu %s %zu bytes", (unsigned long long)c->id,
                  hvi_msg_name(type), size_bytes);
    if (type == HVI_MSG_READY) {
        rc = hvi_ready_get(payload, size_bytes, &ev.epoch, &ids, &ev.nids, &err);
        ev.kind = HVI_EV_READY;
        ev.ids = ids;
    } else {
        rc = hvi_msg_get(type, payload, size_bytes, &msg, &err);
        ev.kind = HVI_EV_MESSAGE;
        ev.msg = &msg;
    }
    if (rc != HVD_OK) {
        c->told = true;
        on_end(c, false, err.text[0] != '\0' ? err.text : hvi_status_text(rc));
        return;
    }
    if (type == HVI_MSG_READY && ev.nids <= SPIN_MAX_IDS)
        spin(s);
    step(s, &ev);
    if (msg.body != NULL)
        hvi_msg_free(&msg);
    free(ids);
}

static void on_done(struct hvi_net_conn *c)
{
    close_conn(c->owner, c);
}

static void on_closed(struct hvi_net_conn *c)
{
    struct hvi_server *s = c->owner;

    HASH_DEL(s->conns, c);
    hvi_net_free(c);
    if (s->closing)
        return;
    if (s->finished)
        finish(s);
    arm(s);
}

static const struct hvi_net_ops net_ops = {on_hello, on_open, on_frame,
                                           on_end,   on_done, on_closed};

/* ---- accepting */

/* A listener that holds one more connection, NULL: none. Each in its turn. */
static struct hvi_listener *who_waits(struct hvi_server *s)
{
    for (size_t i = 0; i < HVI_LISTENERS_MAX; i++) {
        size_t at = (s->turn + i) % HVI_LISTENERS_MAX;

        if (s->listeners.one[at].waiting)
            return &s->listeners.one[at];
    }
    return NULL;
}

static void accept_one(struct hvi_server *s, struct hvi_listener *from)
{
    struct hvi_net_conn *c = calloc(1, sizeof *c);
    struct hvi_err err = {""};

    if (c == NULL)
        return;
    c->ops = &net_ops;
    c->owner = s;
    c->key = s->key;
    c->job_id = s->job_id;
    c->id = ++s->next_id;
    HASH_ADD(hh, s->conns, id, sizeof c->id, c);
    if (!hvi_hash_added(c)) {
        free(c);
        return;
    }
    if (hvi_net_accept(c, &from->u.stream, &err) != HVD_OK) {
        log_stranger(s, c, err.text);
        return;
    }
    enlist(&s->fresh, c);
    s->nfresh++;
    hvi_net_read_now(c);
}

static uint32_t count_source(const struct hvi_server *s, const struct hvi_net_conn *of)
{
    const struct hvi_link *it;
    uint32_t n = 0;

    for (it = s->fresh.next; it != &s->fresh; it = it->next) {
        const struct hvi_net_conn *c = HVI_CONTAINER(it, struct hvi_net_conn, list);

        n += memcmp(c->source, of->source, sizeof c->source) == 0;
    }
    return n;
}

/* Who makes room for others, when all places of the fresh are taken, and when. */
static struct hvi_net_conn *who_yields(struct hvi_server *s, int64_t *at_ms)
{
    struct hvi_net_conn *greedy = NULL;
    uint32_t most = 0;
    struct hvi_link *it, *tmp;

    if (s->nfresh < HVI_FRESH_MAX)
        return NULL;
    HVI_LIST_EACH(&s->fresh, it, tmp)
    {
        struct hvi_net_conn *c = HVI_CONTAINER(it, struct hvi_net_conn, list);
        uint32_t n = count_source(s, c);

        if (n > most) {
            most = n;
            greedy = c;
        }
        if (most > HVI_FRESH_MAX / 2)
            break;
    }
    if (greedy != NULL)
        *at_ms = greedy->since_ms +
                 (most > HVI_FRESH_MAX / 2 ? HVI_GREEDY_YIELD_MS : HVI_FRESH_YIELD_MS);
    return greedy;
}

static void turn_away(struct hvi_server *s, struct hvi_net_conn *c)
{
    log_stranger(s, c, "its hello was slow and others were waiting");
    unlist(s, c);
    hvi_net_turn_away(c);
    try_accept(s);
}

static void try_accept(struct hvi_server *s)
{
    struct hvi_listener *from = who_waits(s);
    struct hvi_net_conn *yields;
    int64_t at_ms = 0;

    if (from == NULL || s->closing || s->finished)
        return;
    yields = who_yields(s, &at_ms);
    if (yields != NULL) {
        if (hvi_now_ms() < at_ms)
            arm(s);
        else
            turn_away(s, yields);
        return;
    }
    from->waiting = false;
    s->turn = (size_t)(from - s->listeners.one) + 1;
    accept_one(s, from);
    arm(s);
}

static void connection_cb(uv_stream_t *stream, int status)
{
    struct hvi_server *s = stream->data;

    if (status < 0) {
        struct hvi_net_conn nobody = {.peer = "a connection"};

        log_stranger(s, &nobody, uv_strerror(status));
        return;
    }
    HVI_CONTAINER(stream, struct hvi_listener, u)->waiting = true;
    try_accept(s);
}

/* ---- spinning
 *
 * A sleep costs 25 us when it ends (reference/performance.md), on the way of every
 * operation. After READY the next is expected soon: the loop goes round without
 * sleeping, and yields, for as long as that has paid off lately, as ranks do. */

static void spin_cb(uv_idle_t *h)
{
    struct hvi_server *s = h->data;

    if (hvi_now_us() < s->spin_until_us) {
        sched_yield();
        return;
    }
    uv_idle_stop(h);
    s->spin_us = hvi_spin_next_us(s->spin_us, false, HVI_SPIN_MAX_US);
}

static void spin(struct hvi_server *s)
{
    bool full = hvi_spin_in_full(&s->nready);

    if (s->closing)
        return;
    if (uv_is_active((uv_handle_t *)&s->spin))
        s->spin_us = hvi_spin_next_us(s->spin_us, true, HVI_SPIN_MAX_US);
    s->spin_until_us = hvi_now_us() + (full ? HVI_SPIN_MAX_US : s->spin_us);
    uv_idle_start(&s->spin, spin_cb);
}

/* ---- time */

static void sooner(int64_t *at, int64_t deadline_ms)
{
    if (deadline_ms >= 0 && (*at < 0 || deadline_ms < *at))
        *at = deadline_ms;
}

static void timer_cb(uv_timer_t *t)
{
    struct hvi_server *s = t->data;
    struct hvi_event ev = {.kind = HVI_EV_TICK};
    int64_t now = hvi_now_ms();
    struct hvi_net_conn *c;

    while ((c = first_of(&s->fresh)) != NULL && now >= c->since_ms + HVI_FRESH_MS) {
        log_stranger(s, c, "no hello within 5 s");
        close_conn(s, c);
    }
    while ((c = first_of(&s->proving)) != NULL && now >= c->since_ms + HVI_FRESH_MS) {
        log_stranger(s, c, "no frame within 5 s of its hello");
        close_conn(s, c);
    }
    while ((c = first_of(&s->ending)) != NULL && now >= c->since_ms + HVI_ENDING_MS)
        close_conn(s, c);
    try_accept(s);
    if (s->finished)
        finish(s);
    else if (s->core_deadline_ms >= 0 && now >= s->core_deadline_ms)
        step(s, &ev);
    arm(s);
}

static void arm(struct hvi_server *s)
{
    struct hvi_net_conn *c;
    int64_t at = -1, yield_at = -1, wait;

    if (s->closing)
        return;
    c = first_of(&s->fresh);
    if (c != NULL)
        sooner(&at, c->since_ms + HVI_FRESH_MS);
    if (who_waits(s) != NULL && who_yields(s, &yield_at) != NULL)
        sooner(&at, yield_at);
    c = first_of(&s->proving);
    if (c != NULL)
        sooner(&at, c->since_ms + HVI_FRESH_MS);
    c = first_of(&s->ending);
    if (c != NULL)
        sooner(&at, c->since_ms + HVI_ENDING_MS);
    if (s->finished)
        sooner(&at, s->finish_by_ms);
    else
        sooner(&at, s->core_deadline_ms);
    if (at < 0) {
        uv_timer_stop(&s->timer);
        return;
    }
    uv_update_time(s->loop);
    wait = at - hvi_now_ms();
    uv_timer_start(&s->timer, timer_cb, wait > 0 ? (uint64_t)wait : 0, 0);
}

/* ---- the whole */

enum hvd_status hvi_server_new(uv_loop_t *loop, const struct hvi_core_config *config,
                               const uint8_t key[HVI_KEY_BYTES],
                               const uint8_t job_id[HVI_JOB_ID_BYTES],
                               const struct hvi_server_ops *ops, void *data,
                               struct hvi_server **out, struct hvi_err *err)
{
    struct hvi_server *s = calloc(1, sizeof *s);

    if (s != NULL)
        s->core = hvi_core_new(config);
    if (s == NULL || s->core == NULL) {
        free(s);
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    }
    s->loop = loop;
    s->ops = ops;
    s->data = data;
    memcpy(s->key, key, sizeof s->key);
    memcpy(s->job_id, job_id, sizeof s->job_id);
    hvi_list_init(&s->fresh);
    hvi_list_init(&s->proving);
    hvi_list_init(&s->ending);
    hvi_list_init(&s->dirty);
    hvi_list_init(&s->ended);
    s->finish_by_ms = s->core_deadline_ms = -1;
    s->log_tokens = LOG_BURST;
    uv_timer_init(loop, &s->timer);
    s->timer.data = s;
    uv_idle_init(loop, &s->spin);
    s->spin.data = s;
    s->spin_us = HVI_SPIN_MAX_US;
    *out = s;
    return HVD_OK;
}

enum hvd_status hvi_server_listen(struct hvi_server *s, const char *where,
                                  struct hvi_err *err)
{
    return hvi_listen(&s->listeners, s->loop, where, connection_cb, s, err);
}

const char *hvi_server_endpoint(const struct hvi_server *s)
{
    return s->listeners.endpoint;
}

void hvi_server_stop(struct hvi_server *s, const char *cause)
{
    if (s->finished || s->stop_cause != NULL)
        return;
    s->stop_cause = strdup(cause);
    if (s->stepping || s->stop_cause == NULL)
        return;
    take_ended(s);
    if (s->finished)
        finish(s);
    arm(s);
}

void hvi_server_close(struct hvi_server *s)
{
    struct hvi_net_conn *c, *tmp;

    s->closing = true;
    hvi_listen_close(&s->listeners);
    HASH_ITER(hh, s->conns, c, tmp)
    {
        close_conn(s, c);
    }
    uv_close((uv_handle_t *)&s->timer, NULL);
    uv_close((uv_handle_t *)&s->spin, NULL);
}

void hvi_server_free(struct hvi_server *s)
{
    if (s == NULL)
        return;
    HVI_ASSERT(s->conns == NULL);
    hvi_core_free(s->core);
    hvi_actions_fini(&s->actions);
    free(s->stop_cause);
    hvi_wipe(s->key, sizeof s->key);
    free(s);
}
