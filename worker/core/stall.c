/*
 * Who waits for whom: what this rank knows about operations that take long, for the
 * coordinator's reports (STALLED, PROBE) and for the text of a wait that timed out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/names.h"
#include "worker/core/ctx.h"

#define STALL_LOOK_MS 1000 /* publishing wakes no one: look this often */

void hvi_describe_rank(struct hvi_ctx *c, char *out, size_t cap)
{
    int64_t now = hvi_now_ms();
    const struct hvi_entry *oldest = NULL;
    struct hvi_entry *e;
    struct hvi_link *it;
    struct hvi_link *tmp;

    HVI_LIST_EACH(&c->inflight, it, tmp)
    {
        e = HVI_CONTAINER(it, struct hvi_entry, link);
        if (oldest == NULL || e->since_ms < oldest->since_ms)
            oldest = e;
    }
    if (c->join_op != NULL)
        snprintf(out, cap, "has joined %.1f s ago",
                 (double)(now - c->join_since_ms) / 1e3);
    else if (oldest != NULL)
        snprintf(out, cap, "waits in %s '%.200s' for %.1f s, %u in flight",
                 hvi_kind_name(oldest->req->kind), oldest->req->name,
                 (double)(now - oldest->since_ms) / 1e3, c->ninflight);
    else if (c->last_submit_ms == 0)
        snprintf(out, cap, "has submitted nothing yet");
    else
        snprintf(out, cap, "in the program; last submitted '%.120s' %.1f s ago",
                 c->last_name, (double)(now - c->last_submit_ms) / 1e3);
}

/* Who has not come, as far as this rank can tell; at most cap. */
static size_t missing_ranks(struct hvi_ctx *c, const struct hvi_entry *e, int32_t *out)
{
    struct hvi_board_mask mask;
    size_t n = 0;
    bool waits;

    memset(&mask, 0, sizeof mask);
    if (c->board == NULL || c->board_left || e->state != HVI_ENTRY_PUBLISHED)
        return 0;
    waits = hvi_board_missing(c->board, c->bell, e->id, e->generation, &mask);
    hvi_negotiate_poll(c);
    if (!waits)
        return 0;
    for (int32_t r = 0; r < c->host_count; r++)
        if (hvi_board_mask_has(&mask, r))
            out[n++] = c->host_first + r;
    return n;
}

static void report_stall(struct hvi_ctx *c, const struct hvi_entry *e, int64_t now_ms)
{
    Hvi__Stalled m = HVI__STALLED__INIT;
    int32_t *missing = malloc((size_t)c->size * sizeof *missing);

    if (missing == NULL)
        return;
    m.epoch = c->epoch;
    m.name = e->req->name;
    m.pset = e->req->pset;
    m.kind = e->req->kind;
    m.waited_ms = (uint64_t)(now_ms - e->since_ms);
    m.ordered = e->state == HVI_ENTRY_SEALED;
    m.n_missing = missing_ranks(c, e, missing);
    m.missing = missing;
    hvi_conn_put(&c->conn, HVI_MSG_STALLED, &m);
    free(missing);
}

static struct hvi_entry *entry_of(struct hvi_ctx *c, const struct hvi_op *op)
{
    struct hvi_entry *e;
    struct hvi_link *it;
    struct hvi_link *tmp;

    HVI_LIST_EACH(&c->inflight, it, tmp)
    {
        e = HVI_CONTAINER(it, struct hvi_entry, link);
        for (uint32_t i = 0; i < e->req->ntensors; i++)
            if (e->ops[i] == op)
                return e;
    }
    return NULL;
}

void hvi_describe_wait(struct hvi_ctx *c, const struct hvi_op *op, struct hvi_err *err)
{
    int32_t *missing = malloc((size_t)c->size * sizeof *missing);
    char list[256] = "";
    size_t used = 0;
    struct hvi_entry *e;

    pthread_mutex_lock(&c->lock);
    e = missing != NULL ? entry_of(c, op) : NULL;
    if (e != NULL && e->state != HVI_ENTRY_SEALED) {
        size_t n = missing_ranks(c, e, missing);

        for (size_t i = 0; i < n && used < sizeof list - 16; i++)
            used += (size_t)snprintf(list + used, sizeof list - used, "%s%d",
                                     i > 0 ? ", " : " (missing: rank ", missing[i]);
        if (n > 0)
            snprintf(list + used, sizeof list - used, ")");
    }
    if (e != NULL)
        hvi_fail(err, HVD_ETIMEDOUT, "%s '%.200s' has waited %.1f s%s",
                 hvi_kind_name(e->req->kind), e->req->name,
                 (double)(hvi_now_ms() - e->since_ms) / 1e3, list);
    else
        hvi_fail(err, HVD_ETIMEDOUT, "%s has not completed in time",
                 hvi_kind_name(op->kind));
    pthread_mutex_unlock(&c->lock);
    free(missing);
}

int hvi_stall_look(struct hvi_ctx *c, int64_t now_ms)
{
    struct hvi_entry *e;
    struct hvi_link *it;
    struct hvi_link *tmp;
    int64_t soonest =
        c->stall_warn_ms < STALL_LOOK_MS ? c->stall_warn_ms : STALL_LOOK_MS;

    if (c->stall_warn_ms == 0)
        return -1;
    if (now_ms < c->stall_look_ms) /* what has come since is not due before that */
        return (int)(c->stall_look_ms - now_ms);
    pthread_mutex_lock(&c->lock);
    HVI_LIST_EACH(&c->inflight, it, tmp)
    {
        e = HVI_CONTAINER(it, struct hvi_entry, link);
        if (e->stall_next_ms == 0)
            e->stall_next_ms = e->since_ms + c->stall_warn_ms;
        if (now_ms >= e->stall_next_ms) {
            report_stall(c, e, now_ms);
            e->stall_next_ms = now_ms + c->stall_warn_ms;
        }
        if (e->stall_next_ms - now_ms < soonest)
            soonest = e->stall_next_ms - now_ms;
    }
    pthread_mutex_unlock(&c->lock);
    c->stall_look_ms = now_ms + soonest;
    return (int)soonest;
}
