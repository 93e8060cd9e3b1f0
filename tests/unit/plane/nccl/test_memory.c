/** Device memory of libhvd's own that queued work may still use. */
#include <stdlib.h>
#include <unistd.h>

#include "fakes.h"
#include "test.h"
#include "worker/plane/nccl/device.h"

#ifdef HVI_PLAIN_TESTS
#define FRESH_PROCESS() cr_skip_test("needs a process of its own")
#else
#define FRESH_PROCESS() (void)0
#endif

enum { BYTES = 100000 };

static void *symbol(const char *name)
{
    void *f = dlsym(RTLD_DEFAULT, name);

    cr_assert_not_null(f, "%s", name);
    return f;
}

static size_t in_use(void)
{
    return ((size_t(*)(void))symbol("fake_cuda_in_use"))();
}

/* A stream that is busy until `go`. */
static struct hvi_device *dev;
static void *stream;
static atomic_bool go;

static void hold(void *arg)
{
    (void)arg;
    while (!atomic_load(&go))
        usleep(1000);
}

static void busy(void)
{
    int (*launch)(void *, void (*)(void *), void *) =
        (int (*)(void *, void (*)(void *), void *))symbol("cuLaunchHostFunc");

    atomic_store(&go, false);
    hvi_device_enter(dev);
    cr_assert_eq(launch(stream, hold, NULL), 0);
    hvi_device_leave(dev);
}

static void idle(void)
{
    int (*synchronize)(void *) = (int (*)(void *))symbol("cuStreamSynchronize");

    atomic_store(&go, true);
    cr_assert_eq(synchronize(stream), 0);
}

static void open_gpu(void)
{
    struct hvi_err err = {{0}};
    int (*create)(void **, unsigned);

    cr_assert(load_fakes(""));
    create = (int (*)(void **, unsigned))symbol("cuStreamCreate");
    cr_assert_eq(hvi_device_get(0, &dev, &err), HVD_OK, "%s", err.text);
    hvi_device_enter(dev);
    cr_assert_eq(create(&stream, 1), 0);
    hvi_device_leave(dev);
}

static void *taken(size_t bytes)
{
    struct hvi_err err = {{0}};
    void *data = hvi_device_alloc(dev, bytes, &err);

    cr_assert_not_null(data, "%s", err.text);
    return data;
}

/* kind: of the stream, or of the whole context */
static void let_go(void *data, int32_t kind)
{
    struct hvd_ready last_use = {kind, kind == HVD_READY_CUSTREAM ? stream : NULL};

    cr_assert(hvi_device_free_after(data, &last_use));
}

/* A result takes this memory again, as soon as its event has come; at most 5 s. */
static void await_again(const void *data)
{
    void *now = taken(BYTES);

    for (int i = 0; now != data && i < 5000; i++) {
        cr_assert(hvi_device_free(now));
        usleep(1000);
        now = taken(BYTES);
    }
    cr_assert_eq(now, data);
}

Test(memory, what_work_still_uses_is_taken_again_only_after_it, .timeout = 10)
{
    static const int32_t kinds[] = {HVD_READY_CUSTREAM, HVD_READY_CUCTX};

    FRESH_PROCESS();
    open_gpu();
    for (int i = 0; i < 2; i++) {
        void *data = taken(BYTES);
        void *other;

        busy();
        let_go(data, kinds[i]);
        memset(data, 1, BYTES); /* the work; freed memory would crash */
        other = taken(BYTES);
        cr_assert_neq(other, data);
        idle();
        await_again(data);
        cr_assert(hvi_device_free(other));
        cr_assert(hvi_device_free(data));
        cr_assert_not(hvi_device_free(data));
    }
}

Test(memory, much_smaller_results_do_not_take_it, .timeout = 10)
{
    void *data;

    FRESH_PROCESS();
    open_gpu();
    data = taken(BYTES);
    let_go(data, HVD_READY_CUSTREAM);
    idle();
    cr_assert_neq(taken(BYTES / 3), data);
    cr_assert_neq(taken(BYTES + 1), data);
}

Test(memory, only_so_much_is_kept, .timeout = 10)
{
    size_t before;
    void *data[40];

    FRESH_PROCESS();
    open_gpu();
    before = in_use();
    for (int i = 0; i < 40; i++)
        data[i] = taken(BYTES);
    for (int i = 0; i < 40; i++)
        let_go(data[i], HVD_READY_CUSTREAM);
    cr_assert_leq(in_use(), before + (size_t)32 * (BYTES + 8192));
    data[0] = taken((size_t)300 << 20);
    let_go(data[0], HVD_READY_CUSTREAM);
    cr_assert_eq(in_use(), before);
}

Test(memory, what_is_kept_makes_room_for_results, .timeout = 10)
{
    struct hvi_err err = {{0}};
    char limit[32];
    void *data;

    FRESH_PROCESS();
    open_gpu();
    data = taken(BYTES);
    let_go(data, HVD_READY_CUSTREAM);
    snprintf(limit, sizeof limit, "%zu", in_use() + 2 * (size_t)BYTES);
    setenv("FAKE_CUDA_MEMORY", limit, 1);
    cr_assert_not_null(hvi_device_alloc(dev, 2 * BYTES + BYTES / 2, &err), "%s",
                       err.text);
    cr_assert_null(hvi_device_alloc(dev, 2 * BYTES, &err));
    cr_assert(strstr(err.text, "200000 bytes of GPU memory") != NULL, "%s", err.text);
}

Test(memory, its_gpu_is_known, .timeout = 10)
{
    struct hvi_device *second = NULL;
    struct hvi_err err = {{0}};
    bool known = true;
    void *data;
    int id = -1;

    FRESH_PROCESS();
    cr_assert(load_fakes(""));
    setenv("CUDA_VISIBLE_DEVICES", "5,2", 1);
    cr_assert_eq(hvi_device_get(1, &second, &err), HVD_OK, "%s", err.text);
    data = hvi_device_alloc(second, BYTES, &err);
    cr_assert_eq(hvi_device_of_data((char *)data + 7, &known, &id, &err), HVD_OK);
    cr_assert(known && id == 1, "%d", id);
    cr_assert_eq(hvi_device_of_data(&id, &known, &id, &err), HVD_OK);
    cr_assert_not(known);
    cr_assert_eq(hvi_device_of_data(NULL, &known, &id, &err), HVD_OK);
    cr_assert_not(known);
}
