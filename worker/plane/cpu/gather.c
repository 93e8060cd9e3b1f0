#include "worker/plane/cpu/gather.h"

#include <stdlib.h>
#include <string.h>

#include "worker/plane/reduce/reduce.h"
#include "worker/plane/sched/adasum.h"

enum { FOLD_ALIGN_BYTES = 64 };

struct hvi_gather *hvi_gather_new(void)
{
    return calloc(1, sizeof(struct hvi_gather));
}

void hvi_gather_free(struct hvi_gather *ga)
{
    if (ga == NULL)
        return;
    free(ga->head);
    free(ga->sent_elems);
    free(ga->all_rows);
    free(ga->blocks);
    free(ga->stream_bytes);
    free(ga->cursors);
    free(ga->scratch);
    free(ga);
}

/* ---- memory */

/* Room for `want` entries; contents are lost. False: no memory, the old room stays. */
static bool grow(void **array, size_t *cap, size_t want, size_t entry_bytes)
{
    void *more;

    if (want <= *cap)
        return true;
    more = calloc(want, entry_bytes);
    if (more == NULL)
        return false;
    free(*array);
    *array = more;
    *cap = want;
    return true;
}

static enum hvd_status reserve(struct hvi_gather *ga, struct hvi_err *err)
{
    size_t n = (size_t)ga->g->nmembers;
    size_t np = (size_t)ga->g->npieces;
    size_t cursors_cap = ga->members_cap;
    size_t rows_cap = ga->pieces_cap;

    if (!grow((void **)&ga->head, &ga->head_cap, np * (size_t)ga->head_words,
              sizeof(*ga->head)) ||
        !grow((void **)&ga->all_rows, &rows_cap, np, sizeof(*ga->all_rows)) ||
        !grow((void **)&ga->sent_elems, &ga->pieces_cap, np, sizeof(*ga->sent_elems)) ||
        !grow((void **)&ga->blocks, &ga->blocks_cap, n * np, sizeof(*ga->blocks)) ||
        !grow((void **)&ga->cursors, &cursors_cap, n, sizeof(*ga->cursors)) ||
        !grow((void **)&ga->stream_bytes, &ga->members_cap, n,
              sizeof(*ga->stream_bytes)))
        return hvi_fail(err, HVD_ENOMEM, "no memory to exchange %d tensors of %d ranks",
                        (int)np, (int)n);
    if (n * np > 0)
        memset(ga->blocks, 0, n * np * sizeof(*ga->blocks));
    for (size_t i = 0; i < np; i++)
        ga->sent_elems[i] = ga->g->pieces[i].count;
    memset(ga->cursors, 0, n * sizeof(*ga->cursors));
    ga->own = (struct hvi_gather_cursor){0, 0};
    ga->filled = 0;
    return HVD_OK;
}

static enum hvd_status whole_rows(const struct hvi_group *g, int32_t i, int64_t *dim0,
                                  struct hvi_err *err)
{
    const struct hvi_piece *p = &g->pieces[i];

    if (p->row > 0 && p->count % p->row != 0)
        return hvi_fail(err, HVD_EINVAL, "tensor %d: %lld elements in rows of %lld",
                        (int)i, (long long)p->count, (long long)p->row);
    *dim0 = p->row > 0 ? p->count / p->row : 0;
    return HVD_OK;
}

enum hvd_status hvi_gather_splits(const struct hvi_group *g, int32_t i, int64_t *rows,
                                  struct hvi_err *err)
{
    const struct hvi_piece *p = &g->pieces[i];
    int64_t dim0 = 0;
    int64_t sum = 0;
    enum hvd_status rc = whole_rows(g, i, &dim0, err);

    for (int32_t m = 0; rc == HVD_OK && m < g->nmembers; m++) {
        rows[m] = p->splits != NULL ? p->splits[m] : dim0 / g->nmembers;
        if (rows[m] < 0 || (p->row > 0 && rows[m] > dim0 - sum))
            return hvi_fail(err, HVD_EINVAL, "splits[%d] is %lld of %lld rows", (int)m,
                            (long long)rows[m], (long long)dim0);
        sum += rows[m];
    }
    return rc;
}

/* Rows this rank sends to every member, for one tensor. */
static enum hvd_status own_head(const struct hvi_gather *ga, int32_t i, int64_t *head,
                                struct hvi_err *err)
{
    enum hvd_status rc;

    if (ga->g->kind == HVD_ALLGATHER)
        return whole_rows(ga->g, i, head, err);
    rc = hvi_gather_splits(ga->g, i, head, err);
    ga->sent_elems[i] = 0;
    for (int32_t m = 0; rc == HVD_OK && m < ga->head_words; m++)
        ga->sent_elems[i] += head[m] * ga->g->pieces[i].row;
    return rc;
}

/* Bytes of all members' inputs, up to where the fold's own scratch begins. */
static size_t inputs_size(const struct hvi_gather *ga, const struct hvi_facts *f)
{
    size_t size = 0;

    if (__builtin_mul_overflow((size_t)f->total_bytes, (size_t)ga->g->nmembers,
                               &size) ||
        size > SIZE_MAX - FOLD_ALIGN_BYTES)
        return SIZE_MAX;
    return (size + FOLD_ALIGN_BYTES - 1) / FOLD_ALIGN_BYTES * FOLD_ALIGN_BYTES;
}

static size_t fold_size(const struct hvi_gather *ga)
{
    size_t most = 0;

    for (int32_t i = 0; i < ga->g->npieces; i++) {
        size_t size = hvi_adasum_scratch_size(ga->g->nmembers, ga->g->pieces[i].count,
                                              ga->g->dtype);

        most = size > most ? size : most;
    }
    return most;
}

/* Adasum: every member's whole tensors, one member after another, into scratch. */
static void place_scratch(struct hvi_gather *ga, struct hvi_facts *f)
{
    size_t total = (size_t)f->total_bytes;
    size_t size;

    if (__builtin_add_overflow(inputs_size(ga, f), fold_size(ga), &size) ||
        !grow((void **)&ga->scratch, &ga->scratch_cap, size, 1))
        f->no_memory = true;
    for (int32_t m = 0; m < ga->g->nmembers; m++) {
        int64_t at = (int64_t)total * m;

        ga->stream_bytes[m] = f->total_bytes;
        for (int32_t i = 0; i < ga->g->npieces; i++) {
            struct hvi_block *b = hvi_gather_block(ga, m, i);

            b->mine = ga->g->pieces[i].count;
            b->to = f->no_memory ? NULL : ga->scratch + at;
            at += b->mine * (int64_t)ga->elem_size;
        }
    }
}

static void copy_own(struct hvi_gather *ga)
{
    for (int32_t i = 0; i < ga->g->npieces; i++) {
        const struct hvi_piece *p = &ga->g->pieces[i];
        const struct hvi_block *b = hvi_gather_block(ga, ga->g->me, i);
        size_t size = (size_t)b->mine * ga->elem_size;
        const uint8_t *from;

        if (b->to == NULL || size == 0)
            continue;
        if (p->in == NULL) {
            memset(b->to, 0, size);
            continue;
        }
        from = (const uint8_t *)p->in + (size_t)b->before * ga->elem_size;
        if (from != b->to)
            hvi_reduce_copy(b->to, from, size, ga->stream);
    }
}

/* ---- heads */

/* `words` a tensor: for whom its rows are, or one: all of them for this member. */
static enum hvd_status read_head(struct hvi_gather *ga, int32_t member, int64_t offset,
                                 const uint8_t *data, int64_t size_bytes, int32_t words,
                                 struct hvi_err *err)
{
    int64_t word = offset / (int64_t)sizeof(int64_t);

    for (int64_t i = 0; i < size_bytes / (int64_t)sizeof(int64_t); i++, word++) {
        struct hvi_block *b = hvi_gather_block(ga, member, (int32_t)(word / words));
        int32_t to = words == 1 ? ga->g->me : (int32_t)(word % words);
        int64_t *sum = to < ga->g->me   ? &b->before
                       : to > ga->g->me ? &b->after
                                        : &b->mine;
        int64_t rows;

        memcpy(&rows, data + (size_t)i * sizeof(rows), sizeof(rows));
        if (rows < 0 || __builtin_add_overflow(*sum, rows, sum))
            return hvi_fail(err, HVD_EPROTO, "rank %d sent a head with %lld rows",
                            (int)ga->g->members[member], (long long)rows);
    }
    return HVD_OK;
}

enum hvd_status hvi_gather_head(struct hvi_gather *ga, int32_t member, int64_t offset,
                                const uint8_t *data, int64_t size_bytes,
                                struct hvi_err *err)
{
    return read_head(ga, member, offset, data, size_bytes,
                     ga->direct ? 1 : ga->head_words, err);
}

void hvi_gather_head_for(const struct hvi_gather *ga, int32_t member, int64_t *out)
{
    bool one = ga->head_words == 1;

    for (int32_t i = 0; i < ga->g->npieces; i++)
        out[i] = ga->head[(int64_t)i * ga->head_words + (one ? 0 : member)];
}

struct hvi_span hvi_gather_sends(const struct hvi_gather *ga, int32_t member,
                                 int32_t piece)
{
    const struct hvi_piece *p = &ga->g->pieces[piece];
    const int64_t *rows = ga->head + (int64_t)piece * ga->head_words;
    int64_t before = 0;

    if (ga->g->kind != HVD_ALLTOALL)
        return (struct hvi_span){0, p->count};
    for (int32_t m = 0; m < member; m++)
        before += rows[m];
    return (struct hvi_span){before * p->row, rows[member] * p->row};
}

/* ---- begin */

enum hvd_status hvi_gather_begin(struct hvi_gather *ga, const struct hvi_group *g,
                                 struct hvi_facts *f, struct hvi_err *err)
{
    enum hvd_status rc;
    int64_t own_bytes;

    ga->g = g;
    ga->elem_size = f->elem_size;
    ga->head_words = g->kind == HVD_ALLGATHER  ? 1
                     : g->kind == HVD_ALLTOALL ? g->nmembers
                                               : 0;
    ga->head_bytes = 0;
    rc = reserve(ga, err);
    for (int32_t i = 0; rc == HVD_OK && ga->head_words > 0 && i < g->npieces; i++)
        rc = own_head(ga, i, ga->head + (size_t)i * (size_t)ga->head_words, err);
    if (rc != HVD_OK)
        return rc;
    if (ga->head_words == 0) {
        place_scratch(ga, f);
        copy_own(ga);
        return HVD_OK;
    }
    own_bytes = (int64_t)g->npieces * ga->head_words * (int64_t)sizeof(int64_t);
    rc = read_head(ga, g->me, 0, (const uint8_t *)ga->head, own_bytes, ga->head_words,
                   err);
    ga->head_bytes =
        ga->direct ? (int64_t)g->npieces * (int64_t)sizeof(int64_t) : own_bytes;
    ga->stream_bytes[g->me] = ga->head_bytes;
    for (int32_t i = 0; i < g->npieces; i++)
        ga->stream_bytes[g->me] += ga->sent_elems[i] * (int64_t)ga->elem_size;
    return rc;
}

/* ---- the own stream */

static int64_t clamp(int64_t v, int64_t low, int64_t high)
{
    return v < low ? low : v > high ? high : v;
}

/* The rows this rank has for itself nobody reads: they may be anything. */
static void fill_run(const struct hvi_gather *ga, uint8_t *to, int64_t at, int64_t n)
{
    const uint8_t *in = ga->g->pieces[ga->own.piece].in;
    struct hvi_span skip = {0, 0};
    int64_t es = ga->elem_size;
    int64_t first, rest;

    if (ga->g->kind == HVD_ALLTOALL)
        skip = hvi_gather_sends(ga, ga->g->me, ga->own.piece);
    first = clamp(skip.first - at, 0, n);
    rest = clamp(skip.first + skip.count - at, first, n);
    hvi_reduce_copy(to, in + at * es, (size_t)(first * es), false);
    hvi_reduce_copy(to + rest * es, in + (at + rest) * es, (size_t)((n - rest) * es),
                    false);
}

static void fill_data(struct hvi_gather *ga, uint8_t *to, int64_t size_bytes)
{
    int64_t left = size_bytes / (int64_t)ga->elem_size;

    while (left > 0) {
        const struct hvi_piece *p = &ga->g->pieces[ga->own.piece];
        int64_t n = ga->sent_elems[ga->own.piece] - ga->own.at;
        size_t size;

        if (n == 0) {
            ga->own = (struct hvi_gather_cursor){ga->own.piece + 1, 0};
            continue;
        }
        n = n < left ? n : left;
        size = (size_t)n * ga->elem_size;
        if (p->in == NULL) /* joined: zeros */
            memset(to, 0, size);
        else
            fill_run(ga, to, ga->own.at, n);
        to += size;
        ga->own.at += n;
        left -= n;
    }
}

void hvi_gather_fill(struct hvi_gather *ga, uint8_t *to, int64_t size_bytes)
{
    int64_t head = ga->head_bytes - ga->filled;

    head = head < 0 ? 0 : head < size_bytes ? head : size_bytes;
    if (head > 0)
        memcpy(to, (const uint8_t *)ga->head + ga->filled, (size_t)head);
    fill_data(ga, to + head, size_bytes - head);
    ga->filled += size_bytes;
}

/* ---- all heads are here */

/* Rows to elements; all byte counts fit. */
static enum hvd_status scale_block(struct hvi_gather *ga, int32_t member, int32_t piece,
                                   struct hvi_err *err)
{
    struct hvi_block *b = hvi_gather_block(ga, member, piece);
    int64_t row = ga->g->pieces[piece].row;
    int64_t sum;
    int64_t bytes;

    if (__builtin_mul_overflow(b->before, row, &b->before) ||
        __builtin_mul_overflow(b->mine, row, &b->mine) ||
        __builtin_mul_overflow(b->after, row, &b->after) ||
        __builtin_add_overflow(b->before, b->mine, &sum) ||
        __builtin_add_overflow(sum, b->after, &sum) ||
        __builtin_mul_overflow(sum, (int64_t)ga->elem_size, &bytes) ||
        __builtin_add_overflow(ga->stream_bytes[member], bytes,
                               &ga->stream_bytes[member]))
        return hvi_fail(err, HVD_EPROTO, "rank %d sent a head with too many rows",
                        (int)ga->g->members[member]);
    return HVD_OK;
}

/* Rows of all members, and what they are in bytes. */
static enum hvd_status size_piece(struct hvi_gather *ga, int32_t piece, int64_t *out,
                                  struct hvi_err *err)
{
    const struct hvi_piece *p = &ga->g->pieces[piece];
    int64_t rows = 0;
    int64_t elems = 0;
    int64_t bytes = 0;
    enum hvd_status rc;

    for (int32_t m = 0; m < ga->g->nmembers; m++) {
        struct hvi_block *b = hvi_gather_block(ga, m, piece);

        if (p->rows != NULL)
            p->rows[m] = b->mine;
        if (__builtin_add_overflow(rows, b->mine, &rows))
            return hvi_fail(err, HVD_EPROTO, "rank %d sent a head with too many rows",
                            (int)ga->g->members[m]);
        rc = scale_block(ga, m, piece, err);
        if (rc != HVD_OK)
            return rc;
    }
    if (__builtin_mul_overflow(rows, p->row, &elems) ||
        __builtin_mul_overflow(elems, (int64_t)ga->elem_size, &bytes))
        return hvi_fail(err, HVD_EPROTO, "all ranks' %lld rows are too many bytes",
                        (long long)rows);
    *out = rows;
    return HVD_OK;
}

static void place_piece(struct hvi_gather *ga, int32_t piece, int64_t rows,
                        struct hvi_facts *f)
{
    const struct hvi_piece *p = &ga->g->pieces[piece];
    int64_t at = 0;

    hvi_group_alloc(ga->g, f, piece, p->rows, rows,
                    (size_t)rows * (size_t)p->row * ga->elem_size);
    for (int32_t m = 0; m < ga->g->nmembers; m++) {
        struct hvi_block *b = hvi_gather_block(ga, m, piece);

        b->to = p->out == NULL ? NULL : (uint8_t *)p->out + at;
        at += b->mine * (int64_t)ga->elem_size;
    }
}

enum hvd_status hvi_gather_place(struct hvi_gather *ga, struct hvi_facts *f,
                                 struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    for (int32_t m = 0; m < ga->g->nmembers; m++)
        ga->stream_bytes[m] = ga->head_bytes;
    for (int32_t i = 0; rc == HVD_OK && i < ga->g->npieces; i++)
        rc = size_piece(ga, i, &ga->all_rows[i], err);
    if (rc != HVD_OK)
        return rc;
    for (int32_t i = 0; i < ga->g->npieces; i++)
        place_piece(ga, i, ga->all_rows[i], f);
    copy_own(ga);
    return HVD_OK;
}

/* ---- others' data */

/* Copies what of the block's elements [at, at + n) is meant for this rank. */
static void take_run(const struct hvi_gather *ga, const struct hvi_block *b, int64_t at,
                     int64_t n, const uint8_t *data)
{
    int64_t first = at > b->before ? at : b->before;
    int64_t end = b->before + b->mine;

    end = at + n < end ? at + n : end;
    if (first >= end || b->to == NULL)
        return;
    hvi_reduce_copy(b->to + (size_t)(first - b->before) * ga->elem_size,
                    data + (size_t)(first - at) * ga->elem_size,
                    (size_t)(end - first) * ga->elem_size, ga->stream);
}

void hvi_gather_take(struct hvi_gather *ga, int32_t member, const uint8_t *data,
                     int64_t size_bytes)
{
    struct hvi_gather_cursor *c = &ga->cursors[member];
    int64_t left = size_bytes / (int64_t)ga->elem_size;

    while (left > 0) {
        const struct hvi_block *b = hvi_gather_block(ga, member, c->piece);
        int64_t n = b->before + b->mine + b->after - c->at;

        if (n == 0) {
            *c = (struct hvi_gather_cursor){c->piece + 1, 0};
            continue;
        }
        n = n < left ? n : left;
        take_run(ga, b, c->at, n, data);
        data += (size_t)n * ga->elem_size;
        c->at += n;
        left -= n;
    }
}

/* ---- adasum */

void hvi_gather_adasum(struct hvi_gather *ga, const struct hvi_facts *f)
{
    const struct hvi_group *g = ga->g;
    const void *src[HVD_RANKS_MAX];
    int64_t at = 0;

    for (int32_t i = 0; i < g->npieces && !f->no_memory; i++) {
        const struct hvi_piece *p = &g->pieces[i];

        for (int32_t m = 0; m < g->nmembers; m++) {
            void *in = ga->scratch + (size_t)m * (size_t)f->total_bytes + (size_t)at;

            hvi_reduce_scale(in, in, p->count, g->dtype, g->prescale);
            src[m] = in;
        }
        at += p->count * (int64_t)ga->elem_size;
        if (p->out == NULL || p->count == 0)
            continue;
        hvi_adasum_fold(p->out, src, g->nmembers, p->count, g->dtype,
                        ga->scratch + inputs_size(ga, f));
        hvi_reduce_scale(p->out, p->out, p->count, g->dtype, f->post);
    }
}
