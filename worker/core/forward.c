/*
 * Plane hosts (PROTOCOL.md section 5): the coordinator sends the order once per host, to
 * its forwarder, which appends it to the order log in the segment; all ranks of the
 * host read it there.
 *
 * Happy path: any rank that finds something complete on the board takes it and sends
 * READY for the whole host (hvi_forward_take). ORDER comes to one rank, where who
 * reads the connection moves it into the logs and rings.
 *
 * What else the coordinator says comes on each rank's own connection, and may overtake
 * the order that way. MARK holds it back until the log has come as far as the
 * coordinator was. ORDER itself waits while a log is full. What waits is kept in
 * ctx->deferred, in order; a verdict about the epoch (CLOSED) never waits, and after
 * one nothing waits any more.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/core/ctx.h"

#define MARK_SPIN_US 50 /* the forwarder got its ORDER just before our MARK */

struct deferred {
    struct hvi_link link;
    uint32_t type;
    size_t size_bytes;
    uint8_t payload[];
};

static bool never_waits(uint32_t type)
{
    return type == HVI_MSG_CLOSED || type == HVI_MSG_PROBE ||
           type == HVI_MSG_HEARTBEAT || type == HVI_MSG_TIMELINE_CTL ||
           type == HVI_MSG_TIMELINE_CHUNK;
}

static bool order_is_sane(const struct hvi_order_group *g)
{
    for (uint32_t i = 0; i < g->nids; i++)
        if (g->ids[i] >= HVI_BOARD_MAX_IDS)
            return false;
    return g->nids > 0 && g->nids <= HVI_BOARD_GROUP_MAX_IDS;
}

/* Those of the groups that are not in the logs yet. */
static enum hvd_status append(struct hvi_ctx *c, const struct hvi_order_group *groups,
                              uint32_t count, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    struct hvi_board_mask wake;

    memset(&wake, 0, sizeof wake);
    pthread_mutex_lock(&c->lock);
    for (uint32_t i = 0; i < count && rc == HVD_OK && !c->board_left; i++) {
        const struct hvi_order_group *g = &groups[i];

        if (g->seq < hvi_board_ordered(c->board))
            continue;
        if (!order_is_sane(g))
            rc = hvi_fail(err, HVD_EPROTO, "ORDER with a group of %u ids", g->nids);
        else if (!hvi_board_order(c->board, g->seq, g->status != 0, g->ids, g->nids,
                                  &wake))
            rc = HVD_INPROGRESS;
    }
    hvi_bell_ring_mask(c->bells, wake.w);
    hvi_negotiate_poll(c); /* the board's lock was held: see board.h */
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* HVD_INPROGRESS: a log is full. */
static enum hvd_status on_order(struct hvi_ctx *c, const uint8_t *payload,
                                size_t size_bytes, struct hvi_err *err)
{
    struct hvi_order_group *groups = NULL;
    uint32_t count = 0;
    uint32_t epoch = 0;
    enum hvd_status rc =
        hvi_order_get(payload, size_bytes, &epoch, &groups, &count, err);

    atomic_store(&c->forwards, true);
    if (rc == HVD_OK && epoch == c->epoch)
        rc = append(c, groups, count, err);
    free(groups);
    return rc;
}

struct mark {
    const struct hvi_board *board;
    uint64_t seq;
};

static bool log_came_so_far(void *arg)
{
    const struct mark *m = arg;

    return hvi_board_ordered(m->board) >= m->seq;
}

static enum hvd_status on_mark(struct hvi_ctx *c, const uint8_t *payload,
                               size_t size_bytes, bool first, struct hvi_err *err)
{
    struct hvi_msg msg;
    struct mark m = {c->board, 0};
    enum hvd_status rc = hvi_msg_get(HVI_MSG_MARK, payload, size_bytes, &msg, err);

    if (rc != HVD_OK)
        return rc;
    m.seq = ((const Hvi__Mark *)msg.body)->seq;
    hvi_msg_free(&msg);
    if (log_came_so_far(&m) ||
        (first &&
         hvi_spin_for(MARK_SPIN_US, true, false, log_came_so_far, &m) != HVI_SPIN_VAIN))
        return HVD_OK;
    return HVD_INPROGRESS;
}

/* HVD_INPROGRESS: it has to wait. first: this is the first try. */
static enum hvd_status take(struct hvi_ctx *c, uint32_t type, const uint8_t *payload,
                            size_t size_bytes, bool first, struct hvi_err *err)
{
    bool over = atomic_load(&c->failed) != 0;

    if (type == HVI_MSG_ORDER)
        return over ? HVD_OK : on_order(c, payload, size_bytes, err);
    if (type == HVI_MSG_MARK)
        return over ? HVD_OK : on_mark(c, payload, size_bytes, first, err);
    return hvi_negotiate_message(c, type, payload, size_bytes, err);
}

static enum hvd_status defer(struct hvi_ctx *c, uint32_t type, const uint8_t *payload,
                             size_t size_bytes, struct hvi_err *err)
{
    struct deferred *d = malloc(sizeof *d + size_bytes);

    if (d == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    hvi_list_init(&d->link);
    d->type = type;
    d->size_bytes = size_bytes;
    if (size_bytes > 0)
        memcpy(d->payload, payload, size_bytes);
    hvi_list_append(&c->deferred, &d->link);
    return HVD_OK;
}

bool hvi_forward_waits(const struct hvi_ctx *c)
{
    return !hvi_list_empty(&c->deferred);
}

enum hvd_status hvi_forward_message(struct hvi_ctx *c, uint32_t type,
                                    const uint8_t *payload, size_t size_bytes,
                                    struct hvi_err *err)
{
    enum hvd_status rc;

    if (c->mode != HVI_MODE_HOSTS || never_waits(type))
        return hvi_negotiate_message(c, type, payload, size_bytes, err);
    if (hvi_forward_waits(c))
        return defer(c, type, payload, size_bytes, err);
    rc = take(c, type, payload, size_bytes, true, err);
    if (rc == HVD_INPROGRESS)
        rc = defer(c, type, payload, size_bytes, err);
    return rc;
}

enum hvd_status hvi_forward_deferred(struct hvi_ctx *c, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    while (hvi_forward_waits(c)) {
        struct deferred *d = HVI_CONTAINER(c->deferred.next, struct deferred, link);

        rc = take(c, d->type, d->payload, d->size_bytes, false, err);
        if (rc != HVD_OK)
            break;
        hvi_list_remove(&d->link);
        free(d);
    }
    return rc == HVD_INPROGRESS ? HVD_OK : rc;
}

void hvi_forward_take(struct hvi_ctx *c)
{
    struct hvi_board_ready some[256];
    bool more = true;

    c->claimed = false;
    while (more) {
        uint32_t room = c->ready_cap - c->nready;
        uint32_t cap = sizeof some / sizeof *some;
        uint32_t n = hvi_board_take(c->board, some, room < cap ? room : cap, &more);

        for (uint32_t i = 0; i < n; i++)
            c->ready[c->nready++] = (struct hvi_ready_id){
                some[i].id | (some[i].joined ? HVI_READY_JOINED : 0),
                some[i].generation};
        if (n == 0)
            break;
    }
}

enum hvd_status hvi_forward_init(struct hvi_ctx *c)
{
    if (c->ready != NULL)
        return HVD_OK;
    c->ready = malloc(HVI_BOARD_MAX_IDS * sizeof *c->ready);
    if (c->ready == NULL)
        return HVD_ENOMEM;
    c->ready_cap = HVI_BOARD_MAX_IDS; /* each id once: it is not complete again before
                                       * it was ordered */
    return HVD_OK;
}

void hvi_forward_fini(struct hvi_ctx *c)
{
    struct hvi_link *next;

    for (struct hvi_link *at = c->deferred.next; at != &c->deferred; at = next) {
        next = at->next;
        free(HVI_CONTAINER(at, struct deferred, link));
    }
    hvi_list_init(&c->deferred);
}
