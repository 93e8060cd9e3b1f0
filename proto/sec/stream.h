/**
 * Sealed records, PROTOCOL.md section 3: order, truncation and end are authenticated.
 * One object per connection; one thread at a time per direction.
 */
#ifndef HVI_SEC_STREAM_H
#define HVI_SEC_STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "proto/base/buf.h"
#include "proto/base/err.h"

#define HVI_RECORD_MAX_BYTES (1024 * 1024 + 12) /* plaintext of one record */

/** Opaque; sized for the library's states, so that connection structs can hold it. */
struct hvi_stream {
    _Alignas(16) uint8_t push_state[64];
    _Alignas(16) uint8_t pull_state[64];
    uint8_t push_key[32], pull_key[32];
    bool push_open, pull_open; /* headers exchanged */
    bool ended;                /* the peer sent FINAL */
    bool finished;             /* this side did */
    bool broken;               /* a record did not open: nothing will any more */
};

/** Appends one record holding plain to out (and, the first time, the stream header).
 *  last: tag FINAL; sealing after it is HVD_ESTATE. plain may be empty (NULL, 0).
 *  HVD_ENOMEM, HVD_ELIMIT: nothing was appended, the stream is as before. */
enum hvd_status hvi_stream_seal(struct hvi_stream *s, const void *plain,
                                size_t size_bytes, bool last, struct hvi_buf *out);

/**
 * Opens the next whole record in `in` and consumes it there.
 *
 * Returns  HVD_OK: its plaintext was put into plain (cleared first). HVD_INPROGRESS:
 * not all of it has arrived. HVD_EAUTH, HVD_EPROTO: forged, damaged or too long; close,
 * the stream stays broken. HVD_ENOMEM: no record was consumed. After FINAL was opened,
 * s->ended is true.
 */
enum hvd_status hvi_stream_open(struct hvi_stream *s, struct hvi_buf *in,
                                struct hvi_buf *plain, struct hvi_err *err);
void hvi_stream_fini(struct hvi_stream *s); /* wipes */

#endif
