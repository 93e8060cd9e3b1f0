#include "worker/core/ways.h"

#include <stdio.h>
#include <string.h>

_Static_assert(HVI_ADDR_MAX <= HVI_WAY_BYTES, "an address fits");

void hvi_ways_find(const char *first, const char *names, struct hvi_ways *out)
{
    char far[HVI_WAYS_MAX][HVI_ADDR_MAX];
    size_t n;

    memset(out, 0, sizeof *out);
    if (names == NULL || hvi_netaddr_loopback(first) || hvi_netaddr_of(names, first))
        snprintf(out->addr[out->n++], HVI_WAY_BYTES, "%s", first);
    if (hvi_netaddr_loopback(first))
        return;
    n = hvi_netaddr_far(names, far, HVI_WAYS_MAX);
    for (size_t i = 0; i < n && out->n < HVI_WAYS_MAX; i++)
        if (strcmp(far[i], first) != 0)
            memcpy(out->addr[out->n++], far[i], sizeof far[i]);
}
