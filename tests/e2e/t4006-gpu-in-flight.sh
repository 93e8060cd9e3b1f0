#!/bin/bash
# How many groups of GPU tensors are on the device at once, with fakes: two while the program only
# enqueues, so that what comes meanwhile is fused; all as soon as somebody waits, who is then not
# made to wait for the device. Without a wait the rest goes on as the device gets done.
set -u
. "$HVD_SRC/tests/e2e/lib.sh"
cat >flow.c <<'C'
#include "gpu.h"
#include <unistd.h>

enum { OPS = 16, COUNT = 1000, LOOK_MS = 30, LAST_MS = 20000 };
static _Atomic int gate; /* 0: the program's stream stands still */
static void *stream;
static float *data[OPS];

static long now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void stand_still(void *arg)
{
    (void)arg;
    for (long end = now_ms() + LAST_MS; gate == 0 && now_ms() < end;)
        usleep(200);
}

static uint64_t groups(void)
{
    struct hvd_stats s = {.size = sizeof s};

    OK(hvd_get_stats(&s));
    return s.groups_run;
}

static void enqueue(int i, hvd_handle *h)
{
    int64_t dims[1] = {COUNT};
    char name[16];

    snprintf(name, sizeof name, "t%d", i);
    struct hvd_op o =
        gpu_op(HVD_ALLREDUCE, name, data[i], data[i], dims, 1, HVD_FLOAT32, stream);
    OK(hvd_enqueue(&o, h));
}

/* A backward pass that is far ahead of its GPU: each tensor has time to become a group of its
 * own. Returns how many did before anyone waited. */
static uint64_t backward(hvd_handle *h)
{
    uint64_t first = groups();

    gate = 0;
    CU(cuLaunchHostFunc, (void *, void (*)(void *), void *), (stream, stand_still, NULL));
    for (int i = 0; i < OPS; i++) {
        uint64_t before = groups();

        enqueue(i, &h[i]);
        for (long end = now_ms() + LOOK_MS; groups() == before && now_ms() < end;)
            usleep(200);
    }
    return groups() - first;
}

static void check(float want)
{
    float host[COUNT];

    for (int i = 0; i < OPS; i++) {
        gpu_get(host, data[i], sizeof host, stream);
        for (int k = 0; k < COUNT; k++)
            IS(host[k] == want);
    }
}

int main(int argc, char **argv)
{
    static float ones[COUNT];
    int most = atoi(argv[1]); /* groups of one pass */
    hvd_handle h[OPS];
    uint64_t first;
    float want = 1;
    long fastest_ms = LAST_MS;

    gpu_start(argc, argv);
    stream = gpu_stream();
    for (int k = 0; k < COUNT; k++)
        ones[k] = 1;
    for (int i = 0; i < OPS; i++) {
        data[i] = gpu_alloc(sizeof ones);
        gpu_put(data[i], ones, sizeof ones, stream);
        enqueue(i, &h[i]); /* the names get their ids */
    }
    for (int i = 0; i < OPS; i++) {
        OK(hvd_wait(h[i], HVD_WAIT_DONE, LAST_MS));
        OK(hvd_release(h[i]));
    }
    want *= (float)n;

    for (int round = 0; round < 3; round++) {
        first = groups();
        uint64_t early = backward(h);
        long began = now_ms();
        for (int i = 0; i < OPS; i++) /* the device has done nothing yet */
            OK(hvd_wait(h[i], HVD_WAIT_ENQUEUED, LAST_MS));
        if (now_ms() - began < fastest_ms)
            fastest_ms = now_ms() - began;
        IS(hvd_poll(h[OPS - 1]) == HVD_INPROGRESS);
        printf("rank %d: %d of %d groups before the wait of %ld ms\n", me, (int)early,
               (int)(groups() - first), now_ms() - began);
        IS(early <= 2 && groups() - first <= (uint64_t)most);
        gate = 1;
        for (int i = 0; i < OPS; i++) {
            OK(hvd_wait(h[i], HVD_WAIT_DONE, LAST_MS));
            OK(hvd_release(h[i]));
        }
        want *= (float)n;
        check(want);
    }
    IS(fastest_ms < 500); /* the machine may be busy, but not always */

    first = groups();
    backward(h);
    gate = 1;
    for (int i = 0; i < OPS; i++) {
        for (long end = now_ms() + LAST_MS; hvd_poll(h[i]) == HVD_INPROGRESS;) {
            IS(now_ms() < end);
            usleep(200);
        }
        OK(hvd_release(h[i]));
    }
    want *= (float)n;
    check(want);
    IS(groups() - first <= (uint64_t)most);

    backward(h); /* and a rank that leaves waits for all */
    gate = 1;
    OK(hvd_shutdown());
    printf("rank %d of %d fine\n", me, n);
    return 0;
}
C
CFLAGS_E2E="-I$HVD_SRC/tests/e2e -ldl" compile flow.c flow
export LD_LIBRARY_PATH=$HVD_BUILD/tests/fake
for plane in shm tcp; do
    echo "-- $plane"
    HVD_CPU_PLANE=$plane run hvdrun -np 2 ./flow 5
    expect_status 0
    expect_line out 'rank 1: [12] of [1-5] groups before the wait'
    expect_line out 'rank 1 of 2 fine'
done
