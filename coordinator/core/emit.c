#include "coordinator/core/state.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__)
/* gcc 12's analyzer loses what is owned by a hash table or a list of actions */
#pragma GCC diagnostic ignored "-Wanalyzer-malloc-leak"
#endif

void hvi_out_unref(struct hvi_out *frame)
{
    while (frame != NULL && --frame->refs == 0) {
        struct hvi_out *tail = frame->tail;

        hvi_buf_fini(&frame->head);
        free(frame);
        frame = tail;
    }
}

/* The header of a frame with a tail already counts it: see form.c. */
enum hvd_status hvi_out_flatten(const struct hvi_out *frame, struct hvi_buf *buf)
{
    enum hvd_status rc = HVD_OK;

    for (; frame != NULL && rc == HVD_OK; frame = frame->tail)
        if (hvi_buf_size(&frame->head) > 0)
            rc = hvi_buf_append(buf, hvi_buf_peek(&frame->head),
                                hvi_buf_size(&frame->head));
    return rc;
}

void hvi_actions_clear(struct hvi_actions *a)
{
    for (uint32_t i = 0; i < a->count; i++) {
        hvi_out_unref(a->list[i].frame);
        free(a->list[i].text);
    }
    a->count = 0;
    a->deadline_ms = -1;
}

void hvi_actions_fini(struct hvi_actions *a)
{
    hvi_actions_clear(a);
    free(a->list);
    a->list = NULL;
    a->cap = 0;
}

static struct hvi_action *add(struct hvi_core *core, enum hvi_action_kind kind)
{
    struct hvi_actions *a = core->out;
    struct hvi_action *act;

    if (a->count == a->cap) {
        uint32_t cap = a->cap == 0 ? 16 : a->cap * 2;
        struct hvi_action *list = realloc(a->list, cap * sizeof *list);

        if (list == NULL) {
            core->oom = true;
            return NULL;
        }
        a->list = list;
        a->cap = cap;
    }
    act = &a->list[a->count++];
    memset(act, 0, sizeof *act);
    act->kind = kind;
    act->rank = -1;
    return act;
}

struct hvi_out *hvi_emit_frame(struct hvi_core *core, uint32_t type, const void *body)
{
    struct hvi_out *f = hvi_core_alloc(core, 1, sizeof *f);
    enum hvd_status rc;

    if (f == NULL)
        return NULL;
    f->refs = 1;
    rc = hvi_msg_put(&f->head, type, body);
    if (rc != HVD_OK) {
        /* only a relayed TIMELINE_CHUNK can be too large: it is dropped */
        core->oom = core->oom || rc != HVD_ELIMIT;
        hvi_out_unref(f);
        return NULL;
    }
    return f;
}

void hvi_emit_send(struct hvi_core *core, const struct conn *c, struct hvi_out *frame,
                   bool last, bool droppable)
{
    struct hvi_action *act;

    if (c == NULL || frame == NULL)
        return;
    act = add(core, HVI_ACT_SEND);
    if (act == NULL)
        return;
    act->conn = c->id;
    act->frame = frame;
    act->last = last;
    act->droppable = droppable;
    frame->refs++;
}

/* What takes back, or ends, what groups may rest on: a rank that hears of these by
 * another rank's ORDER must not overtake them. */
static bool after_order(uint32_t type)
{
    return type == HVI_MSG_EVICT || type == HVI_MSG_JOIN_DONE ||
           type == HVI_MSG_PSET_REPLY || type == HVI_MSG_PEER_BYE;
}

void hvi_emit_msg(struct hvi_core *core, const struct conn *c, uint32_t type,
                  const void *body, bool last)
{
    struct hvi_out *f;

    if (c == NULL)
        return;
    if (after_order(type))
        hvi_ready_mark_seq(core, c);
    f = hvi_emit_frame(core, type, body);
    hvi_emit_send(core, c, f, last, false);
    hvi_out_unref(f);
}

void hvi_emit_all(struct hvi_core *core, const struct rankset *who, int32_t except,
                  uint32_t type, const void *body)
{
    struct hvi_out *f = hvi_emit_frame(core, type, body);

    for (int32_t r = 0; r < core->size && f != NULL; r++)
        if (r != except && hvi_member_live(&core->members[r]) &&
            (who == NULL || rankset_has(who, r))) {
            if (after_order(type))
                hvi_ready_mark_seq(core, core->members[r].conn);
            hvi_emit_send(core, core->members[r].conn, f, false, false);
        }
    hvi_out_unref(f);
}

void hvi_emit_close(struct hvi_core *core, const struct conn *c)
{
    struct hvi_action *act = add(core, HVI_ACT_CLOSE);

    if (act != NULL)
        act->conn = c->id;
}

void hvi_emit_finish(struct hvi_core *core, int status)
{
    struct hvi_action *act;

    if (core->finished)
        return;
    core->finished = true;
    act = add(core, HVI_ACT_FINISH);
    if (act != NULL)
        act->status = status;
}

static void note(struct hvi_core *core, enum hvi_note_kind kind, int32_t rank,
                 const char *text)
{
    struct hvi_action *act = add(core, HVI_ACT_NOTE);

    if (act == NULL)
        return;
    act->note = kind;
    act->rank = rank;
    act->text = hvi_core_strdup(core, text);
}

void hvi_emit_note(struct hvi_core *core, enum hvi_note_kind kind, const char *fmt, ...)
{
    char text[2048];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    note(core, kind, -1, text);
}

void hvi_emit_rank_note(struct hvi_core *core, enum hvi_note_kind kind, int32_t slot,
                        const char *text)
{
    note(core, kind, slot, text);
}
