/*
 * How members leave. BYE: the others' operations that need the rank fail, the epoch
 * goes on; the leaver still runs what was ordered with it and has ended when its FINAL
 * comes. End of connection without BYE or before FINAL, or the agent's word that the
 * process ended: a loss; CLOSED tells all others who and why, once. Each evidence waits
 * HVI_VERDICT_MS for the other: an end of file for the agent's word on how the process
 * ended, an exit for what may still lie in the connection. The epoch is over when every
 * member has ended.
 */
#include "coordinator/core/state.h"

#include <stdlib.h>
#include <string.h>

static void end_member(struct hvi_core *core, struct member *m)
{
    if (m->ended)
        return;
    m->ended = true;
    if (m->verdict_ms >= 0) {
        m->verdict_ms = -1;
        core->nverdicts--;
    }
    if (--core->nlive == 0) {
        hvi_negotiate_end(core);
        core->phase = EP_NONE;
    }
}

/* Of one that said BYE and ended well only the end of its connection says whether it left
 * in the middle of a group, and a network that loses packets takes its time for that. */
static bool left_well(const struct hvi_core *core, const struct member *m)
{
    return m->bye && m->exited && core->procs[m->slot].wait_status == 0;
}

static int64_t verdict_at(const struct hvi_core *core, const struct member *m)
{
    return core->now + (left_well(core, m) ? core->cfg.lease_ms : HVI_VERDICT_MS);
}

static void wait_verdict(struct hvi_core *core, struct member *m)
{
    if (m->verdict_ms >= 0)
        return;
    m->verdict_ms = verdict_at(core, m);
    core->nverdicts++;
}

void hvi_epoch_reset(struct hvi_core *core)
{
    hvi_negotiate_end(core);
    for (int32_t r = 0; core->members != NULL && r < core->size; r++) {
        free(core->members[r].host);
        free(core->members[r].eof_text);
    }
    hvi_form_forget_failure(core);
    free(core->members);
    free(core->places);
    free(core->hosts);
    hvi_out_unref(core->peers);
    core->members = NULL;
    core->places = NULL;
    core->hosts = NULL;
    core->nhosts = 0;
    core->peers = NULL;
    core->size = 0;
    core->nverdicts = 0;
    memset(core->key, 0, sizeof core->key);
}

void hvi_epoch_close(struct hvi_core *core, int32_t rank, const char *cause,
                     enum hvd_status status)
{
    Hvi__Closed m = HVI__CLOSED__INIT;

    if (core->phase != EP_FORMING && core->phase != EP_OPEN)
        return;
    m.epoch = core->epoch;
    m.rank = rank;
    if (rank >= 0)
        m.host = core->members[rank].host;
    m.cause = (char *)(uintptr_t)cause;
    m.status = status;
    hvi_ready_flush(core); /* what was complete before comes first */
    core->phase = EP_BROKEN;
    hvi_emit_all(core, NULL, -1, HVI_MSG_CLOSED, &m);
    for (int32_t r = 0; r < core->size;
         r++) /* leavers may be in the middle of a group */
        hvi_emit_msg(core, core->members[r].left, HVI_MSG_CLOSED, &m, false);
    hvi_negotiate_end(core);
    for (int32_t r = 0; r < core->size; r++)
        if (core->members[r].bye)
            end_member(core, &core->members[r]);
    if (core->nlive == 0)
        core->phase = EP_NONE;
}

void hvi_epoch_lose(struct hvi_core *core, int32_t rank, const char *cause,
                    enum hvd_status status)
{
    struct member *m = &core->members[rank];
    struct text t = {.n = 0};
    bool first = core->phase == EP_FORMING || core->phase == EP_OPEN;

    if (m->ended)
        return;
    m->lost = true;
    if (m->conn != NULL || m->left != NULL) {
        struct conn *c = m->conn != NULL ? m->conn : m->left;

        hvi_emit_close(core, c);
        hvi_core_drop(core, c);
    }
    if (first) {
        core->lost_any = true;
        hvi_text_member(&t, core, rank);
        hvi_text_add(&t, ": %s", cause);
        if (m->exited && !m->bye)
            hvi_emit_rank_note(core, HVI_NOTE_LEFT, m->slot, t.s);
        hvi_emit_rank_note(core, HVI_NOTE_LOST, m->slot, t.s);
        hvi_epoch_close(core, rank, cause, status);
    }
    end_member(core, m);
}

/* Somebody has ended, and it is not known how or not well. */
static bool is_judging(const struct hvi_core *core)
{
    for (int32_t r = 0; core->nverdicts > 0 && r < core->size; r++)
        if (core->members[r].verdict_ms >= 0 && !left_well(core, &core->members[r]))
            return true;
    return false;
}

void hvi_epoch_suspect(struct hvi_core *core, struct conn *c, const char *text)
{
    struct text t = {.n = 0};
    char safe[700]; /* its end says what to do: longer than a name's */

    if (core->phase != EP_OPEN || is_judging(core))
        return; /* whose end is being judged is the cause */
    core->lost_any = true;
    hvi_text_member(&t, core, c->rank);
    hvi_text_add(&t, ": %s", hvi_escape(safe, sizeof safe, text, strlen(text)));
    hvi_emit_note(core, HVI_NOTE_STALL, "%s", t.s);
    hvi_epoch_close(core, -1, t.s, HVD_EPEER);
}

static void lose_by_exit(struct hvi_core *core, int32_t rank)
{
    int status = core->procs[core->members[rank].slot].wait_status;
    struct text t = {.n = 0};

    hvi_text_wait_status(&t, status);
    if (core->members[rank].bye)
        hvi_text_add(&t, " in hvd_shutdown");
    else if (status == 0)
        hvi_text_add(&t, " without hvd_shutdown");
    hvi_epoch_lose(core, rank, t.s, HVD_EPEER);
}

static void decide(struct hvi_core *core, int32_t rank)
{
    struct member *m = &core->members[rank];
    struct text t = {.n = 0};

    if (m->exited) {
        lose_by_exit(core, rank);
        return;
    }
    hvi_text_add(&t, "connection lost%s", m->bye ? " in hvd_shutdown" : "");
    if (m->eof_text != NULL)
        hvi_text_add(&t, ": %s", m->eof_text);
    if (core->procs[m->slot].state == PROC_RUNS)
        hvi_text_add(&t, " (its process still runs)");
    hvi_epoch_lose(core, rank, t.s, HVD_EPEER);
}

void hvi_epoch_eof(struct hvi_core *core, struct conn *c, const char *text)
{
    int32_t rank = c->rank;
    struct member *m = &core->members[rank];

    if (text != NULL && m->eof_text == NULL)
        m->eof_text = hvi_core_strdup(core, text);
    hvi_core_drop(core, c);
    if (core->phase == EP_BROKEN)
        end_member(core, m);
    else if (m->exited || hvi_core_agent(core, m->slot) == NULL)
        decide(core, rank);
    else
        wait_verdict(core, m);
}

void hvi_epoch_left(struct hvi_core *core, struct conn *c, bool clean, const char *text)
{
    struct member *m = c->rank < core->size ? &core->members[c->rank] : NULL;

    if (m == NULL || m->left != c || m->ended) {
        hvi_core_drop(core, c); /* of an epoch that is over */
    } else if (clean) {
        hvi_core_drop(core, c);
        end_member(core, m);
    } else {
        hvi_epoch_eof(core, c, text);
    }
}

/* From agents.c: the process of a slot ended. */
void hvi_epoch_exited(struct hvi_core *core, int32_t slot)
{
    for (int32_t r = 0; core->phase != EP_NONE && r < core->size; r++) {
        struct member *m = &core->members[r];

        if (m->slot != slot || m->ended)
            continue;
        m->exited = true;
        if (m->conn == NULL && m->left == NULL)
            decide(core, r);
        else
            wait_verdict(core, m);
        return;
    }
}

void hvi_epoch_bye(struct hvi_core *core, struct conn *c)
{
    struct member *m = hvi_core_member(core, c);
    Hvi__PeerBye bye = HVI__PEER_BYE__INIT;
    int32_t rank = c->rank;

    m->bye = true;
    if (m->verdict_ms >= 0) /* it was slower than its agent's word */
        m->verdict_ms = verdict_at(core, m);
    m->conn = NULL;
    c->state = CONN_LEFT;
    if (core->phase == EP_FORMING) {
        hvi_epoch_close(core, rank, "shut down while the job was forming",
                        HVD_ESHUTDOWN);
    } else if (core->phase == EP_OPEN) {
        if (!core->gone_any) { /* if it fails now, those that needed it fail after it */
            struct text t = {.n = 0};

            hvi_text_member(&t, core, rank);
            hvi_text_add(&t, " has left");
            hvi_emit_rank_note(core, HVI_NOTE_BYE, m->slot, t.s);
        }
        core->gone_any = true;
        rankset_add(&core->gone, rank);
        hvi_ready_flush(core);
        hvi_negotiate_gone(core, rank);
        hvi_psets_gone(core);
        bye.epoch = core->epoch;
        bye.rank = rank;
        hvi_emit_all(core, NULL, rank, HVI_MSG_PEER_BYE, &bye);
    }
    /* the leaver may go: all that was ordered with it has been sent to it */
    bye.epoch = core->epoch;
    bye.rank = rank;
    hvi_emit_msg(core, c, HVI_MSG_PEER_BYE, &bye, false);
    if (core->phase == EP_OPEN)
        m->left = c; /* until its FINAL */
    else
        end_member(core, m);
}

void hvi_epoch_tick(struct hvi_core *core)
{
    for (int32_t r = 0; core->nverdicts > 0 && r < core->size; r++) {
        struct member *m = &core->members[r];

        if (m->verdict_ms < 0 || core->now < m->verdict_ms)
            continue;
        decide(core, r);
        if (core->phase == EP_NONE)
            return;
    }
}
