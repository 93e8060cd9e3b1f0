/*
 * Connections and dispatch. A worker's connection goes
 *   OPEN -HELLO-> WAITS -all are there-> MEMBER -BYE-> LEFT -> gone
 * and an agent's OPEN -AGENT_HELLO-> AGENT -> gone. Whatever else comes ends it: see
 * hvi_core_violation().
 */
#include "coordinator/core/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12's analyzer loses what is owned by a hash table or a list of actions */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

#define CORE_MAGIC 0x68766443u

void *hvi_core_alloc(struct hvi_core *core, size_t count, size_t size_bytes)
{
    void *p = calloc(count > 0 ? count : 1, size_bytes);

    if (p == NULL)
        core->oom = true;
    return p;
}

char *hvi_core_strdup(struct hvi_core *core, const char *text)
{
    char *copy = strdup(text);

    if (copy == NULL)
        core->oom = true;
    return copy;
}

static bool copy_hosts(struct hvi_core *core, const char *const *hosts)
{
    char **copy;

    core->cfg.hosts = NULL;
    if (hosts == NULL)
        return true;
    copy = hvi_core_alloc(core, core->cfg.np, sizeof *copy);
    if (copy == NULL)
        return false;
    core->cfg.hosts = (const char *const *)copy;
    for (uint32_t i = 0; i < core->cfg.np; i++)
        copy[i] = hvi_core_strdup(core, hosts[i]);
    return !core->oom;
}

static void set_defaults(struct hvi_core_config *cfg)
{
    if (cfg->start_timeout_ms == 0)
        cfg->start_timeout_ms = 30000;
    if (cfg->fusion_bytes == 0)
        cfg->fusion_bytes = (uint64_t)64 << 20;
    if (cfg->cache_capacity == 0)
        cfg->cache_capacity = HVI_IDS_MAX;
    if (cfg->cache_capacity > HVI_IDS_MAX)
        cfg->cache_capacity = HVI_IDS_MAX;
    /* the ranks must report in time for it */
    if (cfg->stall_shutdown_ms > 0 &&
        (cfg->stall_warn_ms == 0 || cfg->stall_warn_ms > cfg->stall_shutdown_ms))
        cfg->stall_warn_ms = cfg->stall_shutdown_ms;
    if (cfg->lease_ms == 0)
        cfg->lease_ms = 15000;
    if (cfg->lease_ms < 3000)
        cfg->lease_ms = 3000;
}

struct hvi_core *hvi_core_new(const struct hvi_core_config *config)
{
    struct hvi_core *core = calloc(1, sizeof *core);

    if (core == NULL)
        return NULL;
    HVI_ASSERT(config->np >= 1 && config->np <= HVD_RANKS_MAX);
    core->magic = CORE_MAGIC;
    core->cfg = *config;
    set_defaults(&core->cfg);
    core->start_by_ms = core->idle_ms = core->form_by_ms = -1;
    core->failure.at_ms = -1;
    hvi_list_init(&core->waiting);
    hvi_list_init(&core->agents);
    hvi_list_init(&core->lru);
    hvi_list_init(&core->partial);
    core->cfg.version = hvi_core_strdup(core, config->version);
    core->procs = hvi_core_alloc(core, core->cfg.np, sizeof *core->procs);
    core->served = hvi_core_alloc(core, core->cfg.np, sizeof *core->served);
    core->slots = hvi_core_alloc(core, core->cfg.cache_capacity, sizeof *core->slots);
    core->free_ids = hvi_core_alloc(core, core->cfg.cache_capacity, sizeof(uint32_t));
    core->queue = hvi_core_alloc(core, core->cfg.cache_capacity, sizeof(uint32_t));
    if (!copy_hosts(core, config->hosts) || core->oom) {
        hvi_core_free(core);
        return NULL;
    }
    return core;
}

void hvi_core_free(struct hvi_core *core)
{
    struct conn *c, *tmp;

    if (core == NULL)
        return;
    HVI_ASSERT(core->magic == CORE_MAGIC);
    HASH_ITER(hh, core->conns, c, tmp)
    {
        hvi_core_drop(core, c);
    }
    hvi_epoch_reset(core);
    for (uint32_t i = 0; core->cfg.hosts != NULL && i < core->cfg.np; i++)
        free((char *)(uintptr_t)core->cfg.hosts[i]);
    free((void *)(uintptr_t)core->cfg.hosts);
    free((char *)(uintptr_t)core->cfg.version);
    for (int32_t i = 0; i < core->nserved; i++)
        free(core->served[i].host);
    free(core->served);
    for (uint32_t s = 0; core->procs != NULL && s < core->cfg.np; s++)
        free(core->procs[s].lost);
    free(core->procs);
    free(core->slots);
    free(core->free_ids);
    free(core->queue);
    core->magic = 0;
    free(core);
}

struct conn *hvi_core_conn(struct hvi_core *core, uint64_t id)
{
    struct conn *c;

    HASH_FIND(hh, core->conns, &id, sizeof id, c);
    return c;
}

struct conn *hvi_core_agent(struct hvi_core *core, int32_t slot)
{
    uint64_t id = core->procs[slot].agent;

    return id == 0 ? NULL : hvi_core_conn(core, id);
}

static void free_hello(Hvi__Hello *hello)
{
    struct hvi_msg msg = {HVI_MSG_HELLO, hello};

    if (hello != NULL)
        hvi_msg_free(&msg);
}

/* It has said BYE and is still of this epoch: it may be needed by what was ordered. */
static bool is_leaver(const struct hvi_core *core, const struct conn *c)
{
    return c->state == CONN_LEFT && c->rank < core->size &&
           core->members[c->rank].left == c;
}

void hvi_core_drop(struct hvi_core *core, struct conn *c)
{
    if (c->state == CONN_WAITS) {
        hvi_list_remove(&c->link);
        if (--core->nwaiting == 0)
            core->start_by_ms = -1;
    }
    if (c->state == CONN_MEMBER)
        core->members[c->rank].conn = NULL;
    if (is_leaver(core, c))
        core->members[c->rank].left = NULL;
    if (c->state == CONN_AGENT)
        hvi_list_remove(&c->link);
    HASH_DEL(core->conns, c);
    free_hello(c->hello);
    free(c->host);
    memset(c->entropy, 0, sizeof c->entropy);
    free(c);
}

/* What the offender hears depends on where it is. */
static void tell_violation(struct hvi_core *core, struct conn *c, const char *text)
{
    Hvi__Refused refused = HVI__REFUSED__INIT;
    Hvi__Closed closed = HVI__CLOSED__INIT;

    if ((c->state == CONN_OPEN && !c->agent) || c->state == CONN_WAITS) {
        refused.status = HVD_EPROTO;
        refused.text = (char *)(uintptr_t)text;
        hvi_emit_msg(core, c, HVI_MSG_REFUSED, &refused, true);
    } else if (c->state == CONN_MEMBER) {
        closed.epoch = core->epoch;
        closed.rank = c->rank;
        closed.host = core->members[c->rank].host;
        closed.cause = (char *)(uintptr_t)text;
        closed.status = HVD_EPROTO;
        hvi_emit_msg(core, c, HVI_MSG_CLOSED, &closed, true);
    } else {
        hvi_emit_close(core, c);
    }
}

void hvi_core_violation(struct hvi_core *core, struct conn *c, const char *fmt, ...)
{
    char what[512];
    struct text t = {.n = 0};
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    hvi_text_add(&t, "protocol error: %s", what);
    tell_violation(core, c, t.s);
    if (c->state == CONN_MEMBER || is_leaver(core, c)) {
        int32_t rank = c->rank;

        hvi_core_drop(core, c);
        hvi_epoch_lose(core, rank, t.s, HVD_EPEER);
    } else if (c->state == CONN_AGENT) {
        hvi_agents_closed(core, c, false, t.s);
    } else {
        hvi_core_drop(core, c);
    }
}

static void opened(struct hvi_core *core, const struct hvi_event *ev)
{
    struct conn *c = hvi_core_alloc(core, 1, sizeof *c);

    if (c == NULL)
        return;
    c->id = ev->conn;
    c->agent = ev->agent;
    c->state = CONN_OPEN;
    c->rank = -1;
    memcpy(c->entropy, ev->entropy, sizeof c->entropy);
    hvi_list_init(&c->link);
    HASH_ADD(hh, core->conns, id, sizeof c->id, c);
    if (c->hh.tbl == NULL) {
        core->oom = true;
        free(c);
    }
}

static void closed(struct hvi_core *core, const struct hvi_event *ev)
{
    struct conn *c = hvi_core_conn(core, ev->conn);

    if (c == NULL)
        return;
    switch (c->state) {
    case CONN_MEMBER:
        hvi_epoch_eof(core, c, ev->text);
        break;
    case CONN_LEFT:
        hvi_epoch_left(core, c, ev->clean, ev->text);
        break;
    case CONN_AGENT:
        hvi_agents_closed(core, c, ev->clean, ev->text);
        break;
    default:
        hvi_core_drop(core, c);
        break;
    }
}

/* Events of rank 0's timeline. They may be dropped: a trace never slows the job. */
static void timeline_chunk(struct hvi_core *core, struct conn *c, Hvi__TimelineChunk *m)
{
    struct hvi_out *f;

    if (!hvi_member_live(&core->members[0]))
        return;
    m->rank = c->rank;
    f = hvi_emit_frame(core, HVI_MSG_TIMELINE_CHUNK, m);
    hvi_emit_send(core, core->members[0].conn, f, false, true);
    hvi_out_unref(f);
}

/* Messages of a member in an open epoch. */
static void member_message(struct hvi_core *core, struct conn *c, struct hvi_msg *msg)
{
    const Hvi__PsetAdd *add;

    switch (msg->type) {
    case HVI_MSG_ANNOUNCE:
        hvi_negotiate_announce(core, c, msg->body);
        break;
    case HVI_MSG_JOIN:
        hvi_join_message(core, c, ((const Hvi__Join *)msg->body)->pending);
        break;
    case HVI_MSG_PSET_ADD:
        add = msg->body;
        hvi_psets_call(core, c, true, 0, add->ranks, add->n_ranks);
        break;
    case HVI_MSG_PSET_REMOVE:
        hvi_psets_call(core, c, false, ((Hvi__PsetRemove *)msg->body)->pset, NULL, 0);
        break;
    case HVI_MSG_STALLED:
        hvi_stall_reported(core, c, msg->body);
        break;
    case HVI_MSG_PROBE_REPLY:
        hvi_stall_probe_reply(core, c, msg->body);
        break;
    case HVI_MSG_SUSPECT:
        hvi_epoch_suspect(core, c, ((const Hvi__Suspect *)msg->body)->text);
        break;
    case HVI_MSG_TIMELINE_CHUNK:
        timeline_chunk(core, c, msg->body);
        break;
    case HVI_MSG_TIMELINE_CTL:
        if (c->rank == 0)
            hvi_emit_all(core, NULL, 0, HVI_MSG_TIMELINE_CTL, msg->body);
        break;
    default:
        hvi_core_violation(core, c, "unexpected %s", hvi_msg_name(msg->type));
        break;
    }
}

/* Every message of a member carries its epoch first. */
static uint32_t epoch_of(const struct hvi_msg *msg)
{
    switch (msg->type) {
#define EPOCH_(name, type)                                                             \
    case HVI_MSG_##name:                                                               \
        return ((const Hvi__##type *)msg->body)->epoch;
        EPOCH_(FORMED, Formed)
        EPOCH_(ANNOUNCE, Announce)
        EPOCH_(JOIN, Join)
        EPOCH_(PSET_ADD, PsetAdd)
        EPOCH_(PSET_REMOVE, PsetRemove)
        EPOCH_(BYE, Bye)
        EPOCH_(STALLED, Stalled)
        EPOCH_(SUSPECT, Suspect)
        EPOCH_(PROBE_REPLY, ProbeReply)
        EPOCH_(TIMELINE_CHUNK, TimelineChunk)
        EPOCH_(TIMELINE_CTL, TimelineCtl)
#undef EPOCH_
    default:
        return 0;
    }
}

static void from_member(struct hvi_core *core, struct conn *c, struct hvi_msg *msg)
{
    hvi_core_member(core, c)->unheard_bytes = 0;
    if (epoch_of(msg) != core->epoch)
        hvi_core_violation(core, c, "%s of epoch %u in epoch %u",
                           hvi_msg_name(msg->type), epoch_of(msg), core->epoch);
    else if (msg->type == HVI_MSG_BYE)
        hvi_epoch_bye(core, c);
    else if (core->phase == EP_BROKEN)
        return; /* sent before it read CLOSED */
    else if (msg->type == HVI_MSG_FORMED)
        hvi_form_formed(core, c, msg->body);
    else if (core->phase == EP_OPEN)
        member_message(core, c, msg);
    else
        hvi_core_violation(core, c, "%s before GO", hvi_msg_name(msg->type));
}

/* From a rank without an agent: are we there? */
static void answer_heartbeat(struct hvi_core *core, const struct conn *c)
{
    Hvi__Heartbeat beat = HVI__HEARTBEAT__INIT;

    if (c->state == CONN_MEMBER)
        hvi_core_member(core, c)->unheard_bytes = 0;
    hvi_emit_msg(core, c, HVI_MSG_HEARTBEAT, &beat, false);
}

static void message(struct hvi_core *core, const struct hvi_event *ev)
{
    struct conn *c = hvi_core_conn(core, ev->conn);
    Hvi__Hello *hello = ev->msg->body;

    if (c == NULL)
        return;
    if (c->agent) {
        hvi_agents_message(core, c, ev->msg);
    } else if (ev->msg->type == HVI_MSG_HEARTBEAT && c->state != CONN_LEFT) {
        answer_heartbeat(core, c);
    } else if (c->state == CONN_MEMBER) {
        from_member(core, c, ev->msg);
    } else if (c->state == CONN_OPEN && ev->msg->type == HVI_MSG_HELLO) {
        ev->msg->body = NULL;
        hvi_form_hello(core, c, hello);
    } else if (c->state == CONN_WAITS && ev->msg->type == HVI_MSG_BYE) {
        hvi_form_init_is(core, c->hello->want_rank, INIT_FAILED); /* it gave up */
        hvi_emit_close(core, c);
        hvi_core_drop(core, c);
    } else if (c->state != CONN_LEFT) {
        hvi_core_violation(core, c, "unexpected %s", hvi_msg_name(ev->msg->type));
    }
}

static void ready(struct hvi_core *core, const struct hvi_event *ev)
{
    struct conn *c = hvi_core_conn(core, ev->conn);

    if (c == NULL)
        return;
    if (c->state == CONN_LEFT) {
        /* a leaver may still speak for its host */
        if (core->plane == HVI_PLANE_HOSTS && core->phase == EP_OPEN &&
            is_leaver(core, c))
            hvi_ready_frame(core, c, ev->epoch, ev->ids, ev->nids);
        return;
    }
    if (c->state != CONN_MEMBER || core->phase == EP_FORMING) {
        hvi_core_violation(core, c, "unexpected READY");
    } else if (core->phase == EP_OPEN) {
        hvi_core_member(core, c)->unheard_bytes = 0;
        hvi_ready_frame(core, c, ev->epoch, ev->ids, ev->nids);
    }
}

static void stop(struct hvi_core *core, const char *cause)
{
    struct conn *c, *tmp;

    hvi_form_refuse_all(core, HVD_ESHUTDOWN, cause);
    if (core->phase == EP_FORMING || core->phase == EP_OPEN)
        hvi_epoch_close(core, -1, cause, HVD_ESHUTDOWN);
    HASH_ITER(hh, core->conns, c, tmp)
    {
        hvi_emit_close(core, c);
        hvi_core_drop(core, c);
    }
    hvi_emit_finish(core, core->lost_any ? 1 : 0);
}

static void sooner(int64_t *deadline, int64_t at)
{
    if (at >= 0 && (*deadline < 0 || at < *deadline))
        *deadline = at;
}

static int64_t next_deadline(struct hvi_core *core)
{
    struct hvi_link *it, *tmp;
    int64_t at = -1;

    sooner(&at, core->start_by_ms);
    if (core->phase == EP_FORMING) {
        sooner(&at, core->form_by_ms);
        sooner(&at, core->failure.at_ms);
    }
    for (int32_t r = 0; core->nverdicts > 0 && r < core->size; r++)
        sooner(&at, core->members[r].verdict_ms);
    HVI_LIST_EACH(&core->agents, it, tmp)
    {
        sooner(&at, hvi_conn_at(it)->heard_ms + core->cfg.lease_ms);
        sooner(&at, hvi_conn_at(it)->beat_ms + HVI_HEARTBEAT_MS);
    }
    if (core->idle_ms >= 0 && core->cfg.linger_ms >= 0)
        sooner(&at, core->idle_ms + core->cfg.linger_ms);
    sooner(&at, hvi_stall_deadline(core));
    return at;
}

/* Standalone: after the last epoch nobody came back. */
static void check_idle(struct hvi_core *core)
{
    bool idle = core->epoch > 0 && core->phase == EP_NONE && core->nwaiting == 0;

    if (!idle)
        core->idle_ms = -1;
    else if (core->idle_ms < 0)
        core->idle_ms = core->now;
    if (core->idle_ms >= 0 && core->cfg.linger_ms >= 0 &&
        core->now >= core->idle_ms + core->cfg.linger_ms)
        hvi_emit_finish(core, core->lost_any ? 1 : 0);
}

enum hvd_status hvi_core_step(struct hvi_core *core, const struct hvi_event *event,
                              int64_t now_ms, struct hvi_actions *out)
{
    HVI_ASSERT(core->magic == CORE_MAGIC);
    HVI_ASSERT(now_ms >= core->now);
    core->now = now_ms;
    core->out = out;
    hvi_actions_clear(out);
    switch (event->kind) {
    case HVI_EV_OPENED:
        opened(core, event);
        break;
    case HVI_EV_MESSAGE:
        message(core, event);
        break;
    case HVI_EV_READY:
        ready(core, event);
        break;
    case HVI_EV_CLOSED:
        closed(core, event);
        break;
    case HVI_EV_TICK:
        hvi_agents_tick(core);
        hvi_epoch_tick(core);
        hvi_form_tick(core);
        hvi_stall_tick(core);
        break;
    case HVI_EV_STOP:
        stop(core, event->text);
        break;
    default:
        HVI_ASSERT(event->kind != HVI_EV_UNSET);
    }
    if (core->phase == EP_OPEN)
        hvi_ready_flush(core);
    hvi_form_try(core);
    check_idle(core);
    out->deadline_ms = core->finished ? -1 : next_deadline(core);
    core->out = NULL;
    return core->oom ? HVD_ENOMEM : HVD_OK;
}
