/*
 * What a stranger can say before anything is authenticated, and what an insider (who
 * has the key: the MAC is made right here) can say next. First byte: 0 a hello to the
 * server, 1 a reply to the client, +2 with a right MAC. Then up to 128 bytes of the
 * message (zeros follow), then bytes for the stream, which must never open: nobody has
 * its keys.
 */
#include "tests/fuzz/session.h"

#include <sodium.h>

#define MAC_OFFSET 96

static void sign(uint8_t *message, const uint8_t *before)
{
    crypto_generichash_state st;

    crypto_generichash_init(&st, session_key, HVI_KEY_BYTES, 32);
    if (before != NULL)
        crypto_generichash_update(&st, before, HVI_HELLO_BYTES);
    crypto_generichash_update(&st, message, MAC_OFFSET);
    crypto_generichash_final(&st, message + MAC_OFFSET, 32);
}

static bool all_are(const void *data, size_t size, uint8_t value)
{
    const uint8_t *p = data;

    for (size_t i = 0; i < size; i++)
        if (p[i] != value)
            return false;
    return true;
}

static bool is_our_version(const uint8_t *message)
{
    return (message[8] | message[9] << 8) == HVI_PROTO_VERSION;
}

/* Looked at without the code under test. */
static bool well_signed(const uint8_t *message, const uint8_t *before)
{
    uint8_t copy[HVI_HELLO_BYTES];

    memcpy(copy, message, sizeof copy);
    sign(copy, before);
    return memcmp(copy, message, sizeof copy) == 0 &&
           memcmp(message, "HVDHELO\n", 8) == 0 && is_our_version(message) &&
           memcmp(message + 32, session_job, HVI_JOB_ID_BYTES) == 0;
}

static void feed_stream(struct hvi_stream *stream, const uint8_t *data, size_t size)
{
    struct hvi_buf in = {0};
    struct hvi_buf plain = {0};
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    if (hvi_buf_append(&in, data, size) != HVD_OK)
        abort();
    rc = hvi_stream_open(stream, &in, &plain, &err);
    FUZZ_CHECK(rc == HVD_INPROGRESS || rc == HVD_EAUTH || rc == HVD_EPROTO, "%d", rc);
    FUZZ_CHECK(stream->broken == (rc != HVD_INPROGRESS));
    hvi_buf_fini(&in);
    hvi_buf_fini(&plain);
}

static void to_server(const uint8_t *message, const uint8_t *rest, size_t rest_bytes)
{
    uint8_t reply[HVI_HELLO_BYTES];
    struct hvi_stream stream;
    enum hvi_role role = HVI_ROLE_UNSET;
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    memset(reply, 0x5a, sizeof reply);
    memset(&stream, 0x5a, sizeof stream);
    rc = hvi_hs_server(session_key, session_job, HVI_ROLE_COORDINATOR, message, reply,
                       &stream, &role, &err);
    if (rc == HVD_OK) {
        FUZZ_CHECK(well_signed(message, NULL));
        FUZZ_CHECK(role == HVI_ROLE_WORKER || role == HVI_ROLE_AGENT ||
                   role == HVI_ROLE_DATA);
        feed_stream(&stream, rest, rest_bytes);
        return;
    }
    FUZZ_CHECK(rc == HVD_EAUTH || rc == HVD_EPROTO || rc == HVD_EVERSION, "%d", rc);
    FUZZ_CHECK(all_are(&stream, sizeof stream, 0x5a) && role == HVI_ROLE_UNSET);
    fuzz_check_text(err.text, sizeof err.text);
    if (rc == HVD_EVERSION)
        FUZZ_CHECK(!is_our_version(message) && all_are(reply + 32, 96, 0));
    else
        FUZZ_CHECK(all_are(reply, sizeof reply, 0x5a), "it answered");
}

static void to_client(struct hvi_hs_client *hs, const uint8_t *message,
                      const uint8_t *rest, size_t rest_bytes)
{
    bool right = well_signed(message, hs->hello);
    struct hvi_stream stream;
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    memset(&stream, 0x5a, sizeof stream);
    rc = hvi_hs_client_finish(hs, message, &stream, &err);
    FUZZ_CHECK(all_are(hs, sizeof *hs, 0), "the key stays in memory");
    if (rc == HVD_OK) {
        FUZZ_CHECK(right);
        feed_stream(&stream, rest, rest_bytes);
        return;
    }
    FUZZ_CHECK(rc == HVD_EAUTH || rc == HVD_EPROTO || rc == HVD_EVERSION, "%d", rc);
    FUZZ_CHECK(all_are(&stream, sizeof stream, 0x5a));
    fuzz_check_text(err.text, sizeof err.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t message[HVI_HELLO_BYTES] = {0};
    uint8_t hello[HVI_HELLO_BYTES];
    struct hvi_hs_client hs;
    size_t n;

    if (size == 0)
        return 0;
    n = size - 1 < HVI_HELLO_BYTES ? size - 1 : HVI_HELLO_BYTES;
    memcpy(message, data + 1, n);
    session_reset();
    if (hvi_hs_client_start(&hs, session_key, session_job, HVI_ROLE_WORKER, hello,
                            NULL) != HVD_OK)
        abort();
    if ((data[0] & 2) != 0)
        sign(message, (data[0] & 1) != 0 ? hello : NULL);
    if ((data[0] & 1) == 0)
        to_server(message, data + 1 + n, size - 1 - n);
    else
        to_client(&hs, message, data + 1 + n, size - 1 - n);
    hvi_hs_fini(&hs);
    return 0;
}
