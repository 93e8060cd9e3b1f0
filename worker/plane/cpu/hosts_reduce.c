/*
 * hosts: allreduce and reducescatter.
 *
 * allreduce, a flow (hosts_flow.c)
 *   out       local reducescatter of a chunk: every host folds; lane k's part of the
 *             chunk comes to its carrier
 *   across    allreduce of a lane among its carriers
 *   back      local allgather of the lanes of a chunk
 *   Local groups: the first WINDOW chunks out, chunk 0 back, chunk WINDOW out, chunk 1
 *   back, ... A lane's part of a chunk is at least what the group across may want to
 *   have beyond a result (hvi_tcp_cut_bytes). So when chunk k comes back, chunk k + 1 has
 *   gone out on every host, and nothing is missing.
 * reducescatter
 *   1 local   reducescatter: as above, for every host's rows apart
 *   2 across  reducescatter: a host's rows come to that host, folded
 *   3 local   alltoall: from the carriers to whom the rows belong; not where every host
 *             has as many members as there are lanes: then lane k is what the k-th keeps
 *
 * So a host's partial is folded in full precision and rounded once, and the hosts are
 * folded in their order (DESIGN.md section 4).
 */
#include <string.h>

#include "worker/plane/cpu/hosts_impl.h"
#include "worker/plane/reduce/reduce.h"

enum { WINDOW = 2 };

/* Elements of the longest piece that brings nothing, or whose result is not wanted. */
static int64_t longest_without(const struct hvi_hosts *h, bool in)
{
    const struct hvi_group *g = h->g;
    int64_t most = 0;

    for (int32_t i = 0; i < g->npieces; i++)
        if ((in ? g->pieces[i].in == NULL : g->pieces[i].out == NULL) &&
            g->pieces[i].count > most)
            most = g->pieces[i].count;
    return most;
}

/* What a joined rank brings, and where results go that have no memory. */
static bool reserve_absent(struct hvi_hosts *h)
{
    int64_t in = longest_without(h, true);
    int64_t out = longest_without(h, false);

    if (!hvi_room_grow(&h->neutral, (size_t)(in + 1) * h->facts.elem_size) ||
        !hvi_room_grow(&h->junk, (size_t)(out + 1) * h->facts.elem_size))
        return false;
    if (in > 0)
        hvi_reduce_neutral(h->neutral.data, in, h->g->dtype, h->g->reduce_op);
    return true;
}

static void set_keep(struct hvi_hosts *h, int64_t *keep)
{
    h->sub.pieces[h->sub.npieces - 1].keep = keep;
}

/* ---- allreduce ------------------------------------------------------------------- */

/* A lane's part of a chunk, in elements of the plan. */
static struct hvi_span lane_of_chunk(const struct hvi_hosts *h, int64_t chunk,
                                     int32_t lane)
{
    return hvi_chunks_slice(&h->plan, chunk, h->lanes, lane);
}

/* Elements of this rank's lane in so many chunks. */
static int64_t lane_through(const struct hvi_hosts *h, int64_t chunks)
{
    if (h->lane < 0 || chunks == 0)
        return 0;
    return (chunks - 1) * (h->plan.chunk_elems / h->lanes) +
           lane_of_chunk(h, chunks - 1, h->lane).count;
}

static enum hvd_status reserve_allreduce(struct hvi_hosts *h, struct hvi_err *err)
{
    int64_t cut = hvi_tcp_cut_bytes(
        h->mesh, h->nhosts, h->facts.total_bytes / h->lanes + HVI_SLICE_ALIGN_BYTES);
    enum hvd_status rc = hvi_hosts_cut(
        h, (cut > h->chunk_bytes ? cut : h->chunk_bytes) * h->lanes, h->lanes, err);
    size_t share;

    if (rc != HVD_OK)
        return rc;
    h->nturns = 2 * h->plan.nchunks;
    share = (size_t)lane_through(h, h->plan.nchunks);
    return hvi_hosts_enough(
        h,
        hvi_hosts_room(h, h->g->npieces, h->nhere > h->nhosts ? h->nhere : h->nhosts) &&
            hvi_room_grow(&h->over_pieces, sizeof(struct hvi_piece)) &&
            hvi_room_grow(&h->lane_in, (share + 1) * h->facts.elem_size) &&
            reserve_absent(h),
        err);
}

static bool reduce_across(struct hvi_hosts *h)
{
    struct hvi_piece *piece = h->over_pieces.data;
    int64_t share = lane_through(h, h->plan.nchunks);

    if (share == 0)
        return false;
    hvi_hosts_pick(h, h->lane, -1);
    hvi_hosts_begin(h, HVD_ALLREDUCE, h->g->dtype, false);
    h->over = h->sub;
    h->over.postscale = h->facts.post;
    h->over.pieces = piece;
    h->over.npieces = 1;
    *piece = (struct hvi_piece){
        .in = h->lane_in.data, .out = h->lane_in.data, .count = share, .row = 1};
    return true;
}

static int64_t overlap(struct hvi_span a, int64_t first, int64_t count)
{
    int64_t from = a.first > first ? a.first : first;
    int64_t end = a.first + a.count < first + count ? a.first + a.count : first + count;

    return end > from ? end - from : 0;
}

/* Lane k's elements of every run of the chunk come to its carrier. */
static void fold_here(struct hvi_hosts *h, int64_t chunk)
{
    struct hvi_span c = hvi_chunks_chunk(&h->plan, chunk);
    size_t es = h->facts.elem_size;
    uint8_t *lane = (uint8_t *)h->lane_in.data + (size_t)lane_through(h, chunk) * es;
    struct hvi_runs it;
    struct hvi_run r;

    hvi_hosts_begin(h, HVD_REDUCESCATTER, h->g->dtype, true);
    h->sub.prescale = h->g->prescale;
    hvi_runs_begin(&it, &h->plan, c.first, c.first + c.count);
    while (hvi_runs_next(&it, &r)) {
        const uint8_t *in = h->g->pieces[r.piece].in;
        int64_t *keep;

        in = in != NULL ? in + (size_t)r.offset * es : h->neutral.data;
        keep = hvi_hosts_add(h, in, lane, r.count, 1);
        memset(keep, 0, (size_t)h->nhere * sizeof *keep);
        for (int32_t k = 0; k < h->lanes; k++)
            keep[hvi_hosts_carrier(h, k, h->nhere)] =
                overlap(lane_of_chunk(h, chunk, k), r.at, r.count);
        lane += (size_t)keep[h->here_me] * es;
        set_keep(h, keep);
    }
}

static void collect_lanes(struct hvi_hosts *h, int64_t chunk)
{
    struct hvi_span c = hvi_chunks_chunk(&h->plan, chunk);
    size_t es = h->facts.elem_size;
    const uint8_t *lane =
        (uint8_t *)h->lane_in.data + (size_t)lane_through(h, chunk) * es;
    struct hvi_runs it;
    struct hvi_run r;

    hvi_hosts_begin(h, HVD_ALLGATHER, h->g->dtype, true);
    hvi_runs_begin(&it, &h->plan, c.first, c.first + c.count);
    while (hvi_runs_next(&it, &r)) {
        uint8_t *out = h->g->pieces[r.piece].out;
        int64_t mine = 0;

        if (h->lane >= 0)
            mine = overlap(lane_of_chunk(h, chunk, h->lane), r.at, r.count);
        out = out != NULL ? out + (size_t)r.offset * es : h->junk.data;
        hvi_hosts_add(h, lane, out, mine, 1);
        lane += (size_t)mine * es;
    }
}

static void allreduce_local(struct hvi_hosts *h, int64_t turn)
{
    struct hvi_turn t = hvi_turn_at(h->plan.nchunks, WINDOW, turn);

    if (t.back)
        collect_lanes(h, t.chunk);
    else
        fold_here(h, t.chunk);
}

static bool allreduce_came(const struct hvi_hosts *h, int64_t turn)
{
    struct hvi_turn t = hvi_turn_at(h->plan.nchunks, WINDOW, turn);

    return !t.back || hvi_hosts_came(h, lane_through(h, t.chunk + 1));
}

static int64_t allreduce_fed(const struct hvi_hosts *h)
{
    return lane_through(h, hvi_turns_out(h->plan.nchunks, WINDOW, h->turn));
}

static const struct hvi_flow allreduce_flow = {
    .begin_across = reduce_across,
    .begin_local = allreduce_local,
    .came = allreduce_came,
    .fed = allreduce_fed,
};
const struct hvi_route hvi_hosts_allreduce = {.reserve = reserve_allreduce,
                                              .flow = &allreduce_flow};

/* ---- reducescatter --------------------------------------------------------------- */

/* Elements of piece i that the members of host d keep. */
static struct hvi_span of_host(const struct hvi_hosts *h, int32_t i, int32_t d)
{
    struct hvi_span s;
    int64_t last, count;

    hvi_group_kept(h->g, i, h->first_of[d], &s.first, &s.count);
    hvi_group_kept(h->g, i, h->first_of[d + 1] - 1, &last, &count);
    s.count = last + count - s.first;
    return s;
}

/* Lane k's part of them; `first` counts from the begin of the piece. */
static struct hvi_span lane_of_host(const struct hvi_hosts *h, int32_t i, int32_t d,
                                    int32_t k)
{
    struct hvi_span all = of_host(h, i, d);
    struct hvi_span s;

    if (h->straight) {
        hvi_group_kept(h->g, i, h->first_of[d] + k, &s.first, &s.count);
        return s;
    }
    s = hvi_rows_split(all.count, h->lanes, k);
    s.first += all.first;
    return s;
}

static enum hvd_status reserve_reducescatter(struct hvi_hosts *h, struct hvi_err *err)
{
    const struct hvi_group *g = h->g;
    int64_t in = 0;
    int64_t out = 0;

    for (int32_t i = 0; i < g->npieces && h->lane >= 0; i++)
        for (int32_t d = 0; d < h->nhosts; d++) {
            int64_t n = lane_of_host(h, i, d, h->lane).count;

            in += n;
            out += d == h->my_host ? n : 0;
        }
    return hvi_hosts_enough(
        h,
        hvi_hosts_room(h, (int64_t)g->npieces * h->nhosts,
                       h->nhere > h->nhosts ? h->nhere : h->nhosts) &&
            hvi_room_grow(&h->lane_in, (size_t)(in + 1) * h->facts.elem_size) &&
            hvi_room_grow(&h->lane_out, (size_t)(out + 1) * h->facts.elem_size) &&
            reserve_absent(h),
        err);
}

static void scatter_here(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    size_t es = h->facts.elem_size;
    uint8_t *lane = h->lane_in.data;

    hvi_hosts_begin(h, HVD_REDUCESCATTER, g->dtype, true);
    h->sub.prescale = g->prescale;
    for (int32_t i = 0; i < g->npieces; i++)
        for (int32_t d = 0; d < h->nhosts; d++) {
            const struct hvi_piece *p = &g->pieces[i];
            const uint8_t *in = p->in != NULL ? p->in : h->neutral.data;
            struct hvi_span s = of_host(h, i, d);
            int64_t *keep;

            if (s.count == 0)
                continue;
            keep = hvi_hosts_add(h, in + (size_t)s.first * es, lane, s.count, 1);
            memset(keep, 0, (size_t)h->nhere * sizeof *keep);
            for (int32_t k = 0; k < h->lanes; k++)
                keep[hvi_hosts_carrier(h, k, h->nhere)] =
                    lane_of_host(h, i, d, k).count;
            lane += (size_t)keep[h->here_me] * es;
            set_keep(h, keep);
        }
}

static void scatter_across(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    size_t es = h->facts.elem_size;
    const uint8_t *in = h->lane_in.data;
    uint8_t *out = h->lane_out.data;

    hvi_hosts_pick(h, h->lane, -1);
    hvi_hosts_begin(h, HVD_REDUCESCATTER, g->dtype, false);
    h->sub.postscale = h->facts.post;
    for (int32_t i = 0; i < g->npieces; i++) {
        uint8_t *to = out;
        int64_t sum = 0;
        int64_t *keep;

        if (h->straight)
            to = g->pieces[i].out != NULL ? g->pieces[i].out : h->junk.data;
        keep = hvi_hosts_add(h, in, to, 0, 1);
        for (int32_t d = 0; d < h->nhosts; d++)
            sum += keep[d] = lane_of_host(h, i, d, h->lane).count;
        if (sum == 0) {
            h->sub.npieces--;
            continue;
        }
        h->sub.pieces[h->sub.npieces - 1].count = sum;
        set_keep(h, keep);
        in += (size_t)sum * es;
        out += (size_t)keep[h->my_host] * es;
    }
}

static void hand_out(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    const uint8_t *lane = h->lane_out.data;

    hvi_hosts_begin(h, HVD_ALLTOALL, g->dtype, true);
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];
        struct hvi_span mine = {0, 0};
        int64_t *splits;

        if (of_host(h, i, h->my_host).count == 0)
            continue;
        if (h->lane >= 0)
            mine = lane_of_host(h, i, h->my_host, h->lane);
        splits = hvi_hosts_add(h, lane, p->out != NULL ? p->out : h->junk.data,
                               mine.count, 1);
        for (int32_t m = 0; m < h->nhere; m++) {
            int64_t first, count;

            hvi_group_kept(g, i, h->first_of[h->my_host] + m, &first, &count);
            splits[m] = overlap(mine, first, count);
        }
        h->sub.pieces[h->sub.npieces - 1].splits = splits;
        lane += (size_t)mine.count * h->facts.elem_size;
    }
}

static enum hvd_status begin_reducescatter(struct hvi_hosts *h, int step,
                                           struct hvi_err *err)
{
    (void)err;
    if ((step == 2 && h->lane < 0) || (step == 3 && h->straight))
        return HVD_INPROGRESS;
    if (step == 1)
        scatter_here(h);
    else if (step == 2)
        scatter_across(h);
    else
        hand_out(h);
    return h->sub.npieces > 0 ? HVD_OK : HVD_INPROGRESS;
}

const struct hvi_route hvi_hosts_reducescatter = {
    .reserve = reserve_reducescatter, .begin = begin_reducescatter, .nsteps = 3};
