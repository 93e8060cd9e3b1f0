#include "proto/base/ports.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

/* A socket of both families, which wants a port that nobody has on either. */
static int any_socket(struct sockaddr_in6 *sa, socklen_t *n)
{
    int no = 0;
    int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);

    *sa = (struct sockaddr_in6){.sin6_family = AF_INET6};
    *n = sizeof *sa;
    if (fd >= 0) {
        (void)setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &no, sizeof no);
        return fd;
    }
    sa->sin6_family = AF_INET; /* any address, port 0: it has zeros too */
    *n = sizeof(struct sockaddr_in);
    return socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
}

static bool none_left(void)
{
    struct sockaddr_in6 sa;
    socklen_t n;
    int fd = any_socket(&sa, &n);
    bool none =
        fd >= 0 && bind(fd, (struct sockaddr *)&sa, n) != 0 && errno == EADDRINUSE;

    if (fd >= 0)
        close(fd);
    return none;
}

/* " from N to M"; "" where /proc does not tell. */
static void port_range(char *out, size_t n)
{
    FILE *f = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
    int first, last;

    out[0] = '\0';
    if (f == NULL)
        return;
    if (fscanf(f, "%d %d", &first, &last) == 2)
        snprintf(out, n, " from %d to %d", first, last);
    fclose(f);
}

const char *hvi_ports_gone(int error, char out[HVI_PORTS_TEXT])
{
    int kept = errno; /* the caller's next words are often strerror(errno) */
    char host[64] = "this host";
    char range[40];
    bool none = (error == EADDRNOTAVAIL || error == EADDRINUSE) && none_left();

    if (none) {
        (void)gethostname(host, sizeof host - 1);
        port_range(range, sizeof range);
        snprintf(out, HVI_PORTS_TEXT,
                 "host %s has no local port left: all%s are in use; end what "
                 "holds them, or widen the range (sysctl net.ipv4.ip_local_port_range)",
                 host, range);
    }
    errno = kept;
    return none ? out : NULL;
}
