/**
 * The CPU planes alone, without negotiation: in-place float32 sums, back to back, among
 * forked processes; rank 0 prints the JSON lines of bench_allreduce.
 *
 *     bench_plane NAME shm|tcp NP [SECONDS [MAX_BYTES [MIN_BYTES [SLOT_BYTES]]]]
 *
 * By hand:
 *     make build/lib/libhvi.a
 *     cc -O2 -D_GNU_SOURCE -I. -Iworker/include -Itests/bench \
 *        tests/bench/bench_plane.c build/lib/libhvi.a -lm -pthread -o build/bench_plane
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "worker/plane/cpu/cpu.h"

#define RANKS_MAX 16

struct rank {
    int np, me;
    int32_t members[RANKS_MAX];
    struct hvi_plane *plane;
    uint64_t seq;
};

static void need(int ok, const char *what, const char *why)
{
    if (ok)
        return;
    fprintf(stderr, "bench_plane: %s: %s\n", what, why);
    _exit(1);
}

static void run(struct rank *r, uint32_t kind, void *data, int64_t count)
{
    struct hvi_piece piece = {.in = data, .out = data, .count = count, .row = 1};
    struct hvi_group g = {.seq = ++r->seq,
                          .kind = kind,
                          .reduce_op = HVD_SUM,
                          .dtype = HVD_FLOAT32,
                          .prescale = 1,
                          .postscale = 1,
                          .nmembers = r->np,
                          .members = r->members,
                          .me = r->me,
                          .npieces = kind == HVD_BARRIER ? 0 : 1,
                          .pieces = &piece};
    struct hvi_err err;

    need(hvi_plane_run(r->plane, &g, &err) == HVD_OK, "collective", err.text);
}

static void time_size(struct rank *r, const char *peer, size_t size_bytes, double cap_s)
{
    static double us[BENCH_ITERS_MAX];
    int64_t count = (int64_t)(size_bytes / sizeof(float));
    float *v = malloc(size_bytes);
    float iters = (float)bench_iters(size_bytes);
    int warm = (int)iters / 10 + 1;
    double began_us;

    need(v != NULL, "tensor", "no memory");
    bench_fill(v, (size_t)count, r->me);
    run(r, HVD_ALLREDUCE, v, count);
    need(bench_check(v, (size_t)count, r->np) == 0, "result", "the sum is wrong");
    memset(v, 0, size_bytes);
    began_us = bench_now_us();
    for (int i = 0; i < warm; i++)
        run(r, HVD_ALLREDUCE, v, count);
    iters = (float)bench_cap((int)iters, (bench_now_us() - began_us) / warm, cap_s);
    run(r, HVD_BROADCAST, &iters, 1);
    run(r, HVD_BARRIER, NULL, 0);
    for (int i = 0; i < (int)iters; i++) {
        double start_us = bench_now_us();

        run(r, HVD_ALLREDUCE, v, count);
        us[i] = bench_now_us() - start_us;
    }
    if (r->me == 0)
        bench_report(peer, r->np, size_bytes, us, (int)iters);
    free(v);
}

static int fds[RANKS_MAX][RANKS_MAX];

static void connect_all(int np)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    need(bind(listener, (struct sockaddr *)&a, sizeof(a)) == 0 &&
             listen(listener, 16) == 0 &&
             getsockname(listener, (struct sockaddr *)&a, &len) == 0,
         "listener", strerror(errno));
    for (int i = 0; i < np; i++) {
        fds[i][i] = -1;
        for (int k = 0; k < i; k++) {
            fds[i][k] = socket(AF_INET, SOCK_STREAM, 0);
            need(connect(fds[i][k], (struct sockaddr *)&a, sizeof(a)) == 0, "connect",
                 strerror(errno));
            fds[k][i] = accept(listener, NULL, NULL);
        }
    }
    close(listener);
}

static void rank_main(struct rank *r, struct hvi_bells *bells, int argc, char **argv)
{
    double cap_s = argc > 4 ? atof(argv[4]) : 2;
    size_t max = argc > 5 ? strtoull(argv[5], NULL, 0) : SIZE_MAX;
    size_t min = argc > 6 ? strtoull(argv[6], NULL, 0) : 0;
    enum hvd_status rc;
    struct hvi_err err;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (bells == NULL)
        rc = hvi_tcp_new(r->me, r->np, fds[r->me], &r->plane, &err);
    else
        rc =
            hvi_shm_attach(bells + 1, bells, r->me, r->np, r->members, &r->plane, &err);
    need(rc == HVD_OK, "plane", err.text);
    for (int i = 0; bells == NULL && i < r->np; i++)
        for (int k = 0; k < r->np; k++)
            if (i != r->me && fds[i][k] >= 0)
                close(fds[i][k]);
    for (size_t s = 0; s < BENCH_NSIZES && bench_sizes[s] <= max; s++)
        if (bench_sizes[s] >= min)
            time_size(r, argv[1], bench_sizes[s], cap_s);
    r->plane->ops->free(r->plane);
    _exit(0);
}

int main(int argc, char **argv)
{
    int np = argc > 3 ? atoi(argv[3]) : 0;
    size_t slot = argc > 7 ? strtoull(argv[7], NULL, 0) : 1024 * 1024;
    int nslots = 4;
    struct hvi_bells *bells = NULL;
    struct rank r = {.np = np};
    int bad = 0;

    if (np < 1 || np > RANKS_MAX) {
        fprintf(stderr,
                "usage: bench_plane NAME shm|tcp NP [SECONDS_PER_SIZE [MAX_BYTES "
                "[MIN_BYTES [SLOT_BYTES]]]]\n");
        return 2;
    }
    if (strcmp(argv[2], "tcp") == 0) {
        connect_all(np);
    } else {
        bells = mmap(NULL, sizeof(*bells) + hvi_shm_size(np, slot, nslots),
                     PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        need(bells != MAP_FAILED, "segment", strerror(errno));
        hvi_shm_format(bells + 1, np, slot, nslots);
    }
    for (int i = 0; i < np; i++)
        r.members[i] = i;
    for (int i = 0; i < np; i++) {
        r.me = i;
        if (fork() == 0)
            rank_main(&r, bells, argc, argv);
    }
    for (int i = 0; i < np; i++) {
        int status = 0;

        wait(&status);
        bad |= status;
    }
    return bad != 0;
}
