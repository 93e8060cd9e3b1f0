/**
 * Frames over a pair of pipe ends: hvdrun and its agents, hvdrun and the coordinator.
 * Writes are gathered: what is sent while a write is under way goes out in one next
 * write.
 */
#ifndef HVI_HVDRUN_CHAN_H
#define HVI_HVDRUN_CHAN_H

#include <stdbool.h>
#include <uv.h>

#include "proto/msg/msg.h"

#define HVI_CHAN_BANNER_BYTES (64 * 1024)

struct hvi_chan;

struct hvi_chan_ops {
    /** body belongs to the channel and is freed on return. */
    void (*on_frame)(struct hvi_chan *c, const struct hvi_msg *msg);
    /** Nothing more will come: end of file (err NULL), or a damaged frame or read
     * error. Once. Not after hvi_chan_close(). */
    void (*on_end)(struct hvi_chan *c, const char *err);
    /** Optional: everything sent so far has been written. */
    void (*on_drain)(struct hvi_chan *c);
};

struct hvi_chan {
    const struct hvi_chan_ops *ops;
    void *data; /* the owner's */
    uv_pipe_t in, out;
    uv_write_t write_req;
    struct hvi_buf rx, tx, writing;
    uint32_t first_type; /* still awaited: what comes before it is skipped */
    size_t skipped;      /* so far */
    char banner[256];    /* the end of what was skipped, NUL terminated */
    bool in_open, out_open, write_busy, ended, out_ending;
};

/** Takes both descriptors (also on failure) and starts reading. */
enum hvd_status hvi_chan_open(struct hvi_chan *c, uv_loop_t *loop, int read_fd,
                              int write_fd, const struct hvi_chan_ops *ops, void *data,
                              struct hvi_err *err);
/**
 * What comes before the first frame, which is of this type, is not ours: an rc file or
 * a banner printed it. It is skipped, up to HVI_CHAN_BANNER_BYTES. Call right after
 * hvi_chan_open().
 */
void hvi_chan_skip_banner(struct hvi_chan *c, uint32_t type);
/** How much of data comes before a frame of this type; found: it begins there, else
 * that much cannot be the beginning of one. Pure. */
size_t hvi_chan_banner(const uint8_t *data, size_t size_bytes, uint32_t type,
                       bool *found);
/** Queues one message. Silent when the other side is gone (on_end tells). HVD_ELIMIT:
 *  larger than a frame; HVD_ENOMEM. Never blocks. */
enum hvd_status hvi_chan_send(struct hvi_chan *c, uint32_t type, const void *body);
/** As hvi_chan_send, for whole frames made before. */
enum hvd_status hvi_chan_send_frames(struct hvi_chan *c, const struct hvi_buf *frames);
/** Bytes sent and not yet written. */
size_t hvi_chan_backlog(const struct hvi_chan *c);
/** Closes the sending side after what is queued; reading goes on. */
void hvi_chan_end_output(struct hvi_chan *c);
/** Closes both; handles are gone after the loop has run again. The struct must live
 * until then. Safe on a zeroed or closed channel. */
void hvi_chan_close(struct hvi_chan *c);
/** Frees buffers; after the handles are closed. */
void hvi_chan_fini(struct hvi_chan *c);

#endif
