/*
 * TCP: allreduce of many members along a chain.
 *
 *     0 --partial--> 1 --partial--> ... --partial--> n-1     folds, and has the result
 *     0 <--result--- 1 <--result--- ... <--result--- n-1     of a chunk
 *
 * A member adds its own input to the partial that comes from the one before it and sends
 * that on; what comes back it keeps and sends on. All chunks are under way at once, so a
 * wire is busy in both directions with one stream each: the bytes are those of a ring,
 * and no port gets the streams of many senders at a time, which is what a direct
 * exchange of many hosts does to a switch.
 *
 * The fold is the same as that of a direct exchange, in the same order, bit by bit.
 *
 * A partial waits for its sending in the output; where there is no memory for one, in
 * staging. It cannot lock up: a connection carries partials one way and results the
 * other. Partials wait for the partial behind them only, and the last member takes every
 * one as soon as older results are with the kernel; results wait for results only, and
 * the first member takes every one.
 */
#include "worker/plane/cpu/tcp_reduce.h"
#include "worker/plane/reduce/reduce.h"

enum { WINDOW = HVI_TCP_WINDOW };

static bool is_first(const struct hvi_tcp *t)
{
    return t->g->me == 0;
}

static bool is_last(const struct hvi_tcp *t)
{
    return t->g->me == t->g->nmembers - 1;
}

static const struct hvi_tcp_peer *before(const struct hvi_tcp *t)
{
    return hvi_tcp_peer(t, t->g->me - 1);
}

static const struct hvi_tcp_peer *behind(const struct hvi_tcp *t)
{
    return hvi_tcp_peer(t, t->g->me + 1);
}

static bool is_behind(const struct hvi_tcp *t, int32_t m)
{
    return m > t->g->me;
}

static int64_t chunk_bytes(const struct hvi_tcp *t, int64_t chunk)
{
    return hvi_chunks_chunk(&t->plan, chunk).count * t->facts.elem_size;
}

/* Chunks whose results are here. */
static int64_t results_here(const struct hvi_tcp *t)
{
    return is_last(t) ? t->folded : behind(t)->received;
}

static int64_t chain_count(const struct hvi_tcp *t, int32_t m)
{
    bool near = m == t->g->me - 1 || m == t->g->me + 1;

    return near ? t->plan.nchunks : 0;
}

static struct hvi_tcp_msg chain_send_at(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    bool partial = is_behind(t, m);
    struct hvi_tcp_msg msg = {.ready = i < (partial ? t->folded : results_here(t))};

    if (!partial || !*hvi_tcp_absent(t, t->g->me, i))
        msg.size_bytes = chunk_bytes(t, i);
    return msg;
}

static struct hvi_tcp_msg chain_recv_at(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    bool result = is_behind(t, m);
    struct hvi_tcp_msg msg = {.may_be_empty = !result, .size_bytes = chunk_bytes(t, i)};

    if (result)
        msg.ready = is_first(t) || i < before(t)->sent + WINDOW;
    else
        msg.ready = hvi_tcp_has_room(t, i);
    return msg;
}

static void list_results(const struct hvi_tcp *t, int64_t i, struct hvi_tcp_list *l)
{
    uint8_t *instead = is_last(t)    ? hvi_tcp_staging(t, t->g->me, i)
                       : is_first(t) ? NULL
                                     : hvi_tcp_staging(t, t->g->me + 1, i);

    hvi_tcp_list_outputs(t, hvi_chunks_chunk(&t->plan, i), instead, l);
}

static void chain_send_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                            struct hvi_tcp_list *l)
{
    if (is_behind(t, m))
        hvi_tcp_list_outputs(t, hvi_chunks_chunk(&t->plan, i),
                             hvi_tcp_staging(t, t->g->me, i), l);
    else
        list_results(t, i, l);
}

static void chain_recv_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                            struct hvi_tcp_list *l)
{
    if (is_behind(t, m))
        list_results(t, i, l);
    else
        hvi_tcp_add(l, hvi_tcp_staging(t, m, i), chunk_bytes(t, i));
}

static enum hvd_status chain_received(struct hvi_tcp *t, int32_t m, int64_t i,
                                      int64_t size_bytes, struct hvi_err *err)
{
    (void)err;
    if (!is_behind(t, m))
        *hvi_tcp_absent(t, m, i) = size_bytes < chunk_bytes(t, i);
    return HVD_OK;
}

/* Of a run of the chunk, which begins at `at` in staging. */
static void fold_run(const struct hvi_tcp *t, int64_t chunk, const struct hvi_run *r,
                     int64_t at_bytes)
{
    const struct hvi_group *g = t->g;
    const struct hvi_piece *p = &g->pieces[r->piece];
    int64_t es = t->facts.elem_size;
    const void *src[2] = {NULL, hvi_tcp_in_at(p, r->offset, es)};
    void *out = p->out != NULL ? (uint8_t *)p->out + r->offset * es
                               : hvi_tcp_staging(t, g->me, chunk) + at_bytes;

    if (!is_first(t) && !*hvi_tcp_absent(t, g->me - 1, chunk))
        src[0] = hvi_tcp_staging(t, g->me - 1, chunk) + at_bytes;
    hvi_reduce_fold(out, src, 2, r->count, g->dtype, g->reduce_op, g->prescale, true, 1,
                    is_last(t) ? t->facts.post : 1.0, false);
}

static void fold_chunk(const struct hvi_tcp *t, int64_t chunk)
{
    struct hvi_span c = hvi_chunks_chunk(&t->plan, chunk);
    bool none_before = is_first(t) || *hvi_tcp_absent(t, t->g->me - 1, chunk);
    struct hvi_runs it;
    struct hvi_run r;

    *hvi_tcp_absent(t, t->g->me, chunk) = none_before && t->facts.joined;
    hvi_runs_begin(&it, &t->plan, c.first, c.first + c.count);
    while (hvi_runs_next(&it, &r))
        fold_run(t, chunk, &r, (r.at - c.first) * t->facts.elem_size);
}

/* The place of its partial is free: that of WINDOW chunks before is with the kernel. */
static bool has_place(const struct hvi_tcp *t, int64_t chunk)
{
    return chunk < WINDOW + (is_last(t) ? before(t) : behind(t))->sent;
}

static enum hvd_status chain_work(struct hvi_tcp *t, bool *moved, struct hvi_err *err)
{
    (void)err;
    for (; t->folded < t->plan.nchunks; t->folded++) {
        if ((!is_first(t) && before(t)->received <= t->folded) ||
            !hvi_tcp_is_fed(t, t->folded) || !has_place(t, t->folded))
            return HVD_INPROGRESS;
        fold_chunk(t, t->folded);
        *moved = true;
    }
    return HVD_OK;
}

static int64_t chain_done(struct hvi_tcp *t)
{
    return hvi_chunks_through(&t->plan, results_here(t));
}

const struct hvi_tcp_kind hvi_tcp_chain_kind = {
    .send_count = chain_count,
    .recv_count = chain_count,
    .send_at = chain_send_at,
    .recv_at = chain_recv_at,
    .send_list = chain_send_list,
    .recv_list = chain_recv_list,
    .received = chain_received,
    .work = chain_work,
    .done = chain_done,
};
