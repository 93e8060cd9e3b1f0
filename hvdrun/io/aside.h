/**
 * A thread for calls that may block, beside the loop. Not libuv's pool: that aborts the
 * program when a thread cannot be made, and wants 8 MiB of stack for each of four.
 */
#ifndef HVI_HVDRUN_ASIDE_H
#define HVI_HVDRUN_ASIDE_H

#include <pthread.h>
#include <stdbool.h>
#include <uv.h>

#include "proto/base/err.h"

struct hvi_aside {
    uv_async_t async;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    void (*work)(void *data); /* in the thread */
    void (*done)(void *data); /* in the loop, once for each hvi_aside_begin() */
    void *data;
    bool open, begun;                   /* begun: there is a thread */
    bool wanted, finished, quit, ended; /* under lock */
};

/** Without its thread, which the first hvi_aside_start() makes. HVD_ELIMIT; then it is as
 * if closed. */
enum hvd_status hvi_aside_open(struct hvi_aside *a, uv_loop_t *loop,
                               void (*work)(void *), void (*done)(void *), void *data,
                               struct hvi_err *err);
/** Nothing when there is one. HVD_ELIMIT. */
enum hvd_status hvi_aside_start(struct hvi_aside *a, struct hvi_err *err);
/** Lets work run once, when it has been started. Not again before done. */
void hvi_aside_begin(struct hvi_aside *a);
/**
 * done is not called any more. Waits for the thread, for a second at most.
 *
 * Returns  false: work does not come back; what it uses must stay.
 */
bool hvi_aside_close(struct hvi_aside *a);

#endif
