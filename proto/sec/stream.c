/*
 * A record is u32 length, then the ciphertext; the length is authenticated with it. The
 * first record of a direction follows the 24-byte header that its keys start from. Any
 * failure to open is final: the stream stays broken, whatever comes after.
 */
#include "proto/sec/stream.h"

#include <sodium.h>
#include <string.h>

#include "proto/sec/handshake.h"

#define HEADER_BYTES crypto_secretstream_xchacha20poly1305_HEADERBYTES
#define SEAL_BYTES crypto_secretstream_xchacha20poly1305_ABYTES
#define LENGTH_BYTES 4u

typedef crypto_secretstream_xchacha20poly1305_state State; /* the library's */

_Static_assert(sizeof(State) <= sizeof(((struct hvi_stream *)0)->push_state),
               "struct hvi_stream holds the library's states");
_Static_assert(_Alignof(State) <= 16, "and aligns them");

static State *push_state(struct hvi_stream *s)
{
    return (State *)(void *)s->push_state;
}

static State *pull_state(struct hvi_stream *s)
{
    return (State *)(void *)s->pull_state;
}

static void put_length(uint8_t out[LENGTH_BYTES], size_t size_bytes)
{
    struct hvi_cursor c;

    hvi_cursor_init(&c, out, LENGTH_BYTES);
    hvi_put_u32(&c, (uint32_t)size_bytes);
}

enum hvd_status hvi_stream_seal(struct hvi_stream *s, const void *plain,
                                size_t size_bytes, bool last, struct hvi_buf *out)
{
    size_t head = s->push_open ? 0 : HEADER_BYTES;
    size_t total = head + LENGTH_BYTES + SEAL_BYTES + size_bytes;
    uint8_t *to;

    if (s->finished)
        return HVD_ESTATE;
    if (size_bytes > HVI_RECORD_MAX_BYTES ||
        (out->max_bytes != 0 && total > out->max_bytes - hvi_buf_size(out)))
        return HVD_ELIMIT;
    to = hvi_buf_reserve(out, total);
    if (to == NULL)
        return HVD_ENOMEM;
    if (!s->push_open) {
        crypto_secretstream_xchacha20poly1305_init_push(push_state(s), to, s->push_key);
        hvi_wipe(s->push_key, sizeof s->push_key);
        s->push_open = true;
    }
    put_length(to + head, SEAL_BYTES + size_bytes);
    crypto_secretstream_xchacha20poly1305_push(
        push_state(s), to + head + LENGTH_BYTES, NULL, plain, size_bytes, to + head,
        LENGTH_BYTES,
        last ? crypto_secretstream_xchacha20poly1305_TAG_FINAL
             : crypto_secretstream_xchacha20poly1305_TAG_MESSAGE);
    hvi_buf_commit(out, total);
    s->finished = last;
    return HVD_OK;
}

static enum hvd_status broken(struct hvi_stream *s, enum hvd_status status,
                              const char *what, struct hvi_err *err)
{
    s->broken = true;
    return hvi_fail(err, status, "%s", what);
}

static enum hvd_status open_header(struct hvi_stream *s, struct hvi_buf *in,
                                   struct hvi_err *err)
{
    if (s->pull_open)
        return HVD_OK;
    if (hvi_buf_size(in) < HEADER_BYTES)
        return HVD_INPROGRESS;
    if (crypto_secretstream_xchacha20poly1305_init_pull(pull_state(s), hvi_buf_peek(in),
                                                        s->pull_key) != 0)
        return broken(s, HVD_EAUTH, "a stream header is damaged", err);
    hvi_wipe(s->pull_key, sizeof s->pull_key);
    hvi_buf_consume(in, HEADER_BYTES);
    s->pull_open = true;
    return HVD_OK;
}

/* *length: of the ciphertext, once all of it is there. */
static enum hvd_status whole_record(struct hvi_stream *s, const struct hvi_buf *in,
                                    size_t *length, struct hvi_err *err)
{
    struct hvi_cursor c;
    size_t n;

    if (hvi_buf_size(in) < LENGTH_BYTES)
        return HVD_INPROGRESS;
    hvi_cursor_init_ro(&c, hvi_buf_peek(in), LENGTH_BYTES);
    n = hvi_get_u32(&c);
    if (n < SEAL_BYTES || n > SEAL_BYTES + HVI_RECORD_MAX_BYTES)
        return broken(s, HVD_EPROTO, "a record of impossible length", err);
    if (hvi_buf_size(in) - LENGTH_BYTES < n)
        return HVD_INPROGRESS;
    *length = n;
    return HVD_OK;
}

enum hvd_status hvi_stream_open(struct hvi_stream *s, struct hvi_buf *in,
                                struct hvi_buf *plain, struct hvi_err *err)
{
    const uint8_t *record;
    enum hvd_status rc;
    unsigned char tag;
    size_t length = 0;
    uint8_t *to;

    hvi_buf_clear(plain);
    if (s->broken)
        return hvi_fail(err, HVD_EAUTH, "the stream is broken");
    if (s->ended)
        return hvi_buf_size(in) == 0
                   ? HVD_INPROGRESS
                   : broken(s, HVD_EPROTO, "bytes after the stream's end", err);
    rc = open_header(s, in, err);
    if (rc == HVD_OK)
        rc = whole_record(s, in, &length, err);
    if (rc != HVD_OK)
        return rc;
    to = hvi_buf_reserve(plain, length - SEAL_BYTES);
    if (to == NULL)
        return hvi_fail(err, HVD_ENOMEM, "record of %zu bytes: out of memory", length);
    record = hvi_buf_peek(in);
    if (crypto_secretstream_xchacha20poly1305_pull(pull_state(s), to, NULL, &tag,
                                                   record + LENGTH_BYTES, length,
                                                   record, LENGTH_BYTES) != 0)
        return broken(s, HVD_EAUTH, "a record was forged, damaged or out of order",
                      err);
    if (tag == crypto_secretstream_xchacha20poly1305_TAG_FINAL)
        s->ended = true;
    else if (tag != crypto_secretstream_xchacha20poly1305_TAG_MESSAGE)
        return broken(s, HVD_EPROTO, "a record with an unknown tag", err);
    hvi_buf_commit(plain, length - SEAL_BYTES);
    hvi_buf_consume(in, LENGTH_BYTES + length);
    return HVD_OK;
}

void hvi_stream_fini(struct hvi_stream *s)
{
    hvi_wipe(s, sizeof *s);
}
