/**
 * Control messages: the generated protobuf-c structs (Hvi__Hello, ...) with bounded
 * decoding. The only door to protobuf-c: other rooms fill and read the structs, and never
 * call protobuf-c itself.
 */
#ifndef HVI_MSG_MSG_H
#define HVI_MSG_MSG_H

#include "proto/msg/frame.h"
#include "proto/msg/hvd.pb-c.h"

/** A decoded message: type, and a pointer that fits it. Free with hvi_msg_free(). */
struct hvi_msg {
    uint32_t type; /* enum hvi_msg_type */
    void *body;    /* Hvi__Hello * for HELLO, ...; NULL for READY and ORDER */
};

/**
 * Appends a whole frame (header + packed message) to out. `body` is the generated struct
 * that belongs to type. HVD_ELIMIT: larger than a frame. HVD_ENOMEM.
 */
enum hvd_status hvi_msg_put(struct hvi_buf *out, uint32_t type, const void *body);

/**
 * Decodes a payload with a 4 MiB budget and the element caps of PROTOCOL.md section 7;
 * strings are checked for embedded NUL and length. HVD_EPROTO (unknown type, damaged, over
 * a limit), HVD_ENOMEM. *out is written only on success.
 */
enum hvd_status hvi_msg_get(uint32_t type, const void *payload, size_t size_bytes,
                            struct hvi_msg *out, struct hvi_err *err);
void hvi_msg_free(struct hvi_msg *msg);

#endif
