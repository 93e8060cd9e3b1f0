/** HVD_THREAD_AFFINITY (HOROVOD_THREAD_AFFINITY): a core for the library's threads. */
#ifndef HVI_WORKER_AFFINITY_H
#define HVI_WORKER_AFFINITY_H

#include <pthread.h>

#include "proto/base/err.h"

/**
 * The core of a local rank in a list with one entry for each local rank: "0,2,4,6".
 *
 * @param text  NULL: not set
 * @param out   -1: the list is not set, or has fewer entries than local_size and is
 *              ignored, as Horovod does
 *
 * Returns  HVD_OK; HVD_EINVAL: not a list of cores, worded.    Blocks  never.
 */
enum hvd_status hvi_affinity_core(const char *text, int local_rank, int local_size,
                                  int *out, struct hvi_err *err);

/** Binds a thread to a core; -1: leaves it. HVD_EINVAL: the process may not use that
 *  core. */
enum hvd_status hvi_affinity_bind(pthread_t thread, int core, struct hvi_err *err);

#endif
