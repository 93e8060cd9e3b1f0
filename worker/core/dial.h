/** Connecting to a socket by its written address: the coordinator, or a peer. */
#ifndef HVI_CORE_DIAL_H
#define HVI_CORE_DIAL_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/err.h"

#define HVI_DIAL_MAX 8 /* ways to one peer */

/** What may make a connection needless while it is tried: asked when fd is readable, true
 *  calls it off. */
struct hvi_dial_watch {
    int fd; /* -1: nothing */
    bool (*called_off)(void *arg);
    void *arg;
};

/**
 * Connect; tried again while nobody listens there yet.
 *
 * @param whom   for the error text: "the coordinator"
 * @param where  "unix:PATH", "tcp:HOST:PORT" or "HOST:PORT", an IPv6 address with or
 *               without brackets
 * @param out    the caller's: non-blocking, close-on-exec, TCP without delay
 *
 * Returns  HVD_OK; HVD_EINVAL: where is no address; HVD_ELIMIT: descriptors;
 *          HVD_ETIMEDOUT at deadline_ms; HVD_EIO.
 * Blocks   at most until deadline_ms (and for the name server).
 */
enum hvd_status hvi_dial(const char *whom, const char *where, int64_t deadline_ms,
                         int *out, struct hvi_err *err);

/**
 * As hvi_dial, unless watch calls it off (HVD_INPROGRESS), by whichever of several ways
 * answers first: they are tried in this order, each some time after the one before, or when
 * that has failed.
 *
 * @param where  [n] "tcp:ADDR:PORT", addresses numeric; n at most HVI_DIAL_MAX
 * @param which  the index of the way that was taken
 */
enum hvd_status hvi_dial_any(const char *whom, const char *const where[], int n,
                             int64_t deadline_ms, const struct hvi_dial_watch *watch,
                             int *out, int *which, struct hvi_err *err);

/** The kernel ends the connection when the other end answers nothing for limit_ms,
 *  whether anything is on its way or not. For peers that always read. */
void hvi_dial_limit(int fd, int limit_ms);

#endif
