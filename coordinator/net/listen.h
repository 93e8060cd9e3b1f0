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
    bool open;    /* the handle is in the loop */
    bool waiting; /* the caller's: it holds one more connection */
};

#define HVI_LISTENERS_MAX 9 /* addresses of one endpoint */

struct hvi_listeners {
    struct hvi_listener one[HVI_LISTENERS_MAX];
    char endpoint
        [320]; /* of the first: "unix:PATH", "tcp:ADDRESS:PORT" with the real port */
};

/**
 * @param where  "unix:PATH", "[tcp:]ADDRESS[,ADDRESS...]:PORT"; of several addresses each
 *               is numeric, and gets a listener; all have one port
 *
 * On failure hvi_listen_close() it all the same.
 */
enum hvd_status hvi_listen(struct hvi_listeners *l, uv_loop_t *loop, const char *where,
                           uv_connection_cb cb, void *data, struct hvi_err *err);
/** Those that are open; again is harmless. The memory stays until the loop has run. */
void hvi_listen_close(struct hvi_listeners *l);

#endif
