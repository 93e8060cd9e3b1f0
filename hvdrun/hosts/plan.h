/** Which rank runs where. Pure; Horovod's order (reference: hosts in the order given,
 * all slots of a host one after another). */
#ifndef HVI_HVDRUN_PLAN_H
#define HVI_HVDRUN_PLAN_H

#include "hvdrun/hosts/hosts.h"

struct hvi_place {
    int host; /* index in hosts */
    int local_rank, local_size;
    int cross_rank; /* index among the hosts that have this local_rank */
    int cross_size;
};

/** Ranks 0..np-1 and the hosts that have at least one of them. */
struct hvi_plan {
    int np;
    struct hvi_place *place; /* [np] */
    size_t nhosts;
    struct hvi_host
        *host;       /* [nhosts], names borrowed from the hosts; slots: ranks there */
    int *first_rank; /* [nhosts] */
    struct hvi_host
        *all; /* [nall] every host, in order; names borrowed, slots: offered */
    size_t nall;
};

struct hvi_plan_wish {
    int np;    /* 0: as many as there are slots */
    int cores; /* of this host: the slots of localhost when nobody said a number */
    bool oversubscribe;
    const char
        *from; /* where the hosts come from, for messages; NULL: the command line */
};

/**
 * Lays the ranks out.
 *
 * @param hosts  may be empty: localhost with np (else cores) slots. Where some have a
 *               number, the others have 1 slot; where none has and np is given, the
 * ranks go in even blocks. Must outlive the plan.
 *
 * Returns  HVD_OK; HVD_EINVAL: more ranks than slots, with the arithmetic; HVD_ELIMIT:
 * more than HVD_RANKS_MAX; HVD_ENOMEM.
 */
enum hvd_status hvi_plan_make(const struct hvi_hosts *hosts,
                              const struct hvi_plan_wish *wish, struct hvi_plan *out,
                              struct hvi_err *err);
void hvi_plan_fini(struct hvi_plan *p);

#endif
