#include "hvdrun/doctor/reach.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/listenall.h"

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

int hvi_reach_port(const char *const *addr, size_t n, int first, int last)
{
    int fds[HVI_REACH_ADDRS], port;

    if (n > HVI_REACH_ADDRS || !hvi_listen_all(addr, n, first, last, fds, &port))
        return 0;
    for (size_t i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return port;
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

void hvi_reach_listen(const char *const *addr, size_t n, int port, char *out,
                      size_t cap)
{
    size_t used = (size_t)snprintf(out, cap, "tcp");

    for (size_t i = 0; i < n && used < cap; i++) {
        bool v6 = strchr(addr[i], ':') != NULL;

        used += (size_t)snprintf(out + used, cap - used, "%c%s%s%s", i == 0 ? ':' : ',',
                                 v6 ? "[" : "", addr[i], v6 ? "]" : "");
    }
    if (used < cap)
        snprintf(out + used, cap - used, ":%d", port);
}

void hvi_reach_endpoint(const char *address, int port, char *out, size_t cap)
{
    hvi_reach_listen(&address, 1, port, out, cap);
}
