/** Which rank failed first, and what the job's exit status is. Pure. */
#ifndef HVI_HVDRUN_VERDICT_H
#define HVI_HVDRUN_VERDICT_H

#include <stdbool.h>

#include "proto/base/err.h"

struct hvi_verdict_rank {
    bool exited;
    bool by_us;  /* we had asked it to end */
    bool no_bye; /* it left an open epoch without a word: a loss, whatever its status */
    int wait_status;
};

struct hvi_verdict {
    int np;
    struct hvi_verdict_rank *rank; /* [np] */
    int first;                     /* first to end badly by itself, or -1 */
    int lost;                      /* the coordinator saw this one go first, or -1 */
    int bye;                       /* first to say BYE in the last epoch, or -1 */
    int failed, stopped, exited;
};

enum hvd_status hvi_verdict_init(struct hvi_verdict *v, int np); /* HVD_ENOMEM */
void hvi_verdict_fini(struct hvi_verdict *v);

/** A rank has ended; in the order of the ends. */
void hvi_verdict_exited(struct hvi_verdict *v, int rank, int wait_status, bool by_us);
/** The coordinator's notes: it lost this one first; this one left without BYE. */
void hvi_verdict_lost(struct hvi_verdict *v, int rank);
void hvi_verdict_no_bye(struct hvi_verdict *v, int rank);
/** This one said BYE first: exit() does that too, whatever its status will be. */
void hvi_verdict_bye(struct hvi_verdict *v, int rank);

/** Something went wrong so far. */
bool hvi_verdict_bad(const struct hvi_verdict *v);
/**
 * The rank to name, or -1. Where the coordinator lost a rank first, failures of others
 * are secondary: that rank is named, and what happened to it may not be known yet. The
 * same when a rank left first and then failed.
 *
 * @param settled  false: worth waiting for the named rank's own end
 */
int hvi_verdict_cause(const struct hvi_verdict *v, bool *settled);
/** The exit status; 0 when all is well. */
int hvi_verdict_status(const struct hvi_verdict *v);

#endif
