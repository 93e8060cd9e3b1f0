#include "hvdrun/io/input.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FOREGROUND_MS                                                                  \
    500 /* how often to look whether we are in the foreground again                    \
         */
#define WOKEN (-2)

static bool in_background(void)
{
    return isatty(0) == 1 && tcgetpgrp(0) != getpgrp();
}

/* In the thread: waits for input or for the wake pipe. */
static void wait_and_read(void *data)
{
    struct hvi_input *in = data;
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

static void done_cb(void *data)
{
    struct hvi_input *in = data;

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
    if (!in->started || in->busy || in->paused || in->ended || in->closed)
        return;
    if (in->nothing) {
        in->ended = true;
        in->on_data(in->data, NULL, 0);
        return;
    }
    in->busy = true;
    hvi_aside_begin(&in->aside);
}

static bool is_null(int fd)
{
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISCHR(st.st_mode) && st.st_rdev == makedev(1, 3);
}

enum hvd_status hvi_input_open(struct hvi_input *in, uv_loop_t *loop,
                               void (*on_data)(void *, const char *, size_t),
                               void *data, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    memset(in, 0, sizeof *in);
    in->on_data = on_data;
    in->data = data;
    in->wake[0] = in->wake[1] = -1;
    in->nothing = in->open = is_null(0);
    if (in->nothing)
        return HVD_OK;
    in->bytes = malloc(HVI_INPUT_BYTES);
    if (in->bytes == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    if (pipe2(in->wake, O_CLOEXEC) != 0)
        rc = hvi_fail(err, HVD_ELIMIT, "pipe: %s", strerror(errno));
    if (rc == HVD_OK) {
        rc = hvi_aside_open(&in->aside, loop, wait_and_read, done_cb, in, err);
        if (rc == HVD_OK)
            rc = hvi_aside_start(&in->aside, err);
        in->open = rc == HVD_OK;
        if (in->open)
            return HVD_OK;
        (void)hvi_aside_close(&in->aside);
        close(in->wake[0]);
        close(in->wake[1]);
    }
    free(in->bytes);
    in->bytes = NULL;
    return rc;
}

void hvi_input_start(struct hvi_input *in)
{
    if (!in->open || in->started)
        return;
    in->started = true;
    next(in);
}

void hvi_input_pause(struct hvi_input *in)
{
    in->paused = true;
}

void hvi_input_resume(struct hvi_input *in)
{
    in->paused = false;
    if (in->open)
        next(in);
}

void hvi_input_close(struct hvi_input *in)
{
    if (!in->open || in->closed)
        return;
    in->closed = true;
    if (in->busy)
        (void)!write(in->wake[1], "w", 1);
    if (hvi_aside_close(&in->aside))
        return;
    in->open = false; /* the thread has what is here, and keeps it */
}

void hvi_input_fini(struct hvi_input *in)
{
    if (!in->open)
        return;
    in->open = false;
    if (!in->nothing) {
        close(in->wake[0]);
        close(in->wake[1]);
    }
    free(in->bytes);
    in->bytes = NULL;
}
