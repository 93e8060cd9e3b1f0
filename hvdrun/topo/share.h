/** Which processors each rank of a host gets. Pure. */
#ifndef HVI_TOPO_SHARE_H
#define HVI_TOPO_SHARE_H

#include <stdbool.h>

#include "hvdrun/topo/topo.h"

/* In the order of the words of --bind-to; also on the wire (JobSpec.bind_to). */
enum hvi_bind {
    HVI_BIND_NONE = 0,
    HVI_BIND_CORE,
    HVI_BIND_NUMA,
    HVI_BIND_SOCKET,
    HVI_BIND_GPU,
    HVI_BIND_AUTO, /* nobody said; see hvi_share_cut() */
    HVI_BIND_KINDS
};

/* In the order of the words of --map-by; also on the wire (JobSpec.map_by) */
enum hvi_map {
    HVI_MAP_SLOT = 0, /* one after another over all cores, evenly */
    HVI_MAP_CORE,     /* each begins where the one before ends */
    HVI_MAP_NUMA,     /* round the NUMA nodes */
    HVI_MAP_SOCKET,   /* round the sockets */
    HVI_MAP_AUTO,     /* nobody said: near the rank's GPU, else as SLOT */
    HVI_MAP_KINDS
};

/** As --bind-to has it. */
const char *hvi_bind_word(enum hvi_bind kind);
const char *hvi_map_word(enum hvi_map kind);

struct hvi_share_wish {
    int nranks;
    enum hvi_bind bind_to;
    enum hvi_map map_by;
    int cores;              /* of each rank; 0: its equal share */
    int ngpus;              /* that the ranks can see here, 0: none, or not known */
    const int *gpu;         /* [nranks] of topo->near; -1: no own one; NULL: none has */
    const char *self_bound; /* why the ranks are thought to bind themselves, or NULL */
};

struct hvi_share {
    cpu_set_t cpus; /* not bound: all */
    int ncores;     /* in cpus */
    int threads;    /* what a rank may run at the same time, at least 1 */
};

/** What came of the wish, for all ranks of the host. */
struct hvi_shares {
    enum hvi_bind kind; /* HVI_BIND_NONE: none is bound */
    const char *why;    /* then: the reason, a text of the wish or a constant one */
    bool crowded;       /* ranks share cores, because there are too few */
};

/**
 * Cuts the cores of a host into the shares of its ranks.
 *
 * A rank is given a region: the cores near its GPU, or those of its NUMA node or socket,
 * or all; ranks of one region cut it evenly, or take `cores` each. Where those do not
 * suffice, ranks share. CORE binds to that, NUMA and SOCKET to the whole place of it, GPU
 * to the whole region. AUTO with `cores` or a map is that kind; else it is NUMA where that
 * is clearly right (each rank has a GPU and no GPU is left over, or every node gets as
 * many ranks), and nothing where it is not, where ranks outnumber cores, where there is
 * one node, or where the ranks bind themselves.
 *
 * @param out  [nranks]
 */
void hvi_share_cut(const struct hvi_topo *t, const struct hvi_share_wish *w,
                   struct hvi_share *out, struct hvi_shares *all);

#endif
