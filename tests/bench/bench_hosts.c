/**
 * What two levels gain: every collective over "hosts" of L processes each, by the plane
 * of several hosts and by tcp alone, in turn, in one run; prints the ratio of the
 * medians. Everything is on one machine: a wire that is slower than memory gains more,
 * since two levels send 1/L of the bytes.
 *
 *     bench_hosts [HOSTS [L [ROUNDS]]]       2 4 15
 *
 * By hand:
 *     make build/lib/libhvi.a
 *     cc -O2 -D_GNU_SOURCE -I. -Iworker/include tests/bench/bench_hosts.c \
 *        build/lib/libhvi.a -lm -pthread -o build/bench_hosts
 */
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <hvd/hvd.h>

#include "worker/plane/cpu/cpu.h"
#include "worker/plane/cpu/hosts.h"

enum { RANKS_MAX = 32, ROUNDS_MAX = 1000, SLOT_BYTES = 1024 * 1024, NSLOTS = 4 };

static int fds[2][RANKS_MAX][RANKS_MAX];

struct rank {
    int np, me, per_host;
    int32_t members[RANKS_MAX], host_of[RANKS_MAX];
    struct hvi_plane *flat, *hosts;
    uint64_t seq;
};

static void need(int ok, const char *what, const char *why)
{
    if (ok)
        return;
    fprintf(stderr, "bench_hosts: %s: %s\n", what, why);
    _exit(1);
}

static double now_us(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void run(struct rank *r, struct hvi_plane *p, uint32_t kind, uint32_t op,
                void *in, void *out, int64_t count)
{
    int64_t rows[RANKS_MAX];
    struct hvi_piece piece = {
        .in = in, .out = out, .count = count, .row = 1, .rows = rows};
    struct hvi_group g = {.seq = ++r->seq,
                          .kind = kind,
                          .reduce_op = op,
                          .dtype = HVD_FLOAT32,
                          .prescale = 1,
                          .postscale = 1,
                          .nmembers = r->np,
                          .members = r->members,
                          .me = r->me,
                          .npieces = kind == HVD_BARRIER ? 0 : 1,
                          .pieces = &piece};
    struct hvi_err err;

    need(hvi_plane_run(p, &g, &err) == HVD_OK, "collective", err.text);
}

static void connect_all(int np, int set)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM, 0);

    need(bind(listener, (struct sockaddr *)&a, sizeof a) == 0 &&
             listen(listener, 16) == 0 &&
             getsockname(listener, (struct sockaddr *)&a, &len) == 0,
         "listener", strerror(errno));
    for (int i = 0; i < np; i++) {
        fds[set][i][i] = -1;
        for (int k = 0; k < i; k++) {
            fds[set][i][k] = socket(AF_INET, SOCK_STREAM, 0);
            need(connect(fds[set][i][k], (struct sockaddr *)&a, sizeof a) == 0,
                 "connect", strerror(errno));
            fds[set][k][i] = accept(listener, NULL, NULL);
        }
    }
    close(listener);
}

static void attach(struct rank *r, uint8_t *mem, size_t part)
{
    struct hvi_bells *bells = (void *)(mem + (size_t)r->host_of[r->me] * part);
    int first = r->host_of[r->me] * r->per_host;
    struct hvi_plane *local = NULL;
    struct hvi_plane *mesh = NULL;
    struct hvi_err err;

    need(hvi_tcp_new(r->me, r->np, fds[0][r->me], &r->flat, &err) == HVD_OK, "tcp",
         err.text);
    need(hvi_tcp_new(r->me, r->np, fds[1][r->me], &mesh, &err) == HVD_OK, "tcp",
         err.text);
    need(hvi_shm_attach(bells + 1, bells, r->me - first, r->per_host,
                        r->members + first, &local, &err) == HVD_OK,
         "shm", err.text);
    need(hvi_hosts_new(r->me, r->np, r->host_of, local, mesh, &r->hosts, &err) ==
             HVD_OK,
         "hosts", err.text);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a;
    double y = *(const double *)b;

    return (x > y) - (x < y);
}

static void compare(struct rank *r, const char *name, uint32_t kind, uint32_t op,
                    size_t bytes, int rounds)
{
    static double us[2][ROUNDS_MAX];
    int64_t count = (int64_t)(bytes / sizeof(float));
    float *in = calloc((size_t)count + 1, sizeof *in);
    float *out = calloc((size_t)count * (kind == HVD_ALLGATHER ? (size_t)r->np : 1) + 1,
                        sizeof *out);

    need(in != NULL && out != NULL, "tensor", "no memory");
    for (int i = -2; i < rounds; i++)
        for (int p = 0; p < 2; p++) {
            struct hvi_plane *plane = p == 0 ? r->flat : r->hosts;
            double start_us;

            run(r, r->flat, HVD_BARRIER, HVD_SUM, NULL, NULL, 0);
            start_us = now_us();
            run(r, plane, kind, op, in, out, count);
            if (i >= 0)
                us[p][i] = now_us() - start_us;
        }
    qsort(us[0], (size_t)rounds, sizeof us[0][0], by_size);
    qsort(us[1], (size_t)rounds, sizeof us[1][0], by_size);
    if (r->me == 0) {
        printf("%-14s %9zu bytes: tcp %9.0f us, hosts %9.0f us, ratio %.2f\n", name,
               bytes, us[0][rounds / 2], us[1][rounds / 2],
               us[0][rounds / 2] / us[1][rounds / 2]);
        fflush(stdout);
    }
    free(in);
    free(out);
}

static void rank_main(struct rank *r, uint8_t *mem, size_t part, int rounds)
{
    static const size_t sizes[] = {1024, 64 * 1024, 1024 * 1024, 16 * 1024 * 1024};

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    attach(r, mem, part);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t each = sizes[i] / (size_t)r->np;

        compare(r, "allreduce", HVD_ALLREDUCE, HVD_SUM, sizes[i], rounds);
        compare(r, "reducescatter", HVD_REDUCESCATTER, HVD_SUM, sizes[i], rounds);
        compare(r, "allgather", HVD_ALLGATHER, HVD_SUM, each, rounds);
        compare(r, "adasum", HVD_ALLREDUCE, HVD_ADASUM, sizes[i] / 4, rounds);
    }
    _exit(0);
}

int main(int argc, char **argv)
{
    int hosts = argc > 1 ? atoi(argv[1]) : 2;
    int per_host = argc > 2 ? atoi(argv[2]) : 4;
    int rounds = argc > 3 ? atoi(argv[3]) : 15;
    struct rank r = {.np = hosts * per_host, .per_host = per_host};
    size_t part = sizeof(struct hvi_bells) + hvi_shm_size(per_host, SLOT_BYTES, NSLOTS);
    uint8_t *mem;
    int bad = 0;

    if (r.np < 2 || r.np > RANKS_MAX || rounds < 1 || rounds > ROUNDS_MAX) {
        fprintf(stderr, "usage: bench_hosts [HOSTS [PER_HOST [ROUNDS]]]\n");
        return 2;
    }
    part = (part + 4095) / 4096 * 4096;
    mem = mmap(NULL, part * (size_t)hosts, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    need(mem != MAP_FAILED, "segment", strerror(errno));
    for (int h = 0; h < hosts; h++)
        hvi_shm_format(mem + (size_t)h * part + sizeof(struct hvi_bells), per_host,
                       SLOT_BYTES, NSLOTS);
    for (int set = 0; set < 2; set++)
        connect_all(r.np, set);
    for (int i = 0; i < r.np; i++) {
        r.members[i] = i;
        r.host_of[i] = i / per_host;
    }
    for (int i = 0; i < r.np; i++) {
        r.me = i;
        if (fork() == 0)
            rank_main(&r, mem, part, rounds);
    }
    for (int i = 0; i < r.np; i++) {
        int status = 0;

        wait(&status);
        bad |= status;
    }
    return bad != 0;
}
