/** hvdrun's own stdin, read for the ranks only while it may be: never from a terminal in
 *  the background, never more than the ranks take. */
#ifndef HVI_HVDRUN_INPUT_H
#define HVI_HVDRUN_INPUT_H

#include <stdbool.h>
#include <uv.h>

#define HVI_INPUT_BYTES (64 * 1024) /* at most, in one call */

struct hvi_input {
    uv_poll_t poll;
    uv_timer_t again;
    bool poll_open, timer_open, paused, ended, is_tty;
    /** n bytes; n 0: the end, once. */
    void (*on_data)(void *data, const char *bytes, size_t n);
    void *data;
};

void hvi_input_start(struct hvi_input *in, uv_loop_t *loop,
                     void (*on_data)(void *, const char *, size_t), void *data);
void hvi_input_pause(struct hvi_input *in);
void hvi_input_resume(struct hvi_input *in);
void hvi_input_close(struct hvi_input *in);

#endif
