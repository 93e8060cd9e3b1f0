#include "worker/plane/nccl/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/assert.h"
#include "proto/base/log.h"
#include "worker/plane/nccl/pack.h"

/* kernels/pack.ptx as a string */
__asm__(".pushsection .rodata\n"
        ".global hvi_pack_ptx\n"
        ".hidden hvi_pack_ptx\n"
        ".type hvi_pack_ptx, %object\n"
        "hvi_pack_ptx:\n"
        ".incbin \"worker/plane/nccl/kernels/pack.ptx\"\n"
        ".byte 0\n"
        ".size hvi_pack_ptx, . - hvi_pack_ptx\n"
        ".popsection\n");
extern const char hvi_pack_ptx[];

static struct {
    pthread_mutex_t lock;
    struct hvi_device *devices;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* How deep this thread is inside enter, where a context was pushed (bit d: at depth d), and
 * its own mode of capturing. */
static _Thread_local struct {
    int depth, mode;
    uint32_t pushed;
} inside;

void hvi_device_enter(struct hvi_device *dev)
{
    uint32_t bit;

    HVI_ASSERT(inside.depth < 32);
    bit = UINT32_C(1) << inside.depth;
    if (inside.depth++ == 0) {
        inside.mode = HVI_CU_CAPTURE_RELAXED;
        if (dev->cu->capture_mode != NULL)
            dev->cu->capture_mode(&inside.mode);
    }
    if (dev->cu->ctx_push(dev->context) == HVI_CU_SUCCESS)
        inside.pushed |= bit;
    else
        inside.pushed &= ~bit;
}

void hvi_device_leave(struct hvi_device *dev)
{
    struct CUctx_st *old = NULL;

    inside.depth--;
    if ((inside.pushed >> inside.depth & 1) != 0)
        dev->cu->ctx_pop(&old);
    if (inside.depth == 0 && dev->cu->capture_mode != NULL)
        dev->cu->capture_mode(&inside.mode);
}

enum hvd_status hvi_device_check(struct hvi_device *dev, int cu_result,
                                 const char *what, struct hvi_err *err)
{
    const char *name = NULL;
    const char *text = NULL;

    if (cu_result == HVI_CU_SUCCESS)
        return HVD_OK;
    if (dev->cu->error_name(cu_result, &name) != HVI_CU_SUCCESS || name == NULL)
        name = "unknown error";
    if (dev->cu->error_string(cu_result, &text) != HVI_CU_SUCCESS || text == NULL)
        text = "";
    return hvi_fail(err, cu_result == HVI_CU_OUT_OF_MEMORY ? HVD_ENOMEM : HVD_EIO,
                    "%s: %s %d: %s (cuda:%d, %s)", what, name, cu_result, text, dev->id,
                    dev->name);
}

/* ---- one device ------------------------------------------------------------------ */

/* Where modules load lazily the first launch may wait for all that runs on the GPU: it is
 * made here, over no tiles, and not between collectives. */
static int launch_nothing(struct hvi_device *dev)
{
    uint64_t items = 0;
    int32_t nitems = 0;
    int64_t ntiles = 0;
    void *params[] = {&items, &nitems, &ntiles};

    return dev->cu->launch(dev->pack, 1, 1, 1, HVI_PACK_THREADS, 1, 1, 0, dev->import,
                           params, NULL);
}

/* Without the kernel GPU tensors still work, through the host. */
static void load_kernel(struct hvi_device *dev)
{
    struct CUmod_st *module = NULL;
    struct hvi_err err = {{0}};
    int rc = dev->cu->module_load(&module, hvi_pack_ptx);

    if (rc == HVI_CU_SUCCESS)
        rc = dev->cu->module_function(&dev->pack, module, HVI_PACK_KERNEL);
    if (rc == HVI_CU_SUCCESS)
        rc = launch_nothing(dev);
    if (hvi_device_check(dev, rc, "loading the kernels", &err) == HVD_OK)
        return;
    dev->pack = NULL;
    snprintf(dev->why_no_pack, sizeof dev->why_no_pack, "%.150s", err.text);
    hvi_log_warn("gpu", "%s", err.text);
}

static enum hvd_status open_device(struct hvi_device *dev, struct hvi_err *err)
{
    const struct hvi_cuda *cu = dev->cu;
    int device = 0;
    enum hvd_status rc =
        hvi_device_check(dev, cu->device_get(&device, dev->id), "cuDeviceGet", err);

    if (rc != HVD_OK)
        return rc;
    if (cu->device_name(dev->name, sizeof dev->name, device) != HVI_CU_SUCCESS)
        snprintf(dev->name, sizeof dev->name, "GPU");
    if (cu->device_bus(dev->bus, sizeof dev->bus, device) != HVI_CU_SUCCESS)
        dev->bus[0] = '\0';
    if ((cu->uuid_v2 != NULL ? cu->uuid_v2 : cu->device_uuid)(dev->uuid, device) !=
        HVI_CU_SUCCESS)
        memset(dev->uuid, 0, sizeof dev->uuid);
    rc = hvi_device_check(dev, cu->ctx_retain(&dev->context, device),
                          "cuDevicePrimaryCtxRetain", err);
    if (rc != HVD_OK)
        return rc;
    hvi_device_enter(dev);
    rc = hvi_device_check(
        dev, cu->stream_create(&dev->import, HVI_CU_STREAM_NON_BLOCKING, 0),
        "cuStreamCreateWithPriority", err);
    if (rc == HVD_OK)
        load_kernel(dev);
    hvi_device_leave(dev);
    return rc;
}

/* CUDA_VISIBLE_DEVICES decides how many there are. */
static enum hvd_status check_ordinal(const struct hvi_cuda *cu, int id,
                                     struct hvi_err *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int count = 0;

    if (cu->device_count(&count) != HVI_CU_SUCCESS)
        count = 0;
    if (id >= 0 && id < count)
        return HVD_OK;
    return hvi_fail(
        err, HVD_EINVAL,
        "GPU %d does not exist: this process sees %d (CUDA_VISIBLE_DEVICES%s%s)"
        "; start one rank per GPU, or let ranks share one by local rank "
        "modulo the number of GPUs",
        id, count, visible != NULL ? "=" : " is not set",
        visible != NULL ? visible : "");
}

static enum hvd_status make_device(const struct hvi_cuda *cu, int id,
                                   struct hvi_device **out, struct hvi_err *err)
{
    struct hvi_device *dev;
    enum hvd_status rc = check_ordinal(cu, id, err);

    if (rc != HVD_OK)
        return rc;
    dev = calloc(1, sizeof *dev);
    if (dev == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    dev->cu = cu;
    dev->id = id;
    pthread_mutex_init(&dev->lock, NULL);
    rc = open_device(dev, err);
    if (rc != HVD_OK) {
        pthread_mutex_destroy(&dev->lock);
        free(dev);
        return rc;
    }
    hvi_log_info("gpu", "device=%d name=%s bus=%s", id, dev->name, dev->bus);
    dev->next = g.devices;
    g.devices = dev;
    *out = dev;
    return HVD_OK;
}

enum hvd_status hvi_device_get(int id, struct hvi_device **out, struct hvi_err *err)
{
    const struct hvi_cuda *cu = NULL;
    struct hvi_device *dev;
    enum hvd_status rc = hvi_cuda_get(&cu, err);

    if (rc != HVD_OK)
        return rc;
    pthread_mutex_lock(&g.lock);
    for (dev = g.devices; dev != NULL && dev->id != id; dev = dev->next)
        ;
    if (dev == NULL)
        rc = make_device(cu, id, &dev, err);
    pthread_mutex_unlock(&g.lock);
    if (rc == HVD_OK)
        *out = dev;
    return rc;
}

enum hvd_status hvi_device_of_rank(int local_rank, int *out, struct hvi_err *err)
{
    const struct hvi_cuda *cu = NULL;
    enum hvd_status rc = hvi_cuda_get(&cu, err);
    int count = 0;

    if (rc != HVD_OK)
        return rc;
    if (cu->device_count(&count) != HVI_CU_SUCCESS || count < 1)
        count = 1;
    *out = local_rank % count;
    return HVD_OK;
}

enum hvd_status hvi_device_of_data(const void *data, bool *known, int *out,
                                   struct hvi_err *err)
{
    const struct hvi_cuda *cu = NULL;
    enum hvd_status rc = hvi_cuda_get(&cu, err);
    int owner = -1;

    if (rc != HVD_OK)
        return rc;
    *known = data != NULL && cu->pointer_get != NULL &&
             cu->pointer_get(&owner, HVI_CU_POINTER_DEVICE,
                             (uint64_t)(uintptr_t)data) == HVI_CU_SUCCESS &&
             owner >= 0;
    if (*known)
        *out = owner;
    return HVD_OK;
}

/* ---- events ---------------------------------------------------------------------- */

static enum hvd_status take_event(struct hvi_device *dev, struct hvi_event **out,
                                  struct hvi_err *err)
{
    struct hvi_event *e;
    enum hvd_status rc;

    pthread_mutex_lock(&dev->lock);
    e = dev->free_events;
    if (e != NULL)
        dev->free_events = e->next;
    pthread_mutex_unlock(&dev->lock);
    if (e == NULL) {
        e = calloc(1, sizeof *e);
        if (e == NULL)
            return hvi_fail(err, HVD_ENOMEM, "out of memory");
        e->dev = dev;
        rc = hvi_device_check(
            dev,
            dev->cu->event_create(&e->event, HVI_CU_EVENT_DISABLE_TIMING |
                                                 HVI_CU_EVENT_BLOCKING_SYNC),
            "cuEventCreate", err);
        if (rc != HVD_OK) {
            free(e);
            return rc;
        }
    }
    atomic_store(&e->refs, 1);
    *out = e;
    return HVD_OK;
}

enum hvd_status hvi_event_record(struct hvi_device *dev, struct CUstream_st *stream,
                                 struct hvi_event **out, struct hvi_err *err)
{
    struct hvi_event *e = NULL;
    enum hvd_status rc = take_event(dev, &e, err);

    if (rc == HVD_OK)
        rc = hvi_device_check(dev, dev->cu->event_record(e->event, stream),
                              "cuEventRecord", err);
    if (rc == HVD_OK)
        *out = e;
    else
        hvi_event_unref(e);
    return rc;
}

void hvi_event_ref(struct hvi_event *e)
{
    atomic_fetch_add_explicit(&e->refs, 1, memory_order_relaxed);
}

void hvi_event_unref(struct hvi_event *e)
{
    if (e == NULL || atomic_fetch_sub_explicit(&e->refs, 1, memory_order_acq_rel) != 1)
        return;
    pthread_mutex_lock(&e->dev->lock);
    e->next = e->dev->free_events;
    e->dev->free_events = e;
    pthread_mutex_unlock(&e->dev->lock);
}

static enum hvd_status captured(struct hvi_err *err, const char *what)
{
    return hvi_fail(err, HVD_EUNSUPPORTED,
                    "%s captured into a CUDA graph; collectives cannot be part of a "
                    "graph: enqueue them outside the capture",
                    what);
}

/* A collective inside a graph would be replayed without negotiation. */
static enum hvd_status refuse_capture(struct hvi_device *dev,
                                      struct CUstream_st *stream, struct hvi_err *err)
{
    int capturing = 0;
    int rc = dev->cu->stream_capturing(stream, &capturing);

    if (rc == HVI_CU_CAPTURE_IMPLICIT || rc == HVI_CU_CAPTURE_UNSUPPORTED)
        capturing = 1;
    else if (rc != HVI_CU_SUCCESS)
        return hvi_device_check(dev, rc, "cuStreamIsCapturing", err);
    return capturing == 0 ? HVD_OK : captured(err, "the stream is being");
}

static enum hvd_status import_event(struct hvi_device *dev, struct CUevent_st *event,
                                    struct hvi_event **out, struct hvi_err *err)
{
    enum hvd_status rc;
    int cu;

    if (event == NULL)
        return hvi_fail(err, HVD_EINVAL, "ready.object is NULL, not a CUevent");
    /* before anything is ordered after it: that would join the graph of a captured one */
    cu = dev->cu->event_query(event);
    if (cu == HVI_CU_SUCCESS)
        return HVD_OK;
    if (cu == HVI_CU_CAPTURED_EVENT || cu == HVI_CU_CAPTURE_UNSUPPORTED)
        return captured(err, "the event was");
    if (cu != HVI_CU_NOT_READY)
        return hvi_device_check(dev, cu, "cuEventQuery", err);
    pthread_mutex_lock(&g.lock); /* nothing of another call between the two */
    rc = hvi_device_check(dev, dev->cu->stream_wait(dev->import, event, 0),
                          "cuStreamWaitEvent", err);
    if (rc == HVD_OK)
        rc = hvi_event_record(dev, dev->import, out, err);
    pthread_mutex_unlock(&g.lock);
    return rc;
}

static enum hvd_status record_context(struct hvi_device *dev, struct CUctx_st *context,
                                      struct hvi_event **out, struct hvi_err *err)
{
    struct hvi_event *e = NULL;
    enum hvd_status rc;
    int cu;

    if (dev->cu->ctx_record == NULL)
        return hvi_device_check(dev, dev->cu->ctx_sync(), "cuCtxSynchronize", err);
    rc = take_event(dev, &e, err);
    if (rc != HVD_OK)
        return rc;
    cu = dev->cu->ctx_record(context != NULL ? context : dev->context, e->event);
    if (cu == HVI_CU_CAPTURE_UNSUPPORTED)
        rc = captured(err, "a stream of the context is being");
    else
        rc = hvi_device_check(dev, cu, "cuCtxRecordEvent", err);
    if (rc == HVD_OK)
        *out = e;
    else
        hvi_event_unref(e);
    return rc;
}

enum hvd_status hvi_device_ready(struct hvi_device *dev, const struct hvd_ready *ready,
                                 struct hvi_event **out, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    *out = NULL;
    if (ready->kind == HVD_READY_NONE)
        return HVD_OK;
    hvi_device_enter(dev);
    switch (ready->kind) {
    case HVD_READY_CUSTREAM:
        rc = refuse_capture(dev, ready->object, err);
        if (rc == HVD_OK)
            rc = hvi_event_record(dev, ready->object, out, err);
        break;
    case HVD_READY_CUEVENT:
        rc = import_event(dev, ready->object, out, err);
        break;
    case HVD_READY_CUCTX:
        rc = record_context(dev, ready->object, out, err);
        break;
    default:
        rc = hvi_fail(err, HVD_EINVAL, "ready kind %d is unknown", ready->kind);
    }
    hvi_device_leave(dev);
    return rc;
}

enum hvd_status hvi_event_stream_wait(struct hvi_event *e, void *stream,
                                      struct hvi_err *err)
{
    enum hvd_status rc;

    hvi_device_enter(e->dev);
    rc = refuse_capture(e->dev, stream, err);
    if (rc == HVD_OK)
        rc = hvi_device_check(e->dev, e->dev->cu->stream_wait(stream, e->event, 0),
                              "cuStreamWaitEvent", err);
    hvi_device_leave(e->dev);
    return rc;
}

enum hvd_status hvi_event_ctx_wait(struct hvi_event *e, void *context,
                                   struct hvi_err *err)
{
    const struct hvi_cuda *cu = e->dev->cu;
    int rc_wait = HVI_CU_CAPTURE_UNSUPPORTED;
    enum hvd_status rc;

    hvi_device_enter(e->dev);
    if (cu->ctx_wait != NULL)
        rc_wait = cu->ctx_wait(context != NULL ? context : e->dev->context, e->event);
    if (rc_wait == HVI_CU_CAPTURE_UNSUPPORTED) /* what is over needs no order */
        rc = hvi_device_check(e->dev, cu->event_sync(e->event), "cuEventSynchronize",
                              err);
    else
        rc = hvi_device_check(e->dev, rc_wait, "cuCtxWaitEvent", err);
    hvi_device_leave(e->dev);
    return rc;
}

/* ---- memory ---------------------------------------------------------------------- */

/* The owner of managed or host memory says nothing about who may touch it. */
static bool bound_to_its_gpu(const struct hvi_cuda *cu, uint64_t at)
{
    unsigned type = HVI_CU_MEMORY_DEVICE;
    int managed = 0;

    cu->pointer_get(&type, HVI_CU_POINTER_MEMORY_TYPE, at);
    cu->pointer_get(&managed, HVI_CU_POINTER_IS_MANAGED, at);
    return type == HVI_CU_MEMORY_DEVICE && managed == 0;
}

enum hvd_status hvi_device_owns(struct hvi_device *dev, const void *data,
                                struct hvi_err *err)
{
    const struct hvi_cuda *cu = dev->cu;
    uint64_t at = (uint64_t)(uintptr_t)data;
    enum hvd_status rc = HVD_OK;
    int owner = dev->id;
    int cu_rc;

    if (cu->pointer_get == NULL)
        return HVD_OK;
    hvi_device_enter(dev);
    cu_rc = cu->pointer_get(&owner, HVI_CU_POINTER_DEVICE, at);
    if (cu_rc == HVI_CU_INVALID_VALUE)
        rc = hvi_fail(err, HVD_EINVAL, "%p is not GPU memory", data);
    else if (cu_rc != HVI_CU_SUCCESS)
        rc = hvi_device_check(dev, cu_rc, "cuPointerGetAttribute", err);
    else if (owner != dev->id && bound_to_its_gpu(cu, at))
        rc = hvi_fail(err, HVD_EINVAL, "%p is memory of GPU %d, not of GPU %d", data,
                      owner, dev->id);
    hvi_device_leave(dev);
    return rc;
}

/* ---- for people ------------------------------------------------------------------ */

static size_t report_gpus(const struct hvi_cuda *cu, char *out, size_t cap)
{
    size_t used = 0;
    int count = 0;

    if (cu->device_count(&count) != HVI_CU_SUCCESS)
        count = 0;
    used = (size_t)snprintf(out, cap, "%d GPU%s", count, count == 1 ? "" : "s");
    for (int i = 0; i < count && used < cap; i++) {
        char name[64] = "?";
        int device = 0;

        if (cu->device_get(&device, i) == HVI_CU_SUCCESS)
            cu->device_name(name, sizeof name, device);
        used += (size_t)snprintf(out + used, cap - used, "%s%s", i == 0 ? ": " : ", ",
                                 name);
    }
    return used < cap ? used : cap - 1;
}

void hvi_device_report(char *out, size_t cap)
{
    const struct hvi_cuda *cu = NULL;
    const struct hvi_nccl_api *nccl = NULL;
    struct hvi_err err = {{0}};
    char version[16];
    size_t used;

    if (hvi_cuda_get(&cu, &err) != HVD_OK) {
        snprintf(out, cap, "%s", err.text);
        return;
    }
    used = (size_t)snprintf(out, cap, "driver for CUDA %s, ",
                            hvi_cuda_version_text(cu->version, version));
    if (used < cap)
        used += report_gpus(cu, out + used, cap - used);
    if (used >= cap)
        return;
    if (hvi_nccl_get(&nccl, &err) == HVD_OK)
        snprintf(out + used, cap - used, "; NCCL %s (%s)",
                 hvi_nccl_version_text(nccl->version, version), nccl->path);
    else
        snprintf(out + used, cap - used, "; %s", err.text);
}
