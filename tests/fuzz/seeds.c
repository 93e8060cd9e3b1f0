/*
 * Writes the seed corpus of the targets that speak our own wire, from the code that
 * makes it: DIRECTORY/TARGET/NAME. Seeds therefore follow the schema; what was once
 * found and must be tried for ever lies as a file in tests/fuzz/corpus/TARGET.
 */
#define HVI_FUZZ_NO_MAIN
#include "tests/fuzz/session.h"

#include <errno.h>
#include <sys/stat.h>

#include "proto/msg/ready.h"
#include "tests/unit/proto/fill.h"

static const char *top;

static void put_seed(const char *target, const char *name, const void *data,
                     size_t size)
{
    char path[4096];
    FILE *f;

    snprintf(path, sizeof path, "%s/%s", top, target);
    if (mkdir(path, 0777) != 0 && errno != EEXIST) {
        perror(path);
        exit(1);
    }
    snprintf(path, sizeof path, "%s/%s/%s", top, target, name);
    f = fopen(path, "we");
    if (f == NULL || fwrite(data, 1, size, f) != size || fclose(f) != 0) {
        perror(path);
        exit(1);
    }
}

static void must(enum hvd_status rc)
{
    if (rc != HVD_OK) {
        fprintf(stderr, "seeds: status %d\n", rc);
        exit(1);
    }
}

/* ---- fuzz_hello: "mode, message, bytes for the stream" */

static void hello_seeds(void)
{
    uint8_t seed[1 + HVI_HELLO_BYTES + 64] = {0};
    uint8_t reply[HVI_HELLO_BYTES];
    struct hvi_hs_client hs;
    struct hvi_stream stream;
    enum hvi_role role;

    session_reset();
    must(hvi_hs_client_start(&hs, session_key, session_job, HVI_ROLE_WORKER, seed + 1,
                             NULL));
    must(hvi_hs_server(session_key, session_job, HVI_ROLE_COORDINATOR, seed + 1, reply,
                       &stream, &role, NULL));
    put_seed("fuzz_hello", "hello", seed, 1 + HVI_HELLO_BYTES);
    put_seed("fuzz_hello", "hello-and-bytes", seed, sizeof seed);
    seed[0] = 2;
    put_seed("fuzz_hello", "hello-signed", seed, sizeof seed);
    seed[1 + 8] = 9;
    put_seed("fuzz_hello", "hello-version-9", seed, 1 + HVI_HELLO_BYTES);
    memcpy(seed + 1, reply, sizeof reply);
    seed[0] = 1;
    put_seed("fuzz_hello", "reply", seed, 1 + HVI_HELLO_BYTES);
    seed[0] = 3;
    put_seed("fuzz_hello", "reply-signed", seed, sizeof seed);
    seed[0] = 1;
    seed[1 + 8] = 9;
    seed[1 + 10] |= 0x80;
    memset(seed + 1 + 32, 0, 96);
    put_seed("fuzz_hello", "refusal", seed, 1 + HVI_HELLO_BYTES);
    hvi_hs_fini(&hs);
}

/* ---- fuzz_stream: steps, see there; number << 3 | step */

static void stream_seeds(void)
{
    static const struct {
        const char *name, *steps;
        size_t size;
    } seeds[] = {
        {"records", "\x28\x02\x00\xf8\x02\x08\x02", 7},
        {"end", "\x28\x08\x09\x02", 4},
        {"after-the-end", "\x28\x09\x28\x09\x02\x0b!\x02", 8},
        {"flip", "\x28\x28\x0c\x1e\x02\x28\x02", 7},
        {"flip-length", "\x28\x04\x18\x02", 4},
        {"drop", "\x28\x02\x28\x85\x28\x02", 6},
        {"twice", "\x28\x02\x28\x06\x02", 5},
        {"raw",
         "\xf3"
         "01234567890123456789012345678901\x02",
         34},
        {"full", "\x07\x28\x07\x02", 4},
    };

    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++)
        put_seed("fuzz_stream", seeds[i].name, seeds[i].steps, seeds[i].size);
}

/* ---- fuzz_request: "room, n, n x (field, tensor, value), n, ..." */

static void request_seeds(void)
{
    /* the change that makes the second request differ; see set_field() there */
    static const uint8_t changes[][4] = {
        {0, 0, 3},  {1, 0, 4},     {2, 0, 1},  {3, 0, 1},  {4, 0, 3},
        {5, 0, 3},  {6, 0, 1},     {7, 0, 3},  {8, 0, 1},  {9, 0, 7},
        {10, 0, 2}, {11, 0, 0, 3}, {12, 0, 1}, {13, 0, 1}, {14, 0, 255},
    };

    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        /* a group of three, the first of shape [2, 3] */
        uint8_t seed[] = {100, 5, 7, 0,  3, 8, 0, 1, 10, 0, 2, 11,
                          0,   0, 2, 11, 0, 1, 3, 1, 0,  0, 0, 0};
        char name[16];

        memcpy(seed + sizeof seed - 4, changes[i], 4);
        snprintf(name, sizeof name, "field-%u", changes[i][0]);
        put_seed("fuzz_request", name, seed, sizeof seed);
    }
}

/* ---- fuzz_msg: "type, payload"; fuzz_frame: "piece, frames" */

static void payload_seed(struct hvi_buf *frames, size_t from, uint32_t type,
                         const char *name)
{
    const uint8_t *frame = hvi_buf_peek(frames) + from;
    size_t n = hvi_buf_size(frames) - from - HVI_FRAME_HEADER_BYTES;
    uint8_t *seed = fill_alloc(1 + n);

    seed[0] = (uint8_t)type;
    if (n > 0)
        memcpy(seed + 1, frame + HVI_FRAME_HEADER_BYTES, n);
    put_seed("fuzz_msg", name, seed, 1 + n);
    free(seed);
}

static void frames_seed(const struct hvi_buf *frames, uint8_t piece, const char *name)
{
    size_t n = hvi_buf_size(frames);
    uint8_t *seed = fill_alloc(1 + n);

    seed[0] = piece;
    memcpy(seed + 1, hvi_buf_peek(frames), n);
    put_seed("fuzz_frame", name, seed, 1 + n);
    free(seed);
}

/* A request that is in every range, which fill.h's is not. */
static void announce(struct hvi_buf *frames)
{
    Hvi__Announce m = HVI__ANNOUNCE__INIT;
    Hvi__Request r[2] = {HVI__REQUEST__INIT, HVI__REQUEST__INIT};
    Hvi__Request *list[2] = {&r[0], &r[1]};
    Hvi__Tensor t = HVI__TENSOR__INIT;
    Hvi__Tensor *tensors[2] = {&t, &t};
    int64_t dims[2] = {2, 300};
    char name[] = "grad/w";

    t.dtype = HVD_FLOAT32;
    t.dims = dims;
    t.n_dims = 2;
    for (int i = 0; i < 2; i++) {
        r[i].name = name;
        r[i].kind = HVD_ALLREDUCE;
        r[i].reduce_op = HVD_SUM;
        r[i].tensors = tensors;
        r[i].n_tensors = (size_t)i + 1;
        r[i].grouped = i == 1;
        r[i].prescale = i == 1 ? 0.5 : 0;
    }
    m.epoch = 1;
    m.requests = list;
    m.n_requests = 2;
    must(hvi_msg_put(frames, HVI_MSG_ANNOUNCE, &m));
}

static void frame_seeds(void)
{
    static const struct hvi_ready_id ids[] = {{1, 1}, {2, 7}};
    static const uint32_t order_ids[] = {1, 2, 3};
    static const struct hvi_order_group groups[] = {
        {1, 0, 2, order_ids}, {2, HVD_EMISMATCH, 1, order_ids + 2}};
    struct hvi_buf frames = {0};
    size_t from = 0;

    for (size_t i = 0; i < FILL_TYPES; i++) {
        ProtobufCMessage *m = fill_message(fill_types[i].descriptor);

        must(hvi_msg_put(&frames, fill_types[i].type, m));
        payload_seed(&frames, from, fill_types[i].type,
                     hvi_msg_name(fill_types[i].type));
        from = hvi_buf_size(&frames);
        fill_free(m);
    }
    frames_seed(&frames, 6, "all-messages");
    hvi_buf_clear(&frames);
    must(hvi_ready_put(&frames, 1, ids, 2));
    payload_seed(&frames, 0, HVI_MSG_READY, "READY");
    from = hvi_buf_size(&frames);
    must(hvi_order_put(&frames, 1, groups, 2));
    payload_seed(&frames, from, HVI_MSG_ORDER, "ORDER");
    from = hvi_buf_size(&frames);
    announce(&frames);
    payload_seed(&frames, from, HVI_MSG_ANNOUNCE, "ANNOUNCE-good");
    frames_seed(&frames, 255, "negotiation");
    frames_seed(&frames, 0, "negotiation-by-bytes");
    hvi_buf_clear(&frames);
    must(hvi_frame_put(&frames, 200, "?", 1));
    frames_seed(&frames, 3, "unknown");
    hvi_buf_fini(&frames);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s DIRECTORY\n", argv[0]);
        return 2;
    }
    top = argv[1];
    hello_seeds();
    stream_seeds();
    request_seeds();
    frame_seeds();
    return 0;
}
