/*
 * Decoding in two passes. The first walks the bytes beside the schema without
 * allocating: it checks lengths, counts elements against their caps, looks for NUL in
 * strings and adds up the memory that protobuf-c will take. Only then does protobuf-c
 * unpack, with an allocator that enforces the same budget. The sender runs the first
 * pass too, so what hvi_msg_put() lets out, hvi_msg_get() takes.
 */
#include "proto/msg/msg.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"

#define TYPE_MAX 128
#define MALLOC_OVERHEAD 16
/* protobuf-c notes every field of a message: the first 16 on its stack, then in slabs
 * of 32, 64, ... of 40 bytes each. */
#define SLAB_FIRST 16
#define SLAB_ENTRY_BYTES 40
#define UNKNOWN_FIELD_BYTES 40

typedef ProtobufCMessageDescriptor Descriptor; /* the library's own naming */
typedef ProtobufCFieldDescriptor Field;

static const Descriptor *const descriptors[TYPE_MAX] = {
#define DESCRIPTOR_(name, number, lower, type) [number] = &hvi__##lower##__descriptor,
    HVI_MSG_LIST(DESCRIPTOR_)
#undef DESCRIPTOR_
};

static const struct {
    const Descriptor *message;
    uint32_t field, max;
} caps[] = {
    {&hvi__tensor__descriptor, 2, HVD_NDIM_MAX},
    {&hvi__request__descriptor, 9, HVD_GROUP_MAX},
    {&hvi__announce__descriptor, 2, HVI_ANNOUNCE_MAX},
    {&hvi__hello__descriptor, 6, HVI_ADDRS_MAX},
    {&hvi__peer__descriptor, 5, HVI_ADDRS_MAX},
    {&hvi__job_spec__descriptor, 6, HVI_ARGV_MAX},
    {&hvi__job_spec__descriptor, 8, HVI_ENV_MAX},
    {&hvi__job_spec__descriptor, 13, HVI_ADDRS_MAX},
    {&hvi__rank_spec__descriptor, 3, HVI_RANK_ENV_MAX},
};

/* What the first pass adds up over all levels. */
struct scan {
    size_t cost_bytes;
    size_t allocs;
    struct hvi_err *err;
};

#define FIELDS_MAX 32

/* One level of it. */
struct level {
    const Descriptor *d;
    uint32_t counts[FIELDS_MAX]; /* elements seen, by the field's place in d */
    size_t slab_left;            /* fields until protobuf-c takes a new slab */
    size_t slab_size;
    const uint8_t *p, *end;
};

static enum hvd_status scan_message(struct scan *s, const Descriptor *d,
                                    const uint8_t *p, size_t size_bytes);

static void charge(struct scan *s, size_t size_bytes)
{
    s->cost_bytes += size_bytes + MALLOC_OVERHEAD;
    s->allocs++;
}

static enum hvd_status damaged(struct scan *s, const Descriptor *d)
{
    return hvi_fail(s->err, HVD_EPROTO, "%s message is damaged", d->short_name);
}

static bool get_varint(struct level *l, uint64_t *out)
{
    uint64_t v = 0;

    for (unsigned shift = 0; shift < 70 && l->p < l->end; shift += 7) {
        uint8_t byte = *l->p++;

        v |= (uint64_t)(byte & 0x7f) << shift;
        if ((byte & 0x80) == 0) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* Moves past the value; *value, *size_bytes are its bytes (without a length). */
static bool get_value(struct level *l, unsigned wire, const uint8_t **value,
                      size_t *size_bytes)
{
    const uint8_t *start = l->p;
    uint64_t n = 0;

    switch (wire) {
    case PROTOBUF_C_WIRE_TYPE_VARINT:
        if (!get_varint(l, &n))
            return false;
        n = (uint64_t)(l->p - start);
        l->p = start;
        break;
    case PROTOBUF_C_WIRE_TYPE_64BIT:
        n = 8;
        break;
    case PROTOBUF_C_WIRE_TYPE_32BIT:
        n = 4;
        break;
    case PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED:
        if (!get_varint(l, &n))
            return false;
        break;
    default:
        return false;
    }
    if (n > (uint64_t)(l->end - l->p))
        return false;
    *value = l->p;
    *size_bytes = (size_t)n;
    l->p += n;
    return true;
}

static uint32_t cap_of(const Descriptor *d, const Field *f)
{
    if (f->label != PROTOBUF_C_LABEL_REPEATED)
        return 1;
    for (size_t i = 0; i < sizeof caps / sizeof caps[0]; i++)
        if (caps[i].message == d && caps[i].field == f->id)
            return caps[i].max;
    return HVD_RANKS_MAX;
}

static bool is_scalar(const Field *f)
{
    return f->type != PROTOBUF_C_TYPE_BYTES && f->type != PROTOBUF_C_TYPE_STRING &&
           f->type != PROTOBUF_C_TYPE_MESSAGE;
}

static unsigned wire_of(const Field *f)
{
    if (!is_scalar(f))
        return PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
    return f->type == PROTOBUF_C_TYPE_DOUBLE ? PROTOBUF_C_WIRE_TYPE_64BIT
                                             : PROTOBUF_C_WIRE_TYPE_VARINT;
}

/* Elements of a packed repeated field: every varint ends in a byte below 0x80. */
static size_t packed_count(const Field *f, const uint8_t *value, size_t size_bytes)
{
    size_t count = 0;

    if (f->type == PROTOBUF_C_TYPE_DOUBLE)
        return size_bytes / 8;
    for (size_t i = 0; i < size_bytes; i++)
        count += value[i] < 0x80;
    return count;
}

/* Adds to the field's count, checks it, and charges the array it will live in. */
static enum hvd_status scan_count(struct scan *s, struct level *l, const Field *f,
                                  size_t count)
{
    uint32_t *seen = &l->counts[f - l->d->fields];
    uint32_t max = cap_of(l->d, f);

    if (count > max - *seen)
        return hvi_fail(s->err, HVD_EPROTO, "%s.%s: %zu elements, at most %u",
                        l->d->short_name, f->name, *seen + count, max);
    if (f->label == PROTOBUF_C_LABEL_REPEATED) {
        if (*seen == 0)
            charge(s, 0);
        s->cost_bytes += count * sizeof(ProtobufCBinaryData); /* the widest element */
    }
    *seen += (uint32_t)count;
    return HVD_OK;
}

static enum hvd_status scan_text(struct scan *s, const struct level *l, const Field *f,
                                 const uint8_t *value, size_t size_bytes)
{
    size_t max = strcmp(f->name, "name") == 0 ? HVD_NAME_MAX : HVI_TEXT_MAX;

    if (size_bytes > max)
        return hvi_fail(s->err, HVD_EPROTO, "%s.%s: %zu bytes, at most %zu",
                        l->d->short_name, f->name, size_bytes, max);
    if (size_bytes > 0 && memchr(value, '\0', size_bytes) != NULL)
        return hvi_fail(s->err, HVD_EPROTO, "%s.%s: a NUL byte inside the text",
                        l->d->short_name, f->name);
    charge(s, size_bytes + 1);
    return HVD_OK;
}

static enum hvd_status scan_value(struct scan *s, struct level *l, const Field *f,
                                  unsigned wire, const uint8_t *value,
                                  size_t size_bytes)
{
    bool packed = is_scalar(f) && f->label == PROTOBUF_C_LABEL_REPEATED &&
                  wire == PROTOBUF_C_WIRE_TYPE_LENGTH_PREFIXED;
    enum hvd_status rc;

    if (wire != wire_of(f) && !packed)
        return damaged(s, l->d);
    rc = scan_count(s, l, f, packed ? packed_count(f, value, size_bytes) : 1);
    if (rc != HVD_OK || is_scalar(f))
        return rc;
    if (f->type == PROTOBUF_C_TYPE_STRING)
        return scan_text(s, l, f, value, size_bytes);
    if (f->type == PROTOBUF_C_TYPE_MESSAGE)
        return scan_message(s, f->descriptor, value, size_bytes);
    charge(s, size_bytes);
    return HVD_OK;
}

static void charge_slab(struct scan *s, struct level *l)
{
    if (l->slab_left == 0) {
        l->slab_size *= 2;
        l->slab_left = l->slab_size;
        charge(s, l->slab_size * SLAB_ENTRY_BYTES);
    }
    l->slab_left--;
}

/* Recursion is as deep as the schema, which has no recursive message: 3. */
static enum hvd_status scan_message(struct scan *s, const Descriptor *d,
                                    const uint8_t *p, size_t size_bytes)
{
    struct level l = {.d = d, .slab_left = SLAB_FIRST, .slab_size = SLAB_FIRST};
    enum hvd_status rc = HVD_OK;

    HVI_ASSERT(d->n_fields <= FIELDS_MAX);
    l.p = p;
    l.end = size_bytes > 0 ? p + size_bytes : p; /* p may be NULL then */
    charge(s, d->sizeof_message);
    while (rc == HVD_OK && l.p < l.end) {
        const uint8_t *value;
        const Field *f;
        uint64_t tag;
        size_t n;

        if (!get_varint(&l, &tag) || tag > UINT32_MAX || tag >> 3 == 0 ||
            !get_value(&l, (unsigned)(tag & 7), &value, &n))
            return damaged(s, d);
        charge_slab(s, &l);
        f = protobuf_c_message_descriptor_get_field(d, (unsigned)(tag >> 3));
        if (f != NULL)
            rc = scan_value(s, &l, f, (unsigned)(tag & 7), value, n);
        else /* of a newer peer: kept by protobuf-c */
            charge(s, n + UNKNOWN_FIELD_BYTES + MALLOC_OVERHEAD);
        if (rc == HVD_OK && s->cost_bytes > HVI_MSG_BUDGET_BYTES)
            rc = hvi_fail(s->err, HVD_EPROTO, "%s message would take over %d bytes",
                          d->short_name, HVI_MSG_BUDGET_BYTES);
        if (rc == HVD_OK && s->allocs > HVI_MSG_BUDGET_ALLOCS)
            rc = hvi_fail(s->err, HVD_EPROTO, "%s message has over %d parts",
                          d->short_name, HVI_MSG_BUDGET_ALLOCS);
    }
    return rc;
}

/* ---- second pass */

struct budget {
    size_t left_bytes, left_allocs;
    bool no_memory;
};

/* Nothing is given back by a free: what a frame takes in all is what counts. */
static void *budget_alloc(void *arg, size_t size_bytes)
{
    struct budget *b = arg;
    void *p;

    if (b->left_allocs == 0 || b->left_bytes < MALLOC_OVERHEAD ||
        size_bytes > b->left_bytes - MALLOC_OVERHEAD)
        return NULL;
    p = malloc(size_bytes);
    if (p == NULL) {
        b->no_memory = true;
        return NULL;
    }
    b->left_bytes -= size_bytes + MALLOC_OVERHEAD;
    b->left_allocs--;
    return p;
}

static void budget_free(void *arg, void *p)
{
    (void)arg;
    free(p);
}

static const Descriptor *descriptor_of(uint32_t type)
{
    return type < TYPE_MAX ? descriptors[type] : NULL;
}

enum hvd_status hvi_msg_put(struct hvi_buf *out, uint32_t type, const void *body)
{
    const ProtobufCMessage *m = body;
    const Descriptor *d = descriptor_of(type);
    size_t before = hvi_buf_size(out);
    struct scan s = {0, 0, NULL};
    enum hvd_status rc;
    uint8_t *to;
    size_t n;

    HVI_ASSERT(d != NULL && m != NULL && m->descriptor == d);
    n = protobuf_c_message_get_packed_size(m);
    rc = hvi_frame_room(out, type, n, &to);
    if (rc != HVD_OK)
        return rc;
    if (n > 0)
        protobuf_c_message_pack(m, to);
    if (scan_message(&s, d, to, n) == HVD_OK)
        return HVD_OK;
    out->len = out->off + before;
    return HVD_ELIMIT;
}

enum hvd_status hvi_msg_get(uint32_t type, const void *payload, size_t size_bytes,
                            struct hvi_msg *out, struct hvi_err *err)
{
    struct budget b = {HVI_MSG_BUDGET_BYTES, HVI_MSG_BUDGET_ALLOCS, false};
    ProtobufCAllocator allocator = {budget_alloc, budget_free, &b};
    const Descriptor *d = descriptor_of(type);
    struct scan s = {0, 0, err};
    ProtobufCMessage *m;
    enum hvd_status rc;

    if (d == NULL)
        return hvi_fail(err, HVD_EPROTO, "unknown message type %u", type);
    rc = scan_message(&s, d, payload, size_bytes);
    if (rc != HVD_OK)
        return rc;
    m = protobuf_c_message_unpack(d, &allocator, size_bytes, payload);
    if (m == NULL && b.no_memory)
        return hvi_fail(err, HVD_ENOMEM, "%s message: out of memory", d->short_name);
    if (m == NULL)
        return damaged(&s, d);
    out->type = type;
    out->body = m;
    return HVD_OK;
}

enum hvd_status hvi_msg_take(struct hvi_buf *rx, struct hvi_msg *out,
                             struct hvi_err *err)
{
    const uint8_t *payload;
    size_t payload_bytes, frame_bytes;
    uint32_t type;
    enum hvd_status rc = hvi_frame_peek(hvi_buf_peek(rx), hvi_buf_size(rx), &type,
                                        &payload, &payload_bytes, &frame_bytes, err);

    if (rc == HVD_OK)
        rc = hvi_msg_get(type, payload, payload_bytes, out, err);
    if (rc == HVD_OK)
        hvi_buf_consume(rx, frame_bytes);
    return rc;
}

void hvi_msg_free(struct hvi_msg *msg)
{
    if (msg->body != NULL)
        protobuf_c_message_free_unpacked(msg->body, NULL); /* its default is free() */
    msg->body = NULL;
    msg->type = HVI_MSG_UNSET;
}
