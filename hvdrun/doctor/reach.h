/** Addresses by which hosts can call this one. */
#ifndef HVI_HVDRUN_REACH_H
#define HVI_HVDRUN_REACH_H

#include <stdbool.h>

#include "proto/base/err.h"
#include "proto/base/netaddr.h"

/** Which of this host's addresses packets to name would carry (a UDP socket is
 * connected, nothing is sent), and the address of name. false: name has none, or no
 * way leads there. Blocks while a name server is asked. */
bool hvi_reach_toward(const char *name, char own[HVI_ADDR_MAX],
                      char peer[HVI_ADDR_MAX]);
/** The address of this host's own name, when it is no loopback. */
bool hvi_reach_own(char own[HVI_ADDR_MAX]);
#define HVI_REACH_ADDRS 8 /* of this host, on which we listen */
/** The first port of [first, last] that listeners on all n addresses can have now; 0:
 *  none. n is at most HVI_REACH_ADDRS. */
int hvi_reach_port(const char *const *addr, size_t n, int first, int last);
/** "::" where a socket for it (and for IPv4) can be had, else "0.0.0.0". */
const char *hvi_reach_any(void);
/** "tcp:ADDRESS:PORT", with brackets where needed. */
void hvi_reach_endpoint(const char *address, int port, char *out, size_t cap);
/** "tcp:ADDRESS,ADDRESS:PORT", of n >= 1, likewise. */
void hvi_reach_listen(const char *const *addr, size_t n, int port, char *out,
                      size_t cap);

#endif
