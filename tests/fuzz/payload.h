/**
 * What holds for every payload that is decoded: it is refused with a text, or taken and
 * then means the same when sent on.
 */
#ifndef HVI_FUZZ_PAYLOAD_H
#define HVI_FUZZ_PAYLOAD_H

#include "proto/msg/msg.h"
#include "proto/msg/ready.h"
#include "proto/msg/request.h"
#include "tests/fuzz/fuzz.h"

static inline void payload_refused(enum hvd_status rc, const struct hvi_err *err)
{
    FUZZ_CHECK(rc == HVD_EPROTO, "%d %s", rc, err->text);
    fuzz_check_text(err->text, sizeof err->text);
}

/** The payload of the one frame in buf. */
static inline const uint8_t *payload_of(const struct hvi_buf *buf, uint32_t want_type,
                                        size_t *size)
{
    const uint8_t *payload = NULL;
    size_t frame_bytes = 0;
    uint32_t type = 0;

    FUZZ_CHECK(hvi_frame_peek(hvi_buf_peek(buf), hvi_buf_size(buf), &type, &payload,
                              size, &frame_bytes, NULL) == HVD_OK);
    FUZZ_CHECK(type == want_type && frame_bytes == hvi_buf_size(buf));
    return payload;
}

static inline void check_ready(const uint8_t *data, size_t size)
{
    struct hvi_ready_id *ids = NULL;
    struct hvi_buf again = {0};
    struct hvi_err err = {{0}};
    uint32_t epoch = 0;
    uint32_t count = 0;
    size_t n = 0;
    enum hvd_status rc = hvi_ready_get(data, size, &epoch, &ids, &count, &err);

    if (rc != HVD_OK) {
        payload_refused(rc, &err);
        return;
    }
    FUZZ_CHECK(hvi_ready_put(&again, epoch, ids, count) == HVD_OK);
    FUZZ_CHECK(memcmp(payload_of(&again, HVI_MSG_READY, &n), data, size) == 0);
    FUZZ_CHECK(n == size);
    hvi_buf_fini(&again);
    free(ids);
}

static inline void check_order(const uint8_t *data, size_t size)
{
    struct hvi_order_group *groups = NULL;
    struct hvi_buf again = {0};
    struct hvi_err err = {{0}};
    uint32_t epoch = 0;
    uint32_t count = 0;
    size_t n = 0;
    enum hvd_status rc = hvi_order_get(data, size, &epoch, &groups, &count, &err);

    if (rc != HVD_OK) {
        payload_refused(rc, &err);
        return;
    }
    FUZZ_CHECK(hvi_order_put(&again, epoch, groups, count) == HVD_OK);
    FUZZ_CHECK(memcmp(payload_of(&again, HVI_MSG_ORDER, &n), data, size) == 0);
    FUZZ_CHECK(n == size);
    hvi_buf_fini(&again);
    free(groups);
}

/* A request that is taken comes back the same from the message it makes. */
static inline void check_request(const Hvi__Request *m, struct hvi_request **last)
{
    struct hvi_request *r = NULL;
    struct hvi_request *again = NULL;
    struct hvi_err err = {{0}};
    enum hvd_status rc = hvi_request_from_msg(m, &r, &err);
    Hvi__Request *sent;
    char text[256];

    if (rc != HVD_OK) {
        payload_refused(rc, &err);
        return;
    }
    FUZZ_CHECK(hvi_request_bytes(r) >= 0 && hvi_request_bytes(r) < INT64_MAX);
    sent = hvi_request_to_msg(r);
    FUZZ_CHECK(sent != NULL);
    FUZZ_CHECK(hvi_request_from_msg(sent, &again, &err) == HVD_OK, "%s", err.text);
    FUZZ_CHECK(hvi_request_same(r, again) && strcmp(r->name, again->name) == 0);
    hvi_request_explain(r, 0, again, 1, text, sizeof text);
    FUZZ_CHECK(text[0] == '\0', "%s", text);
    if (*last != NULL) {
        hvi_request_explain(*last, 0, r, 1, text, sizeof text);
        FUZZ_CHECK((text[0] == '\0') == hvi_request_same(*last, r), "%s", text);
        (void)hvi_request_fuses(*last, r);
    }
    hvi_request_msg_free(sent);
    hvi_request_free(again);
    hvi_request_free(*last);
    *last = r;
}

static inline void check_requests(const struct hvi_msg *msg)
{
    struct hvi_request *last = NULL;

    if (msg->type == HVI_MSG_ANNOUNCE) {
        const Hvi__Announce *a = msg->body;

        for (size_t i = 0; i < a->n_requests; i++)
            check_request(a->requests[i], &last);
    } else if (msg->type == HVI_MSG_ASSIGN) {
        const Hvi__Assign *a = msg->body;

        if (a->request != NULL)
            check_request(a->request, &last);
    }
    hvi_request_free(last);
}

/** Sent on once, a message's bytes may change (order, defaults); from then on not. */
static inline void check_message(uint32_t type, const uint8_t *data, size_t size)
{
    struct hvi_msg msg = {0};
    struct hvi_msg back = {0};
    struct hvi_buf once = {0};
    struct hvi_buf twice = {0};
    struct hvi_err err = {{0}};
    const uint8_t *payload;
    size_t n = 0;
    enum hvd_status rc = hvi_msg_get(type, data, size, &msg, &err);

    if (rc != HVD_OK) {
        payload_refused(rc, &err);
        return;
    }
    check_requests(&msg);
    FUZZ_CHECK(hvi_msg_put(&once, type, msg.body) == HVD_OK);
    payload = payload_of(&once, type, &n);
    FUZZ_CHECK(hvi_msg_get(type, payload, n, &back, &err) == HVD_OK, "%s", err.text);
    FUZZ_CHECK(hvi_msg_put(&twice, type, back.body) == HVD_OK);
    FUZZ_CHECK(hvi_buf_size(&once) == hvi_buf_size(&twice) &&
               memcmp(hvi_buf_peek(&once), hvi_buf_peek(&twice), hvi_buf_size(&once)) ==
                   0);
    hvi_msg_free(&msg);
    hvi_msg_free(&back);
    hvi_buf_fini(&once);
    hvi_buf_fini(&twice);
}

static inline void check_payload(uint32_t type, const uint8_t *data, size_t size)
{
    if (type == HVI_MSG_READY)
        check_ready(data, size);
    else if (type == HVI_MSG_ORDER)
        check_order(data, size);
    else
        check_message(type, data, size);
}

#endif
