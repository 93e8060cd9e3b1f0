/**
 * The CPU planes alone, without negotiation: one collective of float32, back to back,
 * among forked processes; rank 0 prints the JSON lines of bench_allreduce.
 *
 *     bench_plane [-k KIND] [-w WIRE] NAME shm|tcp|hosts NP|HOSTSxRANKS
 *                 [SECONDS [MAX_BYTES [MIN_BYTES [SLOT_BYTES]]]]
 *
 * KIND: allreduce (in place), reducescatter, allgather, alltoall, broadcast, adasum. A
 * size is that of a rank's largest tensor; busbw is an allreduce's. WIRE: host h is in
 * the network namespace WIRE-h with the address 10.79.0.h (tests/bench/wire.sh).
 *
 * By hand:
 *     make build/lib/libhvi.a
 *     cc -O2 -D_GNU_SOURCE -I. -Iworker/include -Itests/bench \
 *        tests/bench/bench_plane.c build/lib/libhvi.a -lm -pthread -o build/bench_plane
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"
#include "worker/plane/cpu/cpu.h"
#include "worker/plane/cpu/hosts.h"

enum { RANKS_MAX = 64, NSLOTS = 4 };

static const struct kind {
    const char *name;
    uint32_t kind, op;
} kinds[] = {{"allreduce", HVD_ALLREDUCE, HVD_SUM},
             {"reducescatter", HVD_REDUCESCATTER, HVD_SUM},
             {"allgather", HVD_ALLGATHER, HVD_SUM},
             {"alltoall", HVD_ALLTOALL, HVD_SUM},
             {"broadcast", HVD_BROADCAST, HVD_SUM},
             {"adasum", HVD_ALLREDUCE, HVD_ADASUM}};

struct rank {
    int np, per_host, me;
    int32_t members[RANKS_MAX], host_of[RANKS_MAX];
    struct hvi_plane *plane;
    uint64_t seq;
};

static int fds[RANKS_MAX][RANKS_MAX];

static void need(int ok, const char *what, const char *why)
{
    if (ok)
        return;
    fprintf(stderr, "bench_plane: %s: %s\n", what, why);
    _exit(1);
}

/* ---- one collective */

static void run(struct rank *r, uint32_t kind, uint32_t op, const void *in, void *out,
                int64_t count)
{
    int64_t rows[RANKS_MAX];
    struct hvi_piece piece = {
        .in = in, .out = out, .count = count, .row = 1, .rows = rows};
    struct hvi_group g = {.seq = r->seq += HVI_SEQ_STEP,
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

    need(hvi_plane_run(r->plane, &g, &err) == HVD_OK, "collective", err.text);
}

/* A broadcast is over when the last rank has it. */
static void run_kind(struct rank *r, const struct kind *k, float *v, float *out,
                     int64_t count)
{
    bool in_place = k->kind == HVD_ALLREDUCE || k->kind == HVD_BROADCAST;

    if (k->kind == HVD_ALLGATHER)
        count /= r->np;
    run(r, k->kind, k->op, v, in_place ? v : out, count);
    if (k->kind == HVD_BROADCAST)
        run(r, HVD_BARRIER, HVD_SUM, NULL, NULL, 0);
}

static void time_size(struct rank *r, const char *name, const struct kind *k,
                      size_t size_bytes, double cap_s)
{
    static double us[BENCH_ITERS_MAX];
    int64_t count = (int64_t)(size_bytes / sizeof(float));
    float *v = malloc(size_bytes);
    float *out = malloc(size_bytes);
    float iters = (float)bench_iters(size_bytes);
    int warm = (int)iters / 10 + 1;
    double began_us;

    need(v != NULL && out != NULL, "tensor", "no memory");
    bench_fill(v, (size_t)count, r->me);
    run_kind(r, k, v, out, count);
    if (k->kind == HVD_ALLREDUCE && k->op == HVD_SUM)
        need(bench_check(v, (size_t)count, r->np) == 0, "result", "the sum is wrong");
    memset(v, 0, size_bytes);
    began_us = bench_now_us();
    for (int i = 0; i < warm; i++)
        run_kind(r, k, v, out, count);
    iters = (float)bench_cap((int)iters, (bench_now_us() - began_us) / warm, cap_s);
    run(r, HVD_BROADCAST, HVD_SUM, &iters, &iters, 1);
    run(r, HVD_BARRIER, HVD_SUM, NULL, NULL, 0);
    for (int i = 0; i < (int)iters; i++) {
        double start_us = bench_now_us();

        run_kind(r, k, v, out, count);
        us[i] = bench_now_us() - start_us;
    }
    if (r->me == 0)
        bench_report(name, r->np, size_bytes, us, (int)iters);
    free(v);
    free(out);
}

/* ---- connections */

/* Sockets made from here on are in the network of a host. */
static void enter(const char *wire, int host)
{
    char path[200];
    int fd;

    if (wire == NULL)
        return;
    snprintf(path, sizeof path, "/run/netns/%s-%d", wire, host + 1);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    need(fd >= 0 && setns(fd, CLONE_NEWNET) == 0, path, strerror(errno));
    close(fd);
}

static void connect_all(const struct rank *r, const char *wire)
{
    for (int i = 0; i < r->np; i++) {
        struct sockaddr_in a = {.sin_family = AF_INET,
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
        socklen_t len = sizeof(a);
        int listener;

        enter(wire, r->host_of[i]);
        if (wire != NULL)
            a.sin_addr.s_addr = htonl(0x0a4f0001u + (uint32_t)r->host_of[i]);
        listener = socket(AF_INET, SOCK_STREAM, 0);
        need(bind(listener, (struct sockaddr *)&a, sizeof(a)) == 0 &&
                 listen(listener, RANKS_MAX) == 0 &&
                 getsockname(listener, (struct sockaddr *)&a, &len) == 0,
             "listener", strerror(errno));
        fds[i][i] = -1;
        for (int k = 0; k < i; k++) {
            enter(wire, r->host_of[k]);
            fds[k][i] = socket(AF_INET, SOCK_STREAM, 0);
            need(connect(fds[k][i], (struct sockaddr *)&a, sizeof(a)) == 0, "connect",
                 strerror(errno));
            fds[i][k] = accept(listener, NULL, NULL);
        }
        close(listener);
    }
}

/* ---- planes */

struct segments {
    uint8_t *mem;
    size_t part_bytes; /* of a host */
};

static struct segments make_segments(const struct rank *r, size_t slot_bytes)
{
    struct segments s = {.part_bytes = sizeof(struct hvi_bells) +
                                       hvi_shm_size(r->per_host, slot_bytes, NSLOTS)};
    size_t nhosts = (size_t)(r->np / r->per_host);

    s.part_bytes = (s.part_bytes + 4095) / 4096 * 4096;
    s.mem = mmap(NULL, s.part_bytes * nhosts, PROT_READ | PROT_WRITE,
                 MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    need(s.mem != MAP_FAILED, "segment", strerror(errno));
    for (size_t h = 0; h < nhosts; h++)
        hvi_shm_format(s.mem + h * s.part_bytes + sizeof(struct hvi_bells), r->per_host,
                       slot_bytes, NSLOTS);
    return s;
}

static struct hvi_plane *attach_local(const struct rank *r, const struct segments *s)
{
    struct hvi_bells *bells =
        (void *)(s->mem + (size_t)r->host_of[r->me] * s->part_bytes);
    int first = r->host_of[r->me] * r->per_host;
    struct hvi_plane *p = NULL;
    struct hvi_err err;

    need(hvi_shm_attach(bells + 1, bells, r->me - first, r->per_host,
                        r->members + first, &p, &err) == HVD_OK,
         "shm", err.text);
    return p;
}

static struct hvi_plane *attach_mesh(const struct rank *r, bool one_host)
{
    struct hvi_plane *p = NULL;
    struct hvi_err err;

    need(hvi_tcp_new(r->me, r->np, fds[r->me], &p, &err) == HVD_OK, "tcp", err.text);
    if (one_host)
        hvi_tcp_one_host(p);
    for (int i = 0; i < r->np; i++)
        for (int k = 0; k < r->np; k++)
            if (i != r->me && fds[i][k] >= 0)
                close(fds[i][k]);
    return p;
}

static void attach(struct rank *r, const char *plane, bool one_host,
                   const struct segments *s)
{
    struct hvi_plane *local;
    struct hvi_err err;

    if (strcmp(plane, "shm") == 0) {
        r->plane = attach_local(r, s);
    } else if (strcmp(plane, "tcp") == 0) {
        r->plane = attach_mesh(r, one_host);
    } else {
        local = attach_local(r, s);
        need(hvi_hosts_new(r->me, r->np, r->host_of, local, attach_mesh(r, false),
                           &r->plane, &err) == HVD_OK,
             "hosts", err.text);
    }
}

static void rank_main(struct rank *r, const struct kind *k, const char *wire,
                      char **argv, int argc, const struct segments *s)
{
    double cap_s = argc > 3 ? atof(argv[3]) : 2;
    size_t max = argc > 4 ? strtoull(argv[4], NULL, 0) : SIZE_MAX;
    size_t min = argc > 5 ? strtoull(argv[5], NULL, 0) : 0;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    attach(r, argv[1], wire == NULL, s);
    for (size_t i = 0; i < BENCH_NSIZES && bench_sizes[i] <= max; i++)
        if (bench_sizes[i] >= min)
            time_size(r, argv[0], k, bench_sizes[i], cap_s);
    r->plane->ops->free(r->plane);
    _exit(0);
}

static int usage(void)
{
    fprintf(stderr,
            "usage: bench_plane [-k KIND] [-w WIRE] NAME shm|tcp|hosts NP|HOSTSxRANKS\n"
            "                   [SECONDS_PER_SIZE [MAX_BYTES [MIN_BYTES "
            "[SLOT_BYTES]]]]\n");
    return 2;
}

static const struct kind *find_kind(const char *name)
{
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        if (strcmp(kinds[i].name, name) == 0)
            return &kinds[i];
    return NULL;
}

/* "4": one host of four for shm, four hosts of one for tcp. */
static bool read_layout(struct rank *r, const char *plane, const char *text)
{
    int hosts = 0;
    int each = 0;
    int n = sscanf(text, "%dx%d", &hosts, &each);

    if (n == 1) {
        each = strcmp(plane, "shm") == 0 ? hosts : 1;
        hosts /= each > 0 ? each : 1;
    }
    if (n < 1 || hosts < 1 || each < 1 || hosts > RANKS_MAX / each ||
        (strcmp(plane, "shm") == 0 && hosts > 1))
        return false;
    r->np = hosts * each;
    r->per_host = each;
    for (int i = 0; i < r->np; i++) {
        r->members[i] = i;
        r->host_of[i] = i / each;
    }
    return true;
}

int main(int argc, char **argv)
{
    const struct kind *kind = &kinds[0];
    const char *wire = NULL;
    struct rank r = {.np = 0};
    struct segments segments;
    int bad = 0;

    for (int c; (c = getopt(argc, argv, "k:w:")) != -1;) {
        if (c == 'k')
            kind = find_kind(optarg);
        else if (c == 'w')
            wire = optarg;
        else
            return usage();
    }
    argc -= optind;
    argv += optind;
    if (kind == NULL || argc < 3 || !read_layout(&r, argv[1], argv[2]))
        return usage();
    if (strcmp(argv[1], "shm") != 0)
        connect_all(&r, wire);
    segments = make_segments(&r, argc > 6 ? strtoull(argv[6], NULL, 0) : 1024 * 1024);
    for (int i = 0; i < r.np; i++) {
        r.me = i;
        if (fork() == 0)
            rank_main(&r, kind, wire, argv, argc, &segments);
    }
    for (int i = 0; i < r.np; i++) {
        int status = 0;

        wait(&status);
        bad |= status;
    }
    return bad != 0;
}
