/*
 * TCP: a link whose other end does not answer any more, although nobody closed it: power
 * lost, a cable pulled, a firewall that forgot the connection.
 *
 * Nothing on its way: the kernel's keep-alive asks, and ends the connection. Something
 * on its way: the kernel would try for a quarter of an hour, and TCP_USER_TIMEOUT cannot
 * be used, because it also ends connections to a peer that answers but does not read
 * (one that computes, or that is stopped). So while the plane waits it looks: bytes or
 * probes that were sent, and no answer of any kind since, for the limit.
 */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <string.h>
#include <sys/socket.h>

#include "proto/base/clock.h"
#include "worker/plane/cpu/tcp.h"

#define RTO_MAX_OPTION 44 /* TCP_RTO_MAX_MS, Linux 6.15; older ones refuse it */
#define RTO_MAX_MS 2000   /* a link that is back is found to be within this */

static void watch_socket(int fd, int limit_ms)
{
    int on = 1;
    int rto_ms = RTO_MAX_MS;
    int limit_s = limit_ms / 1000 > 4 ? limit_ms / 1000 : 4;
    int idle_s = limit_s / 4;
    int every_s = limit_s / 8 > 1 ? limit_s / 8 : 1;
    int count = (limit_s - idle_s) / every_s;

    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &every_s, sizeof every_s);
    setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);
    setsockopt(fd, IPPROTO_TCP, RTO_MAX_OPTION, &rto_ms, sizeof rto_ms);
}

void hvi_tcp_watch(struct hvi_plane *p, int limit_ms)
{
    struct hvi_tcp *t = hvi_tcp_from_plane(p);

    t->limit_ms = limit_ms;
    for (int r = 0; r < t->size; r++)
        if (t->peers[r].fd >= 0)
            watch_socket(t->peers[r].fd, limit_ms);
}

/* Since when it owes us an answer; 0: it does not. */
static int64_t unanswered_since(const struct hvi_tcp_peer *p, int64_t now)
{
    struct tcp_info info;
    socklen_t n = sizeof info;

    memset(&info, 0, sizeof info);
    if (getsockopt(p->fd, IPPROTO_TCP, TCP_INFO, &info, &n) != 0)
        return 0; /* a Unix socket */
    if (info.tcpi_unacked == 0 && info.tcpi_probes == 0)
        return 0;
    if (p->unanswered_ms == 0 || now - info.tcpi_last_ack_recv > p->unanswered_ms)
        return now;
    return p->unanswered_ms;
}

enum hvd_status hvi_tcp_look(struct hvi_tcp *t, struct hvi_err *err)
{
    int64_t now = hvi_now_ms();

    if (t->limit_ms == 0 || now < t->look_ms)
        return HVD_OK;
    t->look_ms = now + HVI_TCP_LOOK_MS;
    for (int32_t m = 0; m < t->g->nmembers; m++) {
        struct hvi_tcp_peer *p = hvi_tcp_peer(t, m);

        if (m == t->g->me)
            continue;
        p->unanswered_ms = unanswered_since(p, now);
        if (p->unanswered_ms != 0 && now - p->unanswered_ms >= t->limit_ms)
            return hvi_fail(err, HVD_EPEER,
                            "tcp: the connection to rank %d is broken: no answer for "
                            "%d s",
                            (int)t->g->members[m], t->limit_ms / 1000);
    }
    return HVD_OK;
}
