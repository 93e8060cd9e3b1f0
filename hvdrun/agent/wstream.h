/** A worker's stdout or stderr (towards hvdrun), and its stdin (from hvdrun), with the
 *  flow control of PROTOCOL.md: OUTPUT, OUTPUT_ACK, STDIN_DATA. */
#ifndef HVI_AGENT_WSTREAM_H
#define HVI_AGENT_WSTREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "hvdrun/job/chan.h"

#define HVI_OUTPUT_FRAME_BYTES (64 * 1024)
#define HVI_OUTPUT_WINDOW_BYTES (1024 * 1024) /* unacknowledged, a stream */
#define HVI_CHAN_HIGH_BYTES (4 * 1024 * 1024) /* queued to hvdrun: reading pauses */
#define HVI_STDIN_WINDOW_BYTES (256 * 1024)

struct hvi_wout {
    struct hvi_chan *chan;
    int rank;
    uint32_t stream; /* 1 stdout, 2 stderr */
    uv_pipe_t pipe;
    uint64_t unacked, window_bytes;
    uint64_t left_after_exit; /* bytes still taken once the worker has ended */
    bool open, reading, exited, got_data;
    void (*on_end)(void *data); /* once: the end has been sent */
    void *data;
};

/** Takes fd, reads it. HVD_EIO. */
enum hvd_status hvi_wout_open(struct hvi_wout *o, uv_loop_t *loop, int fd,
                              struct hvi_chan *chan, int rank, uint32_t stream,
                              uint64_t window_bytes, void (*on_end)(void *), void *data,
                              struct hvi_err *err);
void hvi_wout_ack(struct hvi_wout *o, uint64_t bytes);
/** Reads on if it may: call when the channel has drained. */
void hvi_wout_resume(struct hvi_wout *o);
/** The worker has ended: what its pipe holds is still read, no more. */
void hvi_wout_exited(struct hvi_wout *o);
/** Called now and then after the exit: ends the stream when nothing came since the last
 *  call although it was being read (a descendant that left the process group holds it).
 */
void hvi_wout_linger(struct hvi_wout *o);

struct hvi_win {
    struct hvi_chan *chan;
    int rank;
    uv_pipe_t pipe;
    bool open, ending;
    unsigned writes; /* under way */
};

enum hvd_status hvi_win_open(struct hvi_win *w, uv_loop_t *loop, int fd,
                             struct hvi_chan *chan, int rank, struct hvi_err *err);
/** size 0: end of input. Acknowledged when the worker's pipe has taken it. */
void hvi_win_write(struct hvi_win *w, const void *data, size_t size_bytes);
void hvi_win_close(struct hvi_win *w);

#endif
