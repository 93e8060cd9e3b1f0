/**
 * Mutual authentication by a 32-byte pre-shared key, PROTOCOL.md section 2. Bytes in,
 * bytes out: no sockets, no allocation. Shape: Noise NNpsk0, by libsodium's primitives.
 */
#ifndef HVI_SEC_HANDSHAKE_H
#define HVI_SEC_HANDSHAKE_H

#include <stdint.h>

#include "proto/base/err.h"
#include "proto/sec/stream.h"

#define HVI_PROTO_VERSION 2
#define HVI_KEY_BYTES 32
#define HVI_JOB_ID_BYTES 16
#define HVI_HELLO_BYTES 128

enum hvi_role {
    HVI_ROLE_UNSET = 0,
    HVI_ROLE_WORKER = 1,
    HVI_ROLE_AGENT = 2,
    HVI_ROLE_COORDINATOR = 3,
    HVI_ROLE_DATA = 4
};

/** The client's side between hello and reply. Wipe with hvi_hs_fini(). */
struct hvi_hs_client {
    uint8_t key[HVI_KEY_BYTES];
    uint8_t secret[32]; /* ephemeral */
    uint8_t hello[HVI_HELLO_BYTES];
};

/** Makes the hello to send. HVD_EINTERNAL when the system has no randomness. */
enum hvd_status hvi_hs_client_start(struct hvi_hs_client *hs,
                                    const uint8_t key[HVI_KEY_BYTES],
                                    const uint8_t job_id[HVI_JOB_ID_BYTES],
                                    enum hvi_role role, uint8_t hello[HVI_HELLO_BYTES],
                                    struct hvi_err *err);
/** Checks the reply and keys the stream. HVD_EAUTH: other key or job. HVD_EVERSION: the
 *  text names both versions. Wipes hs. */
enum hvd_status hvi_hs_client_finish(struct hvi_hs_client *hs,
                                     const uint8_t reply[HVI_HELLO_BYTES],
                                     struct hvi_stream *stream, struct hvi_err *err);
void hvi_hs_fini(struct hvi_hs_client *hs);

/**
 * The server's side, whole: checks the hello, makes the reply, keys the stream.
 *
 * Returns  HVD_OK: send reply, go on. HVD_EVERSION: send reply (a refusal), then close.
 *          HVD_EAUTH, HVD_EPROTO: close without a word; reply is not written.
 * The role the client claims is written on HVD_OK.
 */
enum hvd_status hvi_hs_server(const uint8_t key[HVI_KEY_BYTES],
                              const uint8_t job_id[HVI_JOB_ID_BYTES], enum hvi_role own,
                              const uint8_t hello[HVI_HELLO_BYTES],
                              uint8_t reply[HVI_HELLO_BYTES], struct hvi_stream *stream,
                              enum hvi_role *peer_role, struct hvi_err *err);

/** Random bytes from the system; HVD_EINTERNAL when there are none. */
enum hvd_status hvi_random(void *out, size_t size_bytes);
/** Overwrites; never optimized away. */
void hvi_wipe(void *data, size_t size_bytes);

/** Reads a key file: exactly 32 raw bytes or 64 hex digits (a newline may follow),
 *  owned by this user, no rights for others (0600 or less), a regular file, no link. */
enum hvd_status hvi_key_load(const char *path, uint8_t key[HVI_KEY_BYTES],
                             struct hvi_err *err);
/** Makes a 0600 file with a fresh key (hex); HVD_EINVAL when the file exists. */
enum hvd_status hvi_key_create(const char *path, uint8_t key[HVI_KEY_BYTES],
                               struct hvi_err *err);
/** Job id when none was given: derived from the key, so that both sides agree. */
void hvi_key_job_id(const uint8_t key[HVI_KEY_BYTES], uint8_t job_id[HVI_JOB_ID_BYTES]);

#endif
