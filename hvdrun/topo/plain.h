/** A host of one NUMA node, from a few files of the kernel: what hwloc needs hundreds for. */
#ifndef HVI_TOPO_PLAIN_H
#define HVI_TOPO_PLAIN_H

#include <stdbool.h>

#include "hvdrun/topo/topo.h"

/**
 * As hvi_topo_look() without devices, but for the sockets (-1), where it is enough to know
 * that there is one NUMA node.
 *
 * @param root  before the kernel's paths, "" but in tests
 *
 * Returns  false: hwloc has to look (more nodes, files that are not there, or the user has
 *          told hwloc something by HWLOC_* variables), and *out is empty.
 */
bool hvi_plain_look(const char *root, const cpu_set_t *inside, struct hvi_topo *out);

#endif
