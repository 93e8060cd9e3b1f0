#include "proto/base/netaddr.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

static const struct in6_addr *six(const struct sockaddr *a)
{
    return &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
}

static const struct in_addr *four(const struct sockaddr *a)
{
    return &((const struct sockaddr_in *)(const void *)a)->sin_addr;
}

bool hvi_netaddr_text(const struct sockaddr *a, char out[HVI_ADDR_MAX])
{
    if (a->sa_family != AF_INET && a->sa_family != AF_INET6)
        return false;
    return inet_ntop(a->sa_family,
                     a->sa_family == AF_INET ? (const void *)four(a)
                                             : (const void *)six(a),
                     out, HVI_ADDR_MAX) != NULL;
}

bool hvi_netaddr_scoped(const struct sockaddr *a)
{
    return a->sa_family == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(six(a));
}

bool hvi_netaddr_near_only(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(four(a)->s_addr) >> 24 == 127 ||
               ntohl(four(a)->s_addr) >> 16 == 0xa9fe;
    return a->sa_family == AF_INET6 &&
           (IN6_IS_ADDR_LOOPBACK(six(a)) || IN6_IS_ADDR_LINKLOCAL(six(a)));
}

bool hvi_netaddr_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

bool hvi_netaddr_listed(const char *names, const char *name)
{
    while (names != NULL && *names != '\0') {
        size_t n = strcspn(names, ",");

        if (strlen(name) == n && memcmp(names, name, n) == 0)
            return true;
        names += n + (names[n] == ',');
    }
    return names == NULL;
}

static bool has(char (*list)[HVI_ADDR_MAX], size_t n, const char *address)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], address) == 0)
            return true;
    return false;
}

static size_t collect(const char *names, bool (*leave_out)(const struct sockaddr *),
                      char (*out)[HVI_ADDR_MAX], size_t max)
{
    struct ifaddrs *list = NULL;
    size_t n = 0;

    if (getifaddrs(&list) != 0)
        return 0;
    for (const struct ifaddrs *i = list; i != NULL && n < max; i = i->ifa_next)
        if (i->ifa_addr != NULL && (i->ifa_flags & IFF_UP) != 0 &&
            hvi_netaddr_listed(names, i->ifa_name) &&
            hvi_netaddr_text(i->ifa_addr, out[n]) && !leave_out(i->ifa_addr) &&
            !has(out, n, out[n]))
            n++;
    freeifaddrs(list);
    return n;
}

size_t hvi_netaddr_far(const char *names, char (*out)[HVI_ADDR_MAX], size_t max)
{
    return collect(names, hvi_netaddr_near_only, out, max);
}

size_t hvi_netaddr_named(const char *names, char (*out)[HVI_ADDR_MAX], size_t max)
{
    size_t n = hvi_netaddr_far(names, out, max);

    return n > 0 ? n : collect(names, hvi_netaddr_scoped, out, max);
}

bool hvi_netaddr_of(const char *names, const char *address)
{
    size_t n = strcspn(address, "%"); /* a scope says no more than the names */
    struct ifaddrs *list = NULL;
    char text[HVI_ADDR_MAX];
    bool is = false;

    if (getifaddrs(&list) != 0)
        return false;
    for (const struct ifaddrs *i = list; i != NULL && !is; i = i->ifa_next)
        is = i->ifa_addr != NULL && hvi_netaddr_listed(names, i->ifa_name) &&
             hvi_netaddr_text(i->ifa_addr, text) && strlen(text) == n &&
             memcmp(text, address, n) == 0;
    freeifaddrs(list);
    return is;
}

void hvi_netaddrs_own(struct hvi_netaddrs *out)
{
    struct ifaddrs *list = NULL;
    size_t max = 0;

    out->list = NULL;
    out->n = 0;
    if (getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next)
        max++;
    out->list = calloc(max > 0 ? max : 1, sizeof *out->list);
    for (const struct ifaddrs *i = list; i != NULL && out->list != NULL;
         i = i->ifa_next)
        out->n +=
            i->ifa_addr != NULL && hvi_netaddr_text(i->ifa_addr, out->list[out->n]);
    freeifaddrs(list);
}

bool hvi_netaddrs_have(const struct hvi_netaddrs *a, const char *address)
{
    return has(a->list, a->n, address);
}

void hvi_netaddrs_fini(struct hvi_netaddrs *a)
{
    free(a->list);
    a->list = NULL;
    a->n = 0;
}
