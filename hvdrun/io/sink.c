#include "hvdrun/io/sink.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define RETRY_MS 10

static void begin_write(struct hvi_sink *s)
{
    s->busy = true;
    hvi_aside_begin(&s->aside);
}

static void retry_cb(uv_timer_t *t)
{
    begin_write(t->data);
}

/* In the thread. */
static void write_some(void *data)
{
    struct hvi_sink *s = data;
    ssize_t n = write(s->fd, hvi_buf_peek(&s->writing), hvi_buf_size(&s->writing));

    s->result = n < 0 ? -errno : n;
}

static void drop(struct hvi_sink *s, struct hvi_buf *b)
{
    s->lost_bytes += hvi_buf_size(b);
    hvi_buf_clear(b);
}

/* What came of a write; false: it is to be tried later. */
static bool take_result(struct hvi_sink *s)
{
    ssize_t n = s->result;

    if (n == -EAGAIN)
        return false;
    if (n < 0 && n != -EINTR) { /* nobody reads it any more: the job goes on */
        s->broken = true;
        s->error = (int)-n;
        drop(s, &s->writing);
        drop(s, s->from);
    } else if (n > 0) {
        hvi_buf_consume(&s->writing, (size_t)n);
    }
    return true;
}

static void written_cb(void *data)
{
    struct hvi_sink *s = data;

    s->busy = false;
    if (!take_result(s) && s->open) {
        s->busy = true;
        uv_timer_start(&s->retry, retry_cb, RETRY_MS, 0);
        return;
    }
    hvi_sink_flush(s);
    s->on_written(s->data);
}

enum hvd_status hvi_sink_init(struct hvi_sink *s, uv_loop_t *loop, int fd,
                              struct hvi_buf *from, void (*on_written)(void *),
                              void *data, struct hvi_err *err)
{
    memset(s, 0, sizeof *s);
    s->fd = fd;
    s->from = from;
    s->on_written = on_written;
    s->data = data;
    uv_timer_init(loop, &s->retry);
    s->retry.data = s;
    s->open = true;
    return hvi_aside_open(&s->aside, loop, write_some, written_cb, s, err);
}

/* Without a thread: only what hvdrun says of that. */
static void write_now(struct hvi_sink *s)
{
    while (hvi_buf_size(&s->writing) > 0) {
        write_some(s);
        if (!take_result(s)) {
            drop(s, &s->writing);
            return;
        }
    }
}

void hvi_sink_flush(struct hvi_sink *s)
{
    if (s->broken)
        drop(s, s->from);
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
    if (s->aside.open && hvi_aside_start(&s->aside, NULL) == HVD_OK)
        begin_write(s);
    else
        write_now(s);
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
    if (!hvi_aside_close(&s->aside))
        memset(&s->writing, 0, sizeof s->writing); /* the thread still has it */
}

void hvi_sink_fini(struct hvi_sink *s)
{
    hvi_buf_fini(&s->writing);
}
