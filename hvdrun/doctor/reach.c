#include "hvdrun/doctor/reach.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define ANY_PORT "9" /* nothing is sent there */

static bool toward(const struct addrinfo *to, char own[HVI_ADDR_MAX])
{
    struct sockaddr_storage ss = {.ss_family = AF_UNSPEC};
    struct sockaddr *a = (struct sockaddr *)&ss;
    socklen_t n = sizeof ss;
    int fd = socket(to->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 && connect(fd, to->ai_addr, to->ai_addrlen) == 0 &&
              getsockname(fd, a, &n) == 0 && !hvi_netaddr_scoped(a) &&
              hvi_netaddr_text(a, own);

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
        ok = toward(a, own) && hvi_netaddr_text(a->ai_addr, peer);
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
        ok = !hvi_netaddr_near_only(a->ai_addr) && hvi_netaddr_text(a->ai_addr, own);
    freeaddrinfo(list);
    return ok;
}

static bool of_interface(const struct ifaddrs *list, const char *name,
                         size_t name_bytes, char own[HVI_ADDR_MAX])
{
    for (const struct ifaddrs *i = list; i != NULL; i = i->ifa_next)
        if (i->ifa_addr != NULL && strlen(i->ifa_name) == name_bytes &&
            memcmp(i->ifa_name, name, name_bytes) == 0 &&
            !hvi_netaddr_scoped(i->ifa_addr) && hvi_netaddr_text(i->ifa_addr, own))
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

static bool can_listen(const struct addrinfo *a)
{
    int one = 1;
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    bool ok = fd >= 0 &&
              setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
              bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, 1) == 0;

    if (fd >= 0)
        close(fd);
    return ok;
}

int hvi_reach_port(const char *address, int first, int last)
{
    for (int port = first; port <= last; port++) {
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                                 .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
        struct addrinfo *a = NULL;
        char text[16];
        bool ok;

        snprintf(text, sizeof text, "%d", port);
        if (getaddrinfo(address, text, &hints, &a) != 0)
            return 0;
        ok = can_listen(a);
        freeaddrinfo(a);
        if (ok)
            return port;
    }
    return 0;
}

const char *hvi_reach_any(void)
{
    struct sockaddr_in6 any = {.sin6_family = AF_INET6};
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    int no = 0;
    bool ok = fd >= 0 &&
              setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0 &&
              bind(fd, (struct sockaddr *)&any, sizeof any) == 0;

    if (fd >= 0)
        close(fd);
    return ok ? "::" : "0.0.0.0";
}

void hvi_reach_endpoint(const char *address, int port, char *out, size_t cap)
{
    bool v6 = strchr(address, ':') != NULL;

    snprintf(out, cap, "tcp:%s%s%s:%d", v6 ? "[" : "", address, v6 ? "]" : "", port);
}
