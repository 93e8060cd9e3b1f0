/** Addresses of this host's interfaces, as numeric text. */
#ifndef HVI_NETADDR_H
#define HVI_NETADDR_H

#include <netinet/in.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

#define HVI_ADDR_MAX INET6_ADDRSTRLEN /* numeric, without brackets or scope */

/** false: neither IPv4 nor IPv6. A scope ("%eth0") is left out. */
bool hvi_netaddr_text(const struct sockaddr *a, char out[HVI_ADDR_MAX]);
/** It means something only together with an interface, which differs between hosts. */
bool hvi_netaddr_scoped(const struct sockaddr *a);
/** Loopback, or link-local (fe80::/10, 169.254/16): not for offering to other hosts. */
bool hvi_netaddr_near_only(const struct sockaddr *a);
/** "127..." or "::1": of no use to other machines. */
bool hvi_netaddr_loopback(const char *address);
/** name is one of "eth0,ib0"; names NULL: any name is. */
bool hvi_netaddr_listed(const char *names, const char *name);
/**
 * Up to max different addresses that other hosts may reach: of interfaces that are up,
 * none that is near only, and only those of these interfaces (NULL: of all).
 *
 * Returns  their number; 0 also where the system does not tell.
 */
size_t hvi_netaddr_far(const char *names, char (*out)[HVI_ADDR_MAX], size_t max);

/** As hvi_netaddr_far; where these interfaces have no such address, their near ones that
 *  mean something without an interface: those of lo, say. */
size_t hvi_netaddr_named(const char *names, char (*out)[HVI_ADDR_MAX], size_t max);
/** One of these interfaces (not NULL) has this address; it may be a near one. */
bool hvi_netaddr_of(const char *names, const char *address);

/** All addresses of this host, also near ones. Free with hvi_netaddrs_fini(). */
struct hvi_netaddrs {
    char (*list)[HVI_ADDR_MAX]; /* [n] */
    size_t n;
};
/** Empty where the system does not tell. */
void hvi_netaddrs_own(struct hvi_netaddrs *out);
bool hvi_netaddrs_have(const struct hvi_netaddrs *a, const char *address);
/** Accepts what is empty. */
void hvi_netaddrs_fini(struct hvi_netaddrs *a);

#endif
