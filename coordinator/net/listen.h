/** Binding a listener to an endpoint named by text. */
#ifndef HVI_COORDINATOR_NET_LISTEN_H
#define HVI_COORDINATOR_NET_LISTEN_H

#include <stdbool.h>
#include <uv.h>

#include "proto/base/err.h"

#define HVI_LISTEN_BACKLOG 512

struct hvi_listener {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } u;
    bool open;          /* the handle is in the loop */
    char endpoint[320]; /* "unix:PATH", "tcp:ADDRESS:PORT" with the real port */
};

/** l->u.handle.data is left to the caller. On failure close it all the same, if open. */
enum hvd_status hvi_listen(struct hvi_listener *l, uv_loop_t *loop, const char *where,
                           uv_connection_cb cb, void *data, struct hvi_err *err);

#endif
