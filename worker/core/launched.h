/** Was this process started beside others by a launcher that knows nothing of hvd? */
#ifndef HVI_CORE_LAUNCHED_H
#define HVI_CORE_LAUNCHED_H

#include "proto/base/err.h"

/**
 * May a process without HVD_COORDINATOR be a job of one rank?
 *
 * Returns  HVD_OK; HVD_EINVAL when mpirun, srun, torchrun or the like has started it as one
 *          of several and HVD_SOLO is not set: each would then train alone, unnoticed.
 * Threads  as getenv.    Blocks  never.
 */
enum hvd_status hvi_launched_check(struct hvi_err *err);

#endif
