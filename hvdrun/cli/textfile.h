/** Small text files that the user names: host files, the configuration file. */
#ifndef HVI_HVDRUN_TEXTFILE_H
#define HVI_HVDRUN_TEXTFILE_H

#include <stddef.h>

#include "proto/base/err.h"

/** A pipe that brings nothing for so long is given up. */
#define HVI_TEXTFILE_PATIENCE_MS 30000

/**
 * Reads a whole file of at most 1 MiB; it may be a pipe, as <(command) is.
 *
 * @param what        for messages: "host file"
 * @param text        heap, caller-owned, with a zero behind it
 * @param size_bytes  without that zero
 *
 * Returns  HVD_OK; HVD_EINVAL: it cannot be read, is too large, or is a pipe that
 *          nothing came through ("what path: ..."). HVD_ENOMEM.
 * Blocks   while a pipe brings nothing, HVI_TEXTFILE_PATIENCE_MS at most each time.
 */
enum hvd_status hvi_textfile_read(const char *what, const char *path, char **text,
                                  size_t *size_bytes, struct hvi_err *err);

#endif
