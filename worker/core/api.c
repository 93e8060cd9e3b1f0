/*
 * The installed API over one process-wide context. Every call takes a reference of it,
 * so that hvd_shutdown in one thread cannot free what another waits in.
 */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <hvd/hvd.h>

#include "proto/base/clock.h"
#include "proto/base/log.h"
#include "proto/base/names.h"
#include "worker/core/ctx.h"
#include "worker/core/timeline.h"
#include "worker/plane/nccl/device.h"

static struct {
    pthread_mutex_t life; /* hvd_init and hvd_shutdown, one at a time */
    pthread_mutex_t lock; /* ctx */
    struct hvi_ctx *ctx;  /* NULL: down */
    _Atomic int forked;
    pthread_once_t once;
} g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_MUTEX_INITIALIZER, NULL, 0,
       PTHREAD_ONCE_INIT};

static _Thread_local struct hvi_err last;

/* ---- process --------------------------------------------------------------------- */

static void in_child(void)
{
    atomic_store(&g.forked, 1);
    pthread_mutex_init(&g.life, NULL);
    pthread_mutex_init(&g.lock, NULL);
    hvi_op_forked();
    if (g.ctx != NULL)
        hvi_ctx_forked(g.ctx);
}

static void at_exit(void)
{
    hvd_shutdown();
}

static void setup_process(void)
{
    hvi_log_setup("hvd", HVI_LOG_OFF);
    pthread_atfork(NULL, NULL, in_child);
    atexit(at_exit);
}

static enum hvd_status forked(void)
{
    return hvi_fail(
        &last, HVD_EFORKED,
        "hvd is not usable in a forked child; start new processes with exec");
}

/* A reference to the running job; NULL with the status in *rc. */
static struct hvi_ctx *enter(enum hvd_status *rc)
{
    struct hvi_ctx *c;

    if (atomic_load(&g.forked)) {
        *rc = forked();
        return NULL;
    }
    pthread_mutex_lock(&g.lock);
    c = g.ctx;
    if (c != NULL)
        atomic_fetch_add(&c->refs, 1);
    pthread_mutex_unlock(&g.lock);
    *rc = c != NULL ? HVD_OK : hvi_fail(&last, HVD_ESTATE, "call hvd_init first");
    return c;
}

static bool equal_sets(const int32_t *a, const int32_t *b, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t k = 0;

        while (k < count && b[k] != a[i])
            k++;
        if (k == count)
            return false;
    }
    return true;
}

/* Here and not only at the coordinator, where it would be the end of the job. */
static enum hvd_status check_sets(const struct hvd_config *config)
{
    for (int32_t i = 0; i < config->nsets; i++) {
        const int32_t *ranks = config->set_ranks[i];
        int32_t count = config->set_sizes[i];

        if (count < 1 || ranks == NULL)
            return hvi_fail(&last, HVD_EINVAL, "hvd_config: process set %d is empty",
                            i + 1);
        for (int32_t k = 0; k < i; k++)
            if (config->set_sizes[k] == count &&
                equal_sets(config->set_ranks[k], ranks, count))
                return hvi_fail(
                    &last, HVD_EDUPLICATE,
                    "hvd_config: process sets %d and %d have the same ranks", k + 1,
                    i + 1);
    }
    return HVD_OK;
}

static enum hvd_status check_config(const struct hvd_config *config)
{
    if (config == NULL)
        return HVD_OK;
    if (config->size < offsetof(struct hvd_config, nranks) + sizeof config->nranks)
        return hvi_fail(&last, HVD_EINVAL,
                        "hvd_config.size is %u, not sizeof(struct hvd_config)",
                        config->size);
    if (config->nsets < 0 || config->nranks < 0 ||
        (config->nranks > 0 && config->ranks == NULL) ||
        (config->nsets > 0 && (config->set_ranks == NULL || config->set_sizes == NULL)))
        return hvi_fail(&last, HVD_EINVAL, "hvd_config: a list is NULL or negative");
    return check_sets(config);
}

enum hvd_status hvd_init(const struct hvd_config *config)
{
    struct hvi_ctx *c = NULL;
    struct hvi_ctx *old = NULL;
    enum hvd_status rc = check_config(config);

    if (rc != HVD_OK)
        return rc;
    if (atomic_load(&g.forked))
        return forked();
    pthread_once(&g.once, setup_process);
    pthread_mutex_lock(&g.life);
    if (g.ctx != NULL && atomic_load(&g.ctx->failed) == 0)
        goto done; /* already up */
    old = g.ctx;
    if (old != NULL) { /* after a failure: leave first */
        pthread_mutex_lock(&g.lock);
        g.ctx = NULL;
        pthread_mutex_unlock(&g.lock);
        hvi_ctx_leave(old);
        hvi_ctx_unref(old);
    }
    rc = hvi_ctx_form(config, &c, &last);
    if (rc != HVD_OK)
        goto done;
    pthread_mutex_lock(&g.lock);
    g.ctx = c;
    pthread_mutex_unlock(&g.lock);
done:
    pthread_mutex_unlock(&g.life);
    return rc;
}

enum hvd_status hvd_shutdown(void)
{
    struct hvi_ctx *c;

    if (atomic_load(&g.forked))
        return forked();
    if (hvi_op_in_callback())
        return hvi_fail(&last, HVD_EDEADLOCK, "hvd_shutdown inside a done callback");
    pthread_mutex_lock(&g.life);
    pthread_mutex_lock(&g.lock);
    c = g.ctx;
    pthread_mutex_unlock(&g.lock);
    if (c != NULL) {
        hvi_ctx_leave(c);
        pthread_mutex_lock(&g.lock);
        g.ctx = NULL;
        pthread_mutex_unlock(&g.lock);
        hvi_ctx_unref(c);
    }
    pthread_mutex_unlock(&g.life);
    return HVD_OK;
}

enum hvd_state hvd_get_state(void)
{
    enum hvd_state state = HVD_DOWN;

    if (atomic_load(&g.forked))
        return HVD_FORKED;
    pthread_mutex_lock(&g.lock);
    if (g.ctx != NULL)
        state = atomic_load(&g.ctx->failed) != 0 ? HVD_FAILED : HVD_UP;
    pthread_mutex_unlock(&g.lock);
    return state;
}

uint32_t hvd_epoch(void)
{
    enum hvd_status rc;
    struct hvi_ctx *c = enter(&rc);
    uint32_t epoch = c != NULL ? c->epoch : 0;

    hvi_ctx_unref(c);
    return epoch;
}

#define HVI_FACT(function, field)                                                      \
    int function(void)                                                                 \
    {                                                                                  \
        enum hvd_status rc;                                                            \
        struct hvi_ctx *c = enter(&rc);                                                \
        int value = c != NULL ? (int)c->field : (int)rc;                               \
                                                                                       \
        hvi_ctx_unref(c);                                                              \
        return value;                                                                  \
    }
HVI_FACT(hvd_rank, rank)
HVI_FACT(hvd_size, size)
HVI_FACT(hvd_local_rank, local_rank)
HVI_FACT(hvd_local_size, local_size)
HVI_FACT(hvd_cross_rank, cross_rank)
HVI_FACT(hvd_cross_size, cross_size)
HVI_FACT(hvd_is_homogeneous, homogeneous)

int hvd_feature(const char *name)
{
    bool enabled = name != NULL && strncmp(name, "enabled:", 8) == 0;
    enum hvd_status rc;
    struct hvi_ctx *c;
    bool gpu;
    int value;

    if (name == NULL)
        return 0;
    if (strcmp(name, "version:nccl") == 0)
        return hvi_nccl_known_version();
    if (!enabled)
        return strcmp(name, "shm") == 0 || strcmp(name, "tcp") == 0 ||
               strcmp(name, "nccl") == 0 || strcmp(name, "cuda") == 0;
    c = enter(&rc);
    gpu = c != NULL && atomic_load(&c->gpu) != NULL &&
          (strcmp(name + 8, "nccl") == 0 || strcmp(name + 8, "cuda") == 0);
    value = gpu || (c != NULL && strcmp(c->plane->ops->name, name + 8) == 0);
    hvi_ctx_unref(c);
    return value;
}

int hvd_abi_version(void)
{
    return HVD_ABI_VERSION;
}

const char *hvd_version_string(void)
{
    return HVI_VERSION;
}

/* ---- process sets ---------------------------------------------------------------- */

static enum hvd_status check_set(const struct hvi_ctx *c, const int32_t *ranks,
                                 int32_t n)
{
    if (ranks == NULL || n < 1 || n > c->size)
        return hvi_fail(&last, HVD_EINVAL, "a process set has 1 to %d ranks, not %d",
                        c->size, n);
    for (int32_t i = 0; i < n; i++) {
        if (ranks[i] < 0 || ranks[i] >= c->size)
            return hvi_fail(&last, HVD_EINVAL, "rank %d is not in this job of %d ranks",
                            ranks[i], c->size);
        for (int32_t k = 0; k < i; k++)
            if (ranks[k] == ranks[i])
                return hvi_fail(&last, HVD_EINVAL, "rank %d is named twice", ranks[i]);
    }
    return HVD_OK;
}

static bool same_ranks(const struct hvi_pset *set, const int32_t *ranks, int32_t n)
{
    if (set->removed || set->size != n)
        return false;
    for (int32_t i = 0; i < n; i++) {
        bool found = false;

        for (int32_t k = 0; k < n; k++)
            found |= set->ranks[k] == ranks[i];
        if (!found)
            return false;
    }
    return true;
}

/* A job of one rank decides alone. Under ctx->lock. */
static void answer_solo(struct hvi_ctx *c, uint32_t type, const void *body)
{
    c->pset_call.answered = true;
    c->pset_call.status = HVD_OK;
    if (type == HVI_MSG_PSET_ADD) {
        const Hvi__PsetAdd *m = body;

        c->pset_call.id = c->psets[c->npsets - 1]->id + 1;
        c->pset_call.status =
            hvi_pset_insert(c, c->pset_call.id, m->ranks, (int32_t)m->n_ranks);
    } else {
        const Hvi__PsetRemove *m = body;

        hvi_pset_find(c, (int32_t)m->pset)->removed = true;
    }
}

/* Sends the request and waits for the answer of all. Under ctx->lock. */
static enum hvd_status call_pset(struct hvi_ctx *c, uint32_t type, const void *body,
                                 int32_t *out_id)
{
    enum hvd_status rc;

    while (c->pset_call.busy) /* another thread's call: one after the other */
        pthread_cond_wait(&c->pset_cond, &c->lock);
    if (c->closing)
        return hvi_fail(&last, HVD_ESHUTDOWN, "hvd_shutdown has been called");
    if (atomic_load(&c->failed) != 0)
        return hvi_fail(&last, (enum hvd_status)atomic_load(&c->failed), "%s",
                        c->failed_text);
    if (c->ngone > 0)
        return hvi_fail(&last, HVD_ESHUTDOWN, "a rank has left the job (hvd_shutdown)");
    memset(&c->pset_call, 0, sizeof c->pset_call);
    c->pset_call.busy = true;
    if (c->mode == HVI_MODE_SOLO) {
        answer_solo(c, type, body);
    } else {
        hvi_negotiate_flush(c);
        rc = hvi_conn_put(&c->conn, type, body);
        if (rc != HVD_OK) {
            c->pset_call.answered = true;
            c->pset_call.status = rc;
        }
        hvi_link_kick(c);
    }
    while (!c->pset_call.answered)
        pthread_cond_wait(&c->pset_cond, &c->lock);
    rc = c->pset_call.status;
    if (rc == HVD_OK && out_id != NULL)
        *out_id = c->pset_call.id;
    if (rc != HVD_OK)
        hvi_fail(&last, rc, "%s",
                 c->pset_call.text[0] != '\0' ? c->pset_call.text
                                              : hvi_status_text(rc));
    c->pset_call.busy = false;
    pthread_cond_broadcast(&c->pset_cond);
    return rc;
}

enum hvd_status hvd_pset_add(const int32_t *ranks, int32_t nranks, int32_t *out_id)
{
    enum hvd_status rc;
    struct hvi_ctx *c = enter(&rc);
    Hvi__PsetAdd m = HVI__PSET_ADD__INIT;

    if (c == NULL)
        return rc;
    rc = out_id != NULL ? check_set(c, ranks, nranks)
                        : hvi_fail(&last, HVD_EINVAL, "out_id is NULL");
    pthread_mutex_lock(&c->lock);
    for (int32_t i = 0; rc == HVD_OK && i < c->npsets; i++)
        if (same_ranks(c->psets[i], ranks, nranks))
            rc = hvi_fail(&last, HVD_EDUPLICATE,
                          "process set %d has the same ranks already", c->psets[i]->id);
    if (rc == HVD_OK) {
        m.epoch = c->epoch;
        m.n_ranks = (size_t)nranks;
        m.ranks = (int32_t *)(uintptr_t)ranks;
        rc = call_pset(c, HVI_MSG_PSET_ADD, &m, out_id);
    }
    pthread_mutex_unlock(&c->lock);
    hvi_ctx_unref(c);
    return rc;
}

enum hvd_status hvd_pset_remove(int32_t id)
{
    enum hvd_status rc;
    struct hvi_ctx *c = enter(&rc);
    Hvi__PsetRemove m = HVI__PSET_REMOVE__INIT;

    if (c == NULL)
        return rc;
    pthread_mutex_lock(&c->lock);
    if (id == 0)
        rc = hvi_fail(&last, HVD_EINVAL, "process set 0 holds every rank and stays");
    else if (hvi_pset_find(c, id) == NULL)
        rc = hvi_fail(&last, HVD_EINVAL, "process set %d does not exist", id);
    if (rc == HVD_OK) {
        m.epoch = c->epoch;
        m.pset = (uint32_t)id;
        rc = call_pset(c, HVI_MSG_PSET_REMOVE, &m, NULL);
    }
    pthread_mutex_unlock(&c->lock);
    hvi_ctx_unref(c);
    return rc;
}

/* The set under ctx->lock, or NULL with the lock released. */
static struct hvi_pset *enter_set(int32_t id, struct hvi_ctx **out, enum hvd_status *rc)
{
    struct hvi_ctx *c = enter(rc);
    struct hvi_pset *set;

    if (c == NULL)
        return NULL;
    pthread_mutex_lock(&c->lock);
    set = hvi_pset_find(c, id);
    if (set == NULL) {
        pthread_mutex_unlock(&c->lock);
        hvi_ctx_unref(c);
        *rc = hvi_fail(&last, HVD_EINVAL, "process set %d does not exist", id);
        return NULL;
    }
    *out = c;
    return set;
}

static int leave_set(struct hvi_ctx *c, int value)
{
    pthread_mutex_unlock(&c->lock);
    hvi_ctx_unref(c);
    return value;
}

int hvd_pset_size(int32_t id)
{
    struct hvi_ctx *c;
    enum hvd_status rc;
    struct hvi_pset *set = enter_set(id, &c, &rc);

    return set != NULL ? leave_set(c, set->size) : (int)rc;
}

int hvd_pset_rank(int32_t id)
{
    struct hvi_ctx *c;
    enum hvd_status rc;
    struct hvi_pset *set = enter_set(id, &c, &rc);

    if (set == NULL)
        return rc;
    if (set->me < 0)
        hvi_fail(&last, HVD_EINVAL, "rank %d is not in process set %d", c->rank, id);
    return leave_set(c, set->me >= 0 ? set->me : (int)HVD_EINVAL);
}

int hvd_pset_included(int32_t id)
{
    struct hvi_ctx *c;
    enum hvd_status rc;
    struct hvi_pset *set = enter_set(id, &c, &rc);

    return set != NULL ? leave_set(c, set->me >= 0) : (int)rc;
}

int hvd_pset_ranks(int32_t id, int32_t *out, int32_t cap)
{
    struct hvi_ctx *c;
    enum hvd_status rc;
    struct hvi_pset *set;

    if (cap > 0 && out == NULL)
        return hvi_fail(&last, HVD_EINVAL, "out is NULL");
    set = enter_set(id, &c, &rc);
    if (set == NULL)
        return rc;
    for (int32_t i = 0; i < set->size && i < cap; i++)
        out[i] = set->ranks[i];
    return leave_set(c, set->size);
}

int hvd_pset_ids(int32_t *out, int32_t cap)
{
    enum hvd_status rc;
    struct hvi_ctx *c;
    int n = 0;

    if (cap > 0 && out == NULL)
        return hvi_fail(&last, HVD_EINVAL, "out is NULL");
    c = enter(&rc);
    if (c == NULL)
        return rc;
    pthread_mutex_lock(&c->lock);
    for (int32_t i = 0; i < c->npsets; i++) {
        if (c->psets[i]->removed)
            continue;
        if (n < cap)
            out[n] = c->psets[i]->id;
        n++;
    }
    return leave_set(c, n);
}

int hvd_pset_count(void)
{
    return hvd_pset_ids(NULL, 0);
}

/* ---- asynchronous collectives ---------------------------------------------------- */

/* kick false: the caller waits at once and runs the group itself. */
static enum hvd_status enqueue(const struct hvd_op *op, bool kick, hvd_handle *out)
{
    enum hvd_status rc;
    struct hvi_ctx *c = enter(&rc);

    if (c == NULL)
        return rc;
    rc = hvi_submit(c, op, 1, NULL, false, kick, out, &last);
    hvi_ctx_unref(c);
    return rc;
}

enum hvd_status hvd_enqueue(const struct hvd_op *op, hvd_handle *out)
{
    return enqueue(op, true, out);
}

enum hvd_status hvd_enqueue_group(const struct hvd_op *ops, int32_t count,
                                  const char *name, hvd_handle *out)
{
    enum hvd_status rc;
    struct hvi_ctx *c = enter(&rc);

    if (c == NULL)
        return rc;
    rc = hvi_submit(c, ops, count, name, true, true, out, &last);
    hvi_ctx_unref(c);
    return rc;
}

enum hvd_status hvd_enqueue_join(int32_t device_id, hvd_handle *out)
{
    enum hvd_status rc;
    struct hvi_ctx *c = enter(&rc);

    if (c == NULL)
        return rc;
    rc = out != NULL ? hvi_submit_join(c, device_id, out, &last)
                     : hvi_fail(&last, HVD_EINVAL, "out is NULL");
    hvi_ctx_unref(c);
    return rc;
}

/* A reference; NULL with last_error. */
static struct hvi_op *find(hvd_handle handle, enum hvd_status *rc)
{
    struct hvi_op *op = NULL;

    if (atomic_load(&g.forked)) {
        *rc = forked();
        return NULL;
    }
    op = hvi_handle_get(handle);
    *rc = op != NULL
              ? HVD_OK
              : hvi_fail(&last, HVD_EHANDLE, "handle %lld is unknown or was released",
                         (long long)handle);
    return op;
}

static enum hvd_status status_of(const struct hvi_op *op)
{
    enum hvd_status rc = hvi_op_status(op);

    if (rc < 0)
        hvi_fail(&last, rc, "%s", op->error != NULL ? op->error : hvi_status_text(rc));
    return rc;
}

enum hvd_status hvd_poll(hvd_handle handle)
{
    enum hvd_status rc;
    struct hvi_op *op = find(handle, &rc);

    if (op == NULL)
        return rc;
    rc = status_of(op);
    hvi_op_unref(op);
    return rc;
}

/* HVD_OK when waiting in this mode is over and it has not failed. */
static enum hvd_status settled_status(const struct hvi_op *op, enum hvd_wait_mode mode)
{
    enum hvd_status rc = status_of(op);

    return rc == HVD_INPROGRESS && hvi_op_settled(op, mode) ? HVD_OK : rc;
}

static enum hvd_status wait_op(struct hvi_op *op, enum hvd_wait_mode mode,
                               int64_t timeout_ms)
{
    int64_t deadline = timeout_ms < 0 ? -1 : hvi_now_ms() + timeout_ms;
    enum hvd_status rc;
    struct hvi_ctx *c;

    if (hvi_op_settled(op, mode) || timeout_ms == 0)
        return settled_status(op, mode);
    if (hvi_op_in_callback())
        return hvi_fail(&last, HVD_EDEADLOCK,
                        "waiting inside a done callback would wait for itself");
    c = enter(&rc);
    if (c == NULL) /* shut down meanwhile: it is complete */
        return hvi_op_settled(op, mode) ? settled_status(op, mode) : rc;
    rc = hvi_engine_run(c, op, mode, deadline);
    if (rc == HVD_ETIMEDOUT)
        hvi_describe_wait(c, op, &last);
    else if (rc == HVD_EINTR)
        hvi_fail(&last, rc, "a signal came while waiting; the handle stays valid");
    else
        rc = settled_status(op, mode);
    hvi_ctx_unref(c);
    return rc;
}

enum hvd_status hvd_wait(hvd_handle handle, enum hvd_wait_mode mode, int64_t timeout_ms)
{
    enum hvd_status rc;
    struct hvi_op *op = find(handle, &rc);

    if (op == NULL)
        return rc;
    if (mode != HVD_WAIT_DONE && mode != HVD_WAIT_ENQUEUED)
        rc = hvi_fail(&last, HVD_EINVAL, "wait mode %d is unknown", (int)mode);
    else
        rc = wait_op(op, mode, timeout_ms);
    hvi_op_unref(op);
    return rc;
}

enum hvd_status hvd_wait_all(const hvd_handle *handles, int32_t count,
                             enum hvd_wait_mode mode, int64_t timeout_ms)
{
    int64_t deadline = timeout_ms < 0 ? -1 : hvi_now_ms() + timeout_ms;
    enum hvd_status first = HVD_OK;
    struct hvi_err text = {{0}};

    if (count < 0 || (count > 0 && handles == NULL))
        return hvi_fail(&last, HVD_EINVAL, "handles is NULL or count negative");
    if (mode != HVD_WAIT_DONE && mode != HVD_WAIT_ENQUEUED)
        return hvi_fail(&last, HVD_EINVAL, "wait mode %d is unknown", (int)mode);
    for (int32_t i = 0; i < count; i++) {
        int64_t left = deadline < 0 ? -1 : hvi_ms_left(deadline);
        enum hvd_status rc;

        i += atomic_load(&g.forked) ? 0 : hvi_handles_done(handles + i, count - i);
        if (i == count)
            break;
        rc = hvd_wait(handles[i], mode, left);
        if (rc == HVD_INPROGRESS)
            rc = hvi_fail(&last, HVD_ETIMEDOUT, "timed out");
        if (rc == HVD_ETIMEDOUT || rc == HVD_EINTR)
            return rc;
        if (rc != HVD_OK && first == HVD_OK) {
            first = rc;
            text = last;
        }
    }
    if (first != HVD_OK)
        last = text;
    return first;
}

enum hvd_status hvd_handle_error(hvd_handle handle, char *buf, size_t cap)
{
    enum hvd_status rc;
    struct hvi_op *op;

    if (buf == NULL || cap == 0)
        return hvi_fail(&last, HVD_EINVAL, "buf is NULL or has no room");
    op = find(handle, &rc);
    if (op == NULL)
        return rc;
    rc = hvi_op_status(op);
    snprintf(buf, cap, "%s",
             rc >= 0 ? "" : (op->error != NULL ? op->error : hvi_status_text(rc)));
    hvi_op_unref(op);
    return HVD_OK;
}

enum hvd_status hvd_release(hvd_handle handle)
{
    if (atomic_load(&g.forked))
        return forked();
    if (hvi_handle_drop(handle) != HVD_OK)
        return hvi_fail(&last, HVD_EHANDLE, "handle %lld is unknown or was released",
                        (long long)handle);
    return HVD_OK;
}

enum hvd_status hvd_release_all(const hvd_handle *handles, int32_t count)
{
    enum hvd_status first = HVD_OK;

    if (count < 0 || (count > 0 && handles == NULL))
        return hvi_fail(&last, HVD_EINVAL, "handles is NULL or count negative");
    for (int32_t i = 0; i < count; i++) {
        enum hvd_status rc = hvd_release(handles[i]);

        if (first == HVD_OK)
            first = rc;
    }
    return first;
}

typedef enum hvd_status order_fn(struct hvi_event *e, void *object,
                                 struct hvi_err *err);

/* Results of CPU tensors are there when the handle is done, those of GPU tensors after an
 * event once they are queued. */
static enum hvd_status order_after(hvd_handle handle, void *object, order_fn *order)
{
    enum hvd_status rc;
    struct hvi_op *op = find(handle, &rc);

    if (op == NULL || op->device != HVD_CUDA) {
        hvi_op_unref(op);
        return rc;
    }
    rc = settled_status(op, HVD_WAIT_ENQUEUED);
    if (rc == HVD_INPROGRESS)
        hvi_fail(&last, rc, "the operation is not queued yet: hvd_wait() for it first");
    else if (rc == HVD_OK && op->queued != NULL)
        rc = order(op->queued, object, &last);
    hvi_op_unref(op);
    return rc;
}

enum hvd_status hvd_stream_wait(hvd_handle handle, void *custream)
{
    return order_after(handle, custream, hvi_event_stream_wait);
}

enum hvd_status hvd_ctx_wait(hvd_handle handle, void *cuctx)
{
    return order_after(handle, cuctx, hvi_event_ctx_wait);
}

/* A completed op, or one whose work is queued; or NULL. */
static struct hvi_op *find_done(hvd_handle handle, enum hvd_status *rc)
{
    struct hvi_op *op = find(handle, rc);

    if (op == NULL)
        return NULL;
    *rc = settled_status(op, HVD_WAIT_ENQUEUED);
    if (*rc == HVD_OK)
        return op;
    if (*rc == HVD_INPROGRESS)
        hvi_fail(&last, *rc, "the operation has not completed");
    hvi_op_unref(op);
    return NULL;
}

enum hvd_status hvd_result(hvd_handle handle, struct hvd_tensor *out)
{
    enum hvd_status rc;
    struct hvi_op *op;

    if (out == NULL)
        return hvi_fail(&last, HVD_EINVAL, "out is NULL");
    op = find_done(handle, &rc);
    if (op == NULL)
        return rc;
    *out = (struct hvd_tensor){.data = op->out,
                               .dims = op->out_dims,
                               .ndim = op->out_ndim,
                               .dtype = (int32_t)op->dtype,
                               .device = op->device,
                               .device_id = op->device_id};
    hvi_op_unref(op); /* the handle keeps it */
    return HVD_OK;
}

enum hvd_status hvd_result_take(hvd_handle handle, void **out)
{
    enum hvd_status rc;
    struct hvi_op *op;

    if (out == NULL)
        return hvi_fail(&last, HVD_EINVAL, "out is NULL");
    op = find_done(handle, &rc);
    if (op == NULL)
        return rc;
    if (op->owned == NULL && op->out == NULL) {
        *out = NULL; /* no elements */
    } else if (op->owned == NULL) {
        rc = hvi_fail(&last, HVD_EINVAL,
                      "the result lies in the caller's memory, or was "
                      "taken already");
    } else {
        *out = op->owned;
        op->owned = NULL;
    }
    hvi_op_unref(op);
    return rc;
}

void hvd_buffer_free(void *data)
{
    hvi_result_free(data);
}

void hvd_buffer_free_after(void *data, const struct hvd_ready *last_use)
{
    if (last_use == NULL || !hvi_device_free_after(data, last_use))
        hvi_result_free(data);
}

int hvd_result_splits(hvd_handle handle, int64_t *out, int32_t cap)
{
    enum hvd_status rc;
    struct hvi_op *op;
    int n;

    if (cap > 0 && out == NULL)
        return hvi_fail(&last, HVD_EINVAL, "out is NULL");
    op = find_done(handle, &rc);
    if (op == NULL)
        return rc;
    n = op->rows != NULL ? op->nmembers : 0;
    for (int32_t i = 0; i < n && i < cap; i++)
        out[i] = op->rows[i];
    hvi_op_unref(op);
    return n;
}

int hvd_result_last_joined(hvd_handle handle)
{
    enum hvd_status rc;
    struct hvi_op *op = find_done(handle, &rc);
    int rank;

    if (op == NULL)
        return rc;
    rank = op->kind == HVD_JOIN
               ? op->last_joined
               : (int)hvi_fail(&last, HVD_EINVAL, "the handle is not of a join");
    hvi_op_unref(op);
    return rank;
}

int hvd_eventfd(void)
{
    enum hvd_status rc;
    struct hvi_ctx *c = enter(&rc);

    if (c == NULL)
        return -1;
    hvi_ctx_unref(c);
    return hvi_done_fd();
}

int hvd_next_done(hvd_handle *out, int32_t cap)
{
    if (atomic_load(&g.forked))
        return forked();
    if (cap > 0 && out == NULL)
        return hvi_fail(&last, HVD_EINVAL, "out is NULL");
    return hvi_done_take(out, cap);
}

/* ---- blocking forms -------------------------------------------------------------- */

/* EINTR is the program's matter in hvd_wait; a blocking form goes on. */
static enum hvd_status finish(hvd_handle handle)
{
    enum hvd_status rc;

    do
        rc = hvd_wait(handle, HVD_WAIT_DONE, -1);
    while (rc == HVD_EINTR);
    return rc;
}

static enum hvd_status run(const struct hvd_op *op)
{
    hvd_handle handle = 0;
    enum hvd_status rc = enqueue(op, false, &handle);

    if (rc != HVD_OK)
        return rc;
    rc = finish(handle);
    hvi_handle_drop(handle);
    return rc;
}

static struct hvd_op vector_op(enum hvd_kind kind, const void *in, void *out,
                               const int64_t *count, enum hvd_dtype dtype,
                               const char *name)
{
    struct hvd_op op;

    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = kind;
    op.name = name;
    op.in = (struct hvd_tensor){.data = (void *)(uintptr_t)in,
                                .dims = count,
                                .ndim = 1,
                                .dtype = (int32_t)dtype};
    op.out = op.in;
    op.out.data = out;
    return op;
}

/* A blocking form must have somewhere to write. */
static enum hvd_status need_out(const void *out, int64_t count, const char *name)
{
    if (out != NULL || count <= 0)
        return HVD_OK;
    return hvi_fail(&last, HVD_EINVAL, "%s: the result pointer is NULL",
                    name != NULL ? name : "(unnamed)");
}

enum hvd_status hvd_allreduce(const void *in, void *out, int64_t count,
                              enum hvd_dtype dtype, enum hvd_reduce_op reduce_op,
                              const char *name)
{
    struct hvd_op op = vector_op(HVD_ALLREDUCE, in, out, &count, dtype, name);
    enum hvd_status rc = need_out(out, count, name);

    op.reduce_op = reduce_op;
    return rc == HVD_OK ? run(&op) : rc;
}

enum hvd_status hvd_broadcast(void *buf, int64_t count, enum hvd_dtype dtype,
                              int32_t root, const char *name)
{
    struct hvd_op op = vector_op(HVD_BROADCAST, buf, buf, &count, dtype, name);
    enum hvd_status rc = need_out(buf, count, name);

    op.root = root;
    return rc == HVD_OK ? run(&op) : rc;
}

enum hvd_status hvd_allgather(const void *in, int64_t count, void *out,
                              int64_t out_count, enum hvd_dtype dtype, const char *name)
{
    struct hvd_op op = vector_op(HVD_ALLGATHER, in, out, &count, dtype, name);
    size_t size = hvd_dtype_size(dtype);
    struct hvi_op *done;
    hvd_handle handle = 0;
    enum hvd_status rc = need_out(out, out_count, name);

    if (rc == HVD_OK && (out_count < 0 || out_count > INT64_MAX / 16))
        rc = hvi_fail(&last, HVD_EINVAL, "allgather: out_count is %lld",
                      (long long)out_count);
    if (rc != HVD_OK)
        return rc;
    op.out_capacity_bytes = (size_t)out_count * size;
    if (op.out.data == NULL)
        op.out.data = &handle; /* no elements: never written */
    rc = enqueue(&op, false, &handle);
    if (rc != HVD_OK)
        return rc;
    rc = finish(handle);
    done = hvi_handle_get(handle);
    if (rc == HVD_OK && done != NULL && done->out_dims[0] != out_count)
        rc = hvi_fail(&last, HVD_EINVAL,
                      "%s: out_count is %lld, all ranks together gave %lld",
                      name != NULL ? name : "allgather", (long long)out_count,
                      (long long)done->out_dims[0]);
    hvi_op_unref(done);
    hvi_handle_drop(handle);
    return rc;
}

enum hvd_status hvd_barrier(int32_t pset)
{
    struct hvd_op op;

    memset(&op, 0, sizeof op);
    op.size = sizeof op;
    op.kind = HVD_BARRIER;
    op.pset = pset;
    return run(&op);
}

enum hvd_status hvd_join(int32_t *out_last_rank)
{
    hvd_handle handle = 0;
    enum hvd_status rc = hvd_enqueue_join(0, &handle);

    if (rc != HVD_OK)
        return rc;
    rc = finish(handle);
    if (rc == HVD_OK && out_last_rank != NULL)
        *out_last_rank = hvd_result_last_joined(handle);
    hvi_handle_drop(handle);
    return rc;
}

/* ---- memory, errors, observability ----------------------------------------------- */

const char *hvd_last_error(void)
{
    return last.text;
}

const char *hvd_strerror(enum hvd_status status)
{
    return hvi_status_text(status);
}

enum hvd_status hvd_gpu_info(char *buf, size_t cap)
{
    if (buf == NULL || cap == 0)
        return hvi_fail(&last, HVD_EINVAL, "buf is NULL or has no room");
    hvi_device_report(buf, cap);
    return HVD_OK;
}

size_t hvd_dtype_size(enum hvd_dtype dtype)
{
    return hvi_dtype_size((uint32_t)dtype);
}

enum hvd_status hvd_timeline_start(const char *path, int32_t mark_cycles)
{
    enum hvd_status rc;
    struct hvi_ctx *c;

    if (path == NULL || path[0] == '\0')
        return hvi_fail(&last, HVD_EINVAL, "timeline: the path is NULL or empty");
    c = enter(&rc);
    if (c == NULL)
        return rc;
    rc = hvi_timeline_open(c, path, mark_cycles != 0, &last);
    hvi_ctx_unref(c);
    return rc;
}

enum hvd_status hvd_timeline_stop(void)
{
    enum hvd_status rc;
    struct hvi_ctx *c = enter(&rc);

    if (c == NULL)
        return rc;
    rc = hvi_timeline_close(c, &last);
    hvi_ctx_unref(c);
    return rc;
}

enum hvd_status hvd_get_stats(struct hvd_stats *out)
{
    enum hvd_status rc;
    struct hvi_ctx *c;
    uint32_t size;

    if (out == NULL || out->size < sizeof out->size)
        return hvi_fail(&last, HVD_EINVAL, "set hvd_stats.size before the call");
    c = enter(&rc);
    if (c == NULL)
        return rc;
    size = out->size < sizeof *out ? out->size : (uint32_t)sizeof *out;
    pthread_mutex_lock(&c->lock);
    memcpy(out, &c->stats, size);
    pthread_mutex_unlock(&c->lock);
    out->size = size;
    hvi_ctx_unref(c);
    return HVD_OK;
}
