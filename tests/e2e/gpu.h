/** For programs of the t4* tests: a little of the driver API by dlopen, real or fake. */
#ifndef HVI_E2E_GPU_H
#define HVI_E2E_GPU_H

#include <dlfcn.h>
#include <hvd/hvd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "check.h"

static int me, n;
#define OK(call)                                                                       \
    do {                                                                               \
        enum hvd_status s_ = (call);                                                   \
        if (s_ != HVD_OK) {                                                            \
            printf("rank %d: line %d: %s: %d %s\n", me, __LINE__, #call, s_,           \
                   hvd_last_error());                                                  \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

static void *gpu_lib;
static int gpu_id;

static void *gpu_symbol(const char *name)
{
    void *f = dlsym(gpu_lib, name);

    if (f == NULL) {
        printf("no %s in the driver\n", name);
        exit(1);
    }
    return f;
}
#define CU(name, types, args)                                                          \
    do {                                                                               \
        int rc_ = ((int(*) types)gpu_symbol(#name))args;                               \
        if (rc_ != 0) {                                                                \
            printf("rank %d: line %d: %s: %d\n", me, __LINE__, #name, rc_);            \
            exit(1);                                                                   \
        }                                                                              \
    } while (0)

/* Make the primary context of that GPU current, as a framework does. */
static void gpu_open(int id)
{
    int device;
    void *context;

    gpu_id = id;
    gpu_lib = dlopen("libcuda.so.1", RTLD_NOW);
    if (gpu_lib == NULL) {
        printf("%s\n", dlerror());
        exit(1);
    }
    CU(cuInit, (unsigned), (0));
    CU(cuDeviceGet, (int *, int), (&device, id));
    CU(cuDevicePrimaryCtxRetain, (void **, int), (&context, device));
    CU(cuCtxSetCurrent, (void *), (context));
}
static void *gpu_alloc(size_t bytes)
{
    uint64_t p;

    CU(cuMemAlloc_v2, (uint64_t *, size_t), (&p, bytes));
    return (void *)(uintptr_t)p;
}
static void gpu_free(void *p)
{
    CU(cuMemFree_v2, (uint64_t), ((uint64_t)(uintptr_t)p));
}
static void *gpu_stream(void)
{
    void *s;

    CU(cuStreamCreate, (void **, unsigned), (&s, 1));
    return s;
}
static void gpu_put(void *dst, const void *src, size_t bytes, void *stream)
{
    CU(cuMemcpyHtoDAsync_v2, (uint64_t, const void *, size_t, void *),
       ((uint64_t)(uintptr_t)dst, src, bytes, stream));
}
static void gpu_get(void *dst, const void *src, size_t bytes, void *stream)
{
    CU(cuMemcpyDtoHAsync_v2, (void *, uint64_t, size_t, void *),
       (dst, (uint64_t)(uintptr_t)src, bytes, stream));
    CU(cuStreamSynchronize, (void *), (stream));
}

static struct hvd_op gpu_op(enum hvd_kind kind, const char *name, void *in, void *out,
                            const int64_t *dims, int ndim, enum hvd_dtype dtype,
                            void *stream)
{
    struct hvd_op op;

    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = kind;
    op.name = name;
    op.reduce_op = HVD_SUM;
    op.in = (struct hvd_tensor){in, dims, ndim, dtype, HVD_CUDA, gpu_id};
    op.out = op.in;
    op.out.data = out;
    op.ready.kind = HVD_READY_CUSTREAM;
    op.ready.object = stream;
    return op;
}

static void gpu_start(int argc, char **argv)
{
    (void)argc;
    (void)argv;
    OK(hvd_init(NULL));
    me = hvd_rank();
    n = hvd_size();
    gpu_open(hvd_local_rank() % 8);
}

#endif
