/** What an x86-64 CPU may have. Compiled for the baseline: it runs before anyone knows.
 */
#include "worker/plane/reduce/isa.h"

static bool always(void)
{
    return true;
}

static bool has_avx2(void)
{
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
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
