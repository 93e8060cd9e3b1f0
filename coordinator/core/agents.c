/*
 * Agents: one a host, the authority on its processes. AGENT_HELLO, then RANK_STARTED
 * and RANK_EXITED of its ranks, HEARTBEAT both ways, PROC_STATE answers. An agent that
 * is silent for the lease, or ends without FINAL, takes its host's ranks with it.
 */
#include "coordinator/core/state.h"

#include <stdlib.h>
#include <string.h>

static void agent_hello(struct hvi_core *core, struct conn *c, const Hvi__AgentHello *m)
{
    struct text t = {.n = 0};

    c->host = hvi_core_strdup(core, m->host);
    c->heard_ms = c->beat_ms = core->now;
    if (strcmp(m->version, core->cfg.version) == 0) {
        c->state = CONN_AGENT;
        hvi_list_append(&core->agents, &c->link);
        return;
    }
    hvi_text_add(&t, "version mismatch: hvd-agent ");
    hvi_text_add_peer(&t, m->version);
    hvi_text_add(&t, " on host ");
    hvi_text_add_peer(&t, m->host);
    hvi_emit_note(core, HVI_NOTE_FATAL, "%s, hvd-coordinator %s", t.s,
                  core->cfg.version);
    hvi_emit_close(core, c);
    hvi_core_drop(core, c);
}

static bool own_slot(struct hvi_core *core, struct conn *c, int32_t slot)
{
    if (slot < 0 || slot >= (int32_t)core->cfg.np) {
        hvi_core_violation(core, c, "rank %d of %u", slot, core->cfg.np);
        return false;
    }
    if (core->procs[slot].agent != 0 && core->procs[slot].agent != c->id &&
        core->procs[slot].state == PROC_RUNS) {
        hvi_core_violation(core, c, "rank %d belongs to another agent", slot);
        return false;
    }
    return true;
}

static void forget_loss(struct proc *p)
{
    free(p->lost);
    p->lost = NULL;
}

static void rank_started(struct hvi_core *core, struct conn *c,
                         const Hvi__RankStarted *m)
{
    struct proc *p;

    if (!own_slot(core, c, m->rank))
        return;
    p = &core->procs[m->rank];
    forget_loss(p);
    if (p->state != PROC_UNKNOWN) { /* else it may have come before its agent told */
        p->served = false;
        p->init = INIT_NOT;
        p->refused[0] = '\0';
    }
    p->state = PROC_RUNS;
    p->pid = m->pid;
    p->agent = c->id;
}

/* A process that waited in hvd_init; a child of it may keep the connection open. */
static void end_waiting(struct hvi_core *core, int32_t slot)
{
    struct hvi_link *it, *tmp;

    HVI_LIST_EACH(&core->waiting, it, tmp)
    {
        struct conn *w = HVI_CONTAINER(it, struct conn, link);

        if (w->hello->want_rank == slot) {
            hvi_emit_close(core, w);
            hvi_core_drop(core, w);
        }
    }
}

static void rank_exited(struct hvi_core *core, struct conn *c, const Hvi__RankExited *m)
{
    struct proc *p;

    if (!own_slot(core, c, m->rank))
        return;
    p = &core->procs[m->rank];
    forget_loss(p);
    p->state = PROC_EXITED;
    p->nth = ++core->nexits;
    p->pid = m->pid;
    p->wait_status = m->wait_status;
    p->agent = c->id;
    hvi_epoch_exited(core, m->rank);
    end_waiting(core, m->rank);
    hvi_form_check_exited(core);
}

void hvi_agents_message(struct hvi_core *core, struct conn *c, struct hvi_msg *msg)
{
    c->heard_ms = core->now;
    if (c->state == CONN_OPEN && msg->type == HVI_MSG_AGENT_HELLO)
        agent_hello(core, c, msg->body);
    else if (c->state != CONN_AGENT)
        hvi_core_violation(core, c, "%s before AGENT_HELLO", hvi_msg_name(msg->type));
    else if (msg->type == HVI_MSG_RANK_STARTED)
        rank_started(core, c, msg->body);
    else if (msg->type == HVI_MSG_RANK_EXITED)
        rank_exited(core, c, msg->body);
    else if (msg->type == HVI_MSG_PROC_STATE)
        hvi_stall_proc_state(core, c, msg->body);
    else if (msg->type != HVI_MSG_HEARTBEAT)
        hvi_core_violation(core, c, "unexpected %s", hvi_msg_name(msg->type));
}

static void lose_host(struct hvi_core *core, uint64_t agent, const char *cause)
{
    for (int32_t s = 0; s < (int32_t)core->cfg.np; s++) {
        struct proc *p = &core->procs[s];

        if (p->agent != agent)
            continue;
        p->agent = 0;
        if (p->state != PROC_RUNS)
            continue;
        p->state = PROC_LOST;
        p->nth = ++core->nexits;
        p->lost = hvi_core_strdup(core, cause);
        for (int32_t r = 0; core->phase != EP_NONE && r < core->size; r++)
            if (core->members[r].slot == s)
                hvi_epoch_lose(core, r, cause, HVD_EPEER);
    }
    hvi_form_check_exited(core); /* who waits for them waits in vain */
}

void hvi_agents_closed(struct hvi_core *core, struct conn *c, bool clean,
                       const char *text)
{
    struct text t = {.n = 0};
    uint64_t id = c->id;

    hvi_text_add(&t, "the agent of host ");
    hvi_text_add_peer(&t, c->host);
    hvi_text_add(&t, " %s", clean ? "left" : "is gone");
    if (text != NULL)
        hvi_text_add(&t, ": %s", text);
    hvi_core_drop(core, c);
    lose_host(core, id, t.s);
}

static void lease_expired(struct hvi_core *core, struct conn *c)
{
    struct text t = {.n = 0};
    uint64_t id = c->id;

    hvi_text_add(&t, "host ");
    hvi_text_add_peer(&t, c->host);
    hvi_text_add(&t, " is lost: no heartbeat for %g s", core->cfg.lease_ms / 1000.0);
    hvi_emit_note(core, HVI_NOTE_FATAL, "%s", t.s);
    hvi_emit_close(core, c);
    hvi_core_drop(core, c);
    lose_host(core, id, t.s);
}

/* An agent whose lease is over, or NULL. */
static struct conn *find_expired(struct hvi_core *core)
{
    struct hvi_link *it, *tmp;

    HVI_LIST_EACH(&core->agents, it, tmp)
    if (core->now >= hvi_conn_at(it)->heard_ms + core->cfg.lease_ms)
        return hvi_conn_at(it);
    return NULL;
}

void hvi_agents_tick(struct hvi_core *core)
{
    Hvi__Heartbeat beat = HVI__HEARTBEAT__INIT;
    struct hvi_link *it, *tmp;
    struct conn *c;

    while ((c = find_expired(core)) != NULL)
        lease_expired(core, c);
    HVI_LIST_EACH(&core->agents, it, tmp)
    {
        c = hvi_conn_at(it);
        if (core->now < c->beat_ms + HVI_HEARTBEAT_MS)
            continue;
        c->beat_ms = core->now;
        beat.sent_ms = (uint64_t)core->now;
        hvi_emit_msg(core, c, HVI_MSG_HEARTBEAT, &beat, false);
    }
}
