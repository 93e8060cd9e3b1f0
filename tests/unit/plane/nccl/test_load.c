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

Test(load, a_captured_stream_is_refused, .timeout = 10)
{
    int (*begin)(void *, int);
    struct hvi_device *dev = NULL;
    struct hvi_event *e = NULL;
    struct hvd_ready ready = {HVD_READY_CUSTREAM, NULL};
    struct hvi_err err = {{0}};

    FRESH_PROCESS();
    cr_assert(load_fakes(""));
    begin = (int (*)(void *, int))dlsym(RTLD_DEFAULT, "cuStreamBeginCapture_v2");
    cr_assert_eq(hvi_device_get(0, &dev, &err), HVD_OK);
    cr_assert_eq(hvi_device_ready(dev, &ready, &e, &err), HVD_OK, "%s", err.text);
    hvi_event_unref(e);
    begin(NULL, 0);
    cr_assert_eq(hvi_device_ready(dev, &ready, &e, &err), HVD_EUNSUPPORTED);
    cr_assert(strstr(err.text, "captured into a CUDA graph") != NULL, "%s", err.text);
}
