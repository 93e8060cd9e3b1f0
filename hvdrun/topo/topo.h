/** What this host has. The only door to hwloc: topo_hwloc.c or topo_flat.c is built. */
#ifndef HVI_TOPO_TOPO_H
#define HVI_TOPO_TOPO_H

/**
 * Cores this process may use, at least 1: physical cores inside the inherited cpuset
 * with hwloc, else processors of the affinity mask.
 *
 * Blocks  for the time hwloc needs to look (milliseconds).
 */
int hvi_topo_cores(void);

#endif
