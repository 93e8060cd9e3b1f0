#!/bin/bash
# Handles: poll, wait with a timeout that names what is missing, callbacks, the event
# descriptor, a signal during a wait, and tensors from hvd_alloc.
set -eu
cat >async.c <<'C'
#include <hvd/hvd.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"

static int me, n;
static const int64_t dims[1] = {8};

static struct hvd_op sum_op(const char *name, float *v)
{
    struct hvd_op op;

    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = HVD_ALLREDUCE;
    op.reduce_op = HVD_SUM;
    op.name = name;
    op.in.data = v;
    op.in.dims = dims;
    op.in.ndim = 1;
    op.in.dtype = HVD_FLOAT32;
    op.out = op.in;
    return op;
}

/* Rank 0 comes only after the others have seen their wait time out. */
static void late_rank(void)
{
    float v[8] = {1};
    int32_t go = 0;
    hvd_handle h;
    struct hvd_op op = sum_op("late", v);

    if (me == 0)
        IS(hvd_broadcast(&go, 1, HVD_INT32, n - 1, "go") == HVD_OK);
    IS(hvd_enqueue(&op, &h) == HVD_OK);
    if (me != 0) {
        IS(hvd_poll(h) == HVD_INPROGRESS);
        IS(hvd_wait(h, HVD_WAIT_DONE, 50) == HVD_ETIMEDOUT);
        IS(strstr(hvd_last_error(), "late") != NULL);
        float w[8] = {0};
        struct hvd_op twice = sum_op("late", w);
        hvd_handle second;
        IS(hvd_enqueue(&twice, &second) == HVD_EDUPLICATE);
        IS(hvd_broadcast(&go, 1, HVD_INT32, n - 1, "go") == HVD_OK);
    }
    IS(hvd_wait(h, HVD_WAIT_DONE, 20000) == HVD_OK && hvd_poll(h) == HVD_OK);
    IS(v[0] == (float)n);
    IS(hvd_release(h) == HVD_OK && hvd_release(h) == HVD_EHANDLE);
}

static atomic_int called;
static hvd_handle next;
static float nested[8];

/* May look at its own handle and start the next operation, but not wait for it. */
static void on_done(void *arg, hvd_handle h, enum hvd_status status)
{
    struct hvd_op op = sum_op("nested", nested);

    IS(hvd_poll(h) == status);
    IS(hvd_enqueue(&op, &next) == HVD_OK);
    if (me == 0) /* elsewhere it may be complete already */
        IS(hvd_wait(next, HVD_WAIT_DONE, -1) == HVD_EDEADLOCK);
    *(enum hvd_status *)arg = status;
    called++;
}

static void callback_and_eventfd(void)
{
    float *v = hvd_alloc(8 * sizeof *v);
    enum hvd_status seen = HVD_EINTERNAL;
    struct pollfd fd = {.fd = hvd_eventfd(), .events = POLLIN};
    hvd_handle h, got = 0;

    IS(v != NULL && fd.fd >= 0 && hvd_next_done(&got, 1) == 0);
    v[7] = 3;
    struct hvd_op op = sum_op("called", v);
    op.done = on_done;
    op.arg = &seen;
    IS(hvd_enqueue(&op, &h) == HVD_OK);
    IS(poll(&fd, 1, 20000) == 1);
    IS(hvd_next_done(&got, 1) == 1 && got == h);
    IS(v[7] == (float)(3 * n));
    for (int ms = 0; called == 0 && ms < 20000; ms++) /* the callback may still run */
        usleep(1000);
    IS(called == 1 && seen == HVD_OK);
    IS(hvd_release(h) == HVD_OK);
    IS(hvd_wait(next, HVD_WAIT_DONE, 20000) == HVD_OK && hvd_release(next) == HVD_OK);
    hvd_free(v);
}

static void on_signal(int sig)
{
    (void)sig;
}

/* A signal ends a wait with HVD_EINTR; the handle stays good. */
static void interrupted(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    float v[8] = {1};
    int32_t go = 0;
    hvd_handle h;
    struct hvd_op op = sum_op("interrupted", v);

    sigaction(SIGALRM, &action, NULL);
    if (me == 0)
        IS(hvd_broadcast(&go, 1, HVD_INT32, n - 1, "go") == HVD_OK);
    IS(hvd_enqueue(&op, &h) == HVD_OK);
    if (me != 0) {
        ualarm(100000, 0);
        IS(hvd_wait(h, HVD_WAIT_DONE, 20000) == HVD_EINTR);
        IS(hvd_broadcast(&go, 1, HVD_INT32, n - 1, "go") == HVD_OK);
    }
    IS(hvd_wait(h, HVD_WAIT_DONE, 20000) == HVD_OK && v[0] == (float)n);
    IS(hvd_release(h) == HVD_OK);
}

/* Several threads at once, each with names of its own, in different orders on each rank. */
static void *many(void *arg)
{
    int thread = (int)(long)arg;

    for (int i = 0; i < 50; i++) {
        float v[8] = {1};
        char name[32];

        snprintf(name, sizeof name, "t%d/%d", thread, i % 5);
        IS(hvd_allreduce(v, v, 8, HVD_FLOAT32, HVD_SUM, name) == HVD_OK);
        IS(v[0] == (float)n);
    }
    return NULL;
}

int main(void)
{
    pthread_t threads[4];

    IS(hvd_init(NULL) == HVD_OK);
    me = hvd_rank();
    n = hvd_size();
    late_rank();
    callback_and_eventfd();
    interrupted();
    for (long i = 0; i < 4; i++)
        IS(pthread_create(&threads[i], NULL, many, (void *)((i + me) % 4)) == 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    struct hvd_stats stats = {.size = sizeof stats};
    IS(hvd_get_stats(&stats) == HVD_OK && stats.ops_completed >= 200 && stats.cache_hits > 0);
    IS(hvd_shutdown() == HVD_OK);
    printf("rank %d is content\n", me);
    return 0;
}
C
# shellcheck disable=SC2086
cc $HVD_E2E_CFLAGS -std=gnu11 -Wall -Wextra -Werror -g -pthread -I"$HVD_SRC/worker/include" -I"$HVD_SRC/tests/e2e" async.c -o async \
    -L"$HVD_BUILD/lib" -lhvd -Wl,-rpath,"$HVD_BUILD/lib"
for plane in shm tcp; do
    echo "-- $plane"
    HVD_CPU_PLANE=$plane hvdrun -np 2 ./async >out 2>err || { cat out err; exit 1; }
    [ "$(grep -c 'is content' out)" = 2 ] || { cat out err; exit 1; }
done
