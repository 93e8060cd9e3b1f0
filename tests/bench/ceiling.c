/**
 * What this machine can do, measured with as little as possible around it.
 *
 *     ceiling direct NP [SECONDS_PER_SIZE [MAX_BYTES]]
 *         in-place float32 sums of tensors that already are in memory all ranks see:
 *         each rank adds its slice of all and stores it to all, between two barriers;
 *         the JSON lines of bench_allreduce, peer "direct"
 *     ceiling machine [SECONDS]
 *         memcpy and a += b by one and by two processes (GB/s of payload), TCP over
 *         loopback between two processes (GB/s of both ways together; round trip), a
 *         futex round trip, and one through a word in shared memory
 *
 * Compiled with -O3 -march=native: it may use what the CPU has.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define RANKS_MAX 16
#define LINE 128

static void need(int ok, const char *what)
{
    if (ok)
        return;
    fprintf(stderr, "ceiling: %s: %s\n", what, strerror(errno));
    exit(1);
}

/** Zeroed, seen by all children, page-faulted here. */
static void *shared(size_t size)
{
    void *p =
        mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    need(p != MAP_FAILED, "memory");
    memset(p, 0, size);
    return p;
}

static cpu_set_t cores; /* at the begin */

/** To the i-th core when there are n. */
static void pin(int i, int n)
{
    cpu_set_t set;
    int seen = 0;

    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&cores) >= n; cpu++)
        if (CPU_ISSET(cpu, &cores) && seen++ == i) {
            CPU_ZERO(&set);
            CPU_SET(cpu, &set);
            sched_setaffinity(0, sizeof set, &set);
        }
}

static void wait_all(int n)
{
    int status = 0;
    int bad = 0;

    for (int i = 0; i < n; i++) {
        wait(&status);
        bad |= status;
    }
    need(bad == 0, "a child failed");
}

/* ---- direct */

struct word {
    _Alignas(LINE) _Atomic int v;
};

static struct word *words;
static int np, me, epoch;

static void barrier(void)
{
    int now = ++epoch;

    atomic_store(&words[me].v, now);
    for (int r = 0; r < np; r++)
        for (int k = 0;
             atomic_load_explicit(&words[r].v, memory_order_acquire) - now < 0; k++)
            if (np > 2 && k > 20)
                sched_yield();
}

/* Everybody's slice [lo, hi) becomes the sum. */
static void sum_to_all(float *const *t, size_t lo, size_t hi)
{
    if (np == 2) {
        float *a = t[0];
        float *b = t[1];

        for (size_t i = lo; i < hi; i++)
            a[i] = b[i] = a[i] + b[i];
        return;
    }
    enum { BLOCK = 256 };
    for (size_t at = lo; at < hi; at += BLOCK) {
        size_t end = at + BLOCK < hi ? at + BLOCK : hi;
        float sum[BLOCK];

        memcpy(sum, t[0] + at, (end - at) * sizeof(float));
        for (int r = 1; r < np; r++)
            for (size_t i = at; i < end; i++)
                sum[i - at] += t[r][i];
        for (int r = 0; r < np; r++)
            memcpy(t[r] + at, sum, (end - at) * sizeof(float));
    }
}

static void allreduce(float *const *t, size_t count)
{
    size_t part = ((count + (size_t)np - 1) / (size_t)np + 15) / 16 * 16;
    size_t lo = part * (size_t)me < count ? part * (size_t)me : count;
    size_t hi = lo + part < count ? lo + part : count;

    barrier();
    sum_to_all(t, lo, hi);
    barrier();
}

static void direct_rank(float *const *t, double cap_s, size_t max, _Atomic int *agreed)
{
    static double us[BENCH_ITERS_MAX];

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    pin(me, np);
    for (size_t s = 0; s < BENCH_NSIZES && bench_sizes[s] <= max; s++) {
        size_t count = bench_sizes[s] / sizeof(float);
        int iters = bench_iters(bench_sizes[s]);
        int warm = iters / 10 + 1;
        double began_us;

        bench_fill(t[me], count, me);
        allreduce(t, count);
        need(bench_check(t[me], count, np) == 0, "the sum is wrong");
        barrier();
        memset(t[me], 0, bench_sizes[s]);
        began_us = bench_now_us();
        for (int i = 0; i < warm; i++)
            allreduce(t, count);
        if (me == 0)
            atomic_store(agreed,
                         bench_cap(iters, (bench_now_us() - began_us) / warm, cap_s));
        barrier();
        iters = atomic_load(agreed);
        barrier();
        for (int i = 0; i < iters; i++) {
            double start_us = bench_now_us();

            allreduce(t, count);
            us[i] = bench_now_us() - start_us;
        }
        if (me == 0)
            bench_report("direct", np, bench_sizes[s], us, iters);
    }
    exit(0);
}

static int direct(int argc, char **argv)
{
    double cap_s = argc > 3 ? atof(argv[3]) : 2;
    size_t max = argc > 4 ? strtoull(argv[4], NULL, 0) : bench_sizes[BENCH_NSIZES - 1];
    float *t[RANKS_MAX];

    np = argc > 2 ? atoi(argv[2]) : 0;
    if (np < 2 || np > RANKS_MAX)
        return 2;
    words = shared((RANKS_MAX + 1) * sizeof *words);
    for (int r = 0; r < np; r++)
        t[r] = shared(max);
    for (me = 0; me < np; me++) {
        fflush(stdout);
        if (fork() == 0)
            direct_rank(t, cap_s, max, &words[RANKS_MAX].v);
    }
    wait_all(np);
    return 0;
}

/* ---- memory */

static void report(const char *what, int n, double value, const char *unit)
{
    printf("{\"ceiling\":\"%s\",\"np\":%d,\"value\":%.3f,\"unit\":\"%s\"}\n", what, n,
           value, unit);
    fflush(stdout);
}

static void add(float *a, const float *b, size_t count)
{
    for (size_t i = 0; i < count; i++)
        a[i] += b[i];
}

static void memory(const char *what, int n, double seconds)
{
    enum { COUNT = 16 << 20 }; /* floats: beyond any cache */
    struct word *go = shared(2 * sizeof *go);
    double *rates = shared(sizeof(double) * RANKS_MAX);
    double total = 0;

    for (int r = 0; r < n; r++)
        if (fork() == 0) {
            float *a = malloc(COUNT * sizeof *a);
            float *b = malloc(COUNT * sizeof *b);
            double start_us;
            int rounds = 0;

            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pin(r, n);
            need(a != NULL && b != NULL, "memory");
            memset(a, 0, COUNT * sizeof *a);
            memset(b, 0, COUNT * sizeof *b);
            atomic_fetch_add(&go->v, 1);
            while (atomic_load(&go->v) < n)
                sched_yield();
            start_us = bench_now_us();
            do {
                if (strcmp(what, "memcpy") == 0)
                    memcpy(a, b, COUNT * sizeof *a);
                else
                    add(a, b, COUNT);
                __asm__ volatile("" : : "r"(a), "r"(b) : "memory");
                rounds++;
            } while (bench_now_us() - start_us < seconds * 1e6);
            rates[r] =
                (double)rounds * COUNT * sizeof *a / (bench_now_us() - start_us) * 1e-3;
            exit(0);
        }
    wait_all(n);
    for (int r = 0; r < n; r++)
        total += rates[r];
    report(what, n, total, "GB/s");
}

/* ---- TCP over loopback */

static void tcp_pair(int fd[2])
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof a;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    int one = 1;

    need(bind(listener, (struct sockaddr *)&a, sizeof a) == 0 &&
             listen(listener, 1) == 0 &&
             getsockname(listener, (struct sockaddr *)&a, &len) == 0,
         "listener");
    fd[0] = socket(AF_INET, SOCK_STREAM, 0);
    need(connect(fd[0], (struct sockaddr *)&a, sizeof a) == 0, "connect");
    fd[1] = accept(listener, NULL, NULL);
    need(fd[1] >= 0, "accept");
    close(listener);
    for (int i = 0; i < 2; i++)
        setsockopt(fd[i], IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* Both send and receive all the time, in writes of `size`. */
static double tcp_both_ways(size_t size, double seconds)
{
    double *got = shared(2 * sizeof *got);
    int fd[2];

    tcp_pair(fd);
    for (int r = 0; r < 2; r++)
        if (fork() == 0) {
            struct pollfd p = {.fd = fd[r], .events = POLLIN | POLLOUT};
            char *out = calloc(1, size);
            char *in = calloc(1, size);
            double start_us = bench_now_us();

            prctl(PR_SET_PDEATHSIG, SIGKILL);
            pin(r, 2);
            close(fd[1 - r]);
            fcntl(fd[r], F_SETFL, O_NONBLOCK);
            while (bench_now_us() - start_us < seconds * 1e6 && poll(&p, 1, 100) >= 0) {
                ssize_t n = 0;

                if (p.revents & POLLIN)
                    n = recv(fd[r], in, size, 0);
                if (n > 0)
                    got[r] += (double)n;
                if (p.revents & POLLOUT)
                    send(fd[r], out, size, MSG_NOSIGNAL);
            }
            got[r] /= (bench_now_us() - start_us) * 1e3;
            exit(0);
        }
    close(fd[0]);
    close(fd[1]);
    wait_all(2);
    return got[0] + got[1];
}

enum { TRIPS = 4000, WARM_TRIPS = 400 };

static void tcp_read(int fd, char *buf, size_t size, int flags)
{
    for (size_t at = 0; at < size;) {
        ssize_t n = recv(fd, buf + at, size - at, flags);

        need(n != 0, "the other end is gone");
        at += n > 0 ? (size_t)n : 0;
    }
}

static void tcp_trip(const char *what, int flags)
{
    static double us[TRIPS];
    char buf[8] = {0};
    int fd[2];

    tcp_pair(fd);
    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(1, 2);
        for (int i = 0; i < TRIPS + WARM_TRIPS; i++) {
            tcp_read(fd[1], buf, sizeof buf, flags);
            need(send(fd[1], buf, sizeof buf, 0) == sizeof buf, "send");
        }
        exit(0);
    }
    for (int i = -WARM_TRIPS; i < TRIPS; i++) {
        double start_us = bench_now_us();

        need(send(fd[0], buf, sizeof buf, 0) == sizeof buf, "send");
        tcp_read(fd[0], buf, sizeof buf, flags);
        if (i >= 0)
            us[i] = bench_now_us() - start_us;
    }
    wait_all(1);
    close(fd[0]);
    close(fd[1]);
    qsort(us, TRIPS, sizeof *us, bench_compare);
    report(what, 2, us[TRIPS / 2], "us");
}

/* ---- words in shared memory */

static void post(_Atomic int *word, int v, int sleeps)
{
    atomic_store(word, v);
    if (sleeps)
        syscall(SYS_futex, word, FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void await(_Atomic int *word, int v, int sleeps)
{
    int now;

    while ((now = atomic_load_explicit(word, memory_order_acquire)) < v)
        if (sleeps)
            syscall(SYS_futex, word, FUTEX_WAIT, now, NULL, NULL, 0);
        else if (CPU_COUNT(&cores) < 2)
            sched_yield();
}

static void word_trip(const char *what, int sleeps)
{
    static double us[TRIPS];
    struct word *w = shared(2 * sizeof *w);

    if (fork() == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        pin(1, 2);
        for (int i = 1; i <= TRIPS + WARM_TRIPS; i++) {
            await(&w[0].v, i, sleeps);
            post(&w[1].v, i, sleeps);
        }
        exit(0);
    }
    for (int i = 1; i <= TRIPS + WARM_TRIPS; i++) {
        double start_us = bench_now_us();

        post(&w[0].v, i, sleeps);
        await(&w[1].v, i, sleeps);
        if (i > WARM_TRIPS)
            us[i - WARM_TRIPS - 1] = bench_now_us() - start_us;
    }
    wait_all(1);
    qsort(us, TRIPS, sizeof *us, bench_compare);
    report(what, 2, us[TRIPS / 2], "us");
}

static int machine(double seconds)
{
    double best = 0;

    for (int n = 1; n <= 2; n++) {
        memory("memcpy", n, seconds);
        memory("add", n, seconds);
    }
    for (size_t size = 256 << 10; size <= 1 << 20; size *= 2) {
        double rate = tcp_both_ways(size, seconds);

        best = rate > best ? rate : best;
    }
    report("tcp", 2, best, "GB/s");
    pin(0, 2); /* the children go to core 1 */
    tcp_trip("tcp round trip, asleep", 0);
    tcp_trip("tcp round trip, spinning", MSG_DONTWAIT);
    word_trip("futex round trip", 1);
    word_trip("shared word round trip", 0);
    return 0;
}

int main(int argc, char **argv)
{
    need(sched_getaffinity(0, sizeof cores, &cores) == 0, "cores");
    if (argc > 1 && strcmp(argv[1], "direct") == 0)
        return direct(argc, argv);
    if (argc > 1 && strcmp(argv[1], "machine") == 0)
        return machine(argc > 2 ? atof(argv[2]) : 0.5);
    fprintf(stderr, "usage: ceiling direct NP [SECONDS_PER_SIZE [MAX_BYTES]]\n"
                    "       ceiling machine [SECONDS]\n");
    return 2;
}
