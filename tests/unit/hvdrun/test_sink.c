#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hvdrun/io/input.h"
#include "hvdrun/io/sink.h"
#include "proto/base/clock.h"

static uv_loop_t loop;
static struct hvi_sink sink;
static struct hvi_buf text;
static int written;

static void on_written(void *data)
{
    (void)data;
    written++;
}

static void begin(int fd)
{
    written = 0;
    memset(&text, 0, sizeof text);
    cr_assert_eq(uv_loop_init(&loop), 0);
    cr_assert_eq(hvi_sink_init(&sink, &loop, fd, &text, on_written, NULL, NULL),
                 HVD_OK);
}

static void end(void)
{
    hvi_sink_close(&sink);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
    hvi_sink_fini(&sink);
    hvi_buf_fini(&text);
}

static void nothing(uv_timer_t *t)
{
    (void)t;
}

static bool await(bool (*done)(void))
{
    int64_t deadline = hvi_now_ms() + 10000;
    uv_timer_t tick;

    uv_timer_init(&loop, &tick);
    uv_timer_start(&tick, nothing, 5, 5);
    while (!done() && hvi_now_ms() < deadline)
        uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&tick, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
    return done();
}

static bool idle(void)
{
    return !sink.busy;
}

static int reader_fd;
static size_t reader_bytes;
static bool reader_order;

/* Takes what is there: bytes must count up. */
static void take(void)
{
    static uint8_t bytes[65536];
    ssize_t n = read(reader_fd, bytes, sizeof bytes);

    for (ssize_t i = 0; i < n; i++)
        reader_order = reader_order && bytes[i] == (uint8_t)(reader_bytes++ & 0xff);
}

static bool all_read(void)
{
    take();
    return reader_bytes == 600000;
}

static void put_counting(size_t from, size_t n)
{
    uint8_t *p = hvi_buf_reserve(&text, n);

    cr_assert_not_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = (uint8_t)((from + i) & 0xff);
    hvi_buf_commit(&text, n);
}

static void check_order(bool nonblocking)
{
    int p[2];

    cr_assert_eq(pipe2(p, O_CLOEXEC), 0);
    cr_assert_eq(fcntl(p[0], F_SETFL, O_NONBLOCK), 0);
    if (nonblocking)
        cr_assert_eq(fcntl(p[1], F_SETFL, O_NONBLOCK), 0);
    reader_fd = p[0];
    reader_bytes = 0;
    reader_order = true;
    begin(p[1]);
    for (size_t i = 0; i < 600000; i += 100000) {
        put_counting(i, 100000);
        hvi_sink_flush(&sink);
    }
    cr_assert_geq(hvi_sink_backlog(&sink), 500000u); /* a full pipe blocks nobody */
    cr_assert(await(all_read), "the bytes did not come");
    cr_assert(reader_order, "order was lost");
    cr_assert(await(idle));
    cr_assert_eq(hvi_sink_backlog(&sink), 0u);
    cr_assert_not(sink.broken);
    end();
    close(p[0]);
    close(p[1]);
}

Test(sink, a_slow_reader_gets_all_in_order, .timeout = 30)
{
    check_order(false);
}

Test(sink, a_non_blocking_descriptor_is_served_too, .timeout = 30)
{
    check_order(true);
}

Test(sink, a_reader_that_is_gone_breaks_it_and_nothing_waits, .timeout = 30)
{
    int p[2];

    signal(SIGPIPE, SIG_IGN);
    cr_assert_eq(pipe2(p, O_CLOEXEC), 0);
    close(p[0]);
    begin(p[1]);
    put_counting(0, 1000);
    hvi_sink_flush(&sink);
    cr_assert(await(idle));
    cr_assert(sink.broken);
    cr_assert_eq(sink.error, EPIPE);
    put_counting(0, 1000);
    hvi_sink_flush(&sink);
    cr_assert_eq(hvi_sink_backlog(&sink), 0u);
    cr_assert_gt(written, 0);
    cr_assert_eq(sink.lost_bytes, 2000u);
    end();
    close(p[1]);
}

/* ---- input: stdin is replaced by a pipe */

static struct hvi_input input;
static size_t input_bytes;
static int input_ends;

static void on_data(void *data, const char *bytes, size_t n)
{
    (void)data;
    (void)bytes;
    input_bytes += n;
    input_ends += n == 0;
}

static bool input_ended(void)
{
    return input_ends > 0;
}

static bool input_10(void)
{
    return input_bytes >= 10;
}

static int replace_stdin(void)
{
    int p[2];

    cr_assert_eq(pipe2(p, O_CLOEXEC), 0);
    cr_assert_eq(dup2(p[0], 0), 0);
    close(p[0]);
    input_bytes = 0;
    input_ends = 0;
    cr_assert_eq(uv_loop_init(&loop), 0);
    return p[1];
}

static void end_input(void)
{
    hvi_input_close(&input);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0);
    hvi_input_fini(&input);
}

Test(input, gives_what_comes_and_then_the_end_once, .timeout = 30)
{
    int fd = replace_stdin();

    cr_assert_eq(hvi_input_open(&input, &loop, on_data, NULL, NULL), HVD_OK);
    hvi_input_start(&input);
    cr_assert_eq(write(fd, "0123456789", 10), 10);
    cr_assert(await(input_10), "the bytes did not come");
    close(fd);
    cr_assert(await(input_ended), "the end did not come");
    uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(input_ends, 1);
    cr_assert_eq(input_bytes, 10u);
    end_input();
}

Test(input, can_be_closed_while_nothing_comes, .timeout = 30)
{
    int fd = replace_stdin();

    cr_assert_eq(hvi_input_open(&input, &loop, on_data, NULL, NULL), HVD_OK);
    hvi_input_start(&input);
    uv_run(&loop, UV_RUN_NOWAIT);
    end_input(); /* would hang here */
    cr_assert_eq(input_ends, 0);
    close(fd);
}

Test(input, leaves_bytes_alone_while_paused, .timeout = 30)
{
    int fd = replace_stdin();

    cr_assert_eq(hvi_input_open(&input, &loop, on_data, NULL, NULL), HVD_OK);
    hvi_input_start(&input);
    hvi_input_pause(&input); /* after what is being read */
    cr_assert_eq(write(fd, "0123456789", 10), 10);
    cr_assert(await(input_10));
    cr_assert_eq(write(fd, "more", 4), 4);
    uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_eq(input_bytes, 10u);
    hvi_input_resume(&input);
    close(fd);
    cr_assert(await(input_ended));
    cr_assert_eq(input_bytes, 14u);
    end_input();
}
