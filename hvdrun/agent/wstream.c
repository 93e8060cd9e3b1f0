#include "hvdrun/agent/wstream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TERMINAL_BYTES                                                                 \
    (1024 * 1024) /* a terminal holds at most 644 KiB for its reader */

static void send_output(struct hvi_wout *o, const void *data, size_t size_bytes)
{
    Hvi__Output msg = HVI__OUTPUT__INIT;

    msg.rank = o->rank;
    msg.stream = o->stream;
    msg.data.data = (uint8_t *)data;
    msg.data.len = size_bytes;
    (void)hvi_chan_send(o->chan, HVI_MSG_OUTPUT, &msg);
}

static void end(struct hvi_wout *o)
{
    if (!o->open)
        return;
    o->open = o->reading = false;
    uv_close((uv_handle_t *)&o->pipe, NULL);
    send_output(o, "", 0);
    o->on_end(o->data);
}

/* One buffer for all streams: it is consumed before the next allocation. */
static void alloc_cb(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
    static char shared[HVI_OUTPUT_FRAME_BYTES];
    const struct hvi_wout *o = h->data;
    uint64_t room = o->window_bytes - o->unacked;

    (void)hint;
    *out = uv_buf_init(shared, room < sizeof shared ? (unsigned)room : sizeof shared);
}

/* libuv takes a hangup behind a read of less than was asked for to be the end. Of a
 * terminal it is not: that gives 4 KiB at a time. */
static void read_rest(struct hvi_wout *o)
{
    char bytes[4096];
    size_t most = TERMINAL_BYTES;
    ssize_t n = 1;
    int fd;

    if (uv_fileno((uv_handle_t *)&o->pipe, &fd) != 0)
        return;
    while (n > 0 && most >= sizeof bytes) {
        do
            n = read(fd, bytes, sizeof bytes);
        while (n < 0 && errno == EINTR);
        if (n <= 0)
            return;
        o->unacked += (uint64_t)n;
        send_output(o, bytes, (size_t)n);
        most -= sizeof bytes;
    }
}

static void read_cb(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct hvi_wout *o = s->data;

    if (n == 0 || n == UV_ENOBUFS)
        return;
    if (n < 0) {
        if (n == UV_EOF)
            read_rest(o);
        end(o);
        return;
    }
    o->got_data = true;
    o->unacked += (uint64_t)n;
    send_output(o, buf->base, (size_t)n);
    if (o->exited) {
        if (o->left_after_exit <= (uint64_t)n) {
            end(o);
            return;
        }
        o->left_after_exit -= (uint64_t)n;
    }
    if (o->unacked >= o->window_bytes ||
        hvi_chan_backlog(o->chan) > HVI_CHAN_HIGH_BYTES) {
        o->reading = false;
        uv_read_stop(s);
    }
}

void hvi_wout_resume(struct hvi_wout *o)
{
    if (!o->open || o->reading || o->unacked >= o->window_bytes ||
        hvi_chan_backlog(o->chan) > HVI_CHAN_HIGH_BYTES)
        return;
    o->reading = uv_read_start((uv_stream_t *)&o->pipe, alloc_cb, read_cb) == 0;
    o->got_data = true; /* gives it a whole linger period */
    if (!o->reading)
        end(o);
}

enum hvd_status hvi_wout_open(struct hvi_wout *o, uv_loop_t *loop, int fd,
                              struct hvi_chan *chan, int rank, uint32_t stream,
                              uint64_t window_bytes, void (*on_end)(void *), void *data,
                              struct hvi_err *err)
{
    int rc;

    memset(o, 0, sizeof *o);
    o->chan = chan;
    o->rank = rank;
    o->stream = stream;
    o->window_bytes = window_bytes;
    o->on_end = on_end;
    o->data = data;
    uv_pipe_init(loop, &o->pipe, 0);
    o->pipe.data = o;
    rc = uv_pipe_open(&o->pipe, fd);
    if (rc != 0) {
        close(fd);
        uv_close((uv_handle_t *)&o->pipe, NULL);
        return hvi_fail(err, HVD_EIO, "worker's pipe: %s", uv_strerror(rc));
    }
    o->open = true;
    hvi_wout_resume(o);
    return HVD_OK;
}

void hvi_wout_ack(struct hvi_wout *o, uint64_t bytes)
{
    o->unacked = bytes < o->unacked ? o->unacked - bytes : 0;
    hvi_wout_resume(o);
}

void hvi_wout_exited(struct hvi_wout *o)
{
    int fd, size;

    if (!o->open || uv_fileno((uv_handle_t *)&o->pipe, &fd) != 0)
        return;
    size = fcntl(fd, F_GETPIPE_SZ);
    o->left_after_exit = size > 0 ? (uint64_t)size : TERMINAL_BYTES;
    o->exited = true;
    o->got_data = true;
}

void hvi_wout_linger(struct hvi_wout *o)
{
    if (!o->open || !o->exited || !o->reading)
        return;
    if (!o->got_data)
        end(o);
    o->got_data = false;
}

struct input {
    uv_write_t req;
    size_t size_bytes;
    char bytes[];
};

static void ack(const struct hvi_win *w, size_t size_bytes)
{
    Hvi__OutputAck msg = HVI__OUTPUT_ACK__INIT;

    if (size_bytes == 0)
        return;
    msg.rank = w->rank;
    msg.stream = 0;
    msg.bytes = size_bytes;
    (void)hvi_chan_send(w->chan, HVI_MSG_OUTPUT_ACK, &msg);
}

void hvi_win_close(struct hvi_win *w)
{
    if (!w->open)
        return;
    w->open = false;
    uv_close((uv_handle_t *)&w->pipe, NULL);
}

static void written_cb(uv_write_t *req, int status)
{
    struct hvi_win *w = req->data;
    struct input *in =
        (struct input *)(void *)((char *)req - offsetof(struct input, req));

    ack(w, in->size_bytes);
    free(in);
    w->writes--;
    if (status < 0 || (w->ending && w->writes == 0))
        hvi_win_close(w);
}

enum hvd_status hvi_win_open(struct hvi_win *w, uv_loop_t *loop, int fd,
                             struct hvi_chan *chan, int rank, struct hvi_err *err)
{
    int rc;

    memset(w, 0, sizeof *w);
    w->chan = chan;
    w->rank = rank;
    uv_pipe_init(loop, &w->pipe, 0);
    rc = uv_pipe_open(&w->pipe, fd);
    if (rc != 0) {
        close(fd);
        uv_close((uv_handle_t *)&w->pipe, NULL);
        return hvi_fail(err, HVD_EIO, "worker's stdin: %s", uv_strerror(rc));
    }
    w->open = true;
    return HVD_OK;
}

void hvi_win_write(struct hvi_win *w, const void *data, size_t size_bytes)
{
    struct input *in;
    uv_buf_t buf;

    if (size_bytes == 0) {
        w->ending = true;
        if (w->writes == 0)
            hvi_win_close(w);
        return;
    }
    in = w->open && !w->ending ? malloc(sizeof *in + size_bytes) : NULL;
    if (in == NULL) { /* nobody reads it: drop, but let hvdrun go on */
        ack(w, size_bytes);
        return;
    }
    memcpy(in->bytes, data, size_bytes);
    in->size_bytes = size_bytes;
    in->req.data = w;
    buf = uv_buf_init(in->bytes, (unsigned)size_bytes);
    w->writes++;
    if (uv_write(&in->req, (uv_stream_t *)&w->pipe, &buf, 1, written_cb) != 0) {
        w->writes--;
        ack(w, size_bytes);
        free(in);
    }
}
