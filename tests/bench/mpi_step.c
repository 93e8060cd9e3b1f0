/* The peer of bench_step.c in MPI: one MPI_Iallreduce a tensor, the last first, then
 * MPI_Waitall; or `packed`: all copied into one buffer, one MPI_Allreduce, copied back.
 *
 *     mpi_step NAME resnet50|small each|packed [SECONDS]
 */
#include <mpi.h>

#include "steps.h"

static struct steps_shape shape;
static float *tensor[STEPS_TENSORS_MAX];
static MPI_Request request[STEPS_TENSORS_MAX];
static float *all;
static int all_count;

static void step_each(void)
{
    for (int i = shape.n - 1; i >= 0; i--)
        MPI_Iallreduce(MPI_IN_PLACE, tensor[i], shape.count[i], MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD, &request[i]);
    MPI_Waitall(shape.n, request, MPI_STATUSES_IGNORE);
}

static void step_packed(void)
{
    size_t at = 0;

    for (int i = shape.n - 1; i >= 0; at += (size_t)shape.count[i--])
        memcpy(all + at, tensor[i], (size_t)shape.count[i] * sizeof(float));
    MPI_Allreduce(MPI_IN_PLACE, all, all_count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    at = 0;
    for (int i = shape.n - 1; i >= 0; at += (size_t)shape.count[i--])
        memcpy(tensor[i], all + at, (size_t)shape.count[i] * sizeof(float));
}

int main(int argc, char **argv)
{
    static double us[BENCH_ITERS_MAX];
    void (*step)(void) = step_each;
    int np;
    int rank;
    int iters = 400;

    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (argc < 4) {
        fprintf(stderr, "usage: mpi_step NAME resnet50|small each|packed [SECONDS]\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (strcmp(argv[2], "small") == 0)
        steps_small(&shape);
    else
        steps_resnet50(&shape);
    if (strcmp(argv[3], "packed") == 0)
        step = step_packed;
    double cap_s = argc > 4 ? atof(argv[4]) : 2;
    all_count = (int)(steps_bytes(&shape) / sizeof(float));
    all = calloc((size_t)all_count, sizeof *all);
    for (int i = 0; i < shape.n; i++) {
        tensor[i] = malloc((size_t)shape.count[i] * sizeof(float));
        if (tensor[i] == NULL || all == NULL)
            MPI_Abort(MPI_COMM_WORLD, 1);
        bench_fill(tensor[i], (size_t)shape.count[i], rank);
    }
    step();
    for (int i = 0; i < shape.n; i++) {
        if (bench_check(tensor[i], (size_t)shape.count[i], np) != 0) {
            fprintf(stderr, "mpi_step: the sum is wrong\n");
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        memset(tensor[i], 0, (size_t)shape.count[i] * sizeof(float));
    }
    double began_us = bench_now_us();
    for (int i = 0; i < 5; i++)
        step();
    iters = bench_cap(iters, (bench_now_us() - began_us) / 5, cap_s);
    MPI_Bcast(&iters, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int i = 0; i < iters; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start_us = bench_now_us();

        step();
        us[i] = bench_now_us() - start_us;
    }
    if (rank == 0)
        steps_report(argv[1], np, &shape, us, iters);
    MPI_Finalize();
    return 0;
}
