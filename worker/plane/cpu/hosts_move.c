/*
 * hosts: broadcast, barrier, allgather and Adasum.
 *
 * broadcast   a flow (hosts_flow.c): root to a rank of every other host, and chunk by
 *             chunk, as they come, inside the hosts
 * barrier     hosts, then one rank of each, then hosts
 * allgather   (where hosts have more members than there are lanes: the other way is in
 *             hosts_exchange.c) all as bytes; K lanes carry what one host has for another once
 *   1 local   allgather of the sizes and the parts of this host's members
 *   2 across  a lane's carriers: sizes, and this lane's share of every host's parts
 *   3 local   the sizes, from the carrier of the first lane; now outputs have memory
 *   4 local   allgather of the other hosts' parts, from the carriers
 * Adasum      the same with all ranks' whole tensors, to scratch; then every rank
 *             combines them, as the planes below do
 */
#include <stdlib.h>
#include <string.h>

#include "worker/plane/cpu/hosts_impl.h"
#include "worker/plane/reduce/reduce.h"
#include "worker/plane/sched/adasum.h"

enum { BROADCAST_CHUNKS = 4 }; /* at once: a message between hosts is 1 MiB */

/* ---- broadcast ------------------------------------------------------------------- */

/* Who has the data first on this host: the root, or the first member. */
static int32_t head_of(const struct hvi_hosts *h)
{
    int32_t root = h->g->members[h->g->root];

    return h->host_of[root] == h->host_of[h->base.rank] ? root : h->here[0];
}

static bool is_passed_on(const struct hvi_hosts *h)
{
    return head_of(h) == h->base.rank && h->g->members[h->g->root] != h->base.rank;
}

/* The pieces between the hosts; what has no memory of its own gets some, each its own:
 * it is passed on. */
static enum hvd_status reserve_broadcast(struct hvi_hosts *h, struct hvi_err *err)
{
    const struct hvi_group *g = h->g;
    struct hvi_piece *pieces;
    size_t homeless = 1;
    enum hvd_status rc;
    uint8_t *junk;

    for (int32_t i = 0; i < g->npieces; i++)
        if (g->pieces[i].out == NULL)
            homeless += (size_t)g->pieces[i].count * h->facts.elem_size;
    rc = hvi_hosts_cut(h, BROADCAST_CHUNKS * h->chunk_bytes, 1, err);
    if (rc == HVD_OK)
        rc = hvi_hosts_enough(
            h,
            hvi_hosts_room(h, g->npieces,
                           h->nhere > h->nhosts ? h->nhere : h->nhosts) &&
                hvi_room_grow(&h->over_pieces,
                              ((size_t)g->npieces + 1) * sizeof *pieces) &&
                hvi_room_grow(&h->junk, homeless),
            err);
    if (rc != HVD_OK)
        return rc;
    h->nturns = h->plan.nchunks;
    pieces = h->over_pieces.data;
    junk = h->junk.data;
    for (int32_t i = 0; i < g->npieces; i++) {
        pieces[i] = g->pieces[i];
        if (pieces[i].out != NULL)
            continue;
        pieces[i].out = junk;
        junk += (size_t)pieces[i].count * h->facts.elem_size;
    }
    return HVD_OK;
}

static bool broadcast_across(struct hvi_hosts *h)
{
    int32_t root = h->g->members[h->g->root];

    if (head_of(h) != h->base.rank || h->plan.total == 0)
        return false;
    hvi_hosts_pick(h, 0, root);
    hvi_hosts_begin(h, HVD_BROADCAST, h->g->dtype, false);
    h->over = h->sub;
    h->over.root = hvi_hosts_index(h->across, h->nacross, root);
    h->over.pieces = h->over_pieces.data;
    h->over.npieces = h->g->npieces;
    return true;
}

static void broadcast_here(struct hvi_hosts *h, int64_t chunk)
{
    const struct hvi_piece *pieces = h->over_pieces.data;
    struct hvi_span c = hvi_chunks_chunk(&h->plan, chunk);
    bool came = is_passed_on(h);
    struct hvi_runs it;
    struct hvi_run r;

    hvi_hosts_begin(h, HVD_BROADCAST, h->g->dtype, true);
    h->sub.root = hvi_hosts_index(h->here, h->nhere, head_of(h));
    hvi_runs_begin(&it, &h->plan, c.first, c.first + c.count);
    while (hvi_runs_next(&it, &r)) {
        size_t at = (size_t)r.offset * h->facts.elem_size;
        uint8_t *out = (uint8_t *)pieces[r.piece].out + at;
        const uint8_t *in = pieces[r.piece].in;

        hvi_hosts_add(h, came ? out : in == NULL ? NULL : in + at, out, r.count, 1);
    }
}

static bool broadcast_came(const struct hvi_hosts *h, int64_t turn)
{
    struct hvi_span c = hvi_chunks_chunk(&h->plan, turn);

    return !is_passed_on(h) || hvi_hosts_came(h, c.first + c.count);
}

static int64_t broadcast_fed(const struct hvi_hosts *h)
{
    return h->plan.total;
}

static const struct hvi_flow broadcast_flow = {
    .begin_across = broadcast_across,
    .begin_local = broadcast_here,
    .came = broadcast_came,
    .fed = broadcast_fed,
};
const struct hvi_route hvi_hosts_broadcast = {.reserve = reserve_broadcast,
                                              .flow = &broadcast_flow};

/* ---- barrier --------------------------------------------------------------------- */

static enum hvd_status reserve_barrier(struct hvi_hosts *h, struct hvi_err *err)
{
    return hvi_hosts_enough(h, hvi_hosts_room(h, 0, 1), err);
}

static enum hvd_status begin_barrier(struct hvi_hosts *h, int step, struct hvi_err *err)
{
    (void)err;
    if (step == 2) {
        if (h->here_me != 0)
            return HVD_INPROGRESS;
        hvi_hosts_pick(h, 0, -1);
        hvi_hosts_begin(h, HVD_BARRIER, h->g->dtype, false);
    } else {
        hvi_hosts_begin(h, HVD_BARRIER, h->g->dtype, true);
    }
    return HVD_OK;
}

const struct hvi_route hvi_hosts_barrier = {
    .reserve = reserve_barrier, .begin = begin_barrier, .nsteps = 3};

/* ---- allgather: memory ----------------------------------------------------------- */

static bool grow_parts(struct hvi_hosts *h, int32_t n)
{
    struct hvi_hosts_part *more;

    if (n <= h->parts_cap)
        return true;
    more = realloc(h->parts, (size_t)n * sizeof *more);
    if (more == NULL)
        return false;
    memset(more + h->parts_cap, 0, (size_t)(n - h->parts_cap) * sizeof *more);
    h->parts = more;
    h->parts_cap = n;
    return true;
}

/* The sizes, in bytes: [nmembers][npieces], in member order; where every member's part
 * begins: [npieces][nmembers + 1]. */
int64_t *hvi_hosts_bytes_of(const struct hvi_hosts *h, int32_t member, int32_t i)
{
    return (int64_t *)h->counts_all.data + (int64_t)member * h->g->npieces + i;
}

static int64_t bytes_of(const struct hvi_hosts *h, int32_t member, int32_t i)
{
    return *hvi_hosts_bytes_of(h, member, i);
}

int64_t *hvi_hosts_offsets_of(const struct hvi_hosts *h, int32_t i)
{
    return (int64_t *)h->offsets.data + (int64_t)i * (h->g->nmembers + 1);
}

bool hvi_hosts_reserve_parts(struct hvi_hosts *h, int32_t nparts)
{
    size_t n = (size_t)h->g->npieces;
    size_t members = (size_t)h->g->nmembers;

    if (!grow_parts(h, h->g->npieces) ||
        !hvi_room_grow(&h->counts_all, (n * members + 1) * 8) ||
        !hvi_room_grow(&h->offsets, (n * (members + 1) + 1) * 8) ||
        !hvi_room_grow(&h->places,
                       (n * (size_t)nparts + 1) * sizeof(struct hvi_hosts_place)))
        return false;
    for (int32_t i = 0; i < h->g->npieces; i++)
        h->parts[i].out = NULL;
    return true;
}

struct hvi_hosts_place *hvi_hosts_place_of(struct hvi_hosts *h, int32_t piece,
                                           int32_t nparts, int32_t part)
{
    struct hvi_hosts_place *p = h->places.data;

    p += (int64_t)piece * nparts + part;
    *p = (struct hvi_hosts_place){h, piece, part};
    return p;
}

bool hvi_hosts_reserve_gather(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    int64_t most = 0;

    if (!hvi_hosts_room(h, (int64_t)g->npieces * h->nhosts + 1,
                        h->nhere > h->nhosts ? h->nhere : h->nhosts) ||
        !hvi_hosts_reserve_parts(h, 0) ||
        !hvi_room_grow(&h->counts_own, ((size_t)g->npieces + 1) * 8))
        return false;
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];

        h->parts[i].in = p->in;
        h->parts[i].in_bytes = p->count * (int64_t)h->facts.elem_size;
        if (p->in == NULL && h->parts[i].in_bytes > most)
            most = h->parts[i].in_bytes;
    }
    if (!hvi_room_grow(&h->zeros, (size_t)most + 1))
        return false;
    memset(h->zeros.data, 0, (size_t)most + 1);
    for (int32_t i = 0; i < g->npieces; i++)
        if (h->parts[i].in == NULL)
            h->parts[i].in = h->zeros.data;
    return true;
}

/* What a step brings of a size that is known only then. */
void *hvi_hosts_room_for(void *cookie, const int64_t *rows, int32_t nmembers,
                         int64_t total_rows, size_t size_bytes)
{
    struct hvi_room *r = cookie;

    (void)rows;
    (void)nmembers;
    (void)total_rows;
    return hvi_room_grow(r, size_bytes + 1) ? r->data : NULL;
}

/* ---- allgather: steps ------------------------------------------------------------ */

static void gather_here(struct hvi_hosts *h)
{
    int32_t n = h->g->npieces;
    int64_t *own = h->counts_own.data;

    for (int32_t i = 0; i < n; i++)
        own[i] = h->parts[i].in_bytes;
    hvi_hosts_begin(h, HVD_ALLGATHER, HVD_UINT8, true);
    h->sub.alloc = hvi_hosts_room_for;
    hvi_hosts_add(h, own, NULL, (int64_t)n * 8, 1);
    h->sub.pieces[0].cookie = &h->counts_here;
    for (int32_t i = 0; i < n; i++) {
        hvi_hosts_add(h, h->parts[i].in, NULL, h->parts[i].in_bytes, 1);
        h->sub.pieces[i + 1].cookie = &h->parts[i].block;
    }
}

static int64_t block_bytes(const struct hvi_hosts *h, int32_t i)
{
    const int64_t *counts = h->counts_here.data;
    int64_t sum = 0;

    for (int32_t m = 0; m < h->nhere; m++)
        sum += counts[(int64_t)m * h->g->npieces + i];
    return sum;
}

static void gather_across(struct hvi_hosts *h)
{
    int32_t n = h->g->npieces;

    hvi_hosts_pick(h, h->lane, -1);
    hvi_hosts_begin(h, HVD_ALLGATHER, HVD_UINT8, false);
    h->sub.alloc = hvi_hosts_room_for;
    hvi_hosts_add(h, h->counts_here.data, NULL, (int64_t)h->nhere * n * 8, 1);
    h->sub.pieces[0].cookie = &h->counts_all;
    for (int32_t i = 0; i < n; i++) {
        struct hvi_span s = hvi_rows_split(block_bytes(h, i), h->lanes, h->lane);

        hvi_hosts_add(h, (uint8_t *)h->parts[i].block.data + s.first, NULL, s.count, 1);
        h->sub.pieces[i + 1].cookie = &h->parts[i].lane;
    }
}

/* What came from member m of the step before is as long as its sizes say. */
static enum hvd_status check_came(const struct hvi_hosts *h, int32_t piece, int32_t m,
                                  int64_t bytes, struct hvi_err *err)
{
    int64_t came = h->sub.pieces[piece].rows[m];

    if (came == bytes)
        return HVD_OK;
    return hvi_fail(err, HVD_EPROTO, "rank %d sent %lld bytes, not %lld",
                    (int)h->sub.members[m], (long long)came, (long long)bytes);
}

static enum hvd_status check_here(const struct hvi_hosts *h, struct hvi_err *err)
{
    const int64_t *counts = h->counts_here.data;
    int64_t n = h->g->npieces;
    enum hvd_status rc = HVD_OK;

    for (int32_t m = 0; rc == HVD_OK && m < h->nhere; m++) {
        rc = check_came(h, 0, m, n * 8, err);
        for (int32_t i = 0; rc == HVD_OK && i < n; i++)
            rc = check_came(h, i + 1, m, counts[m * n + i], err);
    }
    return rc;
}

static enum hvd_status check_across(const struct hvi_hosts *h, struct hvi_err *err)
{
    int64_t n = h->g->npieces;
    enum hvd_status rc = HVD_OK;

    for (int32_t d = 0; rc == HVD_OK && d < h->nhosts; d++)
        rc = check_came(h, 0, d, (h->first_of[d + 1] - h->first_of[d]) * n * 8, err);
    for (int32_t d = 0; rc == HVD_OK && d < h->nhosts; d++)
        for (int32_t i = 0; rc == HVD_OK && i < n; i++) {
            int64_t sum = 0;

            for (int32_t m = h->first_of[d]; m < h->first_of[d + 1]; m++)
                if (bytes_of(h, m, i) < 0 ||
                    __builtin_add_overflow(sum, bytes_of(h, m, i), &sum))
                    return hvi_fail(err, HVD_EPROTO, "rank %d sent sizes without sense",
                                    (int)h->sub.members[d]);
            rc = check_came(h, i + 1, d, hvi_rows_split(sum, h->lanes, h->lane).count,
                            err);
        }
    return rc;
}

static void share_counts(struct hvi_hosts *h)
{
    int64_t bytes = (int64_t)h->g->nmembers * h->g->npieces * 8;

    hvi_hosts_begin(h, HVD_BROADCAST, HVD_UINT8, true);
    h->sub.root = hvi_hosts_carrier(h, 0, h->nhere);
    hvi_hosts_add(h, h->counts_all.data, h->counts_all.data, bytes, 1);
}

/* All sizes make sense, and where the parts begin. */
static enum hvd_status lay_out(struct hvi_hosts *h, int32_t i, int64_t row_bytes,
                               struct hvi_err *err)
{
    int64_t *at = hvi_hosts_offsets_of(h, i);

    at[0] = 0;
    for (int32_t m = 0; m < h->g->nmembers; m++) {
        int64_t bytes = bytes_of(h, m, i);

        if (bytes < 0 || (row_bytes > 0 ? bytes % row_bytes != 0 : bytes != 0) ||
            __builtin_add_overflow(at[m], bytes, &at[m + 1]))
            return hvi_fail(err, HVD_EPROTO, "rank %d sent %lld bytes of tensor %d",
                            (int)h->g->members[m], (long long)bytes, (int)i);
    }
    return HVD_OK;
}

/* An alltoall's rows are known, also where they have no bytes. */
static int64_t fill_rows(const struct hvi_hosts *h, const struct hvi_piece *p,
                         int32_t i)
{
    int64_t row_bytes = p->row * (int64_t)h->facts.elem_size;
    int64_t sum = 0;

    for (int32_t m = 0; p->rows != NULL && m < h->g->nmembers; m++) {
        if (h->g->kind != HVD_ALLTOALL)
            p->rows[m] = row_bytes > 0 ? bytes_of(h, m, i) / row_bytes : 0;
        sum += p->rows[m];
    }
    return sum;
}

enum hvd_status hvi_hosts_get_output(struct hvi_hosts *h, int32_t i,
                                     struct hvi_err *err)
{
    struct hvi_piece *p = &h->g->pieces[i];
    struct hvi_hosts_part *part = &h->parts[i];
    enum hvd_status rc = lay_out(h, i, p->row * (int64_t)h->facts.elem_size, err);
    size_t total = (size_t)hvi_hosts_offsets_of(h, i)[h->g->nmembers];

    if (rc != HVD_OK)
        return rc;
    hvi_group_alloc(h->g, &h->facts, i, p->rows, fill_rows(h, p, i), total);
    part->out = p->out;
    return HVD_OK;
}

uint8_t *hvi_hosts_out_at(const struct hvi_hosts *h, int32_t i, int32_t member)
{
    uint8_t *out = h->parts[i].out;

    return out == NULL ? NULL : out + hvi_hosts_offsets_of(h, i)[member];
}

/* Own host's parts to their place; the other hosts' from the carriers. */
static void gather_lanes(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;

    hvi_hosts_begin(h, HVD_ALLGATHER, HVD_UINT8, true);
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_hosts_part *part = &h->parts[i];
        const int64_t *at = hvi_hosts_offsets_of(h, i);
        const uint8_t *lane = part->lane.data;

        for (int32_t d = 0; d < h->nhosts; d++) {
            int64_t bytes = at[h->first_of[d + 1]] - at[h->first_of[d]];
            uint8_t *out = hvi_hosts_out_at(h, i, h->first_of[d]);
            int64_t mine = 0;

            if (h->lane >= 0)
                mine = hvi_rows_split(bytes, h->lanes, h->lane).count;
            if (bytes > 0 && d == h->my_host && out != NULL)
                hvi_reduce_copy(out, part->block.data, (size_t)bytes, false);
            else if (bytes > 0 && d != h->my_host)
                hvi_hosts_add(h, lane != NULL ? lane : h->zeros.data, out, mine, 1);
            if (lane != NULL)
                lane += mine;
        }
    }
}

static enum hvd_status reserve_gather(struct hvi_hosts *h, struct hvi_err *err)
{
    return hvi_hosts_enough(h, hvi_hosts_reserve_gather(h), err);
}

static enum hvd_status begin_gather(struct hvi_hosts *h, int step, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    switch (step) {
    case 1:
        gather_here(h);
        return HVD_OK;
    case 2:
        rc = check_here(h, err);
        if (rc != HVD_OK || h->lane < 0)
            return rc != HVD_OK ? rc : HVD_INPROGRESS;
        gather_across(h);
        return HVD_OK;
    case 3:
        if (h->lane >= 0)
            rc = check_across(h, err);
        if (rc == HVD_OK)
            share_counts(h);
        return rc;
    default:
        for (int32_t i = 0; rc == HVD_OK && i < h->g->npieces; i++)
            rc = hvi_hosts_get_output(h, i, err);
        if (rc != HVD_OK)
            return rc;
        gather_lanes(h);
        return h->sub.npieces > 0 ? HVD_OK : HVD_INPROGRESS;
    }
}

const struct hvi_route hvi_hosts_allgather = {
    .reserve = reserve_gather, .begin = begin_gather, .nsteps = 4, .sized = true};

/* ---- Adasum ---------------------------------------------------------------------- */

static size_t fold_scratch(const struct hvi_hosts *h)
{
    size_t most = 0;

    for (int32_t i = 0; i < h->g->npieces; i++) {
        size_t n =
            hvi_adasum_scratch_size(h->g->nmembers, h->g->pieces[i].count, h->g->dtype);

        most = n > most ? n : most;
    }
    return most;
}

static enum hvd_status reserve_adasum(struct hvi_hosts *h, struct hvi_err *err)
{
    const struct hvi_group *g = h->g;
    size_t inputs = 0;
    size_t all = 0;
    uint8_t *to;

    if (!hvi_hosts_reserve_gather(h) ||
        __builtin_mul_overflow((size_t)h->facts.total_bytes + 64, (size_t)g->nmembers,
                               &inputs) ||
        __builtin_add_overflow(inputs, fold_scratch(h), &all) ||
        !hvi_room_grow(&h->scratch, all))
        return hvi_hosts_enough(h, false, err);
    to = (uint8_t *)h->scratch.data + (fold_scratch(h) + 63) / 64 * 64;
    for (int32_t i = 0; i < g->npieces; i++) {
        h->parts[i].out = to;
        to += h->parts[i].in_bytes * g->nmembers;
    }
    return HVD_OK;
}

static void combine(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    const void *src[HVD_RANKS_MAX];

    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];

        for (int32_t m = 0; m < g->nmembers; m++) {
            uint8_t *in = h->parts[i].out + m * h->parts[i].in_bytes;

            hvi_reduce_scale(in, in, p->count, g->dtype, g->prescale);
            src[m] = in;
        }
        if (p->out == NULL || p->count == 0)
            continue;
        hvi_adasum_fold(p->out, src, g->nmembers, p->count, g->dtype, h->scratch.data);
        hvi_reduce_scale(p->out, p->out, p->count, g->dtype, h->facts.post);
    }
}

static enum hvd_status begin_adasum(struct hvi_hosts *h, int step, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    if (step == 5) {
        combine(h);
        return HVD_INPROGRESS;
    }
    if (step < 4)
        return begin_gather(h, step, err);
    for (int32_t i = 0; rc == HVD_OK && i < h->g->npieces; i++) {
        rc = lay_out(h, i, h->facts.elem_size, err);
        if (rc == HVD_OK && hvi_hosts_offsets_of(h, i)[h->g->nmembers] !=
                                h->parts[i].in_bytes * h->g->nmembers)
            rc = hvi_fail(err, HVD_EPROTO, "adasum: tensor %d is not of one size",
                          (int)i);
    }
    if (rc != HVD_OK)
        return rc;
    gather_lanes(h);
    return h->sub.npieces > 0 ? HVD_OK : HVD_INPROGRESS;
}

const struct hvi_route hvi_hosts_adasum = {
    .reserve = reserve_adasum, .begin = begin_adasum, .nsteps = 5};
