/*
 * A group becomes at most three groups of the two planes below, one after another (the
 * steps of its route). Nothing here touches payload: lanes are made by the way a tensor
 * is cut into rows. With K lanes a tensor of K * q + r elements is
 *
 *     K rows of q elements    row i is lane i's
 *     r rows of 1 element     row i is lane i's too
 *
 * and reducescatter gives row i to local member i (members after the K-th get none),
 * while allgather puts the rows back in order.
 *
 * Failure: the planes below fail, and with them the group. A rank whose output could
 * not be had takes part to the end with a place to throw it (plane.h).
 */
#include "worker/plane/cpu/hosts.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"
#include "worker/plane/cpu/group.h"
#include "worker/plane/reduce/reduce.h"

enum route {
    ROUTE_UNSET = 0,
    ROUTE_LOCAL,
    ROUTE_MESH,
    ROUTE_REDUCE,
    ROUTE_BROADCAST,
    ROUTE_BARRIER
};

/* A growable block. */
struct room {
    void *data;
    size_t size_bytes;
};

struct hosts {
    struct hvi_plane base; /* first */
    struct hvi_plane *local, *mesh;
    int32_t *host_of; /* [size] */
    int size;
    /* the running group */
    const struct hvi_group *g;
    enum route route;
    int step; /* of the route; 0: not begun */
    struct hvi_plane *running;
    struct hvi_group sub;
    struct hvi_facts facts;
    int32_t *here;   /* [nhere] members on this host; in `ranks` */
    int32_t *across; /* [nacross] members of the step between hosts; in `ranks` */
    int32_t nhere, nacross, here_me, nhosts;
    int32_t lanes; /* K */
    int64_t share; /* elements of this rank's lane */
    struct room ranks, pieces, rows, lane, junk;
};

static struct hosts *hosts_of(struct hvi_plane *p)
{
    return (struct hosts *)(void *)p;
}

static bool grow(struct room *r, size_t size_bytes)
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

/* ---- who is where ---------------------------------------------------------------- */

/* Fills here, nhosts and lanes. */
static bool look_around(struct hosts *h, const struct hvi_group *g)
{
    int32_t mine = h->host_of[h->base.rank];
    int32_t on_host = 0;

    if (!grow(&h->ranks, 2 * (size_t)h->size * sizeof(int32_t)))
        return false;
    h->here = h->ranks.data;
    h->across = h->here + h->size;
    h->nhere = h->nhosts = h->nacross = 0;
    h->lanes = INT32_MAX;
    for (int32_t i = 0; i < g->nmembers; i++) {
        int32_t host = h->host_of[g->members[i]];

        if (i == 0 || host != h->host_of[g->members[i - 1]]) {
            if (i > 0 && on_host < h->lanes)
                h->lanes = on_host;
            on_host = 0;
            h->nhosts++;
        }
        on_host++;
        if (host == mine) {
            if (i == g->me)
                h->here_me = h->nhere;
            h->here[h->nhere++] = g->members[i];
        }
    }
    if (on_host < h->lanes)
        h->lanes = on_host;
    return true;
}

static enum route choose(const struct hosts *h, const struct hvi_group *g)
{
    if (h->nhosts == 1)
        return ROUTE_LOCAL;
    if (h->nhosts == g->nmembers)
        return ROUTE_MESH;
    switch (g->kind) {
    case HVD_ALLREDUCE:
        if (g->reduce_op == HVD_ADASUM)
            return ROUTE_MESH;
        /* a joined rank's neutral element must not be scaled */
        if (g->prescale != 1.0 && g->reduce_op != HVD_SUM &&
            g->reduce_op != HVD_AVERAGE)
            return ROUTE_MESH;
        return ROUTE_REDUCE;
    case HVD_BROADCAST:
        return ROUTE_BROADCAST;
    case HVD_BARRIER:
        return ROUTE_BARRIER;
    default:
        return ROUTE_MESH;
    }
}

/* The k-th member of every host, ascending; root's host: root instead when root >= 0. */
static void pick_across(struct hosts *h, int32_t k, int32_t root_rank)
{
    const struct hvi_group *g = h->g;
    int32_t at = 0;

    h->nacross = 0;
    for (int32_t i = 0; i < g->nmembers; i++) {
        int32_t rank = g->members[i];

        at = i > 0 && h->host_of[rank] == h->host_of[g->members[i - 1]] ? at + 1 : 0;
        if (root_rank >= 0 && h->host_of[rank] == h->host_of[root_rank]) {
            if (rank == root_rank)
                h->across[h->nacross++] = rank;
        } else if (at == k) {
            h->across[h->nacross++] = rank;
        }
    }
}

static int32_t index_in(const int32_t *ranks, int32_t n, int32_t rank)
{
    for (int32_t i = 0; i < n; i++)
        if (ranks[i] == rank)
            return i;
    return -1;
}

/* ---- groups of the planes below -------------------------------------------------- */

static void begin_sub(struct hosts *h, uint32_t kind, bool local, int part)
{
    const struct hvi_group *g = h->g;
    struct hvi_group *s = &h->sub;

    memset(s, 0, sizeof *s);
    s->kind = kind;
    s->reduce_op = g->reduce_op == HVD_AVERAGE ? HVD_SUM : g->reduce_op;
    s->dtype = g->dtype;
    s->prescale = s->postscale = 1.0;
    s->pieces = h->pieces.data;
    s->alloc = g->alloc; /* never asked: every piece has its output */
    /* a group uses the local plane twice at most */
    s->seq = local ? g->seq * 2 + (uint64_t)part : g->seq;
    s->members = local ? h->here : h->across;
    s->nmembers = local ? h->nhere : h->nacross;
    s->me = local ? h->here_me : index_in(h->across, h->nacross, h->base.rank);
    h->running = local ? h->local : h->mesh;
}

static void add(struct hosts *h, const void *in, void *out, int64_t count, int64_t row)
{
    struct hvi_piece *p = &h->sub.pieces[h->sub.npieces];

    memset(p, 0, sizeof *p);
    p->in = in;
    p->out = out;
    p->count = count;
    p->row = row;
    p->rows = (int64_t *)h->rows.data + (size_t)h->sub.npieces * (size_t)h->nhere;
    h->sub.npieces++;
}

/* Memory for the steps of a reduction: pieces, the lane, and what joined ranks read and
 * write instead of tensors. */
static bool reserve_reduce(struct hosts *h)
{
    const struct hvi_group *g = h->g;
    size_t elem = h->facts.elem_size;
    size_t n = (size_t)g->npieces;
    int64_t largest = 0;
    bool need_junk = false;

    h->share = 0;
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];

        if (h->here_me < h->lanes)
            h->share += p->count / h->lanes + (h->here_me < p->count % h->lanes);
        if (p->count > largest)
            largest = p->count;
        need_junk |= p->in == NULL || p->out == NULL;
    }
    return grow(&h->pieces, 2 * n * sizeof(struct hvi_piece)) &&
           grow(&h->rows, 2 * n * (size_t)h->nhere * sizeof(int64_t)) &&
           grow(&h->lane, (size_t)(h->share + 1) * elem) &&
           (!need_junk || grow(&h->junk, (size_t)(largest + 1) * elem));
}

/* Step 1: this host's members fold; lane i's range comes to member i. */
static void begin_fold(struct hosts *h)
{
    const struct hvi_group *g = h->g;
    size_t elem = h->facts.elem_size;
    uint8_t *lane = h->lane.data;
    int32_t k = h->lanes;
    int32_t me = h->here_me;
    int64_t largest = 0;

    for (int32_t i = 0; i < g->npieces; i++)
        if (g->pieces[i].in == NULL && g->pieces[i].count > largest)
            largest = g->pieces[i].count;
    if (largest > 0)
        hvi_reduce_neutral(h->junk.data, largest, g->dtype, g->reduce_op);
    begin_sub(h, HVD_REDUCESCATTER, true, 0);
    h->sub.prescale = g->prescale;
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];
        const uint8_t *in = p->in != NULL ? p->in : h->junk.data;
        int64_t q = p->count / k;
        int64_t r = p->count % k;

        if (q > 0) {
            add(h, in, lane, k * q, q);
            lane += me < k ? (size_t)q * elem : 0;
        }
        if (r > 0) {
            add(h, in + (size_t)(k * q) * elem, lane, r, 1);
            lane += me < r ? elem : 0;
        }
    }
}

/* Step 2: the owners of a lane fold over hosts. */
static bool begin_across(struct hosts *h)
{
    if (h->here_me >= h->lanes || h->share == 0)
        return false;
    pick_across(h, h->here_me, -1);
    begin_sub(h, HVD_ALLREDUCE, false, 0);
    h->sub.postscale = h->facts.post;
    add(h, h->lane.data, h->lane.data, h->share, 1);
    return true;
}

/* Step 3: every rank of the host collects all lanes. */
static void begin_collect(struct hosts *h)
{
    const struct hvi_group *g = h->g;
    size_t elem = h->facts.elem_size;
    const uint8_t *lane = h->lane.data;
    int32_t k = h->lanes;
    int32_t me = h->here_me;

    begin_sub(h, HVD_ALLGATHER, true, 1);
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];
        uint8_t *out = p->out != NULL ? p->out : h->junk.data;
        int64_t q = p->count / k;
        int64_t r = p->count % k;

        if (q > 0) {
            add(h, lane, out, me < k ? q : 0, q);
            lane += me < k ? (size_t)q * elem : 0;
        }
        if (r > 0) {
            add(h, lane, out + (size_t)(k * q) * elem, me < r ? 1 : 0, 1);
            lane += me < r ? elem : 0;
        }
    }
}

static bool begin_reduce(struct hosts *h)
{
    if (h->step == 2)
        return begin_across(h);
    if (h->step == 1)
        begin_fold(h);
    else
        begin_collect(h);
    return h->sub.npieces > 0; /* tensors without elements: nothing to do, anywhere */
}

/* Tensors as they are, except that what came from another host is passed on. */
static bool begin_broadcast(struct hosts *h)
{
    const struct hvi_group *g = h->g;
    int32_t root = g->members[g->root];
    int32_t mine = h->host_of[h->base.rank];
    int32_t head = h->host_of[root] == mine ? root : h->here[0];

    if (h->step == 1) {
        if (head != h->base.rank)
            return false;
        pick_across(h, 0, root);
        begin_sub(h, HVD_BROADCAST, false, 0);
        h->sub.root = index_in(h->across, h->nacross, root);
    } else {
        begin_sub(h, HVD_BROADCAST, true, 0);
        h->sub.root = index_in(h->here, h->nhere, head);
    }
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];
        bool came = h->step == 2 && head == h->base.rank && head != root;
        void *out = p->out != NULL ? p->out : h->junk.data;

        add(h, came ? out : p->in, out, p->count, p->row);
    }
    return true;
}

static bool begin_barrier(struct hosts *h)
{
    if (h->step == 2) {
        if (h->here_me != 0)
            return false;
        pick_across(h, 0, -1);
        begin_sub(h, HVD_BARRIER, false, 0);
    } else {
        begin_sub(h, HVD_BARRIER, true, h->step == 3);
    }
    for (int32_t i = 0; i < h->g->npieces; i++)
        add(h, h->g->pieces[i].in, h->g->pieces[i].out, h->g->pieces[i].count, 1);
    return true;
}

static bool begin_step(struct hosts *h)
{
    switch (h->route) {
    case ROUTE_REDUCE:
        return begin_reduce(h);
    case ROUTE_BROADCAST:
        return begin_broadcast(h);
    default:
        return begin_barrier(h);
    }
}

static int last_step(enum route route)
{
    return route == ROUTE_BROADCAST ? 2 : 3;
}

/* ---- the operations table -------------------------------------------------------- */

static bool reserve_plain(struct hosts *h)
{
    const struct hvi_group *g = h->g;
    int64_t largest = 0;

    for (int32_t i = 0; i < g->npieces; i++)
        if (g->pieces[i].out == NULL && g->pieces[i].count > largest)
            largest = g->pieces[i].count;
    return grow(&h->pieces, (size_t)(g->npieces + 1) * sizeof(struct hvi_piece)) &&
           grow(&h->rows,
                (size_t)(g->npieces + 1) * (size_t)h->nhere * sizeof(int64_t)) &&
           grow(&h->junk, (size_t)(largest + 1) * 8);
}

static enum hvd_status hosts_start(struct hvi_plane *p, const struct hvi_group *g,
                                   struct hvi_err *err)
{
    struct hosts *h = hosts_of(p);
    enum hvd_status rc = hvi_group_check(g, h->size, &h->facts, err);

    if (rc != HVD_OK)
        return rc;
    if (!look_around(h, g))
        return hvi_fail(err, HVD_ENOMEM, "hosts: no memory for %d ranks", h->size);
    h->g = g;
    h->local->copies = h->mesh->copies = h->base.copies;
    h->route = choose(h, g);
    h->step = 0;
    if (h->route == ROUTE_MESH) {
        h->running = h->mesh;
        return h->mesh->ops->start(h->mesh, g, err);
    }
    if (h->route == ROUTE_LOCAL) {
        h->sub = *g;
        h->sub.seq = g->seq * 2;
        h->running = h->local;
        return h->local->ops->start(h->local, &h->sub, err);
    }
    if (g->kind != HVD_BARRIER)
        hvi_group_alloc_all(g, &h->facts);
    if (!(h->route == ROUTE_REDUCE ? reserve_reduce(h) : reserve_plain(h)))
        return hvi_fail(err, HVD_ENOMEM, "hosts: no memory for a group of %d tensors",
                        (int)g->npieces);
    h->running = NULL;
    return HVD_OK;
}

static enum hvd_status hosts_progress(struct hvi_plane *p, struct hvi_err *err)
{
    struct hosts *h = hosts_of(p);
    enum hvd_status rc;

    HVI_ASSERT(h->g != NULL);
    if (h->route == ROUTE_MESH || h->route == ROUTE_LOCAL) {
        rc = h->running->ops->progress(h->running, err);
        if (rc != HVD_INPROGRESS)
            h->g = NULL;
        return rc;
    }
    for (;;) {
        if (h->running != NULL) {
            rc = h->running->ops->progress(h->running, err);
            if (rc != HVD_OK)
                return rc;
            h->running = NULL;
        }
        if (h->step == last_step(h->route)) {
            h->g = NULL;
            return hvi_group_end(&h->facts, err);
        }
        h->step++;
        if (!begin_step(h)) {
            h->running = NULL;
            continue;
        }
        rc = h->running->ops->start(h->running, &h->sub, err);
        if (rc != HVD_OK)
            return rc == HVD_EUNSUPPORTED || rc == HVD_EINVAL ? HVD_EINTERNAL : rc;
    }
}

static void hosts_abort(struct hvi_plane *p, enum hvd_status status)
{
    struct hosts *h = hosts_of(p);

    h->local->ops->abort(h->local, status);
    h->mesh->ops->abort(h->mesh, status);
}

static bool hosts_wait(struct hvi_plane *p, int timeout_ms)
{
    struct hosts *h = hosts_of(p);

    return h->running != NULL && h->running->ops->wait(h->running, timeout_ms);
}

static void hosts_free(struct hvi_plane *p)
{
    struct hosts *h = hosts_of(p);

    if (p == NULL)
        return;
    if (h->local != NULL)
        h->local->ops->free(h->local);
    if (h->mesh != NULL)
        h->mesh->ops->free(h->mesh);
    free(h->host_of);
    free(h->ranks.data);
    free(h->pieces.data);
    free(h->rows.data);
    free(h->lane.data);
    free(h->junk.data);
    free(h);
}

static const struct hvi_plane_ops hosts_ops = {
    .name = "hosts",
    .start = hosts_start,
    .progress = hosts_progress,
    .abort = hosts_abort,
    .wait = hosts_wait,
    .free = hosts_free,
};

enum hvd_status hvi_hosts_new(int rank, int size, const int32_t *host_of,
                              struct hvi_plane *local, struct hvi_plane *mesh,
                              struct hvi_plane **out, struct hvi_err *err)
{
    struct hosts *h = calloc(1, sizeof *h);

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
    h->local = local;
    h->mesh = mesh;
    *out = (struct hvi_plane *)(void *)h; /* base is first */
    return HVD_OK;
}
