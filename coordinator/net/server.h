/**
 * The coordinator's network: listens, feeds the core with events, performs its actions.
 * One thread, one libuv loop.
 */
#ifndef HVI_COORDINATOR_NET_SERVER_H
#define HVI_COORDINATOR_NET_SERVER_H

#include <uv.h>

#include "coordinator/core/core.h"
#include "proto/sec/handshake.h"

struct hvi_server;

struct hvi_server_ops {
    /** A note of the core. rank: of the plan, -1 where it means nothing. */
    void (*on_note)(void *data, enum hvi_note_kind kind, int32_t rank,
                    const char *text);
    /** Over: status is the core's. Once. Then call hvi_server_close(). */
    void (*on_finished)(void *data, int status);
};

/** config, key and job_id are copied. HVD_ENOMEM. */
enum hvd_status hvi_server_new(uv_loop_t *loop, const struct hvi_core_config *config,
                               const uint8_t key[HVI_KEY_BYTES],
                               const uint8_t job_id[HVI_JOB_ID_BYTES],
                               const struct hvi_server_ops *ops, void *data,
                               struct hvi_server **out, struct hvi_err *err);
/**
 * Start listening.
 *
 * @param where  "unix:PATH", "tcp:ADDRESS:PORT" or "ADDRESS:PORT"; port 0: any. An
 * empty address: all of this machine's.
 *
 * Returns  HVD_EINVAL (not an endpoint), HVD_EIO (in use, not permitted); worded.
 */
enum hvd_status hvi_server_listen(struct hvi_server *s, const char *where,
                                  struct hvi_err *err);
/** Where it listens, as a worker's HVD_COORDINATOR takes it. Borrowed. */
const char *hvi_server_endpoint(const struct hvi_server *s);
/** Ends the job: CLOSED to all ranks with this cause, then on_finished. */
void hvi_server_stop(struct hvi_server *s, const char *cause);
/** Closes all handles; run the loop once more, then hvi_server_free(). */
void hvi_server_close(struct hvi_server *s);
void hvi_server_free(struct hvi_server *s); /* NULL allowed */

#endif
