#include "test.h"

#include <pthread.h>
#include <sodium.h>
#include <string.h>

#include "channel.h"
#include "fault.h"
#include "noise.h"

#define MAC_OFFSET 96
#define VERSION_OFFSET 8

/* What a server must not touch when it turns a peer away without a word. */
struct turned_away {
    uint8_t reply[HVI_HELLO_BYTES];
    struct hvi_stream stream;
    enum hvi_role role;
    struct hvi_err err;
};

static enum hvd_status serve(struct turned_away *t, const uint8_t key[HVI_KEY_BYTES],
                             const uint8_t job[HVI_JOB_ID_BYTES],
                             const uint8_t hello[HVI_HELLO_BYTES])
{
    memset(t, 0x5a, sizeof *t);
    t->role = HVI_ROLE_UNSET;
    t->err.text[0] = '\0';
    return hvi_hs_server(key, job, HVI_ROLE_COORDINATOR, hello, t->reply, &t->stream,
                         &t->role, &t->err);
}

static bool untouched(const struct turned_away *t)
{
    const uint8_t *stream = (const uint8_t *)&t->stream;

    for (size_t i = 0; i < sizeof t->reply; i++)
        if (t->reply[i] != 0x5a)
            return false;
    for (size_t i = 0; i < sizeof t->stream; i++)
        if (stream[i] != 0x5a)
            return false;
    return t->role == HVI_ROLE_UNSET && t->err.text[0] != '\0';
}

static void start(struct hvi_hs_client *hs, uint8_t hello[HVI_HELLO_BYTES])
{
    cr_assert_eq(
        hvi_hs_client_start(hs, channel_key, channel_job, HVI_ROLE_WORKER, hello, NULL),
        HVD_OK);
}

/* A hello that somebody who has the key altered: the MAC is right again. */
static void resign(uint8_t hello[HVI_HELLO_BYTES])
{
    crypto_generichash(hello + MAC_OFFSET, 32, hello, MAC_OFFSET, channel_key,
                       HVI_KEY_BYTES);
}

/* ---- it works */

Test(handshake, both_sides_with_the_key_share_stream_keys, .timeout = 10)
{
    for (int role = HVI_ROLE_WORKER; role <= HVI_ROLE_DATA; role++) {
        struct channel ch;

        if (role == HVI_ROLE_COORDINATOR)
            continue;
        cr_assert_eq(channel_open(&ch, (enum hvi_role)role), HVD_OK, "role %d", role);
        cr_assert_eq((int)ch.role, role);
        cr_assert_eq(memcmp(ch.client.push_key, ch.server.pull_key, 32), 0);
        cr_assert_eq(memcmp(ch.client.pull_key, ch.server.push_key, 32), 0);
        cr_assert_neq(memcmp(ch.client.push_key, ch.client.pull_key, 32), 0,
                      "each direction has a key of its own");
    }
}

Test(handshake, two_connections_never_share_anything, .timeout = 10)
{
    struct channel a;
    struct channel b;

    cr_assert_eq(channel_open(&a, HVI_ROLE_WORKER), HVD_OK);
    cr_assert_eq(channel_open(&b, HVI_ROLE_WORKER), HVD_OK);
    cr_assert_neq(memcmp(a.hello + 48, b.hello + 48, 32), 0, "public key");
    cr_assert_neq(memcmp(a.hello + 80, b.hello + 80, 16), 0, "random");
    cr_assert_neq(memcmp(a.reply + 48, b.reply + 48, 32), 0, "public key");
    cr_assert_neq(memcmp(a.reply + 80, b.reply + 80, 16), 0, "random");
    cr_assert_neq(memcmp(a.client.push_key, b.client.push_key, 32), 0);
    cr_assert_neq(memcmp(a.client.pull_key, b.client.pull_key, 32), 0);
}

Test(handshake, hello_has_the_documented_layout, .timeout = 10)
{
    static const uint8_t head[16] = {'H', 'V', 'D', 'H', 'E', 'L', 'O', '\n',
                                     2,   0,   1,   0,   0,   0,   0,   0};
    static const char text[16] = HVI_VERSION;
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES];
    uint8_t mac[32];

    start(&hs, hello);
    cr_assert_eq(memcmp(hello, head, sizeof head), 0);
    cr_assert_eq(memcmp(hello + 16, text, sizeof text), 0);
    cr_assert_eq(memcmp(hello + 32, channel_job, sizeof channel_job), 0);
    crypto_generichash(mac, sizeof mac, hello, MAC_OFFSET, channel_key, HVI_KEY_BYTES);
    cr_assert_eq(memcmp(hello + MAC_OFFSET, mac, sizeof mac), 0);
    hvi_hs_fini(&hs);
}

/* ---- a peer written from PROTOCOL.md alone, on libsodium's primitives */

struct written_peer {
    uint8_t secret[32];
    uint8_t message[HVI_HELLO_BYTES]; /* what it says */
};

/* `before` is the hello that a reply answers, NULL for a hello. */
static void write_message(struct written_peer *p, uint8_t role, const uint8_t *before)
{
    crypto_generichash_state st;

    memset(p->message, 0, sizeof p->message);
    memcpy(p->message, "HVDHELO\n\x02", 9);
    p->message[10] = role;
    memcpy(p->message + 16, "0.0.9", 5); /* another release of the same protocol */
    memcpy(p->message + 32, channel_job, 16);
    cr_assert_eq(hvi_random(p->secret, 32), HVD_OK);
    crypto_scalarmult_base(p->message + 48, p->secret);
    cr_assert_eq(hvi_random(p->message + 80, 16), HVD_OK);
    crypto_generichash_init(&st, channel_key, 32, 32);
    if (before != NULL)
        crypto_generichash_update(&st, before, 128);
    crypto_generichash_update(&st, p->message, 96);
    crypto_generichash_final(&st, p->message + 96, 32);
}

/* out: client to server, server to client. */
static void write_keys(const struct written_peer *p, const uint8_t *peer_public,
                       const uint8_t *hello, const uint8_t *reply, uint8_t out[64])
{
    crypto_generichash_state st;
    uint8_t shared[32];

    cr_assert_eq(crypto_scalarmult(shared, p->secret, peer_public), 0);
    crypto_generichash_init(&st, channel_key, 32, 64);
    crypto_generichash_update(&st, shared, 32);
    crypto_generichash_update(&st, hello, 128);
    crypto_generichash_update(&st, reply, 128);
    crypto_generichash_final(&st, out, 64);
}

/* Header, length, ciphertext: what section 3 says of a first record. */
static void write_record(const uint8_t key[32], const char *text, struct hvi_buf *out)
{
    crypto_secretstream_xchacha20poly1305_state st;
    size_t n = strlen(text);
    uint8_t bytes[256];

    crypto_secretstream_xchacha20poly1305_init_push(&st, bytes, key);
    memset(bytes + 24, 0, 4);
    bytes[24] = (uint8_t)(n + 17);
    crypto_secretstream_xchacha20poly1305_push(
        &st, bytes + 28, NULL, (const uint8_t *)text, n, bytes + 24, 4, 0);
    cr_assert_eq(hvi_buf_append(out, bytes, 28 + n + 17), HVD_OK);
}

static void read_record(const uint8_t key[32], const struct hvi_buf *in,
                        const char *want)
{
    crypto_secretstream_xchacha20poly1305_state st;
    const uint8_t *bytes = hvi_buf_peek(in);
    uint8_t text[256];
    unsigned char tag = 0xff;
    unsigned long long n = 0;

    cr_assert_eq(crypto_secretstream_xchacha20poly1305_init_pull(&st, bytes, key), 0);
    cr_assert_eq(hvi_buf_size(in), 24 + 4 + strlen(want) + 17);
    cr_assert_eq(bytes[24], strlen(want) + 17);
    cr_assert_eq(
        crypto_secretstream_xchacha20poly1305_pull(
            &st, text, &n, &tag, bytes + 28, hvi_buf_size(in) - 28, bytes + 24, 4),
        0);
    cr_assert_eq(n, strlen(want));
    cr_assert_eq(memcmp(text, want, n), 0);
    cr_assert_eq(tag, 0);
}

static void talk(struct hvi_stream *ours, const uint8_t to_us[32],
                 const uint8_t from_us[32])
{
    struct hvi_buf in = {0};
    struct hvi_buf out = {0};
    struct hvi_buf plain = {0};

    write_record(to_us, "hello, you", &in);
    cr_assert_eq(hvi_stream_open(ours, &in, &plain, NULL), HVD_OK);
    cr_assert_eq(hvi_buf_size(&plain), 10);
    cr_assert_eq(memcmp(hvi_buf_peek(&plain), "hello, you", 10), 0);
    cr_assert_eq(hvi_stream_seal(ours, "hello back", 10, false, &out), HVD_OK);
    read_record(from_us, &out, "hello back");
    hvi_buf_fini(&in);
    hvi_buf_fini(&out);
    hvi_buf_fini(&plain);
}

Test(handshake, a_client_written_from_the_document_is_understood, .timeout = 10)
{
    struct written_peer client;
    struct turned_away t;
    uint8_t keys[64];

    write_message(&client, HVI_ROLE_AGENT, NULL);
    cr_assert_eq(serve(&t, channel_key, channel_job, client.message), HVD_OK);
    cr_assert_eq(t.role, HVI_ROLE_AGENT);
    write_keys(&client, t.reply + 48, client.message, t.reply, keys);
    talk(&t.stream, keys, keys + 32);
}

Test(handshake, a_server_written_from_the_document_is_understood, .timeout = 10)
{
    struct written_peer server;
    struct hvi_hs_client hs;
    struct hvi_stream stream;
    uint8_t hello[HVI_HELLO_BYTES];
    uint8_t keys[64];

    start(&hs, hello);
    write_message(&server, HVI_ROLE_COORDINATOR, hello);
    cr_assert_eq(hvi_hs_client_finish(&hs, server.message, &stream, NULL), HVD_OK);
    write_keys(&server, hello + 48, hello, server.message, keys);
    talk(&stream, keys + 32, keys);
}

Test(handshake, the_key_is_never_on_the_wire_and_wiped_in_the_end, .timeout = 10)
{
    static const struct hvi_hs_client wiped;
    struct hvi_hs_client hs;
    struct turned_away t;
    uint8_t hello[HVI_HELLO_BYTES];
    struct hvi_stream stream;

    start(&hs, hello);
    cr_assert_eq(serve(&t, channel_key, channel_job, hello), HVD_OK);
    cr_assert_null(memmem(hello, sizeof hello, channel_key, HVI_KEY_BYTES));
    cr_assert_null(memmem(t.reply, sizeof t.reply, channel_key, HVI_KEY_BYTES));
    cr_assert_null(memmem(hello, sizeof hello, hs.secret, sizeof hs.secret));
    cr_assert_eq(hvi_hs_client_finish(&hs, t.reply, &stream, NULL), HVD_OK);
    cr_assert_eq(memcmp(&hs, &wiped, sizeof hs), 0);
}

Test(handshake, job_id_from_a_key_is_stable_and_does_not_show_it, .timeout = 10)
{
    uint8_t a[HVI_JOB_ID_BYTES];
    uint8_t b[HVI_JOB_ID_BYTES];
    uint8_t other[HVI_KEY_BYTES];
    uint8_t again[HVI_JOB_ID_BYTES];

    memcpy(other, channel_key, sizeof other);
    other[31] ^= 1;
    hvi_key_job_id(channel_key, a);
    hvi_key_job_id(channel_key, b);
    cr_assert_eq(memcmp(a, b, sizeof a), 0);
    hvi_key_job_id(other, b);
    cr_assert_neq(memcmp(a, b, sizeof a), 0);
    cr_assert_null(memmem(a, sizeof a, channel_key, 4));
    crypto_generichash(again, sizeof again, (const uint8_t *)"hvd job id", 10,
                       channel_key, sizeof channel_key);
    cr_assert_eq(memcmp(a, again, sizeof a), 0, "releases must agree on it");
}

static void *open_and_talk(void *arg)
{
    struct hvi_buf wire = {0};
    struct hvi_buf plain = {0};
    enum hvd_status *rc = arg;
    struct channel ch;

    *rc = channel_open(&ch, HVI_ROLE_WORKER);
    if (*rc == HVD_OK)
        *rc = hvi_stream_seal(&ch.client, "x", 1, true, &wire);
    if (*rc == HVD_OK)
        *rc = hvi_stream_open(&ch.server, &wire, &plain, NULL);
    hvi_buf_fini(&wire);
    hvi_buf_fini(&plain);
    return NULL;
}

Test(handshake, threads_may_start_at_once, .timeout = 20)
{
    enum { THREADS = 8 };
    pthread_t threads[THREADS];
    enum hvd_status rc[THREADS];

    for (int i = 0; i < THREADS; i++)
        cr_assert_eq(pthread_create(&threads[i], NULL, open_and_talk, &rc[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_join(threads[i], NULL), 0);
        cr_assert_eq(rc[i], HVD_OK, "thread %d: %d", i, rc[i]);
    }
}

/* ---- others are turned away */

Test(handshake, another_key_is_turned_away_without_a_word, .timeout = 10)
{
    uint8_t key[HVI_KEY_BYTES];
    uint8_t hello[HVI_HELLO_BYTES];
    struct hvi_hs_client hs;
    struct turned_away t;

    start(&hs, hello);
    for (size_t bit = 0; bit < 8 * HVI_KEY_BYTES; bit++) {
        memcpy(key, channel_key, sizeof key);
        key[bit / 8] ^= (uint8_t)(1u << bit % 8);
        cr_assert_eq(serve(&t, key, channel_job, hello), HVD_EAUTH, "bit %zu", bit);
        cr_assert(untouched(&t), "bit %zu", bit);
    }
    hvi_hs_fini(&hs);
}

Test(handshake, another_job_with_the_same_key_is_turned_away, .timeout = 10)
{
    static const uint8_t job[HVI_JOB_ID_BYTES] = {9, 8, 6};
    uint8_t hello[HVI_HELLO_BYTES];
    struct hvi_hs_client hs;
    struct turned_away t;

    start(&hs, hello);
    cr_assert_eq(serve(&t, channel_key, job, hello), HVD_EAUTH);
    cr_assert(untouched(&t));
    hvi_hs_fini(&hs);
}

Test(handshake, roles_that_no_client_has_are_turned_away, .timeout = 10)
{
    static const uint16_t roles[] = {0, HVI_ROLE_COORDINATOR, 5, 0x81, 0x8003, 0xffff};
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES];
    struct turned_away t;

    start(&hs, hello);
    for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
        hello[10] = (uint8_t)roles[i];
        hello[11] = (uint8_t)(roles[i] >> 8);
        resign(hello);
        cr_assert_eq(serve(&t, channel_key, channel_job, hello), HVD_EPROTO, "role %u",
                     roles[i]);
        cr_assert(untouched(&t));
    }
    hvi_hs_fini(&hs);
}

Test(handshake, a_client_refuses_a_server_with_another_key, .timeout = 10)
{
    uint8_t key[HVI_KEY_BYTES] = {7};
    uint8_t hello[HVI_HELLO_BYTES];
    uint8_t theirs[HVI_HELLO_BYTES];
    struct hvi_hs_client hs;
    struct hvi_hs_client other;
    struct hvi_stream stream;
    struct turned_away t;
    struct hvi_err err;

    /* the impostor makes a good reply, to a hello of its own key */
    start(&hs, hello);
    cr_assert_eq(
        hvi_hs_client_start(&other, key, channel_job, HVI_ROLE_WORKER, theirs, NULL),
        HVD_OK);
    cr_assert_eq(serve(&t, key, channel_job, theirs), HVD_OK);
    cr_assert_eq(hvi_hs_client_finish(&hs, t.reply, &stream, &err), HVD_EAUTH);
    cr_assert_not_null(strstr(err.text, "key"));
    hvi_hs_fini(&other);
}

/* Curve points of small order give a secret that everybody knows: the key alone would
 * carry the connection, without its own secrecy. */
Test(handshake, public_keys_without_a_secret_are_turned_away, .timeout = 10)
{
    static const uint8_t weak[][32] = {
        {0},
        {1},
        {0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3,
         0xfa, 0xf1, 0x9f, 0xc4, 0x6a, 0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32,
         0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00},
    };
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES];
    struct turned_away t;

    start(&hs, hello);
    for (size_t i = 0; i < sizeof weak / sizeof weak[0]; i++) {
        memcpy(hello + 48, weak[i], 32);
        resign(hello);
        cr_assert_eq(serve(&t, channel_key, channel_job, hello), HVD_EAUTH, "point %zu",
                     i);
        cr_assert(untouched(&t));
    }
    hvi_hs_fini(&hs);
}

/* ---- versions */

Test(handshake, version_skew_is_refused_and_both_sides_name_both, .timeout = 10)
{
    struct hvi_hs_client hs;
    struct turned_away t;
    struct hvi_stream stream;
    struct hvi_err err;
    uint8_t hello[HVI_HELLO_BYTES];

    /* the server is of this version, the client of another; its MAC may differ in shape
     */
    start(&hs, hello);
    hello[VERSION_OFFSET] = 7;
    memset(hello + 16, 0, 16);
    memcpy(hello + 16, "9.8.7", 5);
    memset(hello + MAC_OFFSET, 0xee, 32);
    cr_assert_eq(serve(&t, channel_key, channel_job, hello), HVD_EVERSION);
    cr_assert_str_eq(t.err.text,
                     "a peer is hvd 9.8.7 (protocol 7), this side hvd " HVI_VERSION
                     " (protocol 2)");
    cr_assert_eq(t.role, HVI_ROLE_UNSET);
    cr_assert_eq(t.reply[VERSION_OFFSET], HVI_PROTO_VERSION);
    cr_assert_eq(t.reply[10], 0x80 | HVI_ROLE_COORDINATOR);
    for (size_t i = 32; i < HVI_HELLO_BYTES; i++)
        cr_assert_eq(t.reply[i], 0, "a refusal says no more than its version");

    /* the client is of this version, the server of another */
    t.reply[VERSION_OFFSET] = 7;
    memset(t.reply + 16, 0, 16);
    memcpy(t.reply + 16, "9.8.7", 5);
    cr_assert_eq(hvi_hs_client_finish(&hs, t.reply, &stream, &err), HVD_EVERSION);
    cr_assert_not_null(strstr(err.text, "9.8.7 (protocol 7)"), "%s", err.text);
    cr_assert_not_null(strstr(err.text, "hvd " HVI_VERSION " (protocol 2)"), "%s",
                       err.text);
}

Test(handshake, hostile_version_texts_are_shown_escaped, .timeout = 10)
{
    struct hvi_hs_client hs;
    struct turned_away t;
    uint8_t hello[HVI_HELLO_BYTES];

    start(&hs, hello);
    hvi_hs_fini(&hs);
    hello[VERSION_OFFSET] = 9;
    memcpy(hello + 16, "\x1b[2J\n%s%n\xff\xff\xff\xff\xff\xff\xff", 16);
    cr_assert_eq(serve(&t, channel_key, channel_job, hello), HVD_EVERSION);
    cr_assert_not_null(strstr(t.err.text, "\\x1b[2J\\x0a%s%n\\xff"), "%s", t.err.text);
    for (const char *p = t.err.text; *p != '\0'; p++)
        cr_assert(*p >= ' ' && *p <= '~', "byte %d", *p);
}

/* ---- damage */

Test(handshake, a_flip_of_any_bit_of_the_hello_is_noticed, .timeout = 30)
{
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES];
    struct turned_away t;

    start(&hs, hello);
    hvi_hs_fini(&hs);
    for (size_t bit = 0; bit < 8 * HVI_HELLO_BYTES; bit++) {
        size_t byte = bit / 8;
        enum hvd_status want = HVD_EAUTH;
        enum hvd_status got;

        if (byte < 8 || (byte >= 12 && byte < 16))
            want = HVD_EPROTO; /* magic, reserved */
        else if (byte < 10)
            want = HVD_EVERSION;
        hello[byte] ^= (uint8_t)(1u << bit % 8);
        got = serve(&t, channel_key, channel_job, hello);
        hello[byte] ^= (uint8_t)(1u << bit % 8);
        cr_assert_eq(got, want, "bit %zu: %d", bit, got);
        cr_assert(want == HVD_EVERSION || untouched(&t), "bit %zu", bit);
    }
    cr_assert_eq(serve(&t, channel_key, channel_job, hello), HVD_OK, "undamaged");
}

Test(handshake, a_flip_of_any_bit_of_the_reply_is_noticed, .timeout = 30)
{
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES];
    struct turned_away t;
    struct hvi_stream stream;

    start(&hs, hello);
    cr_assert_eq(serve(&t, channel_key, channel_job, hello), HVD_OK);
    for (size_t bit = 0; bit < 8 * HVI_HELLO_BYTES; bit++) {
        struct hvi_hs_client copy = hs;
        uint8_t reply[HVI_HELLO_BYTES];
        enum hvd_status rc;

        memcpy(reply, t.reply, sizeof reply);
        reply[bit / 8] ^= (uint8_t)(1u << bit % 8);
        rc = hvi_hs_client_finish(&copy, reply, &stream, NULL);
        cr_assert(rc == HVD_EAUTH || rc == HVD_EPROTO || rc == HVD_EVERSION,
                  "bit %zu: %d", bit, rc);
    }
    cr_assert_eq(hvi_hs_client_finish(&hs, t.reply, &stream, NULL), HVD_OK,
                 "undamaged");
}

/* The socket code waits for 128 bytes; what it would see of a shorter message is zeros.
 */
Test(handshake, truncated_messages_are_noticed, .timeout = 10)
{
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES];
    struct turned_away good;
    struct hvi_stream stream;

    start(&hs, hello);
    cr_assert_eq(serve(&good, channel_key, channel_job, hello), HVD_OK);
    for (size_t n = 0; n < HVI_HELLO_BYTES; n++) {
        struct hvi_hs_client copy = hs;
        uint8_t cut[HVI_HELLO_BYTES] = {0};
        struct turned_away t;
        enum hvd_status rc;

        memcpy(cut, hello, n);
        rc = serve(&t, channel_key, channel_job, cut);
        cr_assert(rc == HVD_EAUTH || rc == HVD_EPROTO || rc == HVD_EVERSION ||
                      memcmp(cut, hello, sizeof cut) == 0, /* ended in zeros */
                  "hello of %zu bytes: %d", n, rc);
        memset(cut, 0, sizeof cut);
        memcpy(cut, good.reply, n);
        if (memcmp(cut, good.reply, sizeof cut) == 0)
            continue;
        rc = hvi_hs_client_finish(&copy, cut, &stream, NULL);
        cr_assert(rc == HVD_EAUTH || rc == HVD_EPROTO || rc == HVD_EVERSION,
                  "reply of %zu bytes: %d", n, rc);
    }
    hvi_hs_fini(&hs);
}

Test(handshake, random_messages_are_refused, .timeout = 60)
{
    uint64_t state = 1;
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES];

    start(&hs, hello);
    for (long round = noise_rounds(20000, 1000000); round > 0; round--) {
        struct hvi_hs_client copy = hs;
        uint8_t bytes[HVI_HELLO_BYTES];
        struct hvi_stream stream;
        struct turned_away t;

        for (size_t i = 0; i < sizeof bytes; i++)
            bytes[i] = (uint8_t)noise_next(&state);
        if (round % 2 == 0)
            memcpy(bytes, hello, 16); /* past the first look */
        cr_assert_eq(serve(&t, channel_key, channel_job, bytes),
                     round % 2 == 0 ? HVD_EAUTH : HVD_EPROTO);
        cr_assert(untouched(&t));
        cr_assert_neq(hvi_hs_client_finish(&copy, bytes, &stream, NULL), HVD_OK);
    }
    hvi_hs_fini(&hs);
}

/* ---- old messages in new places */

Test(handshake, messages_sent_back_to_their_sender_are_refused, .timeout = 10)
{
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES];
    struct turned_away t;
    struct turned_away back;
    struct hvi_stream stream;

    start(&hs, hello);
    cr_assert_eq(serve(&t, channel_key, channel_job, hello), HVD_OK);
    cr_assert_eq(serve(&back, channel_key, channel_job, t.reply), HVD_EAUTH,
                 "a reply is no hello");
    cr_assert(untouched(&back));
    cr_assert_eq(hvi_hs_client_finish(&hs, hello, &stream, NULL), HVD_EAUTH,
                 "a hello is no reply");
}

Test(handshake, the_reply_to_another_hello_is_refused, .timeout = 10)
{
    struct channel old;
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES];
    struct hvi_stream stream;

    cr_assert_eq(channel_open(&old, HVI_ROLE_WORKER), HVD_OK);
    start(&hs, hello);
    cr_assert_eq(hvi_hs_client_finish(&hs, old.reply, &stream, NULL), HVD_EAUTH);
}

/* A recorded session, played again: the hello is good, but the server's new ephemeral
 * key makes other stream keys, so the recorded first record does not open. */
Test(handshake, a_replayed_session_dies_at_its_first_record, .timeout = 10)
{
    struct channel ch;
    struct hvi_buf recorded = {0};
    struct hvi_buf again = {0};
    struct hvi_buf plain = {0};
    struct turned_away t;

    cr_assert_eq(channel_open(&ch, HVI_ROLE_WORKER), HVD_OK);
    cr_assert_eq(hvi_stream_seal(&ch.client, "HELLO", 5, false, &recorded), HVD_OK);
    cr_assert_eq(
        hvi_buf_append(&again, hvi_buf_peek(&recorded), hvi_buf_size(&recorded)),
        HVD_OK);
    cr_assert_eq(hvi_stream_open(&ch.server, &recorded, &plain, NULL), HVD_OK);

    cr_assert_eq(serve(&t, channel_key, channel_job, ch.hello), HVD_OK);
    cr_assert_neq(memcmp(t.reply, ch.reply, HVI_HELLO_BYTES), 0);
    cr_assert_eq(hvi_stream_open(&t.stream, &again, &plain, NULL), HVD_EAUTH);
    cr_assert(t.stream.broken);
    cr_assert_eq(hvi_buf_size(&plain), 0);
    hvi_buf_fini(&recorded);
    hvi_buf_fini(&again);
    hvi_buf_fini(&plain);
}

/* ---- what it costs and what it needs */

Test(random, fills_all_that_was_asked_for_and_no_more, .timeout = 10)
{
    static const size_t sizes[] = {1, 16, 255, 256, 257, 512, 1000};
    static const uint8_t untouched_tail[24];

    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint8_t bytes[1024] = {0};
        size_t last = sizes[i] < 24 ? 0 : sizes[i] - 24;

        /* one byte is 0 in one of 256 runs, so try until it is not */
        for (int tries = 0; tries < 100 && bytes[last] == 0; tries++)
            cr_assert_eq(hvi_random(bytes, sizes[i]), HVD_OK);
        cr_assert_neq(bytes[last], 0, "%zu bytes: the end was left out", sizes[i]);
        cr_assert_neq(memcmp(bytes, bytes + 512, 12), 0);
        cr_assert_eq(memcmp(bytes + sizes[i], untouched_tail, 24), 0);
    }
}

Test(handshake, allocates_nothing_whatever_comes, .timeout = 10)
{
    struct channel ch;
    struct turned_away t;
    uint8_t key[HVI_KEY_BYTES] = {7};
    size_t before;

    if (!hvi_fault_available())
        cr_skip_test("the sanitizer has its own malloc");
    cr_assert_eq(channel_open(&ch, HVI_ROLE_WORKER), HVD_OK);
    before = hvi_fault_asked_bytes();
    (void)channel_open(&ch, HVI_ROLE_WORKER);
    (void)serve(&t, key, channel_job, ch.hello);
    ch.hello[VERSION_OFFSET] = 9;
    (void)serve(&t, channel_key, channel_job, ch.hello);
    ch.hello[0] = 'h';
    (void)serve(&t, channel_key, channel_job, ch.hello);
    cr_assert_eq(hvi_fault_asked_bytes(), before);
}

Test(handshake, without_random_bytes_nothing_is_sent, .timeout = 10)
{
    static const struct hvi_hs_client wiped;
    struct channel ch;
    struct hvi_hs_client hs;
    uint8_t hello[HVI_HELLO_BYTES] = {0};
    struct turned_away t;
    struct hvi_err err;
    enum hvd_status client;
    enum hvd_status server;

    cr_assert_eq(channel_open(&ch, HVI_ROLE_WORKER), HVD_OK);
    hvi_fault_random(true);
    client = hvi_hs_client_start(&hs, channel_key, channel_job, HVI_ROLE_WORKER, hello,
                                 &err);
    server = serve(&t, channel_key, channel_job, ch.hello);
    hvi_fault_random(false);
    cr_assert_eq(client, HVD_EINTERNAL);
    cr_assert_not_null(strstr(err.text, "random"));
    cr_assert_eq(hello[0], 0);
    cr_assert_eq(memcmp(&hs, &wiped, sizeof hs), 0, "the key stays nowhere");
    cr_assert_eq(server, HVD_EINTERNAL);
    cr_assert(untouched(&t));
}
