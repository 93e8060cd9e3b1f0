/*
 * Running sealed groups, in order, by whoever holds `exec`: the engine thread, or a
 * thread inside hvd_wait, which saves the hand-over.
 *
 * Happy path: take the next run, cut it by dtype into plane groups, start and progress
 * each, take its entries out of flight, complete their handles. Between groups sleep on
 * the rank's doorbell. The engine thread parks on `cond` while nothing is in flight.
 *
 * Failure paths: a plane that refuses a group fails that group (every member refuses it
 * alike). A plane that breaks, or the end of the epoch, fails all that is in flight;
 * the coordinator's word on who was lost is awaited for VERDICT_MS, so that the text is
 * right.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "proto/base/assert.h"
#include "proto/base/clock.h"
#include "proto/base/names.h"
#include "worker/core/alloc.h"
#include "worker/core/ctx.h"
#include "worker/core/timeline.h"

#define VERDICT_MS 1000 /* a lost peer is reported within 0.5 s (R2) */
#define LET_COME_US 100 /* no loss beside a collective of what takes longer to submit */
#define STAGES_PER_SEQ 16u /* > dtypes: a mixed group runs once per dtype */

_Static_assert(STAGES_PER_SEQ > HVD_DTYPE_COUNT, "every dtype has a stage");

/* ---- one group ------------------------------------------------------------------- */

/* Output memory for a result whose size is now known. */
static void *result_memory(struct hvi_op *op, size_t size_bytes)
{
    struct hvd_tensor shape = {.dims = op->out_dims,
                               .ndim = op->out_ndim,
                               .dtype = (int32_t)op->dtype,
                               .device = op->device,
                               .device_id = op->device_id};

    if (op->user_out != NULL) {
        if (size_bytes <= op->out_capacity_bytes)
            return op->user_out;
        op->late = HVD_EINVAL;
        free(op->error);
        op->error = strdup("the output buffer is too small for the result");
        return NULL;
    }
    if (op->alloc != NULL) {
        void *p = op->alloc(op->arg, &shape, size_bytes);

        if (p == NULL)
            op->late = HVD_ENOMEM;
        return p;
    }
    op->owned = hvi_op_memory(op, size_bytes, NULL);
    if (op->owned == NULL)
        op->late = HVD_ENOMEM;
    return op->owned;
}

/* hvi_group.alloc: the cookie is the op. */
static void *on_alloc(void *cookie, const int64_t *rows, int32_t nmembers,
                      int64_t total_rows, size_t size_bytes)
{
    struct hvi_op *op = cookie;

    (void)rows;
    (void)nmembers;
    op->out_dims[0] = total_rows;
    if (op->row == 0 && op->device == HVD_CUDA)
        return NULL; /* no elements, and nothing to write them to */
    if (op->row == 0) {
        op->ghost_out = hvi_result_alloc(size_bytes);
        if (op->ghost_out == NULL)
            op->late = HVD_ENOMEM;
        return op->ghost_out;
    }
    op->out = result_memory(op, size_bytes);
    return op->out;
}

static enum hvd_status reserve(struct hvi_exec *x, int32_t n)
{
    int32_t cap = x->cap > 0 ? x->cap : 64;
    struct hvi_piece *pieces;
    struct hvi_op **ops;

    if (n <= x->cap)
        return HVD_OK;
    while (cap < n)
        cap *= 2;
    pieces = realloc(x->pieces, (size_t)cap * sizeof *pieces);
    if (pieces != NULL)
        x->pieces = pieces;
    ops = realloc(x->ops, (size_t)cap * sizeof *ops);
    if (ops != NULL)
        x->ops = ops;
    if (pieces == NULL || ops == NULL)
        return HVD_ENOMEM;
    x->cap = cap;
    return HVD_OK;
}

static bool prepare_reducescatter(struct hvi_op *op, const struct hvi_group *g)
{
    int64_t rows = op->dims[0] / g->nmembers + (g->me < op->dims[0] % g->nmembers);
    size_t bytes;

    op->out_dims[0] = rows;
    if (op->out != NULL)
        return true;
    bytes = (size_t)(rows * op->row) * hvi_dtype_size(op->dtype);
    op->out = result_memory(op, bytes);
    if (op->out != NULL)
        return true;
    /* peers count on this rank: take part, and throw the result away */
    op->owned = hvi_result_alloc(bytes);
    op->out = op->owned;
    return op->out != NULL;
}

/* A tensor on the GPU: the plane finds the place of a result of unknown size. */
static void device_piece(struct hvi_exec *x, struct hvi_op *op, struct hvi_piece *p)
{
    p->in = op->in != NULL ? op->in : op->out != NULL ? op->out : x->nowhere;
    p->out = op->out;
    p->count = op->count;
    p->row = op->row;
    p->nrows = op->ndim > 0 ? op->dims[0] : 0;
    p->splits = op->splits;
    p->rows = op->rows;
    p->cookie = op;
    p->ready = op->ready;
    if (op->kind == HVD_REDUCESCATTER) {
        op->out_dims[0] = op->dims[0] / x->group.nmembers +
                          (x->group.me < op->dims[0] % x->group.nmembers);
        if (op->out_dims[0] * op->row == 0)
            p->out = x->nowhere;
    } else if (op->out == NULL && op->rows == NULL) {
        p->out = x->nowhere; /* no elements */
    }
}

static int64_t shape_row(const struct hvi_shape *s)
{
    int64_t row = 1;

    for (uint32_t i = 1; i < s->ndim; i++)
        row *= s->dims[i];
    return row;
}

static bool add_piece(struct hvi_exec *x, struct hvi_op *op, const struct hvi_shape *s)
{
    struct hvi_piece *p;
    int64_t bytes;

    if (reserve(x, x->group.npieces + 1) != HVD_OK)
        return false;
    p = &x->pieces[x->group.npieces];
    memset(p, 0, sizeof *p);
    if (op == NULL) { /* joined */
        p->row = shape_row(s);
        if (hvi_shape_count(s, &p->count, &bytes) != HVD_OK)
            return false;
    } else if (op->device == HVD_CUDA) {
        device_piece(x, op, p);
    } else {
        static const char nothing[64];

        if (op->kind == HVD_REDUCESCATTER && !prepare_reducescatter(op, &x->group))
            return false;
        p->in = op->in != NULL ? op->in : nothing; /* NULL would mean joined */
        p->out = op->out;
        if (op->out == NULL && op->kind != HVD_ALLGATHER && op->kind != HVD_ALLTOALL) {
            HVI_ASSERT(op->count == 0 || op->kind == HVD_BARRIER);
            p->out = x->nowhere;
        }
        p->count = op->count;
        p->row = op->row;
        if (op->row == 0 && op->kind != HVD_REDUCESCATTER && op->rows != NULL) {
            p->in = op->ghost != NULL ? op->ghost : nothing;
            p->count = op->dims[0];
            p->row = 1;
        }
        p->splits = op->splits;
        p->rows = op->rows;
        p->cookie = op;
        p->in_mem = hvi_region_block(op->in_region);
        p->out_mem = hvi_region_block(op->out_region);
    }
    x->ops[x->group.npieces++] = op;
    return true;
}

static int32_t root_index(const struct hvi_pset *set, int32_t root)
{
    for (int32_t i = 0; i < set->size; i++)
        if (set->ranks[i] == root)
            return i;
    return 0;
}

/* The pieces of x->run with dtype x->stage. false: no memory. */
static bool build_group(struct hvi_exec *x)
{
    const struct hvi_run *run = x->run;
    const struct hvi_request *first = run->items[0].req;
    struct hvi_group *g = &x->group;

    memset(g, 0, sizeof *g);
    g->seq = (run->seq * STAGES_PER_SEQ + (uint64_t)x->stage) * HVI_SEQ_STEP;
    g->kind = first->kind;
    g->reduce_op = first->reduce_op;
    g->dtype = (uint32_t)x->stage;
    g->prescale = first->prescale;
    g->postscale = first->postscale;
    g->root = root_index(run->pset, first->root);
    g->nmembers = run->pset->size;
    g->members = run->pset->ranks;
    g->me = run->pset->me;
    g->alloc = on_alloc;
    if (first->device == HVD_CUDA) {
        g->queued = hvi_gpu_queued;
        g->done = hvi_gpu_done;
        g->arg = x->run;
    }
    for (uint32_t i = 0; i < run->nitems; i++) {
        const struct hvi_run_item *item = &run->items[i];

        for (uint32_t t = 0; t < item->req->ntensors; t++) {
            struct hvi_op *op = item->entry != NULL ? item->entry->ops[t] : NULL;

            if (item->req->shapes[t].dtype == g->dtype &&
                !add_piece(x, op, &item->req->shapes[t]))
                return false;
        }
    }
    g->pieces = x->pieces;
    return true;
}

static void finish_run(struct hvi_ctx *c, enum hvd_status status, const char *text)
{
    struct hvi_run *run = c->x.run;

    c->x.run = NULL;
    c->x.started = false;
    hvi_timeline_end(c, run, status);
    pthread_mutex_lock(&c->lock);
    c->stats.groups_run++;
    for (uint32_t i = 0; i < run->nitems; i++) {
        struct hvi_entry *e = run->items[i].entry;

        if (e == NULL)
            continue;
        hvi_negotiate_remove(c, e);
        if (status == HVD_OK)
            c->stats.ops_completed += e->req->ntensors;
        else
            c->stats.ops_failed += e->req->ntensors;
        if (e->req->kind == HVD_ALLREDUCE || e->req->kind == HVD_REDUCESCATTER)
            c->stats.bytes_reduced += (uint64_t)hvi_request_bytes(e->req);
    }
    pthread_mutex_unlock(&c->lock);
    if (run->on_device) {
        hvi_gpu_hand_over(run, status, text);
        return;
    }
    for (uint32_t i = 0; i < run->nitems; i++)
        if (run->items[i].entry != NULL)
            hvi_entry_finish(run->items[i].entry, status, text);
    hvi_run_free(run);
}

/* Everything in flight ends with the epoch. Under exec. */
static void fail_everything(struct hvi_ctx *c)
{
    enum hvd_status status = (enum hvd_status)atomic_load(&c->failed);
    struct hvi_link list;
    struct hvi_link *it;
    struct hvi_link *tmp;
    struct hvi_entry *e;
    struct hvi_op *join;

    /* before any of them completes: peers may be at work on their tensors (plane.h) */
    if (c->plane != NULL) {
        c->plane->ops->abort(c->plane, status);
        if (c->plane->ops->take_back != NULL)
            c->plane->ops->take_back(c->plane);
    }
    hvi_list_init(&list);
    if (c->x.run != NULL && c->x.run->on_device)
        finish_run(c, status, c->failed_text); /* parts may be on the device */
    pthread_mutex_lock(&c->lock);
    if (c->x.run != NULL)
        hvi_run_free(c->x.run);
    c->x.run = NULL;
    c->x.started = false;
    HVI_LIST_EACH(&c->runs, it, tmp)
    {
        hvi_run_free(HVI_CONTAINER(it, struct hvi_run, link));
    }
    atomic_store(&c->nruns, 0);
    HVI_LIST_EACH(&c->lanes, it, tmp)
    {
        hvi_negotiate_remove(c, HVI_CONTAINER(it, struct hvi_entry, link));
        hvi_list_append(&list, it);
    }
    HVI_LIST_EACH(&c->inflight, it, tmp)
    {
        e = HVI_CONTAINER(it, struct hvi_entry, link);
        hvi_negotiate_remove(c, e);
        c->stats.ops_failed += e->req->ntensors;
        hvi_list_append(&list, &e->link);
    }
    join = c->join_op;
    c->join_op = NULL;
    if (join != NULL)
        c->ninflight--;
    pthread_mutex_unlock(&c->lock);
    while (!hvi_list_empty(&list)) {
        e = HVI_CONTAINER(list.next, struct hvi_entry, link);
        hvi_list_remove(&e->link);
        hvi_entry_finish(e, status, c->failed_text);
    }
    if (join != NULL) {
        hvi_op_complete(join, status, c->failed_text);
        hvi_op_unref(join);
    }
}

static bool has_failed(void *arg)
{
    struct hvi_ctx *c = arg;

    return atomic_load(&c->failed) != 0;
}

static void await_verdict(struct hvi_ctx *c)
{
    int64_t deadline = hvi_now_ms() + VERDICT_MS;

    while (!has_failed(c) && hvi_ms_left(deadline) > 0)
        hvi_bell_sleep(c->bells, c->bell, has_failed, c, 0, true,
                       hvi_ms_left(deadline));
}

/* The plane is broken: give the coordinator a moment to say why. If it does not know, it
 * is told, and ends the epoch for all. */
static void plane_broke(struct hvi_ctx *c, enum hvd_status rc, const char *text)
{
    Hvi__Suspect m = HVI__SUSPECT__INIT;

    await_verdict(c);
    if (!has_failed(c) && c->mode != HVI_MODE_SOLO) {
        m.epoch = c->epoch;
        m.text = (char *)(uintptr_t)text;
        pthread_mutex_lock(&c->lock);
        hvi_conn_put(&c->conn, HVI_MSG_SUSPECT, &m);
        pthread_mutex_unlock(&c->lock);
        hvi_link_kick(c);
        await_verdict(c);
    }
    if (!has_failed(c))
        hvi_ctx_fail(c, rc, "%s", text);
}

/* The plane says "no memory" after taking part to the end: an output could not be had.
 * The ops concerned know (late); for the others the group went well. */
static bool late_only(const struct hvi_exec *x)
{
    for (int32_t i = 0; i < x->group.npieces; i++)
        if (x->ops[i] != NULL && x->ops[i]->late != HVD_OK)
            return true;
    return false;
}

static struct hvi_plane *plane_of(struct hvi_ctx *c)
{
    return c->x.group.done != NULL ? atomic_load(&c->gpu) : c->plane;
}

/* What a plane that is still good says of a group, equally on every member. */
static bool refusal(const struct hvi_ctx *c, enum hvd_status rc)
{
    if (rc == HVD_EUNSUPPORTED || rc == HVD_EINVAL)
        return true;
    return c->x.group.done != NULL &&
           (rc == HVD_EVERSION || rc == HVD_ENOMEM || rc == HVD_EMISMATCH);
}

enum step { STEP_IDLE, STEP_MOVED, STEP_WAIT };

static enum step run_progress(struct hvi_ctx *c)
{
    struct hvi_exec *x = &c->x;
    struct hvi_err err;
    enum hvd_status rc;

    err.text[0] = '\0'; /* not all of it: a step is shorter than a microsecond */
    if (!x->started) {
        while (x->stage < HVD_DTYPE_COUNT && (x->dtypes >> x->stage & 1) == 0)
            x->stage++;
        if (x->stage == HVD_DTYPE_COUNT) {
            finish_run(c, HVD_OK, NULL);
            return STEP_MOVED;
        }
        if (!build_group(x)) {
            hvi_ctx_fail(c, HVD_ENOMEM, "no memory to run a collective");
            return STEP_MOVED;
        }
        hvi_failpoint("collective");
        rc = HVD_OK;
        if (x->group.done != NULL) {
            rc = hvi_gpu_open_joined(c, &err);
            if (rc == HVD_OK)
                hvi_gpu_begin(c, x->run);
            else
                hvi_ctx_fail(c, rc, "%s", err.text);
        }
        if (rc == HVD_OK)
            rc = plane_of(c)->ops->start(plane_of(c), &x->group, &err);
        if (refusal(c, rc) && !has_failed(c)) {
            finish_run(c, rc, err.text);
            return STEP_MOVED;
        }
        if (rc != HVD_OK) {
            plane_broke(c, rc, err.text);
            return STEP_MOVED;
        }
        x->started = true;
    }
    rc = plane_of(c)->ops->progress(plane_of(c), &err);
    hvi_failpoint(rc == HVD_INPROGRESS ? "moving" : "moved");
    if (rc == HVD_INPROGRESS)
        return STEP_WAIT;
    if (rc != HVD_OK && !(rc == HVD_ENOMEM && late_only(x))) {
        if (x->group.done != NULL && refusal(c, rc) && !has_failed(c)) {
            finish_run(c, rc, err.text);
            return STEP_MOVED;
        }
        plane_broke(c, rc, err.text);
        return STEP_MOVED;
    }
    x->started = false;
    x->stage++;
    return STEP_MOVED;
}

static bool held(const struct hvi_ctx *c)
{
    return c->mode == HVI_MODE_SHM && hvi_gpu_holds(c);
}

static uint32_t dtypes_of(const struct hvi_run *run)
{
    uint32_t found = 0;

    for (uint32_t i = 0; i < run->nitems; i++) {
        const struct hvi_request *r = run->items[i].req;

        for (uint32_t t = 0; t < r->ntensors; t++)
            found |= 1u << r->shapes[t].dtype;
    }
    return found;
}

static bool take_run(struct hvi_ctx *c)
{
    if (held(c))
        return false;
    pthread_mutex_lock(&c->lock);
    hvi_negotiate_next(c);
    if (!hvi_list_empty(&c->runs)) {
        c->x.run = HVI_CONTAINER(c->runs.next, struct hvi_run, link);
        hvi_list_remove(&c->x.run->link);
        atomic_fetch_sub(&c->nruns, 1);
        c->x.stage = 1;
    }
    pthread_mutex_unlock(&c->lock);
    if (c->x.run == NULL)
        return false;
    c->x.dtypes = dtypes_of(c->x.run);
    hvi_timeline_begin(c, c->x.run);
    return true;
}

static bool finish_solo_join(struct hvi_ctx *c)
{
    struct hvi_op *op = NULL;

    pthread_mutex_lock(&c->lock);
    if (c->mode == HVI_MODE_SOLO && c->join_op != NULL && c->ninflight == 1) {
        op = c->join_op;
        c->join_op = NULL;
        c->ninflight--;
    }
    pthread_mutex_unlock(&c->lock);
    if (op == NULL)
        return false;
    op->last_joined = 0;
    hvi_op_complete(op, HVD_OK, NULL);
    hvi_op_unref(op);
    return true;
}

static enum step step(struct hvi_ctx *c)
{
    if (c->x.run == NULL && !take_run(c))
        return finish_solo_join(c) ? STEP_MOVED : STEP_IDLE;
    if (c->x.run->status != HVD_OK) {
        finish_run(c, c->x.run->status, c->x.run->text);
        return STEP_MOVED;
    }
    return run_progress(c);
}

/* ---- who runs -------------------------------------------------------------------- */

struct idle_wait {
    struct hvi_ctx *c;
    struct hvi_op *op; /* NULL: the engine thread */
    enum hvd_wait_mode mode;
    bool reads; /* the connection, for the order */
};

static bool op_settled(void *arg)
{
    struct idle_wait *w = arg;

    return hvi_op_settled(w->op, w->mode);
}

static bool work_for(void *arg)
{
    struct idle_wait *w = arg;
    struct hvi_ctx *c = w->c;

    if (atomic_load(&c->failed) != 0)
        return true;
    if (!held(c) && (atomic_load(&c->nruns) > 0 ||
                     (c->board != NULL && hvi_board_unread(c->board, c->bell))))
        return true;
    if (w->op != NULL)
        return op_settled(w);
    return atomic_load(&c->want_exec) > 0 || c->stop || c->ninflight == 0;
}

/* Waiting for the order, this thread reads the connection that it comes on. On plane
 * hosts only one rank of a host gets it. */
static bool reads_itself(const struct hvi_ctx *c)
{
    return c->mode == HVI_MODE_TCP ||
           (c->mode == HVI_MODE_HOSTS && atomic_load(&c->forwards));
}

static bool work_or_word_for(void *arg)
{
    struct idle_wait *w = arg;

    return work_for(w) || (hvi_link_read(w->c) && work_for(w));
}

static bool spin_idle(struct hvi_ctx *c, struct idle_wait *w)
{
    if (!w->reads)
        return hvi_spin(&c->x.spin, false, work_for, w);
    return hvi_spin(&c->x.spin, true, work_or_word_for, w);
}

/* true: a signal came. */
static bool sleep_idle(struct hvi_ctx *c, struct idle_wait *w, int timeout_ms)
{
    bool interrupted;

    if (w->reads) {
        atomic_fetch_sub(&c->readers, 1);
        hvi_link_wake(c);
    }
    interrupted = hvi_bell_sleep(c->bells, c->bell, work_for, w, 0, false, timeout_ms);
    if (w->reads)
        atomic_fetch_add(&c->readers, 1);
    return interrupted;
}

/* Under exec. */
static enum hvd_status run_locked(struct hvi_ctx *c, struct hvi_op *op,
                                  enum hvd_wait_mode mode, int64_t deadline_ms,
                                  bool reads)
{
    struct idle_wait w = {c, op, mode, reads};

    for (;;) {
        enum step s;
        bool interrupted = false;

        if (op != NULL && op_settled(&w))
            return HVD_OK;
        if (atomic_load(&c->failed) != 0) {
            fail_everything(c);
            if (op == NULL)
                return HVD_OK;
            if (deadline_ms >= 0 && hvi_ms_left(deadline_ms) == 0)
                return HVD_ETIMEDOUT;
            if (!op_settled(&w)) /* what is on a GPU ends with the abort there */
                hvi_bell_sleep(c->bells, c->bell, op_settled, &w, 0, false,
                               hvi_ms_left(deadline_ms));
            continue;
        }
        s = step(c);
        if (s == STEP_MOVED)
            continue;
        if (op == NULL && s == STEP_IDLE &&
            (c->ninflight == 0 || atomic_load(&c->want_exec) > 0))
            return HVD_OK;
        if (deadline_ms >= 0 && hvi_ms_left(deadline_ms) == 0)
            return HVD_ETIMEDOUT;
        if (s == STEP_IDLE && op != NULL && spin_idle(c, &w))
            continue;
        if (s == STEP_WAIT)
            interrupted = plane_of(c)->ops->wait(plane_of(c), hvi_ms_left(deadline_ms));
        else
            interrupted = sleep_idle(c, &w, hvi_ms_left(deadline_ms));
        if (interrupted && op != NULL && !op_settled(&w))
            return HVD_EINTR;
    }
}

/* Not where another thread runs groups: when it leaves it hands over what is left. */
static void unpark(struct hvi_ctx *c)
{
    if (atomic_load(&c->parked) && atomic_load(&c->want_exec) == 0) {
        pthread_mutex_lock(&c->lock);
        pthread_cond_signal(&c->cond);
        pthread_mutex_unlock(&c->lock);
    }
}

void hvi_engine_kick(struct hvi_ctx *c)
{
    unpark(c);
    hvi_bell_ring(c->bells, c->bell);
}

void hvi_engine_submitted(struct hvi_ctx *c)
{
    unpark(c);
    if (atomic_load(&c->nruns) > 0)
        hvi_bell_ring(c->bells, c->bell);
}

/* While a program submits one operation after the other, what it has submitted had better
 * run together, and this thread would be in its way: it has the lock all the time, and
 * perhaps the core. */
static void let_more_come(const struct hvi_ctx *c)
{
    int64_t until_us = hvi_now_us() + LET_COME_US;
    uint32_t seen;

    do {
        seen = c->ninflight;
        sched_yield();
    } while (c->ninflight != seen && atomic_load(&c->want_exec) == 0 &&
             hvi_now_us() < until_us);
}

void *hvi_engine_thread(void *arg)
{
    struct hvi_ctx *c = arg;

    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->stop && ((c->ninflight == 0 && atomic_load(&c->nruns) == 0) ||
                            atomic_load(&c->want_exec) > 0)) {
            atomic_store(&c->parked, 1);
            pthread_cond_wait(&c->cond, &c->lock);
            atomic_store(&c->parked, 0);
        }
        if (c->stop)
            break;
        pthread_mutex_unlock(&c->lock);
        let_more_come(c);
        pthread_mutex_lock(&c->exec);
        atomic_store(&c->idle, 1);
        run_locked(c, NULL, HVD_WAIT_DONE, -1, false);
        atomic_store(&c->idle, 0);
        pthread_mutex_unlock(&c->exec);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

/* Sleep on the op's status while another thread runs groups. */
static enum hvd_status sleep_on(struct hvi_op *op, enum hvd_wait_mode mode,
                                int64_t deadline_ms)
{
    uint32_t seen;
    int left = hvi_ms_left(deadline_ms);
    struct timespec ts = {left / 1000, (long)(left % 1000) * 1000000};
    long rc = 0;
    int error = 0;

    atomic_fetch_add(&op->waiters, 1);
    seen = atomic_load(&op->status);
    if (!hvi_op_settled(op, mode)) {
        rc = syscall(SYS_futex, &op->status, FUTEX_WAIT_PRIVATE, seen,
                     left < 0 ? NULL : &ts, NULL, 0);
        error = errno;
    }
    atomic_fetch_sub(&op->waiters, 1);
    if (rc != 0 && error == EINTR)
        return HVD_EINTR;
    return HVD_OK;
}

/* The engine thread lets go of exec when somebody wants it and it has nothing to run. */
static bool take_exec(struct hvi_ctx *c)
{
    if (pthread_mutex_trylock(&c->exec) == 0)
        return true;
    if (!atomic_load(&c->idle))
        return false;
    hvi_bell_ring(c->bells, c->bell);
    for (int i = 0; i < 20; i++) {
        if (pthread_mutex_trylock(&c->exec) == 0)
            return true;
        sched_yield();
    }
    return false;
}

/* Others' work goes on after this thread leaves. */
static void hand_over(struct hvi_ctx *c)
{
    pthread_mutex_lock(&c->lock);
    if (c->ninflight > 0 || atomic_load(&c->nruns) > 0)
        pthread_cond_signal(&c->cond);
    pthread_mutex_unlock(&c->lock);
}

/* What this thread waits for goes out now, and it reads what comes. */
static enum hvd_status run_reading(struct hvi_ctx *c, struct hvi_op *op,
                                   enum hvd_wait_mode mode, int64_t deadline_ms)
{
    enum hvd_status rc;

    if (!reads_itself(c))
        return run_locked(c, op, mode, deadline_ms, false);
    pthread_mutex_lock(&c->lock);
    hvi_negotiate_send_now(c);
    pthread_mutex_unlock(&c->lock);
    atomic_fetch_add(&c->readers, 1);
    rc = run_locked(c, op, mode, deadline_ms, true);
    atomic_fetch_sub(&c->readers, 1);
    if (c->ninflight > 0)
        hvi_link_wake(c);
    return rc;
}

enum hvd_status hvi_engine_run(struct hvi_ctx *c, struct hvi_op *op,
                               enum hvd_wait_mode mode, int64_t deadline_ms)
{
    enum hvd_status rc = HVD_OK;
    bool ran = false;

    hvi_gpu_wait_begin(c);
    while (rc == HVD_OK && !hvi_op_settled(op, mode)) {
        atomic_fetch_add(&c->want_exec, 1);
        ran = take_exec(c);
        if (ran) {
            rc = run_reading(c, op, mode, deadline_ms);
            pthread_mutex_unlock(&c->exec);
        }
        atomic_fetch_sub(&c->want_exec, 1);
        if (ran) {
            hand_over(c);
        } else {
            hand_over(c); /* the engine thread may have parked for us */
            rc = sleep_on(op, mode, deadline_ms);
            if (rc == HVD_OK && deadline_ms >= 0 && hvi_ms_left(deadline_ms) == 0 &&
                !hvi_op_settled(op, mode))
                rc = HVD_ETIMEDOUT;
        }
    }
    hvi_gpu_wait_end(c);
    return rc;
}

void hvi_engine_drain(struct hvi_ctx *c)
{
    atomic_fetch_add(&c->want_exec, 1);
    hvi_bell_force(c->bells, c->bell);
    pthread_mutex_lock(&c->exec);
    atomic_fetch_sub(&c->want_exec, 1);
    run_locked(c, NULL, HVD_WAIT_DONE, -1, false);
    pthread_mutex_unlock(&c->exec);
}
