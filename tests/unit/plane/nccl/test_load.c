/** Finding driver and NCCL: which copy, which version, which entries. */
#include <stdlib.h>

#include "fakes.h"
#include "test.h"
#include "worker/plane/nccl/api.h"
#include "worker/plane/nccl/device.h"

/* What is loaded stays: every test wants a process of its own, which plain.h has not. */
#ifdef HVI_PLAIN_TESTS
#define FRESH_PROCESS() cr_skip_test("needs a process of its own")
#else
#define FRESH_PROCESS() (void)0
#endif

Test(load, the_loaded_copies_are_taken, .timeout = 10)
{
    const struct hvi_cuda *cu = NULL;
    const struct hvi_nccl_api *nccl = NULL;
    struct hvi_err err = {{0}};

    cr_assert(load_fakes(""));
    cr_assert_eq(hvi_cuda_get(&cu, &err), HVD_OK, "%s", err.text);
    cr_assert(strstr(cu->path, "/tests/fake/libcuda.so.1") != NULL, "%s", cu->path);
    cr_assert_eq(cu->version, 12040);
    cr_assert_not_null(cu->ctx_record);
    cr_assert_eq(hvi_nccl_get(&nccl, &err), HVD_OK, "%s", err.text);
    cr_assert(strstr(nccl->path, "/tests/fake/libnccl.so.2") != NULL, "%s", nccl->path);
    cr_assert_eq(nccl->version, 22809);
    cr_assert_not_null(nccl->comm_register);
}

/* A folder as pip makes it: a framework that is loaded, and NCCL in a package beside it. */
static void framework_with_nccl(const char *packages)
{
    const struct hvi_nccl_api *nccl = NULL;
    struct hvi_err err = {{0}};
    char cuda[PATH_MAX] = "libcuda.so.1";
    char real[PATH_MAX] = "libnccl.so.2";
    char top[] = "/tmp/hvd-packages-XXXXXX";
    char command[6 * PATH_MAX];
    char path[96];
    char want[160];

    cr_assert(fake_path(cuda) && fake_path(real) && mkdtemp(top) != NULL);
    snprintf(path, sizeof(path), "%s/lib/%s", top, packages);
    snprintf(
        command, sizeof(command),
        "mkdir -p %s/torch/lib %s/nvidia/nccl/lib && cp %s %s/torch/lib/libtorch.so "
        "&& cp %s %s/nvidia/nccl/lib",
        path, path, cuda, path, real, path);
    cr_assert_eq(system(command), 0);
    snprintf(command, sizeof(command), "%s/torch/lib/libtorch.so", path);
    snprintf(want, sizeof(want), "%s/nvidia/nccl/lib/libnccl.so.2", path);
    cr_assert_not_null(dlopen(command, RTLD_NOW | RTLD_GLOBAL), "%s", dlerror());
    cr_assert_eq(hvi_nccl_get(&nccl, &err), HVD_OK, "%s", err.text);
    cr_assert_str_eq(nccl->path, want);
    snprintf(command, sizeof(command), "rm -rf %s", top);
    cr_assert_eq(system(command), 0);
}

Test(load, nccl_is_found_in_the_package_beside_a_framework, .timeout = 10)
{
    FRESH_PROCESS();
    framework_with_nccl("site-packages");
}

Test(load, nccl_is_found_beside_debians_framework, .timeout = 10)
{
    FRESH_PROCESS();
    framework_with_nccl("dist-packages");
}

/* A home directory, a mount, may be called so too. */
Test(load, nccl_is_found_where_a_folder_above_is_called_packages, .timeout = 10)
{
    FRESH_PROCESS();
    framework_with_nccl("my-packages/venv/site-packages");
}

Test(load, the_version_is_that_of_the_loaded_copy_or_of_the_oldest_that_will_do,
     .timeout = 10)
{
    FRESH_PROCESS();
    cr_assert_eq(hvi_nccl_known_version(), HVI_NCCL_MIN_VERSION);
    cr_assert_null(dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD));
    cr_assert(load_fakes(""));
    setenv("FAKE_NCCL_VERSION", "23001", 1);
    cr_assert_eq(hvi_nccl_known_version(), 23001);
    setenv("FAKE_NCCL_VERSION", "21405", 1); /* also one that will not */
    cr_assert_eq(hvi_nccl_known_version(), 21405);
}

Test(load, an_old_driver_only_lacks_the_newer_entries, .timeout = 10)
{
    const struct hvi_cuda *cu = NULL;
    struct hvi_err err = {{0}};

    FRESH_PROCESS();
    cr_assert(load_fakes("old/"));
    cr_assert_eq(hvi_cuda_get(&cu, &err), HVD_OK, "%s", err.text);
    cr_assert_null(cu->ctx_record);
    cr_assert_null(cu->uuid_v2);
}

Test(load, an_old_nccl_is_refused_with_its_version, .timeout = 10)
{
    const struct hvi_nccl_api *nccl = NULL;
    struct hvi_err err = {{0}};

    FRESH_PROCESS();
    cr_assert(load_fakes("old/"));
    cr_assert_eq(hvi_nccl_get(&nccl, &err), HVD_EVERSION);
    cr_assert(strstr(err.text, "NCCL 2.16.2 at ") != NULL, "%s", err.text);
    cr_assert(strstr(err.text, "2.18 or newer") != NULL, "%s", err.text);
}

Test(load, a_missing_entry_is_named, .timeout = 10)
{
    const struct hvi_nccl_api *nccl = NULL;
    struct hvi_err err = {{0}};

    FRESH_PROCESS();
    cr_assert(load_fakes("old/"));
    setenv("FAKE_NCCL_VERSION", "21800", 1);
    cr_assert_eq(hvi_nccl_get(&nccl, &err), HVD_EUNSUPPORTED);
    cr_assert(strstr(err.text, "has no ncclCommSplit") != NULL, "%s", err.text);
}

Test(load, a_driver_that_does_not_start_is_told_and_asked_again, .timeout = 10)
{
    const struct hvi_cuda *cu = NULL;
    struct hvi_err err = {{0}};

    FRESH_PROCESS();
    cr_assert(load_fakes(""));
    setenv("FAKE_CUDA_STATUS", "999", 1);
    cr_assert_eq(hvi_cuda_get(&cu, &err), HVD_EUNSUPPORTED);
    cr_assert(strstr(err.text, "does not start: injected or misuse (999)") != NULL,
              "%s", err.text);
    unsetenv("FAKE_CUDA_STATUS");
    cr_assert_eq(hvi_cuda_get(&cu, &err), HVD_OK);
}

Test(load, a_gpu_that_is_not_there_is_told_with_what_is, .timeout = 10)
{
    struct hvi_device *dev = NULL;
    struct hvi_err err = {{0}};

    FRESH_PROCESS();
    cr_assert(load_fakes(""));
    setenv("CUDA_VISIBLE_DEVICES", "2,5", 1);
    cr_assert_eq(hvi_device_get(1, &dev, &err), HVD_OK, "%s", err.text);
    cr_assert_str_eq(dev->name, "Fake GPU 5");
    cr_assert_eq(hvi_device_get(2, &dev, &err), HVD_EINVAL);
    cr_assert(strstr(err.text, "GPU 2 does not exist: this process sees 2 "
                               "(CUDA_VISIBLE_DEVICES=2,5)") != NULL,
              "%s", err.text);
}

Test(load, a_report_names_everything, .timeout = 10)
{
    char text[512];

    FRESH_PROCESS();
    cr_assert(load_fakes(""));
    setenv("FAKE_CUDA_DEVICES", "2", 1);
    hvi_device_report(text, sizeof(text));
    cr_assert(strstr(text, "driver for CUDA 12.4, 2 GPUs: Fake GPU 0, Fake GPU 1; "
                           "NCCL 2.28.9 (") == text,
              "%s", text);
    hvi_device_report(text, 20); /* cut, not beyond */
    cr_assert_eq(strlen(text), 19);
}

static void *symbol(const char *name)
{
    void *f = dlsym(RTLD_DEFAULT, name);

    cr_assert_not_null(f, "%s", name);
    return f;
}

struct capture {
    int (*create)(void **, unsigned);
    int (*event_create)(void **, unsigned);
    int (*event_record)(void *, void *);
    int (*begin)(void *, int);
    int (*end)(void *, void **);
    struct hvi_device *dev;
    void *stream, *event;
};

/* A stream that is being captured, with an event recorded in the capture. */
static void capture_begin(struct capture *c)
{
    struct hvi_err err = {{0}};

    cr_assert(load_fakes(""));
    c->create = (int (*)(void **, unsigned))symbol("cuStreamCreate");
    c->event_create = (int (*)(void **, unsigned))symbol("cuEventCreate");
    c->event_record = (int (*)(void *, void *))symbol("cuEventRecord");
    c->begin = (int (*)(void *, int))symbol("cuStreamBeginCapture_v2");
    c->end = (int (*)(void *, void **))symbol("cuStreamEndCapture");
    cr_assert_eq(hvi_device_get(0, &c->dev, &err), HVD_OK, "%s", err.text);
    hvi_device_enter(c->dev);
    cr_assert_eq(c->create(&c->stream, 1), 0);
    cr_assert_eq(c->event_create(&c->event, 2), 0);
    hvi_device_leave(c->dev);
    cr_assert_eq(c->begin(c->stream, 0), 0);
    cr_assert_eq(c->event_record(c->event, c->stream), 0);
}

Test(load, a_captured_stream_or_event_is_refused_and_its_graph_is_whole, .timeout = 10)
{
    struct capture c = {0};
    struct hvi_event *e = NULL;
    struct hvd_ready stream = {HVD_READY_CUSTREAM, NULL};
    struct hvd_ready event = {HVD_READY_CUEVENT, NULL};
    struct hvi_err err = {{0}};
    void *graph;

    FRESH_PROCESS();
    capture_begin(&c);
    stream.object = c.stream;
    event.object = c.event;
    cr_assert_eq(hvi_device_ready(c.dev, &stream, &e, &err), HVD_EUNSUPPORTED);
    cr_assert(strstr(err.text, "the stream is being captured into a CUDA graph"), "%s",
              err.text);
    stream.object = NULL; /* the default stream waits for a capture of another */
    cr_assert_eq(hvi_device_ready(c.dev, &stream, &e, &err), HVD_EUNSUPPORTED);
    cr_assert_eq(hvi_device_ready(c.dev, &event, &e, &err), HVD_EUNSUPPORTED);
    cr_assert(strstr(err.text, "the event was captured into a CUDA graph"), "%s",
              err.text);
    cr_assert_eq(c.end(c.stream, &graph), 0);
    cr_assert_eq(hvi_device_ready(c.dev, &stream, &e, &err), HVD_OK, "%s", err.text);
    hvi_event_unref(e);
}

Test(load, a_context_in_a_capture_is_no_reason_to_lose_a_result, .timeout = 10)
{
    struct capture c = {0};
    struct hvi_event *e = NULL;
    struct hvi_err err = {{0}};
    void *graph;

    FRESH_PROCESS();
    capture_begin(&c);
    hvi_device_enter(c.dev);
    cr_assert_eq(hvi_event_record(c.dev, c.dev->import, &e, &err), HVD_OK);
    hvi_device_leave(c.dev);
    cr_assert_eq(hvi_event_ctx_wait(e, NULL, &err), HVD_OK, "%s", err.text);
    hvi_event_unref(e);
    c.end(c.stream, &graph);
}

Test(load, memory_is_taken_and_given_back_beside_a_capture, .timeout = 10)
{
    struct capture c = {0};
    struct hvi_err err = {{0}};
    void *data;
    void *graph;

    FRESH_PROCESS();
    capture_begin(&c);
    data = hvi_device_alloc(c.dev, 1000, &err);
    cr_assert_not_null(data, "%s", err.text);
    cr_assert(hvi_device_free(data));
    cr_assert_eq(c.end(c.stream, &graph), 0);
}

Test(load, memory_of_the_host_or_of_another_gpu_is_told, .timeout = 10)
{
    struct hvi_device *dev[2] = {NULL};
    struct hvi_err err = {{0}};
    char *data;

    FRESH_PROCESS();
    cr_assert(load_fakes(""));
    setenv("CUDA_VISIBLE_DEVICES", "5,2", 1);
    cr_assert_eq(hvi_device_get(0, &dev[0], &err), HVD_OK);
    cr_assert_eq(hvi_device_get(1, &dev[1], &err), HVD_OK);
    data = hvi_device_alloc(dev[1], 1000, &err);
    cr_assert_eq(hvi_device_owns(dev[1], data + 500, &err), HVD_OK, "%s", err.text);
    cr_assert_eq(hvi_device_owns(dev[0], data, &err), HVD_EINVAL);
    cr_assert(strstr(err.text, "is memory of GPU 1, not of GPU 0") != NULL, "%s",
              err.text);
    cr_assert_eq(hvi_device_owns(dev[0], &data, &err), HVD_EINVAL);
    cr_assert(strstr(err.text, "is not GPU memory") != NULL, "%s", err.text);
    cr_assert(hvi_device_free(data));
}

/* The program's context may be the very one we use: frameworks' is. */
Test(load, a_context_of_the_program_stays_where_ours_is_not_taken, .timeout = 10)
{
    struct hvi_device *dev = NULL;
    struct hvi_err err = {{0}};
    int (*push)(struct CUctx_st *);
    int (*pop)(struct CUctx_st **);
    struct CUctx_st *own[2] = {NULL, NULL};
    char other;

    FRESH_PROCESS();
    cr_assert(load_fakes(""));
    push = (int (*)(struct CUctx_st *))symbol("cuCtxPushCurrent_v2");
    pop = (int (*)(struct CUctx_st **))symbol("cuCtxPopCurrent_v2");
    cr_assert_eq(hvi_device_get(0, &dev, &err), HVD_OK, "%s", err.text);
    own[0] = (struct CUctx_st *)(void *)&other;
    own[1] = dev->context;
    for (int i = 0; i < 2; i++) {
        struct CUctx_st *seen = NULL;

        cr_assert_eq(push(own[i]), 0);
        hvi_device_enter(dev);
        setenv("FAKE_CUDA_NO_PUSH", "1", 1);
        hvi_device_enter(dev);
        unsetenv("FAKE_CUDA_NO_PUSH");
        hvi_device_leave(dev);
        hvi_device_leave(dev);
        setenv("FAKE_CUDA_NO_PUSH", "1", 1);
        hvi_device_enter(dev);
        unsetenv("FAKE_CUDA_NO_PUSH");
        hvi_device_leave(dev);
        cr_assert_eq(pop(&seen), 0);
        cr_assert_eq((void *)seen, (void *)own[i], "context %d", i);
        cr_assert_neq(pop(&seen), 0, "context %d: one is left over", i);
    }
}

Test(load, the_toolkits_stub_is_told_from_a_driver, .timeout = 10)
{
    const struct hvi_cuda *cu = NULL;
    struct hvi_err err = {{0}};

    FRESH_PROCESS();
    cr_assert(load_fakes(""));
    setenv("FAKE_CUDA_STATUS", "34", 1);
    cr_assert_eq(hvi_cuda_get(&cu, &err), HVD_EUNSUPPORTED);
    cr_assert(strstr(err.text, "is the CUDA toolkit's stub, not a driver"), "%s",
              err.text);
}

/* Where a toolkit is installed: the real libraries have every entry of our tables. */
Test(load, the_toolkits_own_libraries_fit_the_tables, .timeout = 60)
{
    const struct hvi_cuda *cu = NULL;
    const struct hvi_nccl_api *nccl = NULL;
    struct hvi_err err = {{0}};
    const char *home =
        getenv("CUDA_HOME") != NULL ? getenv("CUDA_HOME") : "/usr/local/cuda";
    char stub[PATH_MAX];
    char lib[PATH_MAX];

    FRESH_PROCESS();
    snprintf(stub, sizeof(stub), "%s/lib64/stubs/libcuda.so", home);
    snprintf(lib, sizeof(lib), "%s/lib64/libnccl.so.2", home);
    if (access(stub, R_OK) != 0)
        cr_skip_test("no CUDA toolkit here");
    setenv("HVD_CUDA_LIBRARY", stub, 1);
    cr_assert_eq(hvi_cuda_get(&cu, &err), HVD_EUNSUPPORTED);
    /* the entries are looked at before it is started */
    if (strstr(err.text, "is the CUDA toolkit's stub") == NULL &&
        strstr(err.text, "/stubs/") != NULL)
        cr_assert(false, "%s", err.text);
    if (access(lib, R_OK) != 0)
        cr_skip_test("no NCCL in the toolkit here");
    setenv("HVD_NCCL_LIBRARY", lib, 1);
    cr_assert_eq(hvi_nccl_get(&nccl, &err), HVD_OK, "%s", err.text);
    cr_assert_geq(nccl->version, HVI_NCCL_MIN_VERSION);
}
