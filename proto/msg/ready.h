/** The two binary frames of planes tcp and hosts, PROTOCOL.md section 5. */
#ifndef HVI_MSG_READY_H
#define HVI_MSG_READY_H

#include <stdint.h>

#include "proto/base/buf.h"
#include "proto/base/err.h"

#define HVI_READY_MAX_IDS 65536
/* Plane hosts: bit of an id in READY: a member of this host had joined without it. */
#define HVI_READY_JOINED 0x80000000u
#define HVI_ORDER_MAX_IDS 65536 /* over all groups of a frame */

struct hvi_ready_id {
    uint32_t id, generation;
};

/** One sealed group: ids fused and executed together at seq, or failing with status. */
struct hvi_order_group {
    uint64_t seq;
    int32_t status; /* enum hvd_status, <= 0 */
    uint32_t nids;
    const uint32_t *ids; /* [nids], borrowed */
};

/** Appends a whole READY frame. HVD_ELIMIT, HVD_ENOMEM. */
enum hvd_status hvi_ready_put(struct hvi_buf *out, uint32_t epoch,
                              const struct hvi_ready_id *ids, uint32_t count);
/** Payload to ids; *ids is malloc'd, caller-owned, NULL when count is 0. HVD_EPROTO. */
enum hvd_status hvi_ready_get(const void *payload, size_t size_bytes, uint32_t *epoch,
                              struct hvi_ready_id **ids, uint32_t *count,
                              struct hvi_err *err);
/** Appends a whole ORDER frame. */
enum hvd_status hvi_order_put(struct hvi_buf *out, uint32_t epoch,
                              const struct hvi_order_group *groups, uint32_t count);
/** *groups is one malloc'd block that also holds the ids; free() it. HVD_EPROTO. */
enum hvd_status hvi_order_get(const void *payload, size_t size_bytes, uint32_t *epoch,
                              struct hvi_order_group **groups, uint32_t *count,
                              struct hvi_err *err);

#endif
