/*
 * TCP: what moves without folding. barrier, broadcast, and the exchange under
 * allgather, alltoall and Adasum (worker/plane/cpu/gather.h), every byte straight from
 * the sender's to the receiver's memory.
 */
#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"
#include "worker/plane/cpu/tcp.h"
#include "worker/plane/reduce/reduce.h"

static int64_t data_messages(int64_t size_bytes)
{
    return size_bytes / HVI_TCP_DATA_BYTES + (size_bytes % HVI_TCP_DATA_BYTES != 0);
}

/* Payload bytes of data message i of so many bytes in all. */
static int64_t data_size(int64_t size_bytes, int64_t i)
{
    int64_t left = size_bytes - i * HVI_TCP_DATA_BYTES;

    return left < HVI_TCP_DATA_BYTES ? left : HVI_TCP_DATA_BYTES;
}

/* ---- barrier: an empty message to everyone */

static int64_t one_message(const struct hvi_tcp *t, int32_t m)
{
    (void)t;
    (void)m;
    return 1;
}

static struct hvi_tcp_msg empty_message(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    (void)t;
    (void)m;
    (void)i;
    return (struct hvi_tcp_msg){.ready = true};
}

static enum hvd_status no_work(struct hvi_tcp *t, bool *moved, struct hvi_err *err)
{
    (void)t;
    (void)moved;
    (void)err;
    return HVD_OK;
}

static const struct hvi_tcp_kind barrier_kind = {
    .send_count = one_message,
    .recv_count = one_message,
    .send_at = empty_message,
    .recv_at = empty_message,
    .work = no_work,
};

enum hvd_status hvi_tcp_barrier_start(struct hvi_tcp *t, struct hvi_err *err)
{
    (void)err;
    t->kind = &barrier_kind;
    return HVD_OK;
}

/* ---- broadcast: the root sends to everyone */

static int64_t broadcast_sends(const struct hvi_tcp *t, int32_t m)
{
    (void)m;
    return t->g->me == t->g->root ? data_messages(t->facts.total_bytes) : 0;
}

static int64_t broadcast_recvs(const struct hvi_tcp *t, int32_t m)
{
    return m == t->g->root ? data_messages(t->facts.total_bytes) : 0;
}

static struct hvi_tcp_msg broadcast_at(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    (void)m;
    return (struct hvi_tcp_msg){.ready = true,
                                .size_bytes = data_size(t->facts.total_bytes, i)};
}

static int64_t broadcast_done(struct hvi_tcp *t)
{
    int64_t chunks = t->g->me == t->g->root ? t->plan.nchunks
                                            : hvi_tcp_peer(t, t->g->root)->received;

    return hvi_chunks_through(&t->plan, chunks);
}

static void broadcast_list(const struct hvi_tcp *t, int64_t i, bool send,
                           struct hvi_tcp_list *l)
{
    int64_t es = t->facts.elem_size;
    struct hvi_span c = hvi_chunks_chunk(&t->plan, i);
    struct hvi_runs it;
    struct hvi_run r;
    bool room = true;

    hvi_runs_begin(&it, &t->plan, c.first, c.first + c.count);
    while (room && hvi_runs_next(&it, &r)) {
        const struct hvi_piece *p = &t->g->pieces[r.piece];
        const uint8_t *at = send ? p->in : p->out;

        if (at != NULL)
            room = hvi_tcp_add(l, at + r.offset * es, r.count * es);
        else
            room = send ? hvi_tcp_add_zeros(l, r.count * es)
                        : hvi_tcp_add_scrap(t, l, r.count * es);
    }
}

static void broadcast_send_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                                struct hvi_tcp_list *l)
{
    (void)m;
    broadcast_list(t, i, true, l);
}

static void broadcast_recv_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                                struct hvi_tcp_list *l)
{
    (void)m;
    broadcast_list(t, i, false, l);
}

/* The root's own copy, once. */
static enum hvd_status broadcast_work(struct hvi_tcp *t, bool *moved,
                                      struct hvi_err *err)
{
    (void)err;
    *moved = true;
    for (int32_t i = 0; t->g->me == t->g->root && i < t->g->npieces; i++) {
        const struct hvi_piece *p = &t->g->pieces[i];

        if (p->out != NULL && p->out != p->in)
            hvi_reduce_copy(p->out, p->in, (size_t)p->count * t->facts.elem_size,
                            t->stream);
    }
    return HVD_OK;
}

static const struct hvi_tcp_kind broadcast_kind = {
    .send_count = broadcast_sends,
    .recv_count = broadcast_recvs,
    .send_at = broadcast_at,
    .recv_at = broadcast_at,
    .send_list = broadcast_send_list,
    .recv_list = broadcast_recv_list,
    .work = broadcast_work,
    .done = broadcast_done,
};

enum hvd_status hvi_tcp_broadcast_start(struct hvi_tcp *t, struct hvi_err *err)
{
    enum hvd_status rc =
        hvi_chunks_plan(&t->plan, t->g->pieces, t->g->npieces, t->facts.elem_size,
                        HVI_TCP_DATA_BYTES / (int64_t)t->facts.elem_size, err);

    if (rc != HVD_OK)
        return rc;
    hvi_group_alloc_all(t->g, &t->facts);
    t->kind = &broadcast_kind;
    return HVD_OK;
}

/* ---- exchange: a head to everyone, then the data; once all heads are here it is known
 * where what comes belongs, and only then is it taken in */

static bool has_heads(const struct hvi_tcp *t)
{
    return t->gather->head_bytes > 0;
}

static int64_t *head_of(const struct hvi_tcp *t, int32_t m, bool received)
{
    return t->heads + ((int64_t)m * 2 + received) * t->g->npieces;
}

static int64_t bytes_for(const struct hvi_tcp *t, int32_t m)
{
    int64_t sum = 0;

    if (t->g->kind != HVD_ALLTOALL)
        return t->facts.total_bytes;
    for (int32_t i = 0; i < t->g->npieces; i++)
        sum += head_of(t, m, false)[i] * t->g->pieces[i].row;
    return sum * t->facts.elem_size;
}

static int64_t bytes_from(const struct hvi_tcp *t, int32_t m)
{
    return t->gather->stream_bytes[m] - t->gather->head_bytes;
}

static int64_t exchange_sends(const struct hvi_tcp *t, int32_t m)
{
    return has_heads(t) + data_messages(bytes_for(t, m));
}

static int64_t exchange_recvs(const struct hvi_tcp *t, int32_t m)
{
    /* no look behind the head before its data has a place: a peer that gives us none may be
     * gone already */
    return has_heads(t) + (t->placed ? data_messages(bytes_from(t, m)) : 0);
}

static struct hvi_tcp_msg exchange_send_at(const struct hvi_tcp *t, int32_t m,
                                           int64_t i)
{
    struct hvi_tcp_msg msg = {.ready = true, .size_bytes = t->gather->head_bytes};

    if (i >= has_heads(t))
        msg.size_bytes = data_size(bytes_for(t, m), i - has_heads(t));
    return msg;
}

static struct hvi_tcp_msg exchange_recv_at(const struct hvi_tcp *t, int32_t m,
                                           int64_t i)
{
    struct hvi_tcp_msg msg = {.ready = true, .size_bytes = t->gather->head_bytes};

    if (i < has_heads(t))
        return msg;
    msg.ready = t->placed;
    if (msg.ready)
        msg.size_bytes = data_size(bytes_from(t, m), i - has_heads(t));
    return msg;
}

/* Adds `left` bytes at most, of what lies at most at [data, size_bytes). */
static bool add_part(const struct hvi_tcp *t, struct hvi_tcp_list *l,
                     const uint8_t *data, int64_t size_bytes, bool send, int64_t *from,
                     int64_t *left)
{
    int64_t n;

    if (*from >= size_bytes) {
        *from -= size_bytes;
        return true;
    }
    n = size_bytes - *from < *left ? size_bytes - *from : *left;
    data = data == NULL ? NULL : data + *from;
    *from = 0;
    *left -= n;
    if (data != NULL)
        return hvi_tcp_add(l, data, n);
    return send ? hvi_tcp_add_zeros(l, n) : hvi_tcp_add_scrap(t, l, n);
}

static void exchange_send_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                               struct hvi_tcp_list *l)
{
    int64_t es = t->facts.elem_size;
    int64_t from = (i - has_heads(t)) * HVI_TCP_DATA_BYTES;
    int64_t left = HVI_TCP_DATA_BYTES;
    bool room = true;

    if (i < has_heads(t)) {
        hvi_tcp_add(l, head_of(t, m, false), t->gather->head_bytes);
        return;
    }
    for (int32_t k = 0; room && left > 0 && k < t->g->npieces; k++) {
        const struct hvi_piece *p = &t->g->pieces[k];
        struct hvi_span s = hvi_gather_sends(t->gather, m, k);
        const uint8_t *in = p->in;

        room = add_part(t, l, in == NULL ? NULL : in + s.first * es, s.count * es, true,
                        &from, &left);
    }
}

static void exchange_recv_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                               struct hvi_tcp_list *l)
{
    int64_t from = (i - has_heads(t)) * HVI_TCP_DATA_BYTES;
    int64_t left = HVI_TCP_DATA_BYTES;
    bool room = true;

    if (i < has_heads(t)) {
        hvi_tcp_add(l, head_of(t, m, true), t->gather->head_bytes);
        return;
    }
    for (int32_t k = 0; room && left > 0 && k < t->g->npieces; k++) {
        const struct hvi_block *b = hvi_gather_block(t->gather, m, k);

        room = add_part(t, l, b->to, b->mine * (int64_t)t->facts.elem_size, false,
                        &from, &left);
    }
}

static enum hvd_status exchange_received(struct hvi_tcp *t, int32_t m, int64_t i,
                                         int64_t size_bytes, struct hvi_err *err)
{
    if (i >= has_heads(t))
        return HVD_OK;
    t->heads_here++;
    return hvi_gather_head(t->gather, m, 0, (const uint8_t *)head_of(t, m, true),
                           size_bytes, err);
}

static bool all_received(const struct hvi_tcp *t)
{
    for (int32_t m = 0; m < t->g->nmembers; m++)
        if (m != t->g->me && hvi_tcp_peer(t, m)->received < t->kind->recv_count(t, m))
            return false;
    return true;
}

static enum hvd_status exchange_work(struct hvi_tcp *t, bool *moved,
                                     struct hvi_err *err)
{
    if (!t->placed) {
        enum hvd_status rc = HVD_OK;

        if (has_heads(t) && t->heads_here < t->g->nmembers - 1)
            return HVD_INPROGRESS;
        if (has_heads(t))
            rc = hvi_gather_place(t->gather, &t->facts, err);
        if (rc != HVD_OK)
            return rc;
        t->placed = true;
        *moved = true;
    }
    if (t->g->kind != HVD_ALLREDUCE)
        return HVD_OK;
    if (!all_received(t))
        return HVD_INPROGRESS;
    *moved = true;
    hvi_gather_adasum(t->gather, &t->facts);
    return HVD_OK;
}

static const struct hvi_tcp_kind exchange_kind = {
    .send_count = exchange_sends,
    .recv_count = exchange_recvs,
    .send_at = exchange_send_at,
    .recv_at = exchange_recv_at,
    .send_list = exchange_send_list,
    .recv_list = exchange_recv_list,
    .received = exchange_received,
    .work = exchange_work,
};

bool hvi_tcp_placed(struct hvi_plane *p)
{
    const struct hvi_tcp *t = hvi_tcp_from_plane(p);

    HVI_ASSERT(t->kind == &exchange_kind);
    return t->placed;
}

static enum hvd_status make_heads(struct hvi_tcp *t, struct hvi_err *err)
{
    size_t want = (size_t)t->g->nmembers * 2 * (size_t)t->g->npieces;

    if (t->gather->head_bytes > UINT32_MAX)
        return hvi_fail(err, HVD_ELIMIT, "tcp: %d tensors in one group",
                        (int)t->g->npieces);
    if (want > t->heads_cap) {
        int64_t *more = malloc(want * sizeof(*more));

        if (more == NULL)
            return hvi_fail(err, HVD_ENOMEM, "tcp: no memory to exchange %d tensors",
                            (int)t->g->npieces);
        free(t->heads);
        t->heads = more;
        t->heads_cap = want;
    }
    for (int32_t m = 0; m < t->g->nmembers; m++)
        hvi_gather_head_for(t->gather, m, head_of(t, m, false));
    return HVD_OK;
}

enum hvd_status hvi_tcp_gather_start(struct hvi_tcp *t, struct hvi_err *err)
{
    enum hvd_status rc;

    if (t->g->kind == HVD_ALLREDUCE)
        hvi_group_alloc_all(t->g, &t->facts);
    rc = hvi_gather_begin(t->gather, t->g, &t->facts, err);
    t->gather->stream = t->stream;
    if (rc == HVD_OK && has_heads(t))
        rc = make_heads(t, err);
    t->heads_here = 0;
    t->placed = false;
    t->kind = &exchange_kind;
    return rc;
}
