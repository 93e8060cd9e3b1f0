/** Two ends of a connection, keyed by a whole handshake. */
#ifndef HVI_TEST_CHANNEL_H
#define HVI_TEST_CHANNEL_H

#include <string.h>

#include "proto/sec/handshake.h"

static const uint8_t channel_key[HVI_KEY_BYTES] = {1, 2, 3, 4};
static const uint8_t channel_job[HVI_JOB_ID_BYTES] = {9, 8, 7};

/* All that one connection says before its first record. */
struct channel {
    struct hvi_stream client, server;
    uint8_t hello[HVI_HELLO_BYTES], reply[HVI_HELLO_BYTES];
    enum hvi_role role; /* what the server believes the client to be */
};

static inline enum hvd_status channel_open(struct channel *ch, enum hvi_role role)
{
    struct hvi_hs_client hs;
    enum hvd_status rc;

    memset(ch, 0, sizeof *ch);
    rc = hvi_hs_client_start(&hs, channel_key, channel_job, role, ch->hello, NULL);
    if (rc == HVD_OK)
        rc = hvi_hs_server(channel_key, channel_job, HVI_ROLE_COORDINATOR, ch->hello,
                           ch->reply, &ch->server, &ch->role, NULL);
    if (rc == HVD_OK)
        rc = hvi_hs_client_finish(&hs, ch->reply, &ch->client, NULL);
    return rc;
}

#endif
