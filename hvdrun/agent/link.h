/** The agent's connection to the coordinator: authenticated, sealed, heartbeats. */
#ifndef HVI_AGENT_LINK_H
#define HVI_AGENT_LINK_H

#include <stdbool.h>
#include <uv.h>

#include "proto/msg/msg.h"
#include "proto/sec/handshake.h"
#include "proto/sec/stream.h"

#define HVI_LINK_HEARTBEAT_MS 2000
#define HVI_LINK_TICK_MS 500    /* how exactly the lease is watched */
#define HVI_LINK_LEASE_MS 15000 /* unless HVD_LEASE_SECONDS says otherwise */
#define HVI_LINK_CONNECT_MS 5000

struct hvi_link_ops {
    void (*on_up)(void *data); /* authenticated; messages may be sent */
    void (*on_frame)(void *data, const struct hvi_msg *msg);
    /** Once, also when it never came up; the link is closed then. lease: the connection
     *  was there, but nothing came through it for the lease. */
    void (*on_down)(void *data, bool lease, const char *why);
};

struct hvi_agent_link {
    const struct hvi_link_ops *ops;
    void *data;
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_pipe_t pipe;
        uv_tcp_t tcp;
    } u;
    uv_connect_t connect_req;
    uv_timer_t timer; /* first the connect timeout, then the tick */
    struct hvi_hs_client hs;
    struct hvi_stream sec;
    struct hvi_buf rx, plain, frame, tx, writing; /* tx: waits for what is writing */
    uv_write_t write_req;
    bool open, up, timer_open, write_busy;
    int ticks, silent_ticks;
    int64_t lease_ms;
};

/** endpoint: "unix:PATH" or "tcp:ADDRESS:PORT" (numeric). HVD_EINVAL, HVD_EIO. A
 * failure returned here is not told by on_down. */
enum hvd_status hvi_link_open(struct hvi_agent_link *l, uv_loop_t *loop,
                              const char *endpoint, const uint8_t *key,
                              const uint8_t *job_id, const struct hvi_link_ops *ops,
                              void *data, struct hvi_err *err);
/** How long the coordinator may be silent; HVI_LINK_LEASE_MS unless set. */
void hvi_link_set_lease(struct hvi_agent_link *l, int64_t lease_ms);
/** Silent when the link is not up. */
void hvi_link_send(struct hvi_agent_link *l, uint32_t type, const void *body);
/** Says goodbye (FINAL) when up, and closes. */
void hvi_link_close(struct hvi_agent_link *l);
void hvi_link_fini(struct hvi_agent_link *l); /* after the handles are closed */

#endif
