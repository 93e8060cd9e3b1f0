/**
 * One accepted connection: handshake, sealed records, frames in, frames out. Knows
 * nothing of what frames mean. Life:
 *
 *   HELLO -128 bytes, right key-> PROOF -first record opens-> OPEN -> ENDING -> CLOSED
 *
 * HELLO and PROOF are *fresh*: nothing of the peer is acted on, and the server bounds
 * their number and time. ENDING: what is queued is still written, what comes is
 * ignored.
 */
#ifndef HVI_COORDINATOR_NET_CONN_H
#define HVI_COORDINATOR_NET_CONN_H

#include <uv.h>

#include "proto/base/hash.h"
#include "proto/base/list.h"
#include "proto/sec/handshake.h"

#define HVI_NET_QUEUE_MAX                                                              \
    (5u * 1024 * 1024)                /* queued to one peer: 4 MiB and a frame         \
                                       */
#define HVI_NET_DROP_AT (256u * 1024) /* droppable frames go no further */

enum hvi_net_state {
    HVI_NET_UNSET = 0,
    HVI_NET_HELLO,
    HVI_NET_PROOF,
    HVI_NET_OPEN,
    HVI_NET_ENDING,
    HVI_NET_CLOSED
};

struct hvi_net_conn;

struct hvi_net_ops {
    /** The hello is right: PROOF. It may be a replay. Once. */
    void (*on_hello)(struct hvi_net_conn *c);
    /** The peer has proven the key; frames follow. Once. */
    void (*on_open)(struct hvi_net_conn *c);
    /** A whole frame; payload is borrowed. May end the connection. */
    void (*on_frame)(struct hvi_net_conn *c, uint32_t type, const uint8_t *payload,
                     size_t size_bytes);
    /** Nothing more will come. clean: the peer sent FINAL. why NULL: end of file. Once,
     *  not after hvi_net_end(). May come from inside hvi_net_send(). */
    void (*on_end)(struct hvi_net_conn *c, bool clean, const char *why);
    /** All is written and the peer has ended too, or the state became CLOSED; call
     *  hvi_net_close(). */
    void (*on_done)(struct hvi_net_conn *c);
    /** The handle is closed: free c with hvi_net_free(). */
    void (*on_closed)(struct hvi_net_conn *c);
};

struct hvi_net_conn {
    union {
        uv_handle_t handle;
        uv_stream_t stream;
        uv_tcp_t tcp;
        uv_pipe_t pipe;
    } u;
    const struct hvi_net_ops *ops;
    void *owner;
    const uint8_t *key, *job_id; /* borrowed */
    uint64_t id;
    enum hvi_net_state state;
    enum hvi_role role; /* of the peer, from PROOF on */
    char peer[80];      /* for logs */
    uint8_t source[16]; /* address, of IPv6 the network; equal: of one machine */
    uint8_t hello[HVI_HELLO_BYTES];
    size_t nhello;
    struct hvi_stream sec;
    struct hvi_buf rx, plain, tx, writing;
    uv_write_t write_req;
    uv_shutdown_t shutdown_req;
    bool write_busy, shut, peer_ended, told;
    bool deaf; /* it has hung up: nothing is written any more */
    /* the server's */
    int64_t since_ms;     /* entered the list it is in */
    struct hvi_link list; /* fresh, proving, ending */
    struct hvi_link dirty, ended;
    bool end_clean;
    char *end_text;
    UT_hash_handle hh;
};

/** Takes the next connection of a listener and starts reading. On failure everything of
 *  it is gone but c, which on_closed hands back later. HVD_EIO, HVD_EAUTH (another
 * user). */
enum hvd_status hvi_net_accept(struct hvi_net_conn *c, uv_stream_t *listener,
                               struct hvi_err *err);
/** Takes what has come of its hello already, without waiting for the loop. */
void hvi_net_read_now(struct hvi_net_conn *c);
/** Queues one frame (whole bytes, with header); hvi_net_flush() writes. last: FINAL,
 * then ENDING. droppable: silently dropped when the peer is slow. */
void hvi_net_send(struct hvi_net_conn *c, const struct hvi_buf *frame, bool last,
                  bool droppable);
void hvi_net_flush(struct hvi_net_conn *c);
/** No more events of it; what is queued is written, with FINAL behind. */
void hvi_net_end(struct hvi_net_conn *c);
/** At once. */
void hvi_net_close(struct hvi_net_conn *c);
/** The same, so that the peer can tell it from a refusal: TCP's RST. */
void hvi_net_turn_away(struct hvi_net_conn *c);
void hvi_net_free(struct hvi_net_conn *c); /* after on_closed */

#endif
