#include "hvdrun/io/aside.h"

#include <signal.h>
#include <string.h>
#include <time.h>

#define STACK_BYTES ((size_t)256 * 1024)

static void *serve(void *arg)
{
    struct hvi_aside *a = arg;

    pthread_mutex_lock(&a->lock);
    for (;;) {
        while (!a->wanted && !a->quit)
            pthread_cond_wait(&a->cond, &a->lock);
        if (a->quit)
            break;
        a->wanted = false;
        pthread_mutex_unlock(&a->lock);
        a->work(a->data);
        pthread_mutex_lock(&a->lock);
        if (a->quit) /* the loop may be gone */
            break;
        a->finished = true;
        uv_async_send(&a->async);
    }
    a->ended = true;
    pthread_cond_signal(&a->cond);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

static void async_cb(uv_async_t *h)
{
    struct hvi_aside *a = h->data;
    bool finished;

    pthread_mutex_lock(&a->lock);
    finished = a->finished;
    a->finished = false;
    pthread_mutex_unlock(&a->lock);
    if (finished)
        a->done(a->data);
}

/* Signals are the loop's. */
static int start_thread(struct hvi_aside *a)
{
    pthread_attr_t attr;
    sigset_t all, old;
    int rc;

    sigfillset(&all);
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    rc = pthread_create(&a->thread, &attr, serve, a);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

enum hvd_status hvi_aside_open(struct hvi_aside *a, uv_loop_t *loop,
                               void (*work)(void *), void (*done)(void *), void *data,
                               struct hvi_err *err)
{
    pthread_condattr_t attr;
    int rc;

    memset(a, 0, sizeof *a);
    a->work = work;
    a->done = done;
    a->data = data;
    rc = uv_async_init(loop, &a->async, async_cb);
    if (rc != 0)
        return hvi_fail(err, HVD_ELIMIT, "the event loop: %s", uv_strerror(rc));
    a->async.data = a;
    pthread_mutex_init(&a->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&a->cond, &attr);
    pthread_condattr_destroy(&attr);
    a->open = true;
    return HVD_OK;
}

enum hvd_status hvi_aside_start(struct hvi_aside *a, struct hvi_err *err)
{
    int rc = a->begun ? 0 : start_thread(a);

    if (rc != 0)
        return hvi_fail(err, HVD_ELIMIT,
                        "cannot start a thread: %s; raise the limit of processes or "
                        "memory (ulimit -u, -v)",
                        strerror(rc));
    a->begun = true;
    return HVD_OK;
}

void hvi_aside_begin(struct hvi_aside *a)
{
    pthread_mutex_lock(&a->lock);
    a->wanted = true;
    pthread_cond_signal(&a->cond);
    pthread_mutex_unlock(&a->lock);
}

bool hvi_aside_close(struct hvi_aside *a)
{
    struct timespec until;
    bool ended;

    if (!a->open)
        return true;
    a->open = false;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec++;
    pthread_mutex_lock(&a->lock);
    a->quit = true;
    pthread_cond_signal(&a->cond);
    while (a->begun && !a->ended &&
           pthread_cond_timedwait(&a->cond, &a->lock, &until) == 0)
        continue;
    ended = a->ended || !a->begun;
    pthread_mutex_unlock(&a->lock);
    uv_close((uv_handle_t *)&a->async, NULL);
    if (!ended) {
        pthread_detach(a->thread);
        return false;
    }
    if (a->begun)
        pthread_join(a->thread, NULL);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->cond);
    return true;
}
