#include "hvdrun/reach.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANY_PORT "9" /* nothing is sent there */

static bool numeric(const struct sockaddr *a, char out[HVI_ADDR_MAX])
{
    const void *bytes;

    if (a->sa_family == AF_INET)
        bytes = &((const struct sockaddr_in *)(const void *)a)->sin_addr;
    else if (a->sa_family == AF_INET6)
        bytes = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    else
        return false;
    return inet_ntop(a->sa_family, bytes, out, HVI_ADDR_MAX) != NULL;
}

/* It means something only together with an interface, which differs between hosts. */
static bool link_local(const struct sockaddr *a)
{
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LINKLOCAL(
               &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

static bool loopback(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >>
                   24 ==
               127;
    return a->sa_family == AF_INET6 &&
           IN6_IS_ADDR_LOOPBACK(
               &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr);
}

bool hvi_reach_loopback(const char *address)
{
    return strncmp(address, "127.", 4) == 0 || strcmp(address, "::1") == 0;
}

static bool toward(const struct addrinfo *to, char own[HVI_ADDR_MAX])
{
    struct sockaddr_storage ss = {.ss_family = AF_UNSPEC};
    struct sockaddr *a = (struct sockaddr *)&ss;
    socklen_t n = sizeof ss;
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
              getsockname(fd, a, &n) == 0 && !link_local(a) && numeric(a, own);

    if (fd >= 0)
        close(fd);
    return ok;
}

bool hvi_reach_toward(const char *name, char own[HVI_ADDR_MAX], char peer[HVI_ADDR_MAX])
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *list = NULL;
    bool ok = false;

    if (getaddrinfo(name, ANY_PORT, &hints, &list) != 0)
        return false;
    for (const struct addrinfo *a = list; a != NULL && !ok; a = a->ai_next)
        ok = toward(a, own) && numeric(a->ai_addr, peer);
    freeaddrinfo(list);
    return ok;
}

bool hvi_reach_own(char own[HVI_ADDR_MAX])
{
    struct addrinfo hints = {.ai_socktype = SOCK_DGRAM};
    struct addrinfo *list = NULL;
    char name[256] = "";
    bool ok = false;

    if (gethostname(name, sizeof name - 1) != 0 ||
        getaddrinfo(name, ANY_PORT, &hints, &list) != 0)
        return false;
    for (const struct addrinfo *a = list; a != NULL && !ok; a = a->ai_next)
        ok = !loopback(a->ai_addr) && !link_local(a->ai_addr) &&
             numeric(a->ai_addr, own);
    freeaddrinfo(list);
    return ok;
}

static bool of_interface(const struct ifaddrs *list, const char *name,
                         size_t name_bytes, char own[HVI_ADDR_MAX])
{
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next)
        if (i->ifa_addr != NULL && strlen(i->ifa_name) == name_bytes &&
            memcmp(i->ifa_name, name, name_bytes) == 0 && !link_local(i->ifa_addr) &&
            numeric(i->ifa_addr, own))
            return true;
    return false;
}

bool hvi_reach_interface(const char *names, char own[HVI_ADDR_MAX])
{
    struct ifaddrs *list = NULL;
    bool ok = false;

    if (getifaddrs(&list) != 0)
        return false;
    while (*names != '\0' && !ok) {
        size_t n = strcspn(names, ",");

        ok = of_interface(list, names, n, own);
        names += n + (names[n] == ',');
    }
    freeifaddrs(list);
    return ok;
}

void hvi_reach_endpoint(const char *address, int port, char *out, size_t cap)
{
    bool v6 = strchr(address, ':') != NULL;

    snprintf(out, cap, "tcp:%s%s%s:%d", v6 ? "[" : "", address, v6 ? "]" : "", port);
}
