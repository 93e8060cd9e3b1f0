/*
 * hosts: groups whose local part and whose part between hosts run at the same time.
 *
 * The tensors are cut into chunks. Between the hosts there is one group, which is fed
 * bit by bit and gives its result bit by bit (hvi_tcp_feed, hvi_tcp_done). Inside the
 * host there is a group for every step of a chunk, in an order that all its members know.
 * What a local group brings is fed at its end; one that passes on what came from other
 * hosts begins when that is there. So the wire is busy from the first chunk to the last.
 *
 * It cannot lock up: a route's order has what a local group waits for, on every host,
 * fed by local groups before it (hosts_reduce.c says how).
 */
#include "worker/plane/cpu/hosts_impl.h"

enum hvd_status hvi_hosts_cut(struct hvi_hosts *h, int64_t least_bytes, int32_t lanes,
                              struct hvi_err *err)
{
    int64_t unit = HVI_SLICE_ALIGN_BYTES * (int64_t)lanes;
    int64_t bytes = h->facts.total_bytes / HVI_HOSTS_CHUNKS_MAX + 1;

    bytes = bytes > least_bytes ? bytes : least_bytes;
    bytes = (bytes + unit - 1) / unit * unit;
    return hvi_chunks_plan(&h->plan, h->g->pieces, h->g->npieces, h->facts.elem_size,
                           bytes / (int64_t)h->facts.elem_size, err);
}

/* Starts when its first input is there: nobody has to look at sockets before. */
static enum hvd_status start_across(struct hvi_hosts *h, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    int64_t fed = h->route->flow->fed(h);

    if (h->between == HVI_HOSTS_BEFORE && fed > 0) {
        rc = hvi_hosts_start_below(h, h->mesh, &h->over, err);
        h->between = HVI_HOSTS_RUNNING;
    }
    if (rc != HVD_OK)
        return rc;
    if (h->between == HVI_HOSTS_RUNNING)
        hvi_tcp_feed(h->mesh, fed);
    return HVD_OK;
}

enum hvd_status hvi_hosts_flow_start(struct hvi_hosts *h, struct hvi_err *err)
{
    h->turn = 0;
    h->between = h->route->flow->begin_across(h) ? HVI_HOSTS_BEFORE : HVI_HOSTS_OVER;
    h->running = NULL;
    return start_across(h, err);
}

static enum hvd_status go_across(struct hvi_hosts *h, struct hvi_err *err)
{
    enum hvd_status rc;

    if (h->between != HVI_HOSTS_RUNNING)
        return HVD_OK;
    rc = hvi_hosts_go_below(h, h->mesh, err);
    if (rc != HVD_INPROGRESS)
        h->between = HVI_HOSTS_OVER;
    return rc == HVD_INPROGRESS ? HVD_OK : rc;
}

static bool may_begin(struct hvi_hosts *h)
{
    return h->between == HVI_HOSTS_OVER || h->route->flow->came(h, h->turn);
}

bool hvi_hosts_came(const struct hvi_hosts *h, int64_t elems)
{
    return elems == 0 ||
           (h->between == HVI_HOSTS_RUNNING && hvi_tcp_done(h->mesh) >= elems);
}

static enum hvd_status begin_local(struct hvi_hosts *h, struct hvi_err *err)
{
    h->route->flow->begin_local(h, h->turn);
    return hvi_hosts_start_below(h, h->local, &h->sub, err);
}

/* The local group that runs, or the next one if it may begin; *moved: it is over. */
static enum hvd_status go_local(struct hvi_hosts *h, bool *moved, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    if (h->turn == h->nturns || (h->running == NULL && !may_begin(h)))
        return HVD_OK;
    if (h->running == NULL)
        rc = begin_local(h, err);
    if (rc == HVD_OK)
        rc = hvi_hosts_go_below(h, h->local, err);
    if (rc != HVD_OK)
        return rc == HVD_INPROGRESS ? HVD_OK : rc;
    h->running = NULL;
    h->turn++;
    *moved = true;
    return start_across(h, err);
}

enum hvd_status hvi_hosts_flow_progress(struct hvi_hosts *h, struct hvi_err *err)
{
    bool moved = true;

    while (moved) {
        enum hvd_status rc = go_across(h, err);

        moved = false;
        if (rc == HVD_OK)
            rc = go_local(h, &moved, err);
        if (rc != HVD_OK)
            return rc;
    }
    return h->between != HVI_HOSTS_OVER || h->turn < h->nturns ? HVD_INPROGRESS
                                                               : HVD_OK;
}

bool hvi_hosts_flow_wait(struct hvi_hosts *h, int timeout_ms)
{
    if (h->between != HVI_HOSTS_RUNNING)
        return h->running != NULL && h->local->ops->wait(h->local, timeout_ms);
    if (h->running == NULL)
        return h->mesh->ops->wait(h->mesh, timeout_ms);
    return hvi_tcp_wait_with(h->mesh, timeout_ms, hvi_shm_ready, h->local);
}
