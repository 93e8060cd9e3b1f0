#include "test.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fault.h"
#include "hvdrun/job/chan.h"
#include "proto/base/clock.h"

/* What one side has seen. */
struct seen {
    int frames, ends, drains;
    uint32_t last_type;
    int32_t last_rank;
    size_t bytes;
    char err[256];
    bool close_in_frame;
};

static uv_loop_t loop;
static struct hvi_chan a, b;
static struct seen at_a, at_b;

static void on_frame(struct hvi_chan *c, const struct hvi_msg *msg)
{
    struct seen *s = c->data;

    s->frames++;
    s->last_type = msg->type;
    if (msg->type == HVI_MSG_OUTPUT) {
        s->last_rank = ((const Hvi__Output *)msg->body)->rank;
        s->bytes += ((const Hvi__Output *)msg->body)->data.len;
    }
    if (s->close_in_frame)
        hvi_chan_close(c);
}

static void on_end(struct hvi_chan *c, const char *err)
{
    struct seen *s = c->data;

    s->ends++;
    snprintf(s->err, sizeof s->err, "%s", err != NULL ? err : "");
}

static void on_drain(struct hvi_chan *c)
{
    ((struct seen *)c->data)->drains++;
}

static const struct hvi_chan_ops ops = {on_frame, on_end, on_drain};

/* Two channels, ends of two pipes. raw_fd != NULL: only b; a's side is raw. */
static void begin(int raw[2])
{
    int there[2], back[2];
    struct hvi_err err = {""};

    memset(&at_a, 0, sizeof at_a);
    memset(&at_b, 0, sizeof at_b);
    cr_assert_eq(uv_loop_init(&loop), 0);
    cr_assert_eq(pipe2(there, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(back, O_CLOEXEC), 0);
    cr_assert_eq(hvi_chan_open(&b, &loop, there[0], back[1], &ops, &at_b, &err),
                 HVD_OK);
    if (raw != NULL) {
        raw[0] = back[0];
        raw[1] = there[1];
    } else {
        cr_assert_eq(hvi_chan_open(&a, &loop, back[0], there[1], &ops, &at_a, &err),
                     HVD_OK);
    }
}

static void end(bool both)
{
    if (both)
        hvi_chan_close(&a);
    hvi_chan_close(&b);
    uv_run(&loop, UV_RUN_DEFAULT);
    cr_assert_eq(uv_loop_close(&loop), 0, "a handle was left open");
    if (both)
        hvi_chan_fini(&a);
    hvi_chan_fini(&b);
}

static void nothing(uv_timer_t *t)
{
    (void)t;
}

/* Runs the loop until *count reaches want. */
static void await(const int *count, int want, const char *what)
{
    int64_t deadline = hvi_now_ms() + 10000;
    uv_timer_t tick; /* so that a turn of the loop never waits long */

    uv_timer_init(&loop, &tick);
    uv_timer_start(&tick, nothing, 5, 5);
    while (*count < want && hvi_now_ms() < deadline)
        uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&tick, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_geq(*count, want, "did not come: %s", what);
}

static void send_output(struct hvi_chan *c, int rank, const char *data, size_t n)
{
    Hvi__Output msg = HVI__OUTPUT__INIT;

    msg.rank = rank;
    msg.stream = 1;
    msg.data.data = (uint8_t *)(uintptr_t)data;
    msg.data.len = n;
    cr_assert_eq(hvi_chan_send(c, HVI_MSG_OUTPUT, &msg), HVD_OK);
}

Test(chan, messages_arrive_whole_and_in_order_both_ways, .timeout = 20)
{
    static char big[200000];

    begin(NULL);
    for (int i = 0; i < 100; i++)
        send_output(&a, i, big, (size_t)i * 2000);
    send_output(&b, 7, "x", 1);
    await(&at_b.frames, 100, "100 frames");
    await(&at_a.frames, 1, "the frame back");
    cr_assert_eq(at_b.last_rank, 99);
    cr_assert_eq(at_b.bytes, 2000u * 99 * 50);
    cr_assert_eq(at_a.last_rank, 7);
    await(&at_a.drains, 1, "drain");
    cr_assert_eq(hvi_chan_backlog(&a), 0u);
    end(true);
}

Test(chan, a_frame_in_pieces_is_one_frame, .timeout = 20)
{
    struct hvi_buf frame = {0};
    Hvi__Signal msg = HVI__SIGNAL__INIT;
    int raw[2];

    msg.signo = 15;
    msg.rank = -1;
    cr_assert_eq(hvi_msg_put(&frame, HVI_MSG_SIGNAL, &msg), HVD_OK);
    begin(raw);
    for (size_t i = 0; i < hvi_buf_size(&frame); i++) {
        cr_assert_eq(at_b.frames, 0);
        cr_assert_eq(write(raw[1], hvi_buf_peek(&frame) + i, 1), 1);
        uv_run(&loop, UV_RUN_ONCE);
    }
    await(&at_b.frames, 1, "the frame");
    cr_assert_eq(at_b.last_type, (uint32_t)HVI_MSG_SIGNAL);
    close(raw[1]);
    await(&at_b.ends, 1, "the end");
    cr_assert_str_eq(at_b.err, "");
    close(raw[0]);
    hvi_buf_fini(&frame);
    end(false);
}

Test(chan, damage_ends_it_with_a_reason_and_nothing_more_comes, .timeout = 20)
{
    struct hvi_buf frame = {0};
    Hvi__Signal msg = HVI__SIGNAL__INIT;
    int raw[2];

    cr_assert_eq(hvi_msg_put(&frame, HVI_MSG_SIGNAL, &msg), HVD_OK);
    begin(raw);
    cr_assert_eq(write(raw[1], "garbage garbage garbage", 23), 23);
    cr_assert_gt(write(raw[1], hvi_buf_peek(&frame), hvi_buf_size(&frame)), 0);
    await(&at_b.ends, 1, "the end");
    uv_run(&loop, UV_RUN_NOWAIT);
    cr_assert_neq(at_b.err[0], '\0');
    cr_assert_eq(at_b.frames, 0);
    cr_assert_eq(at_b.ends, 1);
    close(raw[0]);
    close(raw[1]);
    hvi_buf_fini(&frame);
    end(false);
}

Test(chan, closing_inside_the_callback_is_allowed, .timeout = 20)
{
    begin(NULL);
    at_b.close_in_frame = true;
    send_output(&a, 1, "x", 1);
    send_output(&a, 2, "y", 1);
    await(&at_a.ends, 1, "the end at the other side");
    cr_assert_eq(at_b.frames, 1);
    cr_assert_eq(at_b.ends, 0);
    end(true);
}

Test(chan, ending_the_output_sends_what_is_queued_first, .timeout = 20)
{
    static char big[300000];

    begin(NULL);
    send_output(&a, 1, big, sizeof big);
    send_output(&a, 2, big, sizeof big);
    hvi_chan_end_output(&a);
    send_output(&a, 3, big, 1); /* too late: dropped in silence */
    await(&at_b.ends, 1, "the end");
    cr_assert_eq(at_b.frames, 2);
    send_output(&b, 4, "z", 1); /* the other direction lives */
    await(&at_a.frames, 1, "a frame back");
    end(true);
}

Test(chan, sending_to_nobody_is_silent, .timeout = 20)
{
    static char big[300000];
    int raw[2];

    signal(SIGPIPE, SIG_IGN);
    begin(raw);
    close(raw[0]);
    for (int i = 0; i < 5; i++) {
        send_output(&b, 1, big, sizeof big);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
    close(raw[1]);
    await(&at_b.ends, 1, "the end");
    cr_assert_eq(hvi_chan_backlog(&b), 0u);
    end(false);
}

/* The end to write to is one to read from. */
Test(chan, what_cannot_even_be_begun_to_be_sent_is_no_backlog, .timeout = 20)
{
    struct hvi_err err = {""};
    int fds[2], more[2];

    cr_assert_eq(uv_loop_init(&loop), 0);
    cr_assert_eq(pipe2(fds, O_CLOEXEC), 0);
    cr_assert_eq(pipe2(more, O_CLOEXEC), 0);
    cr_assert_eq(hvi_chan_open(&b, &loop, fds[0], more[0], &ops, &at_b, &err), HVD_OK);
    send_output(&b, 1, "x", 1);
    cr_assert_eq(hvi_chan_backlog(&b), 0u);
    cr_assert_not(b.out_open);
    end(false);
    close(fds[1]);
    close(more[1]);
}

Test(chan, what_does_not_fit_a_frame_is_refused, .timeout = 20)
{
    static char big[HVI_FRAME_MAX_BYTES + 1];
    Hvi__Output msg = HVI__OUTPUT__INIT;

    begin(NULL);
    msg.data.data = (uint8_t *)big;
    msg.data.len = sizeof big;
    cr_assert_eq(hvi_chan_send(&a, HVI_MSG_OUTPUT, &msg), HVD_ELIMIT);
    send_output(&a, 5, "x", 1);
    await(&at_b.frames, 1, "the next frame");
    cr_assert_eq(at_b.last_rank, 5);
    end(true);
}

/* Text, then the head of an AGENT_UP frame, cut at n bytes. */
static size_t banner(const char *text, size_t n, bool *found)
{
    static const uint8_t head[] = {0x56, 0x48, 1, 0, 113, 0, 0, 0, 9, 0, 0, 0};
    uint8_t bytes[256];
    size_t size = strlen(text);

    memcpy(bytes, text, size);
    memcpy(bytes + size, head, sizeof head);
    size += sizeof head;
    return hvi_chan_banner(bytes, n < size ? n : size, 113, found);
}

Test(chan, a_banner_ends_where_the_first_frame_begins, .timeout = 5)
{
    static const char *const texts[] = {"",   "Welcome!\n", "V",         "VV",
                                        "VH", "VH\001",     "VHVHVH\001"};
    bool found;

    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        cr_assert_eq(banner(texts[i], 1000, &found), strlen(texts[i]), "%s", texts[i]);
        cr_assert(found, "%s", texts[i]);
    }
}

Test(chan, of_an_unfinished_banner_nothing_that_may_be_a_frame_is_dropped, .timeout = 5)
{
    static const char text[] = "Welcome, VH\n";
    bool found;

    for (size_t n = 0; n < sizeof text - 1 + 8; n++) {
        size_t most = n < sizeof text - 1 ? n : sizeof text - 1;

        cr_assert_leq(banner(text, n, &found), most, "%zu", n);
        cr_assert_not(found, "%zu", n);
    }
}

Test(chan, what_comes_before_the_first_frame_is_skipped, .timeout = 20)
{
    static const char text[] = "Last login: today\nVH\001 is no frame\n";
    Hvi__AgentUp up = HVI__AGENT_UP__INIT;
    struct hvi_buf frame = {0};
    int raw[2];

    cr_assert_eq(hvi_msg_put(&frame, HVI_MSG_AGENT_UP, &up), HVD_OK);
    begin(raw);
    hvi_chan_skip_banner(&b, HVI_MSG_AGENT_UP);
    cr_assert_gt(write(raw[1], text, sizeof text - 1), 0);
    for (size_t i = 0; i < hvi_buf_size(&frame); i++) {
        cr_assert_eq(at_b.frames, 0);
        cr_assert_eq(write(raw[1], hvi_buf_peek(&frame) + i, 1), 1);
        uv_run(&loop, UV_RUN_ONCE);
    }
    await(&at_b.frames, 1, "the frame");
    cr_assert_gt(write(raw[1], hvi_buf_peek(&frame), hvi_buf_size(&frame)), 0);
    await(&at_b.frames, 2, "the second frame");
    cr_assert_gt(write(raw[1], "now it is damage", 16), 0);
    await(&at_b.ends, 1, "the end");
    cr_assert_neq(at_b.err[0], '\0');
    close(raw[0]);
    close(raw[1]);
    hvi_buf_fini(&frame);
    end(false);
}

Test(chan, a_banner_without_end_is_damage, .timeout = 20)
{
    static char text[4096];
    int raw[2];

    memset(text, 'x', sizeof text);
    begin(raw);
    hvi_chan_skip_banner(&b, HVI_MSG_AGENT_UP);
    for (size_t i = 0; i <= HVI_CHAN_BANNER_BYTES / sizeof text; i++) {
        cr_assert_eq(at_b.ends, 0);
        cr_assert_gt(write(raw[1], text, sizeof text), 0);
        uv_run(&loop, UV_RUN_ONCE);
    }
    await(&at_b.ends, 1, "the end");
    cr_assert(strstr(at_b.err, "64 KiB") != NULL, "%s", at_b.err);
    cr_assert_eq(at_b.frames, 0);
    close(raw[0]);
    close(raw[1]);
    end(false);
}

Test(chan, what_was_read_is_in_no_block_that_is_freed, .timeout = 20)
{
    static const char key[] = "the key of this job, 32 bytes lo";

    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    begin(NULL);
    send_output(&a, 0, key, sizeof key - 1);
    await(&at_b.frames, 1, "the frame");
    cr_assert_not_null(memmem(b.rx.data, 256, key, sizeof key - 1));
    hvi_fault_look_for(key, sizeof key - 1);
    end(true);
    cr_assert_eq(hvi_fault_freed_with(), 0);
    hvi_fault_look_for(NULL, 0);
}
