/**
 * The exchange of one training step through hvd.h: every gradient enqueued by name, the
 * last of the forward pass first, then all waited for. Rank 0 prints a JSON line.
 *
 *     hvdrun -np N bench_step NAME resnet50|small [SECONDS [alloc]]
 */
#include <hvd/hvd.h>

#include "steps.h"

static void need(enum hvd_status status, const char *what)
{
    if (status == HVD_OK)
        return;
    fprintf(stderr, "bench_step: %s: %s\n", what, hvd_last_error());
    exit(1);
}

static struct steps_shape shape;
static float *tensor[STEPS_TENSORS_MAX];
static char name[STEPS_TENSORS_MAX][32];
static hvd_handle handle[STEPS_TENSORS_MAX];

static void step(void)
{
    for (int i = shape.n - 1; i >= 0; i--) {
        int64_t dims[1] = {shape.count[i]};
        struct hvd_tensor t = {
            .data = tensor[i], .dims = dims, .ndim = 1, .dtype = HVD_FLOAT32};
        struct hvd_op op;

        memset(&op, 0, sizeof op);
        op.size = sizeof op;
        op.kind = HVD_ALLREDUCE;
        op.reduce_op = HVD_SUM;
        op.name = name[i];
        op.in = op.out = t;
        need(hvd_enqueue(&op, &handle[i]), "hvd_enqueue");
    }
    need(hvd_wait_all(handle, shape.n, HVD_WAIT_DONE, -1), "hvd_wait_all");
    for (int i = 0; i < shape.n; i++)
        need(hvd_release(handle[i]), "hvd_release");
}

int main(int argc, char **argv)
{
    static double us[BENCH_ITERS_MAX];
    double cap_s = argc > 3 ? atof(argv[3]) : 2;
    int shared = argc > 4 && strcmp(argv[4], "alloc") == 0;
    int32_t iters = 400;

    if (argc < 3) {
        fprintf(stderr, "usage: bench_step NAME resnet50|small [SECONDS [alloc]]\n");
        return 2;
    }
    if (strcmp(argv[2], "small") == 0)
        steps_small(&shape);
    else
        steps_resnet50(&shape);
    need(hvd_init(NULL), "hvd_init");
    for (int i = 0; i < shape.n; i++) {
        size_t bytes = (size_t)shape.count[i] * sizeof(float);

        snprintf(name[i], sizeof name[i], "%s/%d", shape.name, i);
        tensor[i] = shared ? hvd_alloc(bytes) : malloc(bytes);
        if (tensor[i] == NULL)
            need(HVD_ENOMEM, "tensor");
        bench_fill(tensor[i], (size_t)shape.count[i], hvd_rank());
    }
    step();
    for (int i = 0; i < shape.n; i++) {
        if (bench_check(tensor[i], (size_t)shape.count[i], hvd_size()) != 0)
            need(HVD_EINTERNAL, "the sum is wrong");
        memset(tensor[i], 0, (size_t)shape.count[i] * sizeof(float));
    }
    double began_us = bench_now_us();
    for (int i = 0; i < 5; i++)
        step();
    iters = bench_cap(iters, (bench_now_us() - began_us) / 5, cap_s);
    need(hvd_broadcast(&iters, 1, HVD_INT32, 0, "iters"), "hvd_broadcast");
    for (int i = 0; i < iters; i++) {
        need(hvd_barrier(0), "hvd_barrier");
        double start_us = bench_now_us();

        step();
        us[i] = bench_now_us() - start_us;
    }
    if (hvd_rank() == 0)
        steps_report(argv[1], hvd_size(), &shape, us, iters);
    need(hvd_shutdown(), "hvd_shutdown");
    return 0;
}
