/** Addresses by which hosts can call this one. */
#ifndef HVI_HVDRUN_REACH_H
#define HVI_HVDRUN_REACH_H

#include <netinet/in.h>
#include <stdbool.h>

#include "proto/base/err.h"

#define HVI_ADDR_MAX INET6_ADDRSTRLEN /* numeric, without brackets or scope */

/** Which of this host's addresses packets to name would carry (a UDP socket is
 * connected, nothing is sent), and the address of name. false: name has none, or no
 * way leads there. Blocks while a name server is asked. */
bool hvi_reach_toward(const char *name, char own[HVI_ADDR_MAX],
                      char peer[HVI_ADDR_MAX]);
/** "127..." or "::1": of no use to other machines. */
bool hvi_reach_loopback(const char *address);
/** The address of this host's own name, when it is no loopback. */
bool hvi_reach_own(char own[HVI_ADDR_MAX]);
/** The address of the first of these interfaces ("eth0,eth1") that has one. */
bool hvi_reach_interface(const char *names, char own[HVI_ADDR_MAX]);
/** Up to max addresses of this host that others may reach: of interfaces that are up,
 * without loopback and link-local ones, and only those of these interfaces ("eth0,ib0";
 * NULL: of all). Returns their number. */
size_t hvi_reach_all(const char *names, char (*out)[HVI_ADDR_MAX], size_t max);
/** The first port of [first, last] that a listener on address can have now; 0: none. */
int hvi_reach_port(const char *address, int first, int last);
/** "::" where a socket for it (and for IPv4) can be had, else "0.0.0.0". */
const char *hvi_reach_any(void);
/** "tcp:ADDRESS:PORT", with brackets where needed. */
void hvi_reach_endpoint(const char *address, int port, char *out, size_t cap);

#endif
