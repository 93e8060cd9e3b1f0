/*
 * The GPU plane as a plane: start, progress, wait, abort.
 *
 * Happy path of a group: the set's communicator is there (else it is made, comm.c); sizes
 * are exchanged where only all ranks know them; LAUNCH queues waits for the callers'
 * events, kernel and NCCL calls on the one stream, round by round; END records an event
 * behind them and hands it to the completion thread. Nothing on the host waits for the
 * device.
 *
 * The plane takes as many groups as it is given: the stream guards the fusion buffer. Who
 * gives them holds back while two are on the device (hvi_gpu_holds, worker/core).
 *
 * Failure paths: what all members see alike refuses the group; everything else breaks the
 * plane (watch.c), on this rank at once and on the others when the epoch closes.
 */
#include <errno.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/assert.h"
#include "proto/base/env.h"
#include "proto/base/list.h"
#include "proto/base/names.h"
#include "worker/plane/nccl/gpu.h"

#define TIMEOUT_S 600     /* of a launch that does not end; HVD_NCCL_TIMEOUT_SECONDS */
#define POLL_LAST_US 2000 /* between two looks at what NCCL does in the background */
#define ABORT_S 10        /* an abort may take that long (R6); HVD_NCCL_ABORT_SECONDS */
#define DRAIN_MS 5000     /* free() waits that long for queued work */

static struct hvi_gpu *gpu_of(struct hvi_plane *p)
{
    return HVI_CONTAINER(p, struct hvi_gpu, base);
}

/* ---- exchanges over the CPU plane ------------------------------------------------ */

static enum hvd_status run_sub(struct hvi_gpu *p, struct hvi_err *err)
{
    struct hvi_plane *cpu = p->setup.cpu;
    enum hvd_status rc = HVD_OK;

    if (!p->sub_started) {
        HVI_ASSERT(p->round_no + 1 < HVI_SEQ_STEP);
        p->sub.seq = p->g->seq + ++p->round_no;
        p->sub.nmembers = p->g->nmembers;
        p->sub.members = p->g->members;
        p->sub.me = p->g->me;
        p->sub.dtype = HVD_UINT8;
        p->sub.reduce_op = HVD_SUM;
        p->sub.prescale = p->sub.postscale = 1.0;
        p->sub.npieces = 1;
        p->sub.pieces = &p->sub_piece;
        rc = cpu->ops->start(cpu, &p->sub, err);
        p->sub_started = rc == HVD_OK;
    }
    if (rc == HVD_OK)
        rc = cpu->ops->progress(cpu, err);
    if (rc != HVD_INPROGRESS)
        p->sub_started = false;
    p->cpu_failed = rc < 0;
    return rc;
}

enum hvd_status hvi_gpu_exchange(struct hvi_gpu *p, const void *in, void *out,
                                 size_t bytes, struct hvi_err *err)
{
    if (!p->sub_started) {
        p->sub.kind = HVD_ALLGATHER;
        p->sub_piece = (struct hvi_piece){.in = in,
                                          .out = out,
                                          .count = (int64_t)bytes,
                                          .row = 1,
                                          .rows = p->sub_rows};
    }
    return run_sub(p, err);
}

enum hvd_status hvi_gpu_tell(struct hvi_gpu *p, void *data, size_t bytes,
                             struct hvi_err *err)
{
    if (!p->sub_started) {
        p->sub.kind = HVD_BROADCAST;
        p->sub.root = 0;
        p->sub_piece = (struct hvi_piece){
            .in = data, .out = data, .count = (int64_t)bytes, .row = 1};
    }
    return run_sub(p, err);
}

/* ---- queued work ----------------------------------------------------------------- */

enum hvd_status hvi_gpu_mark(struct hvi_gpu *p, struct hvi_launch **out,
                             struct hvi_err *err)
{
    struct hvi_launch *l = calloc(1, sizeof *l);
    enum hvd_status rc;

    if (l == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    rc = hvi_event_record(p->dev, p->stream, &l->event, err);
    if (rc != HVD_OK) {
        free(l);
        return rc;
    }
    l->tables = p->tables;
    p->tables = NULL;
    *out = l;
    return HVD_OK;
}

static void on_synced(void *arg, enum hvd_status status, const char *text)
{
    struct hvi_gpu *p = arg;

    (void)status; /* p->broken tells */
    (void)text;
    atomic_store(&p->sync_state, 1);
    hvi_gpu_wake(p);
}

enum hvd_status hvi_gpu_sync(struct hvi_gpu *p, struct hvi_err *err)
{
    struct hvi_launch *l = NULL;
    enum hvd_status rc = hvi_gpu_mark(p, &l, err);

    if (rc != HVD_OK)
        return rc;
    l->done = on_synced;
    l->arg = p;
    atomic_store(&p->sync_state, 0);
    hvi_gpu_push(p, l);
    return HVD_OK;
}

/* Everything of the group is queued. */
static enum hvd_status end_group(struct hvi_gpu *p, struct hvi_err *err)
{
    const struct hvi_group *g = p->g;
    struct hvi_launch *l = NULL;
    enum hvd_status rc;

    if (g->done == NULL) {
        p->phase = HVI_GPU_SYNC;
        rc = hvi_gpu_sync(p, err);
        return rc == HVD_OK ? HVD_INPROGRESS : rc;
    }
    rc = hvi_gpu_mark(p, &l, err);
    if (rc != HVD_OK)
        return rc;
    l->memory = p->stage_memory;
    p->stage_memory = NULL;
    l->done = g->done;
    l->arg = g->arg;
    if (g->queued != NULL)
        g->queued(g->arg, l->event);
    hvi_gpu_push(p, l);
    return HVD_OK;
}

/* ---- a group --------------------------------------------------------------------- */

enum hvd_status hvi_gpu_refuse(struct hvi_gpu *p, enum hvd_status status,
                               struct hvi_err *err)
{
    hvi_fail(err, status, "%s", p->group_err.text);
    p->refused = true;
    return status;
}

static enum hvd_status reserve(struct hvi_gpu *p, int32_t npieces, struct hvi_err *err)
{
    bool *more;

    if (npieces >= p->cap_waited) {
        more = realloc(p->waited, (size_t)npieces + 64);
        if (more == NULL)
            return hvi_fail(err, HVD_ENOMEM, "out of memory");
        p->waited = more;
        p->cap_waited = npieces + 64;
    }
    memset(p->waited, 0, (size_t)p->cap_waited);
    return HVD_OK;
}

static enum hvd_status broken(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status status = (enum hvd_status)atomic_load(&p->broken);

    if (status == HVD_OK)
        return HVD_OK;
    pthread_mutex_lock(&p->lock);
    hvi_fail(err, status, "%s", p->broken_text);
    pthread_mutex_unlock(&p->lock);
    return status;
}

static enum hvd_status gpu_start(struct hvi_plane *plane, const struct hvi_group *g,
                                 struct hvi_err *err)
{
    struct hvi_gpu *p = gpu_of(plane);
    enum hvd_status rc = broken(p, err);

    if (rc == HVD_OK)
        rc = hvi_group_check(g, p->setup.size, &p->facts, err);
    if (rc == HVD_OK)
        rc = reserve(p, g->npieces, err);
    if (rc == HVD_OK)
        rc = hvi_gpu_find_comm(p, g->members, g->nmembers, &p->comm, err);
    if (rc != HVD_OK)
        return rc;
    p->g = g;
    p->round = 0;
    p->round_no = 0;
    p->refused = p->cpu_failed = false;
    p->sub_started = false;
    p->poll_us = HVI_POLL_FIRST_US;
    p->any_joined = false;
    p->phase = HVI_GPU_MEET;
    return HVD_OK;
}

/* The communicator is there: which way? */
static enum hvd_status choose(struct hvi_gpu *p, struct hvi_err *err)
{
    const struct hvi_group *g = p->g;
    enum hvd_status rc = HVD_OK;

    hvi_gpu_choose(p, g);
    if (p->comm->staged || hvi_gpu_needs_host(p, g))
        return hvi_gpu_stage(p, err);
    p->phase = HVI_GPU_LAUNCH;
    if (g->kind == HVD_ALLREDUCE) {
        hvi_group_alloc_all(g, &p->facts);
        rc = hvi_nccl_plan(&p->plan, g->pieces, g->npieces, hvi_dtype_size(p->wtype),
                           p->cast, p->buffer_bytes, err);
    } else if (g->kind == HVD_ALLGATHER || g->kind == HVD_ALLTOALL) {
        p->phase = HVI_GPU_SIZES;
    } else if (g->kind == HVD_REDUCESCATTER) {
        hvi_group_alloc_all(g, &p->facts);
        p->phase = HVI_GPU_AGREE;
    }
    return rc;
}

static enum hvd_status one_step(struct hvi_gpu *p, struct hvi_err *err)
{
    enum hvd_status rc;

    switch (p->phase) {
    case HVI_GPU_MEET:
        if (p->comm->formed)
            return choose(p, err);
        rc = hvi_gpu_form(p, err);
        return rc == HVD_OK                                       ? choose(p, err)
               : rc == HVD_INPROGRESS && p->phase != HVI_GPU_MEET ? HVD_OK
                                                                  : rc;
    case HVI_GPU_ID:
    case HVI_GPU_FORMING:
    case HVI_GPU_SPLIT:
        rc = hvi_gpu_form(p, err);
        return rc == HVD_OK ? choose(p, err) : rc;
    case HVI_GPU_SIZES:
        return hvi_gpu_sizes(p, err);
    case HVI_GPU_AGREE:
        return hvi_gpu_agree(p, err);
    case HVI_GPU_LAUNCH:
        return hvi_gpu_launch(p, err);
    case HVI_GPU_CALLED:
        return hvi_gpu_called(p, err);
    case HVI_GPU_COPY_OUT:
        if (atomic_load(&p->sync_state) == 0)
            return HVD_INPROGRESS;
        p->phase = HVI_GPU_HOST;
        return HVD_OK;
    case HVI_GPU_HOST:
        rc = hvi_gpu_stage_host(p, err);
        p->facts.no_memory |= rc == HVD_ENOMEM;
        return rc == HVD_OK ? hvi_gpu_stage_out(p, err) : rc;
    case HVI_GPU_END:
        if (atomic_load(&p->sync_state) == 0)
            return HVD_INPROGRESS;
        return end_group(p, err);
    default:
        return atomic_load(&p->sync_state) == 0 ? HVD_INPROGRESS : HVD_OK;
    }
}

static bool over(const struct hvi_gpu *p, enum hvi_gpu_phase before, enum hvd_status rc)
{
    return rc == HVD_OK && (before == HVI_GPU_SYNC ||
                            (before == HVI_GPU_END && p->phase == HVI_GPU_END));
}

static void leave_group(struct hvi_gpu *p)
{
    if (atomic_load(&p->broken) ==
        0) /* else the device may still copy; freed at the end */
        hvi_gpu_stage_drop(p);
    p->g = NULL;
    p->phase = HVI_GPU_IDLE;
}

static enum hvd_status gpu_progress(struct hvi_plane *plane, struct hvi_err *err)
{
    struct hvi_gpu *p = gpu_of(plane);
    enum hvi_gpu_phase before;
    enum hvd_status rc;

    HVI_ASSERT(p->g != NULL);
    hvi_device_enter(p->dev);
    do {
        before = p->phase;
        rc = atomic_load(&p->broken) != 0 ? broken(p, err) : one_step(p, err);
    } while (rc == HVD_OK && !over(p, before, rc));
    hvi_device_leave(p->dev);
    if (rc == HVD_INPROGRESS)
        return rc;
    if (rc == HVD_OK)
        rc = hvi_group_end(&p->facts, err);
    else if (atomic_load(&p->broken) != 0)
        rc = broken(p, err);
    else if (!p->refused && !p->cpu_failed)
        hvi_gpu_break(p, rc, true, err->text);
    leave_group(p);
    return rc;
}

/* ---- waiting --------------------------------------------------------------------- */

static bool nap(struct hvi_gpu *p, uint32_t seen, int64_t us)
{
    struct timespec ts = {us / 1000000, us % 1000000 * 1000};

    return syscall(SYS_futex, &p->wake, FUTEX_WAIT_PRIVATE, seen, us < 0 ? NULL : &ts,
                   NULL, 0) != 0 &&
           errno == EINTR;
}

static bool gpu_wait(struct hvi_plane *plane, int timeout_ms)
{
    struct hvi_gpu *p = gpu_of(plane);
    uint32_t seen = atomic_load(&p->wake);
    bool polls = p->phase == HVI_GPU_FORMING || p->phase == HVI_GPU_SPLIT ||
                 p->phase == HVI_GPU_CALLED;
    int64_t us = timeout_ms < 0 ? -1 : (int64_t)timeout_ms * 1000;

    if (p->g == NULL || atomic_load(&p->broken) != 0)
        return false;
    if (p->sub_started)
        return p->setup.cpu->ops->wait(p->setup.cpu, timeout_ms);
    if (!polls)
        return atomic_load(&p->sync_state) == 0 ? nap(p, seen, us) : false;
    if (us < 0 || us > p->poll_us)
        us = p->poll_us;
    p->poll_us = p->poll_us < POLL_LAST_US ? p->poll_us * 2 : POLL_LAST_US;
    return nap(p, seen, us);
}

static void gpu_abort(struct hvi_plane *plane, enum hvd_status status)
{
    hvi_gpu_break(gpu_of(plane), status, false, hvi_status_text(status));
}

/* ---- life ------------------------------------------------------------------------ */

static void free_all(struct hvi_gpu *p)
{
    const struct hvi_cuda *cu = p->dev->cu;

    hvi_device_enter(p->dev);
    hvi_gpu_drop_comms(p);
    hvi_gpu_free_tables(p);
    hvi_gpu_keep_tables(p->tables); /* of a group that broke before its launch */
    if (p->buffer != 0)
        cu->mem_free(p->buffer);
    if (p->stream != NULL)
        cu->stream_destroy(p->stream);
    hvi_device_leave(p->dev);
    hvi_gpu_stage_drop(p);
    hvi_nccl_plan_fini(&p->plan);
    free(p->waited);
    free(p->cards);
    free(p->head);
    free(p->oks);
    pthread_mutex_destroy(&p->api);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->cond);
    pthread_cond_destroy(&p->watch_cond);
    free(p);
}

static void gpu_free(struct hvi_plane *plane)
{
    struct hvi_gpu *p;
    int ngpus = 0;

    if (plane == NULL)
        return;
    p = gpu_of(plane);
    if (!hvi_gpu_drain(p, DRAIN_MS))
        hvi_gpu_break(p, HVD_ESHUTDOWN, false, "the GPU did not finish its work");
    /* what hangs in the driver stays behind; so does all of it once the driver has left,
     * which it does before us in a program that calls exit() */
    if (hvi_gpu_stop_threads(p) && p->dev->cu->device_count(&ngpus) == HVI_CU_SUCCESS)
        free_all(p);
}

static const struct hvi_plane_ops gpu_ops = {
    .name = "nccl",
    .start = gpu_start,
    .progress = gpu_progress,
    .abort = gpu_abort,
    .wait = gpu_wait,
    .free = gpu_free,
};

/* The buffer and the kernel, or why there are none: then groups go through the host. */
static enum hvd_status setup_stage(struct hvi_gpu *p, struct hvi_err *err)
{
    const struct hvi_cuda *cu = p->dev->cu;
    const char *wanted = hvi_env("GPU_PLANE");
    const char *wire = hvi_env("GPU_COMPRESSION");
    int rc;

    if (wanted != NULL && strcmp(wanted, "host") == 0)
        p->card.stage |= HVI_STAGE_ASKED;
    else if (wanted != NULL && strcmp(wanted, "nccl") != 0 &&
             strcmp(wanted, "auto") != 0)
        return hvi_fail(err, HVD_EINVAL, "HVD_GPU_PLANE=%s: write nccl, host or auto",
                        wanted);
    if (wire != NULL && strcmp(wire, "fp16") == 0)
        p->card.wire = HVD_FLOAT16;
    else if (wire != NULL && strcmp(wire, "bf16") == 0)
        p->card.wire = HVD_BFLOAT16;
    else if (wire != NULL && strcmp(wire, "none") != 0)
        return hvi_fail(err, HVD_EINVAL,
                        "HVD_GPU_COMPRESSION=%s: write fp16, bf16 or none", wire);
    if (p->dev->pack == NULL)
        p->card.stage |= HVI_STAGE_KERNEL;
    if (p->card.stage != 0)
        return HVD_OK;
    p->buffer_bytes =
        p->setup.buffer_bytes > 0 ? p->setup.buffer_bytes : HVI_ROUND_BYTES;
    rc = cu->mem_alloc(&p->buffer, p->buffer_bytes);
    if (rc == HVI_CU_OUT_OF_MEMORY) {
        p->buffer = 0;
        p->card.stage |= HVI_STAGE_MEMORY;
        return HVD_OK;
    }
    return hvi_device_check(p->dev, rc, "cuMemAlloc", err);
}

static enum hvd_status setup_device(struct hvi_gpu *p, struct hvi_err *err)
{
    const struct hvi_cuda *cu = p->dev->cu;
    int least = 0;
    int greatest = 0;
    enum hvd_status rc;

    hvi_device_enter(p->dev);
    if (cu->stream_priority != NULL &&
        cu->stream_priority(&least, &greatest) != HVI_CU_SUCCESS)
        greatest = 0;
    rc = hvi_device_check(
        p->dev, cu->stream_create(&p->stream, HVI_CU_STREAM_NON_BLOCKING, greatest),
        "cuStreamCreateWithPriority", err);
    if (rc == HVD_OK)
        rc = setup_stage(p, err);
    hvi_device_leave(p->dev);
    return rc;
}

/* A job of one rank has no list of hosts. */
static void name_host(struct hvi_gpu *p, const char *host)
{
    if (host != NULL && host[0] != '\0')
        snprintf(p->host, sizeof p->host, "%s", host);
    else if (gethostname(p->host, sizeof p->host - 1) != 0)
        snprintf(p->host, sizeof p->host, "?");
}

static void setup_card(struct hvi_gpu *p)
{
    memcpy(p->card.uuid, p->dev->uuid, sizeof p->card.uuid);
    snprintf(p->card.bus, sizeof p->card.bus, "%s", p->dev->bus);
    snprintf(p->card.host, sizeof p->card.host, "%s", p->host);
    p->card.device = (uint32_t)p->dev->id;
}

enum hvd_status hvi_nccl_new(const struct hvi_nccl_setup *setup, struct hvi_plane **out,
                             struct hvi_err *err)
{
    struct hvi_device *dev = NULL;
    struct hvi_gpu *p;
    int64_t seconds = TIMEOUT_S;
    int64_t abort_s = ABORT_S;
    enum hvd_status rc =
        hvi_env_int("NCCL_TIMEOUT_SECONDS", TIMEOUT_S, 0, 7 * 86400, &seconds, err);

    if (rc == HVD_OK)
        rc = hvi_env_int("NCCL_ABORT_SECONDS", ABORT_S, 1, 86400, &abort_s, err);
    if (rc == HVD_OK)
        rc = hvi_device_get(setup->device_id, &dev, err);
    if (rc != HVD_OK)
        return rc;
    p = calloc(1, sizeof *p);
    if (p == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    p->base = (struct hvi_plane){.ops = &gpu_ops, .rank = setup->rank};
    p->setup = *setup;
    p->dev = dev;
    p->timeout_ms = setup->timeout_ms > 0 ? setup->timeout_ms : seconds * 1000;
    p->abort_ms = setup->abort_ms > 0 ? setup->abort_ms : abort_s * 1000;
    p->last = &p->first;
    atomic_store(&p->sync_state, 1);
    name_host(p, setup->host);
    pthread_mutex_init(&p->api, NULL);
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->cond, NULL);
    pthread_cond_init(&p->watch_cond, NULL);
    p->cards = calloc((size_t)setup->size, sizeof *p->cards);
    p->oks = calloc(HVD_RANKS_MAX + 1, 1);
    rc = p->cards != NULL && p->oks != NULL
             ? setup_device(p, err)
             : hvi_fail(err, HVD_ENOMEM, "out of memory");
    setup_card(p);
    if (rc == HVD_OK)
        rc = hvi_gpu_start_threads(p, err);
    if (rc != HVD_OK) {
        hvi_gpu_stop_threads(p);
        free_all(p);
        return rc;
    }
    *out = &p->base;
    return HVD_OK;
}

struct hvi_device *hvi_nccl_device(const struct hvi_plane *p)
{
    return ((const struct hvi_gpu *)(const void *)((const char *)p -
                                                   offsetof(struct hvi_gpu, base)))
        ->dev;
}
