/**
 * Adasum of vectors that are all at hand: pure arithmetic, no I/O. Every rank computes
 * the whole from the same inputs in the same order, so the results are equal bit for
 * bit.
 *
 * Two vectors combine as a(1 - a.b / 2a.a) + b(1 - a.b / 2b.b): orthogonal ones add,
 * parallel ones average. Where a or b is the zero vector it is the plain sum. More
 * combine as a binary tree, recursive halving's: neighbours at distance 1 first, then
 * 2, 4, ... One tensor at a time: over a fused buffer the dot products would mix
 * tensors.
 *
 * Source  DESIGN.md section 4; Maleki et al., "Scaling Distributed Training with
 * Adaptive Summation", MLSys 2021, section 3.
 */
#ifndef HVI_PLANE_SCHED_ADASUM_H
#define HVI_PLANE_SCHED_ADASUM_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

/** HVD_OK, or HVD_EUNSUPPORTED with the reason: nranks is not a power of two, dtype is
 * not f16, f32 or f64. That the set is the global one is for the caller to check. */
enum hvd_status hvi_adasum_check(int nranks, uint32_t dtype, struct hvi_err *err);

/** Bytes of scratch for hvi_adasum_fold: log2(nsrc) vectors; 0 for one source. SIZE_MAX
 *  when that overflows. */
size_t hvi_adasum_scratch_size(int nsrc, int64_t count, uint32_t dtype);

/**
 * out = Adasum of src[0] ... src[nsrc - 1].
 *
 * @param out      [count]; may be one of src
 * @param src      [nsrc], a power of two; each [count] elements, NULL = zeros
 * @param scratch  hvi_adasum_scratch_size() bytes, 8-byte aligned, caller-owned;
 * contents before and after do not matter
 *
 * Dot products and combining are in double; between the levels f16 and f32 vectors are
 * f32, f64 ones double. f16 is rounded to f16 once, at the end.
 */
void hvi_adasum_fold(void *out, const void *const *src, int nsrc, int64_t count,
                     uint32_t dtype, void *scratch);

#endif
