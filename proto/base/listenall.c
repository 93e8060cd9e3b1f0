#include "proto/base/listenall.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define TRIES 64 /* any port: one that is free on one address may be taken on another */

/* -1, errno. Also of connections that linger: only a listener takes a port. */
static int listen_on(const struct addrinfo *a)
{
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    int one = 1, no = 0, why;

    if (fd < 0)
        return -1;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0 &&
        (a->ai_family != AF_INET6 ||
         setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no) == 0) &&
        bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, SOMAXCONN) == 0)
        return fd;
    why = errno;
    close(fd);
    errno = why;
    return -1;
}

static int listen_at(const char *address, int port)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *a = NULL;
    char text[16];
    int fd;

    snprintf(text, sizeof text, "%d", port);
    if (getaddrinfo(address, text, &hints, &a) != 0) {
        errno = EADDRNOTAVAIL;
        return -1;
    }
    fd = listen_on(a);
    freeaddrinfo(a);
    return fd;
}

static int port_of(int fd)
{
    struct sockaddr_storage ss = {.ss_family = AF_UNSPEC};
    socklen_t n = sizeof ss;

    if (getsockname(fd, (struct sockaddr *)&ss, &n) != 0)
        return -1;
    return ntohs(ss.ss_family == AF_INET ? ((struct sockaddr_in *)&ss)->sin_port
                                         : ((struct sockaddr_in6 *)&ss)->sin6_port);
}

static void close_all(const int *fds, size_t n)
{
    int why = errno;

    for (size_t i = 0; i < n; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    errno = why;
}

/* All with this port; 0: the one that the first gets. */
static bool try_port(const char *const *addr, size_t n, int port, int *fds, int *out)
{
    for (size_t i = 0; i < n; i++) {
        fds[i] = listen_at(addr[i], port);
        if (i == 0 && fds[0] >= 0)
            port = port_of(fds[0]);
        if (port < 0 || (fds[i] < 0 && (i == 0 || errno != EADDRNOTAVAIL))) {
            close_all(fds, i + 1);
            return false;
        }
    }
    *out = port;
    return true;
}

bool hvi_listen_all(const char *const *addr, size_t n, int first, int last, int *fds,
                    int *port)
{
    int tries = first > 0 ? last - first + 1 : TRIES;

    errno = EADDRINUSE;
    for (int i = 0; i < tries; i++) {
        if (try_port(addr, n, first > 0 ? first + i : 0, fds, port))
            return true;
        if (errno != EADDRINUSE)
            return false;
    }
    return false;
}
