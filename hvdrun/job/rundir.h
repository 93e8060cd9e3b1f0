/** The job's private directory on a host: sockets and the key file. */
#ifndef HVI_HVDRUN_RUNDIR_H
#define HVI_HVDRUN_RUNDIR_H

#include <stdint.h>

#include "proto/base/err.h"

/** Short enough that a Unix socket in it has room for its name (108 bytes in all). */
#define HVI_RUNDIR_MAX 64

/** hvd-XXXXXX, 0700, in the first of $XDG_RUNTIME_DIR, /tmp and $TMPDIR that is there, is
 * ours to write and has a name that is short enough. Locked as long as this process lives; those of
 * the dead that lie there are removed. */
enum hvd_status hvi_rundir_make(char out[HVI_RUNDIR_MAX], struct hvi_err *err);

/** hvi_tmpdir_remove(); also called by the keeper. */
void hvi_rundir_remove(const char *path);

/** Writes the job key as `key` (0600, hex) for the workers; out: its path. */
enum hvd_status hvi_rundir_put_key(const char *dir, const uint8_t *key, char *out,
                                   size_t cap, struct hvi_err *err);

#endif
