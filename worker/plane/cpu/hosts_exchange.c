/*
 * hosts: alltoall, and allgather where every host has as many members as there are lanes.
 *
 * alltoall, a flow (hosts_flow.c)
 *   local     alltoall of how many rows
 *   across    alltoall with all members of other hosts; from its begin on, outputs have
 *             memory
 *   local     alltoall of the rows
 *   What goes between two hosts goes straight from its sender to its receiver: every byte
 *   crosses once, whoever sends it, and the ranks are connected anyway. Through carriers
 *   it would be copied twice more on each side. Only a host's own rows, a half of all
 *   between two hosts, take the short way.
 *
 * allgather, straight: lane k is what the k-th members have
 *   1 across  allgather of the k-th members' own parts
 *   2 local   allgather of what each has for every host; the heads say all sizes
 */
#include <string.h>

#include "worker/plane/cpu/gather.h"
#include "worker/plane/cpu/hosts_impl.h"

/* ---- alltoall -------------------------------------------------------------------- */

/* What comes from hosts before the receiver's, and from those behind it: between them it
 * leaves room for its own host's. */
enum { BEFORE = 0, AFTER, SIDES };

static int64_t *splits_of(const struct hvi_hosts *h, int32_t i)
{
    return (int64_t *)h->splits.data + (int64_t)i * h->g->nmembers;
}

static int32_t here_first(const struct hvi_hosts *h)
{
    return h->first_of[h->my_host];
}

static int64_t sum_of(const int64_t *rows, int32_t from, int32_t end)
{
    int64_t sum = 0;

    for (int32_t m = from; m < end; m++)
        sum += rows[m];
    return sum;
}

static enum hvd_status read_splits(struct hvi_hosts *h, struct hvi_err *err)
{
    const struct hvi_group *g = h->g;
    enum hvd_status rc = hvi_hosts_enough(
        h, hvi_room_grow(&h->splits, (size_t)g->npieces * (size_t)g->nmembers * 8 + 8),
        err);

    for (int32_t i = 0; rc == HVD_OK && i < g->npieces; i++)
        rc = hvi_gather_splits(g, i, splits_of(h, i), err);
    return rc;
}

static enum hvd_status reserve_alltoall(struct hvi_hosts *h, struct hvi_err *err)
{
    size_t n = (size_t)h->g->npieces;
    size_t counts = (n * (size_t)h->nhere + 1) * 8;
    size_t lists = (n * SIDES * (size_t)h->g->nmembers + 1) * 8;
    enum hvd_status rc = read_splits(h, err);

    h->nturns = 2;
    if (rc != HVD_OK)
        return rc;
    return hvi_hosts_enough(
        h,
        hvi_hosts_room(h, h->g->npieces + 1, h->g->nmembers) &&
            hvi_hosts_reserve_parts(h, SIDES) &&
            hvi_room_grow(&h->counts_own, counts) &&
            hvi_room_grow(&h->counts_here, counts) &&
            hvi_room_grow(&h->over_rows, lists) &&
            hvi_room_grow(&h->over_splits, lists) &&
            hvi_room_grow(&h->over_pieces, (n * SIDES + 1) * sizeof(struct hvi_piece)),
        err);
}

static void exchange_counts(struct hvi_hosts *h)
{
    int32_t n = h->g->npieces;
    int64_t *own = h->counts_own.data;

    for (int32_t m = 0; m < h->nhere; m++)
        for (int32_t i = 0; i < n; i++)
            own[(int64_t)m * n + i] = splits_of(h, i)[here_first(h) + m];
    hvi_hosts_begin(h, HVD_ALLTOALL, HVD_INT64, true);
    hvi_hosts_add(h, own, h->counts_here.data, (int64_t)h->nhere * n, 1);
}

/* Rows that a member sends here: of this host, or as the step across has found. */
static int64_t rows_from(const struct hvi_hosts *h, int32_t i, int32_t member)
{
    const int64_t *counts = h->counts_here.data;
    int32_t here = member - here_first(h);

    if (here < 0)
        return h->over.pieces[i * SIDES + BEFORE].rows[member];
    if (here < h->nhere)
        return counts[(int64_t)here * h->g->npieces + i];
    return h->over.pieces[i * SIDES + AFTER].rows[member - h->nhere + 1];
}

static enum hvd_status count_rows(struct hvi_hosts *h, int32_t i, struct hvi_err *err)
{
    const struct hvi_piece *p = &h->g->pieces[i];
    int64_t row_bytes = p->row * (int64_t)h->facts.elem_size;

    for (int32_t m = 0; m < h->g->nmembers; m++) {
        int64_t rows = rows_from(h, i, m);

        if (p->rows != NULL)
            p->rows[m] = rows;
        if (__builtin_mul_overflow(rows, row_bytes, hvi_hosts_bytes_of(h, m, i)))
            return hvi_fail(err, HVD_EPROTO, "rank %d sent too many rows of tensor %d",
                            (int)h->g->members[m], (int)i);
    }
    return HVD_OK;
}

/* The memory that a side of a piece begins at; the first one finds where all lie. */
static void *place_side(void *cookie, const int64_t *rows, int32_t nmembers,
                        int64_t total_rows, size_t size_bytes)
{
    const struct hvi_hosts_place *at = cookie;
    struct hvi_hosts *h = at->h;
    struct hvi_err err;
    enum hvd_status rc = HVD_OK;

    (void)rows;
    (void)nmembers;
    (void)total_rows;
    (void)size_bytes;
    if (at->part == BEFORE) {
        rc = count_rows(h, at->piece, &err);
        if (rc == HVD_OK)
            rc = hvi_hosts_get_output(h, at->piece, &err);
        hvi_hosts_note(h, rc, &err);
    }
    return hvi_hosts_out_at(h, at->piece,
                            at->part == BEFORE ? 0 : here_first(h) + h->nhere);
}

/* All members of other hosts, and this rank among them; its own rows are none. */
static void pick_others(struct hvi_hosts *h)
{
    h->nacross = 0;
    for (int32_t m = 0; m < h->g->nmembers; m++)
        if (m < here_first(h) || m >= here_first(h) + h->nhere || m == h->g->me)
            h->across[h->nacross++] = h->g->members[m];
}

/* To hosts behind this one goes what they have from hosts before them. */
static void add_side(struct hvi_hosts *h, int32_t i, int side)
{
    const struct hvi_piece *p = &h->g->pieces[i];
    struct hvi_piece *over = &h->over.pieces[i * SIDES + side];
    size_t list = (size_t)(i * SIDES + side) * (size_t)h->g->nmembers;
    const int64_t *rows = splits_of(h, i);
    int32_t end = here_first(h) + h->nhere; /* of this host */
    int64_t skip = side == BEFORE ? sum_of(rows, 0, end) * p->row : 0;
    int64_t *splits = (int64_t *)h->over_splits.data + list;

    memset(splits, 0, (size_t)h->nacross * sizeof *splits);
    for (int32_t m = 0; side == AFTER && m < here_first(h); m++)
        splits[m] = rows[m];
    for (int32_t m = end; side == BEFORE && m < h->g->nmembers; m++)
        splits[m - h->nhere + 1] = rows[m];
    *over = (struct hvi_piece){.in = p->in,
                               .count = p->count - skip,
                               .row = p->row,
                               .splits = splits,
                               .rows = (int64_t *)h->over_rows.data + list,
                               .cookie = hvi_hosts_place_of(h, i, SIDES, side)};
    if (p->in != NULL)
        over->in = (const uint8_t *)p->in + (size_t)skip * h->facts.elem_size;
}

static bool exchange_across(struct hvi_hosts *h)
{
    pick_others(h);
    hvi_hosts_begin(h, HVD_ALLTOALL, h->g->dtype, false);
    h->over = h->sub;
    h->over.alloc = place_side;
    h->over.pieces = h->over_pieces.data;
    h->over.npieces = h->g->npieces * SIDES;
    for (int32_t i = 0; i < h->g->npieces; i++) {
        add_side(h, i, BEFORE);
        add_side(h, i, AFTER);
    }
    return true;
}

static void exchange_here(struct hvi_hosts *h)
{
    hvi_hosts_begin(h, HVD_ALLTOALL, h->g->dtype, true);
    for (int32_t i = 0; i < h->g->npieces; i++) {
        const struct hvi_piece *p = &h->g->pieces[i];
        const int64_t *rows = splits_of(h, i) + here_first(h);
        int64_t skip = sum_of(splits_of(h, i), 0, here_first(h)) * p->row;
        const uint8_t *in = p->in;

        if (in != NULL)
            in += (size_t)skip * h->facts.elem_size;
        hvi_hosts_add(h, in, hvi_hosts_out_at(h, i, here_first(h)),
                      sum_of(rows, 0, h->nhere) * p->row, p->row);
        h->sub.pieces[i].splits = rows;
    }
}

static void alltoall_local(struct hvi_hosts *h, int64_t turn)
{
    if (turn == 0)
        exchange_counts(h);
    else
        exchange_here(h);
}

/* The group across gives only that: outputs have memory. */
static bool alltoall_came(const struct hvi_hosts *h, int64_t turn)
{
    return turn == 0 || (h->between == HVI_HOSTS_RUNNING && hvi_tcp_placed(h->mesh));
}

static int64_t alltoall_fed(const struct hvi_hosts *h)
{
    return h->turn;
}

static const struct hvi_flow alltoall_flow = {
    .begin_across = exchange_across,
    .begin_local = alltoall_local,
    .came = alltoall_came,
    .fed = alltoall_fed,
};
const struct hvi_route hvi_hosts_alltoall = {
    .reserve = reserve_alltoall, .flow = &alltoall_flow, .sized = true};

/* ---- allgather ------------------------------------------------------------------- */

static enum hvd_status reserve_straight(struct hvi_hosts *h, struct hvi_err *err)
{
    return hvi_hosts_enough(
        h, hvi_hosts_reserve_gather(h) && hvi_hosts_reserve_parts(h, h->nhosts), err);
}

static void gather_own(struct hvi_hosts *h)
{
    hvi_hosts_pick(h, h->lane, -1);
    hvi_hosts_begin(h, HVD_ALLGATHER, HVD_UINT8, false);
    h->sub.alloc = hvi_hosts_room_for;
    for (int32_t i = 0; i < h->g->npieces; i++) {
        hvi_hosts_add(h, h->parts[i].in, NULL, h->parts[i].in_bytes, 1);
        h->sub.pieces[i].cookie = &h->parts[i].lane;
    }
}

/* The memory of a host's part; the first host's call finds where all lie. */
static void *place_host(void *cookie, const int64_t *rows, int32_t nmembers,
                        int64_t total_rows, size_t size_bytes)
{
    const struct hvi_hosts_place *at = cookie;
    struct hvi_hosts *h = at->h;
    struct hvi_err err;

    (void)rows;
    (void)nmembers;
    (void)total_rows;
    (void)size_bytes;
    for (int32_t m = 0; at->part == 0 && m < h->g->nmembers; m++)
        *hvi_hosts_bytes_of(h, m, at->piece) =
            h->sub.pieces[at->piece * h->nhosts + m / h->nhere].rows[m % h->nhere];
    if (at->part == 0)
        hvi_hosts_note(h, hvi_hosts_get_output(h, at->piece, &err), &err);
    return hvi_hosts_out_at(h, at->piece, h->first_of[at->part]);
}

static void gather_all(struct hvi_hosts *h)
{
    const int64_t *came = h->rows.data; /* of step 1: [piece][width] */

    hvi_hosts_begin(h, HVD_ALLGATHER, HVD_UINT8, true);
    h->sub.alloc = place_host;
    for (int32_t i = 0; i < h->g->npieces; i++) {
        const struct hvi_hosts_part *part = &h->parts[i];
        const uint8_t *lane = part->lane.data;

        for (int32_t d = 0; d < h->nhosts; d++) {
            int64_t bytes = came[(int64_t)i * h->width + d];

            hvi_hosts_add(h, d == h->my_host ? part->in : lane, NULL, bytes, 1);
            h->sub.pieces[h->sub.npieces - 1].cookie =
                hvi_hosts_place_of(h, i, h->nhosts, d);
            lane += bytes;
        }
    }
}

static enum hvd_status begin_straight(struct hvi_hosts *h, int step,
                                      struct hvi_err *err)
{
    (void)err;
    if (step == 1)
        gather_own(h);
    else
        gather_all(h);
    return HVD_OK;
}

const struct hvi_route hvi_hosts_allgather_straight = {
    .reserve = reserve_straight, .begin = begin_straight, .nsteps = 2, .sized = true};
