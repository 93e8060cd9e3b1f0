#include "hvdrun/job/chan.h"

#include <string.h>
#include <unistd.h>

#include "hvdrun/io/tail.h"
#include "proto/sec/handshake.h"

#define READ_BYTES (256 * 1024)

static void end(struct hvi_chan *c, const char *why)
{
    if (c->ended)
        return;
    c->ended = true;
    if (c->in_open)
        uv_read_stop((uv_stream_t *)&c->in);
    c->ops->on_end(c, why);
}

void hvi_chan_skip_banner(struct hvi_chan *c, uint32_t type)
{
    c->first_type = type;
}

size_t hvi_chan_banner(const uint8_t *data, size_t size_bytes, uint32_t type,
                       bool *found)
{
    /* any version: another one is worded by whoever reads the frame */
    const uint8_t head[8] = {HVI_FRAME_MAGIC & 0xff, HVI_FRAME_MAGIC >> 8, 0, 0,
                             (uint8_t)type,          (uint8_t)(type >> 8), 0, 0};
    size_t at, k;

    for (at = 0; at < size_bytes; at++) {
        for (k = 0; k < sizeof head && at + k < size_bytes; k++)
            if (data[at + k] != head[k] && k != 2)
                break;
        if (k == sizeof head || at + k == size_bytes)
            break;
    }
    *found = at + sizeof head <= size_bytes;
    return at;
}

/* Keeps the end of what is skipped. */
static void keep(struct hvi_chan *c, const uint8_t *bytes, size_t n)
{
    size_t used = strlen(c->banner);

    hvi_tail_add(c->banner, sizeof c->banner, &used, bytes, n);
}

/* false: the first frame has not begun. */
static bool past_banner(struct hvi_chan *c)
{
    bool found;
    size_t n;

    if (c->first_type == 0)
        return true;
    n = hvi_chan_banner(hvi_buf_peek(&c->rx), hvi_buf_size(&c->rx), c->first_type,
                        &found);
    keep(c, hvi_buf_peek(&c->rx), n);
    hvi_buf_consume(&c->rx, n);
    c->skipped += n;
    if (found)
        c->first_type = 0;
    else if (c->skipped > HVI_CHAN_BANNER_BYTES)
        end(c, "64 KiB of text and no frame; does a shell start-up file there print "
               "without end?");
    return found;
}

/* Hands every whole frame of rx to the owner; the owner may close the channel. */
static void deliver(struct hvi_chan *c)
{
    struct hvi_err err = {""};

    if (!past_banner(c))
        return;
    while (!c->ended && c->in_open) {
        struct hvi_msg msg;
        enum hvd_status rc = hvi_msg_take(&c->rx, &msg, &err);

        if (rc == HVD_INPROGRESS)
            return;
        if (rc != HVD_OK) {
            end(c, err.text[0] != '\0' ? err.text : hvi_status_text(rc));
            return;
        }
        c->ops->on_frame(c, &msg);
        hvi_msg_free(&msg);
    }
}

static void alloc_cb(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
    struct hvi_chan *c = h->data;
    uint8_t *p = hvi_buf_reserve(&c->rx, READ_BYTES);

    (void)hint;
    *out = uv_buf_init((char *)p, p != NULL ? READ_BYTES : 0);
}

static void read_cb(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct hvi_chan *c = s->data;

    (void)buf;
    if (n > 0) {
        hvi_buf_commit(&c->rx, (size_t)n);
        deliver(c);
    } else if (n == UV_EOF) {
        end(c, NULL);
    } else if (n < 0) {
        end(c, uv_strerror((int)n));
    }
}

static void close_out(struct hvi_chan *c)
{
    if (c->out_open) {
        c->out_open = false;
        uv_close((uv_handle_t *)&c->out, NULL);
    }
}

static void flush(struct hvi_chan *c);

/* false: nothing more goes out. */
static bool take_result(struct hvi_chan *c, int status)
{
    c->write_busy = false;
    hvi_wipe(c->writing.data, c->writing.len); /* a job's first frame holds its key */
    hvi_buf_clear(&c->writing);
    if (status < 0) {
        hvi_buf_clear(&c->tx);
        close_out(c);
    }
    return status >= 0;
}

static void written_cb(uv_write_t *req, int status)
{
    struct hvi_chan *c = req->data;

    if (!take_result(c, status))
        return;
    flush(c);
    if (c->write_busy || !c->out_open)
        return;
    if (c->out_ending)
        close_out(c);
    if (c->ops->on_drain != NULL)
        c->ops->on_drain(c);
}

static void flush(struct hvi_chan *c)
{
    struct hvi_buf swap = c->writing;
    uv_buf_t buf;
    int rc;

    if (c->write_busy || !c->out_open || hvi_buf_size(&c->tx) == 0)
        return;
    c->writing = c->tx;
    c->tx = swap;
    buf = uv_buf_init((char *)c->writing.data + c->writing.off,
                      (unsigned)hvi_buf_size(&c->writing));
    c->write_req.data = c;
    c->write_busy = true;
    rc = uv_write(&c->write_req, (uv_stream_t *)&c->out, &buf, 1, written_cb);
    if (rc != 0)
        (void)take_result(c, rc);
}

enum hvd_status hvi_chan_open(struct hvi_chan *c, uv_loop_t *loop, int read_fd,
                              int write_fd, const struct hvi_chan_ops *ops, void *data,
                              struct hvi_err *err)
{
    int rc;

    memset(c, 0, sizeof *c);
    c->ops = ops;
    c->data = data;
    uv_pipe_init(loop, &c->in, 0);
    uv_pipe_init(loop, &c->out, 0);
    c->in.data = c->out.data = c;
    c->in_open = c->out_open = true;
    c->rx.secret = true; /* a job's first frame holds its key */
    rc = uv_pipe_open(&c->in, read_fd);
    if (rc != 0)
        close(read_fd);
    if (rc == 0) {
        rc = uv_pipe_open(&c->out, write_fd);
        if (rc == 0)
            rc = uv_read_start((uv_stream_t *)&c->in, alloc_cb, read_cb);
        else
            close(write_fd);
    } else {
        close(write_fd);
    }
    if (rc != 0) {
        hvi_chan_close(c);
        return hvi_fail(err, HVD_EIO, "cannot use a pipe: %s", uv_strerror(rc));
    }
    return HVD_OK;
}

enum hvd_status hvi_chan_send(struct hvi_chan *c, uint32_t type, const void *body)
{
    enum hvd_status rc;

    if (!c->out_open || c->out_ending)
        return HVD_OK;
    rc = hvi_msg_put(&c->tx, type, body);
    if (rc == HVD_OK)
        flush(c);
    return rc;
}

enum hvd_status hvi_chan_send_frames(struct hvi_chan *c, const struct hvi_buf *frames)
{
    enum hvd_status rc;

    if (!c->out_open || c->out_ending)
        return HVD_OK;
    rc = hvi_buf_append(&c->tx, hvi_buf_peek(frames), hvi_buf_size(frames));
    if (rc == HVD_OK)
        flush(c);
    return rc;
}

size_t hvi_chan_backlog(const struct hvi_chan *c)
{
    return hvi_buf_size(&c->tx) + hvi_buf_size(&c->writing);
}

void hvi_chan_end_output(struct hvi_chan *c)
{
    c->out_ending = true;
    if (!c->write_busy)
        close_out(c);
}

void hvi_chan_close(struct hvi_chan *c)
{
    c->ended = true;
    if (c->in_open) {
        c->in_open = false;
        uv_close((uv_handle_t *)&c->in, NULL);
    }
    close_out(c);
}

void hvi_chan_fini(struct hvi_chan *c)
{
    hvi_buf_fini(&c->rx);
    hvi_buf_fini(&c->tx);
    hvi_buf_fini(&c->writing);
}
