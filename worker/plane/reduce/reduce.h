/**
 * Element loops: fold, scale, cast. Pure functions over memory; the best code for this
 * CPU is chosen at run time. The result never depends on which code ran, on chunking or
 * alignment: one fold rule (below), element by element.
 *
 * The fold (DESIGN.md section 4). Within a host: left fold over the sources in order;
 * f16 and bf16 are widened, scaled and folded in f32 and rounded once at the end; f32
 * and f64 in their own type; integers wrap; bool as hvd.h says. `prescale` multiplies
 * every source element first, `postscale` the folded value before the last rounding
 * (integers: as double, then truncated towards zero, saturating).
 *
 * NaN: any operation with a NaN gives NaN, MIN and MAX too, and the NaN it gives is
 * always the positive quiet one without payload (0x7fc00000 in f32): CPUs and compilers
 * disagree about payloads. A single source that is not scaled is copied, whatever its
 * bits. MIN and MAX of 0 and -0 keep the earlier source.
 */
#ifndef HVI_PLANE_REDUCE_REDUCE_H
#define HVI_PLANE_REDUCE_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

/**
 * HVD_OK, or why this pair is refused: the written table of (dtype, op). AVERAGE of
 * bool, scaling of bool: HVD_EUNSUPPORTED. ADASUM only f16, f32, f64 (and see adasum.h,
 * which folds it). Scaling an integer by infinity or NaN: HVD_EINVAL.
 */
enum hvd_status hvi_reduce_check(uint32_t dtype, uint32_t op, double prescale,
                                 double postscale, struct hvi_err *err);

/**
 * out[i] = post * fold(op, pre * src[0][i], pre * src[1][i], ...), i < count.
 *
 * @param out     [count], may be the same as any src[k] (exactly, not shifted)
 * @param src     [nsrc] pointers to [count] elements; NULL = the neutral element
 * (skipped)
 * @param pre     multiplies every source; 1.0 = not at all
 * @param staged  sources are already prescaled (their stagers did it, with
 *                hvi_reduce_scale): pre applies only to src[own], which is rounded as
 * the stagers rounded theirs, so that the result does not depend on who folds; own < 0:
 * to none. staged == false: pre applies to all, 16-bit types are not rounded after it.
 * @param stream  use non-temporal stores for out where the CPU has them
 * op AVERAGE folds as SUM (the caller puts 1/size into post). All NULL: neutral
 * element.
 */
void hvi_reduce_fold(void *out, const void *const *src, int nsrc, int64_t count,
                     uint32_t dtype, uint32_t op, double pre, bool staged, int own,
                     double post, bool stream);

/** The same (staged == false, out with ordinary stores), and also[k][i] = out[i] for nalso
 *  copies, with non-temporal stores when also_stream. Each of them is one of the sources
 *  (exactly, not shifted) or no part of any, and no part of out. For a result that is
 *  needed more than once: out first, because where it replaces a source its lines are in
 *  the cache already. */
void hvi_reduce_fold_to_all(void *out, void *const *also, int nalso,
                            const void *const *src, int nsrc, int64_t count,
                            uint32_t dtype, uint32_t op, double pre, double post,
                            bool also_stream);

/** out[i] = in[i] * scale in the type's rule, one rounding; in == out allowed;
 * scale 1.0 is a copy. What a rank does when it stages its input. */
void hvi_reduce_scale(void *out, const void *in, int64_t count, uint32_t dtype,
                      double scale);

/** memcpy, with non-temporal stores when stream and the CPU has them. */
void hvi_reduce_copy(void *out, const void *in, size_t size_bytes, bool stream);

/** Fill with op's neutral element (0, 1, largest, smallest). */
void hvi_reduce_neutral(void *out, int64_t count, uint32_t dtype, uint32_t op);

/** Name of the code in use: "avx512", "avx2", "neon", "scalar".
 * HVD_SIMD=scalar|avx2|avx512 in the environment forces one (tests compare them bit for
 * bit). */
const char *hvi_reduce_isa(void);
/** Of this build; the processor may not have it. */
bool hvi_reduce_knows(const char *isa);
/** All of them, "avx2, scalar". Not for several threads at once. */
const char *hvi_reduce_names(void);
/** For tests: use this code from now on; HVD_EUNSUPPORTED if the CPU lacks it. */
enum hvd_status hvi_reduce_force(const char *isa);

/** f16 / bf16 <-> f32, round to nearest even, NaN kept quiet. */
float hvi_f16_to_f32(uint16_t h);
uint16_t hvi_f32_to_f16(float f);
float hvi_bf16_to_f32(uint16_t b);
uint16_t hvi_f32_to_bf16(float f);
/** The same for many f16, at any address; every NaN narrows to 0x7e00. */
void hvi_reduce_widen_f16(float *out, const void *in, int64_t count);
void hvi_reduce_narrow_f16(void *out, const float *in, int64_t count);

#endif
