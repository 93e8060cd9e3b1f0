#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "noise.h"
#include "proto/msg/frame.h"

/* Where *out must stay as it was. */
struct peeked {
    uint32_t type;
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
};

static enum hvd_status peek(const uint8_t *data, size_t size_bytes, struct peeked *p,
                            struct hvi_err *err)
{
    *p = (struct peeked){0xabcd, NULL, 111, 222};
    return hvi_frame_peek(data, size_bytes, &p->type, &p->payload, &p->payload_bytes,
                          &p->frame_bytes, err);
}

static bool unwritten(const struct peeked *p)
{
    return p->type == 0xabcd && p->payload == NULL && p->payload_bytes == 111 &&
           p->frame_bytes == 222;
}

Test(frame, golden_bytes, .timeout = 10)
{
    static const uint8_t golden[] = {0x56, 0x48, 1, 0, 0x2a, 0x01, 0,  0,
                                     3,    0,    0, 0, 'a',  'b',  'c'};
    struct hvi_buf out = {0};
    struct peeked p;

    cr_assert_eq(hvi_frame_put(&out, 0x012a, "abc", 3), HVD_OK);
    cr_assert_eq(hvi_buf_size(&out), sizeof golden);
    cr_assert_eq(memcmp(hvi_buf_peek(&out), golden, sizeof golden), 0);
    cr_assert_eq(peek(golden, sizeof golden, &p, NULL), HVD_OK);
    cr_assert_eq(p.type, 0x012a);
    cr_assert_eq(p.payload, golden + 12);
    cr_assert_eq(p.payload_bytes, 3);
    cr_assert_eq(p.frame_bytes, sizeof golden);
    hvi_buf_fini(&out);
}

Test(frame, empty_and_largest_payloads_pass, .timeout = 10)
{
    uint8_t *big = malloc(HVI_FRAME_MAX_BYTES + 1);
    struct hvi_buf out = {0};
    struct peeked p;

    cr_assert_not_null(big);
    memset(big, 0x77, HVI_FRAME_MAX_BYTES + 1);
    cr_assert_eq(hvi_frame_put(&out, HVI_MSG_GO, NULL, 0), HVD_OK);
    cr_assert_eq(hvi_frame_put(&out, HVI_MSG_OUTPUT, big, HVI_FRAME_MAX_BYTES), HVD_OK);
    cr_assert_eq(peek(hvi_buf_peek(&out), hvi_buf_size(&out), &p, NULL), HVD_OK);
    cr_assert_eq(p.type, HVI_MSG_GO);
    cr_assert_eq(p.payload_bytes, 0);
    cr_assert_eq(p.frame_bytes, HVI_FRAME_HEADER_BYTES);
    hvi_buf_consume(&out, p.frame_bytes);
    cr_assert_eq(peek(hvi_buf_peek(&out), hvi_buf_size(&out), &p, NULL), HVD_OK);
    cr_assert_eq(p.type, HVI_MSG_OUTPUT);
    cr_assert_eq(p.payload_bytes, HVI_FRAME_MAX_BYTES);
    cr_assert_eq(memcmp(p.payload, big, HVI_FRAME_MAX_BYTES), 0);

    hvi_buf_clear(&out);
    cr_assert_eq(hvi_frame_put(&out, HVI_MSG_OUTPUT, big, HVI_FRAME_MAX_BYTES + 1),
                 HVD_ELIMIT);
    cr_assert_eq(hvi_frame_put(&out, 0x10000, big, 1), HVD_ELIMIT, "type of 17 bits");
    cr_assert_eq(hvi_buf_size(&out), 0);
    cr_assert_eq(hvi_frame_put(&out, 0xffff, big, 1), HVD_OK);
    hvi_buf_fini(&out);
    free(big);
}

Test(frame, room_is_the_payload_to_be_filled, .timeout = 10)
{
    struct hvi_buf out = {0};
    struct peeked p;
    uint8_t *to = NULL;

    cr_assert_eq(hvi_frame_room(&out, 4, 5, &to), HVD_OK);
    memcpy(to, "12345", 5);
    cr_assert_eq(peek(hvi_buf_peek(&out), hvi_buf_size(&out), &p, NULL), HVD_OK);
    cr_assert_eq(memcmp(p.payload, "12345", 5), 0);
    cr_assert_eq(hvi_frame_room(&out, 4, 0, &to), HVD_OK);
    cr_assert_null(to);
    hvi_buf_fini(&out);
}

Test(frame, every_truncation_asks_for_more, .timeout = 10)
{
    struct hvi_buf out = {0};
    struct peeked p;

    cr_assert_eq(hvi_frame_put(&out, HVI_MSG_HELLO, "payload", 7), HVD_OK);
    for (size_t n = 0; n < hvi_buf_size(&out); n++) {
        uint8_t *exact = malloc(n + 1); /* so that ASan sees a read beyond it */

        cr_assert_not_null(exact);
        memcpy(exact + 1, hvi_buf_peek(&out), n);
        cr_assert_eq(peek(exact + 1, n, &p, NULL), HVD_INPROGRESS, "%zu bytes", n);
        cr_assert(unwritten(&p), "%zu bytes", n);
        free(exact);
    }
    cr_assert_eq(peek(NULL, 0, &p, NULL), HVD_INPROGRESS);
    hvi_buf_fini(&out);
}

Test(frame, any_flip_in_the_fixed_part_is_refused_at_once, .timeout = 10)
{
    struct hvi_buf out = {0};
    struct hvi_err err;
    struct peeked p;

    cr_assert_eq(hvi_frame_put(&out, HVI_MSG_HELLO, "payload", 7), HVD_OK);
    for (size_t bit = 0; bit < 8 * HVI_FRAME_HEADER_BYTES; bit++) {
        size_t byte = bit / 8;
        enum hvd_status rc;

        out.data[byte] ^= (uint8_t)(1u << bit % 8);
        rc = peek(hvi_buf_peek(&out), hvi_buf_size(&out), &p, &err);
        out.data[byte] ^= (uint8_t)(1u << bit % 8);
        if (byte == 4 || byte == 5) { /* type: decided by whoever dispatches */
            cr_assert_eq(rc, HVD_OK, "bit %zu", bit);
            cr_assert_neq(p.type, HVI_MSG_HELLO);
        } else if (byte < 8) {
            cr_assert_eq(rc, HVD_EPROTO, "bit %zu", bit);
            cr_assert(unwritten(&p));
        } else { /* length */
            cr_assert(rc == HVD_OK ? p.payload_bytes < 7
                                   : rc == HVD_INPROGRESS || rc == HVD_EPROTO,
                      "bit %zu: %d", bit, rc);
        }
    }
    hvi_buf_fini(&out);
}

Test(frame, foreign_bytes_are_refused_from_the_first_byte_and_shown, .timeout = 10)
{
    static const char greeting[] = "Welcome to host1!\r\n\x1b[0m";
    struct hvi_err err;
    struct peeked p;

    for (size_t n = 1; n < sizeof greeting; n++)
        cr_assert_eq(peek((const uint8_t *)greeting, n, &p, &err), HVD_EPROTO);
    cr_assert_str_eq(err.text, "not an hvd frame: it starts with 'Welcome to "
                               "host1!\\x0d\\x0a\\x1b[0m'");
    cr_assert_eq(peek((const uint8_t *)"V", 1, &p, &err), HVD_INPROGRESS);
    cr_assert_eq(peek((const uint8_t *)"VX", 2, &p, &err), HVD_EPROTO);
}

Test(frame, oversize_is_refused_by_its_header_alone_and_named, .timeout = 10)
{
    static const uint32_t sizes[] = {HVI_FRAME_MAX_BYTES + 1, 0x7fffffff, 0x80000000,
                                     0xffffffff};
    struct hvi_buf out = {0};
    struct hvi_err err;
    struct peeked p;

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        struct hvi_cursor c;

        hvi_buf_clear(&out);
        cr_assert_eq(hvi_frame_put(&out, HVI_MSG_ANNOUNCE, NULL, 0), HVD_OK);
        hvi_cursor_init(&c, out.data + 8, 4);
        hvi_put_u32(&c, sizes[i]);
        cr_assert_eq(peek(hvi_buf_peek(&out), hvi_buf_size(&out), &p, &err),
                     HVD_EPROTO);
        cr_assert_not_null(strstr(err.text, "ANNOUNCE"), "%s", err.text);
        cr_assert(unwritten(&p));
    }
    hvi_buf_fini(&out);
}

Test(frame, noise_never_passes_for_a_frame_with_more_than_there_is, .timeout = 60)
{
    uint64_t state = 5;

    for (long round = noise_rounds(200000, 5000000); round > 0; round--) {
        uint8_t bytes[32] = {0x56, 0x48, 1, 0};
        size_t n = noise_next(&state) % (sizeof bytes + 1);
        struct peeked p;
        enum hvd_status rc;

        for (size_t i = round % 4 == 0 ? 0 : 4; i < n; i++)
            bytes[i] = (uint8_t)(noise_next(&state) >> 8 & (i > 8 ? 1 : 0xff));
        if (round % 2 == 0)
            bytes[6] = bytes[7] = 0;
        rc = peek(bytes, n, &p, NULL);
        if (rc != HVD_OK) {
            cr_assert(rc == HVD_INPROGRESS || rc == HVD_EPROTO);
            cr_assert(unwritten(&p));
            continue;
        }
        cr_assert(p.frame_bytes <= n);
        cr_assert_eq(p.payload_bytes + HVI_FRAME_HEADER_BYTES, p.frame_bytes);
        cr_assert(p.payload == bytes + HVI_FRAME_HEADER_BYTES);
    }
}

Test(frame, failures_leave_the_buffer_as_it_was, .timeout = 10)
{
    struct hvi_buf out = {.max_bytes = 20};
    struct hvi_buf fresh = {0};
    enum hvd_status rc;

    cr_assert_eq(hvi_buf_append(&out, "abc", 3), HVD_OK);
    cr_assert_eq(hvi_frame_put(&out, HVI_MSG_GO, "123456", 6), HVD_ELIMIT);
    cr_assert_eq(hvi_buf_size(&out), 3);
    cr_assert_eq(hvi_frame_put(&out, HVI_MSG_GO, "12345", 5), HVD_OK);
    hvi_buf_fini(&out);
    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    hvi_fault_malloc_after(0);
    rc = hvi_frame_put(&fresh, HVI_MSG_GO, "1", 1);
    cr_assert(hvi_fault_malloc_off());
    cr_assert_eq(rc, HVD_ENOMEM);
    cr_assert_eq(hvi_buf_size(&fresh), 0);
    hvi_buf_fini(&fresh);
}

/* PROTOCOL.md section 4; a number that moves breaks every older peer. */
Test(frame, type_numbers_and_names_are_the_documented_ones, .timeout = 10)
{
    static const struct {
        uint32_t type;
        const char *name;
    } known[] = {{1, "HELLO"},
                 {2, "FORMED"},
                 {3, "ANNOUNCE"},
                 {4, "READY"},
                 {6, "JOIN"},
                 {7, "PSET_ADD"},
                 {8, "PSET_REMOVE"},
                 {9, "BYE"},
                 {10, "STALLED"},
                 {11, "PROBE_REPLY"},
                 {12, "TIMELINE_CHUNK"},
                 {13, "TIMELINE_CTL"},
                 {14, "SUSPECT"},
                 {32, "REFUSED"},
                 {33, "WELCOME"},
                 {34, "GO"},
                 {35, "ASSIGN"},
                 {36, "ORDER"},
                 {37, "EVICT"},
                 {38, "FAIL"},
                 {39, "JOIN_DONE"},
                 {40, "PSET_REPLY"},
                 {41, "PEER_BYE"},
                 {42, "CLOSED"},
                 {43, "PROBE"},
                 {44, "MARK"},
                 {64, "AGENT_HELLO"},
                 {65, "RANK_STARTED"},
                 {66, "RANK_EXITED"},
                 {67, "HEARTBEAT"},
                 {68, "PROC_PROBE"},
                 {69, "PROC_STATE"},
                 {96, "COORD_CONFIG"},
                 {97, "COORD_UP"},
                 {98, "COORD_NOTE"},
                 {112, "JOB_SPEC"},
                 {113, "AGENT_UP"},
                 {114, "STARTED"},
                 {115, "OUTPUT"},
                 {116, "EXITED"},
                 {117, "AGENT_ERROR"},
                 {118, "STDIN_DATA"},
                 {119, "SIGNAL"},
                 {120, "STOP"},
                 {121, "OUTPUT_ACK"},
                 {122, "TERM_SIZE"},
                 {123, "ATTACH"},
                 {124, "ATTACHED"}};
    uint32_t named = 0;

    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        cr_assert_str_eq(hvi_msg_name(known[i].type), known[i].name);
    for (uint32_t type = 0; type < 300; type++)
        named += hvi_msg_name(type)[0] != '?';
    cr_assert_eq(named, sizeof known / sizeof known[0]);
    cr_assert_str_eq(hvi_msg_name(UINT32_MAX), "?");
}
