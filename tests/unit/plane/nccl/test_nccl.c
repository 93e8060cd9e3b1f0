/** The GPU plane over the fakes: what goes through the host, what is refused, and what
 *  happens when NCCL, the driver or a peer fails. */
#include "../world.h"

#include "proto/base/list.h"
#include "proto/base/names.h"
#include "worker/plane/nccl/gpu.h"

#define DEADLINE_S 20

static void make(struct world *w, int n)
{
    world_make(w, WORLD_NCCL, n, 4096, 3);
}

static void go(struct world *w, world_body *body)
{
    world_run(w, WORLD_PROCESSES, body, NULL, DEADLINE_S);
    world_free(w);
}

/* One allreduce of `count` ones; its status. */
static enum hvd_status sum(struct rank *r, int64_t count, struct hvi_err *err)
{
    float *v = rank_alloc(r, (size_t)count * sizeof(*v));
    struct hvi_piece piece = {.in = v, .out = v, .count = count, .row = 1};
    struct hvi_group g = rank_group(r, HVD_ALLREDUCE, HVD_FLOAT32, &piece, 1);
    enum hvd_status rc;

    for (int64_t i = 0; i < count; i++)
        v[i] = (float)(r->me + 1);
    rc = hvi_plane_run(r->p, &g, err);
    for (int64_t i = 0; rc == HVD_OK && i < count; i++)
        if (v[i] != (float)(r->n * (r->n + 1) / 2))
            rank_fail(r, "element %lld is %g", (long long)i, (double)v[i]);
    if (rc == HVD_OK)
        free(v); /* else the device may still use it */
    return rc;
}

static void expect_sums(struct rank *r, void *arg)
{
    struct hvi_err err = {{0}};

    (void)arg;
    for (int i = 0; i < 3; i++)
        if (sum(r, 1000, &err) != HVD_OK)
            rank_fail(r, "sum %d: %s", i, err.text);
}

static struct hvi_gpu *gpu(struct rank *r)
{
    return HVI_CONTAINER(r->p, struct hvi_gpu, base);
}

static void expect_staged(struct rank *r, void *arg)
{
    expect_sums(r, arg);
    if (gpu(r)->comms == NULL || !gpu(r)->comms->staged)
        rank_fail(r, "it did not go through the host");
}

static void expect_nccl(struct rank *r, void *arg)
{
    expect_sums(r, arg);
    if (gpu(r)->comms == NULL || gpu(r)->comms->staged || gpu(r)->comms->nccl == NULL)
        rank_fail(r, "it did not go through NCCL");
}

/* ---- through NCCL, through the host */

Test(nccl, each_rank_its_own_gpu_goes_through_nccl, .timeout = 30)
{
    struct world w;

    make(&w, 3);
    go(&w, expect_nccl);
}

Test(nccl, ranks_that_share_a_gpu_go_through_the_host, .timeout = 30)
{
    struct world w;

    make(&w, 3);
    w.share_gpu = true;
    go(&w, expect_staged);
}

static void no_kernels(struct rank *r)
{
    if (r->me == 1)
        setenv("FAKE_CUDA_NO_KERNELS", "1", 1);
}

static void no_memory(struct rank *r)
{
    if (r->me == 0)
        setenv("FAKE_CUDA_MEMORY", "1000000", 1);
}

static void asked(struct rank *r)
{
    if (r->me == 1)
        setenv("HVD_GPU_PLANE", "host", 1);
}

Test(nccl, what_one_rank_lacks_sends_all_through_the_host, .timeout = 60)
{
    void (*const lacks[])(struct rank *) = {no_kernels, no_memory, asked};

    for (size_t i = 0; i < sizeof(lacks) / sizeof(lacks[0]); i++) {
        struct world w;

        make(&w, 2);
        w.before_gpu = lacks[i];
        go(&w, expect_staged);
    }
}

static void slow(struct rank *r)
{
    (void)r;
    setenv("FAKE_NCCL_SLOW_MS", "3", 1);
    setenv("FAKE_CUDA_DELAY_US", "2000", 1);
}

Test(nccl, results_wait_for_nccl_that_takes_its_time, .timeout = 60)
{
    struct world w;

    make(&w, 3);
    w.before_gpu = slow;
    go(&w, expect_nccl);
}

static void *fake(const char *name)
{
    void *f = dlsym(RTLD_DEFAULT, name);

    if (f == NULL)
        fprintf(stderr, "the fake driver has no %s\n", name);
    return f;
}

static void sums_beside_a_capture(struct rank *r, void *arg)
{
    int (*create)(void **, unsigned) =
        (int (*)(void **, unsigned))fake("cuStreamCreate");
    int (*begin)(void *, int) = (int (*)(void *, int))fake("cuStreamBeginCapture_v2");
    int (*end)(void *, void **) = (int (*)(void *, void **))fake("cuStreamEndCapture");
    void *stream = NULL;
    void *graph = NULL;
    int rc;

    expect_sums(r, arg); /* NCCL has connected */
    hvi_device_enter(gpu(r)->dev);
    rc = create(&stream, 1);
    hvi_device_leave(gpu(r)->dev);
    if (rc != 0 || begin(stream, 0) != 0)
        rank_fail(r, "no capture: %d", rc);
    expect_sums(r, arg);
    rc = end(stream, &graph);
    if (rc != 0)
        rank_fail(r, "the program's graph is spoilt: %d", rc);
}

Test(nccl, a_graph_that_the_program_captures_meanwhile_is_not_spoilt, .timeout = 30)
{
    struct world w;

    make(&w, 2);
    go(&w, sums_beside_a_capture);
}

/* ---- refused alike on every rank, and the plane stays good */

static void expect_refusal(struct rank *r, enum hvd_status want, const char *words)
{
    struct hvi_err err = {{0}};
    enum hvd_status rc = sum(r, 10, &err);

    if (rc != want || strstr(err.text, words) == NULL)
        rank_fail(r, "%s: %s", hvi_status_name(rc), err.text);
    if (atomic_load(&gpu(r)->broken) != 0)
        rank_fail(r, "the plane is broken");
}

static void old_on_one(struct rank *r)
{
    if (r->me == 1)
        setenv("FAKE_NCCL_VERSION", "21703", 1);
}

static void told_too_old(struct rank *r, void *arg)
{
    (void)arg;
    expect_refusal(r, HVD_EVERSION, "rank 1 (here): NCCL 2.17.3 at ");
    if (r->me == 1)
        setenv("FAKE_NCCL_VERSION", "22809", 1);
    expect_sums(r, arg); /* asked again at the next group */
}

Test(nccl, an_old_version_on_one_rank_is_told_on_all, .timeout = 30)
{
    struct world w;

    make(&w, 2);
    w.before_gpu = old_on_one;
    go(&w, told_too_old);
}

static void other_on_one(struct rank *r)
{
    if (r->me == 2)
        setenv("FAKE_NCCL_VERSION", "22005", 1);
}

static void told_different(struct rank *r, void *arg)
{
    (void)arg;
    expect_refusal(r, HVD_EVERSION, "rank 0 has NCCL 2.28.9, rank 2 has 2.20.5");
}

Test(nccl, different_versions_are_told_on_all, .timeout = 30)
{
    struct world w;

    make(&w, 3);
    w.before_gpu = other_on_one;
    go(&w, told_different);
}

static void *no_room(void *cookie, const int64_t *rows, int32_t nmembers,
                     int64_t total_rows, size_t size_bytes)
{
    struct rank *r = cookie;

    (void)rows;
    (void)nmembers;
    (void)total_rows;
    return r->me == 1 ? NULL : rank_alloc(r, size_bytes);
}

static void gather_without_room(struct rank *r, void *arg)
{
    int64_t rows[WORLD_MAX];
    char in[8] = "abcdefg";
    struct hvi_piece piece = {
        .in = in, .count = r->me + 1, .row = 1, .rows = rows, .cookie = r};
    struct hvi_group g = rank_group(r, HVD_ALLGATHER, HVD_UINT8, &piece, 1);
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    g.alloc = no_room;
    rc = hvi_plane_run(r->p, &g, &err);
    if (rc != HVD_ENOMEM || strstr(err.text, "rank 1 has no GPU memory") == NULL)
        rank_fail(r, "%s: %s", hvi_status_name(rc), err.text);
    expect_sums(r, arg);
}

Test(nccl, a_result_without_memory_on_one_rank_fails_on_all_and_goes_on, .timeout = 30)
{
    struct world w;

    make(&w, 3);
    go(&w, gather_without_room);
}

/* ---- compression */

static void all_bf16(struct rank *r)
{
    (void)r;
    setenv("HVD_GPU_COMPRESSION", "bf16", 1);
}

static void one_fp16(struct rank *r)
{
    setenv("HVD_GPU_COMPRESSION", r->me == 1 ? "fp16" : "bf16", 1);
}

static void expect_bf16(struct rank *r, void *arg)
{
    float v[2][3];
    struct hvi_piece pieces[2];
    struct hvi_group g = rank_group(r, HVD_ALLREDUCE, HVD_FLOAT32, pieces, 2);

    (void)arg;
    for (int i = 0; i < 6; i++)
        v[i / 3][i % 3] = 1.01f + (float)i;
    for (int i = 0; i < 2; i++)
        pieces[i] = (struct hvi_piece){.in = v[i], .out = v[i], .count = 3, .row = 1};
    g.reduce_op = HVD_AVERAGE;
    rank_run(r, &g);
    for (int i = 0; i < 6; i++)
        if (v[i / 3][i % 3] != hvi_bf16_to_f32(hvi_f32_to_bf16(1.01f + (float)i)))
            rank_fail(r, "%g was not bf16 on its way", (double)v[i / 3][i % 3]);
}

static void told_differently(struct rank *r, void *arg)
{
    (void)arg;
    expect_refusal(r, HVD_EMISMATCH, "HVD_GPU_COMPRESSION differs on ranks 0 and 1");
}

Test(nccl, compression_is_on_the_wire_only, .timeout = 30)
{
    struct world w;

    make(&w, 2);
    w.before_gpu = all_bf16;
    go(&w, expect_bf16);
    make(&w, 2);
    w.before_gpu = one_fp16;
    go(&w, told_differently);
}

/* ---- what breaks the plane */

static _Atomic int told;
static char told_text[1024];

static void on_broken(void *rank, enum hvd_status status, const char *text)
{
    struct rank *r = rank;

    snprintf(told_text, sizeof(told_text), "%s", text);
    atomic_store(&told, (int)status);
    atomic_fetch_add(&r->w->shared->number[0], 1);
}

/* Sums until one fails, at most 20. */
static enum hvd_status sums_until_failure(struct rank *r, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    for (int i = 0; i < 20 && rc == HVD_OK; i++)
        rc = sum(r, 5000, err);
    return rc;
}

/* The other ranks hear of it from their owner, as from the coordinator. */
static void fail_with(struct rank *r, int faulty, enum hvd_status want,
                      const char *words)
{
    struct hvi_err err = {{0}};
    int64_t until_ms = hvi_now_ms() + 10000;
    enum hvd_status rc;

    rc = sums_until_failure(r, &err);
    if (r->me == faulty) {
        if (rc != want || strstr(err.text, words) == NULL)
            rank_fail(r, "%s: %s", hvi_status_name(rc), err.text);
        while (atomic_load(&told) == 0 && hvi_now_ms() < until_ms)
            world_sleep_1ms();
        if (atomic_load(&told) != (int)want || strcmp(told_text, err.text) != 0)
            rank_fail(r, "the owner was told %d: %s", atomic_load(&told), told_text);
    } else if (rc == HVD_OK) {
        rank_fail(r, "nothing failed");
    }
    if (sum(r, 10, &err) == HVD_OK)
        rank_fail(r, "a broken plane went on");
}

/* Ends this rank's wait when the faulty one has been told. */
static void *watch_others(void *arg)
{
    struct rank *r = arg;
    int64_t until_ms = hvi_now_ms() + 15000;

    while (atomic_load(&r->w->shared->number[0]) == 0 && hvi_now_ms() < until_ms)
        world_sleep_1ms();
    r->p->ops->abort(r->p, HVD_EPEER);
    r->below->ops->abort(r->below, HVD_EPEER);
    return NULL;
}

static void with_peers(struct rank *r, int faulty, enum hvd_status want,
                       const char *words)
{
    pthread_t thread;

    if (r->me != faulty && pthread_create(&thread, NULL, watch_others, r) != 0)
        rank_fail(r, "no thread");
    fail_with(r, faulty, want, words);
    if (r->me != faulty)
        pthread_join(thread, NULL);
}

static void async_body(struct rank *r, void *arg)
{
    (void)arg;
    with_peers(r, 1, HVD_EIO,
               "a collective failed on rank 1 (here, cuda:1 Fake GPU 1): NCCL 2.28.9: "
               "unhandled system error (run with NCCL_DEBUG=INFO for details): fake: "
               "NET/IB: got completion with error 12; often the network");
}

static void async_fault(struct rank *r)
{
    (void)r;
    setenv("FAKE_NCCL_FAULT", "async:1:3", 1);
}

Test(nccl, an_asynchronous_error_ends_it_with_nccls_words, .timeout = 60)
{
    struct world w;

    make(&w, 3);
    w.before_gpu = async_fault;
    w.broken = on_broken;
    go(&w, async_body);
}

static void call_body(struct rank *r, void *arg)
{
    (void)arg;
    with_peers(r, 0, HVD_EIO,
               "allreduce on rank 0 (here, cuda:0 Fake GPU 0): NCCL 2.28.9: unhandled "
               "cuda error (run with NCCL_DEBUG=INFO for details): fake: this call "
               "fails; a CUDA call inside NCCL failed");
}

static void call_fault(struct rank *r)
{
    (void)r;
    setenv("FAKE_NCCL_FAULT", "call:0:2", 1);
}

Test(nccl, a_failing_call_ends_it, .timeout = 60)
{
    struct world w;

    make(&w, 2);
    w.before_gpu = call_fault;
    w.broken = on_broken;
    go(&w, call_body);
}

static void init_body(struct rank *r, void *arg)
{
    (void)arg;
    with_peers(r, 1, HVD_EIO, "creating the communicator on rank 1");
}

static void init_fault(struct rank *r)
{
    (void)r;
    setenv("FAKE_NCCL_FAULT", "init:1", 1);
}

Test(nccl, a_communicator_that_cannot_be_made_ends_it, .timeout = 60)
{
    struct world w;

    make(&w, 2);
    w.before_gpu = init_fault;
    w.broken = on_broken;
    go(&w, init_body);
}

static void hang_body(struct rank *r, void *arg)
{
    struct hvi_err err = {{0}};
    enum hvd_status rc;

    (void)arg;
    rc = sums_until_failure(r, &err);
    if (rc != HVD_EPEER ||
        strstr(err.text, "has not ended for 0 s (HVD_NCCL_TIMEOUT_SECONDS)") == NULL)
        rank_fail(r, "%s: %s", hvi_status_name(rc), err.text);
}

static void hang_fault(struct rank *r)
{
    (void)r;
    setenv("FAKE_NCCL_FAULT", "hang:1:2", 1);
}

Test(nccl, a_collective_that_hangs_ends_at_the_deadline, .timeout = 60)
{
    struct world w;

    make(&w, 2);
    w.timeout_ms = 500;
    w.before_gpu = hang_fault;
    w.broken = on_broken;
    go(&w, hang_body);
}

static void stuck_fault(struct rank *r)
{
    hang_fault(r);
    setenv("FAKE_NCCL_ABORT_HANG", "1", 1);
}

static void hang_first(struct rank *r)
{
    (void)r;
    setenv("FAKE_NCCL_FAULT", "hang:1:0", 1);
}

struct late {
    _Atomic int done;
    char text[HVD_ERROR_TEXT_MAX];
};

static void on_done(void *arg, enum hvd_status status, const char *text)
{
    struct late *l = arg;

    snprintf(l->text, sizeof(l->text), "%s", text != NULL ? text : "");
    atomic_store(&l->done, status == HVD_OK ? 1 : (int)status);
}

/* Asynchronous groups: all are queued, none may be lost when the abort hangs as well. */
static void stuck_body(struct rank *r, void *arg)
{
    static float v[6][100];
    static struct late late[6];
    struct hvi_piece pieces[6];
    int64_t until_ms = hvi_now_ms() + 10000;
    struct hvi_err err = {{0}};

    (void)arg;
    for (int i = 0; i < 6; i++) {
        struct hvi_group g;

        pieces[i] = (struct hvi_piece){.in = v[i], .out = v[i], .count = 100, .row = 1};
        g = rank_group(r, HVD_ALLREDUCE, HVD_FLOAT32, &pieces[i], 1);
        g.done = on_done;
        g.arg = &late[i];
        if (hvi_plane_run(r->p, &g, &err) != HVD_OK)
            rank_fail(r, "group %d was not queued: %s", i, err.text);
    }
    for (int i = 0; i < 6; i++) {
        while (atomic_load(&late[i].done) == 0 && hvi_now_ms() < until_ms)
            world_sleep_1ms();
        if (i < 2 ? atomic_load(&late[i].done) != 1
                  : atomic_load(&late[i].done) != HVD_EPEER)
            rank_fail(r, "group %d: %d %s", i, atomic_load(&late[i].done),
                      late[i].text);
        if (i > 1 && strstr(late[i].text, "its memory may still be written") == NULL)
            rank_fail(r, "group %d: %s", i, late[i].text);
    }
}

Test(nccl, an_abort_that_hangs_still_completes_everything, .timeout = 60)
{
    struct world w;

    make(&w, 2);
    w.timeout_ms = 500;
    w.abort_ms = 500;
    w.before_gpu = stuck_fault;
    w.broken = on_broken;
    go(&w, stuck_body);
}

/* Inside exit() the driver may leave before us, with work still queued. */
static void driver_leaves(struct rank *r, void *arg)
{
    static float v[100];
    static struct late late;
    struct hvi_piece piece = {.in = v, .out = v, .count = 100, .row = 1};
    struct hvi_group g = rank_group(r, HVD_ALLREDUCE, HVD_FLOAT32, &piece, 1);
    int64_t until_ms = hvi_now_ms() + 10000;
    struct hvi_err err = {{0}};
    void (*leave)(void) = (void (*)(void))fake("fake_cuda_leave");

    (void)arg;
    g.done = on_done;
    g.arg = &late;
    if (hvi_plane_run(r->p, &g, &err) != HVD_OK)
        rank_fail(r, "it was not queued: %s", err.text);
    leave();
    while (atomic_load(&late.done) == 0 && hvi_now_ms() < until_ms)
        world_sleep_1ms();
    if (atomic_load(&late.done) != HVD_ESHUTDOWN ||
        strcmp(late.text, "the program is ending") != 0)
        rank_fail(r, "%d %s", atomic_load(&late.done), late.text);
    if (atomic_load(&told) != 0)
        rank_fail(r, "the owner was told: %s", told_text);
}

Test(nccl, a_driver_that_left_at_exit_is_no_failure, .timeout = 60)
{
    struct world w;

    make(&w, 2);
    w.before_gpu = hang_first;
    w.broken = on_broken;
    go(&w, driver_leaves);
}

static void abort_body(struct rank *r, void *arg)
{
    struct hvi_err err = {{0}};
    pthread_t thread;
    int64_t began_ms = hvi_now_ms();

    (void)arg;
    if (r->me == 1)
        return; /* lost without a word */
    atomic_store(&r->w->shared->number[0], 1);
    if (pthread_create(&thread, NULL, watch_others, r) != 0)
        rank_fail(r, "no thread");
    if (sums_until_failure(r, &err) != HVD_EPEER)
        rank_fail(r, "not HVD_EPEER: %s", err.text);
    pthread_join(thread, NULL);
    if (hvi_now_ms() - began_ms > 5000)
        rank_fail(r, "took %lld ms", (long long)(hvi_now_ms() - began_ms));
}

Test(nccl, abort_from_another_thread_ends_what_waits, .timeout = 60)
{
    struct world w;

    make(&w, 2);
    go(&w, abort_body);
}

/* ---- memory and threads come back */

static size_t in_use(void)
{
    size_t (*f)(void) = (size_t(*)(void))dlsym(RTLD_DEFAULT, "fake_cuda_in_use");

    return f != NULL ? f() : 0;
}

static void again_body(struct rank *r, void *arg)
{
    struct hvi_nccl_setup setup = {.device_id = r->me,
                                   .rank = r->me,
                                   .size = r->n,
                                   .host = "here",
                                   .cpu = r->below};
    struct hvi_err err = {{0}};

    for (int i = 0; i < 3; i++) {
        expect_sums(r, arg);
        r->p->ops->free(r->p);
        r->p = NULL;
        if (in_use() != 0)
            rank_fail(r, "%zu bytes of GPU memory stay", in_use());
        if (hvi_nccl_new(&setup, &r->p, &err) != HVD_OK)
            rank_fail(r, "not again: %s", err.text);
    }
    expect_sums(r, arg);
}

Test(nccl, a_new_membership_makes_new_communicators_and_loses_no_memory, .timeout = 60)
{
    struct world w;

    make(&w, 2);
    go(&w, again_body);
}

static void subsets_body(struct rank *r, void *arg)
{
    static const int32_t pair[] = {0, 2};
    static const int32_t *const sets[] = {pair};
    static const int32_t sizes[] = {2};
    struct hvi_nccl_setup setup = {.device_id = r->me,
                                   .rank = r->me,
                                   .size = r->n,
                                   .host = "here",
                                   .cpu = r->below,
                                   .set_ranks = sets,
                                   .set_sizes = sizes,
                                   .nsets = 1};
    struct hvi_err err = {{0}};
    int comms = 0;

    r->p->ops->free(r->p);
    r->p = NULL;
    if (hvi_nccl_new(&setup, &r->p, &err) != HVD_OK)
        rank_fail(r, "%s", err.text);
    expect_sums(r, arg);
    for (struct hvi_comm *c = gpu(r)->comms; c != NULL; c = c->next)
        comms += c->formed;
    if (comms != (r->me == 1 ? 1 : 2))
        rank_fail(r, "%d communicators after the split", comms);
    r->seq += HVI_SEQ_STEP;
    if (r->me != 1) {
        float v = (float)r->me;
        struct hvi_piece piece = {.in = &v, .out = &v, .count = 1, .row = 1};
        struct hvi_group g = rank_group(r, HVD_ALLREDUCE, HVD_FLOAT32, &piece, 1);

        g.members = pair;
        g.nmembers = 2;
        g.me = r->me / 2;
        rank_run(r, &g);
        if (v != 2)
            rank_fail(r, "the sum of the pair is %g", (double)v);
    } else {
        r->seq += HVI_SEQ_STEP;
    }
    expect_sums(r, arg);
}

Test(nccl, static_sets_are_split_off_the_communicator_of_all, .timeout = 60)
{
    struct world w;

    make(&w, 3);
    go(&w, subsets_body);
}
