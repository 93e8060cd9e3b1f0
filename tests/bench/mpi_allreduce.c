/* The peer of bench_allreduce.c in MPI: mpi_allreduce NAME [SECONDS_PER_SIZE
 * [MAX_BYTES]] */
#include <mpi.h>
#include <stdint.h>

#include "bench.h"

static void sum(float *v, size_t count)
{
    MPI_Allreduce(MPI_IN_PLACE, v, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    static double us[BENCH_ITERS_MAX];
    int np;
    int rank;

    MPI_Init(&argc, &argv);
    MPI_Comm_size(MPI_COMM_WORLD, &np);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const char *peer = argc > 1 ? argv[1] : "mpi";
    double cap_s = argc > 2 ? atof(argv[2]) : 2;
    size_t max = argc > 3 ? strtoull(argv[3], NULL, 0) : SIZE_MAX;

    for (size_t s = 0; s < BENCH_NSIZES && bench_sizes[s] <= max; s++) {
        size_t count = bench_sizes[s] / sizeof(float);
        float *v = malloc(bench_sizes[s]);
        int iters = bench_iters(bench_sizes[s]);
        int warm = iters / 10 + 1;

        if (v == NULL)
            MPI_Abort(MPI_COMM_WORLD, 1);
        bench_fill(v, count, rank);
        sum(v, count);
        if (bench_check(v, count, np) != 0) {
            fprintf(stderr, "mpi_allreduce: the sum is wrong\n");
            MPI_Abort(MPI_COMM_WORLD, 1);
        }
        memset(v, 0, bench_sizes[s]);
        double began_us = bench_now_us();
        for (int i = 0; i < warm; i++)
            sum(v, count);
        iters = bench_cap(iters, (bench_now_us() - began_us) / warm, cap_s);
        MPI_Bcast(&iters, 1, MPI_INT, 0, MPI_COMM_WORLD);
        MPI_Barrier(MPI_COMM_WORLD);
        for (int i = 0; i < iters; i++) {
            double start_us = bench_now_us();

            sum(v, count);
            us[i] = bench_now_us() - start_us;
        }
        if (rank == 0)
            bench_report(peer, np, bench_sizes[s], us, iters);
        free(v);
    }
    MPI_Finalize();
    return 0;
}
