/** Every 64-bit Arm CPU has NEON. */
#include "worker/plane/reduce/isa.h"

static bool always(void)
{
    return true;
}

const struct hvi_reduce_candidate hvi_reduce_candidates[] = {
    {&hvi_reduce_neon, always},
    {&hvi_reduce_scalar, always},
};
const int hvi_reduce_ncandidates = 2;
