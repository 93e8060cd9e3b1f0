/** What an x86-64 CPU may have. Compiled for the baseline: it runs before anyone knows.
 */
#include "worker/plane/reduce/isa.h"

#include <cpuid.h>

static bool always(void)
{
    return true;
}

/* __builtin_cpu_supports() knows this one in newer compilers only. The system saves AVX
 * registers if avx2 is supported. */
static bool has_f16c(void)
{
    unsigned a, b, c, d;

    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && has_f16c();
}

static bool has_avx512(void)
{
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           has_avx2();
}

const struct hvi_reduce_candidate hvi_reduce_candidates[] = {
    {&hvi_reduce_avx512, has_avx512},
    {&hvi_reduce_avx2, has_avx2},
    {&hvi_reduce_scalar, always},
};
const int hvi_reduce_ncandidates = 3;
