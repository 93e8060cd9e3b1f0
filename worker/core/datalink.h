/**
 * Connections between the workers of one epoch: a listener each, and authenticated
 * links to peers (PROTOCOL.md section 6, data connections). Over them a shm group
 * passes its segment, and plane tcp its payload. Used while forming only.
 */
#ifndef HVI_CORE_DATALINK_H
#define HVI_CORE_DATALINK_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/err.h"
#include "proto/sec/handshake.h"
#include "worker/core/ways.h"

/** Where peers reach this worker. */
struct hvi_listener {
    int unix_fd;          /* -1: none */
    char dir[80];         /* own 0700 directory to remove, "": none */
    char path[108];       /* of the Unix socket, "": none */
    struct hvi_ways ways; /* n 0: no TCP */
    int tcp_fd
        [HVI_WAYS_MAX]; /* [ways.n] one on each of their addresses, all of one port */
    uint16_t port;
};

/**
 * @param near_fd  connection to the coordinator: a TCP one gives the first address to
 * listen on, else loopback; further ones are those of this host, and where
 * HVD_NETWORK_INTERFACES is set all are of these
 * @param unix_too, tcp_too  which to open
 *
 * On failure nothing is left open. HVD_ELIMIT (descriptors), HVD_EIO; HVD_EINVAL
 * (HVD_PORT_RANGE, HVD_NETWORK_INTERFACES).
 */
enum hvd_status hvi_listener_open(struct hvi_listener *l, int near_fd, bool unix_too,
                                  bool tcp_too, struct hvi_err *err);
void hvi_listener_close(
    struct hvi_listener *l); /* also when never opened: unix_fd -1, rest 0 */

/** What links of one attempt to form have in common. */
struct hvi_meet {
    const uint8_t *epoch_key, *job_id;
    int rank, size;
    uint32_t attempt;
    int64_t deadline_ms;
    int silence_ms; /* of a peer, before it is dialled by another way too; 0: 5 s */
    int pass_fd;    /* sent to every peer that connects, -1: none */
    bool keep;      /* false: links are closed after the exchange */
    int *fds;   /* [size] by rank, -1: not yet; kept links are the caller's to close */
    int got_fd; /* received from the peer connected to, -1; the caller's */
    /** Watched meanwhile (-1: nothing): at the begin, and when it is readable, on_watch(arg)
     *  is asked; true ends the meeting with HVD_INPROGRESS. */
    int watch_fd;
    bool (*on_watch)(void *arg);
    void *arg;
};

/** "unix:PATH", or "tcp:ADDR:PORT" of each way to a peer, best first; retried until the
 * deadline. */
struct hvi_target {
    int rank, host,
        nways; /* ranks of one host: its ways lead there in the same order */
    char where[HVI_WAYS_MAX][160];
    bool named[HVI_WAYS_MAX]; /* not the first address that it offered: its hello says
                               * whom it is for */
};

/**
 * Connect to all targets, and accept until fds is full for all `expected` ranks, which
 * are the higher ones (expected < 0 allowed: none). Blocking until m->deadline_ms.
 *
 * Returns  HVD_OK; HVD_INPROGRESS (watch); HVD_ETIMEDOUT with the ranks that did not
 * come; HVD_EAUTH, HVD_EIO, HVD_ENOMEM.
 */
enum hvd_status hvi_meet_run(struct hvi_meet *m, struct hvi_listener *l,
                             const struct hvi_target *targets, int ntargets,
                             int expected, struct hvi_err *err);

#endif
