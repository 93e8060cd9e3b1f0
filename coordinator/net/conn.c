/*
 * Happy path: 128 bytes hello, 128 bytes reply, then sealed records, one frame each,
 * both ways. FINAL from the peer: on_end(clean). Ours: FINAL behind what is queued,
 * half close, then wait for the peer's end, so that a reset cannot destroy what it has
 * not read yet.
 *
 * Failure paths: a hello that is wrong, a record that does not open, a frame that is
 * none, a peer too slow to read: on_end with the reason; the peer gets no answer, but
 * one of another protocol version gets the fixed-size refusal.
 */
#include "coordinator/net/conn.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/assert.h"
#include "proto/msg/frame.h"

#define READ_BYTES (64 * 1024)
#define KEEP_BYTES (16 * 1024) /* a larger empty buffer is given back */
#define DEAD_MS 15000          /* unacknowledged data, or keep-alives: as the lease */

static void tell_end(struct hvi_net_conn *c, bool clean, const char *why)
{
    if (c->told)
        return;
    c->told = true;
    c->ops->on_end(c, clean, why);
}

static void maybe_done(struct hvi_net_conn *c)
{
    if (c->state == HVI_NET_ENDING && c->shut && c->peer_ended)
        c->ops->on_done(c);
}

/* ---- writing */

static void shutdown_cb(uv_shutdown_t *req, int status)
{
    struct hvi_net_conn *c = req->data;

    (void)status;
    maybe_done(c);
}

static void finish_output(struct hvi_net_conn *c)
{
    if (c->state != HVI_NET_ENDING || c->shut || c->write_busy ||
        hvi_buf_size(&c->tx) > 0)
        return;
    c->shut = true;
    c->shutdown_req.data = c;
    if (uv_shutdown(&c->shutdown_req, &c->u.stream, shutdown_cb) != 0) {
        c->peer_ended = true; /* the connection is gone already */
        maybe_done(c);
    }
}

/* A peer that hung up may have said BYE before: what it sent is still read, and the end
 * that follows is told. Other errors are the end. */
static void write_failed(struct hvi_net_conn *c, int error)
{
    hvi_buf_clear(&c->tx);
    c->deaf = true;
    if (error != UV_EPIPE && error != UV_ECONNRESET)
        tell_end(c, false, uv_strerror(error));
}

static void written_cb(uv_write_t *req, int status)
{
    struct hvi_net_conn *c = req->data;

    c->write_busy = false;
    hvi_buf_clear(&c->writing);
    if (c->writing.cap > KEEP_BYTES)
        hvi_buf_fini(&c->writing);
    if (c->state == HVI_NET_CLOSED)
        return;
    if (status < 0)
        write_failed(c, status);
    hvi_net_flush(c);
}

void hvi_net_flush(struct hvi_net_conn *c)
{
    struct hvi_buf swap = c->writing;
    uv_buf_t buf;
    int n;

    if (c->state == HVI_NET_CLOSED || c->write_busy)
        return;
    if (c->deaf)
        hvi_buf_clear(&c->tx);
    if (hvi_buf_size(&c->tx) > 0) {
        buf =
            uv_buf_init((char *)c->tx.data + c->tx.off, (unsigned)hvi_buf_size(&c->tx));
        n = uv_try_write(&c->u.stream, &buf, 1);
        if (n > 0)
            hvi_buf_consume(&c->tx, (size_t)n);
    }
    if (hvi_buf_size(&c->tx) > 0) {
        c->writing = c->tx;
        c->tx = swap;
        buf = uv_buf_init((char *)c->writing.data + c->writing.off,
                          (unsigned)hvi_buf_size(&c->writing));
        c->write_req.data = c;
        c->write_busy = true;
        n = uv_write(&c->write_req, &c->u.stream, &buf, 1, written_cb);
        if (n != 0) {
            c->write_busy = false;
            hvi_buf_clear(&c->writing);
            write_failed(c, n);
        }
    }
    finish_output(c);
}

static size_t backlog(const struct hvi_net_conn *c)
{
    return hvi_buf_size(&c->tx) + hvi_buf_size(&c->writing);
}

void hvi_net_send(struct hvi_net_conn *c, const struct hvi_buf *frame, bool last,
                  bool droppable)
{
    char why[80];
    enum hvd_status rc;

    if (c->state != HVI_NET_OPEN || c->told || (c->deaf && !last))
        return;
    if (droppable && backlog(c) > HVI_NET_DROP_AT)
        return;
    rc = hvi_stream_seal(&c->sec, hvi_buf_peek(frame), hvi_buf_size(frame), last,
                         &c->tx);
    if (rc != HVD_OK) {
        tell_end(c, false, hvi_status_text(rc));
        return;
    }
    if (last) {
        c->told = true;
        c->state = HVI_NET_ENDING;
    } else if (backlog(c) > HVI_NET_QUEUE_MAX) {
        snprintf(why, sizeof why, "it does not read: %zu KiB are queued",
                 backlog(c) / 1024);
        tell_end(c, false, why);
    }
}

void hvi_net_end(struct hvi_net_conn *c)
{
    if (c->state == HVI_NET_OPEN)
        (void)hvi_stream_seal(&c->sec, NULL, 0, true, &c->tx);
    c->told = true;
    if (c->state != HVI_NET_CLOSED) {
        c->state = HVI_NET_ENDING;
        hvi_net_flush(c);
    }
}

/* ---- reading */

static void refuse_version(struct hvi_net_conn *c, const uint8_t *reply)
{
    if (hvi_buf_append(&c->tx, reply, HVI_HELLO_BYTES) == HVD_OK)
        hvi_net_flush(c);
}

static void got_hello(struct hvi_net_conn *c)
{
    uint8_t reply[HVI_HELLO_BYTES];
    struct hvi_err err = {""};
    enum hvd_status rc = hvi_hs_server(c->key, c->job_id, HVI_ROLE_COORDINATOR,
                                       c->hello, reply, &c->sec, &c->role, &err);

    if (rc == HVD_EVERSION)
        refuse_version(c, reply);
    if (rc == HVD_OK && c->role != HVI_ROLE_WORKER && c->role != HVI_ROLE_AGENT)
        rc = hvi_fail(&err, HVD_EPROTO, "a data peer at the control port");
    if (rc == HVD_OK)
        rc = hvi_buf_append(&c->tx, reply, sizeof reply);
    if (rc != HVD_OK) {
        tell_end(c, false, err.text[0] != '\0' ? err.text : hvi_status_text(rc));
        return;
    }
    c->state = HVI_NET_PROOF;
    c->ops->on_hello(c);
    hvi_net_flush(c);
}

/* One record; HVD_INPROGRESS: none is whole. */
static enum hvd_status open_record(struct hvi_net_conn *c, struct hvi_err *err)
{
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    uint32_t type;
    enum hvd_status rc = hvi_stream_open(&c->sec, &c->rx, &c->plain, err);

    if (rc != HVD_OK)
        return rc;
    if (c->state == HVI_NET_PROOF) {
        c->state = HVI_NET_OPEN;
        c->ops->on_open(c);
    }
    if (hvi_buf_size(&c->plain) == 0)
        return c->sec.ended
                   ? HVD_OK
                   : hvi_fail(err, HVD_EPROTO, "an empty record in the middle");
    rc = hvi_frame_peek(hvi_buf_peek(&c->plain), hvi_buf_size(&c->plain), &type,
                        &payload, &payload_bytes, &frame_bytes, err);
    if (rc == HVD_INPROGRESS ||
        (rc == HVD_OK && frame_bytes != hvi_buf_size(&c->plain)))
        rc = hvi_fail(err, HVD_EPROTO, "a record that is not one frame");
    if (rc == HVD_OK)
        c->ops->on_frame(c, type, payload, payload_bytes);
    return rc;
}

static void got_records(struct hvi_net_conn *c)
{
    struct hvi_err err = {""};
    enum hvd_status rc = HVD_OK;

    while (rc == HVD_OK && !c->told && !c->sec.ended)
        rc = open_record(c, &err);
    if (c->told)
        return;
    if (rc != HVD_OK && rc != HVD_INPROGRESS)
        tell_end(c, false, err.text[0] != '\0' ? err.text : hvi_status_text(rc));
    else if (c->sec.ended)
        tell_end(c, true, NULL);
    if (hvi_buf_size(&c->rx) == 0 && c->rx.cap > KEEP_BYTES)
        hvi_buf_fini(&c->rx);
    if (c->plain.cap > KEEP_BYTES)
        hvi_buf_fini(&c->plain);
}

static void received(struct hvi_net_conn *c, const uint8_t *data, size_t size_bytes)
{
    if (c->state == HVI_NET_HELLO) {
        size_t n = HVI_HELLO_BYTES - c->nhello;

        n = n < size_bytes ? n : size_bytes;
        memcpy(c->hello + c->nhello, data, n);
        c->nhello += n;
        data += n;
        size_bytes -= n;
        if (c->nhello == HVI_HELLO_BYTES)
            got_hello(c);
    }
    if (size_bytes == 0 || c->told ||
        (c->state != HVI_NET_PROOF && c->state != HVI_NET_OPEN))
        return;
    if (hvi_buf_append(&c->rx, data, size_bytes) != HVD_OK)
        tell_end(c, false, "out of memory");
    else
        got_records(c);
}

/* One buffer for all: it is consumed before the next allocation. */
static void alloc_cb(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
    static char shared[READ_BYTES];

    (void)h;
    (void)hint;
    *out = uv_buf_init(shared, sizeof shared);
}

static void read_cb(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct hvi_net_conn *c = s->data;

    if (n > 0 && c->state != HVI_NET_ENDING) {
        received(c, (const uint8_t *)buf->base, (size_t)n);
    } else if (n < 0) {
        uv_read_stop(s);
        c->peer_ended = true;
        tell_end(c, false, n == UV_EOF ? NULL : uv_strerror((int)n));
        maybe_done(c);
    }
}

void hvi_net_read_now(struct hvi_net_conn *c)
{
    uint8_t hello[HVI_HELLO_BYTES];
    ssize_t n;
    int fd;

    if (c->state != HVI_NET_HELLO || uv_fileno(&c->u.handle, &fd) != 0)
        return;
    n = recv(fd, hello, sizeof hello, MSG_DONTWAIT);
    if (n > 0) /* an end or an error the loop will find, too */
        received(c, hello, (size_t)n);
}

/* ---- accepting and closing */

static void name_tcp(struct hvi_net_conn *c)
{
    struct sockaddr_storage ss;
    int n = sizeof ss;
    char ip[INET6_ADDRSTRLEN] = "?";
    uint16_t port = 0;

    snprintf(c->peer, sizeof c->peer, "?");
    if (uv_tcp_getpeername(&c->u.tcp, (struct sockaddr *)&ss, &n) != 0)
        return;
    uv_ip_name((struct sockaddr *)&ss, ip, sizeof ip);
    if (ss.ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)&ss;

        port = ntohs(four->sin_port);
        memcpy(c->source, &four->sin_addr, sizeof four->sin_addr);
    } else {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)&ss;
        bool mapped = IN6_IS_ADDR_V4MAPPED(&six->sin6_addr);

        port = ntohs(six->sin6_port);
        memcpy(c->source, &six->sin6_addr, mapped ? 16 : 8);
    }
    snprintf(c->peer, sizeof c->peer, "%s:%u", ip, port);
}

static enum hvd_status check_unix(struct hvi_net_conn *c, struct hvi_err *err)
{
    struct ucred cred = {0};
    socklen_t n = sizeof cred;
    int fd = -1;

    snprintf(c->peer, sizeof c->peer, "unix");
    if (uv_fileno(&c->u.handle, &fd) != 0 ||
        getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &n) != 0)
        return hvi_fail(err, HVD_EIO, "who has connected is unknown");
    snprintf(c->peer, sizeof c->peer, "pid %d", (int)cred.pid);
    if (cred.uid != geteuid() && cred.uid != 0)
        return hvi_fail(err, HVD_EAUTH, "a process of another user (%u)",
                        (unsigned)cred.uid);
    return HVD_OK;
}

static void tune_tcp(struct hvi_net_conn *c)
{
    unsigned dead_ms = DEAD_MS;
    int fd;

    (void)uv_tcp_nodelay(&c->u.tcp, 1);
    (void)uv_tcp_keepalive(&c->u.tcp, 1, 5);
    if (uv_fileno(&c->u.handle, &fd) == 0)
        (void)setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &dead_ms, sizeof dead_ms);
}

enum hvd_status hvi_net_accept(struct hvi_net_conn *c, uv_stream_t *listener,
                               struct hvi_err *err)
{
    bool tcp = listener->type == UV_TCP;
    enum hvd_status rc = HVD_OK;
    int n;

    hvi_list_init(&c->list);
    hvi_list_init(&c->dirty);
    hvi_list_init(&c->ended);
    c->state = HVI_NET_HELLO;
    c->rx.secret = true;
    if (tcp)
        uv_tcp_init(listener->loop, &c->u.tcp);
    else
        uv_pipe_init(listener->loop, &c->u.pipe, 0);
    c->u.handle.data = c;
    n = uv_accept(listener, &c->u.stream);
    if (n == 0 && tcp) {
        name_tcp(c);
        tune_tcp(c);
    } else if (n == 0) {
        rc = check_unix(c, err);
    }
    if (n == 0 && rc == HVD_OK)
        n = uv_read_start(&c->u.stream, alloc_cb, read_cb);
    if (n != 0)
        rc = hvi_fail(err, HVD_EIO, "accept: %s", uv_strerror(n));
    if (rc != HVD_OK)
        hvi_net_close(c);
    return rc;
}

static void closed_cb(uv_handle_t *h)
{
    struct hvi_net_conn *c = h->data;

    c->ops->on_closed(c);
}

void hvi_net_close(struct hvi_net_conn *c)
{
    if (c->state == HVI_NET_CLOSED)
        return;
    c->state = HVI_NET_CLOSED;
    c->told = true;
    uv_close(&c->u.handle, closed_cb);
}

void hvi_net_turn_away(struct hvi_net_conn *c)
{
    if (c->state == HVI_NET_CLOSED)
        return;
    if (c->u.handle.type != UV_TCP || uv_tcp_close_reset(&c->u.tcp, closed_cb) != 0) {
        hvi_net_close(c);
        return;
    }
    c->state = HVI_NET_CLOSED;
    c->told = true;
}

void hvi_net_free(struct hvi_net_conn *c)
{
    if (c == NULL)
        return;
    hvi_stream_fini(&c->sec);
    hvi_buf_fini(&c->rx);
    hvi_buf_fini(&c->plain);
    hvi_buf_fini(&c->tx);
    hvi_buf_fini(&c->writing);
    free(c->end_text);
    free(c);
}
