/**
 * Inside the reduce room only: the primitive loops that exist once per instruction set.
 * loops.inc writes them in plain C; scalar.c, x86/ and arm64/ compile that for one
 * instruction set each. Everything that decides (blocks, order, scaling) is in
 * reduce.c, once, so that the sets cannot differ in more than speed.
 */
#ifndef HVI_PLANE_REDUCE_ISA_H
#define HVI_PLANE_REDUCE_ISA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

/** What a (dtype, op) pair does to two elements. The table of pairs is in reduce.c. */
enum hvi_fold_rule {
    HVI_FOLD_REFUSED = 0,
    HVI_FOLD_ADD,
    HVI_FOLD_MUL,
    HVI_FOLD_LOWEST,  /* floats: a NaN wins over every number */
    HVI_FOLD_HIGHEST, /* likewise */
    HVI_FOLD_OR,      /* bool: any byte but 0 is true */
    HVI_FOLD_AND,
    HVI_FOLD_ADASUM, /* not an element loop: worker/plane/sched/adasum.h */
    HVI_FOLD_RULE_COUNT
};

/** Sources that one fold loop takes. */
#define HVI_FOLD_GROUP 4

/** acc[i] = s[0][i] op ... op s[n - 1][i], 2 <= n <= HVI_FOLD_GROUP. acc may be one of
 * s. A NaN result is always the one positive quiet NaN without payload: which payload
 * an addition keeps differs between CPUs and compilers. */
typedef void hvi_fold_fn(void *acc, const void *const *s, int n, int64_t count);
/** out[i] = in[i] * scale in the type's rule; in place allowed. NaN as above. */
typedef void hvi_scale_fn(void *out, const void *in, int64_t count, double scale);
/** 16-bit float <-> f32, to nearest even; narrow makes NaN as above. */
typedef void hvi_widen_fn(float *out, const void *in, int64_t count);
typedef void hvi_narrow_fn(void *out, const float *in, int64_t count);

struct hvi_reduce_isa {
    const char *name;
    hvi_fold_fn
        *fold[HVD_DTYPE_COUNT][HVI_FOLD_RULE_COUNT]; /* NULL: f16, bf16, refused */
    hvi_scale_fn *scale[HVD_DTYPE_COUNT];            /* NULL: f16, bf16, bool */
    hvi_widen_fn *widen[HVD_DTYPE_COUNT];            /* f16 and bf16 only */
    hvi_narrow_fn *narrow[HVD_DTYPE_COUNT];
    /** memcpy past the caches; ordered before later stores only after fence(). NULL:
     * the CPU has no such stores. */
    void (*stream)(void *out, const void *in, size_t size_bytes);
    void (*fence)(void); /* set exactly when stream is */
};

/** What this build knows, best first, the last one is "scalar" and always runs. */
struct hvi_reduce_candidate {
    const struct hvi_reduce_isa *isa;
    bool (*supported)(void); /* by this CPU */
};
/** From exactly one of x86/isas.c, arm64/isas.c, other/isas.c. */
extern const struct hvi_reduce_candidate hvi_reduce_candidates[];
extern const int hvi_reduce_ncandidates;

extern const struct hvi_reduce_isa hvi_reduce_scalar;
extern const struct hvi_reduce_isa hvi_reduce_avx2;
extern const struct hvi_reduce_isa hvi_reduce_avx512;
extern const struct hvi_reduce_isa hvi_reduce_neon;

#endif
