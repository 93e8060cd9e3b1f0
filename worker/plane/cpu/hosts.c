/*
 * The plane of several hosts: who is where, which route a group takes, and the walk
 * through its steps, each a group of one of the two planes below. Nothing here touches
 * payload: lanes are made by the way a tensor is cut (hosts_reduce.c, hosts_move.c).
 *
 * Failure: the planes below fail, and with them the group. A rank whose output could
 * not be had takes part to the end with a place to throw it (plane.h).
 */
#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"
#include "worker/plane/cpu/hosts_impl.h"

#define ADASUM_FLAT_BYTES (32 * 1024)
/* From so many hosts on, with so many bytes of each: tests/bench/README.md. */
enum { CHAIN_HOSTS = 12, CHAIN_HOST_BYTES = 256 * 1024 };

static struct hvi_hosts *hosts_of(struct hvi_plane *p)
{
    return (struct hvi_hosts *)(void *)p;
}

bool hvi_room_grow(struct hvi_room *r, size_t size_bytes)
{
    void *more;

    if (size_bytes <= r->size_bytes)
        return true;
    if (posix_memalign(&more, 64, size_bytes) != 0)
        return false;
    free(r->data);
    r->data = more;
    r->size_bytes = size_bytes;
    return true;
}

bool hvi_hosts_room(struct hvi_hosts *h, int64_t npieces, int32_t width)
{
    size_t n = (size_t)npieces + 1;

    if (npieces >= INT32_MAX)
        return false;
    h->nsub = (int32_t)n;
    h->width = width;
    return hvi_room_grow(&h->pieces, n * sizeof(struct hvi_piece)) &&
           hvi_room_grow(&h->rows, n * (size_t)width * sizeof(int64_t)) &&
           hvi_room_grow(&h->keep, n * (size_t)width * sizeof(int64_t));
}

enum hvd_status hvi_hosts_enough(const struct hvi_hosts *h, bool enough,
                                 struct hvi_err *err)
{
    return enough
               ? HVD_OK
               : hvi_fail(err, HVD_ENOMEM, "hosts: no memory for a group of %d tensors",
                          (int)h->g->npieces);
}

/* ---- who is where ---------------------------------------------------------------- */

int32_t hvi_hosts_lane_of(const struct hvi_hosts *h, int32_t local)
{
    for (int32_t k = 0; k < h->lanes; k++)
        if (hvi_hosts_carrier(h, k, h->nhere) == local)
            return k;
    return -1;
}

/* Fills here, first_of, lanes and what follows from them. */
static bool look_around(struct hvi_hosts *h, const struct hvi_group *g)
{
    int32_t mine = h->host_of[h->base.rank];
    int32_t least = INT32_MAX;
    int32_t most = 0;

    if (!hvi_room_grow(&h->ranks, (3 * (size_t)h->size + 1) * sizeof(int32_t)))
        return false;
    h->here = h->ranks.data;
    h->across = h->here + h->size;
    h->first_of = h->across + h->size;
    h->nhere = h->nhosts = h->nacross = 0;
    for (int32_t i = 0; i < g->nmembers; i++) {
        int32_t host = h->host_of[g->members[i]];

        if (i == 0 || host != h->host_of[g->members[i - 1]]) {
            if (host == mine)
                h->my_host = h->nhosts;
            h->first_of[h->nhosts++] = i;
        }
        if (host == mine) {
            if (i == g->me)
                h->here_me = h->nhere;
            h->here[h->nhere++] = g->members[i];
        }
    }
    h->first_of[h->nhosts] = g->nmembers;
    for (int32_t d = 0; d < h->nhosts; d++) {
        int32_t n = h->first_of[d + 1] - h->first_of[d];

        least = n < least ? n : least;
        most = n > most ? n : most;
    }
    h->lanes = least < HVI_HOSTS_LANES_MAX ? least : HVI_HOSTS_LANES_MAX;
    h->straight = h->lanes == most;
    h->lane = hvi_hosts_lane_of(h, h->here_me);
    return true;
}

void hvi_hosts_pick(struct hvi_hosts *h, int32_t lane, int32_t root_rank)
{
    h->nacross = 0;
    for (int32_t d = 0; d < h->nhosts; d++) {
        const int32_t *members = h->g->members + h->first_of[d];
        int32_t n = h->first_of[d + 1] - h->first_of[d];
        int32_t rank = members[hvi_hosts_carrier(h, lane, n)];

        if (root_rank >= 0 && h->host_of[rank] == h->host_of[root_rank])
            rank = root_rank;
        h->across[h->nacross++] = rank;
    }
}

int32_t hvi_hosts_index(const int32_t *ranks, int32_t n, int32_t rank)
{
    for (int32_t i = 0; i < n; i++)
        if (ranks[i] == rank)
            return i;
    return -1;
}

/* ---- groups of the planes below -------------------------------------------------- */

void hvi_hosts_begin(struct hvi_hosts *h, uint32_t kind, uint32_t dtype, bool local)
{
    const struct hvi_group *g = h->g;
    bool flows = h->route->flow != NULL;
    struct hvi_group *s = &h->sub;

    HVI_ASSERT(!local || flows || h->step <= HVI_HOSTS_STEPS_MAX);
    memset(s, 0, sizeof *s);
    s->kind = kind;
    s->reduce_op = g->reduce_op == HVD_AVERAGE ? HVD_SUM : g->reduce_op;
    s->dtype = dtype;
    s->prescale = s->postscale = 1.0;
    s->pieces = h->pieces.data;
    s->seq = g->seq;
    if (local) {
        s->part = (uint32_t)(flows ? h->turn : h->step - 1);
        s->nparts = (uint32_t)(flows ? h->nturns : HVI_HOSTS_STEPS_MAX);
    }
    s->members = local ? h->here : h->across;
    s->nmembers = local ? h->nhere : h->nacross;
    s->me = local ? h->here_me : hvi_hosts_index(h->across, h->nacross, h->base.rank);
    h->running = local ? h->local : h->mesh;
}

int64_t *hvi_hosts_add(struct hvi_hosts *h, const void *in, void *out, int64_t count,
                       int64_t row)
{
    struct hvi_piece *p = &h->sub.pieces[h->sub.npieces];
    size_t at = (size_t)h->sub.npieces * (size_t)h->width;

    HVI_ASSERT(h->sub.npieces < h->nsub && h->sub.nmembers <= h->width);
    memset(p, 0, sizeof *p);
    p->in = in;
    p->out = out;
    p->count = count;
    p->row = row;
    p->rows = (int64_t *)h->rows.data + at;
    h->sub.npieces++;
    return (int64_t *)h->keep.data + at;
}

/* ---- the operations table -------------------------------------------------------- */

static const struct hvi_route *choose(const struct hvi_hosts *h,
                                      const struct hvi_group *g)
{
    switch (g->kind) {
    case HVD_ALLREDUCE:
    case HVD_REDUCESCATTER:
        if (g->reduce_op == HVD_ADASUM) /* few bytes: one hop beats four steps */
            return h->facts.total_bytes > ADASUM_FLAT_BYTES ? &hvi_hosts_adasum : NULL;
        /* a joined rank's neutral element must not be scaled */
        if (g->prescale != 1.0 && g->reduce_op != HVD_SUM &&
            g->reduce_op != HVD_AVERAGE)
            return NULL;
        return g->kind == HVD_ALLREDUCE ? &hvi_hosts_allreduce
                                        : &hvi_hosts_reducescatter;
    case HVD_BROADCAST:
        return &hvi_hosts_broadcast;
    case HVD_BARRIER:
        return &hvi_hosts_barrier;
    case HVD_ALLGATHER:
        return h->straight ? &hvi_hosts_allgather_straight : &hvi_hosts_allgather;
    case HVD_ALLTOALL:
        return &hvi_hosts_alltoall;
    default:
        return NULL;
    }
}

/* It has taken part in steps before: nobody may take this for a refusal, or for a result
 * that was dropped. */
enum hvd_status hvi_hosts_start_below(const struct hvi_hosts *h, struct hvi_plane *p,
                                      const struct hvi_group *g, struct hvi_err *err)
{
    enum hvd_status rc = p->ops->start(p, g, err);

    if (rc == HVD_EUNSUPPORTED || rc == HVD_EINVAL ||
        (rc == HVD_ENOMEM && h->facts.no_memory))
        return HVD_EINTERNAL;
    return rc;
}

enum hvd_status hvi_hosts_go_below(const struct hvi_hosts *h, struct hvi_plane *p,
                                   struct hvi_err *err)
{
    enum hvd_status rc = p->ops->progress(p, err);

    if (h->bad != HVD_OK)
        return hvi_fail(err, h->bad, "%s", h->bad_err.text);
    return rc == HVD_ENOMEM && h->facts.no_memory ? HVD_OK : rc;
}

void hvi_hosts_note(struct hvi_hosts *h, enum hvd_status rc, const struct hvi_err *err)
{
    if (h->bad != HVD_OK || rc == HVD_OK)
        return;
    h->bad = rc;
    h->bad_err = *err;
}

/* The group as it is, on one of the planes below. */
static enum hvd_status start_whole(struct hvi_hosts *h, bool local, struct hvi_err *err)
{
    h->sub = *h->g;
    h->running = local ? h->local : h->mesh;
    return h->running->ops->start(h->running, &h->sub, err);
}

static enum hvd_status hosts_start(struct hvi_plane *p, const struct hvi_group *g,
                                   struct hvi_err *err)
{
    struct hvi_hosts *h = hosts_of(p);
    enum hvd_status rc = hvi_group_check(g, h->size, &h->facts, err);

    if (rc != HVD_OK)
        return rc;
    if (atomic_load(&h->aborted) != 0)
        return hvi_fail(err, (enum hvd_status)atomic_load(&h->aborted),
                        "hosts plane was stopped");
    if (!look_around(h, g))
        return hvi_fail(err, HVD_ENOMEM, "hosts: no memory for %d ranks", h->size);
    h->g = g;
    h->local->copies = h->mesh->copies = h->base.copies;
    h->step = 0;
    h->bad = HVD_OK;
    h->route = NULL;
    if (h->nhosts == 1)
        return start_whole(h, true, err);
    if (h->nhosts < g->nmembers)
        h->route = choose(h, g);
    if (h->route == NULL)
        return start_whole(h, false, err);
    if (g->kind != HVD_BARRIER && !h->route->sized)
        hvi_group_alloc_all(g, &h->facts);
    rc = h->route->reserve(h, err);
    if (rc != HVD_OK)
        return rc;
    h->running = NULL;
    return h->route->flow != NULL ? hvi_hosts_flow_start(h, err) : HVD_OK;
}

static enum hvd_status next_step(struct hvi_hosts *h, struct hvi_err *err)
{
    enum hvd_status rc;

    h->step++;
    rc = h->route->begin(h, h->step, err);
    if (rc != HVD_OK) {
        h->running = NULL;
        return rc == HVD_INPROGRESS ? HVD_OK : rc;
    }
    return hvi_hosts_start_below(h, h->running, &h->sub, err);
}

static enum hvd_status hosts_progress(struct hvi_plane *p, struct hvi_err *err)
{
    struct hvi_hosts *h = hosts_of(p);
    enum hvd_status rc;

    HVI_ASSERT(h->g != NULL);
    if (h->route == NULL) {
        rc = h->running->ops->progress(h->running, err);
        if (rc != HVD_INPROGRESS)
            h->g = NULL;
        return rc;
    }
    if (h->route->flow != NULL) {
        rc = hvi_hosts_flow_progress(h, err);
        if (rc == HVD_INPROGRESS)
            return rc;
        h->g = NULL;
        return rc == HVD_OK ? hvi_group_end(&h->facts, err) : rc;
    }
    for (;;) {
        if (h->running != NULL) {
            rc = hvi_hosts_go_below(h, h->running, err);
            if (rc != HVD_OK)
                return rc;
            h->running = NULL;
        }
        if (h->step == h->route->nsteps) {
            h->g = NULL;
            return hvi_group_end(&h->facts, err);
        }
        rc = next_step(h, err);
        if (rc != HVD_OK)
            return rc;
    }
}

static void hosts_abort(struct hvi_plane *p, enum hvd_status status)
{
    struct hvi_hosts *h = hosts_of(p);
    int none = 0;

    atomic_compare_exchange_strong(&h->aborted, &none, (int)status);
    h->local->ops->abort(h->local, status);
    h->mesh->ops->abort(h->mesh, status);
}

static void hosts_take_back(struct hvi_plane *p)
{
    struct hvi_hosts *h = hosts_of(p);

    if (h->local->ops->take_back != NULL)
        h->local->ops->take_back(h->local);
}

static bool hosts_wait(struct hvi_plane *p, int timeout_ms)
{
    struct hvi_hosts *h = hosts_of(p);

    if (h->route != NULL && h->route->flow != NULL)
        return hvi_hosts_flow_wait(h, timeout_ms);
    return h->running != NULL && h->running->ops->wait(h->running, timeout_ms);
}

static void hosts_free(struct hvi_plane *p)
{
    struct hvi_hosts *h = hosts_of(p);

    if (p == NULL)
        return;
    if (h->local != NULL)
        h->local->ops->free(h->local);
    if (h->mesh != NULL)
        h->mesh->ops->free(h->mesh);
    free(h->host_of);
    for (int32_t i = 0; i < h->parts_cap; i++) {
        free(h->parts[i].block.data);
        free(h->parts[i].lane.data);
    }
    free(h->parts);
    hvi_chunks_fini(&h->plan);
    free(h->over_pieces.data);
    free(h->over_rows.data);
    free(h->over_splits.data);
    free(h->ranks.data);
    free(h->pieces.data);
    free(h->rows.data);
    free(h->keep.data);
    free(h->lane_in.data);
    free(h->lane_out.data);
    free(h->junk.data);
    free(h->neutral.data);
    free(h->counts_own.data);
    free(h->counts_here.data);
    free(h->counts_all.data);
    free(h->offsets.data);
    free(h->zeros.data);
    free(h->places.data);
    free(h->splits.data);
    free(h->scratch.data);
    free(h);
}

static const struct hvi_plane_ops hosts_ops = {
    .name = "hosts",
    .start = hosts_start,
    .progress = hosts_progress,
    .abort = hosts_abort,
    .take_back = hosts_take_back,
    .wait = hosts_wait,
    .free = hosts_free,
};

void hvi_hosts_set_chunk(struct hvi_plane *p, int64_t chunk_bytes)
{
    HVI_ASSERT(p->ops == &hosts_ops && chunk_bytes > 0);
    hosts_of(p)->chunk_bytes = chunk_bytes;
}

enum hvd_status hvi_hosts_new(int rank, int size, const int32_t *host_of,
                              struct hvi_plane *local, struct hvi_plane *mesh,
                              struct hvi_plane **out, struct hvi_err *err)
{
    struct hvi_hosts *h = calloc(1, sizeof *h);

    if (h != NULL)
        h->host_of = malloc((size_t)size * sizeof *host_of);
    if (h == NULL || h->host_of == NULL) {
        free(h);
        return hvi_fail(err, HVD_ENOMEM, "hosts: no memory for %d ranks", size);
    }
    memcpy(h->host_of, host_of, (size_t)size * sizeof *host_of);
    h->base.ops = &hosts_ops;
    h->base.rank = rank;
    h->size = size;
    h->chunk_bytes = HVI_HOSTS_CHUNK_BYTES;
    hvi_tcp_use_chain(mesh, CHAIN_HOSTS, CHAIN_HOST_BYTES);
    h->local = local;
    h->mesh = mesh;
    *out = (struct hvi_plane *)(void *)h; /* base is first */
    return HVD_OK;
}
