/**
 * Who works on which elements: pure arithmetic, no I/O. The pieces of a group, one
 * after another, are one *virtual* array; it is cut into chunks, a chunk into one slice
 * a member, and a slice back into contiguous runs inside pieces (the gather list that
 * is streamed through slots instead of a fusion buffer, DESIGN.md section 4). Every
 * count is in elements. All ranks compute the same plan from the same counts.
 *
 *     struct hvi_chunks plan = {0};            (once; reused by every group)
 *     rc = hvi_chunks_plan(&plan, pieces, npieces, elem_size, chunk_elems, err);
 *     for (int64_t c = 0; c < plan.nchunks; c++) {
 *         struct hvi_span s = hvi_chunks_slice(&plan, c, nmembers, me);
 *         hvi_runs_begin(&it, &plan, s.first, s.first + s.count);
 *         while (hvi_runs_next(&it, &run))
 *             ... pieces[run.piece].in + run.offset * elem_size, run.count elements
 *     }
 *     hvi_chunks_fini(&plan);
 */
#ifndef HVI_PLANE_SCHED_CHUNK_H
#define HVI_PLANE_SCHED_CHUNK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

struct hvi_piece; /* worker/plane/plane.h */

/** Slices begin at multiples of this many bytes from the begin of their chunk, so that
 *  two members never write one cache line of a slot. */
#define HVI_SLICE_ALIGN_BYTES 64

/** Elements [first, first + count). */
struct hvi_span {
    int64_t first, count;
};

/** A plan. Zero it before the first use; memory is kept from plan to plan. */
struct hvi_chunks {
    int32_t npieces;
    uint32_t elem_size;  /* bytes */
    int64_t total;       /* elements of all pieces */
    int64_t chunk_elems; /* elements of every chunk but the last */
    int64_t nchunks;     /* 0 when total is 0 */
    int64_t *starts;     /* [npieces + 1] first virtual element of each piece; owned */
    int32_t cap;         /* entries `starts` has room for */
};

/**
 * Lay pieces (their `count`) one after another and cut the whole into chunks.
 *
 * @param pieces       [npieces] read during the call only; counts of 0 are allowed
 * @param elem_size    bytes of one element: 1, 2, 4 or 8
 * @param chunk_elems  > 0; take a multiple of 64 / elem_size
 *
 * Returns  HVD_OK; HVD_EINVAL (a negative count, its index is named); HVD_ELIMIT (the
 * sum or its bytes overflow); HVD_ENOMEM. On failure the old plan is gone.
 */
enum hvd_status hvi_chunks_plan(struct hvi_chunks *c, const struct hvi_piece *pieces,
                                int32_t npieces, uint32_t elem_size,
                                int64_t chunk_elems, struct hvi_err *err);
/** The same from bare counts [npieces]: reducescatter plans what one member keeps. */
enum hvd_status hvi_chunks_plan_counts(struct hvi_chunks *c, const int64_t *counts,
                                       int32_t npieces, uint32_t elem_size,
                                       int64_t chunk_elems, struct hvi_err *err);
void hvi_chunks_fini(struct hvi_chunks *c); /* accepts NULL and a zeroed struct */

/** Virtual elements of chunk `chunk` (0 <= chunk < nchunks). */
struct hvi_span hvi_chunks_chunk(const struct hvi_chunks *c, int64_t chunk);
/** Elements of the first so many chunks (0 <= chunks <= nchunks). */
int64_t hvi_chunks_through(const struct hvi_chunks *c, int64_t chunks);
/** Virtual elements that `member` of nmembers folds of this chunk: hvi_slice() inside
 * it. */
struct hvi_span hvi_chunks_slice(const struct hvi_chunks *c, int64_t chunk,
                                 int32_t nmembers, int32_t member);

/**
 * Slice `part` of `count` elements cut into nparts near-equal slices, each but the last
 * non-empty one a multiple of 64 bytes (sizes differ by at most 64 bytes, the first
 * ones are the longer; few elements leave the last slices empty). `first` counts from
 * 0.
 */
struct hvi_span hvi_slice(int64_t count, uint32_t elem_size, int32_t nparts,
                          int32_t part);

/** A contiguous part of one piece. */
struct hvi_run {
    int32_t piece;  /* index in pieces */
    int64_t offset; /* elements from the begin of the piece */
    int64_t count;  /* > 0 */
    int64_t at;     /* virtual element of the first one */
};

/** Walks virtual elements [a, b) in order; borrows the plan. Pieces of no elements are
 *  skipped. Finding the first piece takes log(npieces) steps, each next one is O(1). */
struct hvi_runs {
    const struct hvi_chunks *c;
    int32_t piece;
    int64_t at, end;
};
/** 0 <= a <= b <= total. */
void hvi_runs_begin(struct hvi_runs *it, const struct hvi_chunks *c, int64_t a,
                    int64_t b);
/** false: nothing left (*out is untouched). */
bool hvi_runs_next(struct hvi_runs *it, struct hvi_run *out);

/**
 * Steps that go there and back, in one order known to all: chunk k comes back only after
 * `window` chunks went out (fewer at the end), so what is under way is bounded. There are
 * 2 * nchunks of them: out 0 .. window - 1, back 0, out window, back 1, ...
 */
struct hvi_turn {
    int64_t chunk;
    bool back;
};
struct hvi_turn hvi_turn_at(int64_t nchunks, int64_t window, int64_t i);
/** The step in which a chunk comes back. */
int64_t hvi_turn_of_back(int64_t nchunks, int64_t window, int64_t chunk);
/** Chunks that went out in the first i of these steps. */
int64_t hvi_turns_out(int64_t nchunks, int64_t window, int64_t i);

/** reducescatter: the rows that `member` keeps of dim0 rows; the first dim0 % nmembers
 *  members get one more. */
struct hvi_span hvi_rows_split(int64_t dim0, int32_t nmembers, int32_t member);

#endif
