#include "hvdrun/input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FOREGROUND_MS                                                                  \
    500 /* how often to look whether we are in the foreground again                    \
         */
#define WOKEN (-2)

static bool in_background(void)
{
    return isatty(0) == 1 && tcgetpgrp(0) != getpgrp();
}

/* In the pool's thread: waits for input or for the wake pipe. */
static void wait_and_read(uv_work_t *work)
{
    struct hvi_input *in = work->data;
    struct pollfd p[2] = {{.fd = in->wake[0], .events = POLLIN},
                          {.fd = 0, .events = POLLIN}};

    in->n = WOKEN;
    for (;;) {
        bool background = in_background();
        int n = poll(p, background ? 1 : 2, background ? FOREGROUND_MS : -1);

        if (n < 0 && errno != EINTR)
            return;
        if (n <= 0)
            continue;
        if (p[0].revents != 0)
            return;
        if (background || p[1].revents == 0 || in_background())
            continue;
        in->n = read(0, in->bytes, HVI_INPUT_BYTES);
        if (in->n >= 0 || (errno != EINTR && errno != EAGAIN && errno != EIO))
            return;
        if (errno == EIO && !in_background()) /* the terminal is gone */
            return;
    }
}

static void next(struct hvi_input *in);

static void done_cb(uv_work_t *work, int status)
{
    struct hvi_input *in = work->data;

    (void)status;
    in->busy = false;
    if (in->closed || in->ended)
        return;
    if (in->n > 0) {
        in->on_data(in->data, in->bytes, (size_t)in->n);
        next(in);
    } else if (in->n != WOKEN) {
        in->ended = true;
        in->on_data(in->data, NULL, 0);
    }
}

static void next(struct hvi_input *in)
{
    if (in->busy || in->paused || in->ended || in->closed)
        return;
    in->work.data = in;
    in->busy = uv_queue_work(in->loop, &in->work, wait_and_read, done_cb) == 0;
}

void hvi_input_start(struct hvi_input *in, uv_loop_t *loop,
                     void (*on_data)(void *, const char *, size_t), void *data)
{
    memset(in, 0, sizeof *in);
    in->loop = loop;
    in->on_data = on_data;
    in->data = data;
    in->wake[0] = in->wake[1] = -1;
    in->bytes = malloc(HVI_INPUT_BYTES);
    if (in->bytes == NULL || pipe2(in->wake, O_CLOEXEC) != 0) {
        in->ended = true;
        on_data(data, NULL, 0);
        return;
    }
    next(in);
}

void hvi_input_pause(struct hvi_input *in)
{
    in->paused = true;
}

void hvi_input_resume(struct hvi_input *in)
{
    in->paused = false;
    if (in->loop != NULL)
        next(in);
}

void hvi_input_close(struct hvi_input *in)
{
    if (in->loop == NULL || in->closed)
        return;
    in->closed = true;
    if (in->busy)
        (void)!write(in->wake[1], "w", 1);
}

void hvi_input_fini(struct hvi_input *in)
{
    if (in->loop == NULL)
        return;
    for (int i = 0; i < 2; i++)
        if (in->wake[i] >= 0)
            close(in->wake[i]);
    free(in->bytes);
    memset(in, 0, sizeof *in);
}
