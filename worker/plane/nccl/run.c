/* What NCCL is asked to do for a group, and the kernel's work before and after it. */
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/names.h"
#include "worker/plane/nccl/gpu.h"
#include "worker/plane/reduce/reduce.h"
#include "worker/plane/sched/chunk.h"

/* ---- how it is reduced ----------------------------------------------------------- */

static bool is_float(uint32_t dtype)
{
    return dtype == HVD_FLOAT16 || dtype == HVD_BFLOAT16 || dtype == HVD_FLOAT32 ||
           dtype == HVD_FLOAT64;
}

static int nccl_type(uint32_t dtype)
{
    static const int types[HVD_DTYPE_COUNT] = {
        [HVD_UINT8] = HVI_NCCL_UINT8,     [HVD_INT8] = HVI_NCCL_INT8,
        [HVD_INT32] = HVI_NCCL_INT32,     [HVD_INT64] = HVI_NCCL_INT64,
        [HVD_FLOAT16] = HVI_NCCL_FLOAT16, [HVD_BFLOAT16] = HVI_NCCL_BFLOAT16,
        [HVD_FLOAT32] = HVI_NCCL_FLOAT32, [HVD_FLOAT64] = HVI_NCCL_FLOAT64,
        [HVD_BOOL] = HVI_NCCL_UINT8};

    return types[dtype];
}

/* bool: or is the largest, and the smallest of 0 and 1. */
static int nccl_op(uint32_t op, uint32_t dtype)
{
    switch (op) {
    case HVD_MIN:
        return HVI_NCCL_MIN;
    case HVD_MAX:
        return HVI_NCCL_MAX;
    case HVD_PRODUCT:
        return dtype == HVD_BOOL ? HVI_NCCL_MIN : HVI_NCCL_PROD;
    default:
        return dtype == HVD_BOOL ? HVI_NCCL_MAX : HVI_NCCL_SUM;
    }
}

/* NCCL has no 16-bit integers: they travel as 32-bit ones, whose low bits are the same. */
void hvi_gpu_choose(struct hvi_gpu *p, const struct hvi_group *g)
{
    p->cast = g->dtype == HVD_INT16 || g->dtype == HVD_UINT16;
    p->wtype = p->cast ? (uint32_t)HVD_INT32 : g->dtype;
    if (p->card.wire != 0 && g->kind == HVD_ALLREDUCE && g->dtype == HVD_FLOAT32 &&
        (g->reduce_op == HVD_SUM || g->reduce_op == HVD_AVERAGE)) {
        p->cast = true;
        p->wtype = p->card.wire;
    }
    p->nccl_type = nccl_type(p->wtype);
    p->nccl_op = nccl_op(g->reduce_op, g->dtype);
    p->pre_pass = g->prescale != 1.0 || p->cast || g->dtype == HVD_BOOL;
    p->post = p->facts.post;
    if (g->reduce_op == HVD_AVERAGE && is_float(g->dtype) && g->prescale == 1.0 &&
        g->postscale == 1.0) {
        p->nccl_op = HVI_NCCL_AVG;
        p->post = 1.0;
    }
}

static size_t padded(int64_t count, uint32_t elem_size)
{
    return ((size_t)count * elem_size + HVI_PART_ALIGN - 1) / HVI_PART_ALIGN *
           HVI_PART_ALIGN;
}

/* A reducescatter that needs a pass before it does so in the fusion buffer. */
static bool fits_buffer(const struct hvi_gpu *p, const struct hvi_group *g)
{
    uint32_t size = hvi_dtype_size(p->wtype);
    size_t used = 0;

    for (int32_t i = 0; i < g->npieces; i++) {
        size_t bytes = padded(g->pieces[i].count, size);

        if (bytes > p->buffer_bytes - used)
            return false;
        used += bytes;
    }
    return true;
}

bool hvi_gpu_needs_host(const struct hvi_gpu *p, const struct hvi_group *g)
{
    if (g->kind == HVD_ALLREDUCE && g->reduce_op == HVD_ADASUM)
        return true;
    return g->kind == HVD_REDUCESCATTER && p->pre_pass && !fits_buffer(p, g);
}

/* ---- readiness ------------------------------------------------------------------- */

enum hvd_status hvi_gpu_await_piece(struct hvi_gpu *p, int32_t i, struct hvi_err *err)
{
    struct hvi_event *ready = p->g->pieces[i].ready;

    if (p->waited[i] || ready == NULL)
        return HVD_OK;
    p->waited[i] = true;
    return hvi_device_check(p->dev, p->dev->cu->stream_wait(p->stream, ready->event, 0),
                            "cuStreamWaitEvent", err);
}

static enum hvd_status await_all(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    for (int32_t i = 0; rc == HVD_OK && i < p->g->npieces; i++)
        rc = hvi_gpu_await_piece(p, i, err);
    return rc;
}

/* ---- calling --------------------------------------------------------------------- */

/* NCCL calls of one launch, between begin and end. The first failure is kept. */
struct calls {
    struct hvi_gpu *p;
    struct ncclComm *comm;
    int rc;
    int n;
};

static enum hvd_status calls_begin(struct hvi_gpu *p, struct calls *k)
{
    pthread_mutex_lock(&p->api);
    *k = (struct calls){.p = p, .comm = p->comm->nccl};
    if (atomic_load(&p->broken) != 0 || k->comm == NULL) {
        pthread_mutex_unlock(&p->api);
        return HVD_EPEER;
    }
    p->nccl->group_start();
    return HVD_OK;
}

static void called(struct calls *k, int rc)
{
    k->n++;
    if (k->rc == HVI_NCCL_SUCCESS && rc != HVI_NCCL_IN_PROGRESS)
        k->rc = rc;
}

static enum hvd_status calls_end(struct calls *k, struct hvi_err *err)
{
    struct hvi_gpu *p = k->p;
    int end = p->nccl->group_end();
    enum hvd_status rc;

    if (k->rc == HVI_NCCL_SUCCESS && end != HVI_NCCL_IN_PROGRESS)
        k->rc = end;
    rc = hvi_gpu_nccl_check(p, k->rc, k->comm, hvi_kind_name(p->g->kind), err);
    pthread_mutex_unlock(&p->api);
    if (rc == HVD_OK)
        p->phase = HVI_GPU_CALLED;
    p->forming_ms = hvi_now_ms();
    p->poll_us = HVI_POLL_FIRST_US; /* each round's calls take as long as the first's */
    return rc;
}

static void *device_at(uint64_t base, size_t offset)
{
    return (void *)(uintptr_t)(base + offset);
}

/* ---- allreduce ------------------------------------------------------------------- */

struct place {
    uint64_t in, out, work; /* device addresses; in 0: joined */
};

static struct place place_of(const struct hvi_gpu *p, const struct hvi_part *part)
{
    const struct hvi_piece *piece = &p->g->pieces[part->piece];
    size_t offset = (size_t)part->first * p->facts.elem_size;
    struct place at = {0, 0, p->buffer + part->offset};

    if (piece->in == NULL)
        return at;
    at.in = (uint64_t)(uintptr_t)piece->in + offset;
    at.out = (uint64_t)(uintptr_t)piece->out + offset;
    if (!part->packed)
        at.work = at.out;
    return at;
}

static uint64_t neutral(const struct hvi_gpu *p)
{
    uint64_t bits = 0;

    hvi_reduce_neutral(&bits, 1, p->wtype == HVD_BOOL ? HVD_UINT8 : p->wtype,
                       p->g->dtype == HVD_BOOL && p->nccl_op == HVI_NCCL_MIN
                           ? (uint32_t)HVD_MIN
                           : p->g->reduce_op);
    return bits;
}

/* Into the buffer, or scaled where it lies. */
static void before(const struct hvi_gpu *p, const struct hvi_part *part,
                   struct hvi_table *t)
{
    struct place at = place_of(p, part);
    struct hvi_pack_item item = {.dst = at.work,
                                 .src = at.in,
                                 .count = part->count,
                                 .scale = p->g->prescale,
                                 .from = p->g->dtype,
                                 .to = p->wtype};

    if (at.in == 0)
        item.fill = neutral(p);
    if (part->packed || p->pre_pass || at.in == 0)
        hvi_table_add(t, item);
}

static void after(const struct hvi_gpu *p, const struct hvi_part *part,
                  struct hvi_table *t)
{
    struct place at = place_of(p, part);

    if (at.in == 0 || (!part->packed && p->post == 1.0))
        return;
    hvi_table_add(t, (struct hvi_pack_item){.dst = at.out,
                                            .src = at.work,
                                            .count = part->count,
                                            .scale = p->post,
                                            .from = p->wtype,
                                            .to = p->g->dtype});
}

static void call_direct(struct hvi_gpu *p, struct calls *k, const struct hvi_part *part)
{
    struct place at = place_of(p, part);
    uint64_t from = at.in == 0 || p->pre_pass ? at.work : at.in;

    if (part->count > 0)
        called(k, p->nccl->allreduce(device_at(from, 0), device_at(at.work, 0),
                                     (size_t)part->count, p->nccl_type, p->nccl_op,
                                     k->comm, p->stream));
}

static enum hvd_status allreduce_round(struct hvi_gpu *p, struct hvi_err *err)
{
    const struct hvi_round *r = &p->plan.rounds[p->round];
    const struct hvi_part *parts = &p->plan.parts[r->first_part];
    struct hvi_table *t = NULL;
    struct calls k;
    enum hvd_status rc = hvi_gpu_table(p, r->nparts, &t, err);

    for (int32_t i = 0; rc == HVD_OK && i < r->nparts; i++) {
        rc = hvi_gpu_await_piece(p, parts[i].piece, err);
        before(p, &parts[i], t);
    }
    if (rc == HVD_OK)
        rc = hvi_gpu_run_table(p, t, err);
    if (rc == HVD_OK)
        rc = calls_begin(p, &k);
    if (rc != HVD_OK)
        return rc;
    if (r->packed_elems > 0)
        called(&k, p->nccl->allreduce(device_at(p->buffer, 0), device_at(p->buffer, 0),
                                      (size_t)r->packed_elems, p->nccl_type, p->nccl_op,
                                      k.comm, p->stream));
    for (int32_t i = 0; i < r->nparts; i++)
        if (!parts[i].packed)
            call_direct(p, &k, &parts[i]);
    return calls_end(&k, err);
}

static enum hvd_status allreduce_after(struct hvi_gpu *p, struct hvi_err *err)
{
    const struct hvi_round *r = &p->plan.rounds[p->round];
    struct hvi_table *t = NULL;
    enum hvd_status rc = hvi_gpu_table(p, r->nparts, &t, err);

    for (int32_t i = 0; rc == HVD_OK && i < r->nparts; i++)
        after(p, &p->plan.parts[r->first_part + i], t);
    return rc == HVD_OK ? hvi_gpu_run_table(p, t, err) : rc;
}

/* ---- reducescatter --------------------------------------------------------------- */

static uint64_t scatter_work(const struct hvi_gpu *p, int32_t i)
{
    uint64_t at = p->buffer;

    for (int32_t k = 0; k < i; k++)
        at += padded(p->g->pieces[k].count, hvi_dtype_size(p->wtype));
    return at;
}

static bool in_buffer(const struct hvi_gpu *p, const struct hvi_piece *piece)
{
    return p->pre_pass || piece->in == NULL;
}

static enum hvd_status scatter_before(struct hvi_gpu *p, struct hvi_err *err)
{
    struct hvi_table *t = NULL;
    enum hvd_status rc = hvi_gpu_table(p, p->g->npieces, &t, err);

    for (int32_t i = 0; rc == HVD_OK && i < p->g->npieces; i++) {
        const struct hvi_piece *piece = &p->g->pieces[i];

        if (in_buffer(p, piece))
            hvi_table_add(
                t, (struct hvi_pack_item){.dst = scatter_work(p, i),
                                          .src = (uint64_t)(uintptr_t)piece->in,
                                          .fill = piece->in == NULL ? neutral(p) : 0,
                                          .count = piece->count,
                                          .scale = p->g->prescale,
                                          .from = p->g->dtype,
                                          .to = p->wtype});
    }
    return rc == HVD_OK ? hvi_gpu_run_table(p, t, err) : rc;
}

/* Equal parts are NCCL's own reducescatter; else a reduction to every member. */
static void call_scatter(struct hvi_gpu *p, struct calls *k, int32_t i)
{
    const struct hvi_piece *piece = &p->g->pieces[i];
    uint32_t size = hvi_dtype_size(p->wtype);
    uint64_t in =
        in_buffer(p, piece) ? scatter_work(p, i) : (uint64_t)(uintptr_t)piece->in;
    int64_t first = 0;
    int64_t count = 0;
    int64_t last = 0;

    hvi_group_kept(p->g, i, p->g->nmembers - 1, &first, &last);
    hvi_group_kept(p->g, i, 0, &first, &count);
    if (count == last && !in_buffer(p, piece) && count > 0 && !p->any_joined) {
        called(k,
               p->nccl->reduce_scatter(device_at(in, 0), piece->out, (size_t)count,
                                       p->nccl_type, p->nccl_op, k->comm, p->stream));
        return;
    }
    for (int32_t m = 0; m < p->g->nmembers; m++) {
        void *from;
        void *to = NULL;

        hvi_group_kept(p->g, i, m, &first, &count);
        from = device_at(in, (size_t)first * size);
        if (m == p->g->me)
            to = in_buffer(p, piece) ? from : piece->out;
        if (count > 0)
            called(k, p->nccl->reduce(from, to, (size_t)count, p->nccl_type, p->nccl_op,
                                      m, k->comm, p->stream));
    }
}

static enum hvd_status scatter(struct hvi_gpu *p, struct hvi_err *err)
{
    struct calls k;
    enum hvd_status rc = scatter_before(p, err);

    if (rc == HVD_OK)
        rc = calls_begin(p, &k);
    if (rc != HVD_OK)
        return rc;
    for (int32_t i = 0; i < p->g->npieces; i++)
        call_scatter(p, &k, i);
    return calls_end(&k, err);
}

static enum hvd_status scatter_after(struct hvi_gpu *p, struct hvi_err *err)
{
    struct hvi_table *t = NULL;
    enum hvd_status rc = hvi_gpu_table(p, p->g->npieces, &t, err);

    for (int32_t i = 0; rc == HVD_OK && i < p->g->npieces; i++) {
        const struct hvi_piece *piece = &p->g->pieces[i];
        uint64_t out = (uint64_t)(uintptr_t)piece->out;
        uint64_t work = out;
        int64_t first = 0;
        int64_t count = 0;

        hvi_group_kept(p->g, i, p->g->me, &first, &count);
        if (in_buffer(p, piece))
            work = scatter_work(p, i) + (uint64_t)first * hvi_dtype_size(p->wtype);
        if (piece->in != NULL && (work != out || p->post != 1.0))
            hvi_table_add(t, (struct hvi_pack_item){.dst = out,
                                                    .src = work,
                                                    .count = count,
                                                    .scale = p->post,
                                                    .from = p->wtype,
                                                    .to = p->g->dtype});
    }
    return rc == HVD_OK ? hvi_gpu_run_table(p, t, err) : rc;
}

/* ---- moving ---------------------------------------------------------------------- */

static void call_broadcast(struct hvi_gpu *p, struct calls *k)
{
    for (int32_t i = 0; i < p->g->npieces; i++) {
        const struct hvi_piece *piece = &p->g->pieces[i];
        size_t bytes = (size_t)piece->count * p->facts.elem_size;

        if (bytes > 0)
            called(k, p->nccl->broadcast(
                          p->g->me == p->g->root ? piece->in : piece->out, piece->out,
                          bytes, HVI_NCCL_INT8, p->g->root, k->comm, p->stream));
    }
}

static size_t row_bytes(const struct hvi_gpu *p, const struct hvi_piece *piece)
{
    return (size_t)piece->row * p->facts.elem_size;
}

static void call_allgather(struct hvi_gpu *p, struct calls *k,
                           const struct hvi_piece *piece)
{
    size_t unit = row_bytes(p, piece);
    bool even = true;
    size_t at = 0;

    for (int32_t m = 1; m < p->g->nmembers; m++)
        even &= piece->rows[m] == piece->rows[0];
    if (even) {
        if (piece->rows[0] > 0 && unit > 0)
            called(k, p->nccl->allgather(piece->in, piece->out,
                                         (size_t)piece->rows[0] * unit, HVI_NCCL_INT8,
                                         k->comm, p->stream));
        return;
    }
    for (int32_t m = 0; m < p->g->nmembers; m++) {
        size_t bytes = (size_t)piece->rows[m] * unit;
        void *to = device_at((uint64_t)(uintptr_t)piece->out, at);

        if (bytes > 0)
            called(k, p->nccl->broadcast(m == p->g->me ? piece->in : to, to, bytes,
                                         HVI_NCCL_INT8, m, k->comm, p->stream));
        at += bytes;
    }
}

static int64_t sent_rows(const struct hvi_gpu *p, const struct hvi_piece *piece,
                         int32_t m)
{
    int64_t rows = piece->row > 0 ? piece->count / piece->row : piece->nrows;

    return piece->splits != NULL ? piece->splits[m] : rows / p->g->nmembers;
}

static void call_alltoall(struct hvi_gpu *p, struct calls *k,
                          const struct hvi_piece *piece)
{
    size_t unit = row_bytes(p, piece);
    size_t from = 0;
    size_t to = 0;

    for (int32_t m = 0; m < p->g->nmembers; m++) {
        size_t out = (size_t)sent_rows(p, piece, m) * unit;
        size_t in = (size_t)piece->rows[m] * unit;

        if (out > 0)
            called(k, p->nccl->send(device_at((uint64_t)(uintptr_t)piece->in, from),
                                    out, HVI_NCCL_INT8, m, k->comm, p->stream));
        if (in > 0)
            called(k, p->nccl->recv(device_at((uint64_t)(uintptr_t)piece->out, to), in,
                                    HVI_NCCL_INT8, m, k->comm, p->stream));
        from += out;
        to += in;
    }
}

static enum hvd_status move(struct hvi_gpu *p, struct hvi_err *err)
{
    struct calls k;
    enum hvd_status rc = calls_begin(p, &k);

    if (rc != HVD_OK)
        return rc;
    if (p->g->kind == HVD_BARRIER)
        called(&k,
               p->nccl->allreduce(device_at(p->buffer, 0), device_at(p->buffer, 0), 1,
                                  HVI_NCCL_INT8, HVI_NCCL_MAX, k.comm, p->stream));
    if (p->g->kind == HVD_BROADCAST)
        call_broadcast(p, &k);
    for (int32_t i = 0; i < p->g->npieces; i++) {
        if (p->g->kind == HVD_ALLGATHER)
            call_allgather(p, &k, &p->g->pieces[i]);
        else if (p->g->kind == HVD_ALLTOALL)
            call_alltoall(p, &k, &p->g->pieces[i]);
    }
    return calls_end(&k, err);
}

/* ---- sizes that only all ranks together know ------------------------------------- */

static int64_t head_words(const struct hvi_gpu *p)
{
    return (int64_t)p->g->npieces * (p->g->kind == HVD_ALLTOALL ? p->g->nmembers : 1);
}

static enum hvd_status make_head(struct hvi_gpu *p, struct hvi_err *err)
{
    size_t words = (size_t)head_words(p);
    size_t n = (size_t)p->g->nmembers;

    free(p->head);
    p->head = malloc((words * (n + 1) + 1) * sizeof *p->head);
    if (p->head == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    p->heads = p->head + words;
    for (int32_t i = 0; i < p->g->npieces; i++) {
        const struct hvi_piece *piece = &p->g->pieces[i];

        if (p->g->kind == HVD_ALLGATHER)
            p->head[i] = piece->row > 0 ? piece->count / piece->row : piece->nrows;
        for (int32_t m = 0; p->g->kind == HVD_ALLTOALL && m < p->g->nmembers; m++)
            p->head[(size_t)i * n + (size_t)m] = sent_rows(p, piece, m);
    }
    return HVD_OK;
}

static enum hvd_status place_piece(struct hvi_gpu *p, int32_t i, struct hvi_err *err)
{
    struct hvi_piece *piece = &p->g->pieces[i];
    int64_t words = head_words(p);
    int64_t total = 0;
    int64_t bytes = 0;

    for (int32_t m = 0; m < p->g->nmembers; m++) {
        int64_t at =
            m * words +
            (p->g->kind == HVD_ALLTOALL ? (int64_t)i * p->g->nmembers + p->g->me : i);

        piece->rows[m] = p->heads[at];
        if (piece->rows[m] < 0 || __builtin_add_overflow(total, piece->rows[m], &total))
            return hvi_fail(err, HVD_EPROTO, "rank %d has sent a bad number of rows",
                            p->g->members[m]);
    }
    if (__builtin_mul_overflow(total, (int64_t)row_bytes(p, piece), &bytes))
        return hvi_fail(err, HVD_EPROTO, "all ranks' rows together are too many");
    hvi_group_alloc(p->g, &p->facts, i, piece->rows, total, (size_t)bytes);
    return HVD_OK;
}

enum hvd_status hvi_gpu_sizes(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    if (!p->sub_started)
        rc = make_head(p, err);
    if (rc == HVD_OK)
        rc = hvi_gpu_exchange(p, p->head, p->heads,
                              (size_t)head_words(p) * sizeof *p->head, err);
    for (int32_t i = 0; rc == HVD_OK && i < p->g->npieces; i++)
        rc = place_piece(p, i, err);
    if (rc == HVD_OK)
        p->phase = HVI_GPU_AGREE;
    return rc;
}

static bool lacks_memory(const struct hvi_gpu *p)
{
    if (p->facts.no_memory)
        return true;
    for (int32_t i = 0; p->g->kind == HVD_REDUCESCATTER && i < p->g->npieces; i++)
        if (p->g->pieces[i].in != NULL && p->g->pieces[i].out == NULL)
            return true;
    return false;
}

/* 0: ready, 1: no memory for the result, 2: ready, but this rank has joined. */
enum hvd_status hvi_gpu_agree(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc;

    if (!p->sub_started)
        p->oks[HVD_RANKS_MAX] = lacks_memory(p) ? 1 : p->facts.joined ? 2 : 0;
    rc = hvi_gpu_exchange(p, &p->oks[HVD_RANKS_MAX], p->oks, 1, err);
    if (rc != HVD_OK)
        return rc;
    p->any_joined = false;
    for (int32_t m = 0; m < p->g->nmembers; m++) {
        p->any_joined |= p->oks[m] == 2;
        if (p->oks[m] == 1) {
            hvi_fail(
                &p->group_err, HVD_ENOMEM,
                "rank %d has no GPU memory for the result, or its output buffer is "
                "too small",
                p->g->members[m]);
            return hvi_gpu_refuse(p, HVD_ENOMEM, err);
        }
    }
    p->phase = HVI_GPU_LAUNCH;
    return HVD_OK;
}

/* ---- launching ------------------------------------------------------------------- */

enum hvd_status hvi_gpu_launch(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc;

    if (p->g->kind == HVD_ALLREDUCE) {
        if (p->round < p->plan.nrounds)
            return allreduce_round(p, err);
        rc = await_all(p, err); /* of tensors without elements */
        p->phase = HVI_GPU_END;
        return rc;
    }
    rc = await_all(p, err);
    if (rc != HVD_OK)
        return rc;
    return p->g->kind == HVD_REDUCESCATTER ? scatter(p, err) : move(p, err);
}

/* NCCL took the calls, or is still connecting for them: the event may only follow then. */
enum hvd_status hvi_gpu_called(struct hvi_gpu *p, struct hvi_err *err)
{
    int state = HVI_NCCL_SUCCESS;
    enum hvd_status rc = HVD_OK;

    pthread_mutex_lock(&p->api);
    if (p->comm->nccl == NULL || atomic_load(&p->broken) != 0)
        rc = HVD_EPEER;
    else
        rc = hvi_gpu_nccl_check(p, p->nccl->async_error(p->comm->nccl, &state),
                                p->comm->nccl, hvi_kind_name(p->g->kind), err);
    if (rc == HVD_OK)
        rc =
            hvi_gpu_nccl_check(p, state, p->comm->nccl, hvi_kind_name(p->g->kind), err);
    pthread_mutex_unlock(&p->api);
    if (rc != HVD_OK)
        return rc;
    if (state == HVI_NCCL_IN_PROGRESS) {
        if (p->timeout_ms > 0 && hvi_now_ms() - p->forming_ms > p->timeout_ms)
            return hvi_fail(err, HVD_EPEER,
                            "NCCL has not taken a collective on rank %d (%s) in %lld s",
                            p->base.rank, p->host, (long long)(p->timeout_ms / 1000));
        return HVD_INPROGRESS;
    }
    p->phase = HVI_GPU_END;
    if (p->g->kind == HVD_REDUCESCATTER)
        return scatter_after(p, err);
    if (p->g->kind != HVD_ALLREDUCE)
        return HVD_OK;
    rc = allreduce_after(p, err);
    p->round++;
    p->phase = HVI_GPU_LAUNCH;
    return rc;
}
