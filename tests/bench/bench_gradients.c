/**
 * Time the exchange of one training step's gradients through hvd.h: the shapes of
 * ResNet-50, 161 float32 tensors, in place, all enqueued and then awaited together. Rank 0
 * prints the median in milliseconds; the counterpart of tf_step.py.
 *
 *     hvdrun -np N bench_gradients [SECONDS]
 */
#include <hvd/hvd.h>

#include "bench.h"

enum { TENSORS_MAX = 200, STEPS_MAX = 2000 };

static int64_t counts[TENSORS_MAX];
static float *tensors[TENSORS_MAX];
static int tensor_count;

static void add(int64_t count)
{
    counts[tensor_count++] = count;
}

/* A convolution and the two vectors of the normalization behind it. */
static void add_conv(int64_t count, int64_t channels)
{
    add(count);
    add(channels);
    add(channels);
}

static void resnet50(void)
{
    static const int widths[] = {64, 128, 256, 512}, blocks[] = {3, 4, 6, 3};
    int64_t inputs = 64;

    add_conv((int64_t)64 * 3 * 7 * 7, 64);
    for (int stage = 0; stage < 4; stage++) {
        int64_t w = widths[stage];

        for (int block = 0; block < blocks[stage]; block++) {
            add_conv(w * inputs, w);
            add_conv(w * w * 9, w);
            add_conv(w * 4 * w, w * 4);
            if (block == 0)
                add_conv(w * 4 * inputs, w * 4);
            inputs = w * 4;
        }
    }
    add((int64_t)1000 * 2048);
    add(1000);
}

static void need(enum hvd_status status, const char *what)
{
    if (status == HVD_OK)
        return;
    fprintf(stderr, "bench_gradients: %s: %s\n", what, hvd_last_error());
    exit(1);
}

static void step(void)
{
    hvd_handle handles[TENSORS_MAX];
    char name[32];

    /* as a backward pass brings them: the last first */
    for (int i = tensor_count - 1; i >= 0; i--) {
        struct hvd_op op = {.size = sizeof(op),
                            .kind = HVD_ALLREDUCE,
                            .reduce_op = HVD_AVERAGE,
                            .name = name};

        snprintf(name, sizeof(name), "gradient.%d", i);
        op.in.data = tensors[i];
        op.in.dims = &counts[i];
        op.in.ndim = 1;
        op.in.dtype = HVD_FLOAT32;
        op.out = op.in;
        need(hvd_enqueue(&op, &handles[i]), "hvd_enqueue");
    }
    need(hvd_wait_all(handles, tensor_count, HVD_WAIT_DONE, -1), "hvd_wait_all");
    for (int i = 0; i < tensor_count; i++)
        hvd_release(handles[i]);
}

int main(int argc, char **argv)
{
    static double ms[STEPS_MAX];
    double seconds = argc > 1 ? strtod(argv[1], NULL) : 3.0, began;
    int steps = 0;
    int32_t more = 1;

    need(hvd_init(NULL), "hvd_init");
    resnet50();
    for (int i = 0; i < tensor_count; i++) {
        tensors[i] = calloc((size_t)counts[i], sizeof(float));
        if (tensors[i] == NULL)
            return 1;
    }
    for (int i = 0; i < 5; i++)
        step();
    began = bench_now_us();
    while (more) {
        double t = bench_now_us();

        step();
        ms[steps++] = (bench_now_us() - t) / 1e3;
        more = steps < STEPS_MAX && bench_now_us() - began < seconds * 1e6;
        need(hvd_broadcast(&more, 1, HVD_INT32, 0, "more"), "hvd_broadcast");
    }
    qsort(ms, (size_t)steps, sizeof(double), bench_compare);
    if (hvd_rank() == 0)
        printf("step c np=%d tensors=%d %.2f ms\n", hvd_size(), tensor_count,
               ms[steps / 2]);
    return hvd_shutdown() == HVD_OK ? 0 : 1;
}
