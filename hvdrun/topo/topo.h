/** What this host has. The only door to hwloc: topo_hwloc.c or topo_flat.c is built. */
#ifndef HVI_TOPO_TOPO_H
#define HVI_TOPO_TOPO_H

#include <sched.h>

/**
 * Cores this process may use, at least 1: physical cores inside the inherited cpuset
 * with hwloc, else processors of the affinity mask.
 *
 * Blocks  for the time hwloc needs to look (milliseconds).
 */
int hvi_topo_cores(void);

enum hvi_topo_bind { HVI_TOPO_NONE = 0, HVI_TOPO_CORE, HVI_TOPO_NUMA, HVI_TOPO_SOCKET };

/** As --bind-to has it. */
static inline const char *hvi_topo_bind_word(enum hvi_topo_bind kind)
{
    static const char *const words[] = {"none", "core", "numa", "socket"};

    return words[kind];
}

/**
 * Cuts the inherited processors into n shares: whole cores one after another, or all of
 * the NUMA node or socket where such a run of cores begins. Never outside `inherited`.
 *
 * @param out  [n]; means nothing after a failure
 *
 * Returns  NULL; else why not (a constant text): fewer cores than n, no hwloc, ...
 * Blocks   for the time hwloc needs to look.
 */
const char *hvi_topo_shares(enum hvi_topo_bind kind, const cpu_set_t *inherited, int n,
                            cpu_set_t *out);

#endif
