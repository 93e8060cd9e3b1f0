/*
 * GPU tensors in a membership: the plane is made at the first one (never in hvd_init), and
 * a run of GPU tensors goes on living after the engine has launched it.
 *
 * Life of such a run: the engine starts its stages (one launch each; hvi_gpu_queued), takes
 * its entries out of flight, marks the handles queued and lets go (hand_over). From then on
 * the names are free and waits in mode ENQUEUED are over. When the last launch is done,
 * the completion thread completes the handles.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "worker/core/ctx.h"
#include "worker/plane/nccl/nccl.h"

#define VERDICT_MS 1000 /* as in engine.c */
#define IN_FLIGHT 2 /* one runs, one is queued behind it: the device is never idle */
#define SETTLE_S 60 /* leaving waits that long for the device, then aborts */

/* ---- making the plane ------------------------------------------------------------ */

/* Under the lock: until the epoch has ended, or for VERDICT_MS. */
static void await_verdict(struct hvi_ctx *c)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += VERDICT_MS / 1000;
    while (atomic_load(&c->failed) == 0)
        if (pthread_cond_clockwait(&c->pset_cond, &c->lock, CLOCK_MONOTONIC, &until) ==
            ETIMEDOUT)
            return;
}

/* As when a CPU plane breaks (engine.c): the coordinator may know better why; if it does
 * not, it is told, and ends the epoch for all. */
static void on_broken(void *arg, enum hvd_status status, const char *text)
{
    struct hvi_ctx *c = arg;
    Hvi__Suspect m = HVI__SUSPECT__INIT;

    pthread_mutex_lock(&c->lock);
    if (c->mode != HVI_MODE_SOLO && !c->closing) {
        await_verdict(c);
        if (atomic_load(&c->failed) == 0) {
            m.epoch = c->epoch;
            m.text = (char *)(uintptr_t)text;
            hvi_conn_put(&c->conn, HVI_MSG_SUSPECT, &m);
            hvi_link_kick(c);
            await_verdict(c);
        }
    }
    pthread_mutex_unlock(&c->lock);
    hvi_ctx_fail(c, status, "%s", text);
}

/* A GPU that cannot be had back (reliability R6): the process would hang in the driver at its
 * exit, and hold up a job that could go on without it. */
static void on_stuck(const char *text)
{
    dprintf(STDERR_FILENO, "hvd: %s\n", text);
    _exit(EXIT_FAILURE);
}

/* The sets of hvd_config: known alike on all ranks since the membership began. */
static enum hvd_status list_sets(struct hvi_ctx *c, struct hvi_err *err)
{
    size_t n = (size_t)c->nstatic + 1;

    if (c->set_ranks == NULL)
        c->set_ranks = malloc(n * sizeof *c->set_ranks);
    if (c->set_sizes == NULL)
        c->set_sizes = malloc(n * sizeof *c->set_sizes);
    if (c->set_ranks == NULL || c->set_sizes == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    pthread_mutex_lock(&c->lock);
    for (int32_t i = 0; i < c->nstatic; i++) {
        c->set_ranks[i] = c->psets[i + 1]->ranks;
        c->set_sizes[i] = c->psets[i + 1]->size;
    }
    pthread_mutex_unlock(&c->lock);
    return HVD_OK;
}

static enum hvd_status make_plane(struct hvi_ctx *c, int32_t device_id,
                                  struct hvi_err *err)
{
    struct hvi_nccl_setup setup = {.device_id = device_id,
                                   .rank = c->rank,
                                   .size = c->size,
                                   .host = c->peers[c->rank].host,
                                   .cpu = c->plane,
                                   .broken = on_broken,
                                   .arg = c,
                                   .stuck = on_stuck};
    struct hvi_plane *gpu = NULL;
    enum hvd_status rc = list_sets(c, err);

    setup.set_ranks = c->set_ranks;
    setup.set_sizes = c->set_sizes;
    setup.nsets = c->nstatic;
    if (rc == HVD_OK)
        rc = hvi_nccl_new(&setup, &gpu, err);
    if (rc != HVD_OK)
        return rc;
    atomic_store(&c->gpu, gpu);
    if (atomic_load(&c->failed) != 0) /* it came between */
        gpu->ops->abort(gpu, (enum hvd_status)atomic_load(&c->failed));
    return HVD_OK;
}

enum hvd_status hvi_gpu_open(struct hvi_ctx *c, int32_t device_id, struct hvi_err *err)
{
    struct hvi_plane *gpu = atomic_load(&c->gpu);
    enum hvd_status rc = HVD_OK;

    if (gpu == NULL) {
        pthread_mutex_lock(&c->gpu_lock);
        if (atomic_load(&c->gpu) == NULL)
            rc = make_plane(c, device_id, err);
        pthread_mutex_unlock(&c->gpu_lock);
        if (rc != HVD_OK)
            return rc;
        gpu = atomic_load(&c->gpu);
    }
    if (hvi_nccl_device(gpu)->id != device_id)
        return hvi_fail(
            err, HVD_EUNSUPPORTED,
            "a tensor on cuda:%d, but rank %d has used cuda:%d: a rank uses "
            "one GPU (start one rank per GPU)",
            device_id, c->rank, hvi_nccl_device(gpu)->id);
    return HVD_OK;
}

enum hvd_status hvi_gpu_open_for(struct hvi_ctx *c, const struct hvd_op *ops,
                                 int32_t count, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    int device = ops[0].in.device_id;
    bool known = device != HVD_DEVICE_OF_DATA;

    if (!known && atomic_load(&c->gpu) != NULL)
        return HVD_OK; /* memory of another one is refused for itself */
    for (int32_t i = 0; rc == HVD_OK && !known && i < count; i++)
        rc = hvi_device_of_data(ops[i].in.data != NULL ? ops[i].in.data
                                                       : ops[i].out.data,
                                &known, &device, err);
    if (rc == HVD_OK && !known)
        rc = hvi_device_of_rank(c->local_rank, &device, err);
    return rc == HVD_OK ? hvi_gpu_open(c, device, err) : rc;
}

enum hvd_status hvi_gpu_open_joined(struct hvi_ctx *c, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;
    int device = c->join_device;

    if (atomic_load(&c->gpu) != NULL)
        return HVD_OK;
    if (device < 0)
        rc = hvi_device_of_rank(c->local_rank, &device, err);
    return rc == HVD_OK ? hvi_gpu_open(c, device, err) : rc;
}

void *hvi_op_memory(const struct hvi_op *op, size_t size_bytes, struct hvi_err *err)
{
    struct hvi_device *dev = NULL;
    void *data;

    if (op->device == HVD_CUDA)
        return hvi_device_get(op->device_id, &dev, err) == HVD_OK
                   ? hvi_device_alloc(dev, size_bytes, err)
                   : NULL;
    data = hvi_result_alloc(size_bytes);
    if (data == NULL)
        hvi_fail(err, HVD_ENOMEM, "no memory for the result (%zu bytes)", size_bytes);
    return data;
}

/* ---- how many -------------------------------------------------------------------- */

bool hvi_gpu_holds(const struct hvi_ctx *c)
{
    return atomic_load(&c->ndevice) >= IN_FLIGHT && atomic_load(&c->nwaiting) == 0;
}

/* Under the lock: readiness that was held back goes on its way. */
static void tell_ready(struct hvi_ctx *c)
{
    if ((c->nready > 0 || c->claimed) && !hvi_gpu_holds(c))
        hvi_link_kick(c);
}

void hvi_gpu_wait_begin(struct hvi_ctx *c)
{
    if (atomic_fetch_add(&c->nwaiting, 1) > 0 || atomic_load(&c->ndevice) < IN_FLIGHT)
        return;
    pthread_mutex_lock(&c->lock);
    tell_ready(c);
    pthread_mutex_unlock(&c->lock);
}

void hvi_gpu_wait_end(struct hvi_ctx *c)
{
    atomic_fetch_sub(&c->nwaiting, 1);
}

/* ---- runs on the device ---------------------------------------------------------- */

void hvi_gpu_begin(struct hvi_ctx *c, struct hvi_run *run)
{
    if (run->on_device)
        return;
    run->on_device = true;
    run->ctx = c;
    atomic_store(&run->nlaunches, 1);
    pthread_mutex_lock(&c->lock);
    atomic_fetch_add(&c->ndevice, 1);
    pthread_mutex_unlock(&c->lock);
}

/* Under `exec`: the pieces of the stage that was just queued are in ctx->x. */
void hvi_gpu_queued(void *arg, struct hvi_event *event)
{
    struct hvi_run *run = arg;
    struct hvi_exec *x = &run->ctx->x;

    atomic_fetch_add(&run->nlaunches, 1);
    for (int32_t i = 0; i < x->group.npieces; i++)
        if (x->ops[i] != NULL) {
            hvi_event_ref(event);
            x->ops[i]->queued = event;
        }
}

static void note_failure(struct hvi_run *run, enum hvd_status status, const char *text)
{
    struct hvi_ctx *c = run->ctx;

    if (status == HVD_OK)
        return;
    pthread_mutex_lock(&c->lock);
    if (run->device_status == HVD_OK) {
        run->device_status = status;
        /* the coordinator's word on who was lost is better than "aborted" */
        run->device_text = strdup(atomic_load(&c->failed) != 0 ? c->failed_text : text);
        if (atomic_load(&c->failed) != 0)
            run->device_status = (enum hvd_status)atomic_load(&c->failed);
    }
    pthread_mutex_unlock(&c->lock);
}

static void let_go(struct hvi_run *run)
{
    struct hvi_ctx *c = run->ctx;

    if (atomic_fetch_sub(&run->nlaunches, 1) != 1)
        return;
    for (uint32_t i = 0; i < run->nitems; i++)
        if (run->items[i].entry != NULL)
            hvi_entry_finish(run->items[i].entry, run->device_status, run->device_text);
    hvi_run_free(run);
    pthread_mutex_lock(&c->lock);
    atomic_fetch_sub(&c->ndevice, 1);
    tell_ready(c);
    pthread_cond_broadcast(&c->device_cond);
    hvi_bell_ring(c->bells, c->bell); /* a thread may wait for one of them */
    pthread_mutex_unlock(&c->lock);
}

void hvi_gpu_done(void *arg, enum hvd_status status, const char *text)
{
    note_failure(arg, status, text);
    let_go(arg);
}

void hvi_gpu_hand_over(struct hvi_run *run, enum hvd_status status, const char *text)
{
    note_failure(run, status, text);
    for (uint32_t i = 0; status == HVD_OK && i < run->nitems; i++) {
        struct hvi_entry *e = run->items[i].entry;

        for (uint32_t t = 0; e != NULL && t < e->req->ntensors; t++)
            hvi_op_set_queued(e->ops[t]);
    }
    let_go(run);
}

void hvi_gpu_settle(struct hvi_ctx *c)
{
    struct hvi_plane *gpu = atomic_load(&c->gpu);
    struct timespec until;
    bool aborted = false;

    if (gpu == NULL)
        return;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += SETTLE_S;
    pthread_mutex_lock(&c->lock);
    while (atomic_load(&c->ndevice) > 0) {
        if (aborted) {
            pthread_cond_wait(&c->device_cond, &c->lock); /* an abort ends: watch.c */
            continue;
        }
        if (pthread_cond_clockwait(&c->device_cond, &c->lock, CLOCK_MONOTONIC,
                                   &until) == ETIMEDOUT) {
            pthread_mutex_unlock(&c->lock);
            gpu->ops->abort(gpu, HVD_ESHUTDOWN);
            pthread_mutex_lock(&c->lock);
            aborted = true;
        }
    }
    pthread_mutex_unlock(&c->lock);
}
