/** Writing the joined output to stdout and stderr without ever blocking the loop: a
 * thread for each descriptor does the write, one at a time, so the order stays. */
#ifndef HVI_HVDRUN_SINK_H
#define HVI_HVDRUN_SINK_H

#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

#include "hvdrun/io/aside.h"
#include "proto/base/buf.h"

struct hvi_sink {
    struct hvi_aside aside;
    uv_timer_t retry; /* the descriptor is non-blocking and full */
    int fd;
    struct hvi_buf *from; /* borrowed: text to come */
    struct hvi_buf writing;
    ssize_t result; /* of the last write; negative: -errno */
    bool busy, broken, open;
    int error;           /* of the write that broke it: an errno, or 0 */
    uint64_t lost_bytes; /* that could not be written */
    void (*on_written)(void *data);
    void *data;
};

/** HVD_ELIMIT. Without it, and where its thread, which the first text makes, is refused,
 * each flush writes at once, and may block. */
enum hvd_status hvi_sink_init(struct hvi_sink *s, uv_loop_t *loop, int fd,
                              struct hvi_buf *from, void (*on_written)(void *),
                              void *data, struct hvi_err *err);
/** Writes what is there, if no write is under way. */
void hvi_sink_flush(struct hvi_sink *s);
/** Bytes not written yet. */
size_t hvi_sink_backlog(const struct hvi_sink *s);
void hvi_sink_close(struct hvi_sink *s);
void hvi_sink_fini(struct hvi_sink *s);

#endif
