#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "noise.h"
#include "proto/msg/frame.h"
#include "proto/msg/ready.h"

/* The payload of the one frame in out, copied so that ASan sees reads beyond it. */
static uint8_t *payload_of(const struct hvi_buf *out, uint32_t want_type, size_t *size)
{
    const uint8_t *payload;
    size_t frame_bytes;
    uint32_t type;
    uint8_t *exact;

    cr_assert_eq(hvi_frame_peek(hvi_buf_peek(out), hvi_buf_size(out), &type, &payload,
                                size, &frame_bytes, NULL),
                 HVD_OK);
    cr_assert_eq(type, want_type);
    cr_assert_eq(frame_bytes, hvi_buf_size(out));
    exact = malloc(*size > 0 ? *size : 1);
    cr_assert_not_null(exact);
    memcpy(exact, payload, *size);
    return exact;
}

static enum hvd_status get_ready(const uint8_t *payload, size_t size,
                                 struct hvi_err *err)
{
    struct hvi_ready_id *ids = NULL;
    uint32_t epoch = 0xdead;
    uint32_t count = 0xdead;
    enum hvd_status rc = hvi_ready_get(payload, size, &epoch, &ids, &count, err);

    cr_assert(rc == HVD_OK || (ids == NULL && epoch == 0xdead && count == 0xdead));
    free(ids);
    return rc;
}

static enum hvd_status get_order(const uint8_t *payload, size_t size,
                                 struct hvi_err *err)
{
    struct hvi_order_group *groups = NULL;
    uint32_t epoch = 0xdead;
    uint32_t count = 0xdead;
    enum hvd_status rc = hvi_order_get(payload, size, &epoch, &groups, &count, err);
    uint64_t sum = 0;

    cr_assert(rc == HVD_OK || (groups == NULL && epoch == 0xdead && count == 0xdead));
    for (uint32_t i = 0; rc == HVD_OK && i < count; i++) {
        cr_assert(groups[i].status <= 0);
        for (uint32_t k = 0; k < groups[i].nids; k++)
            sum += groups[i].ids[k]; /* all may be read */
    }
    free(groups);
    return sum == UINT64_MAX ? HVD_EINTERNAL : rc;
}

/* ---- READY */

Test(ready, golden_bytes, .timeout = 10)
{
    static const struct hvi_ready_id ids[] = {{7, 1}, {0x01020304, 0xa0b0c0d0}};
    static const uint8_t golden[] = {
        0x56, 0x48, 1, 0, 4,    0,    0,    0,   24, 0, 0, 0, /* frame */
        5,    0,    0, 0, 2,    0,    0,    0,                /* epoch, n */
        7,    0,    0, 0, 1,    0,    0,    0,                /* id, generation */
        4,    3,    2, 1, 0xd0, 0xc0, 0xb0, 0xa0};
    struct hvi_ready_id *back = NULL;
    struct hvi_buf out = {0};
    uint32_t epoch = 0;
    uint32_t count = 0;

    cr_assert_eq(hvi_ready_put(&out, 5, ids, 2), HVD_OK);
    cr_assert_eq(hvi_buf_size(&out), sizeof golden);
    cr_assert_eq(memcmp(hvi_buf_peek(&out), golden, sizeof golden), 0);
    cr_assert_eq(hvi_ready_get(golden + 12, 24, &epoch, &back, &count, NULL), HVD_OK);
    cr_assert_eq(epoch, 5);
    cr_assert_eq(count, 2);
    cr_assert_eq(memcmp(back, ids, sizeof ids), 0);
    free(back);
    hvi_buf_fini(&out);
}

Test(ready, none_and_the_most_pass_one_more_does_not, .timeout = 10)
{
    struct hvi_ready_id *ids = calloc(HVI_READY_MAX_IDS + 1, sizeof *ids);
    struct hvi_ready_id *back = ids;
    struct hvi_buf out = {0};
    uint32_t epoch;
    uint32_t count = 9;
    uint8_t *payload;
    size_t size;

    cr_assert_not_null(ids);
    cr_assert_eq(hvi_ready_put(&out, 1, NULL, 0), HVD_OK);
    payload = payload_of(&out, HVI_MSG_READY, &size);
    cr_assert_eq(hvi_ready_get(payload, size, &epoch, &back, &count, NULL), HVD_OK);
    cr_assert_eq(count, 0);
    cr_assert_null(back);
    free(payload);

    hvi_buf_clear(&out);
    for (uint32_t i = 0; i < HVI_READY_MAX_IDS; i++)
        ids[i].id = i * 3;
    cr_assert_eq(hvi_ready_put(&out, 1, ids, HVI_READY_MAX_IDS), HVD_OK);
    payload = payload_of(&out, HVI_MSG_READY, &size);
    cr_assert_eq(hvi_ready_get(payload, size, &epoch, &back, &count, NULL), HVD_OK);
    cr_assert_eq(count, HVI_READY_MAX_IDS);
    cr_assert_eq(memcmp(back, ids, count * sizeof *ids), 0);
    free(back);
    free(payload);

    hvi_buf_clear(&out);
    cr_assert_eq(hvi_ready_put(&out, 1, ids, HVI_READY_MAX_IDS + 1), HVD_ELIMIT);
    cr_assert_eq(hvi_buf_size(&out), 0);
    hvi_buf_fini(&out);
    free(ids);
}

Test(ready, every_wrong_size_is_refused, .timeout = 10)
{
    static const struct hvi_ready_id ids[] = {{1, 1}, {2, 1}, {3, 1}};
    struct hvi_buf out = {0};
    struct hvi_err err;
    uint8_t *payload;
    size_t size;

    cr_assert_eq(hvi_ready_put(&out, 1, ids, 3), HVD_OK);
    payload = payload_of(&out, HVI_MSG_READY, &size);
    for (size_t n = 0; n < size; n++)
        cr_assert_eq(get_ready(payload, n, &err), HVD_EPROTO, "%zu bytes", n);
    cr_assert_eq(get_ready(payload, size, &err), HVD_OK);
    for (uint32_t claimed = 0; claimed < 70000; claimed++) {
        struct hvi_cursor c;

        hvi_cursor_init(&c, payload + 4, 4);
        hvi_put_u32(&c, claimed);
        cr_assert_eq(get_ready(payload, size, &err), claimed == 3 ? HVD_OK : HVD_EPROTO,
                     "claims %u", claimed);
    }
    memset(payload + 4, 0xff, 4);
    cr_assert_eq(get_ready(payload, size, &err), HVD_EPROTO);
    memcpy(payload + 4, "\x03\0\0\x20", 4); /* 3 + 2^29: times 8 it is 24 again */
    cr_assert_eq(get_ready(payload, size, &err), HVD_EPROTO);
    free(payload);
    hvi_buf_fini(&out);
}

/* ---- ORDER */

static const uint32_t ids_a[] = {4, 5, 6};
static const uint32_t ids_b[] = {0xfffffffe};
static const struct hvi_order_group two_groups[] = {{0x0102030405060708, 0, 3, ids_a},
                                                    {9, HVD_EMISMATCH, 1, ids_b}};

Test(order, golden_bytes, .timeout = 10)
{
    static const uint8_t golden[] = {
        0x56, 0x48, 1,    0,   36, 0, 0, 0, 56, 0, 0, 0,             /* frame */
        3,    0,    0,    0,   2,  0, 0, 0,                          /* epoch, n */
        8,    7,    6,    5,   4,  3, 2, 1, 0,  0, 0, 0, 3, 0, 0, 0, /* seq, ... */
        4,    0,    0,    0,   5,  0, 0, 0, 6,  0, 0, 0,             /* ids */
        9,    0,    0,    0,   0,  0, 0, 0, 4,  0, 0, 0, 1, 0, 0, 0, /* failed */
        0xfe, 0xff, 0xff, 0xff};
    struct hvi_order_group *back = NULL;
    struct hvi_buf out = {0};
    uint32_t epoch = 0;
    uint32_t count = 0;

    cr_assert_eq(hvi_order_put(&out, 3, two_groups, 2), HVD_OK);
    cr_assert_eq(hvi_buf_size(&out), sizeof golden);
    cr_assert_eq(memcmp(hvi_buf_peek(&out), golden, sizeof golden), 0);
    cr_assert_eq(
        hvi_order_get(golden + 12, sizeof golden - 12, &epoch, &back, &count, NULL),
        HVD_OK);
    cr_assert_eq(epoch, 3);
    cr_assert_eq(count, 2);
    for (uint32_t i = 0; i < count; i++) {
        cr_assert_eq(back[i].seq, two_groups[i].seq);
        cr_assert_eq(back[i].status, two_groups[i].status);
        cr_assert_eq(back[i].nids, two_groups[i].nids);
        cr_assert_eq(memcmp(back[i].ids, two_groups[i].ids, 4 * back[i].nids), 0);
    }
    free(back);
    hvi_buf_fini(&out);
}

Test(order, none_empty_and_largest_pass_more_does_not, .timeout = 10)
{
    uint32_t *ids = calloc(HVI_ORDER_MAX_IDS + 1, sizeof *ids);
    struct hvi_order_group g[2] = {{1, 0, 0, NULL}, {2, 0, HVI_ORDER_MAX_IDS, ids}};
    struct hvi_buf out = {0};
    uint8_t *payload;
    size_t size;

    cr_assert_not_null(ids);
    cr_assert_eq(hvi_order_put(&out, 1, NULL, 0), HVD_OK);
    payload = payload_of(&out, HVI_MSG_ORDER, &size);
    cr_assert_eq(get_order(payload, size, NULL), HVD_OK);
    free(payload);
    hvi_buf_clear(&out);
    cr_assert_eq(hvi_order_put(&out, 1, g, 2), HVD_OK);
    payload = payload_of(&out, HVI_MSG_ORDER, &size);
    cr_assert_eq(get_order(payload, size, NULL), HVD_OK);
    free(payload);
    hvi_buf_clear(&out);
    g[0].nids = 1;
    g[0].ids = ids;
    cr_assert_eq(hvi_order_put(&out, 1, g, 2), HVD_ELIMIT);
    cr_assert_eq(hvi_buf_size(&out), 0);
    hvi_buf_fini(&out);
    free(ids);
}

Test(order, wrong_sizes_counts_and_statuses_are_refused, .timeout = 10)
{
    struct hvi_buf out = {0};
    struct hvi_err err;
    uint8_t *payload;
    size_t size;

    cr_assert_eq(hvi_order_put(&out, 3, two_groups, 2), HVD_OK);
    payload = payload_of(&out, HVI_MSG_ORDER, &size);
    for (size_t n = 0; n < size; n++)
        cr_assert_eq(get_order(payload, n, &err), HVD_EPROTO, "%zu bytes", n);
    for (size_t at = 4; at < size; at += 4) {
        bool is_count = at == 4 || at == 20 || at == 48; /* groups, ids, ids */

        for (int high = 0; high < 2 && is_count; high++) {
            payload[at + (high ? 3 : 0)] ^= 0x81;
            cr_assert_eq(get_order(payload, size, &err), HVD_EPROTO, "byte %zu", at);
            payload[at + (high ? 3 : 0)] ^= 0x81;
        }
    }
    for (size_t extra = 1; extra <= 32; extra++) {
        uint8_t longer[128] = {0};

        memcpy(longer, payload, size);
        cr_assert_eq(get_order(longer, size + extra, &err), HVD_EPROTO,
                     "%zu bytes behind it", extra);
    }
    payload[19] = 0x80; /* status 2^31: no int32 has its negative */
    cr_assert_eq(get_order(payload, size, &err), HVD_EPROTO);
    payload[19] = 0;
    cr_assert_eq(get_order(payload, size, &err), HVD_OK);
    free(payload);
    hvi_buf_fini(&out);
}

Test(order, ids_beyond_the_limit_are_refused_unread, .timeout = 10)
{
    size_t size = 8 + 4 * (HVI_ORDER_MAX_IDS + 1);
    uint8_t *payload = calloc(1, size + 16);
    struct hvi_err err;

    cr_assert_not_null(payload);
    cr_assert_eq(get_order(payload, size, &err), HVD_EPROTO);
    cr_assert_not_null(strstr(err.text, "ids"), "%s", err.text);
    free(payload);
}

/* ---- both */

Test(ready, mutations_are_read_whole_or_refused, .timeout = 60)
{
    static const struct hvi_ready_id ids[] = {{1, 1}, {2, 1}, {3, 1}};
    struct hvi_buf ready = {0};
    struct hvi_buf order = {0};
    uint8_t *payload[2];
    size_t size[2];
    uint64_t state = 8;
    long accepted = 0;

    cr_assert_eq(hvi_ready_put(&ready, 1, ids, 3), HVD_OK);
    cr_assert_eq(hvi_order_put(&order, 3, two_groups, 2), HVD_OK);
    payload[0] = payload_of(&ready, HVI_MSG_READY, &size[0]);
    payload[1] = payload_of(&order, HVI_MSG_ORDER, &size[1]);
    for (long round = noise_rounds(100000, 3000000); round > 0; round--) {
        int which = (int)(round % 2);
        size_t at = noise_next(&state) % size[which];
        uint8_t was = payload[which][at];
        size_t n = size[which] - noise_next(&state) % 3 * (noise_next(&state) % 5);
        enum hvd_status rc;

        payload[which][at] ^= (uint8_t)noise_next(&state);
        rc = which == 0 ? get_ready(payload[0], n, NULL)
                        : get_order(payload[1], n, NULL);
        payload[which][at] = was;
        cr_assert(rc == HVD_OK || rc == HVD_EPROTO, "round %ld: %d", round, rc);
        accepted += rc == HVD_OK;
    }
    cr_assert_gt(accepted, 1000, "flips of ids and generations are not seen here");
    free(payload[0]);
    free(payload[1]);
    hvi_buf_fini(&ready);
    hvi_buf_fini(&order);
}

Test(ready, out_of_memory_is_an_error_without_a_leak, .timeout = 10)
{
    static const struct hvi_ready_id ids[] = {{1, 1}};
    struct hvi_buf out[2] = {{0}, {0}};

    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    for (int which = 0; which < 2; which++) {
        uint8_t *payload;
        size_t size;
        enum hvd_status rc;
        long blocks;

        hvi_fault_malloc_after(0);
        rc = which == 0 ? hvi_ready_put(&out[0], 1, ids, 1)
                        : hvi_order_put(&out[1], 1, two_groups, 2);
        cr_assert(hvi_fault_malloc_off());
        cr_assert_eq(rc, HVD_ENOMEM);
        rc = which == 0 ? hvi_ready_put(&out[0], 1, ids, 1)
                        : hvi_order_put(&out[1], 1, two_groups, 2);
        cr_assert_eq(rc, HVD_OK);
        payload =
            payload_of(&out[which], which == 0 ? HVI_MSG_READY : HVI_MSG_ORDER, &size);
        blocks = hvi_fault_live_blocks();
        hvi_fault_malloc_after(0);
        rc = which == 0 ? get_ready(payload, size, NULL)
                        : get_order(payload, size, NULL);
        cr_assert(hvi_fault_malloc_off());
        cr_assert_eq(rc, HVD_ENOMEM);
        cr_assert_eq(hvi_fault_live_blocks(), blocks);
        free(payload);
        hvi_buf_fini(&out[which]);
    }
}
