#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "fill.h"
#include "noise.h"

/* ---- helpers */

/* The packed bytes of a filled message, without the frame header. */
static void filled(uint32_t i, struct hvi_buf *out)
{
    ProtobufCMessage *m = fill_message(fill_types[i].descriptor);

    hvi_buf_clear(out);
    cr_assert_eq(hvi_msg_put(out, fill_types[i].type, m), HVD_OK, "%s",
                 hvi_msg_name(fill_types[i].type));
    hvi_buf_consume(out, HVI_FRAME_HEADER_BYTES);
    fill_free(m);
}

/* Decodes and lets go; what was written where it must not be fails the test. */
static enum hvd_status get(uint32_t type, const void *payload, size_t size_bytes,
                           struct hvi_err *err)
{
    struct hvi_msg msg = {0xabcd, NULL};
    enum hvd_status rc = hvi_msg_get(type, payload, size_bytes, &msg, err);

    if (rc == HVD_OK) {
        cr_assert_eq(msg.type, type);
        cr_assert_not_null(msg.body);
        hvi_msg_free(&msg);
    }
    cr_assert(rc == HVD_OK || (msg.type == 0xabcd && msg.body == NULL),
              "written on failure");
    return rc;
}

/* A payload by hand: tag bytes, length bytes, whatever the test wants. */
static void put_varint(struct hvi_buf *b, uint64_t v)
{
    do {
        uint8_t byte = (uint8_t)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));

        cr_assert_eq(hvi_buf_append(b, &byte, 1), HVD_OK);
        v >>= 7;
    } while (v > 0);
}

static void put_field(struct hvi_buf *b, uint32_t id, const void *data, size_t size)
{
    put_varint(b, id << 3 | 2);
    put_varint(b, size);
    cr_assert_eq(hvi_buf_append(b, data, size), HVD_OK);
}

/* ---- all messages */

Test(msg, every_type_comes_back_as_it_went, .timeout = 30)
{
    for (uint32_t i = 0; i < FILL_TYPES; i++) {
        const char *name = hvi_msg_name(fill_types[i].type);
        ProtobufCMessage *m = fill_message(fill_types[i].descriptor);
        struct hvi_msg back = {0};
        struct hvi_buf out = {0};
        struct hvi_buf again = {0};
        const uint8_t *payload;
        struct hvi_err err;
        size_t payload_bytes;
        size_t frame_bytes;
        uint32_t type;

        cr_assert_eq(hvi_msg_put(&out, fill_types[i].type, m), HVD_OK, "%s", name);
        cr_assert_eq(hvi_frame_peek(hvi_buf_peek(&out), hvi_buf_size(&out), &type,
                                    &payload, &payload_bytes, &frame_bytes, NULL),
                     HVD_OK);
        cr_assert_eq(type, fill_types[i].type);
        cr_assert_eq(hvi_msg_get(type, payload, payload_bytes, &back, &err), HVD_OK,
                     "%s: %s", name, err.text);
        cr_assert_eq(hvi_msg_put(&again, type, back.body), HVD_OK, "%s", name);
        cr_assert_eq(hvi_buf_size(&again), hvi_buf_size(&out), "%s", name);
        cr_assert_eq(
            memcmp(hvi_buf_peek(&again), hvi_buf_peek(&out), hvi_buf_size(&out)), 0,
            "%s", name);
        hvi_msg_free(&back);
        cr_assert_null(back.body);
        fill_free(m);
        hvi_buf_fini(&out);
        hvi_buf_fini(&again);
    }
}

Test(msg, empty_messages_of_every_type_pass, .timeout = 10)
{
    for (uint32_t i = 0; i < FILL_TYPES; i++)
        cr_assert_eq(get(fill_types[i].type, NULL, 0, NULL), HVD_OK, "%s",
                     hvi_msg_name(fill_types[i].type));
}

/* What a field means is its number and type: the bytes of a message with every field
 * set (fill.h) pin both. A change here is a change of the wire: PROTOCOL.md says when
 * the version must rise. A field added at the end only makes its line longer. */
static const struct {
    uint32_t type;
    const char *hex;
} golden[] = {
#include "golden_msg.inc"
};

Test(msg, golden_bytes_of_every_type, .timeout = 10)
{
    static char hex[8192];
    struct hvi_buf out = {0};

    cr_assert_eq(sizeof golden / sizeof golden[0], FILL_TYPES);
    for (uint32_t i = 0; i < FILL_TYPES; i++) {
        filled(i, &out);
        cr_assert_lt(2 * hvi_buf_size(&out), sizeof hex);
        hex[0] = '\0';
        for (size_t k = 0; k < hvi_buf_size(&out); k++)
            snprintf(hex + 2 * k, 3, "%02x", hvi_buf_peek(&out)[k]);
        cr_assert_eq(golden[i].type, fill_types[i].type);
        cr_assert_str_eq(golden[i].hex, hex, "%s is now %s",
                         hvi_msg_name(fill_types[i].type), hex);
    }
    hvi_buf_fini(&out);
}

/* ---- refused */

Test(msg, unknown_types_are_refused_and_named, .timeout = 10)
{
    static const uint32_t types[] = {0,   HVI_MSG_READY, HVI_MSG_ORDER, 5, 15, 127, 128,
                                     200, 65535,         UINT32_MAX};
    struct hvi_err err;
    char number[16];

    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        snprintf(number, sizeof number, "%u", types[i]);
        cr_assert_eq(get(types[i], "", 0, &err), HVD_EPROTO, "type %u", types[i]);
        cr_assert_not_null(strstr(err.text, number), "%s", err.text);
    }
}

Test(msg, damage_is_refused, .timeout = 10)
{
    static const struct {
        const char *what;
        uint32_t type;
        size_t size;
        const char *bytes;
    } cases[] = {
        {"tag cut short", HVI_MSG_GO, 1, "\x88"},
        {"value cut short", HVI_MSG_GO, 2, "\x08\x80"},
        {"value missing", HVI_MSG_GO, 1, "\x08"},
        {"varint of 11 bytes", HVI_MSG_GO, 12,
         "\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"},
        {"length beyond the end", HVI_MSG_REFUSED, 3,
         "\x12\x02"
         "a"},
        {"length of 2^63", HVI_MSG_REFUSED, 11,
         "\x12\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01"},
        {"length of 2^64 - 1", HVI_MSG_REFUSED, 11,
         "\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"},
        {"integer sent as text", HVI_MSG_GO, 3, "\x0a\x01x"},
        {"integer sent as 64 bit", HVI_MSG_GO, 9,
         "\x09"
         "12345678"},
        {"text sent as integer", HVI_MSG_REFUSED, 2, "\x10\x01"},
        {"message sent as integer", HVI_MSG_ANNOUNCE, 2, "\x10\x01"},
        {"group start", HVI_MSG_GO, 1, "\x0b"},
        {"group end", HVI_MSG_GO, 1, "\x0c"},
        {"wire type 6", HVI_MSG_GO, 1, "\x0e"},
        {"wire type 7 of an unknown field", HVI_MSG_GO, 1, "\x7f"},
        {"inner message cut short", HVI_MSG_ANNOUNCE, 3, "\x12\x01\x0a"},
        {"field number 0", HVI_MSG_GO, 2, "\x00\x01"},
        {"field number 0 in two bytes", HVI_MSG_GO, 3, "\x80\x00\x01"},
        {"field number above 2^29", HVI_MSG_GO, 7, "\x80\x80\x80\x80\x80\x10\x01"},
    };
    struct hvi_err err;

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        err.text[0] = '\0';
        cr_assert_eq(get(cases[i].type, cases[i].bytes, cases[i].size, &err),
                     HVD_EPROTO, "%s", cases[i].what);
        cr_assert_not_null(strstr(err.text, "damaged"), "%s: %s", cases[i].what,
                           err.text);
    }
}

Test(msg, a_field_sent_twice_is_refused, .timeout = 10)
{
    struct hvi_err err;

    cr_assert_eq(get(HVI_MSG_GO, "\x08\x01", 2, NULL), HVD_OK);
    cr_assert_eq(get(HVI_MSG_GO, "\x08\x01\x08\x01", 4, &err), HVD_EPROTO);
    cr_assert_not_null(strstr(err.text, "epoch"), "%s", err.text);
    cr_assert_eq(get(HVI_MSG_REFUSED,
                     "\x12\x01"
                     "a\x12\x01"
                     "b",
                     6, &err),
                 HVD_EPROTO);
    cr_assert_not_null(strstr(err.text, "text"), "%s", err.text);
}

Test(msg, a_nul_inside_a_text_is_refused, .timeout = 10)
{
    struct hvi_err err;

    cr_assert_eq(get(HVI_MSG_REFUSED,
                     "\x12\x03"
                     "a\0b",
                     5, &err),
                 HVD_EPROTO);
    cr_assert_not_null(strstr(err.text, "NUL"), "%s", err.text);
    cr_assert_eq(get(HVI_MSG_OUTPUT,
                     "\x1a\x03"
                     "a\0b",
                     5, NULL),
                 HVD_OK, "bytes may hold it");
}

Test(msg, fields_of_a_newer_peer_are_passed_over, .timeout = 10)
{
    static const char newer[] = "\xf8\x07\x05" /* 127: integer */
                                "\x08\x03"
                                "\xfa\x07\x02hi" /* text */
                                "\xf9\x07"
                                "12345678" /* 64 bit */
                                "\xfd\x07"
                                "1234"; /* 32 bit */
    struct hvi_msg msg = {0};

    cr_assert_eq(hvi_msg_get(HVI_MSG_GO, newer, sizeof newer - 1, &msg, NULL), HVD_OK);
    cr_assert_eq(((Hvi__Go *)msg.body)->epoch, 3);
    hvi_msg_free(&msg);
}

/* ---- caps */

/* Wraps payload into field `id` of an outer message. */
static void wrap(struct hvi_buf *b, uint32_t id)
{
    struct hvi_buf outer = {0};

    put_field(&outer, id, hvi_buf_peek(b), hvi_buf_size(b));
    hvi_buf_fini(b);
    *b = outer;
}

Test(msg, element_caps_hold_at_every_level_and_name_the_field, .timeout = 30)
{
    /* path: field numbers from the element outwards */
    static const struct {
        uint32_t type, max, path[3];
        const char *named;
    } caps[] = {
        {HVI_MSG_ANNOUNCE, HVI_ANNOUNCE_MAX, {2}, "Announce.requests"},
        {HVI_MSG_ANNOUNCE, HVD_GROUP_MAX, {9, 2}, "Request.tensors"},
        {HVI_MSG_HELLO, HVI_ADDRS_MAX, {6}, "Hello.tcp_addrs"},
        {HVI_MSG_HELLO, HVD_RANKS_MAX, {9}, "Hello.psets"},
        {HVI_MSG_WELCOME, HVD_RANKS_MAX, {11}, "Welcome.peers"},
        {HVI_MSG_WELCOME, HVI_ADDRS_MAX, {5, 11}, "Peer.tcp_addrs"},
        {HVI_MSG_JOB_SPEC, HVI_ARGV_MAX, {6}, "JobSpec.argv"},
        {HVI_MSG_JOB_SPEC, HVI_ENV_MAX, {8}, "JobSpec.env"},
        {HVI_MSG_JOB_SPEC, HVI_RANK_ENV_MAX, {3, 9}, "RankSpec.env"},
        {HVI_MSG_COORD_CONFIG, HVD_RANKS_MAX, {4}, "CoordConfig.slots"},
        {HVI_MSG_PROC_STATE, HVD_RANKS_MAX, {3}, "ProcState.states"},
    };
    struct hvi_err err;

    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++)
        for (uint32_t over = 0; over < 2; over++) {
            struct hvi_buf b = {0};

            for (uint32_t n = 0; n < caps[i].max + over; n++)
                put_field(&b, caps[i].path[0], NULL, 0);
            for (int level = 1; level < 3 && caps[i].path[level] != 0; level++)
                wrap(&b, caps[i].path[level]);
            cr_assert_eq(get(caps[i].type, hvi_buf_peek(&b), hvi_buf_size(&b), &err),
                         over ? HVD_EPROTO : HVD_OK, "%s + %u: %s", caps[i].named, over,
                         err.text);
            cr_assert(!over || strstr(err.text, caps[i].named) != NULL, "%s: %s",
                      caps[i].named, err.text);
            hvi_buf_fini(&b);
        }
}

Test(msg, packed_and_single_integers_count_together, .timeout = 10)
{
    for (uint32_t over = 0; over < 2; over++) {
        struct hvi_buf packed = {0};
        struct hvi_buf b = {0};
        struct hvi_err err;

        for (uint32_t n = 0; n < HVD_RANKS_MAX - 10; n++)
            put_varint(&packed, n); /* one and two bytes long */
        put_field(&b, 2, hvi_buf_peek(&packed), hvi_buf_size(&packed));
        for (uint32_t n = 0; n < 10 + over; n++) {
            put_varint(&b, 2 << 3 | 0);
            put_varint(&b, n);
        }
        cr_assert_eq(get(HVI_MSG_PROC_PROBE, hvi_buf_peek(&b), hvi_buf_size(&b), &err),
                     over ? HVD_EPROTO : HVD_OK, "%s", err.text);
        hvi_buf_fini(&b);
        hvi_buf_fini(&packed);
    }
}

Test(msg, dims_are_capped, .timeout = 10)
{
    for (uint32_t over = 0; over < 2; over++) {
        uint8_t dims[HVD_NDIM_MAX + 1] = {1, 1, 1, 1};
        struct hvi_buf b = {0};

        put_field(&b, 2, dims, HVD_NDIM_MAX + over);
        wrap(&b, 9); /* Request.tensors */
        wrap(&b, 2); /* Announce.requests */
        cr_assert_eq(get(HVI_MSG_ANNOUNCE, hvi_buf_peek(&b), hvi_buf_size(&b), NULL),
                     over ? HVD_EPROTO : HVD_OK);
        hvi_buf_fini(&b);
    }
}

Test(msg, texts_and_names_are_capped, .timeout = 10)
{
    static const struct {
        uint32_t type, id;
        size_t max;
    } caps[] = {{HVI_MSG_REFUSED, 2, HVI_TEXT_MAX},
                {HVI_MSG_HELLO, 3, HVI_TEXT_MAX},
                {HVI_MSG_FAIL, 2, HVD_NAME_MAX},
                {HVI_MSG_STALLED, 2, HVD_NAME_MAX}};
    char *text = malloc(HVI_TEXT_MAX + 1);

    cr_assert_not_null(text);
    memset(text, 'x', HVI_TEXT_MAX + 1);
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++)
        for (size_t over = 0; over < 2; over++) {
            struct hvi_buf b = {0};

            put_field(&b, caps[i].id, text, caps[i].max + over);
            cr_assert_eq(get(caps[i].type, hvi_buf_peek(&b), hvi_buf_size(&b), NULL),
                         over ? HVD_EPROTO : HVD_OK, "type %u field %u", caps[i].type,
                         caps[i].id);
            hvi_buf_fini(&b);
        }
    free(text);
}

/* ---- budget */

/* protobuf-c's own allocator would take 72 MiB for such a frame. */
Test(msg, a_frame_of_empty_parts_is_refused_before_it_is_unpacked, .timeout = 30)
{
    struct hvi_buf request = {0};
    struct hvi_buf b = {0};
    struct hvi_err err;
    size_t asked;

    for (int n = 0; n < HVD_GROUP_MAX; n++)
        put_field(&request, 9, NULL, 0);
    while (hvi_buf_size(&b) + hvi_buf_size(&request) + 8 < HVI_FRAME_MAX_BYTES)
        put_field(&b, 2, hvi_buf_peek(&request), hvi_buf_size(&request));
    asked = hvi_fault_asked_bytes();
    cr_assert_eq(get(HVI_MSG_ANNOUNCE, hvi_buf_peek(&b), hvi_buf_size(&b), &err),
                 HVD_EPROTO);
    cr_assert_eq(hvi_fault_asked_bytes(), asked, "the first pass allocates nothing");
    cr_assert_not_null(strstr(err.text, "would take over 4194304 bytes"), "%s",
                       err.text);
    hvi_buf_fini(&request);
    hvi_buf_fini(&b);
}

Test(msg, a_frame_of_unknown_fields_is_held_to_the_budget_too, .timeout = 30)
{
    size_t largest = 0;

    for (size_t n = 1000; 2 * n < HVI_FRAME_MAX_BYTES; n += n / 3) {
        uint8_t *b = malloc(2 * n);
        size_t asked;
        enum hvd_status rc;

        cr_assert_not_null(b);
        for (size_t i = 0; i < n; i++)
            memcpy(b + 2 * i, "\x78\x00", 2); /* field 15: 0 */
        asked = hvi_fault_asked_bytes();
        rc = get(HVI_MSG_GO, b, 2 * n, NULL);
        asked = hvi_fault_asked_bytes() - asked;
        cr_assert(rc == HVD_OK || rc == HVD_EPROTO);
        cr_assert(rc == HVD_OK || asked == 0, "%zu fields took %zu bytes", n, asked);
        cr_assert_leq(asked, HVI_MSG_BUDGET_BYTES, "%zu fields", n);
        if (rc == HVD_OK)
            largest = n;
        free(b);
    }
    cr_assert(largest >= 1000 && largest < 100000, "%zu", largest);
}

/* An Announce of n tensors over as many requests as they need. */
struct big_announce {
    Hvi__Announce m;
    Hvi__Request requests[HVI_ANNOUNCE_MAX];
    Hvi__Request *request_list[HVI_ANNOUNCE_MAX];
    Hvi__Tensor tensor;
    Hvi__Tensor *tensors[HVD_GROUP_MAX];
    int64_t dims[HVD_NDIM_MAX];
};

static void make_announce(struct big_announce *a, size_t n, uint32_t ndims)
{
    hvi__announce__init(&a->m);
    hvi__tensor__init(&a->tensor);
    for (uint32_t i = 0; i < HVD_NDIM_MAX; i++)
        a->dims[i] = 1;
    a->tensor.dims = a->dims;
    a->tensor.n_dims = ndims;
    a->tensor.dtype = HVD_FLOAT32;
    for (size_t i = 0; i < HVD_GROUP_MAX; i++)
        a->tensors[i] = &a->tensor;
    a->m.requests = a->request_list;
    for (size_t i = 0; n > 0 && i < HVI_ANNOUNCE_MAX; i++) {
        Hvi__Request *r = &a->requests[i];

        hvi__request__init(r);
        r->tensors = a->tensors;
        r->n_tensors = n < HVD_GROUP_MAX ? n : HVD_GROUP_MAX;
        n -= r->n_tensors;
        a->request_list[i] = r;
        a->m.n_requests = i + 1;
    }
    cr_assert_eq(n, 0);
}

/* What the sender lets out, the receiver takes: also close to the limit. */
Test(msg, sender_and_receiver_agree_on_what_is_too_much, .timeout = 120)
{
    static const uint32_t ndims[] = {0, 1, HVD_NDIM_MAX};
    static struct big_announce a;

    for (size_t i = 0; i < sizeof ndims / sizeof ndims[0]; i++) {
        size_t good = 1;
        size_t bad = 200000;

        while (bad - good > 1) { /* the last that passes */
            size_t n = good + (bad - good) / 2;
            struct hvi_buf out = {0};
            struct hvi_err err;
            size_t asked;
            enum hvd_status rc;

            make_announce(&a, n, ndims[i]);
            rc = hvi_msg_put(&out, HVI_MSG_ANNOUNCE, &a.m);
            cr_assert(rc == HVD_OK || rc == HVD_ELIMIT);
            cr_assert(rc == HVD_OK || hvi_buf_size(&out) == 0, "unchanged");
            *(rc == HVD_OK ? &good : &bad) = n;
            if (rc == HVD_OK) {
                asked = hvi_fault_asked_bytes();
                rc = get(HVI_MSG_ANNOUNCE, hvi_buf_peek(&out) + HVI_FRAME_HEADER_BYTES,
                         hvi_buf_size(&out) - HVI_FRAME_HEADER_BYTES, &err);
                asked = hvi_fault_asked_bytes() - asked;
                cr_assert_eq(rc, HVD_OK, "%zu tensors of %u dims: %s", n, ndims[i],
                             err.text);
                cr_assert_leq(asked, HVI_MSG_BUDGET_BYTES);
            }
            hvi_buf_fini(&out);
        }
        cr_assert_gt(good, 2 * HVD_GROUP_MAX, "%u dims: only %zu", ndims[i], good);
    }
}

Test(msg, too_large_for_a_frame_is_said_to_the_sender, .timeout = 10)
{
    Hvi__TimelineChunk m = HVI__TIMELINE_CHUNK__INIT;
    struct hvi_buf out = {0};

    m.events.len = HVI_FRAME_MAX_BYTES;
    m.events.data = calloc(1, m.events.len);
    cr_assert_not_null(m.events.data);
    cr_assert_eq(hvi_buf_append(&out, "abc", 3), HVD_OK);
    cr_assert_eq(hvi_msg_put(&out, HVI_MSG_TIMELINE_CHUNK, &m), HVD_ELIMIT);
    cr_assert_eq(hvi_buf_size(&out), 3);
    m.events.len = HVI_FRAME_MAX_BYTES - 16;
    cr_assert_eq(hvi_msg_put(&out, HVI_MSG_TIMELINE_CHUNK, &m), HVD_OK);
    hvi_buf_fini(&out);
    free(m.events.data);
}

/* ---- mutations */

Test(msg, truncations_of_every_message_are_read_or_refused, .timeout = 60)
{
    struct hvi_buf out = {0};

    for (uint32_t i = 0; i < FILL_TYPES; i++) {
        filled(i, &out);
        for (size_t n = 0; n < hvi_buf_size(&out); n++) {
            uint8_t *exact = malloc(n + 1);
            enum hvd_status rc;

            cr_assert_not_null(exact);
            memcpy(exact + 1, hvi_buf_peek(&out), n);
            rc = get(fill_types[i].type, exact + 1, n, NULL);
            cr_assert(rc == HVD_OK || rc == HVD_EPROTO, "%s, %zu bytes: %d",
                      hvi_msg_name(fill_types[i].type), n, rc);
            free(exact);
        }
    }
    hvi_buf_fini(&out);
}

/* What is accepted is within the budget, and may be sent on and is accepted again. */
static bool accepted(uint32_t type, const uint8_t *payload, size_t size)
{
    struct hvi_msg msg = {0};
    struct hvi_buf out = {0};
    size_t asked = hvi_fault_asked_bytes();
    enum hvd_status rc = hvi_msg_get(type, payload, size, &msg, NULL);

    cr_assert_leq(hvi_fault_asked_bytes() - asked, HVI_MSG_BUDGET_BYTES);
    cr_assert(rc == HVD_OK || rc == HVD_EPROTO);
    if (rc != HVD_OK)
        return false;
    cr_assert_eq(hvi_msg_put(&out, type, msg.body), HVD_OK, "%s", hvi_msg_name(type));
    cr_assert_eq(get(type, hvi_buf_peek(&out) + HVI_FRAME_HEADER_BYTES,
                     hvi_buf_size(&out) - HVI_FRAME_HEADER_BYTES, NULL),
                 HVD_OK, "%s", hvi_msg_name(type));
    hvi_msg_free(&msg);
    hvi_buf_fini(&out);
    return true;
}

Test(msg, flips_in_every_message_are_read_or_refused, .timeout = 120)
{
    struct hvi_buf out = {0};
    uint64_t state = 17;
    long good = 0;
    long bad = 0;

    for (uint32_t i = 0; i < FILL_TYPES; i++) {
        filled(i, &out);
        if (hvi_buf_size(&out) == 0)
            continue;
        for (long round = noise_rounds(2000, 50000); round > 0; round--) {
            size_t at[2];
            uint8_t was[2];

            for (int k = 0; k < 2; k++) {
                at[k] = noise_next(&state) % hvi_buf_size(&out);
                was[k] = out.data[out.off + at[k]];
                out.data[out.off + at[k]] ^= (uint8_t)(1u << noise_next(&state) % 8 &
                                                       (round % 2 ? 0xff : k - 1));
            }
            if (accepted(fill_types[i].type, hvi_buf_peek(&out), hvi_buf_size(&out)))
                good++;
            else
                bad++;
            for (int k = 1; k >= 0; k--)
                out.data[out.off + at[k]] = was[k];
        }
    }
    cr_assert(good > 1000 && bad > 1000, "%ld accepted, %ld refused", good, bad);
    hvi_buf_fini(&out);
}

/* ---- memory */

Test(msg, out_of_memory_anywhere_is_an_error_without_a_leak, .timeout = 60)
{
    struct hvi_buf out = {0};
    long most = 0;

    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    for (uint32_t i = 0; i < FILL_TYPES; i++) {
        const char *name = hvi_msg_name(fill_types[i].type);
        bool all = false;

        filled(i, &out);
        for (long k = 0; !all; k++) {
            long blocks = hvi_fault_live_blocks();
            struct hvi_msg msg = {0};
            enum hvd_status rc;

            hvi_fault_malloc_after(k);
            rc = hvi_msg_get(fill_types[i].type, hvi_buf_peek(&out), hvi_buf_size(&out),
                             &msg, NULL);
            all = !hvi_fault_malloc_off();
            cr_assert_eq(rc, all ? HVD_OK : HVD_ENOMEM, "%s, allocation %ld", name, k);
            if (all)
                hvi_msg_free(&msg);
            cr_assert_eq(hvi_fault_live_blocks(), blocks, "%s, allocation %ld", name,
                         k);
            most = k > most ? k : most;
        }
    }
    cr_assert_gt(most, 20, "the larger messages have many parts");
    hvi_buf_fini(&out);
}

Test(msg, put_without_memory_changes_nothing, .timeout = 10)
{
    Hvi__Go m = HVI__GO__INIT;
    struct hvi_buf out = {0};
    enum hvd_status rc;

    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    m.epoch = 3;
    hvi_fault_malloc_after(0);
    rc = hvi_msg_put(&out, HVI_MSG_GO, &m);
    cr_assert(hvi_fault_malloc_off());
    cr_assert_eq(rc, HVD_ENOMEM);
    cr_assert_eq(hvi_buf_size(&out), 0);
    cr_assert_eq(hvi_msg_put(&out, HVI_MSG_GO, &m), HVD_OK);
    hvi_buf_fini(&out);
}

Test(msg, free_accepts_what_holds_nothing, .timeout = 10)
{
    struct hvi_msg msg = {HVI_MSG_READY, NULL};

    hvi_msg_free(&msg);
    cr_assert_eq(msg.type, HVI_MSG_UNSET);
    hvi_msg_free(&msg);
}
