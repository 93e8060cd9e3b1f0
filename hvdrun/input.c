#include "hvdrun/input.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define FOREGROUND_MS 500 /* how often to look whether we are in the foreground again */

static void stop_watching(struct hvi_input *in)
{
    if (in->poll_open)
        uv_poll_stop(&in->poll);
    uv_timer_stop(&in->again);
}

static void read_some(struct hvi_input *in)
{
    static char bytes[HVI_INPUT_BYTES];
    ssize_t n;

    do
        n = read(0, bytes, sizeof bytes);
    while (n < 0 && errno == EINTR);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
        return;
    if (n <= 0) {
        in->ended = true;
        stop_watching(in);
        in->on_data(in->data, NULL, 0);
        return;
    }
    in->on_data(in->data, bytes, (size_t)n);
}

static void watch(struct hvi_input *in);

static void poll_cb(uv_poll_t *p, int status, int events)
{
    struct hvi_input *in = p->data;

    (void)events;
    if (status == 0 && in->is_tty && tcgetpgrp(0) != getpgrp()) {
        watch(in);
        return;
    }
    read_some(in);
}

/* Files have no readiness: one piece a turn of the loop. */
static void again_cb(uv_timer_t *t)
{
    struct hvi_input *in = t->data;

    if (in->is_tty || in->poll_open) {
        watch(in);
        return;
    }
    read_some(in);
    if (!in->ended && !in->paused)
        uv_timer_start(&in->again, again_cb, 0, 0);
}

static void watch(struct hvi_input *in)
{
    stop_watching(in);
    if (in->ended || in->paused)
        return;
    if (in->is_tty && tcgetpgrp(0) != getpgrp())
        uv_timer_start(&in->again, again_cb, FOREGROUND_MS, 0);
    else if (in->poll_open)
        uv_poll_start(&in->poll, UV_READABLE | UV_DISCONNECT, poll_cb);
    else
        uv_timer_start(&in->again, again_cb, 0, 0);
}

void hvi_input_start(struct hvi_input *in, uv_loop_t *loop,
                     void (*on_data)(void *, const char *, size_t), void *data)
{
    memset(in, 0, sizeof *in);
    in->on_data = on_data;
    in->data = data;
    uv_timer_init(loop, &in->again);
    in->again.data = in;
    in->timer_open = true;
    in->is_tty = isatty(0) == 1;
    /* fails for files, which are always ready */
    in->poll_open = uv_poll_init(loop, &in->poll, 0) == 0;
    in->poll.data = in;
    watch(in);
}

void hvi_input_pause(struct hvi_input *in)
{
    in->paused = true;
    stop_watching(in);
}

void hvi_input_resume(struct hvi_input *in)
{
    if (!in->paused || !in->timer_open)
        return;
    in->paused = false;
    watch(in);
}

void hvi_input_close(struct hvi_input *in)
{
    if (in->poll_open)
        uv_close((uv_handle_t *)&in->poll, NULL);
    if (in->timer_open)
        uv_close((uv_handle_t *)&in->again, NULL);
    in->poll_open = in->timer_open = false;
}
