/**
 * mixed - epochs of collectives of all kinds, one after another, until a call fails.
 *
 *     mixed SEED [BIG]
 *
 * Each epoch: init, some 30 operations in an order drawn from SEED, join, shutdown. BIG: floats
 * of the largest allreduce, 200000. Rank 0 prints "running" in the second epoch. When a call fails,
 * "rank R: CALL: STATUS after N ms: TEXT"; N is how long the call took, but of the first init: since
 * all ranks may have come. SIGTERM is ignored. Ends with 4, after 60 s with 0.
 */
#include <hvd/hvd.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static unsigned seed;
static int64_t big = 200000;
static const char *call = "init";
static long began_ms;

static long now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void begin(const char *what)
{
    call = what;
    began_ms = now_ms();
}

static enum hvd_status run(int kind, const char *name, int64_t rows)
{
    static float *x;
    struct hvd_op op;
    int64_t dims[1] = {rows};
    enum hvd_status rc;
    hvd_handle h;

    if (x == NULL)
        x = calloc((size_t)big, sizeof *x);
    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = kind;
    op.reduce_op = HVD_SUM;
    op.name = name;
    op.in =
        (struct hvd_tensor){.data = x, .dims = dims, .ndim = 1, .dtype = HVD_FLOAT32};
    op.out = op.in;
    if (kind != HVD_ALLREDUCE && kind != HVD_BROADCAST)
        op.out.data = NULL;
    begin(name);
    rc = hvd_enqueue(&op, &h);
    if (rc != HVD_OK)
        return rc;
    rc = hvd_wait(h, HVD_WAIT_DONE, -1);
    hvd_release(h);
    return rc;
}

static enum hvd_status one(int n)
{
    switch (rand_r(&seed) % 8) {
    case 0:
        return run(HVD_ALLREDUCE, "large allreduce", big);
    case 1:
        return run(HVD_ALLGATHER, "allgather", 1000 + 10 * hvd_rank());
    case 2:
        return run(HVD_BROADCAST, "broadcast", 5000);
    case 3:
        return run(HVD_ALLTOALL, "alltoall", 300 * n);
    case 4:
        return run(HVD_REDUCESCATTER, "reducescatter", 4000);
    case 5:
        begin("barrier");
        return hvd_barrier(0);
    default:
        return run(HVD_ALLREDUCE, "allreduce", 100);
    }
}

int main(int argc, char **argv)
{
    long until_ms = now_ms() + 60000;
    enum hvd_status rc = HVD_OK;
    int last, rank = -1;

    signal(SIGTERM, SIG_IGN); /* that an error comes is to be seen, however late */
    seed = argc > 1 ? (unsigned)atoi(argv[1]) : 1;
    if (argc > 2)
        big = atoll(argv[2]);
    for (int epoch = 0; rc == HVD_OK && now_ms() < until_ms; epoch++) {
        begin("init");
        rc = hvd_init(NULL);
        rank = rc == HVD_OK ? hvd_rank() : rank;
        if (epoch == 1 && rank == 0) {
            puts("running");
            fflush(stdout);
        }
        for (int i = 0; rc == HVD_OK && i < 30; i++)
            rc = one(hvd_size());
        if (rc == HVD_OK) {
            begin("join");
            rc = hvd_join(&last);
        }
        if (rc != HVD_OK)
            break;
        begin("shutdown");
        rc = hvd_shutdown();
    }
    if (rc != HVD_OK) {
        printf("rank %d: %s: %d after %ld ms: %s\n", rank, call, (int)rc,
               now_ms() - began_ms, hvd_last_error());
        return 4;
    }
    return 0;
}
