/* What a GPU has to show over time, for scripts/gpu-check.sh:
 *     flow queue     steps are queued behind a device that stands still: nothing that a step calls
 *                    waits for the device
 *     flow abort     a collective that does not end is aborted at its deadline; a new membership
 *                    works (HVD_NCCL_TIMEOUT_SECONDS=1)
 *     flow memory    memberships come and go: neither GPU nor host memory grows
 * The last line printed says what was measured. */
#include "tests/bench/steps.h"
#include "tests/e2e/gpu.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

enum { STEPS = 3, ROUNDS = 12, SETTLED = 4, LAST_MS = 60000, STILL_MS = 30000 };
#define GROWTH_MB 32

static struct steps_shape shape;
static void *data[STEPS_TENSORS_MAX];
static void *stream;
static _Atomic int gate; /* 0: the program's stream stands still, at most STILL_MS */
static _Atomic int still;

static long now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void stand_still(void *arg)
{
    long until = now_ms() + STILL_MS;

    (void)arg;
    atomic_store(&still, 1);
    while (atomic_load(&gate) == 0 && now_ms() < until)
        usleep(200);
    atomic_store(&still, 0);
}

static void close_gate(void)
{
    long until = now_ms() + LAST_MS;

    atomic_store(&gate, 0);
    CU(cuLaunchHostFunc, (void *, void (*)(void *), void *),
       (stream, stand_still, NULL));
    while (atomic_load(&still) == 0 && now_ms() < until)
        usleep(200);
    IS(atomic_load(&still) == 1);
}

static void begin(void)
{
    OK(hvd_init(NULL));
    me = hvd_rank();
    n = hvd_size();
    gpu_open(0);
}

static void make_tensors(float value)
{
    float *host;
    int most = 0;

    stream = gpu_stream();
    steps_resnet50(&shape);
    for (int i = 0; i < shape.n; i++)
        most = shape.count[i] > most ? shape.count[i] : most;
    host = malloc((size_t)most * sizeof *host);
    for (int i = 0; i < most; i++)
        host[i] = value;
    for (int i = 0; i < shape.n; i++) {
        size_t size = (size_t)shape.count[i] * sizeof *host;

        data[i] = gpu_alloc(size);
        gpu_put(data[i], host, size, stream);
    }
    CU(cuStreamSynchronize, (void *), (stream));
    free(host);
}

/* One training step's exchange: enqueue as a backward pass does, then order the stream. */
static void step(void)
{
    static hvd_handle h[STEPS_TENSORS_MAX];

    for (int i = shape.n - 1; i >= 0; i--) {
        int64_t dims[1] = {shape.count[i]};
        char name[16];

        snprintf(name, sizeof name, "g%d", i);
        struct hvd_op o =
            gpu_op(HVD_ALLREDUCE, name, data[i], data[i], dims, 1, HVD_FLOAT32, stream);
        o.reduce_op = HVD_AVERAGE;
        OK(hvd_enqueue(&o, &h[i]));
    }
    for (int i = 0; i < shape.n; i++) {
        OK(hvd_wait(h[i], HVD_WAIT_ENQUEUED, LAST_MS));
        OK(hvd_stream_wait(h[i], stream));
        OK(hvd_release(h[i]));
    }
}

static void check(float want)
{
    float *host = malloc((size_t)shape.count[0] * sizeof *host);

    gpu_get(host, data[0], (size_t)shape.count[0] * sizeof *host, stream);
    for (int i = 0; i < shape.count[0]; i++)
        IS(host[i] == want);
    free(host);
}

/* How long it takes to queue the steps while the device stands; *waited: somebody did. */
static long queue_behind(bool *waited)
{
    long began;
    long took;

    close_gate();
    began = now_ms();
    for (int i = 0; i < STEPS; i++)
        step();
    took = now_ms() - began;
    *waited = atomic_load(&still) == 0;
    atomic_store(&gate, 1);
    check(2);
    return took;
}

static int queue(void)
{
    bool waited;
    long took;

    begin();
    make_tensors(2);
    step();
    check(2);
    queue_behind(&waited); /* not the steady state: the plane's tables are allocated */
    took = queue_behind(&waited);
    OK(hvd_shutdown());
    if (waited)
        printf("a step waited for the device, %ld ms\n", took);
    else
        printf("%d steps queued in %ld ms\n", STEPS, took);
    return waited;
}

static int abort_and_again(void)
{
    int64_t dims[1];
    char text[1024];
    hvd_handle h;
    long began;
    long took;

    begin();
    make_tensors(2);
    dims[0] = shape.count[0];
    step();
    check(2);
    close_gate();
    began = now_ms();
    struct hvd_op o =
        gpu_op(HVD_ALLREDUCE, "stuck", data[0], data[0], dims, 1, HVD_FLOAT32, stream);
    OK(hvd_enqueue(&o, &h));
    IS(hvd_wait(h, HVD_WAIT_ENQUEUED, LAST_MS) == HVD_OK);
    while (hvd_get_state() != HVD_FAILED && now_ms() - began < STILL_MS / 2)
        usleep(1000);
    IS(hvd_get_state() == HVD_FAILED);
    took = now_ms() - began;
    atomic_store(&gate, 1); /* the device comes back */
    IS(hvd_wait(h, HVD_WAIT_DONE, LAST_MS) < 0);
    hvd_handle_error(h, text, sizeof text);
    if (strstr(text, "HVD_NCCL_TIMEOUT_SECONDS") == NULL) {
        printf("another error than the deadline's: %s\n", text);
        return 1;
    }
    OK(hvd_release(h));
    hvd_shutdown();
    OK(hvd_init(NULL));
    CU(cuStreamSynchronize, (void *), (stream));
    for (int i = 0; i < STEPS; i++)
        step();
    CU(cuStreamSynchronize, (void *), (stream));
    OK(hvd_shutdown());
    printf("aborted after %ld ms, works again\n", took);
    return 0;
}

static size_t gpu_free_bytes(void)
{
    size_t left = 0;
    size_t all = 0;

    CU(cuMemGetInfo_v2, (size_t *, size_t *), (&left, &all));
    return left;
}

static long rss_kb(void)
{
    char line[256];
    long kb = 0;
    FILE *f = fopen("/proc/self/status", "r");

    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "VmRSS: %ld", &kb) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return kb;
}

static int memory(void)
{
    size_t left = 0;
    long rss = 0;
    double gpu_mb;
    double host_mb;

    for (int round = 0; round < ROUNDS; round++) {
        begin();
        if (round == 0)
            make_tensors(2);
        for (int i = 0; i < STEPS; i++)
            step();
        check(2);
        OK(hvd_shutdown());
        if (round == SETTLED) {
            left = gpu_free_bytes();
            rss = rss_kb();
        }
    }
    gpu_mb = ((double)left - (double)gpu_free_bytes()) / 1e6;
    host_mb = (double)(rss_kb() - rss) / 1e3;
    printf("%+.1f MB of the GPU, %+.1f MB of the host in %d memberships\n", gpu_mb,
           host_mb, ROUNDS - 1 - SETTLED);
    return gpu_mb > GROWTH_MB || host_mb > GROWTH_MB;
}

int main(int argc, char **argv)
{
    const char *what = argc > 1 ? argv[1] : "";

    if (strcmp(what, "queue") == 0)
        return queue();
    if (strcmp(what, "abort") == 0)
        return abort_and_again();
    if (strcmp(what, "memory") == 0)
        return memory();
    fprintf(stderr, "flow queue|abort|memory\n");
    return 2;
}
