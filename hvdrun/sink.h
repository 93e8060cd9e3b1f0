/** Writing the joined output to stdout and stderr without ever blocking the loop: a
 * worker thread of libuv does the write, one at a time for each descriptor, so the
 * order stays. */
#ifndef HVI_HVDRUN_SINK_H
#define HVI_HVDRUN_SINK_H

#include <stdbool.h>
#include <uv.h>

#include "proto/base/buf.h"

struct hvi_sink {
    uv_loop_t *loop;
    uv_fs_t req;
    uv_timer_t retry; /* the descriptor is non-blocking and full */
    int fd;
    struct hvi_buf *from; /* borrowed: text to come */
    struct hvi_buf writing;
    bool busy, broken, open;
    int error; /* of the write that broke it */
    void (*on_written)(void *data);
    void *data;
};

void hvi_sink_init(struct hvi_sink *s, uv_loop_t *loop, int fd, struct hvi_buf *from,
                   void (*on_written)(void *), void *data);
/** Writes what is there, if no write is under way. */
void hvi_sink_flush(struct hvi_sink *s);
/** Bytes not written yet. */
size_t hvi_sink_backlog(const struct hvi_sink *s);
void hvi_sink_close(struct hvi_sink *s);
void hvi_sink_fini(struct hvi_sink *s);

#endif
