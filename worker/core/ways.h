/** The addresses by which peers may reach this process: networks differ from pair to pair
 *  of hosts, so all are offered, and who connects takes the first that answers. */
#ifndef HVI_CORE_WAYS_H
#define HVI_CORE_WAYS_H

#include "proto/base/netaddr.h"

#define HVI_WAYS_MAX 4 /* of one process: WELCOME lists those of every rank */
#define HVI_WAY_BYTES 64

struct hvi_ways {
    char addr[HVI_WAYS_MAX][HVI_WAY_BYTES]; /* numeric, best first */
    int n;
};

/**
 * @param first  the address that is known to work; the first, unless names leave it out.
 *               A loopback one stays alone: nobody else is meant to come.
 * @param names  of the only interfaces to be used, "eth0,ib0"; NULL: of all that are up.
 *               What follows the first is no loopback or link-local address.
 *
 * out->n is 0 when none of these interfaces has an address. Blocks  no.
 */
void hvi_ways_find(const char *first, const char *names, struct hvi_ways *out);

#endif
