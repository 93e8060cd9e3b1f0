#include "hvdrun/topo/topo.h"

#include <sched.h>
#include <unistd.h>

const char *hvi_topo_shares(enum hvi_topo_bind kind, const cpu_set_t *inherited, int n,
                            cpu_set_t *out)
{
    (void)kind;
    (void)inherited;
    (void)n;
    (void)out;
    return "built without hwloc";
}

int hvi_topo_cores(void)
{
    cpu_set_t set;
    long n;

    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) > 0)
        return CPU_COUNT(&set);
    n = sysconf(_SC_NPROCESSORS_ONLN); /* more processors than cpu_set_t holds */
    return n > 0 ? (int)n : 1;
}
