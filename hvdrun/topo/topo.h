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

/** A core: those of its processors that may be used, and where it is. */
struct hvi_topo_core {
    cpu_set_t cpus;   /* not empty */
    int numa, socket; /* numbers that tell places apart; -1: unknown */
};

/** A host, as far as some processors reach. Free with hvi_topo_fini(). */
struct hvi_topo {
    struct hvi_topo_core *core; /* [ncores] neighbours stand together */
    int ncores;
    cpu_set_t *near; /* [npci] the processors next to that device; empty: unknown */
    int npci;
};

/**
 * Looks at this host.
 *
 * @param inside  nothing beyond these processors is in the result
 * @param pci     [npci] devices ("0000:3b:00.0"; "" for one that is not known) whose
 *                place is wanted; without any, no devices are looked at, which is faster
 *
 * Returns  NULL; else why not (a constant text), and *out is empty.
 * Blocks   for the time hwloc needs to look.
 */
const char *hvi_topo_look(const cpu_set_t *inside, const char *const *pci, int npci,
                          struct hvi_topo *out);
/** Accepts what is empty. */
void hvi_topo_fini(struct hvi_topo *t);

#endif
