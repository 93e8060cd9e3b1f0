/* Actions in words: the event traces of the tests and the debug log. */
#include "coordinator/core/core.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct line {
    char *s;
    size_t n, cap;
};

static void add(struct line *l, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void add(struct line *l, const char *fmt, ...)
{
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(l->s + l->n, l->cap - l->n, fmt, ap);
    va_end(ap);
    if (n > 0)
        l->n += (size_t)n;
    if (l->n > l->cap - 1)
        l->n = l->cap - 1;
}

static void add_string(struct line *l, const char *key, const char *s)
{
    char safe[1024];

    add(l, " %s='%s'", key, hvi_escape(safe, sizeof safe, s, strlen(s)));
}

static void add_ranks(struct line *l, size_t n, const int32_t *ranks)
{
    add(l, " ranks=");
    for (size_t i = 0; i < n; i++)
        add(l, "%s%d", i > 0 ? "," : "", ranks[i]);
}

static void add_welcome(struct line *l, const Hvi__Welcome *m)
{
    add(l, " epoch=%u attempt=%u plane=%u rank=%d/%d local=%d/%d cross=%d/%d peers=%zu",
        m->epoch, m->attempt, m->plane, m->rank, m->size, m->local_rank, m->local_size,
        m->cross_rank, m->cross_size, m->n_peers);
    if (m->n_psets > 0)
        add(l, " psets=%zu", m->n_psets);
}

static void add_order(struct line *l, const uint8_t *payload, size_t size_bytes)
{
    struct hvi_order_group *g = NULL;
    uint32_t epoch, count;

    if (hvi_order_get(payload, size_bytes, &epoch, &g, &count, NULL) != HVD_OK)
        return;
    for (uint32_t i = 0; i < count; i++) {
        add(l, " [seq=%" PRIu64, g[i].seq);
        if (g[i].status != 0)
            add(l, " status=%d", g[i].status);
        add(l, " ids=");
        for (uint32_t k = 0; k < g[i].nids; k++)
            add(l, "%s%u", k > 0 ? "," : "", g[i].ids[k]);
        add(l, "]");
    }
    free(g);
}

static void add_body(struct line *l, const struct hvi_msg *msg)
{
    const void *b = msg->body;

    switch (msg->type) {
    case HVI_MSG_REFUSED:
        add(l, " %s",
            hvi_status_name((enum hvd_status)((const Hvi__Refused *)b)->status));
        add_string(l, "text", ((const Hvi__Refused *)b)->text);
        break;
    case HVI_MSG_WELCOME:
        add_welcome(l, b);
        break;
    case HVI_MSG_ASSIGN: {
        const Hvi__Assign *m = b;

        add(l, " id=%u gen=%u", m->id, m->generation);
        if (m->request != NULL) {
            add_string(l, "name", m->request->name);
            if (m->request->pset != 0)
                add(l, " pset=%u", m->request->pset);
            if (m->ordered)
                add(l, " ordered");
        }
        break;
    }
    case HVI_MSG_MARK:
        add(l, " seq=%" PRIu64, ((const Hvi__Mark *)b)->seq);
        break;
    case HVI_MSG_EVICT:
        add(l, " id=%u gen=%u", ((const Hvi__Evict *)b)->id,
            ((const Hvi__Evict *)b)->generation);
        break;
    case HVI_MSG_FAIL: {
        const Hvi__Fail *m = b;

        add_string(l, "name", m->name);
        add(l, " %s", hvi_status_name((enum hvd_status)m->status));
        add_string(l, "text", m->text);
        break;
    }
    case HVI_MSG_JOIN_DONE:
        add(l, " last=%d gen=%u", ((const Hvi__JoinDone *)b)->last_rank,
            ((const Hvi__JoinDone *)b)->generation);
        break;
    case HVI_MSG_PSET_REPLY: {
        const Hvi__PsetReply *m = b;

        add(l, " %s pset=%u %s", m->add ? "add" : "remove", m->pset,
            hvi_status_name((enum hvd_status)m->status));
        if (m->n_ranks > 0)
            add_ranks(l, m->n_ranks, m->ranks);
        if (m->text[0] != '\0')
            add_string(l, "text", m->text);
        break;
    }
    case HVI_MSG_PEER_BYE:
        add(l, " rank=%d", ((const Hvi__PeerBye *)b)->rank);
        break;
    case HVI_MSG_CLOSED: {
        const Hvi__Closed *m = b;

        add(l, " rank=%d %s", m->rank, hvi_status_name((enum hvd_status)m->status));
        add_string(l, "cause", m->cause);
        break;
    }
    case HVI_MSG_PROBE:
        add(l, " probe=%" PRIu64, ((const Hvi__Probe *)b)->probe);
        break;
    case HVI_MSG_PROC_PROBE: {
        const Hvi__ProcProbe *m = b;

        add(l, " probe=%" PRIu64, m->probe);
        add_ranks(l, m->n_ranks, m->ranks);
        break;
    }
    case HVI_MSG_TIMELINE_CHUNK: {
        const Hvi__TimelineChunk *m = b;

        add(l, " from=%d bytes=%zu", m->rank, m->events.len);
        break;
    }
    default:
        break;
    }
}

static void add_frame(struct line *l, const struct hvi_out *frame)
{
    struct hvi_buf buf = {0};
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    uint32_t type;
    struct hvi_msg msg;

    if (hvi_out_flatten(frame, &buf) == HVD_OK &&
        hvi_frame_peek(hvi_buf_peek(&buf), hvi_buf_size(&buf), &type, &payload,
                       &payload_bytes, &frame_bytes, NULL) == HVD_OK) {
        add(l, " %s", hvi_msg_name(type));
        if (type == HVI_MSG_ORDER) {
            add_order(l, payload, payload_bytes);
        } else if (hvi_msg_get(type, payload, payload_bytes, &msg, NULL) == HVD_OK) {
            add_body(l, &msg);
            hvi_msg_free(&msg);
        } else {
            add(l, " undecodable");
        }
    }
    hvi_buf_fini(&buf);
}

char *hvi_action_text(const struct hvi_action *action, char *out, size_t cap)
{
    static const char *const notes[] = {"?",    "info", "stall", "fatal",
                                        "left", "lost", "bye"};
    struct line l = {out, 0, cap};

    out[0] = '\0';
    switch (action->kind) {
    case HVI_ACT_SEND:
        add(&l, "send %" PRIu64, action->conn);
        add_frame(&l, action->frame);
        if (action->last)
            add(&l, " last");
        break;
    case HVI_ACT_CLOSE:
        add(&l, "close %" PRIu64, action->conn);
        break;
    case HVI_ACT_NOTE:
        add(&l, "note %s", notes[action->note <= HVI_NOTE_BYE ? action->note : 0]);
        if (action->rank >= 0)
            add(&l, " rank=%d", action->rank);
        add_string(&l, "text", action->text);
        break;
    case HVI_ACT_FINISH:
        add(&l, "finish %d", action->status);
        break;
    default:
        add(&l, "?");
        break;
    }
    return out;
}
