/* The installed API in a job of one rank: what needs no peer. */
#include "test.h"

#include <math.h>
#include <poll.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <hvd/hvd.h>

#include "fault.h"
#include "proto/base/clock.h"

static void up(void)
{
    unsetenv("HVD_COORDINATOR");
    unsetenv("HOROVOD_COORDINATOR");
    cr_assert_eq(hvd_init(NULL), HVD_OK, "%s", hvd_last_error());
}

static void down(void)
{
    cr_assert_eq(hvd_shutdown(), HVD_OK);
}

static struct hvd_op op_of(enum hvd_kind kind, void *data, const int64_t *dims,
                           int32_t ndim)
{
    struct hvd_op op;

    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = kind;
    op.reduce_op = HVD_SUM;
    op.in = (struct hvd_tensor){
        .data = data, .dims = dims, .ndim = ndim, .dtype = HVD_FLOAT32};
    op.out = op.in;
    return op;
}

Test(api, nothing_works_before_init, .timeout = 10)
{
    float x = 1;
    hvd_handle h;
    struct hvd_op op;
    int64_t one = 1;

    op = op_of(HVD_ALLREDUCE, &x, &one, 1);
    cr_assert_eq(hvd_get_state(), HVD_DOWN);
    cr_assert_eq(hvd_rank(), HVD_ESTATE);
    cr_assert_eq(hvd_size(), HVD_ESTATE);
    cr_assert_eq(hvd_epoch(), 0);
    cr_assert_eq(hvd_enqueue(&op, &h), HVD_ESTATE);
    cr_assert_eq(hvd_allreduce(&x, &x, 1, HVD_FLOAT32, HVD_SUM, "x"), HVD_ESTATE);
    cr_assert_eq(hvd_barrier(0), HVD_ESTATE);
    cr_assert_eq(hvd_eventfd(), -1);
    cr_assert_str_eq(hvd_last_error(), "call hvd_init first");
    cr_assert_eq(hvd_shutdown(), HVD_OK, "shutting down what is down is fine");
}

Test(api, a_job_of_one_rank_knows_itself, .timeout = 10)
{
    up();
    cr_assert_eq(hvd_init(NULL), HVD_OK, "twice is fine");
    cr_assert_eq(hvd_rank(), 0);
    cr_assert_eq(hvd_size(), 1);
    cr_assert_eq(hvd_local_rank(), 0);
    cr_assert_eq(hvd_local_size(), 1);
    cr_assert_eq(hvd_cross_rank(), 0);
    cr_assert_eq(hvd_cross_size(), 1);
    cr_assert_eq(hvd_is_homogeneous(), 1);
    cr_assert_eq(hvd_get_state(), HVD_UP);
    cr_assert_eq(hvd_feature("shm"), 1);
    cr_assert_eq(hvd_feature("nonsense"), 0);
    cr_assert_eq(hvd_pset_count(), 1);
    cr_assert_eq(hvd_pset_size(0), 1);
    cr_assert_eq(hvd_pset_rank(0), 0);
    cr_assert_eq(hvd_pset_size(9), HVD_EINVAL);
    down();
    cr_assert_eq(hvd_get_state(), HVD_DOWN);
}

Test(api, every_collective_of_one_rank_is_the_identity, .timeout = 20)
{
    float x[6] = {1, 2, 3, 4, 5, 6};
    float y[6] = {0};
    int32_t last = -1;

    up();
    cr_assert_eq(hvd_allreduce(x, y, 6, HVD_FLOAT32, HVD_SUM, "s"), HVD_OK);
    cr_assert_arr_eq(x, y, sizeof x);
    cr_assert_eq(hvd_allreduce(x, x, 6, HVD_FLOAT32, HVD_AVERAGE, NULL), HVD_OK);
    cr_assert_arr_eq(x, y, sizeof x);
    cr_assert_eq(hvd_broadcast(x, 6, HVD_FLOAT32, 0, NULL), HVD_OK);
    memset(y, 0, sizeof y);
    cr_assert_eq(hvd_allgather(x, 6, y, 6, HVD_FLOAT32, NULL), HVD_OK, "%s",
                 hvd_last_error());
    cr_assert_arr_eq(x, y, sizeof x);
    cr_assert_eq(hvd_allgather(x, 6, y, 5, HVD_FLOAT32, NULL), HVD_EINVAL, "%s",
                 hvd_last_error());
    cr_assert_eq(hvd_barrier(0), HVD_OK);
    cr_assert_eq(hvd_join(&last), HVD_OK);
    cr_assert_eq(last, 0);
    down();
}

Test(api, results_of_unknown_size_belong_to_the_handle, .timeout = 20)
{
    float x[6] = {1, 2, 3, 4, 5, 6};
    int64_t dims[2] = {3, 2};
    struct hvd_op op = op_of(HVD_ALLGATHER, x, dims, 2);
    struct hvd_tensor t;
    void *taken = NULL;
    hvd_handle h = 0;

    up();
    op.out.data = NULL;
    cr_assert_eq(hvd_enqueue(&op, &h), HVD_OK);
    cr_assert_eq(hvd_wait(h, HVD_WAIT_DONE, 5000), HVD_OK);
    cr_assert_eq(hvd_result(h, &t), HVD_OK);
    cr_assert_eq(t.ndim, 2);
    cr_assert_eq(t.dims[0], 3);
    cr_assert_eq(t.dims[1], 2);
    cr_assert_arr_eq(t.data, x, sizeof x);
    cr_assert_eq((uintptr_t)t.data % 64, 0);
    cr_assert_eq(hvd_result_take(h, &taken), HVD_OK);
    cr_assert_eq(hvd_result_take(h, &taken), HVD_EINVAL, "it was taken");
    cr_assert_eq(hvd_release(h), HVD_OK);
    cr_assert_eq(hvd_release(h), HVD_EHANDLE);
    cr_assert_eq(hvd_poll(h), HVD_EHANDLE);
    cr_assert_arr_eq(taken, x, sizeof x, "outlives the handle");
    hvd_buffer_free(taken);
    down();
}

static void *give_memory(void *arg, const struct hvd_tensor *shape, size_t size_bytes)
{
    float *memory = arg;

    return shape->dims[0] == 6 && size_bytes == 24 ? memory : NULL;
}

static void *give_none(void *arg, const struct hvd_tensor *shape, size_t size_bytes)
{
    (void)arg;
    (void)shape;
    (void)size_bytes;
    return NULL;
}

Test(api, the_allocator_callback_gives_the_result, .timeout = 20)
{
    float x[6] = {1, 2, 3, 4, 5, 6};
    float memory[6] = {0};
    int64_t n = 6;
    struct hvd_op op = op_of(HVD_ALLGATHER, x, &n, 1);
    hvd_handle h = 0;

    up();
    op.out.data = NULL;
    op.alloc = give_memory;
    op.arg = memory;
    cr_assert_eq(hvd_enqueue(&op, &h), HVD_OK);
    cr_assert_eq(hvd_wait(h, HVD_WAIT_DONE, 5000), HVD_OK, "%s", hvd_last_error());
    cr_assert_arr_eq(memory, x, sizeof x);
    hvd_release(h);
    op.alloc = give_none;
    cr_assert_eq(hvd_enqueue(&op, &h), HVD_OK);
    cr_assert_eq(hvd_wait(h, HVD_WAIT_DONE, 5000), HVD_ENOMEM);
    hvd_release(h);
    down();
}

struct seen {
    _Atomic int calls;
    enum hvd_status wait_rc;
    hvd_handle handle;
};

static void on_done(void *arg, hvd_handle handle, enum hvd_status status)
{
    struct seen *s = arg;

    s->handle = handle;
    s->wait_rc = hvd_wait(handle, HVD_WAIT_DONE, -1);
    (void)status;
    s->calls++;
}

Test(api, completion_reaches_callback_and_eventfd, .timeout = 20)
{
    float x = 1;
    int64_t n = 1;
    struct seen seen = {0};
    struct hvd_op op = op_of(HVD_ALLREDUCE, &x, &n, 1);
    struct pollfd p = {.events = POLLIN};
    hvd_handle h = 0;
    hvd_handle done[2];

    up();
    p.fd = hvd_eventfd();
    cr_assert_geq(p.fd, 0);
    op.done = on_done;
    op.arg = &seen;
    cr_assert_eq(hvd_enqueue(&op, &h), HVD_OK);
    cr_assert_eq(poll(&p, 1, 5000), 1, "no completion within 5 s");
    cr_assert_eq(hvd_next_done(done, 2), 1);
    cr_assert_eq(done[0], h);
    for (int64_t until = hvi_now_ms() + 5000; seen.calls == 0;)
        cr_assert_gt(hvi_ms_left(until), 0, "the callback did not come within 5 s");
    cr_assert_eq(seen.calls, 1);
    cr_assert_eq(seen.handle, h);
    cr_assert(seen.wait_rc == HVD_OK || seen.wait_rc == HVD_EDEADLOCK);
    hvd_release(h);
    down();
}

/* One wrong thing each; the text must name it. */
Test(api, misuse_is_named, .timeout = 20)
{
    float x[4] = {0};
    int64_t dims[2] = {2, 2};
    int64_t negative[1] = {-1};
    int64_t huge[3] = {INT64_MAX / 2, 3, 5};
    int64_t splits[1] = {5};
    int64_t empty_but_huge[2] = {0, INT64_MAX};
    struct hvd_op base;
    struct hvd_op op;
    hvd_handle h = 0;
    char name[HVD_NAME_MAX + 2];

    up();
    base = op_of(HVD_ALLREDUCE, x, dims, 2);
    base.name = "w";
#define REFUSED(status, word)                                                          \
    do {                                                                               \
        cr_assert_eq(hvd_enqueue(&op, &h), (status), "%s", hvd_last_error());          \
        cr_assert_not_null(strstr(hvd_last_error(), word), "%s", hvd_last_error());    \
        op = base;                                                                     \
    } while (0)
    op = base;
    cr_assert_eq(hvd_enqueue(NULL, &h), HVD_EINVAL);
    cr_assert_eq(hvd_enqueue(&op, NULL), HVD_EINVAL);
    op.size = 3;
    REFUSED(HVD_EINVAL, "size");
    op.kind = 99;
    REFUSED(HVD_EINVAL, "kind 99");
    op.kind = HVD_JOIN;
    REFUSED(HVD_EINVAL, "kind");
    op.reduce_op = 77;
    REFUSED(HVD_EINVAL, "reduce_op 77");
    op.in.dtype = 50;
    REFUSED(HVD_EINVAL, "dtype 50");
    op.in.data = NULL;
    REFUSED(HVD_EINVAL, "data is NULL");
    op.in.dims = NULL;
    REFUSED(HVD_EINVAL, "dims is NULL");
    op.in.ndim = HVD_NDIM_MAX + 1;
    REFUSED(HVD_EINVAL, "ndim");
    op.in.dims = negative;
    op.in.ndim = 1;
    REFUSED(HVD_EINVAL, "dims[0] is -1");
    op.in.dims = huge;
    op.in.ndim = 3;
    REFUSED(HVD_EINVAL, "overflow");
    op.in.dims = huge;
    op.in.ndim = 1;
    REFUSED(HVD_EINVAL, "too many");
    op.in.dims = empty_but_huge;
    REFUSED(HVD_EINVAL, "overflow");
    op.pset = 3;
    REFUSED(HVD_EINVAL, "process set 3");
    op.kind = HVD_BROADCAST;
    op.root = 1;
    REFUSED(HVD_EINVAL, "root rank 1");
    op.kind = HVD_ALLTOALL;
    op.splits = splits;
    op.nsplits = 1;
    REFUSED(HVD_EINVAL, "5");
    op.in.device = 7;
    REFUSED(HVD_EUNSUPPORTED, "device type 7");
    op.in.device = HVD_CUDA;
    REFUSED(HVD_EINVAL, "different devices");
    op.ready.kind = HVD_READY_CUSTREAM;
    REFUSED(HVD_EINVAL, "ready events are for GPU tensors");
    op.prescale = (double)INFINITY;
    REFUSED(HVD_EINVAL, "finite");
    op.in.dtype = HVD_BOOL;
    op.reduce_op = HVD_AVERAGE;
    REFUSED(HVD_EUNSUPPORTED, "bool");
    op.kind = HVD_ALLGATHER;
    op.in.ndim = 0;
    REFUSED(HVD_EINVAL, "scalar");
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = '\0';
    op.name = name;
    REFUSED(HVD_EINVAL, "1023");
#undef REFUSED
    cr_assert_eq(hvd_enqueue_group(&op, 0, NULL, &h), HVD_EINVAL);
    cr_assert_eq(hvd_wait(12345, HVD_WAIT_DONE, 0), HVD_EHANDLE);
    cr_assert_eq(hvd_allreduce(x, NULL, 4, HVD_FLOAT32, HVD_SUM, "w"), HVD_EINVAL);
    cr_assert_eq(hvd_allreduce(NULL, x, 4, HVD_FLOAT32, HVD_SUM, "w"), HVD_EINVAL);
    cr_assert_eq(hvd_allreduce(x, x, -1, HVD_FLOAT32, HVD_SUM, "w"), HVD_EINVAL);
    cr_assert_eq(hvd_pset_add(NULL, 1, NULL), HVD_EINVAL);
    cr_assert_eq(hvd_timeline_start(NULL, 0), HVD_EINVAL);
    cr_assert_eq(hvd_result(1, NULL), HVD_EINVAL);
    cr_assert_eq(hvd_get_stats(NULL), HVD_EINVAL);
    cr_assert_eq(hvd_allreduce(x, x, 4, HVD_FLOAT32, HVD_SUM, "w"), HVD_OK,
                 "what was refused left nothing behind: %s", hvd_last_error());
    down();
}

Test(api, tensors_without_elements_are_fine, .timeout = 20)
{
    int64_t dims[2] = {0, 7};
    struct hvd_op op = op_of(HVD_ALLGATHER, NULL, dims, 2);
    struct hvd_tensor t;
    hvd_handle h = 0;

    up();
    cr_assert_eq(hvd_allreduce(NULL, NULL, 0, HVD_FLOAT32, HVD_SUM, "e"), HVD_OK, "%s",
                 hvd_last_error());
    cr_assert_eq(hvd_broadcast(NULL, 0, HVD_INT64, 0, "e"), HVD_OK);
    cr_assert_eq(hvd_enqueue(&op, &h), HVD_OK, "%s", hvd_last_error());
    cr_assert_eq(hvd_wait(h, HVD_WAIT_DONE, 5000), HVD_OK);
    cr_assert_eq(hvd_result(h, &t), HVD_OK);
    cr_assert_eq(t.dims[0], 0);
    cr_assert_eq(t.dims[1], 7);
    hvd_release(h);
    down();
}

Test(api, a_hundred_lives_in_one_process, .timeout = 30)
{
    for (int i = 0; i < 100; i++) {
        float x = (float)i;
        hvd_handle h;
        int64_t n = 1;
        struct hvd_op op = op_of(HVD_ALLREDUCE, &x, &n, 1);

        up();
        cr_assert_eq(hvd_enqueue(&op, &h), HVD_OK);
        down();
        cr_assert_eq(hvd_poll(h), HVD_OK, "what was queued ran before leaving");
        hvd_release(h);
    }
}

Test(api, a_forked_child_is_told_so_and_the_parent_goes_on, .timeout = 20)
{
    float x = 1;
    int status = 0;
    pid_t pid;

    up();
    pid = fork();
    if (pid == 0) {
        int bad = 0;

        bad |= hvd_get_state() != HVD_FORKED;
        bad |= hvd_rank() != HVD_EFORKED;
        bad |= hvd_allreduce(&x, &x, 1, HVD_FLOAT32, HVD_SUM, "c") != HVD_EFORKED;
        bad |= hvd_init(NULL) != HVD_EFORKED;
        bad |= hvd_shutdown() != HVD_EFORKED;
        _exit(bad);
    }
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_assert_eq(status, 0, "the child's calls: status %d", status);
    cr_assert_eq(hvd_allreduce(&x, &x, 1, HVD_FLOAT32, HVD_SUM, "p"), HVD_OK);
    down();
}

Test(api, process_sets_of_one_rank, .timeout = 10)
{
    int32_t ranks[2] = {0, 1};
    int32_t id = -1;
    int32_t ids[4];
    int32_t zero = 0;

    up();
    cr_assert_eq(hvd_pset_add(ranks, 2, &id), HVD_EINVAL);
    cr_assert_eq(hvd_pset_add(&ranks[1], 1, &id), HVD_EINVAL);
    cr_assert_eq(hvd_pset_add(&zero, 1, &id), HVD_EDUPLICATE, "set 0 has these ranks");
    cr_assert_eq(hvd_pset_remove(0), HVD_EINVAL);
    cr_assert_eq(hvd_pset_remove(5), HVD_EINVAL);
    cr_assert_eq(hvd_pset_ids(ids, 4), 1);
    down();
}

Test(api, hvd_alloc_is_aligned_zeroed_and_survives_shutdown, .timeout = 10)
{
    float *p;

    up();
    p = hvd_alloc(1000 * sizeof *p);
    cr_assert_not_null(p);
    cr_assert_eq((uintptr_t)p % 64, 0);
    cr_assert_eq(p[999], 0.0f);
    p[5] = 5;
    cr_assert_eq(hvd_allreduce(p, p, 1000, HVD_FLOAT32, HVD_SUM, "a"), HVD_OK);
    down();
    cr_assert_eq(p[5], 5.0f);
    hvd_free(p);
    hvd_free(NULL);
    p = hvd_alloc(0);
    cr_assert_not_null(p);
    hvd_free(p);
    cr_assert_null(hvd_alloc(SIZE_MAX));
}

Test(api, thousands_of_small_hvd_allocs_share_descriptors, .timeout = 20)
{
    enum { N = 5000 };
    static uint8_t *p[N];

    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            size_t size = (size_t)(i * 37 % 5000);

            if (round > 0 && i % 3 != 0)
                continue; /* kept from the round before */
            p[i] = hvd_alloc(size);
            cr_assert_not_null(p[i], "number %d", i);
            cr_assert_eq((uintptr_t)p[i] % 64, 0);
            for (size_t k = 0; k < size; k++)
                cr_assert_eq(p[i][k], 0, "round %d, number %d, byte %zu", round, i, k);
            memset(p[i], i % 255 + 1, size);
        }
        for (int i = 0; i < N; i++) {
            size_t size = (size_t)(i * 37 % 5000);

            cr_assert(size == 0 ||
                          (p[i][0] == i % 255 + 1 && p[i][size - 1] == i % 255 + 1),
                      "number %d was overwritten", i);
        }
        for (int i = 0; i < N; i += 3)
            hvd_free(p[N - 1 - (N - 1) % 3 - i]);
    }
    for (int i = 0; i < N; i++)
        if (i % 3 != 0)
            hvd_free(p[i]);
}

/* In 2 MiB the whole block goes, in 1 KiB a part of one. */
Test(api, memory_freed_while_an_operation_uses_it_stays_until_its_end, .timeout = 10)
{
    up();
    for (int64_t count = 256; count <= 1 << 19; count *= 2048) {
        float *v = hvd_alloc((size_t)count * sizeof *v);
        struct hvd_op op = op_of(HVD_ALLREDUCE, v, &count, 1);
        hvd_handle h;

        cr_assert_not_null(v);
        cr_assert_eq(hvd_enqueue(&op, &h), HVD_OK, "%s", hvd_last_error());
        hvd_free(v);
        cr_assert_eq(hvd_wait(h, HVD_WAIT_DONE, -1), HVD_OK);
        cr_assert_eq(hvd_release(h), HVD_OK);
    }
    down();
}

Test(api, stats_count, .timeout = 10)
{
    float x[2] = {0};
    struct hvd_stats s = {.size = sizeof s};

    up();
    cr_assert_eq(hvd_allreduce(x, x, 2, HVD_FLOAT32, HVD_SUM, "a"), HVD_OK);
    cr_assert_eq(hvd_get_stats(&s), HVD_OK);
    cr_assert_eq(s.ops_enqueued, 1);
    cr_assert_eq(s.ops_completed, 1);
    cr_assert_eq(s.bytes_reduced, 8);
    down();
}

/* Every allocation of the calling thread fails once: a clean error each time. */
Test(api, memory_may_run_out_anywhere, .timeout = 60)
{
    float x[4] = {1, 2, 3, 4};
    int64_t n = 4;
    struct hvd_op op = op_of(HVD_ALLREDUCE, x, &n, 1);

    if (!hvi_fault_available())
        cr_skip_test("this build has its own malloc");
    up(); /* once, for what is made once in a process */
    down();
    op.out.data = NULL;
    for (long k = 0;; k++) {
        enum hvd_status rc;
        hvd_handle h = 0;

        cr_assert_lt(k, 1000, "no end of allocations");
        hvi_fault_malloc_after(k);
        rc = hvd_init(NULL);
        if (rc == HVD_OK)
            rc = hvd_enqueue(&op, &h);
        if (rc == HVD_OK) {
            rc = hvd_wait(h, HVD_WAIT_DONE, 10000);
            hvd_release(h);
        }
        hvd_shutdown();
        if (!hvi_fault_malloc_off()) {
            cr_assert_eq(rc, HVD_OK);
            break;
        }
        cr_assert(rc == HVD_OK || rc == HVD_ENOMEM, "allocation %ld: %s", k,
                  hvd_last_error());
    }
}

Test(api, equal_static_process_sets_are_refused_before_the_job_hears_of_them,
     .timeout = 10)
{
    int32_t a[] = {0, 1};
    int32_t b[] = {1, 0};
    int32_t c[] = {0};
    const int32_t *lists[] = {c, a, b};
    int32_t sizes[] = {1, 2, 2};
    struct hvd_config config = {
        .size = sizeof config, .nsets = 3, .set_ranks = lists, .set_sizes = sizes};

    unsetenv("HVD_COORDINATOR");
    unsetenv("HOROVOD_COORDINATOR");
    cr_assert_eq(hvd_init(&config), HVD_EDUPLICATE);
    cr_assert(strstr(hvd_last_error(), "2 and 3") != NULL, "%s", hvd_last_error());
    sizes[1] = 0;
    cr_assert_eq(hvd_init(&config), HVD_EINVAL);
    config.nsets = 1;
    cr_assert_eq(hvd_init(&config), HVD_OK, "%s", hvd_last_error());
    down();
}
