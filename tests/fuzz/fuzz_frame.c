/*
 * A stream of frames, as it comes out of a socket: in pieces. First byte: size of the
 * pieces less one; the rest is the stream. However it is cut, the same frames come out,
 * and the same end.
 */
#include "tests/fuzz/payload.h"

#define FRAMES_MAX 256

struct seen {
    uint32_t count;
    enum hvd_status end; /* HVD_INPROGRESS: it wants more */
    struct {
        uint32_t type;
        size_t offset, size; /* of the payload in the stream */
    } frames[FRAMES_MAX];
};

/* Reads what is whole at the front of buf; *at is where that is in the stream. */
static void read_frames(struct hvi_buf *buf, size_t *at, struct seen *seen)
{
    while (seen->end == HVD_INPROGRESS && seen->count < FRAMES_MAX) {
        const uint8_t *payload = NULL;
        struct hvi_err err = {{0}};
        size_t payload_bytes = 0;
        size_t frame_bytes = 0;
        uint32_t type = 0;
        enum hvd_status rc =
            hvi_frame_peek(hvi_buf_peek(buf), hvi_buf_size(buf), &type, &payload,
                           &payload_bytes, &frame_bytes, &err);

        if (rc == HVD_INPROGRESS)
            return;
        if (rc != HVD_OK) {
            payload_refused(rc, &err);
            seen->end = rc;
            return;
        }
        FUZZ_CHECK(frame_bytes <= hvi_buf_size(buf));
        FUZZ_CHECK(frame_bytes == payload_bytes + HVI_FRAME_HEADER_BYTES);
        FUZZ_CHECK(payload == hvi_buf_peek(buf) + HVI_FRAME_HEADER_BYTES);
        seen->frames[seen->count].type = type;
        seen->frames[seen->count].offset = *at + HVI_FRAME_HEADER_BYTES;
        seen->frames[seen->count].size = payload_bytes;
        seen->count++;
        *at += frame_bytes;
        hvi_buf_consume(buf, frame_bytes);
    }
}

static void deliver(const uint8_t *data, size_t size, size_t piece, struct seen *seen)
{
    struct hvi_buf buf = {0};
    size_t at = 0;

    memset(seen, 0, sizeof *seen);
    seen->end = HVD_INPROGRESS;
    for (size_t i = 0; i < size; i += piece) {
        size_t n = size - i < piece ? size - i : piece;

        if (hvi_buf_append(&buf, data + i, n) != HVD_OK)
            abort();
        read_frames(&buf, &at, seen);
    }
    hvi_buf_fini(&buf);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct seen whole;
    static struct seen pieces;

    if (size < 2)
        return 0;
    deliver(data + 1, size - 1, size, &whole);
    deliver(data + 1, size - 1, (size_t)data[0] + 1, &pieces);
    FUZZ_CHECK(whole.count == pieces.count && whole.end == pieces.end);
    FUZZ_CHECK(memcmp(whole.frames, pieces.frames, sizeof whole.frames) == 0);
    for (uint32_t i = 0; i < whole.count; i++)
        check_payload(whole.frames[i].type, data + 1 + whole.frames[i].offset,
                      whole.frames[i].size);
    return 0;
}
