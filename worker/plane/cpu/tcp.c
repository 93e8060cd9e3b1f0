/*
 * The TCP plane: connections, the operations table, and the pump that moves messages.
 * What the messages of a kind are is in tcp_reduce.c and tcp_move.c.
 *
 * A group: start checks it and picks the kind; progress sends and receives on every
 * connection what it can without blocking, lets the kind fold what has come, and goes
 * round again as long as anything moved; wait polls for what is missing. Payload goes
 * from and to the user's memory wherever the kind says so. A group is over for a rank
 * when its last message is with the kernel and its outputs are written.
 *
 * A peer may be ahead: its next message may belong to a later group, or there is no
 * room for it yet. Then only the header is taken and the connection is left alone
 * (`held`).
 *
 * Failure: a connection that ends, or that brings what cannot be next, breaks the
 * plane; progress names the rank. abort, from any thread, is a flag and an eventfd in
 * the poll. A link that is silent: tcp_watch.c.
 */
#include "worker/plane/cpu/tcp.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/assert.h"
#include "proto/base/buf.h"
#include "proto/base/clock.h"

#define PLANE_MAGIC UINT64_C(0x68766474637031)
enum {
    NEAR_SEND_BYTES = 128 * 1024,
    STAGING_MAX_BYTES = 4 * 1024 * 1024, /* of one window's chunk of all ranks */
    STEP_MIN_US = 50,                    /* of a sleep that nobody ends */
    STEP_MAX_US = 1000
};
#define CACHE_BYTES (8 * 1024 * 1024)

/* ---- lists of memory */

bool hvi_tcp_add(struct hvi_tcp_list *l, const void *data, int64_t size_bytes)
{
    if (l->skip >= size_bytes) {
        l->skip -= size_bytes;
        return true;
    }
    if (l->n == HVI_TCP_IOV_MAX)
        return false;
    l->v[l->n].iov_base = (uint8_t *)(uintptr_t)data + l->skip;
    l->v[l->n].iov_len = (size_t)(size_bytes - l->skip);
    l->n++;
    l->size_bytes += size_bytes - l->skip;
    l->skip = 0;
    return true;
}

static bool add_filler(struct hvi_tcp_list *l, const void *filler, int64_t filler_bytes,
                       int64_t size_bytes)
{
    if (l->skip >= size_bytes) {
        l->skip -= size_bytes;
        return true;
    }
    size_bytes -= l->skip;
    l->skip = 0;
    for (int64_t n; size_bytes > 0; size_bytes -= n) {
        n = size_bytes < filler_bytes ? size_bytes : filler_bytes;
        if (!hvi_tcp_add(l, filler, n))
            return false;
    }
    return true;
}

bool hvi_tcp_add_zeros(struct hvi_tcp_list *l, int64_t size_bytes)
{
    static const uint8_t zeros[HVI_TCP_BUF_BYTES];

    return add_filler(l, zeros, (int64_t)sizeof(zeros), size_bytes);
}

bool hvi_tcp_add_scrap(const struct hvi_tcp *t, struct hvi_tcp_list *l,
                       int64_t size_bytes)
{
    return add_filler(l, t->scrap, t->part_bytes, size_bytes);
}

/* ---- one connection */

static enum hvd_status link_failed(const struct hvi_tcp *t, int32_t m, const char *what,
                                   int error, struct hvi_err *err)
{
    int rank = (int)t->g->members[m];

    if (error == 0)
        return hvi_fail(err, HVD_EPEER, "tcp: rank %d closed its data connection",
                        rank);
    return hvi_fail(err, HVD_EPEER, "tcp: %s rank %d: %s", what, rank, strerror(error));
}

/* At most one message, or what the socket takes of it. */
static enum hvd_status send_some(struct hvi_tcp *t, int32_t m, bool *moved,
                                 struct hvi_err *err)
{
    struct hvi_tcp_peer *p = hvi_tcp_peer(t, m);
    struct hvi_tcp_msg msg;
    int64_t whole;

    if (!p->writable || p->sent >= t->kind->send_count(t, m))
        return HVD_OK;
    msg = t->kind->send_at(t, m, p->sent);
    if (!msg.ready)
        return HVD_OK;
    whole = HVI_TCP_HEAD_BYTES + msg.size_bytes;
    while (p->send_at < whole) {
        struct hvi_tcp_list l = {.skip = p->send_at};
        struct msghdr mh = {.msg_iov = l.v};
        uint8_t head[HVI_TCP_HEAD_BYTES];
        struct hvi_cursor c;
        ssize_t n;

        hvi_cursor_init(&c, head, sizeof(head));
        hvi_put_u64(&c, t->g->seq);
        hvi_put_u32(&c, (uint32_t)p->sent);
        hvi_put_u32(&c, (uint32_t)msg.size_bytes);
        hvi_tcp_add(&l, head, HVI_TCP_HEAD_BYTES);
        if (msg.size_bytes > 0)
            t->kind->send_list(t, m, p->sent, &l);
        mh.msg_iovlen = (size_t)l.n;
        n = sendmsg(p->fd, &mh, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
            return link_failed(t, m, "sending to", errno, err);
        if (n > 0) {
            p->send_at += n;
            *moved = true;
        }
        if (n < l.size_bytes) {
            p->writable = false;
            return HVD_OK;
        }
    }
    p->send_at = 0;
    p->sent++;
    return HVD_OK;
}

/* Reads into the list and then ahead into the (empty) buffer; *out: bytes, 0: none. */
static enum hvd_status read_into(struct hvi_tcp *t, int32_t m, struct hvi_tcp_list *l,
                                 ssize_t *out, struct hvi_err *err)
{
    struct hvi_tcp_peer *p = hvi_tcp_peer(t, m);
    int64_t room = HVI_TCP_BUF_BYTES - p->buf_end;
    ssize_t n;

    l->v[l->n] = (struct iovec){p->buf + p->buf_end, (size_t)room};
    do
        n = readv(p->fd, l->v, l->n + 1);
    while (n < 0 && errno == EINTR);
    if (n == 0)
        return link_failed(t, m, NULL, 0, err);
    if (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK)
        return link_failed(t, m, "receiving from", errno, err);
    n = n < 0 ? 0 : n;
    if (n < l->size_bytes + room)
        p->readable = false;
    if (n > l->size_bytes)
        p->buf_end += (int)(n - l->size_bytes);
    *out = n;
    return HVD_OK;
}

/* True: a whole header is in the buffer. */
static enum hvd_status fetch_head(struct hvi_tcp *t, int32_t m, bool *here,
                                  struct hvi_err *err)
{
    struct hvi_tcp_peer *p = hvi_tcp_peer(t, m);
    enum hvd_status rc = HVD_OK;

    while (p->buf_end - p->buf_from < HVI_TCP_HEAD_BYTES && p->readable) {
        struct hvi_tcp_list l = {.n = 0};
        ssize_t n;

        memmove(p->buf, p->buf + p->buf_from, (size_t)(p->buf_end - p->buf_from));
        p->buf_end -= p->buf_from;
        p->buf_from = 0;
        rc = read_into(t, m, &l, &n, err);
        if (rc != HVD_OK)
            return rc;
    }
    *here = p->buf_end - p->buf_from >= HVI_TCP_HEAD_BYTES;
    return rc;
}

/* Takes the next message's header if it belongs to this group and there is room. */
static enum hvd_status open_message(struct hvi_tcp *t, int32_t m, struct hvi_err *err)
{
    struct hvi_tcp_peer *p = hvi_tcp_peer(t, m);
    struct hvi_tcp_msg msg;
    struct hvi_cursor c;
    uint64_t seq;
    uint32_t step, length;

    hvi_cursor_init_ro(&c, p->buf + p->buf_from, HVI_TCP_HEAD_BYTES);
    seq = hvi_get_u64(&c);
    step = hvi_get_u32(&c);
    length = hvi_get_u32(&c);
    p->held = seq > t->g->seq;
    if (p->held)
        return HVD_OK;
    if (seq < t->g->seq || step != (uint32_t)p->received)
        return hvi_fail(
            err, HVD_EPROTO,
            "tcp: rank %d sent group %llu step %u instead of %llu step %lld",
            (int)t->g->members[m], (unsigned long long)seq, step,
            (unsigned long long)t->g->seq, (long long)p->received);
    msg = t->kind->recv_at(t, m, p->received);
    p->held = !msg.ready;
    if (p->held)
        return HVD_OK;
    if (length != msg.size_bytes && !(length == 0 && msg.may_be_empty))
        return hvi_fail(
            err, HVD_EPROTO,
            "tcp: rank %d sent %u bytes instead of %lld in group %llu step %u",
            (int)t->g->members[m], length, (long long)msg.size_bytes,
            (unsigned long long)seq, step);
    p->buf_from += HVI_TCP_HEAD_BYTES;
    p->recv_size = length;
    p->recv_at = 0;
    return HVD_OK;
}

static void take_from_buffer(struct hvi_tcp_peer *p, const struct hvi_tcp_list *l)
{
    for (int i = 0; i < l->n && p->buf_from < p->buf_end; i++) {
        size_t have = (size_t)(p->buf_end - p->buf_from);
        size_t n = l->v[i].iov_len < have ? l->v[i].iov_len : have;

        memcpy(l->v[i].iov_base, p->buf + p->buf_from, n);
        p->buf_from += (int)n;
        p->recv_at += (int64_t)n;
    }
}

/* Payload of the open message, as much as is there. */
static enum hvd_status read_payload(struct hvi_tcp *t, int32_t m, bool *moved,
                                    struct hvi_err *err)
{
    struct hvi_tcp_peer *p = hvi_tcp_peer(t, m);

    while (p->recv_at < p->recv_size) {
        struct hvi_tcp_list l = {.skip = p->recv_at};
        enum hvd_status rc;
        ssize_t n;

        t->kind->recv_list(t, m, p->received, &l);
        if (p->buf_from < p->buf_end) {
            take_from_buffer(p, &l);
            *moved = true;
            continue;
        }
        if (!p->readable)
            return HVD_OK;
        p->buf_from = p->buf_end = 0;
        if (p->recv_at + l.size_bytes < p->recv_size) { /* a full list: nothing ahead */
            p->buf_end = HVI_TCP_BUF_BYTES;
            rc = read_into(t, m, &l, &n, err);
            p->buf_end = 0;
        } else {
            rc = read_into(t, m, &l, &n, err);
        }
        if (rc != HVD_OK)
            return rc;
        if (n == 0)
            return HVD_OK;
        p->recv_at += n < l.size_bytes ? n : l.size_bytes;
        *moved = true;
    }
    return HVD_OK;
}

/* At most one message, or what is there of it. */
static enum hvd_status recv_some(struct hvi_tcp *t, int32_t m, bool *moved,
                                 struct hvi_err *err)
{
    struct hvi_tcp_peer *p = hvi_tcp_peer(t, m);
    enum hvd_status rc = HVD_OK;
    int64_t size_bytes;
    bool here = false;

    if (p->received >= t->kind->recv_count(t, m))
        return HVD_OK;
    if (p->recv_size < 0) {
        rc = fetch_head(t, m, &here, err);
        if (rc == HVD_OK && here)
            rc = open_message(t, m, err);
        if (rc != HVD_OK || p->recv_size < 0)
            return rc;
        *moved = true;
    }
    rc = read_payload(t, m, moved, err);
    if (rc != HVD_OK || p->recv_at < p->recv_size)
        return rc;
    size_bytes = p->recv_size;
    p->recv_size = -1;
    p->received++;
    if (t->kind->received == NULL)
        return HVD_OK;
    return t->kind->received(t, m, p->received - 1, size_bytes, err);
}

/* ---- operations */

struct hvi_tcp *hvi_tcp_from_plane(struct hvi_plane *p)
{
    struct hvi_tcp *t = (struct hvi_tcp *)(void *)p;

    HVI_ASSERT(t->magic == PLANE_MAGIC);
    return t;
}

static enum hvd_status check_usable(const struct hvi_tcp *t, struct hvi_err *err)
{
    int status = atomic_load_explicit(&t->aborted, memory_order_acquire);

    if (status != 0)
        return hvi_fail(err, (enum hvd_status)status, "tcp plane was stopped: %s",
                        hvi_status_text((enum hvd_status)status));
    if (t->broken != HVD_OK)
        return hvi_fail(err, t->broken, "tcp plane failed before: %s",
                        hvi_status_text(t->broken));
    return HVD_OK;
}

static enum hvd_status check_members(const struct hvi_tcp *t, const struct hvi_group *g,
                                     struct hvi_err *err)
{
    if (t->ran && g->seq <= t->last_seq)
        return hvi_fail(err, HVD_EINTERNAL, "tcp: group %llu after group %llu",
                        (unsigned long long)g->seq, (unsigned long long)t->last_seq);
    if (g->members[0] < 0 || g->members[g->nmembers - 1] >= t->size)
        return hvi_fail(err, HVD_EINTERNAL, "tcp: rank %d of %d",
                        (int)g->members[g->nmembers - 1], t->size);
    if (g->members[g->me] != t->base.rank)
        return hvi_fail(err, HVD_EINTERNAL,
                        "tcp: member %d is rank %d, this is rank %d", (int)g->me,
                        (int)g->members[g->me], t->base.rank);
    return HVD_OK;
}

static enum hvd_status start_kind(struct hvi_tcp *t, struct hvi_err *err)
{
    switch (t->g->kind) {
    case HVD_ALLREDUCE:
        return t->g->reduce_op == HVD_ADASUM ? hvi_tcp_gather_start(t, err)
                                             : hvi_tcp_allreduce_start(t, err);
    case HVD_REDUCESCATTER:
        return hvi_tcp_reducescatter_start(t, err);
    case HVD_BROADCAST:
        return hvi_tcp_broadcast_start(t, err);
    case HVD_BARRIER:
        return hvi_tcp_barrier_start(t, err);
    default: /* hvi_group_check knows only these two more */
        return hvi_tcp_gather_start(t, err);
    }
}

static void reset_peers(struct hvi_tcp *t)
{
    for (int32_t m = 0; m < t->g->nmembers; m++) {
        struct hvi_tcp_peer *p = hvi_tcp_peer(t, m);

        p->readable = p->writable = true;
        p->held = false;
        p->sent = p->received = 0;
        p->send_at = p->recv_at = 0;
        p->recv_size = -1;
    }
}

void hvi_tcp_use_chain(struct hvi_plane *p, int32_t nmembers, int64_t member_bytes)
{
    struct hvi_tcp *t = hvi_tcp_from_plane(p);

    t->chain_members = nmembers;
    t->chain_member_bytes = member_bytes;
}

void hvi_tcp_one_host(struct hvi_plane *p)
{
    hvi_tcp_from_plane(p)->one_host = true;
}

void hvi_tcp_feed(struct hvi_plane *p, int64_t elems)
{
    hvi_tcp_from_plane(p)->fed = elems;
}

int64_t hvi_tcp_done(struct hvi_plane *p)
{
    struct hvi_tcp *t = hvi_tcp_from_plane(p);

    return t->kind->done == NULL ? 0 : t->kind->done(t);
}

static enum hvd_status tcp_start(struct hvi_plane *plane, const struct hvi_group *g,
                                 struct hvi_err *err)
{
    struct hvi_tcp *t = hvi_tcp_from_plane(plane);
    enum hvd_status rc = check_usable(t, err);

    HVI_ASSERT(t->g == NULL);
    if (rc == HVD_OK)
        rc = hvi_group_check(g, t->size, &t->facts, err);
    if (rc == HVD_OK)
        rc = check_members(t, g, err);
    if (rc != HVD_OK)
        return rc;
    t->g = g;
    t->work_over = false;
    t->stream = t->facts.total_bytes > CACHE_BYTES;
    t->fed = INT64_MAX;
    reset_peers(t);
    rc = start_kind(t, err);
    if (rc != HVD_OK) {
        t->g = NULL;
        return rc;
    }
    t->last_seq = g->seq;
    t->ran = true;
    return HVD_OK;
}

/* One round over all connections, then the local part. */
static enum hvd_status go_round(struct hvi_tcp *t, bool *moved, struct hvi_err *err)
{
    int32_t n = t->g->nmembers;
    enum hvd_status rc = HVD_OK;

    for (int32_t k = 1; k < n; k++) {
        int32_t m = (t->g->me + k) % n; /* not all to one at once */

        rc = send_some(t, m, moved, err);
        if (rc == HVD_OK)
            rc = recv_some(t, m, moved, err);
        if (rc != HVD_OK)
            return rc;
    }
    if (t->work_over)
        return HVD_OK;
    rc = t->kind->work(t, moved, err);
    t->work_over = rc == HVD_OK;
    return rc == HVD_INPROGRESS ? HVD_OK : rc;
}

/* After the local part, which may have learned of more. */
static bool messages_left(const struct hvi_tcp *t)
{
    for (int32_t m = 0; m < t->g->nmembers; m++) {
        const struct hvi_tcp_peer *p = hvi_tcp_peer(t, m);

        if (m != t->g->me && (p->sent < t->kind->send_count(t, m) ||
                              p->received < t->kind->recv_count(t, m)))
            return true;
    }
    return false;
}

static enum hvd_status pump(struct hvi_tcp *t, struct hvi_err *err)
{
    enum hvd_status rc;
    bool moved;

    do {
        moved = false;
        rc = check_usable(t, err);
        if (rc == HVD_OK)
            rc = go_round(t, &moved, err);
        if (rc != HVD_OK)
            return rc;
        if (t->work_over && !messages_left(t))
            return HVD_OK;
    } while (moved);
    return HVD_INPROGRESS;
}

static enum hvd_status tcp_progress(struct hvi_plane *plane, struct hvi_err *err)
{
    struct hvi_tcp *t = hvi_tcp_from_plane(plane);
    enum hvd_status rc = check_usable(t, err);

    HVI_ASSERT(t->g != NULL || rc != HVD_OK);
    if (rc == HVD_OK)
        rc = pump(t, err);
    if (rc == HVD_INPROGRESS && t->quiet) {
        t->quiet = false;
        rc = hvi_tcp_look(t, err);
        rc = rc == HVD_OK ? HVD_INPROGRESS : rc;
    }
    if (rc == HVD_INPROGRESS)
        return rc;
    if (rc == HVD_OK)
        rc = hvi_group_end(&t->facts, err);
    else
        t->broken = rc;
    t->g = NULL;
    return rc;
}

static void tcp_abort(struct hvi_plane *plane, enum hvd_status status)
{
    struct hvi_tcp *t = hvi_tcp_from_plane(plane);
    uint64_t one = 1;
    int none = 0;

    HVI_ASSERT(status < 0);
    atomic_compare_exchange_strong(&t->aborted, &none, (int)status);
    while (write(t->abort_fd, &one, sizeof(one)) < 0 && errno == EINTR)
        ;
}

/* ---- wait */

static void prepare_poll(struct hvi_tcp *t)
{
    nfds_t n = 0;

    for (int32_t m = 0; t->g != NULL && m < t->g->nmembers; m++) {
        const struct hvi_tcp_peer *p = hvi_tcp_peer(t, m);
        short events = 0;

        if (m == t->g->me)
            continue;
        if (p->received < t->kind->recv_count(t, m) && !p->held)
            events |= POLLIN;
        if (p->sent < t->kind->send_count(t, m) &&
            t->kind->send_at(t, m, p->sent).ready)
            events |= POLLOUT;
        if (events == 0)
            continue;
        t->polled[n] = m;
        t->polls[n++] = (struct pollfd){.fd = p->fd, .events = events};
    }
    t->polls[n] = (struct pollfd){.fd = t->abort_fd, .events = POLLIN};
    t->npolls = n;
}

static int note_found(struct hvi_tcp *t, int found)
{
    for (nfds_t i = 0; found > 0 && i < t->npolls; i++) {
        struct hvi_tcp_peer *p = hvi_tcp_peer(t, t->polled[i]);
        short got = t->polls[i].revents;

        if (got & ~POLLOUT)
            p->readable = true;
        if (got & ~POLLIN)
            p->writable = true;
    }
    return found;
}

static int poll_once(struct hvi_tcp *t, int timeout_ms)
{
    return note_found(t, poll(t->polls, t->npolls + 1, timeout_ms));
}

/* A poll, and what else a wait may wait for. */
struct waiting {
    struct hvi_tcp *t;
    bool (*also)(void *arg);
    void *arg;
};

static bool anything(void *arg)
{
    const struct waiting *w = arg;

    return (w->also != NULL && w->also(w->arg)) || poll_once(w->t, 0) != 0;
}

/* An eighth of the time waited so far, and no longer than up to the limit. */
static int poll_step(struct hvi_tcp *t, int64_t past_us, int64_t limit_us)
{
    int64_t step_us = past_us / 8 < STEP_MIN_US   ? STEP_MIN_US
                      : past_us / 8 > STEP_MAX_US ? STEP_MAX_US
                                                  : past_us / 8;
    int64_t left_us = past_us < limit_us ? limit_us - past_us : 0;
    struct timespec step = {0, (long)(step_us < left_us ? step_us : left_us) * 1000};

    return note_found(t, ppoll(t->polls, t->npolls + 1, &step, NULL));
}

static int poll_limit_ms(const struct hvi_tcp *t, int timeout_ms)
{
    if (t->limit_ms > 0 && (timeout_ms < 0 || timeout_ms > HVI_TCP_LOOK_MS))
        return HVI_TCP_LOOK_MS;
    return timeout_ms;
}

static bool tcp_wait(struct hvi_plane *plane, int timeout_ms)
{
    struct hvi_tcp *t = hvi_tcp_from_plane(plane);
    struct waiting w = {.t = t};
    int found;

    prepare_poll(t);
    if (timeout_ms != 0 && hvi_spin(&t->spin, true, anything, &w))
        return false;
    found = poll_once(t, poll_limit_ms(t, timeout_ms));
    t->quiet = found == 0;
    return found < 0 && errno == EINTR;
}

/* Sleeps in steps; without time it only looks. */
bool hvi_tcp_wait_with(struct hvi_plane *p, int timeout_ms, bool (*also)(void *arg),
                       void *arg)
{
    struct hvi_tcp *t = hvi_tcp_from_plane(p);
    struct waiting w = {t, also, arg};
    int64_t began_us = hvi_now_us();
    int64_t limit_us;
    int64_t past_us;
    int found;

    prepare_poll(t);
    if (timeout_ms != 0 && hvi_spin(&t->spin, true, anything, &w))
        return false;
    timeout_ms = poll_limit_ms(t, timeout_ms);
    limit_us = timeout_ms < 0 ? INT64_MAX : timeout_ms * INT64_C(1000);
    do {
        past_us = hvi_now_us() - began_us;
        found = poll_step(t, past_us, limit_us);
    } while (found == 0 && past_us < limit_us && !also(arg));
    t->quiet = found == 0 && past_us >= limit_us;
    return found < 0 && errno == EINTR;
}

/* ---- life */

static void tcp_free(struct hvi_plane *plane)
{
    struct hvi_tcp *t;

    if (plane == NULL)
        return;
    t = hvi_tcp_from_plane(plane);
    t->magic = 0;
    for (int r = 0; t->peers != NULL && r < t->size; r++)
        if (t->peers[r].fd >= 0)
            close(t->peers[r].fd);
    if (t->abort_fd >= 0)
        close(t->abort_fd);
    hvi_gather_free(t->gather);
    hvi_chunks_fini(&t->plan);
    free(t->heads);
    free(t->kept);
    free(t->absent);
    free(t->scrap);
    free(t->staging);
    free(t->polled);
    free(t->polls);
    free(t->peers);
    free(t);
}

static const struct hvi_plane_ops tcp_ops = {
    .name = "tcp",
    .start = tcp_start,
    .progress = tcp_progress,
    .abort = tcp_abort,
    .wait = tcp_wait,
    .free = tcp_free,
};

/* Both ends have one address: the peer runs on this host. */
static bool is_near(int fd)
{
    struct sockaddr_storage a = {0};
    struct sockaddr_storage b = {0};
    socklen_t na = sizeof(a);
    socklen_t nb = sizeof(b);

    if (getsockname(fd, (struct sockaddr *)&a, &na) != 0 ||
        getpeername(fd, (struct sockaddr *)&b, &nb) != 0 || a.ss_family != b.ss_family)
        return false;
    if (a.ss_family == AF_INET)
        return ((struct sockaddr_in *)&a)->sin_addr.s_addr ==
               ((struct sockaddr_in *)&b)->sin_addr.s_addr;
    if (a.ss_family == AF_INET6)
        return memcmp(&((struct sockaddr_in6 *)&a)->sin6_addr,
                      &((struct sockaddr_in6 *)&b)->sin6_addr,
                      sizeof(struct in6_addr)) == 0;
    return a.ss_family == AF_UNIX;
}

/* To a peer of this host what is on its way should stay in the cache: with the kernel's
 * own sizes megabytes are, and large sums take twice as long. */
static enum hvd_status set_up_socket(int fd, struct hvi_err *err)
{
    int flags = fcntl(fd, F_GETFL);
    int near_bytes = NEAR_SEND_BYTES;
    int one = 1;

    if (flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0)
        return hvi_fail(err, HVD_EIO, "tcp: descriptor %d: %s", fd, strerror(errno));
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)); /* Unix has none */
    if (is_near(fd))
        setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &near_bytes, sizeof(near_bytes));
    return HVD_OK;
}

/* A function of the size alone: all ranks must cut alike. */
static int64_t part_bytes(int size)
{
    int64_t bytes = HVI_TCP_PART_MAX_BYTES;

    while (bytes > HVI_TCP_PART_MIN_BYTES && bytes * size > STAGING_MAX_BYTES)
        bytes /= 2;
    return bytes;
}

static enum hvd_status get_memory(struct hvi_tcp *t, struct hvi_err *err)
{
    size_t n = (size_t)t->size;

    t->part_bytes = part_bytes(t->size);
    t->small_bytes = HVI_TCP_SMALL_BYTES;
    t->chain_members = INT32_MAX;
    t->polls = calloc(n + 1, sizeof(*t->polls));
    t->polled = calloc(n, sizeof(*t->polled));
    t->absent = calloc(n, HVI_TCP_WINDOW);
    t->kept = calloc(n, sizeof(*t->kept));
    t->scrap = malloc((size_t)t->part_bytes);
    t->staging = aligned_alloc(64, n * HVI_TCP_WINDOW * (size_t)t->part_bytes);
    t->gather = hvi_gather_new();
    if (t->polls == NULL || t->polled == NULL || t->absent == NULL || t->kept == NULL ||
        t->scrap == NULL || t->staging == NULL || t->gather == NULL)
        return hvi_fail(err, HVD_ENOMEM, "tcp: no memory for %d ranks", t->size);
    t->gather->direct = true;
    return HVD_OK;
}

static enum hvd_status get_peers(struct hvi_tcp *t, const int *fds, struct hvi_err *err)
{
    int nlocal = 1;

    t->peers = calloc((size_t)t->size, sizeof(*t->peers));
    if (t->peers == NULL)
        return hvi_fail(err, HVD_ENOMEM, "tcp: no memory for %d ranks", t->size);
    for (int r = 0; r < t->size; r++)
        t->peers[r].fd = -1; /* not ours before all is well */
    for (int r = 0; r < t->size; r++) {
        enum hvd_status rc;

        if (r == t->base.rank)
            continue;
        if (fds[r] < 0)
            return hvi_fail(err, HVD_EINVAL, "tcp: no connection to rank %d", r);
        rc = set_up_socket(fds[r], err);
        if (rc != HVD_OK)
            return rc;
        nlocal += is_near(fds[r]);
    }
    hvi_spin_init(&t->spin, nlocal);
    return HVD_OK;
}

static enum hvd_status set_up(struct hvi_tcp *t, const int *fds, struct hvi_err *err)
{
    enum hvd_status rc;

    t->abort_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (t->abort_fd < 0)
        return hvi_fail(err, HVD_EIO, "tcp: eventfd: %s", strerror(errno));
    rc = get_peers(t, fds, err);
    if (rc == HVD_OK)
        rc = get_memory(t, err);
    if (rc != HVD_OK)
        return rc;
    for (int r = 0; r < t->size; r++)
        t->peers[r].fd = r == t->base.rank ? -1 : fds[r];
    return HVD_OK;
}

enum hvd_status hvi_tcp_new(int rank, int size, const int *fds, struct hvi_plane **out,
                            struct hvi_err *err)
{
    enum hvd_status rc;
    struct hvi_tcp *t;

    if (size <= 0 || size > HVD_RANKS_MAX || rank < 0 || rank >= size)
        return hvi_fail(err, HVD_EINVAL, "tcp: rank %d of %d", rank, size);
    t = calloc(1, sizeof(*t));
    if (t == NULL)
        return hvi_fail(err, HVD_ENOMEM, "tcp: no memory for the plane");
    t->base = (struct hvi_plane){.ops = &tcp_ops, .rank = rank};
    t->magic = PLANE_MAGIC;
    t->size = size;
    rc = set_up(t, fds, err);
    if (rc == HVD_OK)
        *out = (struct hvi_plane *)(void *)t; /* base is first */
    else
        tcp_free(&t->base);
    return rc;
}

void hvi_tcp_set_part(struct hvi_plane *p, int64_t bytes)
{
    struct hvi_tcp *t = hvi_tcp_from_plane(p);

    HVI_ASSERT(bytes > 0 && bytes % 64 == 0 && bytes <= t->part_bytes);
    t->part_bytes = bytes;
    t->small_bytes = bytes < HVI_TCP_SMALL_BYTES ? bytes : HVI_TCP_SMALL_BYTES;
}
