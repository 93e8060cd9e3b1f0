#include "hvdrun/sink.h"

#include <string.h>

#define RETRY_MS 10

static void write_some(struct hvi_sink *s);

static void retry_cb(uv_timer_t *t)
{
    write_some(t->data);
}

static void written_cb(uv_fs_t *req)
{
    struct hvi_sink *s = req->data;
    ssize_t n = req->result;

    uv_fs_req_cleanup(req);
    s->busy = false;
    if (n == UV_EAGAIN && s->open) {
        s->busy = true;
        uv_timer_start(&s->retry, retry_cb, RETRY_MS, 0);
        return;
    }
    if (n < 0 && n != UV_EINTR) { /* nobody reads it any more: the job goes on */
        s->broken = true;
        s->error = (int)n;
        hvi_buf_clear(&s->writing);
        hvi_buf_clear(s->from);
    } else if (n > 0) {
        hvi_buf_consume(&s->writing, (size_t)n);
    }
    hvi_sink_flush(s);
    s->on_written(s->data);
}

static void write_some(struct hvi_sink *s)
{
    uv_buf_t buf = uv_buf_init((char *)s->writing.data + s->writing.off,
                               (unsigned)hvi_buf_size(&s->writing));

    s->req.data = s;
    s->busy = true;
    if (uv_fs_write(s->loop, &s->req, s->fd, &buf, 1, -1, written_cb) != 0) {
        s->busy = false;
        s->broken = true;
    }
}

void hvi_sink_init(struct hvi_sink *s, uv_loop_t *loop, int fd, struct hvi_buf *from,
                   void (*on_written)(void *), void *data)
{
    memset(s, 0, sizeof *s);
    s->loop = loop;
    s->fd = fd;
    s->from = from;
    s->on_written = on_written;
    s->data = data;
    uv_timer_init(loop, &s->retry);
    s->retry.data = s;
    s->open = true;
}

void hvi_sink_flush(struct hvi_sink *s)
{
    if (s->broken)
        hvi_buf_clear(s->from);
    if (s->busy || s->broken)
        return;
    if (hvi_buf_size(&s->writing) == 0) {
        struct hvi_buf swap = s->writing;

        if (hvi_buf_size(s->from) == 0)
            return;
        hvi_buf_clear(&swap);
        s->writing = *s->from;
        *s->from = swap;
    }
    write_some(s);
}

size_t hvi_sink_backlog(const struct hvi_sink *s)
{
    return hvi_buf_size(&s->writing) + hvi_buf_size(s->from);
}

void hvi_sink_close(struct hvi_sink *s)
{
    if (s->open)
        uv_close((uv_handle_t *)&s->retry, NULL);
    s->open = false;
}

void hvi_sink_fini(struct hvi_sink *s)
{
    hvi_buf_fini(&s->writing);
}
