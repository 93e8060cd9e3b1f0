/**
 * Time in-place float32 sums through hvd.h, back to back; rank 0 prints JSON lines.
 *
 *     hvdrun -np N bench_allreduce NAME [SECONDS_PER_SIZE [MAX_BYTES [alloc]]]
 *     hvdrun -np N bench_allreduce NAME idle SECONDS
 *
 * alloc: the tensor comes from hvd_alloc instead of malloc. idle: sleep after hvd_init
 * and one allreduce, then print the CPU time that each rank spent meanwhile.
 */
#include <errno.h>
#include <sys/resource.h>
#include <unistd.h>

#include <hvd/hvd.h>

#include "bench.h"

static void need(enum hvd_status status, const char *what)
{
    if (status == HVD_OK)
        return;
    fprintf(stderr, "bench_allreduce: %s: %s\n", what, hvd_last_error());
    exit(1);
}

static void sum(float *v, size_t count, const char *name)
{
    need(hvd_allreduce(v, v, (int64_t)count, HVD_FLOAT32, HVD_SUM, name),
         "hvd_allreduce");
}

static void time_size(const char *peer, size_t size_bytes, double cap_s, int shared)
{
    static double us[BENCH_ITERS_MAX];
    size_t count = size_bytes / sizeof(float);
    float *v = shared ? hvd_alloc(size_bytes) : malloc(size_bytes);
    char name[32];
    int32_t iters = bench_iters(size_bytes);

    if (v == NULL)
        need(HVD_ENOMEM, "tensor");
    snprintf(name, sizeof name, "bench/%zu", size_bytes);
    bench_fill(v, count, hvd_rank());
    sum(v, count, name);
    if (bench_check(v, count, hvd_size()) != 0)
        need(HVD_EINTERNAL, "the sum is wrong");
    memset(v, 0, size_bytes);

    int warm = iters / 10 + 1;
    double began_us = bench_now_us();
    for (int i = 0; i < warm; i++)
        sum(v, count, name);
    iters = bench_cap(iters, (bench_now_us() - began_us) / warm, cap_s);
    need(hvd_broadcast(&iters, 1, HVD_INT32, 0, "iters"), "hvd_broadcast");
    need(hvd_barrier(0), "hvd_barrier");
    for (int i = 0; i < iters; i++) {
        double start_us = bench_now_us();

        sum(v, count, name);
        us[i] = bench_now_us() - start_us;
    }
    if (hvd_rank() == 0)
        bench_report(peer, hvd_size(), size_bytes, us, iters);
    if (shared)
        hvd_free(v);
    else
        free(v);
}

static double cpu_ms(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1e3 +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-3;
}

static void idle(const char *peer, double seconds)
{
    float one = 1;
    double *all = calloc((size_t)hvd_size(), sizeof *all);
    double worst = 0;
    struct timespec left = {.tv_sec = (time_t)seconds,
                            .tv_nsec =
                                (long)((seconds - (double)(time_t)seconds) * 1e9)};

    if (all == NULL)
        need(HVD_ENOMEM, "list of CPU times");
    sum(&one, 1, "before");
    double began_ms = cpu_ms();
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
    double spent_ms = cpu_ms() - began_ms;
    need(hvd_allgather(&spent_ms, 1, all, hvd_size(), HVD_FLOAT64, "after"),
         "hvd_allgather");
    for (int r = 0; r < hvd_size(); r++)
        worst = all[r] > worst ? all[r] : worst;
    if (hvd_rank() == 0)
        printf(
            "{\"peer\":\"%s\",\"np\":%d,\"idle_s\":%.1f,\"worst_rank_cpu_ms\":%.3f}\n",
            peer, hvd_size(), seconds, worst);
    free(all);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: bench_allreduce NAME [SECONDS_PER_SIZE [MAX_BYTES "
                        "[alloc]]]\n       bench_allreduce NAME idle SECONDS\n");
        return 2;
    }
    need(hvd_init(NULL), "hvd_init");
    if (argc > 3 && strcmp(argv[2], "idle") == 0) {
        idle(argv[1], atof(argv[3]));
    } else {
        double cap_s = argc > 2 ? atof(argv[2]) : 2;
        size_t max = argc > 3 ? strtoull(argv[3], NULL, 0) : SIZE_MAX;
        int shared = argc > 4 && strcmp(argv[4], "alloc") == 0;

        for (size_t s = 0; s < BENCH_NSIZES && bench_sizes[s] <= max; s++)
            time_size(argv[1], bench_sizes[s], cap_s, shared);
    }
    need(hvd_shutdown(), "hvd_shutdown");
    return 0;
}
