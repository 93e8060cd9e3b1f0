#include "worker/core/ways.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static bool numeric(const struct sockaddr *sa, char out[HVI_WAY_BYTES])
{
    socklen_t n = sa->sa_family == AF_INET ? sizeof(struct sockaddr_in)
                                           : sizeof(struct sockaddr_in6);

    return (sa->sa_family == AF_INET || sa->sa_family == AF_INET6) &&
           getnameinfo(sa, n, out, HVI_WAY_BYTES, NULL, 0, NI_NUMERICHOST) == 0;
}

static bool near_only(const struct sockaddr *sa)
{
    const struct sockaddr_in *v4 = (const struct sockaddr_in *)(const void *)sa;
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)(const void *)sa;

    if (sa->sa_family == AF_INET)
        return ntohl(v4->sin_addr.s_addr) >> 24 == 127 ||
               ntohl(v4->sin_addr.s_addr) >> 16 == 0xa9fe;
    return IN6_IS_ADDR_LOOPBACK(&v6->sin6_addr) ||
           IN6_IS_ADDR_LINKLOCAL(&v6->sin6_addr);
}

static bool loopback(const char *addr)
{
    return strncmp(addr, "127.", 4) == 0 || strcmp(addr, "::1") == 0;
}

/* name is one of "a,b,c" */
static bool listed(const char *names, const char *name)
{
    size_t n = strlen(name);

    while (*names != '\0') {
        size_t len = strcspn(names, ",");

        if (len == n && memcmp(names, name, n) == 0)
            return true;
        names += len + (names[len] == ',');
    }
    return false;
}

static bool has(const struct hvi_ways *w, const char *addr)
{
    for (int i = 0; i < w->n; i++)
        if (strcmp(w->addr[i], addr) == 0)
            return true;
    return false;
}

void hvi_ways_find(const char *first, const char *names, struct hvi_ways *out)
{
    struct ifaddrs *list = NULL;

    memset(out, 0, sizeof *out);
    snprintf(out->addr[out->n++], HVI_WAY_BYTES, "%s", first);
    if (loopback(first) || getifaddrs(&list) != 0)
        return;
    for (const struct ifaddrs *i = list; i != NULL && out->n < HVI_WAYS_MAX;
         i = i->ifa_next) {
        char *addr = out->addr[out->n];

        if (i->ifa_addr != NULL && (i->ifa_flags & IFF_UP) != 0 &&
            (names == NULL || listed(names, i->ifa_name)) &&
            numeric(i->ifa_addr, addr) && !near_only(i->ifa_addr) && !has(out, addr))
            out->n++;
    }
    freeifaddrs(list);
}

bool hvi_ways_own(const char *addr)
{
    struct ifaddrs *list = NULL;
    char text[HVI_WAY_BYTES];
    bool own = false;

    if (getifaddrs(&list) != 0)
        return false;
    for (const struct ifaddrs *i = list; i != NULL && !own; i = i->ifa_next)
        own = i->ifa_addr != NULL && numeric(i->ifa_addr, text) &&
              strcmp(text, addr) == 0;
    freeifaddrs(list);
    return own;
}
