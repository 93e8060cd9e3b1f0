/** A machine for which nothing special was written. */
#include "worker/plane/reduce/isa.h"

static bool always(void)
{
    return true;
}

const struct hvi_reduce_candidate hvi_reduce_candidates[] = {
    {&hvi_reduce_scalar, always}};
const int hvi_reduce_ncandidates = 1;
