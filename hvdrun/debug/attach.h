/** `hvdrun attach [JOB] RANK`: this terminal to a rank that runs under a debugger. */
#ifndef HVI_HVDRUN_ATTACH_H
#define HVI_HVDRUN_ATTACH_H

#include "proto/base/err.h"

#define HVI_ATTACH_SOCKET "debug" /* in hvdrun's runtime directory */

/**
 * Connects to a job of this user that has ranks under a debugger.
 *
 * @param job  hvdrun's pid, its runtime directory, or NULL: the only one there is
 * @param fd   the connection, non-blocking; owned by the caller
 *
 * Returns  HVD_OK; HVD_EINVAL, the text names the jobs there are; HVD_EIO. Blocks for
 *          a second for each job whose hvdrun does not accept.
 */
enum hvd_status hvi_attach_connect(const char *job, int *fd, struct hvi_err *err);

/**
 * argv[0] is "attach". Whatever ends it, but for SIGKILL, the terminal is as it was.
 *
 * Returns  the exit status: of the rank when that has ended, 0 detached, 2 wrong usage
 *          or refused, 125 hvdrun is gone, 128 + n a signal.
 */
int hvi_attach_main(int argc, char **argv);

#endif
