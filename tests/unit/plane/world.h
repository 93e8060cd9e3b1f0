/**
 * A group of ranks for tests of the planes: processes (forked, over one memfd or
 * connected sockets) or threads over the same objects. The body runs once a rank; the
 * first rank that fails says why, and the test fails with those words. Nothing waits
 * past the deadline.
 *
 *     struct world w;
 *     world_make(&w, WORLD_SHM, 4, 0, 0);
 *     world_run(&w, WORLD_PROCESSES, body, NULL, 30);
 *     world_free(&w);
 */
#ifndef HVI_TEST_PLANE_WORLD_H
#define HVI_TEST_PLANE_WORLD_H

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/clock.h"
#include "test.h"
#include "worker/plane/cpu/cpu.h"
#include "worker/plane/cpu/hosts.h"
#include "worker/plane/cpu/hosts_impl.h"
#include "worker/plane/cpu/tcp.h"
#include "worker/plane/nccl/nccl.h"
#include "worker/plane/reduce/reduce.h"
#include "worker/plane/shared.h"

#include "nccl/fakes.h"

#define WORLD_MAX 64
#define WORLD_CHAIN_MEMBERS 6 /* tcp, with a part_bytes */

/* NCCL: the GPU plane with the fake driver and NCCL, over the shm plane */
enum world_plane { WORLD_SHM, WORLD_TCP, WORLD_HOSTS, WORLD_NCCL };
enum world_how { WORLD_PROCESSES, WORLD_THREADS };
/** Where tensors lie: malloc, memory that peers can map, or both by rank and tensor. */
enum world_memory { WORLD_ORDINARY, WORLD_SHARED, WORLD_MIXED };

/** Shared by all ranks and the test itself. */
struct world_shared {
    _Atomic int failed; /* 0, then 1 while the text is written, then 2 */
    char text[700];
    _Atomic int done[WORLD_MAX];
    _Atomic uint64_t number[WORLD_MAX]; /* for the bodies */
};

struct rank;

struct world {
    enum world_plane plane;
    enum world_memory memory;
    int n;
    int64_t part_bytes; /* tcp: 0 = as in real jobs */
    const int *layout;  /* hosts: ranks of every host, 0 ends it; NULL: by n */
    size_t size_bytes;
    void *mem;
    struct hvi_bells *bells; /* hosts: [n], the segment of host h is the h-th part */
    int32_t host_of[WORLD_MAX];
    int fds[WORLD_MAX][WORLD_MAX];
    struct world_shared *shared;
    _Atomic(struct hvi_plane *) planes[WORLD_MAX]; /* threads: for stopping them */
    /* NCCL: */
    bool share_gpu;
    size_t buffer_bytes;
    int64_t timeout_ms, abort_ms;
    const char *fakes;                  /* NULL, or "old/" */
    void (*before_gpu)(struct rank *r); /* sets the environment of a rank */
    void (*broken)(void *rank, enum hvd_status status, const char *text);
};

typedef void world_body(struct rank *r, void *arg);

struct rank {
    struct world *w;
    int n, me;
    struct hvi_plane *p;
    struct hvi_plane *below; /* NCCL: the CPU plane */
    uint64_t seq;
    char where[160];
    struct hvi_shared *block; /* of tensors that peers can map; blocks come and go */
    size_t block_used;
    int32_t all[WORLD_MAX];
    /* world.h's own */
    bool process;
    jmp_buf out;
    world_body *body;
    void *arg;
};

/** Ends this rank: the test fails with these words. */
__attribute__((format(printf, 2, 3))) static void rank_fail(struct rank *r,
                                                            const char *fmt, ...)
{
    struct world_shared *s = r->w->shared;
    int none = 0;
    va_list ap;

    if (atomic_compare_exchange_strong(&s->failed, &none, 1)) {
        int at = snprintf(s->text, sizeof(s->text), "rank %d of %d, %s: ", r->me, r->n,
                          r->where);

        va_start(ap, fmt);
        if (at > 0 && (size_t)at < sizeof(s->text))
            vsnprintf(s->text + at, sizeof(s->text) - (size_t)at, fmt, ap);
        va_end(ap);
        atomic_store(&s->failed, 2);
    }
    longjmp(r->out, 1);
}

/* ---- making */

static void world_sockets(struct world *w)
{
    struct sockaddr_in a = {.sin_family = AF_INET,
                            .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t len = sizeof(a);
    struct rlimit limit;
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
    cr_assert(listener >= 0 && bind(listener, (struct sockaddr *)&a, sizeof(a)) == 0 &&
                  listen(listener, 16) == 0 &&
                  getsockname(listener, (struct sockaddr *)&a, &len) == 0,
              "listener: %s", strerror(errno));
    for (int i = 0; i < w->n; i++) {
        w->fds[i][i] = -1;
        for (int k = 0; k < i; k++) {
            w->fds[i][k] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            cr_assert(w->fds[i][k] >= 0 &&
                          connect(w->fds[i][k], (struct sockaddr *)&a, sizeof(a)) == 0,
                      "connection of %d and %d: %s", i, k, strerror(errno));
            w->fds[k][i] = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
            cr_assert(w->fds[k][i] >= 0, "accept: %s", strerror(errno));
        }
    }
    close(listener);
}

/* Ranks on the same host as `rank`; the first of them. */
static int world_host(const struct world *w, int rank, int *first)
{
    int count = 0;

    for (int k = w->n - 1; k >= 0; k--)
        if (w->host_of[k] == w->host_of[rank]) {
            count++;
            *first = k;
        }
    return count;
}

static size_t world_part(const struct world *w, size_t slot_bytes, int nslots)
{
    return sizeof(struct hvi_bells) + hvi_shm_size(w->n, slot_bytes, nslots);
}

static char *world_part_of(const struct world *w, int host)
{
    return (char *)w->mem + (size_t)host * world_part(w, 4096, 3);
}

/* Two equal hosts; two of 3 and 4, or of 5 and 4 ranks; or hosts of 2, 1, 3, 2, ... */
static void world_hosts(struct world *w)
{
    static const int sizes[] = {2, 1, 3};
    int hosts = 0;

    for (int k = 0; w->layout != NULL && k < w->n; hosts++)
        for (int i = 0; i < w->layout[hosts]; i++)
            w->host_of[k++] = hosts;
    if (w->layout != NULL)
        return;
    if (w->plane == WORLD_HOSTS && w->n >= 4 && w->n % 2 == 0) {
        for (int k = 0; k < w->n; k++)
            w->host_of[k] = k / (w->n / 2);
        return;
    }
    for (int k = 0; w->plane == WORLD_HOSTS && w->n >= 7 && k < w->n; k++)
        w->host_of[k] = k >= (w->n == 7 ? 3 : 5);
    for (int k = 0; w->plane == WORLD_HOSTS && w->n < 7 && k < w->n; hosts++)
        for (int i = 0; i < sizes[hosts % 3] && k < w->n; i++)
            w->host_of[k++] = hosts;
}

static void world_segment(struct world *w, size_t slot_bytes, int nslots)
{
    int fd = memfd_create("world", MFD_CLOEXEC);

    w->size_bytes = world_part(w, slot_bytes, nslots);
    if (w->plane == WORLD_HOSTS)
        w->size_bytes *= (size_t)w->host_of[w->n - 1] + 1;
    cr_assert(fd >= 0 && ftruncate(fd, (off_t)w->size_bytes) == 0, "memfd: %s",
              strerror(errno));
    w->mem = mmap(NULL, w->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    cr_assert(w->mem != MAP_FAILED, "%zu bytes: %s", w->size_bytes, strerror(errno));
    close(fd);
    w->bells = w->mem;
    if (w->plane != WORLD_HOSTS) {
        hvi_shm_format(w->bells + 1, w->n, slot_bytes, nslots);
        return;
    }
    for (int k = 0; k < w->n; k++) {
        int first = 0;
        int count = world_host(w, k, &first);

        if (first == k)
            hvi_shm_format(world_part_of(w, w->host_of[k]) + sizeof(struct hvi_bells),
                           count, slot_bytes, nslots);
    }
}

static void world_fill(struct world *w, enum world_plane plane, int n,
                       const int *layout, size_t part_bytes, int nslots)
{
    memset(w, 0, sizeof(*w));
    w->plane = plane;
    w->n = n;
    w->layout = layout;
    w->part_bytes = (int64_t)part_bytes;
    w->shared = mmap(NULL, sizeof(*w->shared), PROT_READ | PROT_WRITE,
                     MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(w->shared != MAP_FAILED);
    world_hosts(w);
    if (plane != WORLD_SHM && plane != WORLD_NCCL)
        world_sockets(w);
    if (plane == WORLD_HOSTS)
        world_segment(w, 4096, 3);
    else if (plane == WORLD_SHM || plane == WORLD_NCCL)
        world_segment(w, part_bytes > 0 ? part_bytes : 256 * 1024,
                      nslots > 0 ? nslots : 4);
}

/** part_bytes: the staging slot; tcp: the largest reduced message. 0: as in real jobs. */
__attribute__((unused)) static void world_make(struct world *w, enum world_plane plane,
                                               int n, size_t part_bytes, int nslots)
{
    world_fill(w, plane, n, NULL, part_bytes, nslots);
}

/** Hosts with so many ranks each; 0 ends the list. */
__attribute__((unused)) static void world_make_hosts(struct world *w, const int *layout,
                                                     size_t part_bytes)
{
    int n = 0;

    for (int h = 0; layout[h] > 0; h++)
        n += layout[h];
    world_fill(w, WORLD_HOSTS, n, layout, part_bytes, 0);
}

static void world_close(struct world *w, int but)
{
    if (w->plane == WORLD_SHM || w->plane == WORLD_NCCL)
        return;
    for (int i = 0; i < w->n; i++)
        for (int k = 0; k < w->n; k++)
            if (i != but && w->fds[i][k] >= 0) {
                close(w->fds[i][k]);
                w->fds[i][k] = -1;
            }
}

static void world_free(struct world *w)
{
    if (w->mem != NULL)
        munmap(w->mem, w->size_bytes);
    munmap(w->shared, sizeof(*w->shared));
}

/* ---- running */

/* Direct exchanges and chains, both. */
static void cut_tcp(const struct rank *r, struct hvi_plane *p)
{
    if (r->w->part_bytes == 0)
        return;
    hvi_tcp_set_part(p, r->w->part_bytes);
    hvi_tcp_use_chain(p, WORLD_CHAIN_MEMBERS, 2 * r->w->part_bytes);
}

static enum hvd_status attach_tcp(struct rank *r, struct hvi_plane **out,
                                  struct hvi_err *err)
{
    enum hvd_status rc = hvi_tcp_new(r->me, r->n, r->w->fds[r->me], out, err);

    if (rc == HVD_OK)
        cut_tcp(r, *out);
    if (rc == HVD_OK && r->n % 2 == 0) /* both windows */
        hvi_tcp_one_host(*out);
    return rc;
}

static enum hvd_status attach_hosts(struct rank *r, struct hvi_err *err)
{
    struct hvi_bells *bells = (void *)world_part_of(r->w, r->w->host_of[r->me]);
    struct hvi_plane *local = NULL;
    struct hvi_plane *mesh = NULL;
    int first = 0;
    int count = world_host(r->w, r->me, &first);
    enum hvd_status rc = hvi_shm_attach(bells + 1, bells, r->me - first, count,
                                        r->all + first, &local, err);

    if (rc == HVD_OK)
        rc = attach_tcp(r, &mesh, err);
    if (rc == HVD_OK)
        rc = hvi_hosts_new(r->me, r->n, r->w->host_of, local, mesh, &r->p, err);
    if (rc == HVD_OK)
        cut_tcp(r, mesh);
    if (rc == HVD_OK && r->w->part_bytes > 0)
        hvi_hosts_set_chunk(r->p, 2 * r->w->part_bytes);
    return rc;
}

static enum hvd_status attach_nccl(struct rank *r, struct hvi_err *err)
{
    struct hvi_nccl_setup setup = {.rank = r->me, .size = r->n, .host = "here"};
    enum hvd_status rc = hvi_shm_attach(r->w->bells + 1, r->w->bells, r->me, r->n,
                                        r->all, &r->below, err);

    if (rc != HVD_OK)
        return rc;
    if (r->w->before_gpu != NULL)
        r->w->before_gpu(r);
    if (!load_fakes(r->w->fakes != NULL ? r->w->fakes : ""))
        return hvi_fail(err, HVD_EIO, "no fakes: %s", dlerror());
    setup.cpu = r->below;
    setup.device_id = r->w->share_gpu ? 0 : r->me;
    setup.buffer_bytes = r->w->buffer_bytes;
    setup.timeout_ms = r->w->timeout_ms;
    setup.abort_ms = r->w->abort_ms;
    setup.broken = r->w->broken;
    setup.arg = r;
    return hvi_nccl_new(&setup, &r->p, err);
}

static void rank_detach(struct rank *r)
{
    if (r->p != NULL)
        r->p->ops->free(r->p);
    if (r->below != NULL)
        r->below->ops->free(r->below);
}

static void rank_attach(struct rank *r)
{
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    if (r->w->plane == WORLD_HOSTS) {
        rc = attach_hosts(r, &err);
    } else if (r->w->plane == WORLD_NCCL) {
        rc = attach_nccl(r, &err);
    } else if (r->w->plane == WORLD_TCP) {
        rc = attach_tcp(r, &r->p, &err);
    } else {
        rc = hvi_shm_attach(r->w->bells + 1, r->w->bells, r->me, r->n, r->all, &r->p,
                            &err);
    }
    if (rc != HVD_OK)
        rank_fail(r, "no plane: %s", err.text);
    atomic_store(&r->w->planes[r->me], r->p);
}

static void rank_main(struct rank *r)
{
    snprintf(r->where, sizeof(r->where), "start");
    if (setjmp(r->out) == 0) {
        rank_attach(r);
        r->body(r, r->arg);
    }
    atomic_store(&r->w->shared->done[r->me], 1);
}

static void *rank_thread(void *arg)
{
    rank_main(arg);
    return NULL;
}

static void world_sleep_1ms(void)
{
    struct timespec ts = {0, 1000000};

    nanosleep(&ts, NULL);
}

/* How many ranks are done. */
static int world_done(const struct world *w)
{
    int n = 0;

    for (int i = 0; i < w->n; i++)
        n += atomic_load(&w->shared->done[i]);
    return n;
}

static void world_check(struct world *w, bool late)
{
    char who[4 * WORLD_MAX] = "";

    for (int i = 0; i < w->n; i++)
        if (!atomic_load(&w->shared->done[i]))
            snprintf(who + strlen(who), sizeof(who) - strlen(who), " %d", i);
    if (atomic_load(&w->shared->failed) != 0)
        cr_assert_fail("%s", w->shared->text);
    cr_assert(!late, "not done before the deadline: ranks%s", who);
}

static void world_run_threads(struct world *w, world_body *body, void *arg,
                              int deadline_s)
{
    struct rank *ranks = calloc((size_t)w->n, sizeof(*ranks));
    pthread_t threads[WORLD_MAX];
    int64_t deadline_ms = hvi_now_ms() + deadline_s * 1000;
    bool late = false;

    cr_assert_not_null(ranks);
    for (int i = 0; i < w->n; i++) {
        ranks[i] = (struct rank){.w = w, .n = w->n, .me = i, .body = body, .arg = arg};
        for (int k = 0; k < w->n; k++)
            ranks[i].all[k] = k;
        cr_assert(pthread_create(&threads[i], NULL, rank_thread, &ranks[i]) == 0);
    }
    while (world_done(w) < w->n && atomic_load(&w->shared->failed) != 2 && !late) {
        world_sleep_1ms();
        late = hvi_now_ms() > deadline_ms;
    }
    if (world_done(w) < w->n)
        for (int i = 0; i < w->n; i++)
            if (atomic_load(&w->planes[i]) != NULL) {
                struct hvi_plane *p = atomic_load(&w->planes[i]);

                p->ops->abort(p, HVD_EINTERNAL);
            }
    world_check(w, late);
    for (int i = 0; i < w->n; i++)
        cr_assert(pthread_join(threads[i], NULL) == 0);
    for (int i = 0; i < w->n; i++) {
        rank_detach(&ranks[i]);
        if (ranks[i].block != NULL)
            hvi_shared_free(ranks[i].block);
    }
    free(ranks);
}

static void rank_process(struct world *w, int me, world_body *body, void *arg)
{
    static struct rank r;

    r = (struct rank){
        .w = w, .n = w->n, .me = me, .body = body, .arg = arg, .process = true};
    for (int k = 0; k < w->n; k++)
        r.all[k] = k;
    world_close(w, me);
    rank_main(&r);
    rank_detach(&r);
    _exit(0);
}

static void world_run_processes(struct world *w, world_body *body, void *arg,
                                int deadline_s)
{
    pid_t pids[WORLD_MAX];
    int64_t deadline_ms = hvi_now_ms() + deadline_s * 1000;
    int left = w->n;
    bool late = false;
    int status = 0;

    fflush(NULL);
    for (int i = 0; i < w->n; i++) {
        pids[i] = fork();
        cr_assert(pids[i] >= 0, "fork: %s", strerror(errno));
        if (pids[i] == 0)
            rank_process(w, i, body, arg);
    }
    world_close(w, -1);
    while (left > 0 && !late && atomic_load(&w->shared->failed) != 2) {
        for (int i = 0; i < w->n; i++)
            if (pids[i] > 0 && waitpid(pids[i], &status, WNOHANG) == pids[i]) {
                pids[i] = 0;
                left--;
                if (atomic_load(&w->shared->failed) == 0 && status != 0 &&
                    !(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL))
                    late = true;
            }
        if (left > 0)
            world_sleep_1ms();
        late = late || hvi_now_ms() > deadline_ms;
    }
    for (int i = 0; i < w->n; i++)
        if (pids[i] > 0) {
            kill(pids[i], SIGKILL);
            waitpid(pids[i], NULL, 0);
        }
    world_check(w, late);
}

/** Body on every rank. A process that kills itself with SIGKILL counts as done. */
static void world_run(struct world *w, enum world_how how, world_body *body, void *arg,
                      int deadline_s)
{
    if (how == WORLD_THREADS)
        world_run_threads(w, body, arg, deadline_s);
    else
        world_run_processes(w, body, arg, deadline_s);
}

/* ---- what bodies need */

/** A group of all ranks, with the next seq. */
static struct hvi_group rank_group(struct rank *r, uint32_t kind, uint32_t dtype,
                                   struct hvi_piece *pieces, int32_t npieces)
{
    r->seq += HVI_SEQ_STEP;
    return (struct hvi_group){.seq = r->seq,
                              .kind = kind,
                              .reduce_op = HVD_SUM,
                              .dtype = dtype,
                              .prescale = 1.0,
                              .postscale = 1.0,
                              .nmembers = r->n,
                              .members = r->all,
                              .me = r->me,
                              .npieces = npieces,
                              .pieces = pieces};
}

__attribute__((unused)) static void rank_run(struct rank *r, const struct hvi_group *g)
{
    struct hvi_err err = {{0}};
    enum hvd_status rc = hvi_plane_run(r->p, g, &err);

    if (rc != HVD_OK)
        rank_fail(r, "%s: %s", hvi_status_name(rc), err.text);
}

static void *rank_alloc(struct rank *r, size_t size_bytes)
{
    void *p = malloc(size_bytes + 1);

    if (p == NULL)
        rank_fail(r, "no memory");
    return p;
}

/** A part of the rank's block; the old block is freed when it is full or old. The group
 *  before must be over. */
__attribute__((unused)) static uint8_t *
rank_alloc_shared(struct rank *r, size_t size_bytes, size_t align)
{
    size_t room = size_bytes + 64 * 1024;
    uint8_t *p;

    if (r->block != NULL && r->block_used + size_bytes + 64 > r->block->size_bytes) {
        hvi_shared_free(r->block);
        r->block = NULL;
    }
    if (r->block == NULL) {
        r->block = hvi_shared_new(room);
        r->block_used = 0;
    }
    if (r->block == NULL)
        rank_fail(r, "no shared memory of %zu bytes", room);
    p = r->block->data + r->block_used;
    r->block_used += (size_bytes + 2 * align) / align * align; /* seldom 64-aligned */
    return p;
}

#endif
