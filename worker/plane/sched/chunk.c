#include "worker/plane/sched/chunk.h"

#include <limits.h>
#include <stdlib.h>

#include "proto/base/assert.h"
#include "worker/plane/plane.h"

static enum hvd_status reserve(struct hvi_chunks *c, int32_t npieces,
                               struct hvi_err *err)
{
    int64_t *starts;

    HVI_ASSERT(npieces >= 0 && npieces < INT32_MAX);
    if (npieces + 1 <= c->cap)
        return HVD_OK;
    starts = malloc(((size_t)npieces + 1) * sizeof(*starts));
    if (starts == NULL)
        return hvi_fail(err, HVD_ENOMEM, "no memory to plan %d tensors", (int)npieces);
    free(c->starts);
    c->starts = starts;
    c->cap = npieces + 1;
    return HVD_OK;
}

/* Forget the old plan before the new one is known to be good. */
static enum hvd_status plan_begin(struct hvi_chunks *c, int32_t npieces,
                                  uint32_t elem_size, int64_t chunk_elems,
                                  struct hvi_err *err)
{
    enum hvd_status rc;

    HVI_ASSERT(chunk_elems > 0);
    HVI_ASSERT(elem_size == 1 || elem_size == 2 || elem_size == 4 || elem_size == 8);
    c->npieces = 0;
    c->total = 0;
    c->nchunks = 0;
    c->elem_size = elem_size;
    c->chunk_elems = chunk_elems;
    rc = reserve(c, npieces, err);
    if (rc == HVD_OK)
        c->starts[0] = 0;
    return rc;
}

static enum hvd_status plan_add(struct hvi_chunks *c, int64_t count,
                                struct hvi_err *err)
{
    int64_t sum;

    if (count < 0)
        return hvi_fail(err, HVD_EINVAL, "tensor %d of the group has %lld elements",
                        (int)c->npieces, (long long)count);
    if (__builtin_add_overflow(c->total, count, &sum) ||
        sum > INT64_MAX / (int64_t)c->elem_size)
        return hvi_fail(err, HVD_ELIMIT,
                        "tensors 0 to %d of the group have too many bytes",
                        (int)c->npieces);
    c->total = sum;
    c->npieces++;
    c->starts[c->npieces] = sum;
    return HVD_OK;
}

static void plan_end(struct hvi_chunks *c)
{
    c->nchunks = c->total / c->chunk_elems + (c->total % c->chunk_elems != 0);
}

enum hvd_status hvi_chunks_plan(struct hvi_chunks *c, const struct hvi_piece *pieces,
                                int32_t npieces, uint32_t elem_size,
                                int64_t chunk_elems, struct hvi_err *err)
{
    enum hvd_status rc = plan_begin(c, npieces, elem_size, chunk_elems, err);

    for (int32_t i = 0; rc == HVD_OK && i < npieces; i++)
        rc = plan_add(c, pieces[i].count, err);
    if (rc == HVD_OK)
        plan_end(c);
    return rc;
}

enum hvd_status hvi_chunks_plan_counts(struct hvi_chunks *c, const int64_t *counts,
                                       int32_t npieces, uint32_t elem_size,
                                       int64_t chunk_elems, struct hvi_err *err)
{
    enum hvd_status rc = plan_begin(c, npieces, elem_size, chunk_elems, err);

    for (int32_t i = 0; rc == HVD_OK && i < npieces; i++)
        rc = plan_add(c, counts[i], err);
    if (rc == HVD_OK)
        plan_end(c);
    return rc;
}

void hvi_chunks_fini(struct hvi_chunks *c)
{
    if (c == NULL)
        return;
    free(c->starts);
    *c = (struct hvi_chunks){0};
}

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

struct hvi_span hvi_chunks_chunk(const struct hvi_chunks *c, int64_t chunk)
{
    int64_t first;

    HVI_ASSERT(chunk >= 0 && chunk < c->nchunks);
    first = chunk * c->chunk_elems;
    return (struct hvi_span){first, min_i64(c->chunk_elems, c->total - first)};
}

int64_t hvi_chunks_through(const struct hvi_chunks *c, int64_t chunks)
{
    return chunks == c->nchunks ? c->total : chunks * c->chunk_elems;
}

struct hvi_span hvi_chunks_slice(const struct hvi_chunks *c, int64_t chunk,
                                 int32_t nmembers, int32_t member)
{
    struct hvi_span all = hvi_chunks_chunk(c, chunk);
    struct hvi_span s = hvi_slice(all.count, c->elem_size, nmembers, member);

    s.first += all.first;
    return s;
}

/* Part i of n units: the first n % nparts parts get one more. */
static struct hvi_span split(int64_t n, int32_t nparts, int32_t i)
{
    int64_t each = n / nparts;
    int64_t more = n % nparts;

    return (struct hvi_span){i * each + min_i64(i, more), each + (i < more)};
}

struct hvi_span hvi_slice(int64_t count, uint32_t elem_size, int32_t nparts,
                          int32_t part)
{
    int64_t unit = HVI_SLICE_ALIGN_BYTES / (int64_t)elem_size;
    struct hvi_span s;
    int64_t end;

    HVI_ASSERT(count >= 0 && nparts > 0 && part >= 0 && part < nparts);
    s = split(count / unit + (count % unit != 0), nparts, part);
    /* in this order nothing overflows: a begin of at most `count` elements is exact */
    s.first = s.first > count / unit ? count : s.first * unit;
    end = s.count > (count - s.first) / unit ? count : s.first + s.count * unit;
    return (struct hvi_span){s.first, end - s.first};
}

/* The last piece that begins at or before virtual element `at`: the one that holds it,
 * because empty pieces before it begin at the same place. */
static int32_t find_piece(const struct hvi_chunks *c, int64_t at)
{
    int32_t lo = 0;
    int32_t hi = c->npieces; /* starts[lo] <= at < starts[hi] */

    while (hi - lo > 1) {
        int32_t mid = lo + (hi - lo) / 2;

        if (c->starts[mid] <= at)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

void hvi_runs_begin(struct hvi_runs *it, const struct hvi_chunks *c, int64_t a,
                    int64_t b)
{
    HVI_ASSERT(a >= 0 && a <= b && b <= c->total);
    *it = (struct hvi_runs){.c = c, .at = a, .end = b};
    if (a < b)
        it->piece = find_piece(c, a);
}

bool hvi_runs_next(struct hvi_runs *it, struct hvi_run *out)
{
    const int64_t *starts = it->c->starts;

    if (it->at >= it->end)
        return false;
    while (starts[it->piece + 1] <= it->at)
        it->piece++;
    out->piece = it->piece;
    out->offset = it->at - starts[it->piece];
    out->count = min_i64(it->end, starts[it->piece + 1]) - it->at;
    out->at = it->at;
    it->at += out->count;
    return true;
}

struct hvi_turn hvi_turn_at(int64_t nchunks, int64_t window, int64_t i)
{
    int64_t head = min_i64(nchunks, window);
    int64_t pairs = nchunks - head;

    if (i < head)
        return (struct hvi_turn){i, false};
    i -= head;
    if (i >= 2 * pairs)
        return (struct hvi_turn){i - pairs, true};
    return i % 2 == 0 ? (struct hvi_turn){i / 2, true}
                      : (struct hvi_turn){head + i / 2, false};
}

int64_t hvi_turn_of_back(int64_t nchunks, int64_t window, int64_t chunk)
{
    int64_t head = min_i64(nchunks, window);

    return chunk < nchunks - head ? head + 2 * chunk : nchunks + chunk;
}

int64_t hvi_turns_out(int64_t nchunks, int64_t window, int64_t i)
{
    int64_t head = min_i64(nchunks, window);

    return i <= head ? i : min_i64(nchunks, head + (i - head) / 2);
}

struct hvi_span hvi_rows_split(int64_t dim0, int32_t nmembers, int32_t member)
{
    HVI_ASSERT(dim0 >= 0 && nmembers > 0 && member >= 0 && member < nmembers);
    return split(dim0, nmembers, member);
}
