#include "coordinator/net/listen.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/listenall.h"
#include "proto/base/netaddr.h"
#include "proto/base/ports.h"

static enum hvd_status cannot(struct hvi_err *err, const char *where, int rc)
{
    char gone[HVI_PORTS_TEXT];
    const char *end = strrchr(where, ':');

    if (end != NULL && strcmp(end, ":0") == 0 && hvi_ports_gone(-rc, gone) != NULL)
        return hvi_fail(err, HVD_ELIMIT, "cannot listen on %s: %s", where, gone);
    return hvi_fail(err, HVD_EIO, "cannot listen on %s: %s%s", where, uv_strerror(rc),
                    rc == UV_EADDRINUSE ? "; is another coordinator running there?"
                                        : "");
}

/* A socket file that nobody listens on is left from a coordinator that was killed. */
static bool stale(const char *path)
{
    struct sockaddr_un sa = {.sun_family = AF_UNIX};
    struct stat st;
    bool refused;
    int fd;

    if (lstat(path, &st) != 0 || !S_ISSOCK(st.st_mode) || st.st_uid != geteuid())
        return false;
    memcpy(sa.sun_path, path, strlen(path) + 1);
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return false;
    refused =
        connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0 && errno == ECONNREFUSED;
    close(fd);
    return refused;
}

static bool no_folder(const char *path)
{
    char folder[sizeof((struct sockaddr_un *)0)->sun_path];
    char *slash;

    snprintf(folder, sizeof folder, "%s", path);
    slash = strrchr(folder, '/');
    if (slash == NULL || slash == folder)
        return false;
    *slash = '\0';
    return access(folder, F_OK) != 0;
}

static enum hvd_status listen_unix(struct hvi_listeners *all, uv_loop_t *loop,
                                   const char *path, uv_connection_cb cb,
                                   struct hvi_err *err)
{
    struct hvi_listener *l = &all->one[0];
    mode_t before;
    int rc;

    if (path[0] == '\0' || strlen(path) >= sizeof((struct sockaddr_un *)0)->sun_path)
        return hvi_fail(err, HVD_EINVAL, "a socket path has 1 to %zu bytes: '%s'",
                        sizeof((struct sockaddr_un *)0)->sun_path - 1, path);
    uv_pipe_init(loop, &l->u.pipe, 0);
    l->open = true;
    before = umask(0177); /* only this user may connect */
    rc = uv_pipe_bind(&l->u.pipe, path);
    if (rc == UV_EADDRINUSE && stale(path) && unlink(path) == 0)
        rc = uv_pipe_bind(&l->u.pipe, path);
    umask(before);
    if (rc == UV_EACCES && no_folder(path))
        rc = UV_ENOENT; /* libuv says EACCES for both */
    snprintf(all->endpoint, sizeof all->endpoint, "unix:%s", path);
    if (rc == 0)
        rc = uv_listen(&l->u.stream, HVI_LISTEN_BACKLOG, cb);
    return rc == 0 ? HVD_OK : cannot(err, all->endpoint, rc);
}

#define HOST_BYTES (HVI_LISTENERS_MAX * (HVI_ADDR_MAX + 3))

/* Takes the brackets off the n bytes. */
static void take_host(const char *text, size_t n, char *host)
{
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    memcpy(host, text, n);
    host[n] = '\0';
}

/* "ADDRESS:PORT"; brackets around IPv6. Text is cut into host and port. */
static bool split(const char *text, char host[HOST_BYTES], char port[8])
{
    const char *colon = strrchr(text, ':');
    size_t n = colon != NULL ? (size_t)(colon - text) : 0;

    if (colon == NULL || strlen(colon + 1) == 0 || strlen(colon + 1) > 5 ||
        strspn(colon + 1, "0123456789") != strlen(colon + 1) || n >= HOST_BYTES)
        return false;
    snprintf(port, 8, "%s", colon + 1);
    take_host(text, n, host);
    return true;
}

static void name_tcp(struct hvi_listeners *l)
{
    struct sockaddr_storage ss;
    char ip[INET6_ADDRSTRLEN] = "?";
    int n = sizeof ss;
    unsigned port;

    if (uv_tcp_getsockname(&l->one[0].u.tcp, (struct sockaddr *)&ss, &n) != 0)
        return;
    uv_ip_name((struct sockaddr *)&ss, ip, sizeof ip);
    port = ntohs(ss.ss_family == AF_INET ? ((struct sockaddr_in *)&ss)->sin_port
                                         : ((struct sockaddr_in6 *)&ss)->sin6_port);
    snprintf(l->endpoint, sizeof l->endpoint,
             ss.ss_family == AF_INET6 ? "tcp:[%s]:%u" : "tcp:%s:%u", ip, port);
}

/* "A,[B],C": each numeric. Host is cut into them. 0: too many, or one is empty. */
static size_t cut_hosts(char *host, const char *addr[HVI_LISTENERS_MAX])
{
    size_t n = 0;

    for (char *at = host; at != NULL; n++) {
        char *comma = strchr(at, ',');

        if (comma != NULL)
            *comma = '\0';
        if (n == HVI_LISTENERS_MAX || *at == '\0')
            return 0;
        take_host(at, strlen(at), at);
        addr[n] = at;
        at = comma != NULL ? comma + 1 : NULL;
    }
    return n;
}

static enum hvd_status listen_addresses(struct hvi_listeners *l, uv_loop_t *loop,
                                        const char *text, char *host, int port,
                                        uv_connection_cb cb, struct hvi_err *err)
{
    const char *addr[HVI_LISTENERS_MAX];
    int fds[HVI_LISTENERS_MAX];
    size_t n = cut_hosts(host, addr);
    int rc = 0;

    if (n == 0)
        return hvi_fail(err, HVD_EINVAL,
                        "'%s': 1 to %d addresses, with a comma between", text,
                        HVI_LISTENERS_MAX);
    if (!hvi_listen_all(addr, n, port, port, fds, &port))
        return cannot(err, text, uv_translate_sys_error(errno));
    for (size_t i = 0; i < n; i++) {
        if (fds[i] < 0)
            continue;
        uv_tcp_init(loop, &l->one[i].u.tcp);
        l->one[i].open = true;
        if (rc == 0)
            rc = uv_tcp_open(&l->one[i].u.tcp, fds[i]);
        if (rc != 0)
            close(fds[i]);
        else
            rc = uv_listen(&l->one[i].u.stream, HVI_LISTEN_BACKLOG, cb);
    }
    return rc == 0 ? HVD_OK : cannot(err, text, rc);
}

static enum hvd_status listen_name(struct hvi_listener *l, uv_loop_t *loop,
                                   const char *text, const char *host, const char *port,
                                   uv_connection_cb cb, struct hvi_err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE};
    struct addrinfo *list = NULL;
    int rc;

    if (host[0] == '\0')
        hints.ai_family = AF_INET;
    rc = getaddrinfo(host[0] != '\0' ? host : NULL, port, &hints, &list);
    if (rc != 0)
        return hvi_fail(err, HVD_EIO, "cannot listen on %s: %s", text,
                        gai_strerror(rc));
    uv_tcp_init(loop, &l->u.tcp);
    l->open = true;
    rc = uv_tcp_bind(&l->u.tcp, list->ai_addr, 0);
    freeaddrinfo(list);
    if (rc == 0)
        rc = uv_listen(&l->u.stream, HVI_LISTEN_BACKLOG, cb);
    return rc == 0 ? HVD_OK : cannot(err, text, rc);
}

static enum hvd_status listen_tcp(struct hvi_listeners *l, uv_loop_t *loop,
                                  const char *text, uv_connection_cb cb,
                                  struct hvi_err *err)
{
    char host[HOST_BYTES], port[8];
    enum hvd_status rc;

    if (!split(text, host, port) || strtol(port, NULL, 10) > 65535)
        return hvi_fail(
            err, HVD_EINVAL,
            "'%s' is not an endpoint: write ADDRESS:PORT, [ADDRESS]:PORT or "
            "unix:PATH",
            text);
    rc = strchr(host, ',') != NULL
             ? listen_addresses(l, loop, text, host, (int)strtol(port, NULL, 10), cb,
                                err)
             : listen_name(&l->one[0], loop, text, host, port, cb, err);
    if (rc == HVD_OK)
        name_tcp(l);
    return rc;
}

enum hvd_status hvi_listen(struct hvi_listeners *l, uv_loop_t *loop, const char *where,
                           uv_connection_cb cb, void *data, struct hvi_err *err)
{
    enum hvd_status rc;

    memset(l, 0, sizeof *l);
    if (strncmp(where, "unix:", 5) == 0)
        rc = listen_unix(l, loop, where + 5, cb, err);
    else
        rc = listen_tcp(l, loop, strncmp(where, "tcp:", 4) == 0 ? where + 4 : where, cb,
                        err);
    for (size_t i = 0; i < HVI_LISTENERS_MAX; i++)
        l->one[i].u.handle.data = data;
    return rc;
}

void hvi_listen_close(struct hvi_listeners *l)
{
    for (size_t i = 0; i < HVI_LISTENERS_MAX; i++) {
        if (l->one[i].open)
            uv_close(&l->one[i].u.handle, NULL);
        l->one[i].open = l->one[i].waiting = false;
    }
}
