#include "coordinator/net/parent.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "proto/base/list.h"
#include "proto/sec/handshake.h"

static void end(struct hvi_parent *p, const char *why)
{
    if (p->ended)
        return;
    p->ended = true;
    if (p->in_open)
        uv_read_stop((uv_stream_t *)&p->in);
    p->ops->on_end(p->data, why);
}

static void received(struct hvi_parent *p)
{
    struct hvi_err err = {""};
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    struct hvi_msg msg;
    uint32_t type;
    enum hvd_status rc =
        hvi_frame_peek(hvi_buf_peek(&p->rx), hvi_buf_size(&p->rx), &type, &payload,
                       &payload_bytes, &frame_bytes, &err);

    if (rc == HVD_INPROGRESS)
        return;
    if (rc == HVD_OK && (p->configured || type != HVI_MSG_COORD_CONFIG))
        rc = hvi_fail(&err, HVD_EPROTO, "unexpected %s", hvi_msg_name(type));
    if (rc == HVD_OK)
        rc = hvi_msg_get(type, payload, payload_bytes, &msg, &err);
    if (rc != HVD_OK) {
        end(p, err.text);
        return;
    }
    p->configured = true;
    p->ops->on_config(p->data, msg.body);
    hvi_wipe(((Hvi__CoordConfig *)msg.body)->key.data,
             ((Hvi__CoordConfig *)msg.body)->key.len);
    hvi_msg_free(&msg);
    hvi_buf_wipe(&p->rx); /* it holds the job's key */
    hvi_buf_consume(&p->rx, frame_bytes);
    if (hvi_buf_size(&p->rx) > 0)
        end(p, "bytes after COORD_CONFIG");
}

static void alloc_cb(uv_handle_t *h, size_t hint, uv_buf_t *out)
{
    struct hvi_parent *p = h->data;
    uint8_t *to = hvi_buf_reserve(&p->rx, 64 * 1024);

    (void)hint;
    *out = uv_buf_init((char *)to, to != NULL ? 64 * 1024 : 0);
}

static void read_cb(uv_stream_t *s, ssize_t n, const uv_buf_t *buf)
{
    struct hvi_parent *p = s->data;

    (void)buf;
    if (n > 0) {
        hvi_buf_commit(&p->rx, (size_t)n);
        if (!p->ended)
            received(p);
    } else if (n < 0) {
        end(p, n == UV_EOF ? NULL : uv_strerror((int)n));
    }
}

enum hvd_status hvi_parent_open(struct hvi_parent *p, uv_loop_t *loop, int read_fd,
                                int write_fd, const struct hvi_parent_ops *ops,
                                void *data, struct hvi_err *err)
{
    int rc;

    memset(p, 0, sizeof *p);
    p->ops = ops;
    p->data = data;
    uv_pipe_init(loop, &p->in, 0);
    uv_pipe_init(loop, &p->out, 0);
    p->in.data = p->out.data = p;
    p->in_open = p->out_open = true;
    p->rx.secret = true; /* it will hold the job's key */
    /* libuv aborts when it polls a file */
    rc = uv_guess_handle(read_fd) == UV_NAMED_PIPE &&
                 uv_guess_handle(write_fd) == UV_NAMED_PIPE
             ? uv_pipe_open(&p->in, read_fd)
             : UV_EINVAL;
    if (rc == 0)
        rc = uv_pipe_open(&p->out, write_fd);
    if (rc == 0)
        rc = uv_read_start((uv_stream_t *)&p->in, alloc_cb, read_cb);
    if (rc == 0)
        return HVD_OK;
    hvi_parent_close(p);
    return hvi_fail(err, HVD_EIO, "--stdio: stdin and stdout must be pipes: %s",
                    uv_strerror(rc));
}

struct write {
    uv_write_t req;
    struct hvi_buf buf;
};

static void written_cb(uv_write_t *req, int status)
{
    struct write *w = HVI_CONTAINER(req, struct write, req);

    (void)status; /* the end of stdin tells */
    hvi_buf_fini(&w->buf);
    free(w);
}

void hvi_parent_send(struct hvi_parent *p, uint32_t type, const void *body)
{
    struct write *w = p->out_open ? calloc(1, sizeof *w) : NULL;
    uv_buf_t buf;
    int n;

    if (w == NULL)
        return;
    if (hvi_msg_put(&w->buf, type, body) != HVD_OK) {
        free(w);
        return;
    }
    buf =
        uv_buf_init((char *)w->buf.data + w->buf.off, (unsigned)hvi_buf_size(&w->buf));
    n = uv_try_write((uv_stream_t *)&p->out, &buf, 1);
    if (n > 0)
        hvi_buf_consume(&w->buf, (size_t)n);
    buf =
        uv_buf_init((char *)w->buf.data + w->buf.off, (unsigned)hvi_buf_size(&w->buf));
    if (buf.len == 0 ||
        uv_write(&w->req, (uv_stream_t *)&p->out, &buf, 1, written_cb) != 0)
        written_cb(&w->req, 0);
}

void hvi_parent_close(struct hvi_parent *p)
{
    p->ended = true;
    if (p->in_open)
        uv_close((uv_handle_t *)&p->in, NULL);
    if (p->out_open)
        uv_close((uv_handle_t *)&p->out, NULL);
    p->in_open = p->out_open = false;
}

void hvi_parent_fini(struct hvi_parent *p)
{
    hvi_buf_fini(&p->rx);
}
