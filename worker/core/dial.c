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
#include "proto/base/ports.h"

#define STAGGER_MS 250 /* before the next way is tried too, RFC 8305 section 8 */
#define RETRY_MS 20    /* between attempts: not up yet, or its backlog is full */
enum { HOST_MAX = 256, PORT_MAX = 8 };

static const struct hvi_dial_watch nothing = {.fd = -1};

/* poll() of p[n] until until_ms; p has room for one more. 0, ECANCELED or another errno. */
static int wait_for(struct pollfd *p, int n, int64_t until_ms,
                    const struct hvi_dial_watch *watch)
{
    struct pollfd kept = p[n];
    int ready, error = 0;
    bool watched;

    do {
        p[n] = (struct pollfd){.fd = watch->fd, .events = POLLIN};
        ready = poll(p, (nfds_t)n + 1, hvi_ms_left(until_ms));
        watched = ready > 0 && p[n].revents != 0;
        if (ready < 0 && errno != EINTR)
            error = errno;
        else if (watched && watch->called_off(watch->arg))
            error = ECANCELED;
        /* else what the watch had is read */
    } while (error == 0 && (ready < 0 || (watched && ready == 1)));
    p[n] = kept;
    return error;
}

static int pause_before_retry(const struct hvi_dial_watch *watch)
{
    struct pollfd p[1] = {{.fd = -1}};

    return wait_for(p, 0, hvi_now_ms() + RETRY_MS, watch);
}

/* connect() that gives up at deadline_ms: 0 or errno. */
static int connect_within(int fd, const struct sockaddr *sa, socklen_t n,
                          int64_t deadline_ms, const struct hvi_dial_watch *watch)
{
    struct pollfd p[2] = {{.fd = fd, .events = POLLOUT}, {.fd = -1}};
    int error = 0;
    socklen_t size = sizeof error;

    if (connect(fd, sa, n) == 0)
        return 0;
    if (errno != EINPROGRESS)
        return errno;
    error = wait_for(p, 1, deadline_ms, watch);
    if (error != 0 || p[0].revents == 0)
        return error != 0 ? error : ETIMEDOUT;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0)
        return errno;
    return error;
}

/* One attempt at one address: 0 or errno. */
static int try_address(const struct sockaddr *sa, socklen_t n, int64_t deadline_ms,
                       const struct hvi_dial_watch *watch, int *out)
{
    int one = 1;
    int error;
    int fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    if (fd < 0)
        return errno;
    error = connect_within(fd, sa, n, deadline_ms, watch);
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
    char gone[HVI_PORTS_TEXT];

    if (error == ECANCELED)
        return HVD_INPROGRESS;
    if (error == EMFILE || error == ENFILE)
        return hvi_fail(err, HVD_ELIMIT,
                        "too many open files: raise the limit (ulimit -n)");
    if (hvi_ports_gone(error, gone) != NULL)
        return hvi_fail(err, HVD_ELIMIT, "cannot reach %s at %s: %s", whom, where,
                        gone);
    return hvi_fail(err, error == ETIMEDOUT ? HVD_ETIMEDOUT : HVD_EIO,
                    "cannot reach %s at %s: %s", whom, where, strerror(error));
}

static bool try_again(int error)
{
    return error == ECONNREFUSED || error == EAGAIN || error == ENOENT ||
           error == EINTR;
}

static enum hvd_status dial_unix(const char *whom, const char *path,
                                 int64_t deadline_ms,
                                 const struct hvi_dial_watch *watch, int *out,
                                 struct hvi_err *err)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    int error;

    if (path[0] == '\0')
        return hvi_fail(err, HVD_EINVAL, "unix: names no socket; write unix:path");
    if (strlen(path) >= sizeof sa.sun_path)
        return hvi_fail(err, HVD_EINVAL, "socket path %s is too long", path);
    memcpy(sa.sun_path, path, strlen(path));
    for (;;) {
        error = try_address((struct sockaddr *)&sa, sizeof sa, deadline_ms, watch, out);
        if (error == 0)
            return HVD_OK;
        if (!try_again(error) || hvi_ms_left(deadline_ms) == 0)
            break;
        error = pause_before_retry(watch);
        if (error != 0)
            break;
    }
    return failed(whom, path, error, err);
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
                                int64_t deadline_ms, const struct hvi_dial_watch *watch,
                                int *out, struct hvi_err *err)
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
            error = try_address(a->ai_addr, a->ai_addrlen, deadline_ms, watch, out);
            if (error == 0 || error == ECANCELED)
                break;
        }
        if (error == 0 || !try_again(error) || hvi_ms_left(deadline_ms) == 0)
            break;
        error = pause_before_retry(watch);
        if (error != 0)
            break;
    }
    freeaddrinfo(list);
    return error == 0 ? HVD_OK : failed(whom, where, error, err);
}

static enum hvd_status dial_one(const char *whom, const char *where,
                                int64_t deadline_ms, const struct hvi_dial_watch *watch,
                                int *out, struct hvi_err *err)
{
    if (strncmp(where, "unix:", 5) == 0)
        return dial_unix(whom, where + 5, deadline_ms, watch, out, err);
    if (strncmp(where, "tcp:", 4) == 0)
        where += 4;
    return dial_tcp(whom, where, deadline_ms, watch, out, err);
}

enum hvd_status hvi_dial(const char *whom, const char *where, int64_t deadline_ms,
                         int *out, struct hvi_err *err)
{
    return dial_one(whom, where, deadline_ms, &nothing, out, err);
}

/* ---- several ways ---------------------------------------------------------------- */

struct race {
    const char *const *where;
    struct pollfd p[HVI_DIAL_MAX + 1];
    const struct hvi_dial_watch *watch;
    int n, started, pending, error; /* error: the first way's, 0: none yet */
    int64_t next_ms;                /* when the next way's turn comes */
};

/* 0: connected; EINPROGRESS; another errno. */
static int begin(const char *where, int *out)
{
    char host[HOST_MAX], port[PORT_MAX];
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_NUMERICHOST | AI_NUMERICSERV};
    struct addrinfo *a = NULL;
    int error = 0;
    int fd;

    if (strncmp(where, "tcp:", 4) == 0)
        where += 4;
    if (split(where, host, port, NULL) != HVD_OK ||
        getaddrinfo(host, port, &hints, &a) != 0)
        return EADDRNOTAVAIL;
    fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0 || connect(fd, a->ai_addr, a->ai_addrlen) != 0)
        error = errno;
    freeaddrinfo(a);
    if (fd >= 0 && error != 0 && error != EINPROGRESS)
        close(fd);
    else if (fd >= 0)
        *out = fd;
    return error;
}

static void note_error(struct race *r, int error)
{
    if (r->error == 0 || error == EMFILE || error == ENFILE)
        r->error = error;
    r->next_ms = 0; /* at once */
}

/* Starts those whose turn it is. true: *which is connected. */
static bool start_due(struct race *r, int *which)
{
    while (r->started < r->n && (r->pending == 0 || hvi_ms_left(r->next_ms) == 0)) {
        int i = r->started++;
        int error = begin(r->where[i], &r->p[i].fd);

        *which = i;
        if (error == 0)
            return true;
        if (error != EINPROGRESS) {
            note_error(r, error);
            continue;
        }
        r->pending++;
        r->next_ms = hvi_now_ms() + STAGGER_MS;
    }
    return false;
}

/* What has come of those under way. true: *which is connected. */
static bool look(struct race *r, int *which)
{
    for (int i = 0; i < r->started; i++) {
        int error = 0;
        socklen_t size = sizeof error;

        if (r->p[i].fd < 0 || r->p[i].revents == 0)
            continue;
        *which = i;
        if (getsockopt(r->p[i].fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
            error == 0)
            return true;
        close(r->p[i].fd);
        r->p[i].fd = -1;
        r->pending--;
        note_error(r, error);
    }
    return false;
}

/* All ways once. 0, or the errno of the first that failed. */
static int run_race(struct race *r, int64_t deadline_ms, int *out, int *which)
{
    bool won = start_due(r, which);

    while (!won && r->pending > 0 && hvi_ms_left(deadline_ms) > 0) {
        int64_t until = deadline_ms;
        int error;

        if (r->started < r->n && r->next_ms < until)
            until = r->next_ms;
        error = wait_for(r->p, r->started, until, r->watch);
        if (error != 0) { /* called off, or poll() fails and would again */
            r->error = error;
            break;
        }
        won = look(r, which) || start_due(r, which);
    }
    for (int i = 0; i < r->started; i++)
        if (r->p[i].fd >= 0 && !(won && i == *which))
            close(r->p[i].fd);
    if (!won)
        return r->error != 0 ? r->error : ETIMEDOUT;
    *out = r->p[*which].fd;
    return 0;
}

enum hvd_status hvi_dial_any(const char *whom, const char *const where[], int n,
                             int64_t deadline_ms, const struct hvi_dial_watch *watch,
                             int *out, int *which, struct hvi_err *err)
{
    enum hvd_status rc;
    char also[32];
    int error = 0, paused;

    *which = 0;
    if (n == 1)
        return dial_one(whom, where[0], deadline_ms, watch, out, err);
    for (;;) {
        struct race r = {.where = where, .n = n, .watch = watch};
        int last = error;

        for (int i = 0; i < n; i++)
            r.p[i] = (struct pollfd){.fd = -1, .events = POLLOUT};
        error = run_race(&r, deadline_ms, out, which);
        if (error == 0)
            return HVD_OK;
        if (error == ETIMEDOUT && last != 0)
            error = last; /* the time was over: what it was before tells more */
        if (!try_again(error) || hvi_ms_left(deadline_ms) == 0)
            break;
        paused = pause_before_retry(watch);
        if (paused != 0) {
            error = paused;
            break;
        }
    }
    snprintf(also, sizeof also, "and %d other %s", n - 1, n == 2 ? "way" : "ways");
    rc = failed(whom, where[0], error, err);
    if (err != NULL && rc != HVD_ELIMIT && rc != HVD_INPROGRESS)
        (void)hvi_fail(err, rc, "cannot reach %s at %s %s: %s", whom, where[0], also,
                       strerror(error));
    return rc;
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
