/**
 * steps - allreduces until SECONDS have passed on rank 0, or a call fails. Every result
 * is checked.
 *
 *     steps SECONDS [COUNT [PAUSE_MS]]
 *
 * Prints "running" after the first steps, at the end how many there were; after a failure
 * "rank R: STATUS: TEXT", and ends with 4. COUNT: floats, 65536.
 */
#include <hvd/hvd.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    double until = now_s() + (argc > 1 ? atof(argv[1]) : 10);
    int64_t count = argc > 2 ? atoll(argv[2]) : 65536;
    long pause_ms = argc > 3 ? atol(argv[3]) : 0;
    float *x = malloc((size_t)count * sizeof *x);
    enum hvd_status rc = hvd_init(NULL);
    long steps = 0;
    int over = 0;

    if (x == NULL || rc != HVD_OK) {
        printf("rank ?: %d: %s\n", (int)rc, hvd_last_error());
        return 4;
    }
    while (rc == HVD_OK && !over) {
        struct timespec pause = {pause_ms / 1000, pause_ms % 1000 * 1000000};

        for (int64_t i = 0; i < count; i++)
            x[i] = (float)(hvd_rank() + i % 7);
        x[0] = hvd_rank() == 0 && now_s() > until;
        rc = hvd_allreduce(x, x, count, HVD_FLOAT32, HVD_SUM, "x");
        if (rc != HVD_OK)
            break;
        over = x[0] > 0;
        for (int64_t i = 1; i < count; i++) {
            float n = (float)hvd_size();

            if (x[i] != n * (n - 1) / 2 + n * (float)(i % 7)) {
                printf("rank %d: step %ld: element %ld is %g\n", hvd_rank(), steps,
                       (long)i, (double)x[i]);
                return 5;
            }
        }
        if (++steps == 5 && hvd_rank() == 0) {
            puts("running");
            fflush(stdout);
        }
        nanosleep(&pause, NULL);
    }
    if (rc != HVD_OK) {
        printf("rank %d: %d: %s\n", hvd_rank(), (int)rc, hvd_last_error());
        return 4;
    }
    printf("rank %d: %ld steps\n", hvd_rank(), steps);
    return 0;
}
