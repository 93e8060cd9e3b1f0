#include "worker/core/dial.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/clock.h"

#define RETRY_MS 20 /* between attempts: not up yet, or its backlog is full */
enum { HOST_MAX = 256, PORT_MAX = 8 };

/* connect() that gives up at deadline_ms: 0 or errno. */
static int connect_within(int fd, const struct sockaddr *sa, socklen_t n,
                          int64_t deadline_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    int error = 0;
    socklen_t size = sizeof error;

    if (connect(fd, sa, n) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return errno;
    while (poll(&p, 1, hvi_ms_left(deadline_ms)) < 0)
        if (errno != EINTR)
            return errno;
    if (p.revents == 0)
        return ETIMEDOUT;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        return errno;
    return error;
}

/* One attempt at one address: 0 or errno. */
static int try_address(const struct sockaddr *sa, socklen_t n, int64_t deadline_ms,
                       int *out)
{
    int one = 1;
    int error;
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return errno;
    error = connect_within(fd, sa, n, deadline_ms);
    if (error != 0) {
        close(fd);
        return error;
    }
    if (sa->sa_family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    *out = fd;
    return 0;
}

static enum hvd_status failed(const char *whom, const char *where, int error,
                              struct hvi_err *err)
{
    if (error == EMFILE || error == ENFILE)
        return hvi_fail(err, HVD_ELIMIT,
                        "too many open files: raise the limit (ulimit -n)");
    return hvi_fail(err, error == ETIMEDOUT ? HVD_ETIMEDOUT : HVD_EIO,
                    "cannot reach %s at %s: %s", whom, where, strerror(error));
}

static bool try_again(int error)
{
    return error == ECONNREFUSED || error == EAGAIN || error == ENOENT ||
           error == EINTR;
}

static enum hvd_status dial_unix(const char *whom, const char *path,
                                 int64_t deadline_ms, int *out, struct hvi_err *err)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int error;

    if (path[0] == '\0')
        return hvi_fail(err, HVD_EINVAL, "unix: names no socket; write unix:path");
    if (strlen(path) >= sizeof sa.sun_path)
        return hvi_fail(err, HVD_EINVAL, "socket path %s is too long", path);
    memcpy(sa.sun_path, path, strlen(path));
    for (;;) {
        error = try_address((struct sockaddr *)&sa, sizeof sa, deadline_ms, out);
        if (error == 0)
            return HVD_OK;
        if (!try_again(error) || hvi_ms_left(deadline_ms) == 0)
            return failed(whom, path, error, err);
        poll(NULL, 0, RETRY_MS);
    }
}

static enum hvd_status split(const char *text, char host[HOST_MAX], char port[PORT_MAX],
                             struct hvi_err *err)
{
    const char *colon = strrchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : 0;

    if (n == 0 || n >= HOST_MAX || strlen(colon + 1) == 0 || strlen(colon + 1) > 5 ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) ||
        strtoul(colon + 1, NULL, 10) < 1 || strtoul(colon + 1, NULL, 10) > 65535)
        return hvi_fail(err, HVD_EINVAL,
                        "%.300s is no address: write host:port, [address]:port or "
                        "unix:path",
                        text);
    snprintf(port, PORT_MAX, "%s", colon + 1);
    if (text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    memcpy(host, text, n);
    host[n] = '\0';
    return HVD_OK;
}

static enum hvd_status dial_tcp(const char *whom, const char *where,
                                int64_t deadline_ms, int *out, struct hvi_err *err)
{
    char host[HOST_MAX];
    char port[PORT_MAX];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *list = NULL;
    enum hvd_status rc = split(where, host, port, err);
    int error;

    if (rc != HVD_OK)
        return rc;
    error = getaddrinfo(host, port, &hints, &list);
    if (error != 0)
        return hvi_fail(err, HVD_EIO, "cannot reach %s at %s: %s", whom, where,
                        gai_strerror(error));
    for (;;) {
        for (const struct addrinfo *a = list; a != NULL; a = a->ai_next) {
            error = try_address(a->ai_addr, a->ai_addrlen, deadline_ms, out);
            if (error == 0)
                break;
        }
        if (error == 0 || !try_again(error) || hvi_ms_left(deadline_ms) == 0)
            break;
        poll(NULL, 0, RETRY_MS);
    }
    freeaddrinfo(list);
    return error == 0 ? HVD_OK : failed(whom, where, error, err);
}

enum hvd_status hvi_dial(const char *whom, const char *where, int64_t deadline_ms,
                         int *out, struct hvi_err *err)
{
    if (strncmp(where, "unix:", 5) == 0)
        return dial_unix(whom, where + 5, deadline_ms, out, err);
    if (strncmp(where, "tcp:", 4) == 0)
        where += 4;
    return dial_tcp(whom, where, deadline_ms, out, err);
}

void hvi_dial_limit(int fd, int limit_ms)
{
    int on = 1;
    int idle_s = limit_ms / 4000 > 1 ? limit_ms / 4000 : 1;
    int every_s = limit_ms / 8000 > 1 ? limit_ms / 8000 : 1;
    unsigned dead_ms = (unsigned)limit_ms;

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
}
