#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "hvdrun/io/outmux.h"

static struct hvi_outmux mux;

static void begin(enum hvi_prefix prefix, bool one_sink)
{
    cr_assert_eq(hvi_outmux_init(&mux, 3, prefix, one_sink), HVD_OK);
}

static void feed(int rank, int stream, const char *text, int64_t now_ms)
{
    cr_assert_eq(hvi_outmux_feed(&mux, rank, stream, text, strlen(text), now_ms),
                 HVD_OK);
}

/* What has come out of a sink since the last call. */
static const char *taken(int sink)
{
    static char text[300000];
    struct hvi_buf *b = &mux.sink[sink].text;
    size_t n = hvi_buf_size(b);

    cr_assert_lt(n, sizeof text);
    if (n > 0)
        memcpy(text, hvi_buf_peek(b), n);
    text[n] = '\0';
    hvi_buf_consume(b, n);
    return text;
}

Test(outmux, whole_lines_get_horovods_prefix, .timeout = 5)
{
    begin(HVI_PREFIX_HOROVOD, false);
    feed(1, 1, "one\ntwo\n", 0);
    feed(2, 2, "bad\n", 0);
    cr_assert_str_eq(taken(0), "[1]<stdout>:one\n[1]<stdout>:two\n");
    cr_assert_str_eq(taken(1), "[2]<stderr>:bad\n");
    hvi_outmux_fini(&mux);
}

Test(outmux, lines_in_pieces_stay_whole, .timeout = 5)
{
    begin(HVI_PREFIX_RANK, false);
    feed(0, 1, "AA", 0);
    feed(1, 1, "BB", 0);
    feed(0, 1, "aa", 1);
    cr_assert_str_eq(taken(0), "");
    feed(1, 1, "bb\nCC", 2);
    feed(0, 1, "\n", 3);
    cr_assert_str_eq(taken(0), "1: BBbb\n0: AAaa\n");
    cr_assert_eq(hvi_outmux_end(&mux, 1, 1), HVD_OK);
    cr_assert_str_eq(taken(0), "1: CC\n");
    cr_assert_eq(hvi_outmux_end(&mux, 0, 1), HVD_OK);
    cr_assert_str_eq(taken(0), "");
    hvi_outmux_fini(&mux);
}

Test(outmux, an_unfinished_line_is_shown_after_its_time, .timeout = 5)
{
    begin(HVI_PREFIX_RANK, false);
    feed(0, 1, "name? ", 100);
    cr_assert_eq(hvi_outmux_tick(&mux, 100, true), HVI_OUTMUX_HOLD_MS);
    cr_assert_eq(hvi_outmux_tick(&mux, 600, true), HVI_OUTMUX_HOLD_MS - 500);
    cr_assert_str_eq(taken(0), "");
    cr_assert_eq(hvi_outmux_tick(&mux, 100 + HVI_OUTMUX_HOLD_MS, true), -1);
    cr_assert_str_eq(taken(0), "0: name? ");
    feed(0, 1, "Ann", 2000); /* goes on at once */
    cr_assert_str_eq(taken(0), "Ann");
    feed(0, 1, "a\nnext\n", 2001);
    cr_assert_str_eq(taken(0), "a\n0: next\n");
    hvi_outmux_fini(&mux);
}

Test(outmux, a_shown_unfinished_line_gives_way_with_a_backslash, .timeout = 5)
{
    begin(HVI_PREFIX_RANK, false);
    feed(0, 1, "dots...", 0);
    hvi_outmux_tick(&mux, 5000, true);
    feed(1, 1, "other\n", 5001);
    feed(0, 1, "done\n", 5002);
    cr_assert_str_eq(taken(0), "0: dots...\\\n1: other\n0: done\n");
    feed(0, 1, "x", 6000);
    hvi_outmux_tick(&mux, 9000, true);
    feed(1, 2, "stderr is another file\n", 9001);
    feed(0, 1, "y\n", 9002);
    cr_assert_str_eq(taken(0), "0: xy\n");
    cr_assert_str_eq(taken(1), "1: stderr is another file\n");
    hvi_outmux_fini(&mux);
}

Test(outmux, a_line_is_not_shown_in_part_while_its_writer_is_held_back, .timeout = 5)
{
    begin(HVI_PREFIX_RANK, false);
    feed(0, 1, "half", 0);
    cr_assert_eq(hvi_outmux_tick(&mux, 5000, false), HVI_OUTMUX_HOLD_MS);
    cr_assert_eq(hvi_outmux_tick(&mux, 5500, true), HVI_OUTMUX_HOLD_MS - 500);
    cr_assert_str_eq(taken(0), "");
    hvi_outmux_fini(&mux);
}

Test(outmux, one_terminal_for_both_streams_keeps_lines_apart, .timeout = 5)
{
    begin(HVI_PREFIX_RANK, true);
    feed(0, 1, "p", 0);
    hvi_outmux_tick(&mux, 5000, true);
    feed(0, 2, "e\n", 5001);
    cr_assert_str_eq(taken(0), "0: p\\\n0: e\n");
    cr_assert_eq(hvi_outmux_say(&mux, "hvdrun: note"), HVD_OK);
    cr_assert_str_eq(taken(0), "hvdrun: note\n");
    hvi_outmux_fini(&mux);
}

Test(outmux, carriage_returns_end_lines_and_crlf_is_one_end, .timeout = 5)
{
    begin(HVI_PREFIX_RANK, false);
    feed(0, 1, "1%\r2%\r", 0);
    cr_assert_str_eq(taken(0), "0: 1%\r0: 2%\r");
    feed(0, 1, "a\r\nb\r", 0);
    cr_assert_str_eq(taken(0), "0: a\r\n0: b\r");
    feed(0, 1, "\nc\n", 0); /* the end came apart */
    cr_assert_str_eq(taken(0), "\n0: c\n");
    hvi_outmux_fini(&mux);
}

Test(outmux, a_very_long_line_is_not_kept, .timeout = 5)
{
    static char big[HVI_OUTMUX_LINE_BYTES];

    begin(HVI_PREFIX_NONE, false);
    memset(big, 'x', sizeof big);
    cr_assert_eq(hvi_outmux_feed(&mux, 0, 1, big, sizeof big, 0), HVD_OK);
    cr_assert_eq(strlen(taken(0)), sizeof big);
    feed(0, 1, "tail\n", 1);
    cr_assert_str_eq(taken(0), "tail\n");
    hvi_outmux_fini(&mux);
}

Test(outmux, stamps_and_no_prefix, .timeout = 5)
{
    begin(HVI_PREFIX_HOROVOD, false);
    mux.stamp = "NOW";
    feed(2, 1, "x\n", 0);
    cr_assert_str_eq(taken(0), "NOW[2]<stdout>:x\n");
    hvi_outmux_fini(&mux);
    begin(HVI_PREFIX_NONE, false);
    feed(2, 1, "x\n", 0);
    cr_assert_str_eq(taken(0), "x\n");
    hvi_outmux_fini(&mux);
}

static const char *host_of(const void *arg, int rank)
{
    (void)arg;
    return rank == 0 ? "a" : "b";
}

Test(outmux, a_prefix_can_name_the_host_and_have_a_color, .timeout = 5)
{
    begin(HVI_PREFIX_HOST, false);
    mux.host = host_of;
    feed(1, 1, "x\n", 0);
    cr_assert_str_eq(taken(0), "1@b: x\n");
    mux.color = true;
    feed(0, 1, "x\n", 0);
    cr_assert_str_eq(taken(0), "\033[32m0@a: \033[0mx\n");
    feed(0, 2, "x\n", 0);
    cr_assert_str_eq(taken(1), "\033[31m0@a: \033[0mx\n");
    hvi_outmux_fini(&mux);
    begin(HVI_PREFIX_NONE, false);
    mux.color = true;
    feed(0, 1, "x\n", 0);
    cr_assert_str_eq(taken(0), "x\n");
    hvi_outmux_fini(&mux);
}

Test(outmux, merged_stderr_keeps_its_lines_and_our_own_stay_apart, .timeout = 5)
{
    begin(HVI_PREFIX_HOROVOD, false);
    mux.merge = true;
    feed(1, 1, "half ", 0);
    feed(1, 2, "bad\n", 0);
    feed(1, 1, "line\n", 0);
    cr_assert_str_eq(taken(0), "[1]<stdout>:bad\n[1]<stdout>:half line\n");
    cr_assert_eq(hvi_outmux_say(&mux, "hvdrun: word"), HVD_OK);
    cr_assert_str_eq(taken(1), "hvdrun: word\n");
    hvi_outmux_fini(&mux);
}

Test(outmux, ranks_can_be_hidden, .timeout = 5)
{
    bool hidden[3] = {true, false, true};

    begin(HVI_PREFIX_RANK, false);
    mux.hidden = hidden;
    for (int r = 0; r < 3; r++) {
        feed(r, 1, "x\ny", 0);
        cr_assert_eq(hvi_outmux_end(&mux, r, 1), HVD_OK);
    }
    cr_assert_str_eq(taken(0), "1: x\n1: y\n");
    hvi_outmux_fini(&mux);
}

Test(outmux, any_cut_of_the_input_gives_the_same_lines, .timeout = 20)
{
    static const char text[] = "first\nsecond line\r\n\n\nlast";
    unsigned seed = 7;

    for (int round = 0; round < 500; round++) {
        begin(HVI_PREFIX_RANK, false);
        for (size_t at = 0; at < sizeof text - 1;) {
            size_t n = 1 + (size_t)(rand_r(&seed) % 6);

            if (n > sizeof text - 1 - at)
                n = sizeof text - 1 - at;
            cr_assert_eq(hvi_outmux_feed(&mux, 1, 1, text + at, n, 0), HVD_OK);
            at += n;
        }
        cr_assert_eq(hvi_outmux_end(&mux, 1, 1), HVD_OK);
        cr_assert_str_eq(taken(0), "1: first\n1: second line\r\n1: \n1: \n1: last\n");
        hvi_outmux_fini(&mux);
    }
}
