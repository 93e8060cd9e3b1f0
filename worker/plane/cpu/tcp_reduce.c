/*
 * TCP: allreduce and reducescatter.
 *
 * Pieces are one virtual array, cut into chunks. Inputs of a chunk come from every
 * other member into staging; when all are there the chunk is folded, in order.
 *
 *   whole   (two members, or little payload) everyone sends every chunk to everyone and
 *           folds all of it. One hop.
 *   chain   (many members, much payload) tcp_chain.c
 *   sliced  a chunk has a slice for every member: it gets the others' inputs of its
 * slice, folds, and sends the result to everyone, who receive it in place. Two hops,
 * the fewest bytes. scatter reducescatter: as sliced, but a member's slice of all
 * chunks is what it keeps, and no result is sent.
 *
 * Order of messages to one member, sliced: the inputs of the first window chunks, then
 * the result of chunk 0, the input of chunk window, the result of chunk 1, ... It
 * cannot lock up: a rank stops reading a connection only at the input of chunk folded +
 * window. Let k be the lowest chunk that is not folded everywhere. What anyone sends
 * before its input of k are inputs below k and results up to k - window, all of which
 * can be sent now and are read by everyone; so all inputs of k arrive, and k is folded.
 *
 * The own input may come bit by bit (hvi_tcp_feed): a chunk whose input is not all there
 * is neither sent nor folded, those before it are.
 *
 * In place is safe. whole: a chunk is folded when the own input of it is with the
 * kernel. sliced: the result of a slice comes from the rank that has our input of it.
 *
 * The fold is that of reduce.h with every rank a host of its own: 16-bit floats are
 * rounded after the prescale and after every rank. Ranks that have joined are left out.
 */
#include <stdlib.h>
#include <string.h>

#include "worker/plane/cpu/tcp_reduce.h"
#include "worker/plane/reduce/reduce.h"

enum { CHAIN_PARTS = 4, FOLD_BLOCK_ELEMS = 2048 };

static enum hvd_status input_here(struct hvi_tcp *t, int32_t m, int64_t chunk,
                                  int64_t size_bytes, int64_t whole_bytes)
{
    *hvi_tcp_absent(t, m, chunk) = size_bytes < whole_bytes;
    t->arrived[chunk % t->window]++;
    return HVD_OK;
}

static bool all_here(const struct hvi_tcp *t, int64_t chunk)
{
    return t->arrived[chunk % t->window] == t->g->nmembers - 1;
}

/* Bytes that this rank sends as its input of so many elements. */
static int64_t input_bytes(const struct hvi_tcp *t, int64_t elems)
{
    return t->facts.joined ? 0 : elems * t->facts.elem_size;
}

/* ---- fold */

/* 16-bit floats: round the prescaled input, add in f32, round, for every source in
 * turn. */
static void fold_half(const struct hvi_tcp *t, void *out, const void *const *src,
                      int nsrc, int64_t count)
{
    const struct hvi_group *g = t->g;
    uint16_t acc[FOLD_BLOCK_ELEMS];

    for (int64_t at = 0; at < count; at += FOLD_BLOCK_ELEMS) {
        int64_t n = count - at < FOLD_BLOCK_ELEMS ? count - at : FOLD_BLOCK_ELEMS;
        const void *pair[2] = {(const uint16_t *)src[0] + at, NULL};

        if (g->prescale != 1.0) {
            hvi_reduce_scale(acc, pair[0], n, g->dtype, g->prescale);
            pair[0] = acc;
        }
        for (int k = 1; k < nsrc; k++) {
            bool last = k == nsrc - 1;

            pair[1] = (const uint16_t *)src[k] + at;
            hvi_reduce_fold(last ? (uint16_t *)out + at : acc, pair, 2, n, g->dtype,
                            g->reduce_op, g->prescale, true, 1,
                            last ? t->facts.post : 1.0, false);
            pair[0] = acc;
        }
    }
}

static void fold(const struct hvi_tcp *t, void *out, const void *const *src,
                 int64_t count, bool stream)
{
    const struct hvi_group *g = t->g;
    bool half = g->dtype == HVD_FLOAT16 || g->dtype == HVD_BFLOAT16;
    const void *present[HVD_RANKS_MAX];
    int n = 0;

    for (int32_t m = 0; half && m < g->nmembers; m++)
        if (src[m] != NULL)
            present[n++] = src[m];
    if (n > 1)
        fold_half(t, out, present, n, count);
    else
        hvi_reduce_fold(out, src, g->nmembers, count, g->dtype, g->reduce_op,
                        g->prescale, false, -1, t->facts.post, stream);
}

/* One run of a chunk: `at` is where it begins in staging. */
static void fold_run(const struct hvi_tcp *t, int64_t chunk, void *out, const void *own,
                     int64_t at_bytes, int64_t count, bool stream)
{
    const void *src[HVD_RANKS_MAX];

    for (int32_t m = 0; m < t->g->nmembers; m++) {
        bool none = m == t->g->me || *hvi_tcp_absent(t, m, chunk);

        src[m] = none ? NULL : hvi_tcp_staging(t, m, chunk) + at_bytes;
    }
    src[t->g->me] = own;
    fold(t, out, src, count, stream);
}

/* Virtual elements of `s`, which lie in staging from its begin on, to the outputs;
 * where there is none, and the result must be sent, to the own staging. */
static void fold_span(const struct hvi_tcp *t, int64_t chunk, struct hvi_span s,
                      bool stream)
{
    int64_t es = t->facts.elem_size;
    struct hvi_runs it;
    struct hvi_run r;

    hvi_runs_begin(&it, &t->plan, s.first, s.first + s.count);
    while (hvi_runs_next(&it, &r)) {
        const struct hvi_piece *p = &t->g->pieces[r.piece];
        int64_t at = (r.at - s.first) * es;
        uint8_t *out = p->out != NULL ? (uint8_t *)p->out + r.offset * es
                                      : hvi_tcp_staging(t, t->g->me, chunk) + at;

        fold_run(t, chunk, out, hvi_tcp_in_at(p, r.offset, es), at, r.count,
                 stream && p->out != NULL);
    }
}

/* ---- lists */

static void list_inputs(const struct hvi_tcp *t, struct hvi_span s,
                        struct hvi_tcp_list *l)
{
    int64_t es = t->facts.elem_size;
    struct hvi_runs it;
    struct hvi_run r;
    bool room = true;

    hvi_runs_begin(&it, &t->plan, s.first, s.first + s.count);
    while (room && hvi_runs_next(&it, &r))
        room = hvi_tcp_add(l, hvi_tcp_in_at(&t->g->pieces[r.piece], r.offset, es),
                           r.count * es);
}

void hvi_tcp_list_outputs(const struct hvi_tcp *t, struct hvi_span s, uint8_t *instead,
                          struct hvi_tcp_list *l)
{
    int64_t es = t->facts.elem_size;
    struct hvi_runs it;
    struct hvi_run r;
    bool room = true;

    hvi_runs_begin(&it, &t->plan, s.first, s.first + s.count);
    while (room && hvi_runs_next(&it, &r)) {
        const struct hvi_piece *p = &t->g->pieces[r.piece];

        if (p->out != NULL)
            room = hvi_tcp_add(l, (uint8_t *)p->out + r.offset * es, r.count * es);
        else if (instead != NULL)
            room = hvi_tcp_add(l, instead + (r.at - s.first) * es, r.count * es);
        else
            room = hvi_tcp_add_scrap(t, l, r.count * es);
    }
}

/* ---- allreduce, whole: message i is the input of chunk i */

static int64_t whole_count(const struct hvi_tcp *t, int32_t m)
{
    (void)m;
    return t->plan.nchunks;
}

static struct hvi_tcp_msg whole_send_at(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    (void)m;
    return (struct hvi_tcp_msg){
        .ready = hvi_tcp_is_fed(t, i),
        .size_bytes = input_bytes(t, hvi_chunks_chunk(&t->plan, i).count)};
}

static struct hvi_tcp_msg whole_recv_at(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    (void)m;
    return (struct hvi_tcp_msg){.ready = hvi_tcp_has_room(t, i),
                                .may_be_empty = true,
                                .size_bytes = hvi_chunks_chunk(&t->plan, i).count *
                                              t->facts.elem_size};
}

static void whole_send_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                            struct hvi_tcp_list *l)
{
    (void)m;
    list_inputs(t, hvi_chunks_chunk(&t->plan, i), l);
}

static void whole_recv_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                            struct hvi_tcp_list *l)
{
    hvi_tcp_add(l, hvi_tcp_staging(t, m, i),
                hvi_chunks_chunk(&t->plan, i).count * t->facts.elem_size);
}

static enum hvd_status whole_received(struct hvi_tcp *t, int32_t m, int64_t i,
                                      int64_t size_bytes, struct hvi_err *err)
{
    (void)err;
    return input_here(t, m, i, size_bytes,
                      hvi_chunks_chunk(&t->plan, i).count * t->facts.elem_size);
}

static bool sent_to_all(const struct hvi_tcp *t, int64_t messages)
{
    for (int32_t m = 0; m < t->g->nmembers; m++)
        if (m != t->g->me && hvi_tcp_peer(t, m)->sent < messages)
            return false;
    return true;
}

static enum hvd_status whole_work(struct hvi_tcp *t, bool *moved, struct hvi_err *err)
{
    (void)err;
    for (; t->folded < t->plan.nchunks; t->folded++) {
        if (!all_here(t, t->folded) || !sent_to_all(t, t->folded + 1))
            return HVD_INPROGRESS;
        fold_span(t, t->folded, hvi_chunks_chunk(&t->plan, t->folded), t->stream);
        t->arrived[t->folded % t->window] = 0;
        *moved = true;
    }
    return HVD_OK;
}

static int64_t whole_done(struct hvi_tcp *t)
{
    return hvi_chunks_through(&t->plan, t->folded);
}

static const struct hvi_tcp_kind whole_kind = {
    .send_count = whole_count,
    .recv_count = whole_count,
    .send_at = whole_send_at,
    .recv_at = whole_recv_at,
    .send_list = whole_send_list,
    .recv_list = whole_recv_list,
    .received = whole_received,
    .work = whole_work,
    .done = whole_done,
};

/* ---- allreduce, sliced */

/* Message i of a connection: input or result, of which chunk. */
static int64_t sliced_chunk(const struct hvi_tcp *t, int64_t i, bool *result)
{
    struct hvi_turn turn = hvi_turn_at(t->plan.nchunks, t->window, i);

    *result = turn.back;
    return turn.chunk;
}

/* Messages of a connection up to and with the result of a chunk. */
static int64_t sliced_through(const struct hvi_tcp *t, int64_t chunk)
{
    return hvi_turn_of_back(t->plan.nchunks, t->window, chunk) + 1;
}

static int64_t sliced_count(const struct hvi_tcp *t, int32_t m)
{
    (void)m;
    return 2 * t->plan.nchunks;
}

static struct hvi_span slice(const struct hvi_tcp *t, int64_t chunk, int32_t m)
{
    return hvi_chunks_slice(&t->plan, chunk, t->g->nmembers, m);
}

static struct hvi_tcp_msg sliced_send_at(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    bool result;
    int64_t chunk = sliced_chunk(t, i, &result);
    struct hvi_tcp_msg msg = {.ready = true};

    if (result) {
        msg.ready = chunk < t->folded;
        msg.size_bytes = slice(t, chunk, t->g->me).count * t->facts.elem_size;
    } else {
        msg.ready = hvi_tcp_is_fed(t, chunk);
        msg.size_bytes = input_bytes(t, slice(t, chunk, m).count);
    }
    return msg;
}

static struct hvi_tcp_msg sliced_recv_at(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    bool result;
    int64_t chunk = sliced_chunk(t, i, &result);
    struct hvi_span s = slice(t, chunk, result ? m : t->g->me);

    return (struct hvi_tcp_msg){.ready = result || hvi_tcp_has_room(t, chunk),
                                .may_be_empty = !result,
                                .size_bytes = s.count * t->facts.elem_size};
}

static void sliced_send_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                             struct hvi_tcp_list *l)
{
    bool result;
    int64_t chunk = sliced_chunk(t, i, &result);

    if (result)
        hvi_tcp_list_outputs(t, slice(t, chunk, t->g->me),
                             hvi_tcp_staging(t, t->g->me, chunk), l);
    else
        list_inputs(t, slice(t, chunk, m), l);
}

static void sliced_recv_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                             struct hvi_tcp_list *l)
{
    bool result;
    int64_t chunk = sliced_chunk(t, i, &result);

    if (result)
        hvi_tcp_list_outputs(t, slice(t, chunk, m), NULL, l);
    else
        hvi_tcp_add(l, hvi_tcp_staging(t, m, chunk),
                    slice(t, chunk, t->g->me).count * t->facts.elem_size);
}

static enum hvd_status sliced_received(struct hvi_tcp *t, int32_t m, int64_t i,
                                       int64_t size_bytes, struct hvi_err *err)
{
    bool result;
    int64_t chunk = sliced_chunk(t, i, &result);

    (void)err;
    if (result)
        return HVD_OK;
    return input_here(t, m, chunk, size_bytes,
                      slice(t, chunk, t->g->me).count * t->facts.elem_size);
}

static enum hvd_status sliced_work(struct hvi_tcp *t, bool *moved, struct hvi_err *err)
{
    (void)err;
    for (; t->folded < t->plan.nchunks; t->folded++) {
        int64_t old = t->folded - t->window; /* its result may lie in the own staging */

        if (!all_here(t, t->folded) || !hvi_tcp_is_fed(t, t->folded) ||
            (old >= 0 && !sent_to_all(t, sliced_through(t, old))))
            return HVD_INPROGRESS;
        /* what goes out at once had better be in the cache */
        fold_span(t, t->folded, slice(t, t->folded, t->g->me), false);
        t->arrived[t->folded % t->window] = 0;
        *moved = true;
    }
    return HVD_OK;
}

static bool received_from_all(const struct hvi_tcp *t, int64_t messages)
{
    for (int32_t m = 0; m < t->g->nmembers; m++)
        if (m != t->g->me && hvi_tcp_peer(t, m)->received < messages)
            return false;
    return true;
}

static int64_t sliced_done(struct hvi_tcp *t)
{
    while (t->finished < t->folded &&
           received_from_all(t, sliced_through(t, t->finished)))
        t->finished++;
    return hvi_chunks_through(&t->plan, t->finished);
}

static const struct hvi_tcp_kind sliced_kind = {
    .send_count = sliced_count,
    .recv_count = sliced_count,
    .send_at = sliced_send_at,
    .recv_at = sliced_recv_at,
    .send_list = sliced_send_list,
    .recv_list = sliced_recv_list,
    .received = sliced_received,
    .work = sliced_work,
    .done = sliced_done,
};

/* ---- allreduce */

static void begin_folding(struct hvi_tcp *t)
{
    t->folded = t->finished = 0;
    memset(t->arrived, 0, sizeof(t->arrived));
}

enum way { WHOLE, SLICED, CHAIN };

/* A function of what all members know. */
static enum way choose_way(const struct hvi_tcp *t, int32_t nmembers,
                           int64_t total_bytes)
{
    if (nmembers <= 2 || total_bytes <= t->small_bytes)
        return WHOLE;
    return nmembers >= t->chain_members &&
                   total_bytes >= nmembers * t->chain_member_bytes
               ? CHAIN
               : SLICED;
}

/* The kernel holds what goes between ranks of a host: of many chunks it leaves the cache
 * before it is read. On a wire many are needed. */
static int64_t choose_window(const struct hvi_tcp *t, enum way way)
{
    return way == SLICED && t->one_host ? HVI_TCP_NEAR_WINDOW : HVI_TCP_WINDOW;
}

/* Bytes of a message: several chunks when there is that much. */
static int64_t choose_part(const struct hvi_tcp *t, int32_t nmembers,
                           int64_t total_bytes)
{
    int64_t most = t->part_bytes;
    int64_t part = most;

    switch (choose_way(t, nmembers, total_bytes)) {
    case SLICED:
        part = total_bytes / nmembers / choose_window(t, SLICED) / 64 * 64;
        break;
    case CHAIN:
        part = total_bytes / nmembers / CHAIN_PARTS / 64 * 64;
        most = most < HVI_TCP_CHAIN_MAX_BYTES ? most : HVI_TCP_CHAIN_MAX_BYTES;
        break;
    case WHOLE:
        break;
    }
    part = part < HVI_TCP_PART_MIN_BYTES ? HVI_TCP_PART_MIN_BYTES : part;
    return part < most ? part : most;
}

int64_t hvi_tcp_cut_bytes(struct hvi_plane *p, int32_t nmembers, int64_t total_bytes)
{
    const struct hvi_tcp *t = hvi_tcp_from_plane(p);
    int64_t part = choose_part(t, nmembers, total_bytes);

    switch (choose_way(t, nmembers, total_bytes)) {
    case SLICED: /* a result goes out after the inputs of window - 1 chunks behind */
        return part * nmembers * choose_window(t, SLICED);
    case CHAIN: /* so many are on their way there and back */
        return part * nmembers * 2;
    case WHOLE:
        break;
    }
    return part;
}

enum hvd_status hvi_tcp_allreduce_start(struct hvi_tcp *t, struct hvi_err *err)
{
    static const struct hvi_tcp_kind *const kinds[] = {
        [WHOLE] = &whole_kind, [SLICED] = &sliced_kind, [CHAIN] = &hvi_tcp_chain_kind};
    int32_t n = t->g->nmembers;
    enum way way = choose_way(t, n, t->facts.total_bytes);
    enum hvd_status rc;

    t->window = choose_window(t, way);
    t->part_elems =
        choose_part(t, n, t->facts.total_bytes) / (int64_t)t->facts.elem_size;
    rc = hvi_chunks_plan(&t->plan, t->g->pieces, t->g->npieces, t->facts.elem_size,
                         way == SLICED ? t->part_elems * n : t->part_elems, err);
    if (rc == HVD_OK && t->plan.nchunks > UINT32_MAX / 2)
        rc = hvi_fail(err, HVD_ELIMIT, "tcp: too many bytes in one group");
    if (rc != HVD_OK)
        return rc;
    hvi_group_alloc_all(t->g, &t->facts);
    begin_folding(t);
    t->kind = kinds[way];
    return HVD_OK;
}

/* ---- reducescatter: message i is the input of chunk i of what the receiver keeps */

static int64_t scatter_chunks(const struct hvi_tcp *t, int32_t m)
{
    return t->kept[m] / t->part_elems + (t->kept[m] % t->part_elems != 0);
}

static int64_t scatter_elems(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    int64_t left = t->kept[m] - i * t->part_elems;

    return left < t->part_elems ? left : t->part_elems;
}

static int64_t scatter_recvs(const struct hvi_tcp *t, int32_t m)
{
    (void)m;
    return scatter_chunks(t, t->g->me);
}

static struct hvi_tcp_msg scatter_send_at(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    return (struct hvi_tcp_msg){.ready = true,
                                .size_bytes = input_bytes(t, scatter_elems(t, m, i))};
}

static struct hvi_tcp_msg scatter_recv_at(const struct hvi_tcp *t, int32_t m, int64_t i)
{
    (void)m;
    return (struct hvi_tcp_msg){.ready = hvi_tcp_has_room(t, i),
                                .may_be_empty = true,
                                .size_bytes = scatter_elems(t, t->g->me, i) *
                                              (int64_t)t->facts.elem_size};
}

static void scatter_send_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                              struct hvi_tcp_list *l)
{
    int64_t es = t->facts.elem_size;
    int64_t from = i * t->part_elems;
    int64_t left = scatter_elems(t, m, i);
    bool room = true;

    for (int32_t k = 0; room && left > 0 && k < t->g->npieces; k++) {
        int64_t first, count;

        hvi_group_kept(t->g, k, m, &first, &count);
        if (from >= count) {
            from -= count;
            continue;
        }
        count = count - from < left ? count - from : left;
        room = hvi_tcp_add(l, hvi_tcp_in_at(&t->g->pieces[k], first + from, es),
                           count * es);
        left -= count;
        from = 0;
    }
}

static void scatter_recv_list(const struct hvi_tcp *t, int32_t m, int64_t i,
                              struct hvi_tcp_list *l)
{
    hvi_tcp_add(l, hvi_tcp_staging(t, m, i),
                scatter_elems(t, t->g->me, i) * t->facts.elem_size);
}

static enum hvd_status scatter_received(struct hvi_tcp *t, int32_t m, int64_t i,
                                        int64_t size_bytes, struct hvi_err *err)
{
    (void)err;
    return input_here(t, m, i, size_bytes,
                      scatter_elems(t, t->g->me, i) * t->facts.elem_size);
}

/* The plan is of what this rank keeps; runs' offsets count from there. */
static void scatter_fold(const struct hvi_tcp *t, int64_t chunk)
{
    int64_t es = t->facts.elem_size;
    struct hvi_span c = hvi_chunks_chunk(&t->plan, chunk);
    struct hvi_runs it;
    struct hvi_run r;

    hvi_runs_begin(&it, &t->plan, c.first, c.first + c.count);
    while (hvi_runs_next(&it, &r)) {
        const struct hvi_piece *p = &t->g->pieces[r.piece];
        int64_t first, count;

        hvi_group_kept(t->g, r.piece, t->g->me, &first, &count);
        if (p->out != NULL)
            fold_run(t, chunk, (uint8_t *)p->out + r.offset * es,
                     hvi_tcp_in_at(p, first + r.offset, es), (r.at - c.first) * es,
                     r.count, t->stream);
    }
}

static enum hvd_status scatter_work(struct hvi_tcp *t, bool *moved, struct hvi_err *err)
{
    (void)err;
    for (; t->folded < t->plan.nchunks; t->folded++) {
        if (!all_here(t, t->folded))
            return HVD_INPROGRESS;
        scatter_fold(t, t->folded);
        t->arrived[t->folded % t->window] = 0;
        *moved = true;
    }
    return HVD_OK;
}

static const struct hvi_tcp_kind scatter_kind = {
    .send_count = scatter_chunks,
    .recv_count = scatter_recvs,
    .send_at = scatter_send_at,
    .recv_at = scatter_recv_at,
    .send_list = scatter_send_list,
    .recv_list = scatter_recv_list,
    .received = scatter_received,
    .work = scatter_work,
};

static enum hvd_status plan_kept(struct hvi_tcp *t, struct hvi_err *err)
{
    int32_t n = t->g->npieces;
    int64_t counts[256];
    int64_t *list = counts;
    enum hvd_status rc;

    memset(t->kept, 0, (size_t)t->g->nmembers * sizeof(*t->kept));
    if (n > (int32_t)(sizeof(counts) / sizeof(counts[0]))) {
        list = malloc((size_t)n * sizeof(*list));
        if (list == NULL)
            return hvi_fail(err, HVD_ENOMEM, "tcp: no memory to plan %d tensors",
                            (int)n);
    }
    for (int32_t i = 0; i < n; i++)
        for (int32_t m = 0; m < t->g->nmembers; m++) {
            int64_t first, count;

            hvi_group_kept(t->g, i, m, &first, &count);
            t->kept[m] += count;
            if (m == t->g->me)
                list[i] = count;
        }
    rc = hvi_chunks_plan_counts(&t->plan, list, n, t->facts.elem_size, t->part_elems,
                                err);
    if (list != counts)
        free(list);
    return rc;
}

enum hvd_status hvi_tcp_reducescatter_start(struct hvi_tcp *t, struct hvi_err *err)
{
    enum hvd_status rc;

    t->window = HVI_TCP_WINDOW;
    t->part_elems = t->part_bytes / (int64_t)t->facts.elem_size;
    rc = plan_kept(t, err);
    if (rc == HVD_OK && t->facts.total_bytes / t->part_bytes > UINT32_MAX)
        rc = hvi_fail(err, HVD_ELIMIT, "tcp: too many bytes in one group");
    if (rc != HVD_OK)
        return rc;
    hvi_group_alloc_all(t->g, &t->facts);
    begin_folding(t);
    t->kind = &scatter_kind;
    return HVD_OK;
}
