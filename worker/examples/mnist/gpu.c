#include "gpu.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* X(member, symbol, arguments): each returns CUresult, 0 for success */
#define DRIVER(X)                                                                      \
    X(init, cuInit, (unsigned))                                                        \
    X(device_count, cuDeviceGetCount, (int *))                                         \
    X(device_get, cuDeviceGet, (int *, int))                                           \
    X(context_retain, cuDevicePrimaryCtxRetain, (void **, int))                        \
    X(context_set, cuCtxSetCurrent, (void *))                                          \
    X(stream_create, cuStreamCreate, (void **, unsigned))                              \
    X(stream_sync, cuStreamSynchronize, (void *))                                      \
    X(mem_alloc, cuMemAlloc_v2, (uint64_t *, size_t))                                  \
    X(put, cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *))             \
    X(get, cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, void *))

static struct driver {
/* NOLINTNEXTLINE(bugprone-macro-parentheses): a declaration */
#define MEMBER(member, symbol, arguments) int(*member) arguments;
    DRIVER(MEMBER)
} cu;

static const struct {
    const char *symbol;
    size_t offset;
} entries[] = {
#define ENTRY(member, symbol, arguments) {#symbol, offsetof(struct driver, member)},
    DRIVER(ENTRY)};

static int load(void)
{
    void *lib = dlopen("libcuda.so.1", RTLD_NOW);

    if (lib == NULL) {
        fprintf(stderr, "train_mnist: no NVIDIA driver: %s\n", dlerror());
        return -1;
    }
    for (size_t i = 0; i < sizeof entries / sizeof entries[0]; i++) {
        void *f = dlsym(lib, entries[i].symbol);

        if (f == NULL) {
            fprintf(stderr, "train_mnist: the NVIDIA driver has no %s\n",
                    entries[i].symbol);
            return -1;
        }
        memcpy((char *)&cu + entries[i].offset, &f, sizeof f);
    }
    return 0;
}

static int failed(const char *what, int rc)
{
    if (rc == 0)
        return 0;
    fprintf(stderr, "train_mnist: %s: CUDA error %d\n", what, rc);
    return -1;
}

int mnist_gpu_open(struct mnist_gpu *gpu, int local_rank, size_t elem_count)
{
    uint64_t address = 0;
    void *context = NULL;
    int device = 0;
    int count = 0;

    if (load() != 0)
        return -1;
    if (failed("starting the driver", cu.init(0)) != 0 ||
        failed("counting GPUs", cu.device_count(&count)) != 0)
        return -1;
    if (count == 0) {
        fprintf(stderr, "train_mnist: no GPU is visible\n");
        return -1;
    }
    gpu->id = local_rank % count;
    gpu->elem_count = elem_count;
    if (failed("opening the GPU", cu.device_get(&device, gpu->id)) != 0 ||
        failed("opening the GPU", cu.context_retain(&context, device)) != 0 ||
        failed("opening the GPU", cu.context_set(context)) != 0 ||
        failed("making a stream", cu.stream_create(&gpu->stream, 1)) != 0 ||
        failed("GPU memory", cu.mem_alloc(&address, elem_count * sizeof(float))) != 0)
        return -1;
    gpu->data = (float *)(uintptr_t)address;
    return 0;
}

int mnist_gpu_put(struct mnist_gpu *gpu, size_t first, const float *from, size_t count)
{
    return failed("copy to the GPU", cu.put((uint64_t)(uintptr_t)(gpu->data + first),
                                            from, count * sizeof(float), gpu->stream));
}

int mnist_gpu_get(struct mnist_gpu *gpu, float *to)
{
    int rc = cu.get(to, (uint64_t)(uintptr_t)gpu->data, gpu->elem_count * sizeof(float),
                    gpu->stream);

    return failed("copy from the GPU", rc != 0 ? rc : cu.stream_sync(gpu->stream));
}
