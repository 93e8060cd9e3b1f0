/*
 * Threads of the GPU plane. The *completion* thread waits for the events of queued work, in
 * order, and tells. The *watch* thread, while something is queued, asks the communicators
 * for asynchronous errors and looks at the time of the oldest launch. An *abort* thread per
 * communicator ends what hangs.
 *
 * Happy path: push -> event -> done(HVD_OK). Failure: hvi_gpu_break notes why, tells the
 * owner, starts the aborts; the device then gives up its kernels, the events come, every
 * launch is done with the failure. An abort that hangs itself: abort_ms later the watch
 * thread completes the launches; what the device still does with their memory is undefined
 * then, and the text says so. LEAVE_MS after that it tells the owner that this process is
 * stuck (reliability R6); it outlives free() for that.
 */
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "worker/plane/nccl/gpu.h"

#define WATCH_MS 50   /* between two looks at the communicators */
#define STOP_MS 3000  /* free() waits that long for threads */
#define LEAVE_MS 2000 /* a program that hears of its failure has that long to say so */
#define API_WAIT_S 2  /* an abort waits that long for a call that is inside NCCL */

static struct timespec in_ms(int64_t ms)
{
    struct timespec ts;

    clock_gettime(CLOCK_MONOTONIC, &ts);
    ts.tv_sec += ms / 1000;
    ts.tv_nsec += ms % 1000 * 1000000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_sec++;
        ts.tv_nsec -= 1000000000;
    }
    return ts;
}

void hvi_gpu_wake(struct hvi_gpu *p)
{
    atomic_fetch_add(&p->wake, 1);
    syscall(SYS_futex, &p->wake, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
}

/* ---- completion ------------------------------------------------------------------ */

/* Under the lock: the launch, if it is still the first. */
static struct hvi_launch *take_first(struct hvi_gpu *p, uint64_t number)
{
    struct hvi_launch *l = p->first;

    if (l == NULL || l->number != number)
        return NULL;
    p->first = l->next;
    if (p->first == NULL)
        p->last = &p->first;
    p->head_since_ms = hvi_now_ms();
    return l;
}

/* Tables may be used again only when the device is known to be done with them. */
static void finish(struct hvi_gpu *p, struct hvi_launch *l, enum hvd_status status,
                   const char *text, bool quiet)
{
    struct hvi_table *t;

    pthread_mutex_lock(&p->lock);
    while (quiet && (t = l->tables) != NULL) {
        l->tables = t->next;
        t->next = p->free_tables;
        p->free_tables = t;
    }
    pthread_mutex_unlock(&p->lock);
    hvi_gpu_keep_tables(l->tables);
    if (quiet)
        free(l->memory);
    hvi_event_unref(l->event);
    l->done(l->arg, status, text);
    free(l);
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
}

static void thread_ends(struct hvi_gpu *p)
{
    pthread_mutex_lock(&p->lock);
    p->nthreads--;
    pthread_cond_broadcast(&p->cond);
    pthread_mutex_unlock(&p->lock);
}

/* True: it is the first failure. */
static bool note_broken(struct hvi_gpu *p, enum hvd_status status, const char *text)
{
    bool first;

    pthread_mutex_lock(&p->lock);
    first = atomic_load(&p->broken) == 0;
    if (first) {
        snprintf(p->broken_text, sizeof p->broken_text, "%s", text);
        p->broken_ms = hvi_now_ms();
        atomic_store(&p->broken, (int)status);
    }
    pthread_mutex_unlock(&p->lock);
    return first;
}

/* The program is inside exit(): nothing failed, and NCCL has nothing left to abort. */
static void driver_left(struct hvi_gpu *p)
{
    note_broken(p, HVD_ESHUTDOWN, "the program is ending");
    hvi_gpu_wake(p);
}

static void *completion_thread(void *arg)
{
    struct hvi_gpu *p = arg;
    const struct hvi_cuda *cu = p->dev->cu;

    hvi_device_enter(p->dev);
    pthread_mutex_lock(&p->lock);
    for (;;) {
        struct hvi_launch *l;
        struct hvi_event *event;
        struct hvi_err err = {{0}};
        uint64_t number;
        int cu_rc;

        while (p->first == NULL && !p->stop)
            pthread_cond_wait(&p->cond, &p->lock);
        if (p->first == NULL)
            break;
        number = p->first->number;
        event = p->first->event;
        hvi_event_ref(event);
        pthread_mutex_unlock(&p->lock);
        cu_rc = cu->event_sync(event->event);
        hvi_event_unref(event);
        if (cu_rc == HVI_CU_DEINITIALIZED)
            driver_left(p);
        else if (hvi_device_check(p->dev, cu_rc, "the GPU failed", &err) != HVD_OK)
            hvi_gpu_break(p, HVD_EIO, true, err.text);
        pthread_mutex_lock(&p->lock);
        l = take_first(p, number);
        pthread_mutex_unlock(&p->lock);
        if (l != NULL)
            finish(p, l, (enum hvd_status)atomic_load(&p->broken), p->broken_text,
                   true);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    hvi_device_leave(p->dev);
    thread_ends(p);
    return NULL;
}

void hvi_gpu_push(struct hvi_gpu *p, struct hvi_launch *l)
{
    pthread_mutex_lock(&p->lock);
    l->number = ++p->launches;
    if (p->first == NULL)
        p->head_since_ms = hvi_now_ms();
    *p->last = l;
    p->last = &l->next;
    pthread_cond_broadcast(&p->cond);
    if (p->watch_parked)
        pthread_cond_signal(&p->watch_cond);
    pthread_mutex_unlock(&p->lock);
}

/* ---- watching -------------------------------------------------------------------- */

static bool look_at_comms(struct hvi_gpu *p, struct hvi_err *err)
{
    bool bad = false;

    if (p->nccl == NULL || pthread_mutex_trylock(&p->api) != 0)
        return false; /* whoever calls NCCL now sees the error itself */
    pthread_mutex_lock(&p->lock);
    for (struct hvi_comm *c = p->comms; c != NULL && !bad; c = c->next) {
        int state = HVI_NCCL_SUCCESS;

        if (c->nccl == NULL || !c->formed || atomic_load(&p->broken) != 0)
            continue;
        p->nccl->async_error(c->nccl, &state);
        bad = state != HVI_NCCL_SUCCESS && state != HVI_NCCL_IN_PROGRESS;
        if (bad)
            hvi_gpu_nccl_check(p, state, c->nccl, "a collective failed", err);
    }
    pthread_mutex_unlock(&p->lock);
    pthread_mutex_unlock(&p->api);
    return bad;
}

/* Under the lock. */
static bool too_long(struct hvi_gpu *p, struct hvi_err *err)
{
    int64_t waited = hvi_now_ms() - p->head_since_ms;

    if (p->timeout_ms == 0 || p->first == NULL || waited < p->timeout_ms)
        return false;
    hvi_fail(err, HVD_EPEER,
             "a collective on rank %d (%s, cuda:%d %s) has not ended for %lld s "
             "(HVD_NCCL_TIMEOUT_SECONDS): a rank or the network between GPUs hangs",
             p->base.rank, p->host, p->dev->id, p->dev->name,
             (long long)(waited / 1000));
    return true;
}

/* The aborts are over or hopeless: whoever waits is told. */
static void give_up(struct hvi_gpu *p)
{
    char text[HVD_ERROR_TEXT_MAX];

    snprintf(text, sizeof text,
             "%.900s; the GPU did not stop: its memory may still be written",
             p->broken_text);
    for (;;) {
        struct hvi_launch *l;

        pthread_mutex_lock(&p->lock);
        l = p->first != NULL ? take_first(p, p->first->number) : NULL;
        pthread_mutex_unlock(&p->lock);
        if (l == NULL)
            return;
        finish(p, l, (enum hvd_status)atomic_load(&p->broken), text, false);
    }
}

static void tell_stuck(struct hvi_gpu *p, const char *before)
{
    char text[HVD_ERROR_TEXT_MAX];

    snprintf(
        text, sizeof text,
        "rank %d (%s, cuda:%d %s): NCCL has not aborted in %lld s and holds the GPU, "
        "so this process ends (HVD_NCCL_ABORT_SECONDS). Before: %.600s",
        p->base.rank, p->host, p->dev->id, p->dev->name,
        (long long)(p->abort_ms / 1000), before);
    if (p->setup.stuck != NULL)
        p->setup.stuck(text);
}

static void watch_once(struct hvi_gpu *p)
{
    struct hvi_err err = {{0}};
    bool late;
    bool hopeless;
    bool stuck;
    int64_t broken_for;

    pthread_mutex_lock(&p->lock);
    late = atomic_load(&p->broken) == 0 && too_long(p, &err);
    broken_for = atomic_load(&p->broken) != 0 ? hvi_now_ms() - p->broken_ms : 0;
    hopeless = p->first != NULL && broken_for > p->abort_ms;
    stuck = p->naborts > 0 && !p->told_stuck && broken_for > p->abort_ms + LEAVE_MS;
    p->told_stuck |= stuck;
    pthread_mutex_unlock(&p->lock);
    if (late)
        hvi_gpu_break(p, HVD_EPEER, true, err.text);
    else if (hopeless)
        give_up(p);
    else if (stuck)
        tell_stuck(p, p->broken_text);
    else if (atomic_load(&p->broken) == 0 && look_at_comms(p, &err))
        hvi_gpu_break(p, HVD_EIO, true, err.text);
}

/* Under the lock: an abort goes on, and nobody was told that it is stuck. */
static bool aborts(const struct hvi_gpu *p)
{
    return p->naborts > 0 && !p->told_stuck;
}

static void *watch_thread(void *arg)
{
    struct hvi_gpu *p = arg;

    hvi_device_enter(p->dev);
    pthread_mutex_lock(&p->lock);
    while (!p->stop || aborts(p)) {
        struct timespec until = in_ms(WATCH_MS);

        if (p->first == NULL && !aborts(p)) {
            p->watch_parked = true;
            pthread_cond_wait(&p->watch_cond, &p->lock);
            p->watch_parked = false;
            continue;
        }
        pthread_cond_clockwait(&p->watch_cond, &p->lock, CLOCK_MONOTONIC, &until);
        pthread_mutex_unlock(&p->lock);
        watch_once(p);
        pthread_mutex_lock(&p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    hvi_device_leave(p->dev);
    thread_ends(p);
    return NULL;
}

/* ---- breaking -------------------------------------------------------------------- */

struct abortion {
    struct hvi_gpu *p;
    struct hvi_comm *comm;
};

static void *abort_thread(void *arg)
{
    struct abortion *a = arg;
    struct hvi_gpu *p = a->p;
    struct ncclComm *nccl;
    struct timespec until;
    bool locked;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += API_WAIT_S;
    locked = pthread_mutex_timedlock(&p->api, &until) == 0;
    pthread_mutex_lock(&p->lock);
    nccl = a->comm->nccl;
    a->comm->nccl = NULL;
    pthread_mutex_unlock(&p->lock);
    if (locked)
        pthread_mutex_unlock(&p->api);
    free(a);
    hvi_device_enter(p->dev);
    if (nccl != NULL)
        p->nccl->comm_abort(nccl);
    hvi_device_leave(p->dev);
    pthread_mutex_lock(&p->lock);
    p->naborts--;
    pthread_cond_signal(&p->watch_cond);
    pthread_mutex_unlock(&p->lock);
    thread_ends(p);
    return NULL;
}

/* All signals stay with the program's own threads. */
static bool start_detached(void *(*body)(void *), void *arg)
{
    sigset_t all;
    sigset_t old;
    pthread_t thread;
    int rc;

    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &old);
    rc = pthread_create(&thread, NULL, body, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc == 0)
        pthread_detach(thread);
    return rc == 0;
}

static bool start_thread(struct hvi_gpu *p, void *(*body)(void *), void *arg)
{
    if (!start_detached(body, arg))
        return false;
    p->nthreads++;
    return true;
}

void hvi_gpu_break(struct hvi_gpu *p, enum hvd_status status, bool say,
                   const char *text)
{
    if (!note_broken(p, status, text))
        return;
    hvi_log_warn("gpu", "%s", text);
    if (say &&
        p->setup.broken != NULL) /* first: launches end as their owner then says */
        p->setup.broken(p->setup.arg, status, text);
    pthread_mutex_lock(&p->lock);
    p->broken_ms = hvi_now_ms();
    for (struct hvi_comm *c = p->comms; c != NULL; c = c->next) {
        struct abortion *a = c->nccl != NULL ? malloc(sizeof *a) : NULL;

        if (a == NULL)
            continue;
        *a = (struct abortion){p, c};
        p->naborts++;
        if (!start_thread(p, abort_thread, a)) {
            p->naborts--;
            free(a);
        }
    }
    pthread_cond_broadcast(&p->cond);
    pthread_cond_signal(&p->watch_cond);
    pthread_mutex_unlock(&p->lock);
    hvi_gpu_wake(p);
}

/* ---- an abort at the end, when the plane has no threads any more ------------------- */

struct last_abort {
    struct hvi_device *dev;
    const struct hvi_nccl_api *nccl;
    struct ncclComm *comm;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool over;
};

static void *last_abort_thread(void *arg)
{
    struct last_abort *a = arg;

    hvi_device_enter(a->dev);
    a->nccl->comm_abort(a->comm);
    hvi_device_leave(a->dev);
    pthread_mutex_lock(&a->lock);
    a->over = true;
    pthread_cond_signal(&a->cond);
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

void hvi_gpu_abort_last(struct hvi_gpu *p, struct ncclComm *comm)
{
    struct timespec until = in_ms(p->abort_ms);
    struct last_abort *a = calloc(1, sizeof *a);
    bool over;

    if (a == NULL)
        return; /* the communicator stays */
    *a = (struct last_abort){.dev = p->dev, .nccl = p->nccl, .comm = comm};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->cond, NULL);
    pthread_mutex_lock(&a->lock);
    a->over = !start_detached(last_abort_thread, a);
    while (!a->over)
        if (pthread_cond_clockwait(&a->cond, &a->lock, CLOCK_MONOTONIC, &until) ==
            ETIMEDOUT)
            break;
    over = a->over;
    pthread_mutex_unlock(&a->lock);
    if (!over) { /* the thread still has what a points to */
        tell_stuck(p, "a communicator did not end");
        return;
    }
    pthread_cond_destroy(&a->cond);
    pthread_mutex_destroy(&a->lock);
    free(a);
}

/* ---- life ------------------------------------------------------------------------ */

enum hvd_status hvi_gpu_start_threads(struct hvi_gpu *p, struct hvi_err *err)
{
    bool ok;

    pthread_mutex_lock(&p->lock);
    ok = start_thread(p, completion_thread, p) && start_thread(p, watch_thread, p);
    pthread_mutex_unlock(&p->lock);
    return ok ? HVD_OK : hvi_fail(err, HVD_ENOMEM, "no thread for GPU collectives");
}

bool hvi_gpu_drain(struct hvi_gpu *p, int timeout_ms)
{
    struct timespec until = in_ms(timeout_ms);
    bool empty;

    pthread_mutex_lock(&p->lock);
    while (p->first != NULL)
        if (pthread_cond_clockwait(&p->cond, &p->lock, CLOCK_MONOTONIC, &until) ==
            ETIMEDOUT)
            break;
    empty = p->first == NULL;
    pthread_mutex_unlock(&p->lock);
    return empty;
}

bool hvi_gpu_stop_threads(struct hvi_gpu *p)
{
    struct timespec until = in_ms(STOP_MS);
    bool ended;

    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->cond);
    pthread_cond_broadcast(&p->watch_cond);
    while (p->nthreads > 0)
        if (pthread_cond_clockwait(&p->cond, &p->lock, CLOCK_MONOTONIC, &until) ==
            ETIMEDOUT)
            break;
    ended = p->nthreads == 0;
    pthread_mutex_unlock(&p->lock);
    return ended;
}
