#include "worker/plane/cpu/spin.h"

#include <unistd.h>

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
    *s = (struct hvi_spin){.yield = outnumber_cores(nranks), .us = HVI_SPIN_MAX_US};
}
