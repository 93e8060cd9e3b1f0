#include "proto/msg/ready.h"

#include <stdlib.h>
#include <string.h>

#include "proto/msg/frame.h"

#define HEAD_BYTES 8u   /* epoch, count */
#define READY_BYTES 8u  /* id, generation */
#define GROUP_BYTES 16u /* seq, status, nids */

enum hvd_status hvi_ready_put(struct hvi_buf *out, uint32_t epoch,
                              const struct hvi_ready_id *ids, uint32_t count)
{
    size_t size = HEAD_BYTES + (size_t)count * READY_BYTES;
    struct hvi_cursor c;
    uint8_t *to;
    enum hvd_status rc;

    if (count > HVI_READY_MAX_IDS)
        return HVD_ELIMIT;
    rc = hvi_frame_room(out, HVI_MSG_READY, size, &to);
    if (rc != HVD_OK)
        return rc;
    hvi_cursor_init(&c, to, size);
    hvi_put_u32(&c, epoch);
    hvi_put_u32(&c, count);
    for (uint32_t i = 0; i < count; i++) {
        hvi_put_u32(&c, ids[i].id);
        hvi_put_u32(&c, ids[i].generation);
    }
    return HVD_OK;
}

enum hvd_status hvi_ready_get(const void *payload, size_t size_bytes, uint32_t *epoch,
                              struct hvi_ready_id **ids, uint32_t *count,
                              struct hvi_err *err)
{
    struct hvi_ready_id *list = NULL;
    struct hvi_cursor c;
    uint32_t e;
    uint32_t n;

    hvi_cursor_init_ro(&c, payload, size_bytes);
    e = hvi_get_u32(&c);
    n = hvi_get_u32(&c);
    if (c.bad || n > HVI_READY_MAX_IDS || c.left != (size_t)n * READY_BYTES)
        return hvi_fail(err, HVD_EPROTO, "READY: %zu bytes do not hold %u ids",
                        size_bytes, n);
    if (n > 0) {
        list = malloc((size_t)n * sizeof *list);
        if (list == NULL)
            return hvi_fail(err, HVD_ENOMEM, "READY: out of memory");
    }
    for (uint32_t i = 0; i < n; i++) {
        list[i].id = hvi_get_u32(&c);
        list[i].generation = hvi_get_u32(&c);
    }
    *epoch = e;
    *ids = list;
    *count = n;
    return HVD_OK;
}

enum hvd_status hvi_order_put(struct hvi_buf *out, uint32_t epoch,
                              const struct hvi_order_group *groups, uint32_t count)
{
    uint64_t nids = 0;
    struct hvi_cursor c;
    uint8_t *to;
    size_t size;
    enum hvd_status rc;

    for (uint32_t i = 0; i < count; i++)
        nids += groups[i].nids;
    if (nids > HVI_ORDER_MAX_IDS || count > HVI_FRAME_MAX_BYTES / GROUP_BYTES)
        return HVD_ELIMIT;
    size = HEAD_BYTES + (size_t)count * GROUP_BYTES + (size_t)nids * 4;
    rc = hvi_frame_room(out, HVI_MSG_ORDER, size, &to);
    if (rc != HVD_OK)
        return rc;
    hvi_cursor_init(&c, to, size);
    hvi_put_u32(&c, epoch);
    hvi_put_u32(&c, count);
    for (uint32_t i = 0; i < count; i++) {
        hvi_put_u64(&c, groups[i].seq);
        hvi_put_u32(&c, 0u - (uint32_t)groups[i].status);
        hvi_put_u32(&c, groups[i].nids);
        for (uint32_t k = 0; k < groups[i].nids; k++)
            hvi_put_u32(&c, groups[i].ids[k]);
    }
    return HVD_OK;
}

/* Fills n groups and, behind them, their ids; false when the bytes do not add up. */
static bool read_groups(struct hvi_cursor *c, struct hvi_order_group *groups,
                        uint32_t n, size_t nids)
{
    uint32_t *ids = (uint32_t *)(void *)(groups + n);

    for (uint32_t i = 0; i < n; i++) {
        uint32_t status;

        groups[i].seq = hvi_get_u64(c);
        status = hvi_get_u32(c);
        groups[i].nids = hvi_get_u32(c);
        if (c->bad || status > INT32_MAX || groups[i].nids > nids)
            return false;
        groups[i].status = -(int32_t)status;
        groups[i].ids = ids;
        for (uint32_t k = 0; k < groups[i].nids; k++)
            *ids++ = hvi_get_u32(c);
        nids -= groups[i].nids;
    }
    return !c->bad && nids == 0 && c->left == 0;
}

enum hvd_status hvi_order_get(const void *payload, size_t size_bytes, uint32_t *epoch,
                              struct hvi_order_group **groups, uint32_t *count,
                              struct hvi_err *err)
{
    struct hvi_order_group *list;
    struct hvi_cursor c;
    uint32_t e;
    uint32_t n;
    size_t nids;

    hvi_cursor_init_ro(&c, payload, size_bytes);
    e = hvi_get_u32(&c);
    n = hvi_get_u32(&c);
    if (c.bad || size_bytes > HVI_FRAME_MAX_BYTES || n > c.left / GROUP_BYTES)
        return hvi_fail(err, HVD_EPROTO, "ORDER: %zu bytes do not hold %u groups",
                        size_bytes, n);
    nids = (c.left - (size_t)n * GROUP_BYTES) / 4; /* the bytes left are all ids */
    if (nids > HVI_ORDER_MAX_IDS)
        return hvi_fail(err, HVD_EPROTO, "ORDER: %zu ids, at most %d", nids,
                        HVI_ORDER_MAX_IDS);
    list = malloc((size_t)n * sizeof *list + nids * sizeof(uint32_t) + 1);
    if (list == NULL)
        return hvi_fail(err, HVD_ENOMEM, "ORDER: out of memory");
    if (!read_groups(&c, list, n, nids)) {
        free(list);
        return hvi_fail(err, HVD_EPROTO, "ORDER: groups and ids do not add up");
    }
    *epoch = e;
    *groups = list;
    *count = n;
    return HVD_OK;
}
