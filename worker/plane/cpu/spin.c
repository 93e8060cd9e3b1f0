#include "worker/plane/cpu/spin.h"

#include <unistd.h>

#include "proto/base/env.h"

/* A single core in the mask is a rank bound to its own; what more ranks than cores in
 * the mask mean then, the spins themselves will tell. */
static bool outnumber_cores(int nranks)
{
    cpu_set_t set;
    int n = 1;

    if (sched_getaffinity(0, sizeof(set), &set) == 0)
        n = CPU_COUNT(&set);
    return nranks > sysconf(_SC_NPROCESSORS_ONLN) || (n > 1 && nranks > n);
}

void hvi_spin_init(struct hvi_spin *s, int nranks)
{
    int64_t us = HVI_SPIN_MAX_US;

    hvi_env_int("SPIN_US", HVI_SPIN_MAX_US, 0, HVI_SPIN_LIMIT_US, &us, NULL);
    *s = (struct hvi_spin){
        .yield = outnumber_cores(nranks), .us = (int)us, .max = (int)us};
}
