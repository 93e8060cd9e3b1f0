#include "test.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "worker/core/dial.h"
#include "worker/core/ways.h"

Test(ways, loopback_stays_alone, .timeout = 5)
{
    struct hvi_ways w;

    hvi_ways_find("127.0.0.1", NULL, &w);
    cr_assert_eq(w.n, 1);
    cr_assert_str_eq(w.addr[0], "127.0.0.1");
    hvi_ways_find("::1", NULL, &w);
    cr_assert_eq(w.n, 1);
}

Test(ways, the_known_one_is_first_and_no_other_is_near_only, .timeout = 5)
{
    struct hvi_netaddrs own;
    struct hvi_ways w;

    hvi_netaddrs_own(&own);
    hvi_ways_find("192.0.2.77", NULL, &w);
    cr_assert_geq(w.n, 1);
    cr_assert_leq(w.n, HVI_WAYS_MAX);
    cr_assert_str_eq(w.addr[0], "192.0.2.77");
    for (int i = 1; i < w.n; i++) {
        cr_assert(hvi_netaddrs_have(&own, w.addr[i]), "%s", w.addr[i]);
        cr_assert_neq(strncmp(w.addr[i], "127.", 4), 0);
        cr_assert_null(strchr(w.addr[i], '%'), "%s", w.addr[i]);
    }
    hvi_ways_find("192.0.2.77", "no-such,nor-this", &w);
    cr_assert_eq(w.n, 0, "an address of other interfaces is not used");
    for (size_t i = 0; i < own.n; i++) {
        hvi_ways_find(own.list[i], "no-such,nor-this", &w);
        cr_assert_eq(w.n, hvi_netaddr_loopback(own.list[i]) ? 1 : 0, "%s", own.list[i]);
    }
    cr_assert_not(hvi_netaddrs_have(&own, "192.0.2.77"));
    cr_assert(hvi_netaddrs_have(&own, "127.0.0.1"));
    hvi_netaddrs_fini(&own);
}

/* A port of the loopback; who listens there is *fd. */
static int port_of(int *fd, bool listening)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    socklen_t n = sizeof a;

    *fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    cr_assert_eq(bind(*fd, (struct sockaddr *)&a, sizeof a), 0);
    cr_assert_eq(getsockname(*fd, (struct sockaddr *)&a, &n), 0);
    if (listening)
        cr_assert_eq(listen(*fd, 4), 0);
    return ntohs(a.sin_port);
}

static bool note_and_go(void *arg)
{
    char byte;
    int *fd = arg;

    return read(*fd, &byte, 1) == 1 && byte == '!';
}

/* Nobody listens there, and before the time is over there is a reason to give up. */
Test(ways, what_is_dialled_in_vain_can_be_called_off, .timeout = 10)
{
    char bad[64], worse[64];
    const char *where[] = {bad, worse};
    struct hvi_err err = {{0}};
    int down[2], says[2], fd = -1, which = -1;
    struct hvi_dial_watch watch;
    int64_t start = hvi_now_ms();

    snprintf(bad, sizeof bad, "tcp:127.0.0.1:%d", port_of(&down[0], false));
    snprintf(worse, sizeof worse, "tcp:127.0.0.1:%d", port_of(&down[1], false));
    cr_assert_eq(pipe(says), 0);
    watch = (struct hvi_dial_watch){says[0], note_and_go, &says[0]};
    cr_assert_eq(write(says[1], "..!.!", 5), 5); /* dots: of no matter */
    for (int n = 1; n <= 2; n++)
        cr_assert_eq(
            hvi_dial_any("x", where, n, start + 8000, &watch, &fd, &which, &err),
            HVD_INPROGRESS);
    cr_assert_lt(hvi_now_ms() - start, 4000);
    cr_assert_eq(fcntl(says[0], F_GETFD), 0, "what is watched stays open");
    for (int i = 0; i < 2; i++) {
        close(down[i]);
        close(says[i]);
    }
}

Test(ways, a_way_that_refuses_is_followed_by_the_next, .timeout = 10)
{
    char good[64], bad[64], worse[64];
    const char *where[] = {bad, worse, good};
    struct hvi_err err = {{0}};
    const struct hvi_dial_watch none = {.fd = -1};
    int up, down, fd = -1, which = -1;

    snprintf(good, sizeof good, "tcp:127.0.0.1:%d", port_of(&up, true));
    snprintf(bad, sizeof bad, "tcp:127.0.0.1:%d", port_of(&down, false));
    snprintf(worse, sizeof worse, "tcp:no-number:1");
    cr_assert_eq(
        hvi_dial_any("x", where, 3, hvi_now_ms() + 5000, &none, &fd, &which, &err),
        HVD_OK, "%s", err.text);
    cr_assert_eq(which, 2);
    close(fd);
    cr_assert_eq(
        hvi_dial_any("x", where, 2, hvi_now_ms() + 100, &none, &fd, &which, &err),
        HVD_EIO);
    cr_assert_not_null(strstr(err.text, "and 1 other way"), "%s", err.text);
    close(up);
    close(down);
}
