/** Messages with every field set, made by walking the schema: a new field is in the
 * tests the moment it is in the schema. */
#ifndef HVI_TEST_FILL_H
#define HVI_TEST_FILL_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/msg/msg.h"

/* X-macro order, which is the order of the numbers. */
static const struct {
    uint32_t type;
    const ProtobufCMessageDescriptor *descriptor;
} fill_types[] = {
#define FILL_TYPE_(name, number, lower, type) {number, &hvi__##lower##__descriptor},
    HVI_MSG_LIST(FILL_TYPE_)
#undef FILL_TYPE_
};
#define FILL_TYPES (sizeof fill_types / sizeof fill_types[0])

static inline void *fill_alloc(size_t size_bytes)
{
    void *p = calloc(1, size_bytes > 0 ? size_bytes : 1);

    if (p == NULL)
        abort();
    return p;
}

static inline ProtobufCMessage *fill_message(const ProtobufCMessageDescriptor *d);

/* One element; its value tells field and place: 300 takes two varint bytes, -id ten. */
static inline void fill_value(const ProtobufCFieldDescriptor *f, void *to, uint32_t i)
{
    ProtobufCBinaryData *bytes = to;
    char text[64];
    int32_t i32 = f->id % 2 == 0 ? -(int32_t)(f->id + i) : (int32_t)(f->id + i);
    int64_t i64 = (int64_t)300 * (f->id + i);
    double d = f->id + i + 0.5;

    snprintf(text, sizeof text, "%s%u", f->name, i);
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_UINT32:
        if (f->type == PROTOBUF_C_TYPE_UINT32)
            i32 = (int32_t)(f->id + i);
        memcpy(to, &i32, sizeof i32);
        return;
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_UINT64:
        memcpy(to, &i64, sizeof i64);
        return;
    case PROTOBUF_C_TYPE_DOUBLE:
        memcpy(to, &d, sizeof d);
        return;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)to = 1;
        return;
    case PROTOBUF_C_TYPE_STRING:
        *(char **)to = strcpy(fill_alloc(strlen(text) + 1), text);
        return;
    case PROTOBUF_C_TYPE_BYTES:
        bytes->len = strlen(text) + 1; /* the NUL too: bytes may hold any */
        bytes->data = (uint8_t *)strcpy(fill_alloc(bytes->len), text);
        return;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(ProtobufCMessage **)to = fill_message(f->descriptor);
        return;
    default:
        fprintf(stderr, "fill.h: field %s is of a type that it does not know\n",
                f->name);
        abort();
    }
}

static inline size_t fill_size(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_INT32:
    case PROTOBUF_C_TYPE_UINT32:
        return 4;
    case PROTOBUF_C_TYPE_BOOL:
        return sizeof(protobuf_c_boolean);
    case PROTOBUF_C_TYPE_BYTES:
        return sizeof(ProtobufCBinaryData);
    default:
        return 8; /* integers, doubles, pointers */
    }
}

/** Two elements in every repeated field. Free with fill_free(). */
static inline ProtobufCMessage *fill_message(const ProtobufCMessageDescriptor *d)
{
    ProtobufCMessage *m = fill_alloc(d->sizeof_message);

    protobuf_c_message_init(d, m);
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        uint8_t *at = (uint8_t *)m + f->offset;

        if (f->label == PROTOBUF_C_LABEL_REPEATED) {
            size_t two = 2;
            uint8_t *array = fill_alloc(2 * fill_size(f));

            fill_value(f, array, 0);
            fill_value(f, array + fill_size(f), 1);
            memcpy((uint8_t *)m + f->quantifier_offset, &two, sizeof two);
            memcpy(at, &array, sizeof array);
        } else {
            fill_value(f, at, 0);
        }
    }
    return m;
}

static inline void fill_free(ProtobufCMessage *m)
{
    protobuf_c_message_free_unpacked(m, NULL);
}

#endif
