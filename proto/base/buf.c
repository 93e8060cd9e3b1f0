#include "proto/base/buf.h"

#include <stdlib.h>
#include <string.h>

/* Its pages that were never used stay untouched: they are not even there. */
void hvi_buf_wipe(struct hvi_buf *b)
{
    if (b->data != NULL)
        explicit_bzero(b->data, b->most);
}

static void drop_data(struct hvi_buf *b)
{
    if (b->secret)
        hvi_buf_wipe(b);
    free(b->data);
}

void hvi_buf_fini(struct hvi_buf *b)
{
    bool secret = b->secret;

    drop_data(b);
    memset(b, 0, sizeof *b);
    b->secret = secret; /* so is what comes into it next */
}

uint8_t *hvi_buf_reserve(struct hvi_buf *b, size_t size_bytes)
{
    size_t live = b->len - b->off;
    size_t need = live + size_bytes;
    size_t cap = b->cap > 0 ? b->cap : 256;
    uint8_t *data;

    if (need < live)
        return NULL;
    if (b->cap > 0 && size_bytes <= b->cap - b->len)
        return b->data + b->len;
    if (b->cap > 0 && need <= b->cap) {
        memmove(b->data, b->data + b->off, live);
        b->off = 0;
        b->len = live;
        return b->data + b->len;
    }
    while (cap < need) {
        if (cap > SIZE_MAX / 2)
            return NULL;
        cap *= 2;
    }
    data = malloc(cap);
    if (data == NULL)
        return NULL;
    if (live > 0)
        memcpy(data, b->data + b->off, live);
    drop_data(b);
    b->data = data;
    b->off = 0;
    b->len = b->most = live;
    b->cap = cap;
    return data + live;
}

void hvi_buf_commit(struct hvi_buf *b, size_t size_bytes)
{
    b->len += size_bytes;
    if (b->len > b->most)
        b->most = b->len;
}

enum hvd_status hvi_buf_append(struct hvi_buf *b, const void *data, size_t size_bytes)
{
    uint8_t *to;

    if (b->max_bytes != 0 && size_bytes > b->max_bytes - hvi_buf_size(b))
        return HVD_ELIMIT;
    to = hvi_buf_reserve(b, size_bytes);
    if (to == NULL)
        return HVD_ENOMEM;
    if (size_bytes > 0)
        memcpy(to, data, size_bytes);
    hvi_buf_commit(b, size_bytes);
    return HVD_OK;
}

void hvi_buf_consume(struct hvi_buf *b, size_t size_bytes)
{
    b->off += size_bytes;
    if (b->off >= b->len)
        b->off = b->len = 0;
}

void hvi_buf_clear(struct hvi_buf *b)
{
    b->off = b->len = 0;
}

void hvi_cursor_init(struct hvi_cursor *c, void *data, size_t size_bytes)
{
    c->p = data;
    c->left = size_bytes;
    c->bad = false;
}

void hvi_cursor_init_ro(struct hvi_cursor *c, const void *data, size_t size_bytes)
{
    union {
        const void *ro;
        void *rw;
    } cast = {data};

    hvi_cursor_init(c, cast.rw, size_bytes);
}

static uint8_t *take(struct hvi_cursor *c, size_t size_bytes)
{
    uint8_t *p = c->p;

    if (c->bad || size_bytes > c->left) {
        c->bad = true;
        return NULL;
    }
    if (size_bytes > 0)
        c->p += size_bytes;
    c->left -= size_bytes;
    return p;
}

static void put_le(struct hvi_cursor *c, uint64_t v, size_t width)
{
    uint8_t *p = take(c, width);

    for (size_t i = 0; p != NULL && i < width; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_le(struct hvi_cursor *c, size_t width)
{
    const uint8_t *p = take(c, width);
    uint64_t v = 0;

    for (size_t i = 0; p != NULL && i < width; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

void hvi_put_u8(struct hvi_cursor *c, uint8_t v)
{
    put_le(c, v, 1);
}

void hvi_put_u16(struct hvi_cursor *c, uint16_t v)
{
    put_le(c, v, 2);
}

void hvi_put_u32(struct hvi_cursor *c, uint32_t v)
{
    put_le(c, v, 4);
}

void hvi_put_u64(struct hvi_cursor *c, uint64_t v)
{
    put_le(c, v, 8);
}

void hvi_put_bytes(struct hvi_cursor *c, const void *data, size_t size_bytes)
{
    uint8_t *p = take(c, size_bytes);

    if (p != NULL && size_bytes > 0)
        memcpy(p, data, size_bytes);
}

uint8_t hvi_get_u8(struct hvi_cursor *c)
{
    return (uint8_t)get_le(c, 1);
}

uint16_t hvi_get_u16(struct hvi_cursor *c)
{
    return (uint16_t)get_le(c, 2);
}

uint32_t hvi_get_u32(struct hvi_cursor *c)
{
    return (uint32_t)get_le(c, 4);
}

uint64_t hvi_get_u64(struct hvi_cursor *c)
{
    return get_le(c, 8);
}

void hvi_get_bytes(struct hvi_cursor *c, void *out, size_t size_bytes)
{
    const uint8_t *p = take(c, size_bytes);

    if (size_bytes == 0)
        return;
    if (p != NULL)
        memcpy(out, p, size_bytes);
    else
        memset(out, 0, size_bytes);
}
