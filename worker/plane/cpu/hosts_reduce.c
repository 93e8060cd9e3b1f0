/*
 * hosts: allreduce and reducescatter.
 *
 * allreduce
 *   1 local   reducescatter: every host folds; lane k's part comes to its carrier
 *   2 across  allreduce of a lane among its carriers
 *   3 local   allgather of the lanes
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

static struct hvi_span lane_of_count(const struct hvi_hosts *h, int64_t count,
                                     int32_t lane)
{
    return hvi_rows_split(count, h->lanes, lane);
}

/* Elements of the longest piece that has no memory of its own, here or for the result. */
static bool grow_junk(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    int64_t most = 0;

    for (int32_t i = 0; i < g->npieces; i++)
        if ((g->pieces[i].in == NULL || g->pieces[i].out == NULL) &&
            g->pieces[i].count > most)
            most = g->pieces[i].count;
    return hvi_room_grow(&h->junk, (size_t)(most + 1) * h->facts.elem_size);
}

/* What a joined rank brings. */
static void make_neutral(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    int64_t most = 0;

    for (int32_t i = 0; i < g->npieces; i++)
        if (g->pieces[i].in == NULL && g->pieces[i].count > most)
            most = g->pieces[i].count;
    if (most > 0)
        hvi_reduce_neutral(h->junk.data, most, g->dtype, g->reduce_op);
}

/* Cuts `count` elements into lanes; the own one's elements. */
static int64_t keep_lanes(const struct hvi_hosts *h, int64_t count, int64_t *keep)
{
    memset(keep, 0, (size_t)h->nhere * sizeof *keep);
    for (int32_t k = 0; k < h->lanes; k++)
        keep[hvi_hosts_carrier(h, k, h->nhere)] = lane_of_count(h, count, k).count;
    return keep[h->here_me];
}

static void set_keep(struct hvi_hosts *h, int64_t *keep)
{
    h->sub.pieces[h->sub.npieces - 1].keep = keep;
}

/* ---- allreduce ------------------------------------------------------------------- */

static bool reserve_allreduce(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;

    h->share = 0;
    for (int32_t i = 0; i < g->npieces && h->lane >= 0; i++)
        h->share += lane_of_count(h, g->pieces[i].count, h->lane).count;
    return hvi_hosts_room(h, g->npieces, h->nhere > h->nhosts ? h->nhere : h->nhosts) &&
           hvi_room_grow(&h->lane_in, (size_t)(h->share + 1) * h->facts.elem_size) &&
           grow_junk(h);
}

static void fold_here(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    uint8_t *lane = h->lane_in.data;

    make_neutral(h);
    hvi_hosts_begin(h, HVD_REDUCESCATTER, g->dtype, true, 0);
    h->sub.prescale = g->prescale;
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];
        int64_t *keep;

        if (p->count == 0)
            continue;
        keep =
            hvi_hosts_add(h, p->in != NULL ? p->in : h->junk.data, lane, p->count, 1);
        lane += (size_t)keep_lanes(h, p->count, keep) * h->facts.elem_size;
        set_keep(h, keep);
    }
}

static void collect_lanes(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    const uint8_t *lane = h->lane_in.data;

    hvi_hosts_begin(h, HVD_ALLGATHER, g->dtype, true, 1);
    for (int32_t i = 0; i < g->npieces; i++) {
        const struct hvi_piece *p = &g->pieces[i];
        int64_t mine = 0;

        if (p->count == 0)
            continue;
        if (h->lane >= 0)
            mine = lane_of_count(h, p->count, h->lane).count;
        hvi_hosts_add(h, lane, p->out != NULL ? p->out : h->junk.data, mine, 1);
        lane += (size_t)mine * h->facts.elem_size;
    }
}

static enum hvd_status begin_allreduce(struct hvi_hosts *h, int step,
                                       struct hvi_err *err)
{
    (void)err;
    if (step == 2) {
        if (h->lane < 0 || h->share == 0)
            return HVD_INPROGRESS;
        hvi_hosts_pick(h, h->lane, -1);
        hvi_hosts_begin(h, HVD_ALLREDUCE, h->g->dtype, false, 0);
        h->sub.postscale = h->facts.post;
        hvi_hosts_add(h, h->lane_in.data, h->lane_in.data, h->share, 1);
    } else if (step == 1) {
        fold_here(h);
    } else {
        collect_lanes(h);
    }
    return h->sub.npieces > 0 ? HVD_OK : HVD_INPROGRESS; /* no elements, anywhere */
}

const struct hvi_route hvi_hosts_allreduce = {
    .reserve = reserve_allreduce, .begin = begin_allreduce, .nsteps = 3};

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
    s = lane_of_count(h, all.count, k);
    s.first += all.first;
    return s;
}

static bool reserve_reducescatter(struct hvi_hosts *h)
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
    return hvi_hosts_room(h, (int64_t)g->npieces * h->nhosts,
                          h->nhere > h->nhosts ? h->nhere : h->nhosts) &&
           hvi_room_grow(&h->lane_in, (size_t)(in + 1) * h->facts.elem_size) &&
           hvi_room_grow(&h->lane_out, (size_t)(out + 1) * h->facts.elem_size) &&
           grow_junk(h);
}

static void scatter_here(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    size_t es = h->facts.elem_size;
    uint8_t *lane = h->lane_in.data;

    make_neutral(h);
    hvi_hosts_begin(h, HVD_REDUCESCATTER, g->dtype, true, 0);
    h->sub.prescale = g->prescale;
    for (int32_t i = 0; i < g->npieces; i++)
        for (int32_t d = 0; d < h->nhosts; d++) {
            const struct hvi_piece *p = &g->pieces[i];
            const uint8_t *in = p->in != NULL ? p->in : h->junk.data;
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
    hvi_hosts_begin(h, HVD_REDUCESCATTER, g->dtype, false, 0);
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

static int64_t overlap(struct hvi_span a, int64_t first, int64_t count)
{
    int64_t from = a.first > first ? a.first : first;
    int64_t end = a.first + a.count < first + count ? a.first + a.count : first + count;

    return end > from ? end - from : 0;
}

static void hand_out(struct hvi_hosts *h)
{
    const struct hvi_group *g = h->g;
    const uint8_t *lane = h->lane_out.data;

    hvi_hosts_begin(h, HVD_ALLTOALL, g->dtype, true, 1);
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
