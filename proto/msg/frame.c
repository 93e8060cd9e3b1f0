#include "proto/msg/frame.h"

#include <string.h>

#define TYPE_MAX 128

static const char *const names[TYPE_MAX] = {
#define NAME_(name, number, lower, type) [number] = #name,
    HVI_MSG_LIST(NAME_)
#undef NAME_
        [HVI_MSG_READY] = "READY",
    [HVI_MSG_ORDER] = "ORDER",
};

/* magic, version and the zero after it, as they lie on the wire */
static const uint8_t prefix[4] = {HVI_FRAME_MAGIC & 0xff, HVI_FRAME_MAGIC >> 8,
                                  HVI_FRAME_VERSION, 0};

const char *hvi_msg_name(uint32_t type)
{
    return type < TYPE_MAX && names[type] != NULL ? names[type] : "?";
}

enum hvd_status hvi_frame_room(struct hvi_buf *out, uint32_t type, size_t size_bytes,
                               uint8_t **payload)
{
    struct hvi_cursor c;
    uint8_t *to;

    if (size_bytes > HVI_FRAME_MAX_BYTES || type > UINT16_MAX)
        return HVD_ELIMIT;
    if (out->max_bytes != 0 &&
        HVI_FRAME_HEADER_BYTES + size_bytes > out->max_bytes - hvi_buf_size(out))
        return HVD_ELIMIT;
    to = hvi_buf_reserve(out, HVI_FRAME_HEADER_BYTES + size_bytes);
    if (to == NULL)
        return HVD_ENOMEM;
    hvi_cursor_init(&c, to, HVI_FRAME_HEADER_BYTES);
    hvi_put_bytes(&c, prefix, sizeof prefix);
    hvi_put_u16(&c, (uint16_t)type);
    hvi_put_u16(&c, 0);
    hvi_put_u32(&c, (uint32_t)size_bytes);
    hvi_buf_commit(out, HVI_FRAME_HEADER_BYTES + size_bytes);
    *payload = size_bytes > 0 ? to + HVI_FRAME_HEADER_BYTES : NULL;
    return HVD_OK;
}

enum hvd_status hvi_frame_put(struct hvi_buf *out, uint32_t type, const void *payload,
                              size_t size_bytes)
{
    uint8_t *to;
    enum hvd_status rc = hvi_frame_room(out, type, size_bytes, &to);

    if (rc == HVD_OK && size_bytes > 0)
        memcpy(to, payload, size_bytes);
    return rc;
}

/* Shows what came instead: often a login script's greeting on an agent's output. */
static enum hvd_status not_a_frame(const uint8_t *data, size_t size_bytes,
                                   struct hvi_err *err)
{
    char shown[200];

    hvi_escape(shown, sizeof shown, (const char *)data,
               size_bytes < 40 ? size_bytes : 40);
    return hvi_fail(err, HVD_EPROTO, "not an hvd frame: it starts with '%s'", shown);
}

enum hvd_status hvi_frame_peek(const uint8_t *data, size_t size_bytes, uint32_t *type,
                               const uint8_t **payload, size_t *payload_bytes,
                               size_t *frame_bytes, struct hvi_err *err)
{
    size_t check = size_bytes < sizeof prefix ? size_bytes : sizeof prefix;
    struct hvi_cursor c;
    uint32_t t;
    uint32_t reserved;
    uint32_t n;

    if (check > 0 && memcmp(data, prefix, check) != 0)
        return not_a_frame(data, size_bytes, err);
    if (size_bytes < HVI_FRAME_HEADER_BYTES)
        return HVD_INPROGRESS;
    hvi_cursor_init_ro(&c, data + sizeof prefix,
                       HVI_FRAME_HEADER_BYTES - sizeof prefix);
    t = hvi_get_u16(&c);
    reserved = hvi_get_u16(&c);
    n = hvi_get_u32(&c);
    if (reserved != 0)
        return not_a_frame(data, size_bytes, err);
    if (n > HVI_FRAME_MAX_BYTES)
        return hvi_fail(err, HVD_EPROTO,
                        "frame %s (type %u): payload of %u bytes, at most %d",
                        hvi_msg_name(t), t, n, HVI_FRAME_MAX_BYTES);
    if (size_bytes - HVI_FRAME_HEADER_BYTES < n)
        return HVD_INPROGRESS;
    *type = t;
    *payload = data + HVI_FRAME_HEADER_BYTES;
    *payload_bytes = n;
    *frame_bytes = HVI_FRAME_HEADER_BYTES + (size_t)n;
    return HVD_OK;
}
