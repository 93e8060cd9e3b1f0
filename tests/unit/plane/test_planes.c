/** The CPU planes when something goes wrong, and the promises of plane.h about waiting.
 */
#include <math.h>

#include "fault.h"
#include "proto/base/names.h"
#include "test.h"
#include "world.h"

#define DEADLINE_S 20

static void nap_ms(int ms)
{
    struct timespec ts = {ms / 1000, (long)(ms % 1000) * 1000000};

    nanosleep(&ts, NULL);
}

static struct hvi_piece floats(float *v, int64_t count)
{
    return (struct hvi_piece){.in = v, .out = v, .count = count, .row = 1};
}

/* ---- abort */

struct abort_case {
    int nap_ms;
    uint32_t kind;
    int64_t count;
};

/* The last rank never takes part, but stops the others. */
static void aborted_body(struct rank *r, void *arg)
{
    const struct abort_case *c = arg;
    int64_t count = c->count;
    float *v = rank_alloc(r, (size_t)count * sizeof(*v));
    struct hvi_piece piece = floats(v, count);
    struct hvi_group g =
        rank_group(r, c->kind, HVD_FLOAT32, &piece, c->kind == HVD_BARRIER ? 0 : 1);
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    memset(v, 0, (size_t)count * sizeof(*v));
    snprintf(r->where, sizeof(r->where), "kind %u, %lld elements, after %d ms", c->kind,
             (long long)count, c->nap_ms);
    if (r->me == r->n - 1) {
        for (int k = 0; k < r->n - 1; k++) {
            while (atomic_load(&r->w->shared->number[k]) == 0 &&
                   atomic_load(&r->w->shared->failed) == 0)
                nap_ms(1);
        }
        nap_ms(c->nap_ms);
        for (int k = 0; k < r->n - 1; k++) {
            struct hvi_plane *p = atomic_load(&r->w->planes[k]);

            p->ops->abort(p, HVD_EPEER);
        }
        free(v);
        return;
    }
    atomic_store(&r->w->shared->number[r->me], 1);
    rc = hvi_plane_run(r->p, &g, &err);
    if (rc != HVD_EPEER)
        rank_fail(r, "%s, not HVD_EPEER", hvi_status_name(rc));
    g.seq++;
    rc = r->p->ops->start(r->p, &g, &err);
    if (rc != HVD_EPEER)
        rank_fail(r, "the next group: %s, not HVD_EPEER", hvi_status_name(rc));
    free(v);
}

static void run_aborted(enum world_plane plane)
{
    static const struct abort_case cases[] = {
        {0, HVD_ALLREDUCE, 1},      {5, HVD_ALLREDUCE, 1},
        {0, HVD_BARRIER, 0},        {5, HVD_BARRIER, 0},
        {2, HVD_ALLREDUCE, 300000}, {2, HVD_REDUCESCATTER, 3000},
        {2, HVD_ALLGATHER, 100000}, {1, HVD_ALLTOALL, 300}};

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct abort_case c = cases[i];
        struct world w;

        world_make(&w, plane, 3, 0, 0);
        world_run(&w, WORLD_THREADS, aborted_body, &c, DEADLINE_S);
        world_free(&w);
    }
}

Test(planes, shm_abort_wakes_a_rank_that_waits, .timeout = 60)
{
    run_aborted(WORLD_SHM);
}

Test(planes, hosts_abort_wakes_a_rank_that_waits, .timeout = 60)
{
    run_aborted(WORLD_HOSTS);
}

Test(planes, tcp_abort_wakes_a_rank_that_waits, .timeout = 60)
{
    run_aborted(WORLD_TCP);
}

/* ---- a peer dies in the middle of an operation */

/* What the engine does when the coordinator names a lost rank. */
static void *stop_when_dead(void *arg)
{
    struct rank *r = arg;

    while (atomic_load(&r->w->shared->number[r->n - 1]) == 0)
        nap_ms(1);
    nap_ms(20);
    r->p->ops->abort(r->p, HVD_EPEER);
    return NULL;
}

static void killed_body(struct rank *r, void *arg)
{
    int64_t count = 2000000;
    bool shared = r->w->memory == WORLD_SHARED;
    size_t bytes = (size_t)count * sizeof(float);
    float *v = shared ? (float *)(void *)rank_alloc_shared(r, bytes, 64)
                      : rank_alloc(r, bytes);
    struct hvi_piece piece = floats(v, count);
    struct hvi_group g;
    struct hvi_err err = {{0}};
    enum hvd_status rc = HVD_OK;
    pthread_t watcher;

    (void)arg;
    memset(v, 0, (size_t)count * sizeof(*v));
    piece.in_mem = piece.out_mem = r->block;
    g = rank_group(r, HVD_ALLREDUCE, HVD_FLOAT32, &piece, 1);
    rank_run(r, &g);
    g.seq = ++r->seq;
    if (r->me == r->n - 1) {
        r->p->ops->start(r->p, &g, &err);
        for (int i = 0; i < 2 && r->p->ops->progress(r->p, &err) == HVD_INPROGRESS; i++)
            r->p->ops->wait(r->p, 100);
        atomic_store(&r->w->shared->number[r->me], 1);
        raise(SIGKILL);
    }
    if (r->w->plane != WORLD_TCP)
        pthread_create(&watcher, NULL, stop_when_dead, r);
    for (int i = 0; i < 1000 && rc == HVD_OK; i++, g.seq = ++r->seq)
        rc = hvi_plane_run(r->p, &g, &err);
    if (rc != HVD_EPEER)
        rank_fail(r, "%s (%s), not HVD_EPEER", hvi_status_name(rc), err.text);
    if (r->w->plane != WORLD_TCP)
        pthread_join(watcher, NULL);
    if (shared)
        hvi_shared_free(r->block);
    else
        free(v);
}

static void run_killed(enum world_plane plane, enum world_memory memory)
{
    for (int n = 2; n <= 4; n++) {
        struct world w;

        world_make(&w, plane, n, 0, 0);
        w.memory = memory;
        world_run(&w, WORLD_PROCESSES, killed_body, NULL, DEADLINE_S);
        world_free(&w);
    }
}

#ifndef __SANITIZE_THREAD__ /* forks, then starts threads */
Test(planes, shm_nobody_hangs_when_a_rank_is_killed, .timeout = 60)
{
    run_killed(WORLD_SHM, WORLD_ORDINARY);
}

Test(planes, shm_nobody_hangs_when_a_rank_is_killed_whose_tensor_is_read, .timeout = 60)
{
    run_killed(WORLD_SHM, WORLD_SHARED);
}

Test(planes, hosts_nobody_hangs_when_a_rank_is_killed, .timeout = 60)
{
    run_killed(WORLD_HOSTS, WORLD_ORDINARY);
}
#endif

Test(planes, tcp_nobody_hangs_when_a_rank_is_killed, .timeout = 60)
{
    run_killed(WORLD_TCP, WORLD_ORDINARY);
}

/* ---- wait */

static void *raise_in(void *arg)
{
    struct rank *r = arg;
    pthread_t *victim = r->arg;

    while (atomic_load(&r->w->shared->number[0]) == 0) {
        pthread_kill(*victim, SIGUSR1);
        nap_ms(2);
    }
    return NULL;
}

static void on_signal(int number)
{
    (void)number;
}

/* Rank 0 waits for rank 1, which comes only after that. */
static void interrupted_body(struct rank *r, void *arg)
{
    pthread_t self = pthread_self();
    struct sigaction action = {.sa_handler = on_signal};
    struct hvi_group g = rank_group(r, HVD_BARRIER, HVD_UINT8, NULL, 0);
    int64_t deadline_ms = hvi_now_ms() + DEADLINE_S * 500;
    struct hvi_err err = {{0}};
    bool interrupted = false;
    pthread_t raiser;

    (void)arg;
    snprintf(r->where, sizeof(r->where), "a signal while it waits");
    if (r->me == 1) {
        while (atomic_load(&r->w->shared->number[0]) == 0 &&
               atomic_load(&r->w->shared->failed) == 0)
            nap_ms(1);
        rank_run(r, &g);
        return;
    }
    sigaction(SIGUSR1, &action, NULL);
    r->arg = &self;
    r->p->ops->start(r->p, &g, &err);
    pthread_create(&raiser, NULL, raise_in, r);
    while (!interrupted && hvi_now_ms() < deadline_ms) {
        if (r->p->ops->progress(r->p, &err) != HVD_INPROGRESS)
            break;
        interrupted = r->p->ops->wait(r->p, 1000);
    }
    atomic_store(&r->w->shared->number[0], 1);
    pthread_join(raiser, NULL);
    if (!interrupted)
        rank_fail(r, "wait never said that a signal came");
    while (r->p->ops->progress(r->p, &err) == HVD_INPROGRESS)
        r->p->ops->wait(r->p, -1);
}

static void run_interrupted(enum world_plane plane)
{
    struct world w;

    world_make(&w, plane, 2, 0, 0);
    world_run(&w, WORLD_THREADS, interrupted_body, NULL, DEADLINE_S);
    world_free(&w);
}

Test(planes, shm_wait_tells_of_a_signal, .timeout = 60)
{
    run_interrupted(WORLD_SHM);
}

Test(planes, tcp_wait_tells_of_a_signal, .timeout = 60)
{
    run_interrupted(WORLD_TCP);
}

static void timeout_body(struct rank *r, void *arg)
{
    struct hvi_group g = rank_group(r, HVD_BARRIER, HVD_UINT8, NULL, 0);
    struct hvi_err err = {{0}};
    int64_t began_ms;

    (void)arg;
    snprintf(r->where, sizeof(r->where), "wait with a timeout");
    if (r->me == 0) {
        r->p->ops->start(r->p, &g, &err);
        if (r->p->ops->progress(r->p, &err) != HVD_INPROGRESS)
            rank_fail(r, "a barrier of one");
        began_ms = hvi_now_ms();
        for (int i = 0; i < 3; i++)
            if (r->p->ops->wait(r->p, 0))
                rank_fail(r, "a signal, where none was");
        r->p->ops->wait(r->p, 30);
        if (hvi_now_ms() - began_ms > 10000)
            rank_fail(r, "30 ms took %lld ms", (long long)(hvi_now_ms() - began_ms));
        atomic_store(&r->w->shared->number[0], 1);
        while (r->p->ops->progress(r->p, &err) == HVD_INPROGRESS)
            r->p->ops->wait(r->p, -1);
        return;
    }
    while (atomic_load(&r->w->shared->number[0]) == 0 &&
           atomic_load(&r->w->shared->failed) == 0)
        nap_ms(1);
    rank_run(r, &g);
}

static void run_timeout(enum world_plane plane)
{
    struct world w;

    world_make(&w, plane, 2, 0, 0);
    world_run(&w, WORLD_THREADS, timeout_body, NULL, DEADLINE_S);
    world_free(&w);
}

Test(planes, shm_wait_ends_at_its_timeout, .timeout = 60)
{
    run_timeout(WORLD_SHM);
}

Test(planes, tcp_wait_ends_at_its_timeout, .timeout = 60)
{
    run_timeout(WORLD_TCP);
}

/* ---- one rank has no memory for the result */

static void *no_memory(void *cookie, const int64_t *rows, int32_t nmembers,
                       int64_t total_rows, size_t size_bytes)
{
    (void)cookie;
    (void)rows;
    (void)nmembers;
    (void)total_rows;
    (void)size_bytes;
    return NULL;
}

static void *ordinary_memory(void *cookie, const int64_t *rows, int32_t nmembers,
                             int64_t total_rows, size_t size_bytes)
{
    (void)rows;
    (void)nmembers;
    (void)total_rows;
    *(void **)cookie = malloc(size_bytes + 1);
    return *(void **)cookie;
}

enum { TENSORS = 2 }; /* of unequal size; piece k is of numbers k + 1 */

static void check_piece(struct rank *r, uint32_t kind, int k, const float *out)
{
    bool sum = kind == HVD_ALLREDUCE || kind == HVD_REDUCESCATTER;
    float want = (float)((k + 1) * (sum ? r->n : 1));

    if (out[0] != want)
        rank_fail(r, "tensor %d is %g, not %g", k, (double)out[0], (double)want);
}

static void run_without_memory(struct rank *r, uint32_t kind, int64_t count, int poor)
{
    struct hvi_piece pieces[TENSORS];
    int64_t rows[TENSORS][WORLD_MAX];
    void *out[TENSORS] = {NULL};
    struct hvi_group g = rank_group(r, kind, HVD_FLOAT32, pieces, TENSORS);
    struct hvi_err err = {{0}};
    enum hvd_status want = r->me == poor ? HVD_ENOMEM : HVD_OK;
    enum hvd_status rc;

    snprintf(r->where, sizeof(r->where), "%s of %lld without memory on rank %d",
             hvi_kind_name(kind), (long long)count, poor);
    for (int k = 0; k < TENSORS; k++, count *= 2) {
        float *v = rank_alloc(r, (size_t)count * sizeof(*v));

        for (int64_t i = 0; i < count; i++)
            v[i] = (float)(k + 1);
        pieces[k] = (struct hvi_piece){
            .in = v, .count = count, .row = 1, .rows = rows[k], .cookie = &out[k]};
    }
    g.alloc = r->me == poor ? no_memory : ordinary_memory;
    rc = hvi_plane_run(r->p, &g, &err);
    if (rc != want)
        rank_fail(r, "%s (%s), not %s", hvi_status_name(rc), err.text,
                  hvi_status_name(want));
    for (int k = 0; k < TENSORS; k++) {
        if (rc == HVD_OK)
            check_piece(r, kind, k, out[k]);
        free(out[k]);
        free((void *)(uintptr_t)pieces[k].in);
    }
}

/* One rank gets no memory: it alone fails, after having taken part to the end. */
static void no_memory_body(struct rank *r, void *arg)
{
    static const uint32_t kinds[] = {HVD_ALLREDUCE, HVD_BROADCAST, HVD_REDUCESCATTER,
                                     HVD_ALLGATHER, HVD_ALLTOALL};

    (void)arg;
    for (int i = 0; i < 20; i++)
        run_without_memory(r, kinds[i % 5], (i < 10 ? 3 : 20000) * r->n,
                           i / 5 % 2 == 0 ? 1 : r->n / 2);
}

static void run_no_memory(enum world_plane plane)
{
    for (int n = 2; n <= (plane == WORLD_HOSTS ? 5 : 3); n++) {
        struct world w;

        world_make(&w, plane, n, 0, 0);
        world_run(&w, WORLD_THREADS, no_memory_body, NULL, DEADLINE_S);
        world_free(&w);
    }
}

Test(planes, shm_a_rank_without_memory_fails_alone, .timeout = 60)
{
    run_no_memory(WORLD_SHM);
}

Test(planes, hosts_a_rank_without_memory_fails_alone, .timeout = 60)
{
    run_no_memory(WORLD_HOSTS);
}

Test(planes, tcp_a_rank_without_memory_fails_alone, .timeout = 60)
{
    run_no_memory(WORLD_TCP);
}

/* ---- cutting does not change a bit */

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 31)) * UINT64_C(0x9e3779b97f4a7c15);
    return x ^ (x >> 29);
}

/* One tensor, then the same elements as many tensors of all sizes. */
static void cut_body(struct rank *r, void *arg)
{
    static const uint32_t dtypes[] = {HVD_FLOAT32, HVD_FLOAT16, HVD_BFLOAT16};
    enum { COUNT = 150000, PIECES = 600 };

    (void)arg;
    for (int i = 0; i < 3; i++) {
        size_t es = hvi_dtype_size(dtypes[i]);
        char *in = rank_alloc(r, COUNT * es);
        char *whole = rank_alloc(r, COUNT * es);
        char *parts = rank_alloc(r, COUNT * es);
        struct hvi_piece one = {.in = in, .out = whole, .count = COUNT, .row = 1};
        struct hvi_piece many[PIECES];
        struct hvi_group g = rank_group(r, HVD_ALLREDUCE, dtypes[i], &one, 1);
        int64_t at = 0;

        snprintf(r->where, sizeof(r->where), "dtype %u in one and in many tensors",
                 dtypes[i]);
        for (int64_t k = 0; k < COUNT; k++) {
            float f = (float)(mix((uint64_t)(k * 8 + r->me)) >> 40) * 0x1p-23f - 1;
            uint16_t h = hvi_f32_to_f16(f);

            memcpy(in + (size_t)k * es, es == 4 ? (void *)&f : (void *)&h, es);
        }
        g.reduce_op = HVD_AVERAGE;
        rank_run(r, &g);
        for (int k = 0; k < PIECES; k++) {
            int64_t n = k % 7 == 0 ? 0 : (int64_t)(mix((uint64_t)k) % 490);

            n = k == PIECES - 1 ? COUNT - at : n;
            many[k] = (struct hvi_piece){.in = in + (size_t)at * es,
                                         .out = parts + (size_t)at * es,
                                         .count = n,
                                         .row = 1};
            at += n;
        }
        g.seq = ++r->seq;
        g.npieces = PIECES;
        g.pieces = many;
        rank_run(r, &g);
        if (memcmp(whole, parts, COUNT * es) != 0)
            rank_fail(r, "the results differ");
        free(parts);
        free(whole);
        free(in);
    }
}

/* ---- the last operation of a job: who is done closes at once */

static void last_body(struct rank *r, void *arg)
{
    int64_t splits[WORLD_MAX] = {1}; /* all to member 0 */
    int64_t rows[WORLD_MAX];
    char in = 'x';
    char out[WORLD_MAX];
    struct hvi_piece piece = {
        .in = &in, .out = out, .count = 1, .row = 1, .splits = splits, .rows = rows};
    struct hvi_group g = rank_group(r, HVD_ALLTOALL, HVD_UINT8, &piece, 1);

    (void)arg;
    rank_run(r, &g);
    if (r->me == 0 && (rows[r->n - 1] != 1 || out[r->n - 1] != 'x'))
        rank_fail(r, "%lld rows of the last rank, %d", (long long)rows[r->n - 1],
                  out[r->n - 1]);
}

Test(planes, tcp_peers_may_leave_right_after_an_exchange, .timeout = 60)
{
    for (int i = 0; i < 60; i++) {
        struct world w;

        world_make(&w, WORLD_TCP, 4, 0, 0);
        world_run(&w, WORLD_PROCESSES, last_body, NULL, DEADLINE_S);
        world_free(&w);
    }
}

static void run_cut(enum world_plane plane)
{
    for (int n = 2; n <= 4; n++) {
        struct world w;

        world_make(&w, plane, n, 0, 0);
        world_run(&w, WORLD_THREADS, cut_body, NULL, DEADLINE_S);
        world_free(&w);
    }
}

Test(planes, shm_fusion_changes_no_bit, .timeout = 60)
{
    run_cut(WORLD_SHM);
}

Test(planes, hosts_fusion_changes_no_bit, .timeout = 60)
{
    run_cut(WORLD_HOSTS);
}

Test(planes, tcp_fusion_changes_no_bit, .timeout = 60)
{
    run_cut(WORLD_TCP);
}

/* ---- groups that cannot be */

static void wrong_body(struct rank *r, void *arg)
{
    int64_t splits[2] = {3, 2};
    float v[4] = {0};
    struct hvi_piece piece = {
        .in = v, .out = v, .count = 4, .row = 1, .splits = splits};
    struct hvi_group g = rank_group(r, HVD_ALLTOALL, HVD_FLOAT32, &piece, 1);
    struct hvi_err err = {{0}};

    (void)arg;
    snprintf(r->where, sizeof(r->where), "wrong groups");
    if (r->p->ops->start(r->p, &g, &err) != HVD_EINVAL)
        rank_fail(r, "splits of more rows than there are were taken");
    g = rank_group(r, HVD_BROADCAST, HVD_FLOAT32, &piece, 1);
    g.root = 2;
    if (r->p->ops->start(r->p, &g, &err) != HVD_EINVAL)
        rank_fail(r, "root 2 of 2 was taken");
    g = rank_group(r, HVD_ALLREDUCE, HVD_DTYPE_COUNT, &piece, 1);
    if (r->p->ops->start(r->p, &g, &err) != HVD_EINVAL)
        rank_fail(r, "an unknown dtype was taken");
    g = rank_group(r, HVD_ALLREDUCE, HVD_INT32, &piece, 1);
    g.prescale = (double)NAN;
    if (r->p->ops->start(r->p, &g, &err) != HVD_EINVAL)
        rank_fail(r, "integers were scaled by NaN");
    piece.count = INT64_MAX / 2;
    g = rank_group(r, HVD_ALLREDUCE, HVD_FLOAT32, &piece, 1);
    if (r->p->ops->start(r->p, &g, &err) != HVD_ELIMIT)
        rank_fail(r, "more bytes than an int64 holds were taken");
    g = rank_group(r, HVD_BARRIER, HVD_UINT8, NULL, 0); /* and the plane still works */
    rank_run(r, &g);
    if (r->p->ops->start(r->p, &g, &err) != HVD_EINTERNAL)
        rank_fail(r, "a group number came twice");
}

Test(planes, refuse_what_makes_no_sense, .timeout = 60)
{
    for (int plane = WORLD_SHM; plane <= WORLD_TCP; plane++) {
        struct world w;

        world_make(&w, (enum world_plane)plane, 2, 0, 0);
        world_run(&w, WORLD_THREADS, wrong_body, NULL, DEADLINE_S);
        world_free(&w);
    }
}

/* ---- shm: the segment */

Test(planes, shm_attach_checks_the_segment, .timeout = 10)
{
    size_t size = hvi_shm_size(2, 4096, 3);
    void *mem = aligned_alloc(64, (size + 63) / 64 * 64);
    struct hvi_bells *bells = aligned_alloc(64, sizeof(*bells));
    int32_t ranks[3] = {0, 1, 2};
    int32_t falling[2] = {1, 0};
    struct hvi_plane *p = NULL;
    struct hvi_err err = {{0}};

    cr_assert(mem != NULL && bells != NULL);
    memset(bells, 0, sizeof(*bells));
    memset(mem, 0, size);
    cr_assert_eq(hvi_shm_attach(mem, bells, 0, 2, ranks, &p, &err), HVD_EINVAL);
    hvi_shm_format(mem, 2, 4096, 3);
    cr_assert_eq(hvi_shm_attach(mem, bells, 0, 3, ranks, &p, &err), HVD_EINVAL);
    cr_assert_eq(hvi_shm_attach(mem, bells, 2, 2, ranks, &p, &err), HVD_EINVAL);
    cr_assert_eq(hvi_shm_attach(mem, bells, 0, 2, falling, &p, &err), HVD_EINVAL);
    cr_assert_null(p);
    cr_assert_eq(hvi_shm_attach(mem, bells, 1, 2, ranks, &p, &err), HVD_OK);
    cr_assert_eq(p->rank, 1);
    p->ops->free(NULL);
    p->ops->free(p);
    free(bells);
    free(mem);
}

Test(planes, attach_survives_every_failed_allocation, .timeout = 20)
{
    size_t size = hvi_shm_size(1, 4096, 3);
    void *mem = aligned_alloc(64, (size + 63) / 64 * 64);
    struct hvi_bells *bells = aligned_alloc(64, sizeof(*bells));
    int32_t ranks[1] = {0};
    int nowhere[1] = {-1};
    int failed = 0;

    cr_assert(mem != NULL && bells != NULL);
    memset(mem, 0, size);
    hvi_shm_format(mem, 1, 4096, 3);
    for (int kind = 0; kind < 2; kind++)
        for (long k = 0; hvi_fault_available(); k++) {
            struct hvi_plane *p = NULL;
            struct hvi_err err = {{0}};
            enum hvd_status rc;
            long blocks;

            blocks = hvi_fault_live_blocks();
            hvi_fault_malloc_after(k);
            rc = kind == 0 ? hvi_shm_attach(mem, bells, 0, 1, ranks, &p, &err)
                           : hvi_tcp_new(0, 1, nowhere, &p, &err);
            if (!hvi_fault_malloc_off()) {
                cr_assert_eq(rc, HVD_OK, "%s", err.text);
                p->ops->free(p);
                break;
            }
            failed++;
            cr_assert_eq(rc, HVD_ENOMEM, "allocation %ld: %s", k, err.text);
            cr_assert_null(p);
            cr_assert_eq(hvi_fault_live_blocks(), blocks, "allocation %ld: a leak", k);
        }
    cr_assert(failed >= 10 || !hvi_fault_available(), "only %d allocations were tried",
              failed);
    free(bells);
    free(mem);
}

/* ---- tcp: what peers must not send */

static void put_head(uint8_t *out, uint64_t seq, uint32_t step, uint32_t length)
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(seq >> (8 * i));
    for (int i = 0; i < 4; i++) {
        out[8 + i] = (uint8_t)(step >> (8 * i));
        out[12 + i] = (uint8_t)(length >> (8 * i));
    }
}

/* Rank 0 sums one float with a rank 1 that sends these bytes and then nothing. */
static enum hvd_status talk_to(const uint8_t *bytes, size_t size_bytes, bool end,
                               struct hvi_err *err)
{
    int32_t members[2] = {0, 1};
    float v = 1;
    struct hvi_piece piece = floats(&v, 1);
    struct hvi_group g = {.seq = 7,
                          .kind = HVD_ALLREDUCE,
                          .reduce_op = HVD_SUM,
                          .dtype = HVD_FLOAT32,
                          .prescale = 1,
                          .postscale = 1,
                          .nmembers = 2,
                          .members = members,
                          .npieces = 1,
                          .pieces = &piece};
    int64_t deadline_ms = hvi_now_ms() + (end ? 5000 : 100);
    struct hvi_plane *p = NULL;
    enum hvd_status rc;
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    cr_assert_eq(hvi_tcp_new(0, 2, (int[2]){-1, pair[0]}, &p, err), HVD_OK, "%s",
                 err->text);
    cr_assert_eq(send(pair[1], bytes, size_bytes, 0), (ssize_t)size_bytes);
    if (end)
        close(pair[1]);
    rc = p->ops->start(p, &g, err);
    cr_assert_eq(rc, HVD_OK, "%s", err->text);
    while ((rc = p->ops->progress(p, err)) == HVD_INPROGRESS &&
           hvi_now_ms() < deadline_ms)
        p->ops->wait(p, 10);
    if (rc < 0) {
        g.seq++;
        cr_assert_eq(p->ops->start(p, &g, err), rc,
                     "a broken plane took another group");
    }
    if (!end)
        close(pair[1]);
    p->ops->free(p);
    return rc;
}

Test(planes, tcp_checks_every_header, .timeout = 30)
{
    uint8_t bytes[20] = {0};
    float one = 1;
    struct hvi_err err = {{0}};

    memcpy(bytes + 16, &one, 4);
    put_head(bytes, 7, 0, 4);
    cr_assert_eq(talk_to(bytes, 20, false, &err), HVD_OK, "%s", err.text);
    put_head(bytes, 6, 0, 4);
    cr_assert_eq(talk_to(bytes, 20, false, &err), HVD_EPROTO, "an old group");
    put_head(bytes, 7, 1, 4);
    cr_assert_eq(talk_to(bytes, 20, false, &err), HVD_EPROTO, "a later step");
    put_head(bytes, 7, 0, 8);
    cr_assert_eq(talk_to(bytes, 20, false, &err), HVD_EPROTO, "too long");
    put_head(bytes, 7, 0, UINT32_MAX);
    cr_assert_eq(talk_to(bytes, 20, false, &err), HVD_EPROTO, "far too long");
    put_head(bytes, 7, 0, 0);
    cr_assert_eq(talk_to(bytes, 16, false, &err), HVD_OK, "a joined rank");
    put_head(bytes, 8, 0, 4);
    cr_assert_eq(talk_to(bytes, 20, false, &err), HVD_INPROGRESS, "a later group");
}

/* ---- tcp: in place, with a peer that sends everything before it reads anything */

enum { SLOW_COUNT = 4 * 65536 }; /* four messages of two ranks */

/* Sends what the socket takes; true: all is out. */
static bool push(int fd, const uint8_t *data, size_t size_bytes, size_t *at)
{
    ssize_t n = send(fd, data + *at, size_bytes - *at, MSG_DONTWAIT | MSG_NOSIGNAL);

    *at += n > 0 ? (size_t)n : 0;
    return *at == size_bytes;
}

static bool pull(int fd, uint8_t *data, size_t size_bytes, size_t *at)
{
    ssize_t n = recv(fd, data + *at, size_bytes - *at, MSG_DONTWAIT);

    *at += n > 0 ? (size_t)n : 0;
    return *at == size_bytes;
}

static enum hvd_status step(struct hvi_plane *p, struct hvi_err *err)
{
    enum hvd_status rc = p->ops->progress(p, err);

    if (rc == HVD_INPROGRESS)
        p->ops->wait(p, 1);
    return rc;
}

/* The stream of one rank: four messages of value[i] = i + add. */
static void make_stream(uint8_t *out, float add)
{
    size_t part = SLOW_COUNT / 4;

    for (uint32_t step = 0; step < 4; step++) {
        put_head(out, 7, step, (uint32_t)(part * sizeof(float)));
        out += 16;
        for (size_t i = 0; i < part; i++, out += sizeof(float)) {
            float f = (float)(step * part + i) + add;

            memcpy(out, &f, sizeof(f));
        }
    }
}

Test(planes, tcp_sends_its_input_before_the_result_replaces_it, .timeout = 30)
{
    size_t size = 4 * 16 + SLOW_COUNT * sizeof(float);
    uint8_t *theirs = malloc(size);
    uint8_t *want = malloc(size);
    uint8_t *got = malloc(size);
    float *v = malloc(SLOW_COUNT * sizeof(*v));
    int32_t members[2] = {0, 1};
    struct hvi_piece piece = floats(v, SLOW_COUNT);
    struct hvi_group g = {.seq = 7,
                          .kind = HVD_ALLREDUCE,
                          .reduce_op = HVD_SUM,
                          .dtype = HVD_FLOAT32,
                          .prescale = 1,
                          .postscale = 1,
                          .nmembers = 2,
                          .members = members,
                          .npieces = 1,
                          .pieces = &piece};
    int64_t deadline_ms = hvi_now_ms() + 10000;
    enum hvd_status rc = HVD_INPROGRESS;
    struct hvi_plane *p = NULL;
    struct hvi_err err = {{0}};
    size_t out_at = 0;
    size_t in_at = 0;
    int pair[2];

    cr_assert(theirs != NULL && want != NULL && got != NULL && v != NULL);
    make_stream(theirs, 0.5f);
    make_stream(want, 0);
    for (int i = 0; i < SLOW_COUNT; i++)
        v[i] = (float)i;
    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    cr_assert_eq(hvi_tcp_new(0, 2, (int[2]){-1, pair[0]}, &p, &err), HVD_OK);
    cr_assert_eq(p->ops->start(p, &g, &err), HVD_OK, "%s", err.text);
    while (!push(pair[1], theirs, size, &out_at) && hvi_now_ms() < deadline_ms)
        rc = step(p, &err);
    for (int i = 0; i < 10 && rc == HVD_INPROGRESS; i++)
        rc = step(p, &err);
    cr_assert_eq(rc, HVD_INPROGRESS, "done with a peer that has read nothing: %s",
                 err.text);
    while (!pull(pair[1], got, size, &in_at) && hvi_now_ms() < deadline_ms)
        rc = rc == HVD_INPROGRESS ? step(p, &err) : rc;
    while (rc == HVD_INPROGRESS && hvi_now_ms() < deadline_ms)
        rc = step(p, &err);
    cr_assert_eq(rc, HVD_OK, "%s", err.text);
    cr_assert_eq(in_at, size, "%zu of %zu bytes came", in_at, size);
    cr_assert_eq(memcmp(got, want, size), 0,
                 "the peer got other numbers than the input");
    for (int i = 0; i < SLOW_COUNT; i++)
        cr_assert_eq(v[i], (float)i + ((float)i + 0.5f), "element %d", i);
    close(pair[1]);
    p->ops->free(p);
    free(v);
    free(got);
    free(want);
    free(theirs);
}

/* ---- tcp: a chain through a rank that has joined, whose reader is slow */

enum { CHAIN_PART = 4096, CHAIN_CHUNKS = 512 }; /* far more than a socket holds */
#define CHAIN_BYTES ((size_t)CHAIN_CHUNKS * (16 + CHAIN_PART))

/* Every chunk as a message; one that is sent in the place of another shows. */
static uint8_t *make_chunks(void)
{
    uint8_t *all = malloc(CHAIN_BYTES);
    uint8_t *out = all;

    cr_assert_not_null(all);
    for (uint32_t k = 0; k < CHAIN_CHUNKS; k++) {
        put_head(out, 7, k, CHAIN_PART);
        out += 16;
        for (size_t i = 0; i < CHAIN_PART / sizeof(float); i++, out += sizeof(float)) {
            float f = (float)(k * 10000 + i);

            memcpy(out, &f, sizeof(f));
        }
    }
    return all;
}

/* What comes from one peer goes to another, who begins to read when nothing moves any
 * more. */
static enum hvd_status relay(struct hvi_plane *p, int from, int to, const char *what)
{
    int64_t deadline_ms = hvi_now_ms() + 10000;
    enum hvd_status rc = HVD_INPROGRESS;
    struct hvi_err err = {{0}};
    uint8_t *sent = make_chunks();
    uint8_t *got = calloc(1, CHAIN_BYTES);
    size_t in_at = 0;
    size_t out_at = 0;

    cr_assert_not_null(got);
    for (int idle = 0; idle < 20 && hvi_now_ms() < deadline_ms; idle++) {
        size_t before = in_at;

        push(from, sent, CHAIN_BYTES, &in_at);
        idle = in_at > before ? 0 : idle;
        rc = rc == HVD_INPROGRESS ? step(p, &err) : rc;
    }
    while (!pull(to, got, CHAIN_BYTES, &out_at) && hvi_now_ms() < deadline_ms) {
        push(from, sent, CHAIN_BYTES, &in_at);
        rc = rc == HVD_INPROGRESS ? step(p, &err) : rc;
    }
    cr_assert(rc == HVD_OK || rc == HVD_INPROGRESS, "%s: %s", what, err.text);
    cr_assert_eq(out_at, CHAIN_BYTES, "%s: %zu of %zu bytes came", what, out_at,
                 CHAIN_BYTES);
    cr_assert_eq(memcmp(got, sent, CHAIN_BYTES), 0,
                 "%s: a chunk was sent in the place of another", what);
    free(got);
    free(sent);
    return rc;
}

static struct hvi_plane *chain_start(int me, int pairs[2][2], const struct hvi_group *g)
{
    struct hvi_plane *p = NULL;
    struct hvi_err err = {{0}};
    int fds[3];

    for (int i = 0; i < 2; i++)
        cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pairs[i]), 0);
    fds[0] = pairs[0][0];
    fds[3 - me] = pairs[1][0];
    fds[me] = -1;
    cr_assert_eq(hvi_tcp_new(me, 3, fds, &p, &err), HVD_OK, "%s", err.text);
    hvi_tcp_set_part(p, CHAIN_PART);
    hvi_tcp_use_chain(p, 3, 0);
    cr_assert_eq(p->ops->start(p, g, &err), HVD_OK, "%s", err.text);
    return p;
}

Test(planes, tcp_chain_keeps_what_a_slow_reader_has_not_taken, .timeout = 60)
{
    int32_t members[3] = {0, 1, 2};
    struct hvi_piece piece = floats(NULL, CHAIN_CHUNKS * (CHAIN_PART / sizeof(float)));
    struct hvi_group g = {.seq = 7,
                          .kind = HVD_ALLREDUCE,
                          .reduce_op = HVD_SUM,
                          .dtype = HVD_FLOAT32,
                          .prescale = 1,
                          .postscale = 1,
                          .nmembers = 3,
                          .members = members,
                          .npieces = 1,
                          .pieces = &piece};

    for (int me = 1; me <= 2; me++) {
        struct hvi_err err = {{0}};
        enum hvd_status rc;
        int pairs[2][2];
        struct hvi_plane *p;

        g.me = me;
        p = chain_start(me, pairs, &g);
        if (me == 1) {
            rc = relay(p, pairs[0][1], pairs[1][1], "partials through the middle");
            cr_assert_eq(rc, HVD_INPROGRESS, "done without the results");
            rc = relay(p, pairs[1][1], pairs[0][1], "results through the middle");
        } else {
            rc = relay(p, pairs[1][1], pairs[1][1], "results of the last");
        }
        for (int i = 0; i < 100 && rc == HVD_INPROGRESS; i++)
            rc = step(p, &err);
        cr_assert_eq(rc, HVD_OK, "member %d: %s %s", me, hvi_status_name(rc), err.text);
        p->ops->free(p);
        close(pairs[0][1]);
        close(pairs[1][1]);
    }
}

/* ---- tcp: a wait without time */

static bool never(void *arg)
{
    (void)arg;
    return false;
}

Test(planes, tcp_a_wait_without_time_looks_at_what_has_come, .timeout = 30)
{
    int32_t members[2] = {0, 1};
    struct hvi_group g = {.seq = 7,
                          .kind = HVD_BARRIER,
                          .prescale = 1,
                          .postscale = 1,
                          .nmembers = 2,
                          .members = members};
    struct hvi_plane *p = NULL;
    struct hvi_err err = {{0}};
    uint8_t head[16];
    int pair[2];

    cr_assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    cr_assert_eq(hvi_tcp_new(0, 2, (int[2]){-1, pair[0]}, &p, &err), HVD_OK);
    cr_assert_eq(p->ops->start(p, &g, &err), HVD_OK, "%s", err.text);
    cr_assert_eq(p->ops->progress(p, &err), HVD_INPROGRESS, "%s", err.text);
    cr_assert(!hvi_tcp_wait_with(p, 0, never, NULL));
    cr_assert_eq(p->ops->progress(p, &err), HVD_INPROGRESS, "%s", err.text);
    put_head(head, 7, 0, 0);
    cr_assert_eq(send(pair[1], head, sizeof(head), MSG_NOSIGNAL), 16);
    cr_assert(!hvi_tcp_wait_with(p, 0, never, NULL));
    cr_assert_eq(p->ops->progress(p, &err), HVD_OK, "%s", err.text);
    close(pair[1]);
    p->ops->free(p);
}

Test(planes, tcp_names_the_rank_that_went_away, .timeout = 60)
{
    uint8_t bytes[20] = {0};
    struct hvi_err err = {{0}};

    put_head(bytes, 7, 0, 4);
    for (size_t n = 1; n < 20; n++) {
        cr_assert_eq(talk_to(bytes, n, true, &err), HVD_EPEER, "after %zu bytes", n);
        err.text[0] = '\0';
    }
}

/* Every write in turn takes one byte only, or none. */
static void torn_body(struct rank *r, void *arg)
{
    int64_t count = 200;
    float *v = rank_alloc(r, (size_t)count * sizeof(*v));
    struct hvi_piece pieces[2] = {floats(v, 150), floats(v + 150, 50)};
    long hits = 0;

    (void)arg;
    snprintf(r->where, sizeof(r->where), "torn writes");
    for (long k = 0; k < 24; k++) {
        struct hvi_group g = rank_group(r, HVD_ALLREDUCE, HVD_FLOAT32, pieces, 2);

        for (int64_t i = 0; i < count; i++)
            v[i] = (float)(r->me + 1 + i);
        if (r->me == 0)
            hvi_fault_write_after(k / 2 % 6, k % 2 == 0 ? 0 : EAGAIN);
        rank_run(r, &g);
        if (r->me == 0)
            hits += hvi_fault_write_off();
        for (int64_t i = 0; i < count; i++)
            if (v[i] != (float)(r->n * (r->n + 1) / 2 + r->n * i))
                rank_fail(r, "element %lld is %g", (long long)i, (double)v[i]);
    }
    if (r->me == 0 && hits < 6)
        rank_fail(r, "only %ld writes were torn", hits);
    free(v);
}

Test(planes, tcp_writes_may_be_torn, .timeout = 30)
{
    struct world w;

    world_make(&w, WORLD_TCP, 3, 64, 0);
    world_run(&w, WORLD_THREADS, torn_body, NULL, DEADLINE_S);
    world_free(&w);
}

Test(planes, tcp_new_checks_its_arguments, .timeout = 10)
{
    struct hvi_plane *p = NULL;
    struct hvi_err err = {{0}};

    cr_assert_eq(hvi_tcp_new(0, 2, (int[2]){-1, -1}, &p, &err), HVD_EINVAL);
    cr_assert_eq(hvi_tcp_new(2, 2, (int[2]){-1, -1}, &p, &err), HVD_EINVAL);
    cr_assert_eq(hvi_tcp_new(0, 0, NULL, &p, &err), HVD_EINVAL);
    cr_assert_null(p);
}
