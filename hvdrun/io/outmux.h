/**
 * Joins the output of all ranks so that lines stay whole: bytes of a rank go in, whole
 * lines with their prefix come out. Pure: the caller writes the sinks and tells the
 * time.
 *
 * A line ends at a newline or carriage return. An unfinished line is held for a second
 * or 64 KiB, then shown as it is (a prompt, a row of dots); when somebody else's line
 * must follow it, it is closed with a backslash and a newline.
 */
#ifndef HVI_HVDRUN_OUTMUX_H
#define HVI_HVDRUN_OUTMUX_H

#include <stdint.h>

#include "hvdrun/cli/opts.h"
#include "proto/base/buf.h"

#define HVI_OUTMUX_HOLD_MS 1000
#define HVI_OUTMUX_LINE_BYTES (64 * 1024)

struct hvi_outmux_stream; /* one rank's stdout or stderr */

/** Where lines come out: take the bytes of `text`, consume them there. */
struct hvi_outmux_sink {
    struct hvi_buf text;
    struct hvi_outmux_stream *open; /* whose unfinished line stands at the end */
};

struct hvi_outmux {
    int np;
    enum hvi_prefix prefix;
    bool one_sink;     /* both streams of all ranks go to sink[0] */
    const char *stamp; /* put before prefixes; NULL: none. Borrowed */
    const char *(*host)(const void *arg, int rank); /* PREFIX_HOST: the rank's host */
    const void *host_arg;
    bool color;                     /* prefixes in a color of the rank, for a tty */
    bool merge;                     /* what ranks write to stderr comes out as stdout */
    bool *hidden;                   /* [np] ranks not shown; NULL: none. Borrowed */
    struct hvi_outmux_sink sink[2]; /* stdout, stderr */
    struct hvi_outmux_stream *stream; /* [2 * np] */
    int held;                         /* streams with an unfinished line */
};

/** one_sink: stdout and stderr are the same file or terminal. HVD_ENOMEM. */
enum hvd_status hvi_outmux_init(struct hvi_outmux *m, int np, enum hvi_prefix prefix,
                                bool one_sink);
void hvi_outmux_fini(struct hvi_outmux *m);

/** Bytes of a rank. stream: 1 stdout, 2 stderr. HVD_ENOMEM. */
enum hvd_status hvi_outmux_feed(struct hvi_outmux *m, int rank, int stream,
                                const void *data, size_t size_bytes, int64_t now_ms);
/** The stream has ended: its unfinished line is completed. */
enum hvd_status hvi_outmux_end(struct hvi_outmux *m, int rank, int stream);
/**
 * Shows lines held too long. Returns milliseconds until it wants to be called again,
 * -1: not before something is fed.
 *
 * @param may_show  false while the sinks are behind: a line may then be unfinished only
 *                  because we hold its writer back, so its time starts anew
 */
int64_t hvi_outmux_tick(struct hvi_outmux *m, int64_t now_ms, bool may_show);
/** A line of our own (without its newline) to the stderr side. */
enum hvd_status hvi_outmux_say(struct hvi_outmux *m, const char *line);

#endif
