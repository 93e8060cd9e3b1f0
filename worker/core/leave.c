/*
 * Leaving a membership: take back what is not agreed, BYE, wait for its echo, run what
 * is agreed, FINAL, end the threads. After a failure there is nothing to agree on any
 * more.
 */
#include <errno.h>
#include <pthread.h>
#include <time.h>

#include "worker/core/ctx.h"
#include "worker/core/timeline.h"

#define BYE_MS 5000 /* the echo of BYE; a healthy one takes a millisecond */

void hvi_ctx_stop_threads(struct hvi_ctx *c)
{
    pthread_mutex_lock(&c->lock);
    atomic_store(&c->stop, true);
    pthread_cond_broadcast(&c->cond);
    pthread_mutex_unlock(&c->lock);
    if (c->bells != NULL)
        hvi_bell_force(c->bells, c->bell);
    if (c->link_running) {
        hvi_link_kick(c);
        pthread_join(c->link_thread, NULL);
    }
    if (c->exec_running)
        pthread_join(c->exec_thread, NULL);
    c->link_running = c->exec_running = false;
}

static void wait_bye(struct hvi_ctx *c)
{
    struct timespec until;
    Hvi__Bye m = HVI__BYE__INIT;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += BYE_MS / 1000;
    pthread_mutex_lock(&c->lock);
    m.epoch = c->epoch;
    hvi_negotiate_flush(c);
    hvi_conn_put(&c->conn, HVI_MSG_BYE, &m);
    hvi_link_kick(c);
    while (!c->bye_acked && atomic_load(&c->failed) == 0)
        if (pthread_cond_timedwait(&c->bye_cond, &c->lock, &until) == ETIMEDOUT)
            break;
    pthread_mutex_unlock(&c->lock);
}

static void say_final(struct hvi_ctx *c)
{
    struct hvi_buf nothing = {0};

    pthread_mutex_lock(&c->lock);
    if (c->board != NULL)
        hvi_negotiate_poll(c);
    hvi_negotiate_flush(c); /* readiness of other ranks that fell to us */
    c->board_left = true;   /* nothing can fall to us any more */
    hvi_conn_put_frame(&c->conn, &nothing, true);
    pthread_mutex_unlock(&c->lock);
}

void hvi_ctx_leave(struct hvi_ctx *c)
{
    static const char text[] = "hvd_shutdown was called";
    struct hvi_op *join;

    hvi_timeline_leave(c);
    hvi_gpu_wait_begin(c); /* it does not end */
    pthread_mutex_lock(&c->lock);
    c->closing = true;
    if (c->board != NULL) {
        hvi_board_leave(c->board, c->bell);
        hvi_negotiate_pump(c);
        hvi_negotiate_poll(c);
    }
    pthread_mutex_unlock(&c->lock);
    hvi_failpoint("leaving");
    if (c->mode != HVI_MODE_SOLO)
        wait_bye(c);
    hvi_failpoint("bye");
    if (c->mode != HVI_MODE_SOLO)
        hvi_negotiate_cancel(c, -1, HVD_ESHUTDOWN, text);
    pthread_mutex_lock(&c->lock);
    join = c->mode == HVI_MODE_SOLO ? NULL : c->join_op;
    if (join != NULL) {
        c->join_op = NULL;
        c->ninflight--;
    }
    pthread_mutex_unlock(&c->lock);
    if (join != NULL) {
        hvi_op_complete(join, HVD_ESHUTDOWN, text);
        hvi_op_unref(join);
    }
    hvi_engine_drain(c);
    hvi_gpu_settle(c);
    if (c->mode != HVI_MODE_SOLO)
        say_final(c);
    hvi_ctx_stop_threads(c);
}
