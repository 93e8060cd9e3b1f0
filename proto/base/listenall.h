/** TCP listeners on several addresses of this host, all with one port. */
#ifndef HVI_LISTENALL_H
#define HVI_LISTENALL_H

#include <stdbool.h>
#include <stddef.h>

/**
 * Binds and listens on each address; non-blocking, close-on-exec.
 *
 * @param addr   [n >= 1] numeric ("10.0.0.1", "fd00::1", "fe80::1%eth0"; "::": IPv4 too),
 *               different
 * @param first, last  of the ports: the first that is free on all; 0, 0: any
 * @param fds    [n] the caller's to close; -1 for one, not the first, that is no address
 *               of this host (any more)
 *
 * Returns  false: nothing is open, errno says why; EADDRINUSE: all these ports are taken.
 * Threads  any.   Blocks  no.
 */
bool hvi_listen_all(const char *const *addr, size_t n, int first, int last, int *fds,
                    int *port);

#endif
