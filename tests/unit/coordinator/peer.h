/** A worker or agent as the coordinator's network sees it: a blocking connection of
 * this test, with a deadline on every read. */
#ifndef HVI_TEST_COORDINATOR_PEER_H
#define HVI_TEST_COORDINATOR_PEER_H

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/msg/msg.h"
#include "proto/sec/handshake.h"

#define PEER_WAIT_MS 5000

struct peer {
    int fd;
    struct hvi_stream sec;
    struct hvi_buf in, plain;
    struct hvi_msg msg; /* the last received; freed by the next */
};

/** "unix:PATH" or "tcp:127.0.0.N:PORT". -1: refused. */
static inline int peer_dial(const char *where)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET};
    int fd;

    if (strncmp(where, "unix:", 5) == 0) {
        fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        snprintf(un.sun_path, sizeof un.sun_path, "%s", where + 5);
        if (connect(fd, (struct sockaddr *)&un, sizeof un) == 0)
            return fd;
    } else {
        fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        in.sin_addr.s_addr = htonl(0x7f000000u | (unsigned)atoi(where + 12));
        in.sin_port = htons((uint16_t)atoi(strrchr(where, ':') + 1));
        if (connect(fd, (struct sockaddr *)&in, sizeof in) == 0)
            return fd;
    }
    close(fd);
    return -1;
}

/** Bytes read, 0 at the end, -1 when nothing came in time. */
static inline ssize_t peer_read_some(int fd, void *to, size_t cap, int wait_ms)
{
    struct pollfd p = {.fd = fd, .events = POLLIN};
    ssize_t n;

    if (poll(&p, 1, wait_ms) != 1)
        return -1;
    n = recv(fd, to, cap, 0);
    return n < 0 ? 0 : n; /* a reset is an end too */
}

static inline bool peer_read_all(int fd, void *to, size_t n, int wait_ms)
{
    size_t got = 0;

    while (got < n) {
        ssize_t k = peer_read_some(fd, (char *)to + got, n - got, wait_ms);

        if (k <= 0)
            return false;
        got += (size_t)k;
    }
    return true;
}

static inline void peer_write_all(int fd, const void *data, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, data, n, MSG_NOSIGNAL);

        if (k <= 0)
            return;
        data = (const char *)data + k;
        n -= (size_t)k;
    }
}

/** Connect and shake hands. HVD_EIO when it was closed on us. */
static inline enum hvd_status peer_open(struct peer *p, const char *where,
                                        const uint8_t *key, const uint8_t *job_id,
                                        enum hvi_role role, struct hvi_err *err)
{
    uint8_t hello[HVI_HELLO_BYTES], reply[HVI_HELLO_BYTES];
    struct hvi_hs_client hs;
    enum hvd_status rc;

    memset(p, 0, sizeof *p);
    p->fd = peer_dial(where);
    if (p->fd < 0)
        return HVD_EIO;
    rc = hvi_hs_client_start(&hs, key, job_id, role, hello, err);
    if (rc != HVD_OK)
        return rc;
    peer_write_all(p->fd, hello, sizeof hello);
    if (!peer_read_all(p->fd, reply, sizeof reply, PEER_WAIT_MS)) {
        hvi_hs_fini(&hs);
        return HVD_EIO;
    }
    return hvi_hs_client_finish(&hs, reply, &p->sec, err);
}

static inline void peer_seal(struct peer *p, const void *plain, size_t n, bool last)
{
    struct hvi_buf out = {0};

    if (hvi_stream_seal(&p->sec, plain, n, last, &out) == HVD_OK)
        peer_write_all(p->fd, hvi_buf_peek(&out), hvi_buf_size(&out));
    hvi_buf_fini(&out);
}

static inline void peer_send(struct peer *p, uint32_t type, const void *body)
{
    struct hvi_buf frame = {0};

    if (hvi_msg_put(&frame, type, body) == HVD_OK)
        peer_seal(p, hvi_buf_peek(&frame), hvi_buf_size(&frame), false);
    hvi_buf_fini(&frame);
}

/**
 * Next frame into p->msg (ORDER: body NULL).
 *
 * Returns  HVD_OK; HVD_ESHUTDOWN: FINAL or end of file; HVD_ETIMEDOUT; HVD_EPROTO.
 */
static inline enum hvd_status peer_next(struct peer *p, int wait_ms)
{
    int64_t deadline = hvi_now_ms() + wait_ms;
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    uint32_t type;

    if (p->msg.body != NULL)
        hvi_msg_free(&p->msg);
    memset(&p->msg, 0, sizeof p->msg);
    for (;;) {
        enum hvd_status rc = hvi_stream_open(&p->sec, &p->in, &p->plain, NULL);
        uint8_t chunk[65536];
        ssize_t n;

        if (rc == HVD_OK && hvi_buf_size(&p->plain) == 0)
            return HVD_ESHUTDOWN;
        if (rc == HVD_OK) {
            rc = hvi_frame_peek(hvi_buf_peek(&p->plain), hvi_buf_size(&p->plain), &type,
                                &payload, &payload_bytes, &frame_bytes, NULL);
            if (rc != HVD_OK)
                return HVD_EPROTO;
            p->msg.type = type;
            if (type == HVI_MSG_ORDER)
                return HVD_OK;
            return hvi_msg_get(type, payload, payload_bytes, &p->msg, NULL);
        }
        if (rc != HVD_INPROGRESS)
            return HVD_EPROTO;
        n = peer_read_some(p->fd, chunk, sizeof chunk, hvi_ms_left(deadline));
        if (n < 0)
            return HVD_ETIMEDOUT;
        if (n == 0)
            return HVD_ESHUTDOWN;
        if (hvi_buf_append(&p->in, chunk, (size_t)n) != HVD_OK)
            return HVD_ENOMEM;
    }
}

/** Reads on until a message of this type; false: it did not come in time. */
static inline bool peer_expect(struct peer *p, uint32_t type)
{
    int64_t deadline = hvi_now_ms() + PEER_WAIT_MS;

    while (peer_next(p, hvi_ms_left(deadline)) == HVD_OK)
        if (p->msg.type == type)
            return true;
    return false;
}

static inline void peer_close(struct peer *p)
{
    if (p->fd >= 0)
        close(p->fd);
    p->fd = -1;
    if (p->msg.body != NULL)
        hvi_msg_free(&p->msg);
    p->msg.body = NULL;
    hvi_stream_fini(&p->sec);
    hvi_buf_fini(&p->in);
    hvi_buf_fini(&p->plain);
}

/* ---- what a worker says */

static inline void peer_hello(struct peer *p, int want_rank, const char *host,
                              uint32_t plane)
{
    Hvi__Hello m = HVI__HELLO__INIT;

    m.version = HVI_VERSION;
    m.want_rank = want_rank;
    m.host = (char *)(uintptr_t)host;
    m.pid = 1000 + want_rank;
    m.cpu_plane = plane;
    m.host_id = (char *)"memory-1";
    peer_send(p, HVI_MSG_HELLO, &m);
}

static inline void peer_formed(struct peer *p, uint32_t epoch, uint32_t attempt)
{
    Hvi__Formed m = HVI__FORMED__INIT;

    m.epoch = epoch;
    m.attempt = attempt;
    m.text = (char *)"";
    peer_send(p, HVI_MSG_FORMED, &m);
}

static inline void peer_announce(struct peer *p, uint32_t epoch, const char *name,
                                 int64_t count)
{
    Hvi__Announce m = HVI__ANNOUNCE__INIT;
    Hvi__Request r = HVI__REQUEST__INIT, *list = &r;
    Hvi__Tensor t = HVI__TENSOR__INIT, *tensors = &t;

    t.dtype = HVD_FLOAT32;
    t.n_dims = 1;
    t.dims = &count;
    r.name = (char *)(uintptr_t)name;
    r.kind = HVD_ALLREDUCE;
    r.reduce_op = HVD_SUM;
    r.n_tensors = 1;
    r.tensors = &tensors;
    m.epoch = epoch;
    m.n_requests = 1;
    m.requests = &list;
    peer_send(p, HVI_MSG_ANNOUNCE, &m);
}

static inline void peer_bye(struct peer *p, uint32_t epoch)
{
    Hvi__Bye m = HVI__BYE__INIT;

    m.epoch = epoch;
    peer_send(p, HVI_MSG_BYE, &m);
}

static inline void peer_final(struct peer *p)
{
    peer_seal(p, NULL, 0, true);
}

#endif
