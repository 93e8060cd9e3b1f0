/**
 * Bytes: a growable buffer, and a bounded little-endian cursor over somebody's bytes.
 * The cursor never reads or writes past its end: it turns bad and yields zeros.
 */
#ifndef HVI_BASE_BUF_H
#define HVI_BASE_BUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <hvd/hvd.h>

/** Zero-initialized is empty. [off, len) are the live bytes. */
struct hvi_buf {
    uint8_t *data;
    size_t off, len, cap;
    size_t max_bytes; /* 0 = unlimited; appends beyond it are HVD_ELIMIT */
    size_t most;      /* the greatest len since data is this block */
    bool secret;      /* what was ever in it is wiped before it is freed */
};

void hvi_buf_fini(struct hvi_buf *b);
static inline size_t hvi_buf_size(const struct hvi_buf *b)
{
    return b->len - b->off;
}
static inline const uint8_t *hvi_buf_peek(const struct hvi_buf *b)
{
    return b->off > 0 ? b->data + b->off : b->data; /* data may be NULL */
}
/** HVD_ENOMEM or HVD_ELIMIT; the buffer is then unchanged. */
enum hvd_status hvi_buf_append(struct hvi_buf *b, const void *data, size_t size_bytes);
/** Room for size_bytes at the end, to be followed by hvi_buf_commit(); NULL on failure.
 */
uint8_t *hvi_buf_reserve(struct hvi_buf *b, size_t size_bytes);
void hvi_buf_commit(struct hvi_buf *b, size_t size_bytes);
/** Drop bytes from the front. */
void hvi_buf_consume(struct hvi_buf *b, size_t size_bytes);
void hvi_buf_clear(struct hvi_buf *b);
/** Zeros whatever was in it, also what is consumed; the live bytes too. */
void hvi_buf_wipe(struct hvi_buf *b);

struct hvi_cursor {
    uint8_t *p;
    size_t left;
    bool bad; /* something did not fit; sticky */
};

void hvi_cursor_init(struct hvi_cursor *c, void *data, size_t size_bytes);
/** For reading only. */
void hvi_cursor_init_ro(struct hvi_cursor *c, const void *data, size_t size_bytes);
void hvi_put_u8(struct hvi_cursor *c, uint8_t v);
void hvi_put_u16(struct hvi_cursor *c, uint16_t v);
void hvi_put_u32(struct hvi_cursor *c, uint32_t v);
void hvi_put_u64(struct hvi_cursor *c, uint64_t v);
void hvi_put_bytes(struct hvi_cursor *c, const void *data, size_t size_bytes);
uint8_t hvi_get_u8(struct hvi_cursor *c);
uint16_t hvi_get_u16(struct hvi_cursor *c);
uint32_t hvi_get_u32(struct hvi_cursor *c);
uint64_t hvi_get_u64(struct hvi_cursor *c);
/** Copies, or zero-fills when bad. */
void hvi_get_bytes(struct hvi_cursor *c, void *out, size_t size_bytes);

#endif
