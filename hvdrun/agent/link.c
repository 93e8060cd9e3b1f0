#include "hvdrun/agent/link.h"

/*
 * Happy path: connect, hello, reply, on_up; heartbeats both ways every 2 s; close with
 * FINAL. Failure: refused or no answer within 5 s, another version, a record that does
 * not open, end of file, or a coordinator silent for the lease: on_down, once, with the
 * reason.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/clock.h"
#include "proto/base/ports.h"

#define READ_BYTES (64 * 1024)

static void drop(struct hvi_agent_link *l)
{
    if (l->open) {
        l->open = false;
        uv_close(&l->u.handle, NULL);
    }
    if (l->timer_open) {
        l->timer_open = false;
        uv_close((uv_handle_t *)&l->timer, NULL);
    }
    l->up = false;
}

static void down(struct hvi_agent_link *l, bool lease, const char *why)
{
    if (!l->open)
        return;
    drop(l);
    l->ops->on_down(l->data, lease, why);
}

static void flush(struct hvi_agent_link *l);

static void written_cb(uv_write_t *req, int status)
{
    struct hvi_agent_link *l = req->data;

    l->write_busy = false;
    hvi_buf_clear(&l->writing);
    if (status < 0 && status != UV_ECANCELED)
        down(l, false, uv_strerror(status));
    else if (status == 0)
        flush(l);
}

/* One write at a time: what is said meanwhile goes out together. */
static void flush(struct hvi_agent_link *l)
{
    struct hvi_buf swap = l->writing;
    uv_buf_t buf;

    if (!l->open || l->write_busy || hvi_buf_size(&l->tx) == 0)
        return;
    l->writing = l->tx;
    l->tx = swap;
    l->write_req.data = l;
    buf = uv_buf_init((char *)l->writing.data + l->writing.off,
                      (unsigned)hvi_buf_size(&l->writing));
    l->write_busy = uv_write(&l->write_req, &l->u.stream, &buf, 1, written_cb) == 0;
    if (!l->write_busy)
        hvi_buf_clear(&l->writing);
}

static void seal(struct hvi_agent_link *l, const struct hvi_buf *frame)
{
    if (hvi_stream_seal(&l->sec, hvi_buf_peek(frame), hvi_buf_size(frame), false,
                        &l->tx) == HVD_OK)
        flush(l);
}

void hvi_link_send(struct hvi_agent_link *l, uint32_t type, const void *body)
{
    if (!l->up)
        return;
    hvi_buf_clear(&l->frame);
    if (hvi_msg_put(&l->frame, type, body) == HVD_OK)
        seal(l, &l->frame);
}

static void tick_cb(uv_timer_t *t)
{
    struct hvi_agent_link *l = t->data;
    Hvi__Heartbeat beat = HVI__HEARTBEAT__INIT;
    char why[64];

    /* Counted in ticks, not by the clock: an agent that was stopped itself must first
     * read what has arrived meanwhile. In steps much shorter than the other side's
     * heartbeat, so that one which is a little late is not a missing one. */
    if (++l->silent_ticks > l->lease_ms / HVI_LINK_TICK_MS) {
        snprintf(why, sizeof why, "nothing heard for %g s", (double)l->lease_ms / 1000);
        down(l, true, why);
        return;
    }
    if (++l->ticks % (HVI_LINK_HEARTBEAT_MS / HVI_LINK_TICK_MS) != 0)
        return;
    beat.sent_ms = (uint64_t)hvi_now_ms();
    hvi_link_send(l, HVI_MSG_HEARTBEAT, &beat);
}

static void finish_handshake(struct hvi_agent_link *l)
{
    struct hvi_err err = {""};

    if (hvi_hs_client_finish(&l->hs, hvi_buf_peek(&l->rx), &l->sec, &err) != HVD_OK) {
        down(l, false, err.text);
        return;
    }
    hvi_buf_consume(&l->rx, HVI_HELLO_BYTES);
    l->up = true;
    uv_timer_start(&l->timer, tick_cb, HVI_LINK_TICK_MS, HVI_LINK_TICK_MS);
    l->ops->on_up(l->data);
}

static enum hvd_status open_one(struct hvi_agent_link *l, struct hvi_err *err)
{
    uint32_t type;
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    struct hvi_msg msg;
    enum hvd_status rc = hvi_stream_open(&l->sec, &l->rx, &l->plain, err);

    if (rc != HVD_OK)
        return rc;
    if (l->sec.ended && hvi_buf_size(&l->plain) == 0)
        return HVD_OK;
    rc = hvi_frame_peek(hvi_buf_peek(&l->plain), hvi_buf_size(&l->plain), &type,
                        &payload, &payload_bytes, &frame_bytes, err);
    if (rc == HVD_INPROGRESS)
        rc = hvi_fail(err, HVD_EPROTO, "a record with half a frame");
    if (rc == HVD_OK)
        rc = hvi_msg_get(type, payload, payload_bytes, &msg, err);
    if (rc != HVD_OK)
        return rc;
    l->silent_ticks = 0;
    if (type != HVI_MSG_HEARTBEAT)
        l->ops->on_frame(l->data, &msg);
    hvi_msg_free(&msg);
    return HVD_OK;
}

static void received(struct hvi_agent_link *l)
{
    struct hvi_err err = {""};
    enum hvd_status rc = HVD_OK;

    if (!l->up) {
        if (hvi_buf_size(&l->rx) < HVI_HELLO_BYTES)
            return;
        finish_handshake(l);
    }
    while (l->up && !l->sec.ended && rc == HVD_OK)
        rc = open_one(l, &err);
    if (l->up && rc != HVD_INPROGRESS && rc != HVD_OK)
        down(l, false, err.text[0] != '\0' ? err.text : hvi_status_text(rc));
    else if (l->up && l->sec.ended)
        down(l, false, "the coordinator ended the connection");
}

static void alloc_cb(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
    struct hvi_agent_link *l = h->data;
    uint8_t *p = hvi_buf_reserve(&l->rx, READ_BYTES);

    (void)hint;
    *out = uv_buf_init((char *)p, p != NULL ? READ_BYTES : 0);
}

static void read_cb(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct hvi_agent_link *l = s->data;

    (void)buf;
    if (n > 0) {
        hvi_buf_commit(&l->rx, (size_t)n);
        received(l);
    } else if (n < 0) {
        down(l, false, n == UV_EOF ? "connection closed" : uv_strerror((int)n));
    }
}

static void timeout_cb(uv_timer_t *t)
{
    down(t->data, false, "no answer within 5 s");
}

static const char *why_not(int status, char gone[HVI_PORTS_TEXT])
{
    return hvi_ports_gone(-status, gone) != NULL ? gone : uv_strerror(status);
}

static void connected_cb(uv_connect_t *req, int status)
{
    struct hvi_agent_link *l = req->data;
    char gone[HVI_PORTS_TEXT];

    if (status == UV_ECANCELED || !l->open)
        return;
    if (status == 0)
        status = uv_read_start(&l->u.stream, alloc_cb, read_cb);
    if (status != 0) {
        down(l, false, why_not(status, gone));
        return;
    }
    if (hvi_buf_append(&l->tx, l->hs.hello, HVI_HELLO_BYTES) != HVD_OK)
        down(l, false, "out of memory");
    else
        flush(l);
}

/* "ADDRESS:PORT", the address in brackets when it is IPv6. */
static int parse_tcp(const char *text, struct sockaddr_storage *out)
{
    char host[64];
    const char *colon = strrchr(text, ':');
    size_t n;
    int port;

    if (colon == NULL)
        return UV_EINVAL;
    port = atoi(colon + 1);
    n = (size_t)(colon - text);
    if (n >= 2 && text[0] == '[' && text[n - 1] == ']') {
        text++;
        n -= 2;
    }
    if (n == 0 || n >= sizeof host || port < 1 || port > 65535)
        return UV_EINVAL;
    memcpy(host, text, n);
    host[n] = '\0';
    if (uv_ip4_addr(host, port, (struct sockaddr_in *)out) == 0)
        return 0;
    return uv_ip6_addr(host, port, (struct sockaddr_in6 *)out);
}

static enum hvd_status start_connect(struct hvi_agent_link *l, uv_loop_t *loop,
                                     const char *endpoint, struct hvi_err *err)
{
    struct sockaddr_storage addr;
    char gone[HVI_PORTS_TEXT];
    int rc;

    if (strncmp(endpoint, "unix:", 5) == 0) {
        uv_pipe_init(loop, &l->u.pipe, 0);
        uv_pipe_connect(&l->connect_req, &l->u.pipe, endpoint + 5, connected_cb);
    } else if (strncmp(endpoint, "tcp:", 4) == 0 &&
               parse_tcp(endpoint + 4, &addr) == 0) {
        uv_tcp_init(loop, &l->u.tcp);
        uv_tcp_nodelay(&l->u.tcp, 1);
        rc = uv_tcp_connect(&l->connect_req, &l->u.tcp, (struct sockaddr *)&addr,
                            connected_cb);
        if (rc != 0) {
            uv_close(&l->u.handle, NULL);
            return hvi_fail(err, HVD_EIO, "%s: %s", endpoint, why_not(rc, gone));
        }
    } else {
        return hvi_fail(err, HVD_EINVAL, "'%s' is not an endpoint", endpoint);
    }
    l->u.handle.data = l;
    return HVD_OK;
}

enum hvd_status hvi_link_open(struct hvi_agent_link *l, uv_loop_t *loop,
                              const char *endpoint, const uint8_t *key,
                              const uint8_t *job_id, const struct hvi_link_ops *ops,
                              void *data, struct hvi_err *err)
{
    uint8_t hello[HVI_HELLO_BYTES];
    enum hvd_status rc;

    memset(l, 0, sizeof *l);
    l->ops = ops;
    l->data = data;
    l->lease_ms = HVI_LINK_LEASE_MS;
    l->connect_req.data = l;
    rc = hvi_hs_client_start(&l->hs, key, job_id, HVI_ROLE_AGENT, hello, err);
    if (rc == HVD_OK)
        rc = start_connect(l, loop, endpoint, err);
    if (rc != HVD_OK)
        return rc;
    l->open = true;
    uv_timer_init(loop, &l->timer);
    l->timer.data = l;
    l->timer_open = true;
    uv_timer_start(&l->timer, timeout_cb, HVI_LINK_CONNECT_MS, 0);
    return HVD_OK;
}

void hvi_link_set_lease(struct hvi_agent_link *l, int64_t lease_ms)
{
    l->lease_ms = lease_ms;
}

void hvi_link_close(struct hvi_agent_link *l)
{
    if (l->up && hvi_stream_seal(&l->sec, "", 0, true, &l->tx) == HVD_OK) {
        uv_buf_t buf =
            uv_buf_init((char *)l->tx.data + l->tx.off, (unsigned)hvi_buf_size(&l->tx));

        (void)uv_try_write(&l->u.stream, &buf, 1);
    }
    drop(l);
}

void hvi_link_fini(struct hvi_agent_link *l)
{
    hvi_hs_fini(&l->hs);
    hvi_stream_fini(&l->sec);
    hvi_buf_fini(&l->rx);
    hvi_buf_fini(&l->plain);
    hvi_buf_fini(&l->frame);
    hvi_buf_fini(&l->tx);
    hvi_buf_fini(&l->writing);
}
