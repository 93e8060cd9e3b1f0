/**
 * hvdrun's own stdin, read for the ranks: never from a terminal while in the
 * background, never more than they take. A thread of its own waits and reads,
 * because putting somebody's terminal into non-blocking mode (what uv_poll and uv_tty
 * do) would be felt by all others who have it open.
 */
#ifndef HVI_HVDRUN_INPUT_H
#define HVI_HVDRUN_INPUT_H

#include <stdbool.h>
#include <sys/types.h>
#include <uv.h>

#include "hvdrun/io/aside.h"

#define HVI_INPUT_BYTES (64 * 1024) /* at most, in one call */

struct hvi_input {
    struct hvi_aside aside;
    int wake[2]; /* written to end the waiting */
    char *bytes;
    ssize_t n;
    bool open, started, busy, paused, ended, closed;
    bool nothing; /* stdin is /dev/null: there is no thread */
    /** n bytes; n 0: the end, once. Not after hvi_input_close(). */
    void (*on_data)(void *data, const char *bytes, size_t n);
    void *data;
};

/** Reads nothing yet. HVD_ELIMIT without a thread or descriptors, HVD_ENOMEM. */
enum hvd_status hvi_input_open(struct hvi_input *in, uv_loop_t *loop,
                               void (*on_data)(void *, const char *, size_t),
                               void *data, struct hvi_err *err);
/** Begins to read, once. Nothing when it is not open. */
void hvi_input_start(struct hvi_input *in);
/** Takes effect after what is being read. */
void hvi_input_pause(struct hvi_input *in);
void hvi_input_resume(struct hvi_input *in);
/** Waits for its thread. Safe when it is not open. */
void hvi_input_close(struct hvi_input *in);
void hvi_input_fini(struct hvi_input *in); /* after the loop has run */

#endif
