/*
 * The connection to the parent endpoint, and the thread that serves it.
 *
 * Happy path: connect, handshake, HELLO ... GO in the caller of hvd_init (blocking),
 * then the link thread polls socket and eventfd: writes what others queued
 * (announcements and readiness are coalesced here), reads messages, looks after stalls
 * and the timeline. A thread in hvd_wait that waits for the order reads the connection
 * itself, which saves two wakes; the link thread, woken for what another has read
 * already, dozes: it leaves reading to those who wait as long as they do.
 *
 * Failure paths: the peer ends the stream, sends rubbish, or the socket fails: the
 * epoch is over for this rank (hvi_ctx_fail), unless it is leaving anyway.
 */
#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/env.h"
#include "proto/base/log.h"
#include "worker/core/ctx.h"
#include "worker/core/dial.h"
#include "worker/core/timeline.h"

#define READ_CHUNK (64 * 1024)
#define LEASE_EXTRA_S 5 /* an agent knows better, and earlier, that the link is dead */
#define CROWD_MS 10000  /* to try again where strangers fill the coordinator's places */
#define CROWD_PAUSE_MS 20
#define DEFERRED_MS 1 /* until the next look whether a frame must still wait */
#define DOZE_MS 2     /* until the next look whether others still read */

/* ---- connecting ------------------------------------------------------------------ */

/* HVD_INPROGRESS: the coordinator had no place for one more that had not said its hello
 * yet (PROTOCOL.md section 2), and closed it by a reset. */
static enum hvd_status failed_by(int error, struct hvi_err *err)
{
    hvi_fail(err, HVD_EIO, "coordinator: %s", strerror(error));
    return error == ECONNRESET || error == EPIPE ? HVD_INPROGRESS : HVD_EIO;
}

/* Exactly size_bytes, or an error. */
static enum hvd_status read_exact(struct hvi_conn *conn, void *buf, size_t size_bytes,
                                  int64_t deadline_ms, struct hvi_err *err)
{
    uint8_t *p = buf;

    while (size_bytes > 0) {
        struct pollfd pfd = {.fd = conn->fd, .events = POLLIN};
        int timeout_ms = hvi_ms_left(deadline_ms);
        ssize_t n;

        if (timeout_ms == 0)
            return hvi_fail(err, HVD_ETIMEDOUT, "no answer from the coordinator");
        if (hvi_pulse_look(&conn->pulse, hvi_now_ms(), &timeout_ms) == HVI_PULSE_GONE)
            return hvi_pulse_gone(&conn->pulse, err);
        poll(&pfd, 1, timeout_ms);
        n = recv(conn->fd, p, size_bytes, MSG_DONTWAIT);
        if (n == 0)
            return hvi_fail(err, HVD_EAUTH,
                            "the coordinator closed the connection: another key "
                            "(HVD_KEY_FILE) or another job");
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            continue;
        if (n < 0)
            return failed_by(errno, err);
        p += n;
        size_bytes -= (size_t)n;
    }
    return HVD_OK;
}

/* It started this process, and watches the coordinator. */
static bool has_agent(void)
{
    return hvi_env("RUNTIME_DIR") != NULL;
}

static enum hvd_status shake_hands(struct hvi_conn *conn, const uint8_t *key,
                                   const uint8_t *job_id, int64_t deadline_ms,
                                   struct hvi_err *err)
{
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES];
    uint8_t reply[HVI_HELLO_BYTES];
    enum hvd_status rc =
        hvi_hs_client_start(&hs, key, job_id, HVI_ROLE_WORKER, hello, err);

    if (rc != HVD_OK)
        return rc;
    if (send(conn->fd, hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello)
        rc = failed_by(errno, err);
    if (rc == HVD_OK)
        rc = read_exact(conn, reply, sizeof reply, deadline_ms, err);
    if (rc == HVD_OK)
        rc = hvi_hs_client_finish(&hs, reply, &conn->stream, err);
    hvi_hs_fini(&hs);
    return rc;
}

enum hvd_status hvi_conn_open(struct hvi_conn *conn, const char *endpoint,
                              const uint8_t *key, const uint8_t *job_id,
                              int64_t deadline_ms, struct hvi_err *err)
{
    struct hvi_err why = {{0}};
    int64_t lease_s = HVI_LEASE_DEFAULT_S;
    int64_t again_until_ms = hvi_now_ms() + CROWD_MS;
    enum hvd_status rc = hvi_env_int("LEASE_SECONDS", HVI_LEASE_DEFAULT_S,
                                     HVI_LEASE_MIN_S, HVI_LEASE_MAX_S, &lease_s, err);

    while (rc == HVD_OK) {
        rc = hvi_dial("the coordinator", endpoint, deadline_ms, &conn->fd, &why);
        if (rc != HVD_OK)
            return hvi_fail(err, rc, "%s%s",
                            rc == HVD_EINVAL ? "HVD_COORDINATOR: " : "", why.text);
        hvi_dial_limit(conn->fd, (int)(lease_s + LEASE_EXTRA_S) * 1000);
        hvi_pulse_init(&conn->pulse, endpoint, conn->fd,
                       has_agent() ? 0 : (int)lease_s);
        rc = shake_hands(conn, key, job_id, deadline_ms, err);
        if (rc != HVD_INPROGRESS)
            break;
        if (deadline_ms < 0 || deadline_ms > again_until_ms)
            deadline_ms = again_until_ms;
        if (hvi_ms_left(deadline_ms) == 0)
            return HVD_EIO;
        close(conn->fd);
        conn->fd = -1;
        poll(NULL, 0, CROWD_PAUSE_MS);
        rc = HVD_OK;
    }
    return rc;
}

/* ---- frames ---------------------------------------------------------------------- */

enum hvd_status hvi_conn_put_frame(struct hvi_conn *conn, const struct hvi_buf *frame,
                                   bool last)
{
    return hvi_stream_seal(&conn->stream, hvi_buf_peek(frame), hvi_buf_size(frame),
                           last, &conn->out);
}

enum hvd_status hvi_conn_put(struct hvi_conn *conn, uint32_t type, const void *body)
{
    struct hvi_buf frame = {0};
    enum hvd_status rc = hvi_msg_put(&frame, type, body);

    if (rc == HVD_OK)
        rc = hvi_conn_put_frame(conn, &frame, false);
    hvi_buf_fini(&frame);
    return rc;
}

enum hvd_status hvi_conn_flush(struct hvi_conn *conn, struct hvi_err *err)
{
    while (hvi_buf_size(&conn->out) > 0) {
        ssize_t n = send(conn->fd, hvi_buf_peek(&conn->out), hvi_buf_size(&conn->out),
                         MSG_NOSIGNAL | MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && errno == EAGAIN)
            return HVD_INPROGRESS;
        if (n < 0)
            return hvi_fail(err, HVD_EIO, "connection to the coordinator: %s",
                            strerror(errno));
        hvi_buf_consume(&conn->out, (size_t)n);
    }
    return HVD_OK;
}

enum hvd_status hvi_conn_fill(struct hvi_conn *conn, struct hvi_err *err)
{
    uint8_t *to = hvi_buf_reserve(&conn->in, READ_CHUNK);
    ssize_t n;

    if (to == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    do
        n = recv(conn->fd, to, READ_CHUNK, MSG_DONTWAIT);
    while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN)
        return HVD_OK;
    if (n < 0)
        return hvi_fail(err, HVD_EIO, "connection to the coordinator: %s",
                        strerror(errno));
    if (n == 0)
        return hvi_fail(err, conn->stream.ended ? HVD_ESHUTDOWN : HVD_EIO,
                        "the coordinator is gone (connection closed)");
    hvi_buf_commit(&conn->in, (size_t)n);
    hvi_pulse_heard(&conn->pulse);
    return HVD_OK;
}

enum hvd_status hvi_conn_next(struct hvi_conn *conn, uint32_t *type,
                              const uint8_t **payload, size_t *size_bytes,
                              struct hvi_err *err)
{
    size_t frame_bytes;
    enum hvd_status rc;

    rc = hvi_stream_open(&conn->stream, &conn->in, &conn->plain, err);
    if (rc != HVD_OK)
        return rc;
    if (hvi_buf_size(&conn->plain) == 0)
        return HVD_INPROGRESS; /* an empty FINAL record */
    rc = hvi_frame_peek(hvi_buf_peek(&conn->plain), hvi_buf_size(&conn->plain), type,
                        payload, size_bytes, &frame_bytes, err);
    if (rc == HVD_INPROGRESS ||
        (rc == HVD_OK && frame_bytes != hvi_buf_size(&conn->plain)))
        return hvi_fail(err, HVD_EPROTO,
                        "a record of the coordinator is not one frame");
    return rc;
}

/* Asks, when the coordinator has been silent; HVD_EPEER: for the lease. */
static enum hvd_status feel_pulse(struct hvi_conn *conn, int *timeout_ms,
                                  struct hvi_err *err)
{
    Hvi__Heartbeat beat = HVI__HEARTBEAT__INIT;

    switch (hvi_pulse_look(&conn->pulse, hvi_now_ms(), timeout_ms)) {
    case HVI_PULSE_GONE:
        return hvi_pulse_gone(&conn->pulse, err);
    case HVI_PULSE_ASK:
        return hvi_conn_put(conn, HVI_MSG_HEARTBEAT, &beat);
    case HVI_PULSE_FINE:
    default:
        return HVD_OK;
    }
}

enum hvd_status hvi_conn_wait(struct hvi_conn *conn, int64_t deadline_ms,
                              struct hvi_msg *out, struct hvi_err *err)
{
    for (;;) {
        struct pollfd p = {.fd = conn->fd, .events = POLLIN};
        int timeout_ms = hvi_ms_left(deadline_ms);
        const uint8_t *payload;
        size_t size_bytes;
        uint32_t type;
        enum hvd_status rc = hvi_conn_next(conn, &type, &payload, &size_bytes, err);

        if (rc == HVD_OK && type == HVI_MSG_HEARTBEAT)
            continue;
        if (rc == HVD_OK)
            return hvi_msg_get(type, payload, size_bytes, out, err);
        if (rc != HVD_INPROGRESS)
            return rc;
        if (timeout_ms == 0)
            return hvi_fail(err, HVD_ETIMEDOUT, "no answer from the coordinator");
        rc = feel_pulse(conn, &timeout_ms, err);
        if (rc == HVD_OK)
            rc = hvi_conn_flush(conn, err);
        if (rc == HVD_INPROGRESS)
            p.events |= POLLOUT;
        else if (rc != HVD_OK)
            return rc;
        if (poll(&p, 1, timeout_ms) <= 0)
            continue;
        if ((p.revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
            rc = hvi_conn_fill(conn, err);
            if (rc != HVD_OK)
                return rc;
        }
    }
}

void hvi_conn_fini(struct hvi_conn *conn)
{
    if (conn->fd >= 0)
        close(conn->fd);
    conn->fd = -1;
    hvi_stream_fini(&conn->stream);
    hvi_buf_fini(&conn->in);
    hvi_buf_fini(&conn->plain);
    hvi_buf_fini(&conn->out);
}

/* ---- the thread ------------------------------------------------------------------ */

void hvi_link_kick(struct hvi_ctx *c)
{
    uint64_t one = 1;

    if (write(c->wake_fd, &one, sizeof one) < 0)
        return; /* the counter is full: it is awake */
}

void hvi_ctx_fail(struct hvi_ctx *c, enum hvd_status status, const char *fmt, ...)
{
    struct hvi_plane *gpu;
    va_list ap;
    bool first;

    pthread_mutex_lock(&c->lock);
    first = atomic_load(&c->failed) == 0;
    if (first) {
        va_start(ap, fmt);
        vsnprintf(c->failed_text, sizeof c->failed_text, fmt, ap);
        va_end(ap);
        atomic_store(&c->failed, (int)status);
        if (c->pset_call.busy && !c->pset_call.answered) {
            c->pset_call.answered = true;
            c->pset_call.status = status;
            snprintf(c->pset_call.text, sizeof c->pset_call.text, "%s", c->failed_text);
        }
        pthread_cond_broadcast(&c->pset_cond);
        pthread_cond_broadcast(&c->bye_cond);
    }
    pthread_mutex_unlock(&c->lock);
    if (!first)
        return;
    hvi_log_info("epoch", "epoch=%u failed: %s", c->epoch, c->failed_text);
    if (c->plane != NULL)
        c->plane->ops->abort(c->plane, status);
    gpu = atomic_load(&c->gpu);
    if (gpu != NULL)
        gpu->ops->abort(gpu, status);
    if (c->bells != NULL) {
        hvi_bell_force(c->bells, c->bell);
        hvi_engine_kick(c);
    }
}

/* Everything that is whole in the buffer. */
static enum hvd_status take_messages(struct hvi_ctx *c, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    while (rc == HVD_OK) {
        const uint8_t *payload;
        size_t size_bytes;
        uint32_t type;

        rc = hvi_conn_next(&c->conn, &type, &payload, &size_bytes, err);
        if (rc == HVD_OK)
            rc = hvi_forward_message(c, type, payload, size_bytes, err);
    }
    return rc == HVD_INPROGRESS ? HVD_OK : rc;
}

/* waits: something that came has to be tried again. */
static int next_timeout(struct hvi_ctx *c, bool waits)
{
    int64_t now = hvi_now_ms();
    int stalls = hvi_stall_look(c, now);
    int timeline = hvi_timeline_tick(c, now);

    if (waits)
        return DEFERRED_MS;
    if (stalls < 0)
        return timeline;
    return timeline < 0 || stalls < timeline ? stalls : timeline;
}

/* What has come, and what waited for it. Under reader. */
static enum hvd_status read_all(struct hvi_ctx *c, bool fill)
{
    if (c->read_rc == HVD_OK)
        c->read_rc = hvi_forward_deferred(c, &c->read_err);
    if (c->read_rc == HVD_OK && fill)
        c->read_rc = hvi_conn_fill(&c->conn, &c->read_err);
    if (c->read_rc == HVD_OK)
        c->read_rc = take_messages(c, &c->read_err);
    return c->read_rc;
}

bool hvi_link_read(struct hvi_ctx *c)
{
    size_t before;
    bool came;

    if (pthread_mutex_trylock(&c->reader) != 0)
        return false;
    if (c->read_rc != HVD_OK) {
        pthread_mutex_unlock(&c->reader);
        return false;
    }
    before = hvi_buf_size(&c->conn.in);
    c->read_rc = hvi_conn_fill(&c->conn, &c->read_err);
    came = hvi_buf_size(&c->conn.in) > before || hvi_forward_waits(c);
    if (came && c->read_rc == HVD_OK) {
        atomic_fetch_add(&c->reads, 1);
        read_all(c, false);
    }
    if (c->read_rc != HVD_OK || hvi_forward_waits(c))
        hvi_link_kick(c); /* the link thread ends the epoch, or tries again */
    pthread_mutex_unlock(&c->reader);
    return came;
}

void hvi_link_wake(struct hvi_ctx *c)
{
    if (atomic_load(&c->link_dozes))
        hvi_link_kick(c);
}

static enum hvd_status read_as_link(struct hvi_ctx *c, bool fill, bool *waits,
                                    struct hvi_err *err)
{
    enum hvd_status rc;

    pthread_mutex_lock(&c->reader);
    rc = read_all(c, fill);
    *waits = hvi_forward_waits(c);
    *err = c->read_err;
    pthread_mutex_unlock(&c->reader);
    return rc;
}

/* Others read on: leave it to them. seen: what they had read at the last look. */
static bool others_read(struct hvi_ctx *c, uint32_t *seen)
{
    uint32_t reads = atomic_load(&c->reads);
    bool more = reads != *seen;

    *seen = reads;
    return more;
}

/* Set before it dozes; a thread that stops reading looks after it has said so: one of the
 * two sees the other. */
static bool doze_now(struct hvi_ctx *c, bool doze)
{
    atomic_store(&c->link_dozes, doze);
    if (doze && atomic_load(&c->readers) == 0 && c->ninflight > 0)
        atomic_store(&c->link_dozes, false);
    return atomic_load(&c->link_dozes);
}

static void end_reading(struct hvi_ctx *c)
{
    pthread_mutex_lock(&c->reader);
    if (c->read_rc == HVD_OK)
        c->read_rc = HVD_ESHUTDOWN;
    pthread_mutex_unlock(&c->reader);
}

void *hvi_link_thread(void *arg)
{
    struct hvi_ctx *c = arg;
    struct hvi_err err = {{0}};
    uint32_t seen = 0;
    bool doze = false;
    bool waits;
    enum hvd_status rc = read_as_link(c, false, &waits, &err); /* that came behind GO */

    while (rc == HVD_OK || rc == HVD_INPROGRESS) {
        struct pollfd p[2] = {{.fd = c->conn.fd, .events = POLLIN},
                              {.fd = c->wake_fd, .events = POLLIN}};
        int timeout_ms = next_timeout(c, waits);
        uint64_t counter;
        bool stop;

        doze = doze_now(c, doze);
        if (doze) {
            p[0].fd = -1;
            timeout_ms = timeout_ms < 0 || timeout_ms > DOZE_MS ? DOZE_MS : timeout_ms;
        }
        pthread_mutex_lock(&c->lock);
        hvi_negotiate_flush_paced(c);
        if (!c->closing) /* then who leaves has a limit of its own */
            rc = feel_pulse(&c->conn, &timeout_ms, &err);
        if (rc == HVD_OK || rc == HVD_INPROGRESS)
            rc = hvi_conn_flush(&c->conn, &err);
        stop = c->stop && (rc != HVD_INPROGRESS || atomic_load(&c->failed) != 0);
        pthread_mutex_unlock(&c->lock);
        if (stop) {
            end_reading(c);
            return NULL;
        }
        if (rc == HVD_INPROGRESS) {
            p[0].fd = c->conn.fd;
            p[0].events |= POLLOUT;
        } else if (rc != HVD_OK) {
            break;
        }
        if (poll(p, 2, timeout_ms) < 0)
            continue;
        if (p[1].revents != 0 && read(c->wake_fd, &counter, sizeof counter) < 0)
            continue;
        doze = p[1].revents == 0 && (doze || p[0].revents == POLLIN) &&
               others_read(c, &seen);
        if (!doze)
            rc = read_as_link(c, (p[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0,
                              &waits, &err);
    }
    end_reading(c);
    pthread_mutex_lock(&c->lock);
    c->bye_acked = true;
    pthread_cond_broadcast(&c->bye_cond);
    pthread_mutex_unlock(&c->lock);
    if (!c->stop)
        hvi_ctx_fail(c, rc == HVD_EIO || rc == HVD_ESHUTDOWN ? HVD_EPEER : rc, "%s",
                     err.text);
    return NULL;
}
