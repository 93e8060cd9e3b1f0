/*
 * Happy path: the client sends a hello with an ephemeral key and a MAC under the job's
 * key; the server checks it, answers with its own ephemeral key and a MAC over both,
 * and both derive two stream keys from the X25519 secret, the job's key and all that
 * was said. The client's first record proves that it was there now and did not replay a
 * hello. Failure paths: a hello that is not ours or whose MAC is wrong gets no answer.
 * Another protocol version gets a refusal of fixed size, before the MAC is looked at,
 * which the client turns into a text that names both versions. Nothing is allocated.
 */
#include "proto/sec/handshake.h"

#include <pthread.h>
#include <sodium.h>
#include <stdbool.h>
#include <string.h>
#include <sys/random.h>

#include "proto/base/assert.h"
#include "proto/base/buf.h"

#define MAGIC_BYTES 8
#define TEXT_BYTES 16
#define JOB_OFFSET 32
#define MAC_OFFSET 96
#define MAC_BYTES 32
#define REFUSAL 0x80

_Static_assert(crypto_scalarmult_BYTES == 32,
               "the hello's key field holds an X25519 key");
_Static_assert(crypto_secretstream_xchacha20poly1305_KEYBYTES == 32, "stream key size");
_Static_assert(MAC_OFFSET + MAC_BYTES == HVI_HELLO_BYTES, "the MAC is last");

static const uint8_t magic[MAGIC_BYTES] = {'H', 'V', 'D', 'H', 'E', 'L', 'O', '\n'};

/* ---- the library, once */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static bool usable;

/* Asks the kernel first: libsodium ends the process when there is no randomness. */
static void start_library(void)
{
    uint8_t probe[16];

    usable = getrandom(probe, sizeof probe, 0) == (ssize_t)sizeof probe &&
             sodium_init() >= 0;
}

static bool library_ready(void)
{
    return pthread_once(&once, start_library) == 0 && usable;
}

enum hvd_status hvi_random(void *out, size_t size_bytes)
{
    uint8_t *to = out;

    if (!library_ready())
        return HVD_EINTERNAL;
    while (size_bytes > 0) {
        size_t want =
            size_bytes < 256 ? size_bytes : 256; /* never cut short, getrandom(2) */

        if (getrandom(to, want, 0) != (ssize_t)want)
            return HVD_EINTERNAL;
        to += want;
        size_bytes -= want;
    }
    return HVD_OK;
}

void hvi_wipe(void *data, size_t size_bytes)
{
    sodium_memzero(data, size_bytes);
}

/* ---- the 128 bytes */

struct hello {
    bool ours; /* magic and reserved bytes are right */
    uint16_t version;
    uint16_t role;                 /* with REFUSAL */
    char text[TEXT_BYTES * 4 + 1]; /* escaped */
    uint8_t job_id[HVI_JOB_ID_BYTES];
    uint8_t public_key[32];
};

static void hello_get(const uint8_t bytes[HVI_HELLO_BYTES], struct hello *h)
{
    char text[TEXT_BYTES];
    uint8_t got[MAGIC_BYTES];
    struct hvi_cursor c;

    hvi_cursor_init_ro(&c, bytes, HVI_HELLO_BYTES);
    hvi_get_bytes(&c, got, sizeof got);
    h->version = hvi_get_u16(&c);
    h->role = hvi_get_u16(&c);
    h->ours = memcmp(got, magic, sizeof magic) == 0 && hvi_get_u32(&c) == 0;
    hvi_cursor_init_ro(&c, bytes + 16, HVI_HELLO_BYTES - 16);
    hvi_get_bytes(&c, text, sizeof text);
    hvi_escape(h->text, sizeof h->text, text, strnlen(text, sizeof text));
    hvi_get_bytes(&c, h->job_id, sizeof h->job_id);
    hvi_get_bytes(&c, h->public_key, sizeof h->public_key);
}

/* All but the MAC, which stays zero. */
static void hello_put(uint8_t bytes[HVI_HELLO_BYTES], uint32_t role,
                      const uint8_t *job_id, const uint8_t *public_key,
                      const uint8_t *random)
{
    static const char text[TEXT_BYTES] = HVI_VERSION;
    struct hvi_cursor c;

    memset(bytes, 0, HVI_HELLO_BYTES);
    hvi_cursor_init(&c, bytes, HVI_HELLO_BYTES);
    hvi_put_bytes(&c, magic, sizeof magic);
    hvi_put_u16(&c, HVI_PROTO_VERSION);
    hvi_put_u16(&c, (uint16_t)role);
    hvi_put_u32(&c, 0);
    hvi_put_bytes(&c, text, sizeof text);
    if (job_id == NULL) /* a refusal says no more */
        return;
    hvi_put_bytes(&c, job_id, HVI_JOB_ID_BYTES);
    hvi_put_bytes(&c, public_key, 32);
    hvi_put_bytes(&c, random, 16);
}

static bool role_valid(uint32_t role)
{
    return role >= HVI_ROLE_WORKER && role <= HVI_ROLE_DATA;
}

/* MAC over the hello, and for a reply over the reply's own first 96 bytes too. */
static void make_mac(const uint8_t key[HVI_KEY_BYTES], const uint8_t *before,
                     const uint8_t *message, uint8_t out[MAC_BYTES])
{
    crypto_generichash_state st;

    crypto_generichash_init(&st, key, HVI_KEY_BYTES, MAC_BYTES);
    if (before != NULL)
        crypto_generichash_update(&st, before, HVI_HELLO_BYTES);
    crypto_generichash_update(&st, message, MAC_OFFSET);
    crypto_generichash_final(&st, out, MAC_BYTES);
    hvi_wipe(&st, sizeof st);
}

static bool mac_right(const uint8_t key[HVI_KEY_BYTES], const uint8_t *before,
                      const uint8_t *message)
{
    uint8_t want[MAC_BYTES];
    bool right;

    make_mac(key, before, message, want);
    right = sodium_memcmp(want, message + MAC_OFFSET, MAC_BYTES) == 0;
    hvi_wipe(want, sizeof want);
    return right;
}

/* ---- keys */

static enum hvd_status make_ephemeral(uint8_t secret[32], uint8_t public_key[32],
                                      uint8_t random[16], struct hvi_err *err)
{
    if (hvi_random(secret, 32) != HVD_OK || hvi_random(random, 16) != HVD_OK)
        return hvi_fail(err, HVD_EINTERNAL, "the system has no random bytes");
    crypto_scalarmult_base(public_key, secret);
    return HVD_OK;
}

/* false: the peer's public key is one of the few that give a known secret. */
static bool derive(struct hvi_stream *stream, bool client,
                   const uint8_t key[HVI_KEY_BYTES], const uint8_t secret[32],
                   const uint8_t peer_public[32], const uint8_t *hello,
                   const uint8_t *reply)
{
    crypto_generichash_state st;
    uint8_t shared[32];
    uint8_t both[64]; /* client to server, server to client */
    bool good = crypto_scalarmult(shared, secret, peer_public) == 0;

    crypto_generichash_init(&st, key, HVI_KEY_BYTES, sizeof both);
    crypto_generichash_update(&st, shared, sizeof shared);
    crypto_generichash_update(&st, hello, HVI_HELLO_BYTES);
    crypto_generichash_update(&st, reply, HVI_HELLO_BYTES);
    crypto_generichash_final(&st, both, sizeof both);
    if (good) {
        memset(stream, 0, sizeof *stream);
        memcpy(stream->push_key, both + (client ? 0 : 32), 32);
        memcpy(stream->pull_key, both + (client ? 32 : 0), 32);
    }
    hvi_wipe(&st, sizeof st);
    hvi_wipe(shared, sizeof shared);
    hvi_wipe(both, sizeof both);
    return good;
}

/* ---- the two sides */

enum hvd_status hvi_hs_client_start(struct hvi_hs_client *hs,
                                    const uint8_t key[HVI_KEY_BYTES],
                                    const uint8_t job_id[HVI_JOB_ID_BYTES],
                                    enum hvi_role role, uint8_t hello[HVI_HELLO_BYTES],
                                    struct hvi_err *err)
{
    uint8_t public_key[32];
    uint8_t random[16];
    enum hvd_status rc;

    HVI_ASSERT(role_valid(role));
    memset(hs, 0, sizeof *hs);
    rc = make_ephemeral(hs->secret, public_key, random, err);
    if (rc != HVD_OK) {
        hvi_hs_fini(hs);
        return rc;
    }
    memcpy(hs->key, key, HVI_KEY_BYTES);
    hello_put(hs->hello, role, job_id, public_key, random);
    make_mac(key, NULL, hs->hello, hs->hello + MAC_OFFSET);
    memcpy(hello, hs->hello, HVI_HELLO_BYTES);
    return HVD_OK;
}

enum hvd_status hvi_hs_client_finish(struct hvi_hs_client *hs,
                                     const uint8_t reply[HVI_HELLO_BYTES],
                                     struct hvi_stream *stream, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    struct hello h;

    HVI_ASSERT(hs != NULL);
    hello_get(reply, &h);
    if (!h.ours)
        rc =
            hvi_fail(err, HVD_EPROTO, "the other side does not speak the hvd protocol");
    else if (h.version != HVI_PROTO_VERSION)
        rc = hvi_fail(
            err, HVD_EVERSION,
            "this side is hvd %s (protocol %d), the other side hvd %s (protocol "
            "%u): install one version on all hosts",
            HVI_VERSION, HVI_PROTO_VERSION, h.text, h.version);
    else if (!role_valid(h.role))
        rc = hvi_fail(err, HVD_EPROTO, "the other side's handshake is damaged");
    else if (!mac_right(hs->key, hs->hello, reply) ||
             sodium_memcmp(h.job_id, hs->hello + JOB_OFFSET, sizeof h.job_id) != 0 ||
             !derive(stream, true, hs->key, hs->secret, h.public_key, hs->hello, reply))
        rc = hvi_fail(err, HVD_EAUTH, "the other side does not have this job's key");
    hvi_hs_fini(hs);
    return rc;
}

void hvi_hs_fini(struct hvi_hs_client *hs)
{
    hvi_wipe(hs, sizeof *hs);
}

static enum hvd_status check_hello(const struct hello *h, const uint8_t *hello,
                                   const uint8_t *key, const uint8_t *job_id,
                                   struct hvi_err *err)
{
    if (!mac_right(key, NULL, hello))
        return hvi_fail(err, HVD_EAUTH,
                        "a peer without this job's key was turned away");
    if (sodium_memcmp(h->job_id, job_id, HVI_JOB_ID_BYTES) != 0)
        return hvi_fail(err, HVD_EAUTH, "a peer of another job was turned away");
    if (!role_valid(h->role) || h->role == HVI_ROLE_COORDINATOR)
        return hvi_fail(err, HVD_EPROTO, "a peer of unknown role %u", h->role);
    return HVD_OK;
}

enum hvd_status hvi_hs_server(const uint8_t key[HVI_KEY_BYTES],
                              const uint8_t job_id[HVI_JOB_ID_BYTES], enum hvi_role own,
                              const uint8_t hello[HVI_HELLO_BYTES],
                              uint8_t reply[HVI_HELLO_BYTES], struct hvi_stream *stream,
                              enum hvi_role *peer_role, struct hvi_err *err)
{
    uint8_t answer[HVI_HELLO_BYTES];
    uint8_t secret[32];
    uint8_t public_key[32];
    uint8_t random[16];
    enum hvd_status rc;
    struct hello h;

    HVI_ASSERT(role_valid(own));
    hello_get(hello, &h);
    if (!h.ours)
        return hvi_fail(err, HVD_EPROTO, "a peer does not speak the hvd protocol");
    if (h.version != HVI_PROTO_VERSION) {
        hello_put(reply, (uint32_t)own | REFUSAL, NULL, NULL, NULL);
        return hvi_fail(
            err, HVD_EVERSION,
            "a peer is hvd %s (protocol %u), this side hvd %s (protocol %d)", h.text,
            h.version, HVI_VERSION, HVI_PROTO_VERSION);
    }
    if (!library_ready())
        return hvi_fail(err, HVD_EINTERNAL, "the system has no random bytes");
    rc = check_hello(&h, hello, key, job_id, err);
    if (rc != HVD_OK)
        return rc;
    rc = make_ephemeral(secret, public_key, random, err);
    if (rc != HVD_OK)
        goto done;
    hello_put(answer, own, job_id, public_key, random);
    make_mac(key, hello, answer, answer + MAC_OFFSET);
    if (!derive(stream, false, key, secret, h.public_key, hello, answer)) {
        rc = hvi_fail(err, HVD_EAUTH, "a peer sent a public key without a secret");
        goto done;
    }
    memcpy(reply, answer, HVI_HELLO_BYTES);
    *peer_role = (enum hvi_role)h.role;
done:
    hvi_wipe(secret, sizeof secret);
    return rc;
}

void hvi_key_job_id(const uint8_t key[HVI_KEY_BYTES], uint8_t job_id[HVI_JOB_ID_BYTES])
{
    static const uint8_t what[] = "hvd job id";

    crypto_generichash(job_id, HVI_JOB_ID_BYTES, what, sizeof what - 1, key,
                       HVI_KEY_BYTES);
}
