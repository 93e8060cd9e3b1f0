/**
 * Control messages: the generated protobuf-c structs (Hvi__Hello, ...) with bounded
 * decoding. The only door to protobuf-c: other rooms fill and read the structs, and
 * never call protobuf-c itself.
 */
#ifndef HVI_MSG_MSG_H
#define HVI_MSG_MSG_H

#include "proto/msg/frame.h"
#include "proto/msg/hvd.pb-c.h"

#define HVI_MSG_BUDGET_BYTES (4 * 1024 * 1024) /* memory one frame may decode to */
#define HVI_MSG_BUDGET_ALLOCS 65536
/* Element caps; every other repeated field: HVD_RANKS_MAX. */
#define HVI_ANNOUNCE_MAX 256 /* requests in one ANNOUNCE */
#define HVI_ADDRS_MAX 64     /* tcp_addrs of one peer */
#define HVI_ARGV_MAX 16384   /* JOB_SPEC argv */
#define HVI_ENV_MAX 8192     /* JOB_SPEC env */
#define HVI_RANK_ENV_MAX 256 /* RankSpec env */
#define HVI_TEXT_MAX 65536   /* bytes of a string; fields called name: HVD_NAME_MAX */

/** A decoded message: type, and a pointer that fits it. Free with hvi_msg_free(). */
struct hvi_msg {
    uint32_t type; /* enum hvi_msg_type */
    void *body;    /* Hvi__Hello * for HELLO, ...; NULL for READY and ORDER */
};

/**
 * Appends a whole frame (header + packed message) to out. `body` is the generated
 * struct that belongs to type. HVD_ELIMIT: larger than a frame, or over a limit at
 * which hvi_msg_get() refuses (out is then unchanged): send less at once. HVD_ENOMEM.
 */
enum hvd_status hvi_msg_put(struct hvi_buf *out, uint32_t type, const void *body);

/**
 * Decodes a payload with a 4 MiB budget and the element caps of PROTOCOL.md section 7;
 * strings are checked for embedded NUL and length; a field that is not repeated comes
 * at most once. HVD_EPROTO (unknown type, damaged, over a limit; the text names the
 * field), HVD_ENOMEM. *out is written only on success.
 */
enum hvd_status hvi_msg_get(uint32_t type, const void *payload, size_t size_bytes,
                            struct hvi_msg *out, struct hvi_err *err);
/**
 * Takes the first message off a stream of frames. HVD_INPROGRESS: it is not whole yet;
 * else as hvi_frame_peek() and hvi_msg_get(), with a text: then rx is as it was.
 */
enum hvd_status hvi_msg_take(struct hvi_buf *rx, struct hvi_msg *out,
                             struct hvi_err *err);
void hvi_msg_free(struct hvi_msg *msg);

#endif
