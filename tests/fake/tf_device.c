/*
 * A device "GPU" of TensorFlow whose driver is the fake one: TensorFlow's pluggable devices
 * (StreamExecutor C API) over tests/fake/cuda.c, so that a CPU-only TensorFlow has GPU tensors
 * and runs GPU kernels. Built against the headers and the library of one TensorFlow:
 *   gcc -shared -fPIC -I. -I$(tf include) tests/fake/tf_device.c $(tf lib)/libtensorflow_framework.so.2
 *       build/tests/fake/libcuda.so.1
 * and loaded with load_pluggable_device_library(). As on TensorFlow's own GPUs memory that it
 * lets go of may be used again by what is queued on its streams after that, and by nobody
 * else: here it is freed there, and whoever still touches it crashes. New memory is filled
 * with 0xff. A multiplication and an addition of floats are kernels that run on the stream.
 *   FAKE_TF_HOST=1   its memory is the host's, not the driver's
 * fake_tf_hold() keeps the compute streams busy until fake_tf_go().
 */
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tensorflow/c/experimental/stream_executor/stream_executor.h"
#include "tensorflow/c/tf_datatype.h"
#include "tensorflow/c/tf_tensor.h"

#define EXPORT __attribute__((visibility("default")))
#define FAIL_IF_NOT(call)                                                              \
    do {                                                                               \
        if ((call) != 0)                                                               \
            TF_SetStatus(status, TF_INTERNAL, "the fake driver refused " #call);       \
    } while (0)

/* The driver. */
int cuInit(unsigned);
int cuDeviceGetCount(int *);
int cuDeviceGet(int *, int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxPushCurrent_v2(void *);
int cuCtxPopCurrent_v2(void **);
int cuCtxSynchronize(void);
int cuMemAlloc_v2(uint64_t *, size_t);
int cuMemFree_v2(uint64_t);
int cuMemGetInfo_v2(size_t *, size_t *);
int cuStreamCreate(void **, unsigned);
int cuStreamSynchronize(void *);
int cuStreamWaitEvent(void *, void *, unsigned);
int cuEventCreate(void **, unsigned);
int cuEventRecord(void *, void *);
int cuEventQuery(void *);
int cuEventSynchronize(void *);
int cuMemcpyHtoDAsync_v2(uint64_t, const void *, size_t, void *);
int cuMemcpyDtoHAsync_v2(void *, uint64_t, size_t, void *);
int cuMemcpyDtoDAsync_v2(uint64_t, uint64_t, size_t, void *);
int cuLaunchHostFunc(void *, void (*)(void *), void *);

/* TensorFlow's kernels in C; kernels.h is not C (worker/bind/tensorflow/tf_capi.h). */
struct TF_KernelBuilder;
struct TF_OpKernelContext;
struct TF_KernelBuilder *
TF_NewKernelBuilder(const char *, const char *, void *,
                    void (*)(void *, struct TF_OpKernelContext *), void *);
void TF_KernelBuilder_TypeConstraint(struct TF_KernelBuilder *, const char *,
                                     TF_DataType, TF_Status *);
void TF_RegisterKernelBuilder(const char *, struct TF_KernelBuilder *, TF_Status *);
void TF_GetInput(struct TF_OpKernelContext *, int, TF_Tensor **, TF_Status *);
TF_Tensor *TF_AllocateOutput(struct TF_OpKernelContext *, int, TF_DataType,
                             const int64_t *, int, size_t, TF_Status *);
SP_Stream TF_GetStream(struct TF_OpKernelContext *, TF_Status *);
void TF_OpKernelContext_Failure(struct TF_OpKernelContext *, TF_Status *);

enum { STREAMS = 1024 };
struct device {
    void *context;
    _Atomic int nstreams;
    void *streams[STREAMS];
};

static struct device *device_of(const SP_Device *device)
{
    return device->device_handle;
}

static void enter(const SP_Device *device)
{
    if (cuCtxPushCurrent_v2(device_of(device)->context) != 0)
        abort();
}

static void leave(void)
{
    void *context;

    cuCtxPopCurrent_v2(&context);
}

/* ---- memory */

static void *host_allocate(const SP_Device *device, uint64_t size)
{
    void *p = NULL;

    (void)device;
    return posix_memalign(&p, 64, size > 0 ? size : 64) == 0 ? p : NULL;
}
static void allocate(const SP_Device *device, uint64_t size, int64_t space,
                     SP_DeviceMemoryBase *mem)
{
    uint64_t at = 0;

    (void)space;
    enter(device);
    mem->struct_size = SP_DEVICE_MEMORY_BASE_STRUCT_SIZE;
    if (getenv("FAKE_TF_HOST") != NULL)
        at = (uint64_t)(uintptr_t)host_allocate(device, size);
    if (at != 0 || cuMemAlloc_v2(&at, size) == 0) {
        mem->opaque = (void *)(uintptr_t)at;
        mem->size = size;
        memset(mem->opaque, 0xff, size);
    } else {
        mem->opaque = NULL;
        mem->size = 0;
    }
    leave();
}

struct freeing {
    _Atomic int left;
    uint64_t at;
};

static void passed(void *arg)
{
    struct freeing *f = arg;

    if (atomic_fetch_sub(&f->left, 1) != 1)
        return;
    if (getenv("FAKE_TF_HOST") == NULL)
        cuMemFree_v2(f->at);
    free(f);
}

/* After what TensorFlow has queued. */
static void deallocate(const SP_Device *device, SP_DeviceMemoryBase *mem)
{
    struct device *d = device_of(device);
    struct freeing *f = malloc(sizeof *f);
    int n = atomic_load(&d->nstreams);

    if (mem->opaque == NULL) {
        free(f);
        return;
    }
    f->at = (uint64_t)(uintptr_t)mem->opaque;
    atomic_init(&f->left, n + 1);
    enter(device);
    for (int i = 0; i < n; i++)
        if (cuLaunchHostFunc(d->streams[i], passed, f) != 0)
            passed(f);
    leave();
    passed(f);
}

static void host_deallocate(const SP_Device *device, void *mem)
{
    (void)device;
    free(mem);
}

static TF_Bool allocator_stats(const SP_Device *device, SP_AllocatorStats *stats)
{
    (void)device;
    (void)stats;
    return false;
}

static TF_Bool memory_usage(const SP_Device *device, int64_t *left, int64_t *total)
{
    (void)device;
    *left = *total = INT64_C(1) << 30;
    return true;
}

/* ---- streams and events */

static struct device *devices[64];
static int ndevices;
static pthread_mutex_t hold_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t hold_cond = PTHREAD_COND_INITIALIZER;
static int holding, gone;

static void hold_one(void *arg)
{
    int mine = (int)(intptr_t)arg;

    pthread_mutex_lock(&hold_lock);
    while (gone < mine)
        pthread_cond_wait(&hold_cond, &hold_lock);
    pthread_mutex_unlock(&hold_lock);
}

EXPORT void fake_tf_hold(void);
void fake_tf_hold(void)
{
    int mine;

    pthread_mutex_lock(&hold_lock);
    mine = ++holding;
    pthread_mutex_unlock(&hold_lock);
    for (int i = 0; i < ndevices; i++) {
        cuCtxPushCurrent_v2(devices[i]->context);
        cuLaunchHostFunc(devices[i]->streams[0], hold_one, (void *)(intptr_t)mine);
        leave();
    }
}

EXPORT void fake_tf_go(void);
void fake_tf_go(void)
{
    pthread_mutex_lock(&hold_lock);
    gone = holding;
    pthread_cond_broadcast(&hold_cond);
    pthread_mutex_unlock(&hold_lock);
}

static void create_stream(const SP_Device *device, SP_Stream *out, TF_Status *status)
{
    struct device *d = device_of(device);
    void *stream = NULL;

    enter(device);
    FAIL_IF_NOT(cuStreamCreate(&stream, 1));
    leave();
    if (d->nstreams == STREAMS || ndevices == 64)
        abort();
    if (d->nstreams == 0) /* TensorFlow makes the compute stream first */
        devices[ndevices++] = d;
    d->streams[d->nstreams] = stream;
    atomic_fetch_add(&d->nstreams, 1);
    *out = stream;
}
static void destroy_stream(const SP_Device *device, SP_Stream stream)
{
    (void)device; /* its queue may still free memory */
    (void)stream;
}

static void create_event(const SP_Device *device, SP_Event *out, TF_Status *status)
{
    void *event = NULL;

    enter(device);
    FAIL_IF_NOT(cuEventCreate(&event, 2));
    leave();
    *out = event;
}
static void destroy_event(const SP_Device *device, SP_Event event)
{
    (void)device;
    (void)event;
}
static SE_EventStatus event_status(const SP_Device *device, SP_Event event)
{
    SE_EventStatus now;

    enter(device);
    now = cuEventQuery(event) == 0 ? SE_EVENT_COMPLETE : SE_EVENT_PENDING;
    leave();
    return now;
}
static void record_event(const SP_Device *device, SP_Stream stream, SP_Event event,
                         TF_Status *status)
{
    enter(device);
    FAIL_IF_NOT(cuEventRecord(event, stream));
    leave();
}
static void wait_for_event(const SP_Device *device, SP_Stream stream, SP_Event event,
                           TF_Status *status)
{
    enter(device);
    FAIL_IF_NOT(cuStreamWaitEvent(stream, event, 0));
    leave();
}
static void depend(const SP_Device *device, SP_Stream dependent, SP_Stream other,
                   TF_Status *status)
{
    SP_Event event = NULL;

    create_event(device, &event, status);
    record_event(device, other, event, status);
    wait_for_event(device, dependent, event, status);
}
static void stream_status(const SP_Device *device, SP_Stream stream, TF_Status *status)
{
    (void)device;
    (void)stream;
    TF_SetStatus(status, TF_OK, "");
}
static void block_for_event(const SP_Device *device, SP_Event event, TF_Status *status)
{
    enter(device);
    FAIL_IF_NOT(cuEventSynchronize(event));
    leave();
}
static void block_for_stream(const SP_Device *device, SP_Stream stream,
                             TF_Status *status)
{
    enter(device);
    FAIL_IF_NOT(cuStreamSynchronize(stream));
    leave();
}
static void block_for_all(const SP_Device *device, TF_Status *status)
{
    struct device *d = device_of(device);

    for (int i = 0; i < d->nstreams; i++)
        block_for_stream(device, d->streams[i], status);
}

struct callback {
    SE_StatusCallbackFn fn;
    void *arg;
};

static void run_callback(void *arg)
{
    struct callback *c = arg;
    TF_Status *status = TF_NewStatus();

    c->fn(c->arg, status);
    TF_DeleteStatus(status);
    free(c);
}

static TF_Bool host_callback(const SP_Device *device, SP_Stream stream,
                             SE_StatusCallbackFn fn, void *arg)
{
    struct callback *c = malloc(sizeof *c);
    int rc;

    *c = (struct callback){fn, arg};
    enter(device);
    rc = cuLaunchHostFunc(stream, run_callback, c);
    leave();
    return rc == 0;
}

/* ---- copies */

static uint64_t address(const SP_DeviceMemoryBase *mem)
{
    return (uint64_t)(uintptr_t)mem->opaque;
}

static void copy_out(const SP_Device *device, SP_Stream stream, void *to,
                     const SP_DeviceMemoryBase *from, uint64_t size, TF_Status *status)
{
    enter(device);
    FAIL_IF_NOT(cuMemcpyDtoHAsync_v2(to, address(from), size, stream));
    leave();
}
static void copy_in(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *to,
                    const void *from, uint64_t size, TF_Status *status)
{
    enter(device);
    FAIL_IF_NOT(cuMemcpyHtoDAsync_v2(address(to), from, size, stream));
    leave();
}
static void copy_on(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *to,
                    const SP_DeviceMemoryBase *from, uint64_t size, TF_Status *status)
{
    enter(device);
    FAIL_IF_NOT(cuMemcpyDtoDAsync_v2(address(to), address(from), size, stream));
    leave();
}
static void sync_copy_out(const SP_Device *device, void *to,
                          const SP_DeviceMemoryBase *from, uint64_t size,
                          TF_Status *status)
{
    copy_out(device, NULL, to, from, size, status);
    block_for_stream(device, NULL, status);
}
static void sync_copy_in(const SP_Device *device, SP_DeviceMemoryBase *to,
                         const void *from, uint64_t size, TF_Status *status)
{
    copy_in(device, NULL, to, from, size, status);
    block_for_stream(device, NULL, status);
}
static void sync_copy_on(const SP_Device *device, SP_DeviceMemoryBase *to,
                         const SP_DeviceMemoryBase *from, uint64_t size,
                         TF_Status *status)
{
    copy_on(device, NULL, to, from, size, status);
    block_for_stream(device, NULL, status);
}

/* A fill and its place in the stream. */
struct fill {
    uint32_t *to;
    uint32_t pattern;
    uint64_t size;
};

static void run_fill(void *arg)
{
    struct fill *f = arg;

    for (uint64_t i = 0; i < f->size; i++)
        ((uint8_t *)f->to)[i] = (uint8_t)(f->pattern >> i % 4 * 8);
    free(f);
}
static void fill32(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *at,
                   uint32_t pattern, uint64_t size, TF_Status *status)
{
    struct fill *f = malloc(sizeof *f);

    *f = (struct fill){at->opaque, pattern, size};
    enter(device);
    FAIL_IF_NOT(cuLaunchHostFunc(stream, run_fill, f));
    leave();
}
static void fill8(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *at,
                  uint8_t pattern, uint64_t size, TF_Status *status)
{
    fill32(device, stream, at, pattern * UINT32_C(0x01010101), size, status);
}
static void zero(const SP_Device *device, SP_Stream stream, SP_DeviceMemoryBase *at,
                 uint64_t size, TF_Status *status)
{
    fill32(device, stream, at, 0, size, status);
}

/* ---- timers, which nobody asks for */

static void create_timer(const SP_Device *device, SP_Timer *timer, TF_Status *status)
{
    (void)device;
    *timer = NULL;
    TF_SetStatus(status, TF_UNIMPLEMENTED, "no timers");
}
static void destroy_timer(const SP_Device *device, SP_Timer timer)
{
    (void)device;
    (void)timer;
}
static void use_timer(const SP_Device *device, SP_Stream stream, SP_Timer timer,
                      TF_Status *status)
{
    (void)device;
    (void)stream;
    (void)timer;
    TF_SetStatus(status, TF_UNIMPLEMENTED, "no timers");
}

/* ---- kernels that run on the stream */

struct sum {
    const float *a, *b;
    float *out;
    int64_t na, nb, n;
    bool times;
};

static void run_sum(void *arg)
{
    struct sum *s = arg;

    for (int64_t i = 0; i < s->n; i++) {
        float a = s->a[s->na == 1 ? 0 : i];
        float b = s->b[s->nb == 1 ? 0 : i];

        s->out[i] = s->times ? a * b : a + b;
    }
    free(s);
}

/* TensorFlow lets go of the inputs when this returns: the memory stays until the stream has
 * passed. One of the two may be a scalar. */
static void compute(struct TF_OpKernelContext *ctx, bool times)
{
    TF_Status *status = TF_NewStatus();
    struct sum *s = malloc(sizeof *s);
    TF_Tensor *in[2] = {NULL, NULL}, *shape, *out;
    int64_t dims[254];
    SP_Stream stream;

    TF_GetInput(ctx, 0, &in[0], status);
    TF_GetInput(ctx, 1, &in[1], status);
    *s = (struct sum){.a = TF_TensorData(in[0]),
                      .b = TF_TensorData(in[1]),
                      .na = TF_TensorElementCount(in[0]),
                      .nb = TF_TensorElementCount(in[1]),
                      .times = times};
    shape = in[TF_NumDims(in[0]) > 0 ? 0 : 1];
    s->n = TF_TensorElementCount(shape);
    for (int d = 0; d < TF_NumDims(shape); d++)
        dims[d] = TF_Dim(shape, d);
    out = TF_AllocateOutput(ctx, 0, TF_FLOAT, dims, TF_NumDims(shape),
                            (size_t)s->n * sizeof(float), status);
    stream = TF_GetStream(ctx, status);
    if (TF_GetCode(status) != TF_OK) {
        TF_OpKernelContext_Failure(ctx, status);
        free(s);
    } else {
        void *context = NULL;

        s->out = TF_TensorData(out);
        cuDevicePrimaryCtxRetain(&context, 0);
        cuCtxPushCurrent_v2(context);
        cuLaunchHostFunc(stream, run_sum, s);
        leave();
    }
    TF_DeleteTensor(in[0]);
    TF_DeleteTensor(in[1]);
    if (out != NULL)
        TF_DeleteTensor(out);
    TF_DeleteStatus(status);
}

static void multiply(void *kernel, struct TF_OpKernelContext *ctx)
{
    (void)kernel;
    compute(ctx, true);
}
static void add(void *kernel, struct TF_OpKernelContext *ctx)
{
    (void)kernel;
    compute(ctx, false);
}

static void define(const char *op, void (*fn)(void *, struct TF_OpKernelContext *))
{
    TF_Status *status = TF_NewStatus();
    struct TF_KernelBuilder *b = TF_NewKernelBuilder(op, "GPU", NULL, fn, NULL);

    TF_KernelBuilder_TypeConstraint(b, "T", TF_FLOAT, status);
    TF_RegisterKernelBuilder(op, b, status);
    if (TF_GetCode(status) != TF_OK)
        abort();
    TF_DeleteStatus(status);
}

EXPORT void TF_InitKernel(void);
void TF_InitKernel(void)
{
    define("Mul", multiply);
    define("AddV2", add);
}

/* ---- the platform */

static void device_count(const SP_Platform *platform, int *n, TF_Status *status)
{
    (void)platform;
    if (cuDeviceGetCount(n) != 0)
        *n = 0;
    TF_SetStatus(status, TF_OK, "");
}

static void create_device(const SP_Platform *platform, SE_CreateDeviceParams *params,
                          TF_Status *status)
{
    struct device *d = calloc(1, sizeof *d);
    int id = 0;

    (void)platform;
    FAIL_IF_NOT(cuDeviceGet(&id, params->ordinal));
    FAIL_IF_NOT(cuDevicePrimaryCtxRetain(&d->context, id));
    params->device->struct_size = SP_DEVICE_STRUCT_SIZE;
    params->device->device_handle = d;
    params->device->ordinal = params->ordinal;
    params->device->hardware_name = "Fake GPU";
    params->device->device_vendor = "hvd";
    params->device->pci_bus_id = "0000:01:00.0";
}
static void destroy_device(const SP_Platform *platform, SP_Device *device)
{
    (void)platform;
    (void)device;
}

static int32_t numa_node(const SP_Device *device)
{
    (void)device;
    return 0;
}
static int64_t bandwidth(const SP_Device *device)
{
    (void)device;
    return -1;
}
static double gflops(const SP_Device *device)
{
    (void)device;
    return -1;
}
static void create_device_fns(const SP_Platform *platform,
                              SE_CreateDeviceFnsParams *params, TF_Status *status)
{
    (void)platform;
    *params->device_fns = (SP_DeviceFns){.struct_size = SP_DEVICE_FNS_STRUCT_SIZE,
                                         .get_numa_node = numa_node,
                                         .get_memory_bandwidth = bandwidth,
                                         .get_gflops = gflops};
    TF_SetStatus(status, TF_OK, "");
}
static void destroy_device_fns(const SP_Platform *platform, SP_DeviceFns *fns)
{
    (void)platform;
    (void)fns;
}

static void create_executor(const SP_Platform *platform,
                            SE_CreateStreamExecutorParams *params, TF_Status *status)
{
    (void)platform;
    *params->stream_executor = (SP_StreamExecutor){
        .struct_size = SP_STREAMEXECUTOR_STRUCT_SIZE,
        .allocate = allocate,
        .deallocate = deallocate,
        .host_memory_allocate = host_allocate,
        .host_memory_deallocate = host_deallocate,
        .get_allocator_stats = allocator_stats,
        .device_memory_usage = memory_usage,
        .create_stream = create_stream,
        .destroy_stream = destroy_stream,
        .create_stream_dependency = depend,
        .get_stream_status = stream_status,
        .create_event = create_event,
        .destroy_event = destroy_event,
        .get_event_status = event_status,
        .record_event = record_event,
        .wait_for_event = wait_for_event,
        .create_timer = create_timer,
        .destroy_timer = destroy_timer,
        .start_timer = use_timer,
        .stop_timer = use_timer,
        .memcpy_dtoh = copy_out,
        .memcpy_htod = copy_in,
        .memcpy_dtod = copy_on,
        .sync_memcpy_dtoh = sync_copy_out,
        .sync_memcpy_htod = sync_copy_in,
        .sync_memcpy_dtod = sync_copy_on,
        .block_host_for_event = block_for_event,
        .block_host_until_done = block_for_stream,
        .synchronize_all_activity = block_for_all,
        .mem_zero = zero,
        .memset = fill8,
        .memset32 = fill32,
        .host_callback = host_callback,
    };
    TF_SetStatus(status, TF_OK, "");
}
static void destroy_executor(const SP_Platform *platform, SP_StreamExecutor *executor)
{
    (void)platform;
    (void)executor;
}

static uint64_t nanoseconds(SP_Timer timer)
{
    (void)timer;
    return 0;
}
static void create_timer_fns(const SP_Platform *platform, SP_TimerFns *fns,
                             TF_Status *status)
{
    (void)platform;
    fns->struct_size = SP_TIMER_FNS_STRUCT_SIZE;
    fns->nanoseconds = nanoseconds;
    TF_SetStatus(status, TF_OK, "");
}
static void destroy_timer_fns(const SP_Platform *platform, SP_TimerFns *fns)
{
    (void)platform;
    (void)fns;
}

static void destroy_platform(SP_Platform *platform)
{
    (void)platform;
}
static void destroy_platform_fns(SP_PlatformFns *fns)
{
    (void)fns;
}

EXPORT void SE_InitPlugin(SE_PlatformRegistrationParams *params, TF_Status *status)
{
    FAIL_IF_NOT(cuInit(0));
    params->platform->struct_size = SP_PLATFORM_STRUCT_SIZE;
    params->platform->name = "FAKE_CUDA";
    params->platform->type = "GPU";
    params->platform->use_bfc_allocator =
        false; /* it would hide who touches what when */
    params->platform_fns->get_device_count = device_count;
    params->platform_fns->create_device = create_device;
    params->platform_fns->destroy_device = destroy_device;
    params->platform_fns->create_device_fns = create_device_fns;
    params->platform_fns->destroy_device_fns = destroy_device_fns;
    params->platform_fns->create_stream_executor = create_executor;
    params->platform_fns->destroy_stream_executor = destroy_executor;
    params->platform_fns->create_timer_fns = create_timer_fns;
    params->platform_fns->destroy_timer_fns = destroy_timer_fns;
    params->destroy_platform = destroy_platform;
    params->destroy_platform_fns = destroy_platform_fns;
}
