#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "channel.h"
#include "fault.h"
#include "noise.h"

#define HEADER_BYTES 24
#define RECORD_EXTRA (4 + 17) /* length, seal */

static struct channel opened(void)
{
    struct channel ch;

    cr_assert_eq(channel_open(&ch, HVI_ROLE_WORKER), HVD_OK);
    return ch;
}

static void seal(struct hvi_stream *s, const char *text, bool last, struct hvi_buf *out)
{
    cr_assert_eq(hvi_stream_seal(s, text, strlen(text), last, out), HVD_OK);
}

static void copy(struct hvi_buf *to, const void *data, size_t size_bytes)
{
    hvi_buf_clear(to);
    cr_assert_eq(hvi_buf_append(to, data, size_bytes), HVD_OK);
}

/* Opens one record and compares its text. */
static void expect(struct hvi_stream *s, struct hvi_buf *in, const char *text)
{
    struct hvi_buf plain = {0};
    struct hvi_err err = {{0}};
    enum hvd_status rc = hvi_stream_open(s, in, &plain, &err);

    cr_assert_eq(rc, HVD_OK, "'%s': %d %s", text, rc, err.text);
    cr_assert_eq(hvi_buf_size(&plain), strlen(text));
    cr_assert(text[0] == '\0' || memcmp(hvi_buf_peek(&plain), text, strlen(text)) == 0);
    hvi_buf_fini(&plain);
}

/* It does not open, and from then on nothing does. */
static void expect_broken(struct hvi_stream *s, struct hvi_buf *in,
                          enum hvd_status want, const char *what)
{
    struct hvi_buf plain = {0};
    struct hvi_err err = {{0}};
    enum hvd_status rc = hvi_stream_open(s, in, &plain, &err);

    cr_assert_eq(rc, want, "%s: %d %s", what, rc, err.text);
    cr_assert_neq(err.text[0], '\0', "%s", what);
    cr_assert(s->broken, "%s", what);
    cr_assert_eq(hvi_buf_size(&plain), 0, "%s: nothing of it may be read", what);
    cr_assert_eq(hvi_stream_open(s, in, &plain, NULL), HVD_EAUTH, "%s", what);
    hvi_buf_fini(&plain);
}

Test(stream, records_of_all_sizes_arrive_both_ways, .timeout = 30)
{
    static const size_t sizes[] = {0,  1,  12,   16,    63,
                                   64, 65, 4096, 65537, HVI_RECORD_MAX_BYTES};
    struct channel ch = opened();
    struct hvi_buf wire[2] = {{0}, {0}};
    struct hvi_buf plain = {0};
    uint8_t *data = malloc(HVI_RECORD_MAX_BYTES);
    uint64_t state = 3;

    cr_assert_not_null(data);
    for (size_t i = 0; i < HVI_RECORD_MAX_BYTES; i++)
        data[i] = (uint8_t)noise_next(&state);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++)
        for (int way = 0; way < 2; way++) {
            struct hvi_stream *from = way == 0 ? &ch.client : &ch.server;
            struct hvi_stream *to = way == 0 ? &ch.server : &ch.client;
            size_t extra = RECORD_EXTRA + (i == 0 ? HEADER_BYTES : 0);

            cr_assert_eq(hvi_stream_seal(from, data, sizes[i], false, &wire[way]),
                         HVD_OK);
            cr_assert_eq(hvi_buf_size(&wire[way]), sizes[i] + extra);
            if (sizes[i] >= 64)
                cr_assert_null(memmem(hvi_buf_peek(&wire[way]),
                                      hvi_buf_size(&wire[way]), data, 16),
                               "plain text on the wire");
            cr_assert_eq(hvi_stream_open(to, &wire[way], &plain, NULL), HVD_OK,
                         "%zu bytes", sizes[i]);
            cr_assert_eq(hvi_buf_size(&plain), sizes[i]);
            cr_assert(sizes[i] == 0 ||
                      memcmp(hvi_buf_peek(&plain), data, sizes[i]) == 0);
            cr_assert_eq(hvi_buf_size(&wire[way]), 0, "the record was consumed");
        }
    for (int way = 0; way < 2; way++)
        hvi_buf_fini(&wire[way]);
    hvi_buf_fini(&plain);
    free(data);
}

Test(stream, a_record_opens_only_when_all_of_it_is_there, .timeout = 10)
{
    struct channel ch = opened();
    struct hvi_buf sealed = {0};
    struct hvi_buf in = {0};
    struct hvi_buf plain = {0};

    seal(&ch.client, "one", false, &sealed);
    seal(&ch.client, "two", false, &sealed);
    for (size_t opened_records = 0; hvi_buf_size(&sealed) > 0;) {
        enum hvd_status rc;

        cr_assert_eq(hvi_buf_append(&in, hvi_buf_peek(&sealed), 1), HVD_OK);
        hvi_buf_consume(&sealed, 1);
        rc = hvi_stream_open(&ch.server, &in, &plain, NULL);
        if (rc == HVD_OK) {
            opened_records++;
            cr_assert_eq(hvi_buf_size(&in), 0);
            cr_assert_eq(
                memcmp(hvi_buf_peek(&plain), opened_records == 1 ? "one" : "two", 3),
                0);
        } else {
            cr_assert_eq(rc, HVD_INPROGRESS);
            cr_assert_neq(hvi_buf_size(&sealed), 0, "the last byte completes it");
        }
        cr_assert(hvi_buf_size(&sealed) > 0 || opened_records == 2);
    }
    hvi_buf_fini(&sealed);
    hvi_buf_fini(&in);
    hvi_buf_fini(&plain);
}

Test(stream, many_records_in_one_read_come_one_by_one, .timeout = 10)
{
    struct channel ch = opened();
    struct hvi_buf wire = {0};
    struct hvi_buf plain = {0};

    seal(&ch.client, "a", false, &wire);
    seal(&ch.client, "", false, &wire);
    seal(&ch.client, "ccc", false, &wire);
    expect(&ch.server, &wire, "a");
    expect(&ch.server, &wire, "");
    expect(&ch.server, &wire, "ccc");
    cr_assert_eq(hvi_stream_open(&ch.server, &wire, &plain, NULL), HVD_INPROGRESS);
    cr_assert_not(ch.server.broken);
    hvi_buf_fini(&wire);
    hvi_buf_fini(&plain);
}

/* ---- the end */

Test(stream, final_is_seen_and_nothing_may_follow, .timeout = 10)
{
    struct channel ch = opened();
    struct hvi_buf wire = {0};
    struct hvi_buf plain = {0};

    seal(&ch.client, "data", false, &wire);
    seal(&ch.client, "", true, &wire);
    cr_assert_eq(hvi_stream_seal(&ch.client, "x", 1, false, &wire), HVD_ESTATE);
    expect(&ch.server, &wire, "data");
    cr_assert_not(ch.server.ended);
    expect(&ch.server, &wire, "");
    cr_assert(ch.server.ended);
    cr_assert_eq(hvi_stream_open(&ch.server, &wire, &plain, NULL), HVD_INPROGRESS);
    cr_assert_not(ch.server.broken, "silence after the end is right");
    copy(&wire, "x", 1);
    expect_broken(&ch.server, &wire, HVD_EPROTO, "a byte after the end");
    hvi_buf_fini(&wire);
    hvi_buf_fini(&plain);
}

Test(stream, a_cut_connection_never_looks_like_an_end, .timeout = 10)
{
    struct channel ch = opened();
    struct hvi_buf all = {0};
    size_t whole;

    seal(&ch.client, "data", false, &all);
    whole = hvi_buf_size(&all);
    seal(&ch.client, "bye", true, &all);
    for (size_t n = 0; n < hvi_buf_size(&all); n++) {
        struct hvi_stream server = ch.server;
        struct hvi_buf in = {0};
        struct hvi_buf plain = {0};

        copy(&in, hvi_buf_peek(&all), n);
        if (n >= whole)
            expect(&server, &in, "data");
        cr_assert_eq(hvi_stream_open(&server, &in, &plain, NULL), HVD_INPROGRESS,
                     "%zu bytes", n);
        cr_assert_not(server.ended, "%zu bytes", n);
        hvi_buf_fini(&in);
        hvi_buf_fini(&plain);
    }
    hvi_buf_fini(&all);
}

/* ---- damage */

Test(stream, a_flip_of_any_bit_is_noticed, .timeout = 30)
{
    struct channel ch = opened();
    struct hvi_buf all = {0};
    size_t first;

    seal(&ch.client, "first", false, &all);
    first = hvi_buf_size(&all);
    seal(&ch.client, "second", false, &all);
    for (size_t bit = 0; bit < 8 * hvi_buf_size(&all); bit++) {
        struct hvi_stream server = ch.server;
        struct hvi_buf in = {0};
        struct hvi_buf plain = {0};
        enum hvd_status rc;

        copy(&in, hvi_buf_peek(&all), hvi_buf_size(&all));
        in.data[in.off + bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (bit / 8 >= first)
            expect(&server, &in, "first");
        rc = hvi_stream_open(&server, &in, &plain, NULL);
        /* a length made larger waits for more, and fails when it has come */
        if (rc == HVD_INPROGRESS) {
            uint8_t *more = calloc(1, 2 * HVI_RECORD_MAX_BYTES);

            cr_assert_not_null(more);
            cr_assert_eq(hvi_buf_append(&in, more, 2 * HVI_RECORD_MAX_BYTES), HVD_OK);
            free(more);
            rc = hvi_stream_open(&server, &in, &plain, NULL);
        }
        cr_assert(rc == HVD_EAUTH || rc == HVD_EPROTO, "bit %zu: %d", bit, rc);
        cr_assert(server.broken, "bit %zu", bit);
        cr_assert_eq(hvi_buf_size(&plain), 0, "bit %zu", bit);
        cr_assert_eq(hvi_stream_open(&server, &in, &plain, NULL), HVD_EAUTH);
        hvi_buf_fini(&in);
        hvi_buf_fini(&plain);
    }
    hvi_buf_fini(&all);
}

Test(stream, reordered_repeated_and_missing_records_are_noticed, .timeout = 10)
{
    /* which of the four records come, in this order; the last one is wrong */
    static const struct {
        const char *what, *order;
    } cases[] = {{"two swapped", "02"},
                 {"one repeated", "011"},
                 {"one missing", "013"},
                 {"an old one at the end", "01230"}};
    struct channel ch = opened();
    struct hvi_buf records[4] = {{0}};
    char text[2] = "0";

    for (int i = 0; i < 4; i++) {
        text[0] = (char)('0' + i);
        seal(&ch.client, text, false, &records[i]);
    }
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct hvi_stream server = ch.server;
        struct hvi_buf in = {0};

        for (const char *c = cases[i].order; *c != '\0'; c++) {
            const struct hvi_buf *r = &records[*c - '0'];

            copy(&in, hvi_buf_peek(r), hvi_buf_size(r));
            text[0] = *c;
            if (c[1] != '\0') {
                expect(&server, &in, text);
            } else if (*c == '0') { /* it carries the stream header too */
                hvi_buf_consume(&in, HEADER_BYTES);
                expect_broken(&server, &in, HVD_EAUTH, cases[i].what);
            } else {
                expect_broken(&server, &in, HVD_EAUTH, cases[i].what);
            }
        }
        hvi_buf_fini(&in);
    }
    for (int i = 0; i < 4; i++)
        hvi_buf_fini(&records[i]);
}

Test(stream, records_sent_back_or_of_another_connection_are_noticed, .timeout = 10)
{
    struct channel a = opened();
    struct channel b = opened();
    struct hvi_buf wire = {0};
    struct hvi_buf again = {0};

    seal(&a.client, "mine", false, &wire);
    copy(&again, hvi_buf_peek(&wire), hvi_buf_size(&wire));
    expect_broken(&a.client, &again, HVD_EAUTH, "reflected");
    copy(&again, hvi_buf_peek(&wire), hvi_buf_size(&wire));
    expect_broken(&b.server, &again, HVD_EAUTH, "of another connection");
    expect(&a.server, &wire, "mine");
    hvi_buf_fini(&wire);
    hvi_buf_fini(&again);
}

Test(stream, impossible_lengths_are_refused_before_anything_is_reserved, .timeout = 10)
{
    static const uint32_t lengths[] = {0, 16, 17 + HVI_RECORD_MAX_BYTES + 1, 0x7fffffff,
                                       0xffffffff};
    struct channel ch = opened();
    struct hvi_buf first = {0};

    seal(&ch.client, "first", false, &first);
    expect(&ch.server, &first, "first");
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct hvi_stream server = ch.server;
        struct hvi_buf in = {0};
        struct hvi_buf plain = {0};
        uint8_t bytes[4];
        struct hvi_cursor c;
        size_t asked;

        hvi_cursor_init(&c, bytes, sizeof bytes);
        hvi_put_u32(&c, lengths[i]);
        copy(&in, bytes, sizeof bytes);
        asked = hvi_fault_asked_bytes();
        cr_assert_eq(hvi_stream_open(&server, &in, &plain, NULL), HVD_EPROTO,
                     "length %u", lengths[i]);
        cr_assert_eq(hvi_fault_asked_bytes(), asked);
        cr_assert(server.broken);
        hvi_buf_fini(&in);
        hvi_buf_fini(&plain);
    }
    hvi_buf_fini(&first);
}

Test(stream, mutated_sessions_are_always_noticed, .timeout = 120)
{
    enum { RECORDS = 4 };
    struct channel ch = opened();
    struct hvi_buf all = {0};
    uint64_t state = 11;

    for (int i = 0; i < RECORDS; i++)
        seal(&ch.client, "a record of a session", i == RECORDS - 1, &all);
    for (long round = noise_rounds(20000, 1000000); round > 0; round--) {
        struct hvi_stream server = ch.server;
        size_t size = hvi_buf_size(&all);
        struct hvi_buf in = {0};
        struct hvi_buf plain = {0};
        enum hvd_status rc;
        int good = 0;

        copy(&in, hvi_buf_peek(&all), size);
        for (uint64_t n = noise_next(&state) % 3 + 1; n > 0; n--) {
            size_t at = noise_next(&state) % size;
            uint8_t change = (uint8_t)(noise_next(&state) % 255 + 1);

            in.data[in.off + at] ^= change;
        }
        if (memcmp(hvi_buf_peek(&in), hvi_buf_peek(&all), size) != 0) {
            while ((rc = hvi_stream_open(&server, &in, &plain, NULL)) == HVD_OK)
                good++;
            cr_assert(good < RECORDS && !server.ended, "round %ld", round);
            cr_assert(rc == HVD_EAUTH || rc == HVD_EPROTO || rc == HVD_INPROGRESS);
        }
        hvi_buf_fini(&in);
        hvi_buf_fini(&plain);
    }
    hvi_buf_fini(&all);
}

/* ---- limits and failures leave the stream usable */

Test(stream, too_large_records_and_full_buffers_change_nothing, .timeout = 10)
{
    struct channel ch = opened();
    struct hvi_buf small = {.max_bytes = HEADER_BYTES + RECORD_EXTRA + 4};
    uint8_t *big = calloc(1, HVI_RECORD_MAX_BYTES + 1);

    cr_assert_not_null(big);
    cr_assert_eq(
        hvi_stream_seal(&ch.client, big, HVI_RECORD_MAX_BYTES + 1, false, &small),
        HVD_ELIMIT);
    cr_assert_eq(hvi_stream_seal(&ch.client, "12345", 5, true, &small), HVD_ELIMIT);
    cr_assert_eq(hvi_buf_size(&small), 0);
    cr_assert_not(ch.client.finished);
    seal(&ch.client, "1234", false, &small);
    cr_assert_eq(hvi_stream_seal(&ch.client, "", 0, false, &small), HVD_ELIMIT,
                 "no room behind the first");
    expect(&ch.server, &small, "1234");
    seal(&ch.client, "5678", false, &small);
    expect(&ch.server, &small, "5678");
    hvi_buf_fini(&small);
    free(big);
}

Test(stream, out_of_memory_loses_no_record, .timeout = 10)
{
    struct channel ch = opened();
    struct hvi_buf wire = {0};
    struct hvi_buf plain = {0};
    enum hvd_status rc;

    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    hvi_fault_malloc_after(0);
    rc = hvi_stream_seal(&ch.client, "text", 4, false, &wire);
    cr_assert(hvi_fault_malloc_off());
    cr_assert_eq(rc, HVD_ENOMEM);
    cr_assert_eq(hvi_buf_size(&wire), 0);
    seal(&ch.client, "text", false, &wire);

    hvi_fault_malloc_after(0);
    rc = hvi_stream_open(&ch.server, &wire, &plain, NULL);
    cr_assert(hvi_fault_malloc_off());
    cr_assert_eq(rc, HVD_ENOMEM);
    cr_assert_not(ch.server.broken);
    expect(&ch.server, &wire, "text");
    hvi_buf_fini(&wire);
    hvi_buf_fini(&plain);
}

Test(stream, keys_are_wiped_once_used_and_all_in_the_end, .timeout = 10)
{
    static const struct hvi_stream wiped;
    struct channel ch = opened();
    struct hvi_buf wire = {0};

    cr_assert_neq(memcmp(ch.client.push_key, wiped.push_key, 32), 0);
    seal(&ch.client, "x", false, &wire);
    cr_assert_eq(memcmp(ch.client.push_key, wiped.push_key, 32), 0);
    expect(&ch.server, &wire, "x");
    cr_assert_eq(memcmp(ch.server.pull_key, wiped.pull_key, 32), 0);
    hvi_buf_fini(&wire);
    hvi_stream_fini(&ch.client);
    cr_assert_eq(memcmp(&ch.client, &wiped, sizeof wiped), 0);
}
