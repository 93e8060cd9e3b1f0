#include "test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "worker/core/dial.h"

static int listen_on(int family, int backlog, char *where, size_t cap)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = in6addr_loopback};
    struct sockaddr_in four = {.sin_family = AF_INET,
                               .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct sockaddr *sa = family == AF_INET ? (void *)&four : (void *)&six;
    socklen_t n = family == AF_INET ? sizeof four : sizeof six;
    int fd = socket(family, SOCK_STREAM, 0);

    if (fd < 0 || bind(fd, sa, n) != 0) {
        close(fd);
        return -1;
    }
    cr_assert(listen(fd, backlog) == 0 && getsockname(fd, sa, &n) == 0);
    if (family == AF_INET)
        snprintf(where, cap, "127.0.0.1:%d", ntohs(four.sin_port));
    else
        snprintf(where, cap, "[::1]:%d", ntohs(six.sin6_port));
    return fd;
}

static enum hvd_status dial(const char *where, int ms, struct hvi_err *err)
{
    int fd = -1;
    enum hvd_status rc = hvi_dial("the moon", where, hvi_now_ms() + ms, &fd, err);

    cr_assert_eq(rc == HVD_OK, fd >= 0, "%s", where);
    if (fd >= 0)
        close(fd);
    return rc;
}

Test(dial, every_form_of_address, .timeout = 10)
{
    char where[80], text[128];
    struct hvi_err err = {{0}};
    int four = listen_on(AF_INET, 8, where, sizeof where);
    int six;

    snprintf(text, sizeof text, "tcp:%s", where);
    cr_assert_eq(dial(where, 2000, &err), HVD_OK, "%s", err.text);
    cr_assert_eq(dial(text, 2000, &err), HVD_OK, "%s", err.text);
    close(four);
    six = listen_on(AF_INET6, 8, where, sizeof where);
    if (six < 0)
        return; /* no IPv6 here */
    snprintf(text, sizeof text, "tcp:::1:%s", strrchr(where, ':') + 1);
    cr_assert_eq(dial(where, 2000, &err), HVD_OK, "%s", err.text);
    cr_assert_eq(dial(text, 2000, &err), HVD_OK, "%s", err.text);
    close(six);
}

Test(dial, what_is_no_address_is_said_at_once, .timeout = 10)
{
    static const char *const bad[] = {"", "x", ":1", "host:", "host:123456", "tcp:"};
    struct hvi_err err = {{0}};

    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        cr_assert_eq(dial(bad[i], 5000, &err), HVD_EINVAL, "%s: %s", bad[i], err.text);
        cr_assert(strstr(err.text, "write host:port") != NULL, "%s", err.text);
    }
}

Test(dial, nobody_there_is_tried_until_the_deadline, .timeout = 10)
{
    char where[80];
    struct hvi_err err = {{0}};
    int64_t began = hvi_now_ms();
    int fd = listen_on(AF_INET, 8, where, sizeof where);

    close(fd);
    cr_assert_eq(dial(where, 200, &err), HVD_EIO);
    cr_assert(strstr(err.text, "cannot reach the moon at 127.0.0.1:") != NULL, "%s",
              err.text);
    cr_assert_eq(dial("unix:/nowhere/at/all", 200, &err), HVD_EIO);
    cr_assert(hvi_now_ms() - began >= 400);
}

/* A full backlog drops what comes, as a firewall does: connect() alone would wait for
 * two minutes. */
Test(dial, no_answer_ends_at_the_deadline, .timeout = 20)
{
    char where[80];
    struct hvi_err err = {{0}};
    int64_t began = hvi_now_ms();
    int fd = listen_on(AF_INET, 0, where, sizeof where);
    enum hvd_status rc = HVD_OK;
    int kept[16];
    int n = 0;

    while (rc == HVD_OK && n < 16) {
        rc = hvi_dial("the moon", where, hvi_now_ms() + 300, &kept[n], &err);
        n += rc == HVD_OK;
    }
    cr_assert_eq(rc, HVD_ETIMEDOUT, "%d connections: %s", n, err.text);
    cr_assert(hvi_now_ms() - began < 5000);
    while (n > 0)
        close(kept[--n]);
    close(fd);
}

static void limit_files(rlim_t n)
{
    struct rlimit limit;

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &limit), 0);
    limit.rlim_cur = n;
    cr_assert_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* From now on poll() is EINVAL. */
static bool spoil_poll(void *arg)
{
    (void)arg;
    limit_files(0);
    return false;
}

Test(dial, a_poll_that_fails_is_not_called_off, .timeout = 10)
{
    static const char *const unix_way[] = {"unix:/nowhere/at/all"};
    static const char *const tcp_way[] = {"127.0.0.1:1"};
    const char *const *const ways[] = {unix_way, tcp_way};
    struct rlimit kept;
    int ends[2];

    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &kept), 0);
    cr_assert(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    for (int i = 0; i < 2; i++) {
        struct hvi_dial_watch watch = {.fd = ends[0], .called_off = spoil_poll};
        struct hvi_err err = {{0}};
        int fd = -1, which;
        enum hvd_status rc = hvi_dial_any("the moon", ways[i], 1, hvi_now_ms() + 5000,
                                          &watch, &fd, &which, &err);

        limit_files(kept.rlim_cur);
        cr_assert_eq(rc, HVD_EIO, "%s: %d", ways[i][0], rc);
        cr_assert(strstr(err.text, "cannot reach the moon at ") != NULL &&
                      strstr(err.text, strerror(EINVAL)) != NULL,
                  "%s", err.text);
    }
}

/* The first way does not answer; then poll() fails, and nobody turns in circles. */
Test(dial, a_poll_that_fails_ends_the_race, .timeout = 20)
{
    char where[80];
    const char *const ways[] = {where, where};
    struct hvi_err err = {{0}};
    int64_t began;
    int fd = listen_on(AF_INET, 0, where, sizeof where);
    int ends[2], got = -1, which;
    struct hvi_dial_watch watch = {.called_off = spoil_poll};
    struct rlimit kept;
    enum hvd_status rc = HVD_OK;

    for (int n = 0; n < 16 && rc == HVD_OK; n++)
        rc = hvi_dial("the moon", where, hvi_now_ms() + 300, &got, &err);
    cr_assert_eq(rc, HVD_ETIMEDOUT, "%s", err.text);
    cr_assert_eq(getrlimit(RLIMIT_NOFILE, &kept), 0);
    cr_assert(pipe(ends) == 0 && write(ends[1], "x", 1) == 1);
    watch.fd = ends[0];
    began = hvi_now_ms();
    rc = hvi_dial_any("the moon", ways, 2, began + 3000, &watch, &got, &which, &err);
    limit_files(kept.rlim_cur);
    cr_assert_eq(rc, HVD_EIO, "%d: %s", rc, err.text);
    cr_assert(hvi_now_ms() - began < 2000);
    close(fd);
}
