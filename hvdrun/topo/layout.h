/** The ranks of one host on its processors and GPUs. */
#ifndef HVI_TOPO_LAYOUT_H
#define HVI_TOPO_LAYOUT_H

#include "hvdrun/topo/gpus.h"
#include "hvdrun/topo/share.h"
#include "proto/base/err.h"

/** For tests: what stands before the paths under which GPUs are looked for. */
#define HVI_GPU_ROOT_ENV "HVD_GPU_ROOT"

struct hvi_layout_wish {
    int nranks;
    enum hvi_bind bind_to;
    enum hvi_map map_by;
    int cores;              /* of each rank; 0: not said */
    int gpus;               /* of each rank, which then sees no others; 0: not said */
    bool crowd_gpus;        /* more ranks than GPUs are all right */
    const char *visible;    /* the ranks' CUDA_VISIBLE_DEVICES; NULL: not set */
    const char *self_bound; /* as in hvi_share_wish */
};

struct hvi_layout {
    struct hvi_shares shares;
    struct hvi_share *rank; /* [nranks] */
    int *gpu;               /* [nranks] first of a rank's in gpus; -1: not known */
    int nranks;
    int per_rank;         /* GPUs of each */
    bool masked;          /* the ranks see only theirs */
    struct hvi_gpus gpus; /* those that are visible */
};

/**
 * Looks at this host and lays its ranks out. Local rank i has GPU number i of those that
 * are visible, where there are enough: programs choose it by their local rank.
 *
 * Returns  HVD_OK, also where nothing can be bound (shares.why); HVD_EINVAL: GPUs were
 *          asked for, by gpus or by binding to them, and there are not as many;
 *          HVD_ENOMEM.
 * Blocks   for the time hwloc needs to look.
 */
enum hvd_status hvi_layout_make(const struct hvi_layout_wish *w, struct hvi_layout *out,
                                struct hvi_err *err);
void hvi_layout_fini(struct hvi_layout *l);
#define HVI_LAYOUT_MASK_MAX (HVI_GPUS_MAX * HVI_GPU_NAME_MAX + 1)
/** What a rank's CUDA_VISIBLE_DEVICES is where l->masked: "2,3"; with
 * HVI_LAYOUT_MASK_MAX bytes it is never cut. */
void hvi_layout_mask(const struct hvi_layout *l, int rank, char *out, size_t cap);
/** "bound to core: 2 cores, processors 0-1; GPU 0 (0000:3b:00.0)" */
void hvi_layout_words(const struct hvi_layout *l, int rank, char *out, size_t cap);
/** "0-3,8" */
void hvi_layout_cpus(const struct hvi_layout *l, int rank, char *out, size_t cap);
/** Why ranks with this program or these variables are thought to bind themselves; NULL:
 * they are not. get: a variable's value or NULL. */
const char *hvi_layout_self_bound(const char *program,
                                  const char *(*get)(const void *, const char *),
                                  const void *env);

#endif
