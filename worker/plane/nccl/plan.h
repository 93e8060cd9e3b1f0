/**
 * How a fused allreduce is cut, pure arithmetic, equal on every rank (also on one that has
 * joined and has no tensors of its own): into *rounds* of at most the fusion buffer's
 * size, in the order of announcement, so that a round starts as soon as its own tensors
 * are ready; a round has *parts*, ranges of one tensor. Large parts are reduced where
 * they lie, small ones and those that change their type are packed into one range at the
 * begin of the buffer.
 *
 * A group larger than HVI_FIRST_BYTES + the buffer begins with a short round: its
 * reduction overlaps with the rest of a backward pass early.
 */
#ifndef HVI_PLANE_NCCL_PLAN_H
#define HVI_PLANE_NCCL_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

#define HVI_FIRST_BYTES (1024 * 1024)
#define HVI_ROUND_BYTES (25 * 1024 * 1024) /* the fusion buffer */
#define HVI_DIRECT_BYTES                                                               \
    (1024 * 1024) /* parts from this size, or a fourth of the buffer, are not packed */
#define HVI_PART_ALIGN 16 /* of parts in the buffer, bytes */

struct hvi_part {
    int32_t piece;
    int64_t first, count; /* elements of the piece */
    bool packed;          /* else reduced where it lies */
    size_t offset; /* in the buffer; of a part that lies elsewhere too: a rank that
                           * has joined uses that place */
};

struct hvi_round {
    int32_t first_part, nparts;
    int64_t
        packed_elems; /* of the range [0, packed_elems) in the buffer, with padding */
};

struct hvi_nccl_plan {
    struct hvi_part *parts;
    struct hvi_round *rounds;
    int32_t nparts, nrounds, cap_parts, cap_rounds;
};

struct hvi_piece;

/**
 * @param elem_size   bytes of an element as it is reduced: 1, 2, 4 or 8
 * @param cast        its type changes on the way: every part is packed
 * @param buffer_bytes  of the fusion buffer, a multiple of 16, at least 1024
 *
 * plan is zeroed before the first use and keeps its memory. HVD_ENOMEM.
 */
enum hvd_status hvi_nccl_plan(struct hvi_nccl_plan *plan,
                              const struct hvi_piece *pieces, int32_t npieces,
                              uint32_t elem_size, bool cast, size_t buffer_bytes,
                              struct hvi_err *err);
void hvi_nccl_plan_fini(struct hvi_nccl_plan *plan);

#endif
