/*
 * Happy path: TIMELINE_CTL (or the environment) switches recording on; a finished
 * operation becomes a record in a buffer; the link thread ships it every TICK_MS; rank
 * 0 writes records of all ranks to the file. A job of one rank writes by itself.
 *
 * Failure paths: a full buffer drops records and says how many; a file that cannot be
 * written ends the trace with one warning, never the job.
 *
 * The end: TIMELINE_CTL (or leaving) makes every rank ship the rest and an END record;
 * rank 0 waits END_MS for those.
 */
#include "worker/core/timeline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proto/base/clock.h"
#include "proto/base/env.h"
#include "proto/base/log.h"
#include "worker/core/tracefile.h"

#define TICK_MS 200
#define END_MS 2000
#define FILE_MAX_BYTES (64ll * 1024 * 1024)
#define CHUNK_BYTES (256u * 1024)
#define BUFFER_BYTES (8u * 1024 * 1024) /* unshipped records of one rank */

enum record { RECORD_UNSET = 0, RECORD_OP, RECORD_CYCLE, RECORD_END };

struct hvi_timeline {
    _Atomic int on;
    bool mark_cycles;
    pthread_mutex_t lock; /* leaf: taken with and without ctx->lock */
    pthread_cond_t ended;
    struct hvi_buf records;
    uint64_t dropped;
    struct hvi_trace *trace; /* rank 0 */
    int nends;               /* ranks whose END came */
    int64_t flushed_ms;
};

bool hvi_timeline_on(const struct hvi_ctx *c)
{
    return c->timeline != NULL &&
           atomic_load_explicit(&c->timeline->on, memory_order_relaxed);
}

/* ---- records --------------------------------------------------------------------- */

#define OP_FIXED (1 + 4 * 4 + 8 * 8 + 2)

static void put_op(struct hvi_timeline *t, const struct hvi_trace_op *op)
{
    uint8_t *to;
    struct hvi_cursor c;
    size_t size = OP_FIXED + op->name_bytes;

    if (hvi_buf_size(&t->records) + size > BUFFER_BYTES ||
        (to = hvi_buf_reserve(&t->records, size)) == NULL) {
        t->dropped++;
        return;
    }
    hvi_cursor_init(&c, to, size);
    hvi_put_u8(&c, RECORD_OP);
    hvi_put_u32(&c, op->pset);
    hvi_put_u32(&c, op->kind);
    hvi_put_u32(&c, op->dtype);
    hvi_put_u32(&c, (uint32_t)op->status);
    hvi_put_u64(&c, (uint64_t)op->bytes);
    hvi_put_u64(&c, (uint64_t)op->submit_us);
    hvi_put_u64(&c, (uint64_t)op->sealed_us);
    hvi_put_u64(&c, (uint64_t)op->begin_us);
    hvi_put_u64(&c, (uint64_t)op->end_us);
    hvi_put_u64(&c, (uint64_t)op->copy_in_us);
    hvi_put_u64(&c, (uint64_t)op->copy_out_us);
    hvi_put_u64(&c, op->seq);
    hvi_put_u16(&c, (uint16_t)op->name_bytes);
    hvi_put_bytes(&c, op->name, op->name_bytes);
    hvi_buf_commit(&t->records, size);
}

static void put_cycle(struct hvi_timeline *t, int64_t at_us)
{
    uint8_t bytes[9];
    struct hvi_cursor c;

    hvi_cursor_init(&c, bytes, sizeof bytes);
    hvi_put_u8(&c, RECORD_CYCLE);
    hvi_put_u64(&c, (uint64_t)at_us);
    if (hvi_buf_size(&t->records) + sizeof bytes > BUFFER_BYTES ||
        hvi_buf_append(&t->records, bytes, sizeof bytes) != HVD_OK)
        t->dropped++;
}

/* One record of `rank` to the file. Under t->lock. false: damaged. */
static bool write_record(struct hvi_timeline *t, int32_t rank, struct hvi_cursor *c)
{
    struct hvi_trace_op op;

    switch (hvi_get_u8(c)) {
    case RECORD_OP:
        op.rank = rank;
        op.pset = hvi_get_u32(c);
        op.kind = hvi_get_u32(c);
        op.dtype = hvi_get_u32(c);
        op.status = (int32_t)hvi_get_u32(c);
        op.bytes = (int64_t)hvi_get_u64(c);
        op.submit_us = (int64_t)hvi_get_u64(c);
        op.sealed_us = (int64_t)hvi_get_u64(c);
        op.begin_us = (int64_t)hvi_get_u64(c);
        op.end_us = (int64_t)hvi_get_u64(c);
        op.copy_in_us = (int64_t)hvi_get_u64(c);
        op.copy_out_us = (int64_t)hvi_get_u64(c);
        op.seq = hvi_get_u64(c);
        op.name_bytes = hvi_get_u16(c);
        if (c->bad || op.name_bytes > c->left || op.name_bytes > HVD_NAME_MAX)
            return false;
        op.name = (const char *)c->p;
        c->p += op.name_bytes;
        c->left -= op.name_bytes;
        hvi_trace_op(t->trace, &op);
        return true;
    case RECORD_CYCLE:
        hvi_trace_cycle(t->trace, rank, (int64_t)hvi_get_u64(c));
        return !c->bad;
    case RECORD_END:
        t->nends++;
        pthread_cond_broadcast(&t->ended);
        return true;
    default:
        return false;
    }
}

/* Under t->lock. */
static void write_records(struct hvi_timeline *t, int32_t rank, const uint8_t *data,
                          size_t size_bytes)
{
    struct hvi_cursor c;

    hvi_cursor_init_ro(&c, data, size_bytes);
    while (c.left > 0 && t->trace != NULL)
        if (!write_record(t, rank, &c)) {
            hvi_log_warn("timeline", "rank=%d sent a damaged chunk", rank);
            return;
        }
}

/* Under t->lock. */
static void flush_file(struct hvi_timeline *t)
{
    struct hvi_err err = {{0}};

    if (t->trace == NULL || hvi_trace_flush(t->trace, &err) == HVD_OK)
        return;
    fprintf(stderr, "hvd: %s; the timeline ends here\n", err.text);
    hvi_trace_free(t->trace);
    t->trace = NULL;
    atomic_store(&t->on, 0);
}

/* Bytes of the whole records at the front that fit a chunk. */
static size_t whole_records(const uint8_t *data, size_t size_bytes)
{
    size_t at = 0;

    while (at < size_bytes) {
        size_t n = 1;

        if (data[at] == RECORD_OP)
            n = OP_FIXED + (size_t)data[at + OP_FIXED - 2] +
                ((size_t)data[at + OP_FIXED - 1] << 8);
        else if (data[at] == RECORD_CYCLE)
            n = 9;
        if (at + n > CHUNK_BYTES)
            break;
        at += n;
    }
    return at;
}

/* Records to the file (rank 0) or to the coordinator. Under ctx->lock and t->lock. */
static void ship(struct hvi_ctx *c, struct hvi_timeline *t)
{
    size_t n;

    if (c->rank == 0) {
        write_records(t, 0, hvi_buf_peek(&t->records), hvi_buf_size(&t->records));
        hvi_buf_clear(&t->records);
        flush_file(t);
        return;
    }
    while ((n = hvi_buf_size(&t->records)) > 0) {
        Hvi__TimelineChunk m = HVI__TIMELINE_CHUNK__INIT;

        n = whole_records(hvi_buf_peek(&t->records), n);
        m.epoch = c->epoch;
        m.rank = c->rank;
        m.events.data = (uint8_t *)(uintptr_t)hvi_buf_peek(&t->records);
        m.events.len = n;
        if (hvi_conn_put(&c->conn, HVI_MSG_TIMELINE_CHUNK, &m) != HVD_OK)
            return;
        hvi_buf_consume(&t->records, n);
    }
}

/* Ship all, then say that this was all. Under both locks. */
static void ship_end(struct hvi_ctx *c, struct hvi_timeline *t)
{
    uint8_t end = RECORD_END;

    atomic_store(&t->on, 0);
    hvi_buf_append(&t->records, &end, 1);
    ship(c, t);
    if (c->mode != HVI_MODE_SOLO && c->rank != 0)
        hvi_link_kick(c);
}

/* ---- what the engine tells ------------------------------------------------------- */

void hvi_timeline_begin(struct hvi_ctx *c, struct hvi_run *run)
{
    struct hvi_timeline *t = c->timeline;

    c->plane->copies = NULL;
    if (t == NULL || !atomic_load_explicit(&t->on, memory_order_relaxed))
        return;
    memset(&c->x.copies, 0, sizeof c->x.copies);
    c->plane->copies = &c->x.copies;
    run->begin_us = hvi_now_us();
    if (t->mark_cycles) {
        pthread_mutex_lock(&t->lock);
        put_cycle(t, run->begin_us);
        pthread_mutex_unlock(&t->lock);
    }
}

void hvi_timeline_end(struct hvi_ctx *c, const struct hvi_run *run,
                      enum hvd_status status)
{
    struct hvi_timeline *t = c->timeline;
    struct hvi_trace_op op = {.rank = c->rank, .status = status, .seq = run->seq};

    if (t == NULL || !atomic_load_explicit(&t->on, memory_order_relaxed))
        return;
    op.end_us = hvi_now_us();
    op.begin_us = run->begin_us;
    op.copy_in_us = c->x.copies.in_ns / 1000;
    op.copy_out_us = c->x.copies.out_ns / 1000;
    pthread_mutex_lock(&t->lock);
    for (uint32_t i = 0; i < run->nitems; i++) {
        const struct hvi_entry *e = run->items[i].entry;

        if (e == NULL)
            continue;
        op.submit_us = e->submit_us;
        op.sealed_us = e->sealed_us > 0 ? e->sealed_us : e->submit_us;
        if (op.begin_us < op.sealed_us)
            op.begin_us = op.sealed_us; /* switched on meanwhile */
        op.pset = e->req->pset;
        op.kind = e->req->kind;
        op.dtype = e->req->ntensors > 0 ? e->req->shapes[0].dtype : 0;
        op.bytes = hvi_request_bytes(e->req);
        op.name = e->req->name;
        op.name_bytes = strlen(e->req->name);
        put_op(t, &op);
    }
    if (c->mode == HVI_MODE_SOLO && hvi_now_ms() - t->flushed_ms >= TICK_MS) {
        t->flushed_ms = hvi_now_ms();
        ship(c, t);
    }
    pthread_mutex_unlock(&t->lock);
}

int hvi_timeline_tick(struct hvi_ctx *c, int64_t now_ms)
{
    struct hvi_timeline *t = c->timeline;
    int left = -1;
    bool idle;

    if (t == NULL)
        return -1;
    pthread_mutex_lock(&c->lock);
    pthread_mutex_lock(&t->lock);
    idle = !atomic_load(&t->on) && hvi_buf_size(&t->records) == 0 && t->trace == NULL;
    if (!idle && now_ms - t->flushed_ms >= TICK_MS) {
        ship(c, t);
        t->flushed_ms = now_ms;
    }
    if (atomic_load(&t->on) || t->trace != NULL)
        left = (int)(t->flushed_ms + TICK_MS - now_ms);
    pthread_mutex_unlock(&t->lock);
    pthread_mutex_unlock(&c->lock);
    return left;
}

/* ---- switching ------------------------------------------------------------------- */

void hvi_timeline_control(struct hvi_ctx *c, const Hvi__TimelineCtl *m)
{
    struct hvi_timeline *t = c->timeline;

    pthread_mutex_lock(&c->lock);
    pthread_mutex_lock(&t->lock);
    if (m->start) {
        t->mark_cycles = m->mark_cycles;
        atomic_store(&t->on, 1);
    } else if (c->rank != 0) {
        ship_end(c, t);
    }
    pthread_mutex_unlock(&t->lock);
    pthread_mutex_unlock(&c->lock);
}

void hvi_timeline_chunk(struct hvi_ctx *c, const Hvi__TimelineChunk *m)
{
    struct hvi_timeline *t = c->timeline;

    if (c->rank != 0 || m->rank < 0 || m->rank >= c->size)
        return;
    pthread_mutex_lock(&t->lock);
    write_records(t, m->rank, m->events.data, m->events.len);
    flush_file(t);
    pthread_mutex_unlock(&t->lock);
}

static void send_control(struct hvi_ctx *c, bool start, bool mark_cycles)
{
    Hvi__TimelineCtl m = HVI__TIMELINE_CTL__INIT;

    if (c->mode == HVI_MODE_SOLO)
        return;
    m.epoch = c->epoch;
    m.start = start;
    m.mark_cycles = mark_cycles;
    hvi_conn_put(&c->conn, HVI_MSG_TIMELINE_CTL, &m);
    hvi_link_kick(c);
}

enum hvd_status hvi_timeline_open(struct hvi_ctx *c, const char *path, bool mark_cycles,
                                  struct hvi_err *err)
{
    struct hvi_timeline *t = c->timeline;
    enum hvd_status rc = HVD_OK;

    if (c->rank != 0)
        return HVD_OK; /* rank 0's call switches all on */
    pthread_mutex_lock(&c->lock);
    pthread_mutex_lock(&t->lock);
    if (t->trace != NULL && strcmp(hvi_trace_path(t->trace), path) != 0) {
        rc = hvi_fail(err, HVD_EINVAL,
                      "a timeline is being written to %s; stop it first",
                      hvi_trace_path(t->trace));
    } else if (t->trace == NULL) {
        rc = hvi_trace_open(path, FILE_MAX_BYTES, &t->trace, err);
        if (rc == HVD_OK) {
            t->nends = 0;
            t->mark_cycles = mark_cycles;
            atomic_store(&t->on, 1);
            send_control(c, true, mark_cycles);
        }
    }
    pthread_mutex_unlock(&t->lock);
    pthread_mutex_unlock(&c->lock);
    return rc;
}

/* Rank 0: ranks that will not answer any more. */
static bool all_ended(struct hvi_ctx *c, const struct hvi_timeline *t)
{
    return t->nends >= c->size || atomic_load(&c->failed) != 0;
}

enum hvd_status hvi_timeline_close(struct hvi_ctx *c, struct hvi_err *err)
{
    struct hvi_timeline *t = c->timeline;
    struct timespec until;

    (void)err;
    if (c->rank != 0)
        return HVD_OK;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += END_MS / 1000;
    pthread_mutex_lock(&c->lock);
    pthread_mutex_lock(&t->lock);
    if (t->trace == NULL) {
        pthread_mutex_unlock(&t->lock);
        pthread_mutex_unlock(&c->lock);
        return HVD_OK;
    }
    send_control(c, false, false);
    ship_end(c, t);
    pthread_mutex_unlock(&c->lock);
    while (t->trace != NULL && !all_ended(c, t))
        if (pthread_cond_timedwait(&t->ended, &t->lock, &until) == ETIMEDOUT)
            break;
    flush_file(t);
    hvi_trace_free(t->trace);
    t->trace = NULL;
    pthread_mutex_unlock(&t->lock);
    return HVD_OK;
}

void hvi_timeline_leave(struct hvi_ctx *c)
{
    struct hvi_timeline *t = c->timeline;

    if (c->rank == 0) {
        hvi_timeline_close(c, NULL);
        return;
    }
    pthread_mutex_lock(&c->lock);
    pthread_mutex_lock(&t->lock);
    if (atomic_load(&t->on))
        ship_end(c, t);
    pthread_mutex_unlock(&t->lock);
    pthread_mutex_unlock(&c->lock);
}

enum hvd_status hvi_timeline_setup(struct hvi_ctx *c, struct hvi_err *err)
{
    const char *path = hvi_env("TIMELINE");
    int mark = 0;
    struct hvi_timeline *t;
    enum hvd_status rc = hvi_env_bool("TIMELINE_MARK_CYCLES", 0, &mark, err);

    if (rc != HVD_OK)
        return rc;
    t = calloc(1, sizeof *t);
    if (t == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    pthread_mutex_init(&t->lock, NULL);
    pthread_cond_init(&t->ended, NULL);
    c->timeline = t;
    if (path == NULL || strcmp(path, "DYNAMIC") == 0)
        return HVD_OK;
    if (c->rank != 0) { /* records at once; the file is rank 0's */
        t->mark_cycles = mark != 0;
        atomic_store(&t->on, 1);
        return HVD_OK;
    }
    return hvi_timeline_open(c, path, mark != 0, err);
}

void hvi_timeline_fini(struct hvi_ctx *c)
{
    struct hvi_timeline *t = c->timeline;

    if (t == NULL)
        return;
    if (t->dropped > 0)
        hvi_log_warn("timeline", "dropped=%llu", (unsigned long long)t->dropped);
    hvi_trace_free(t->trace);
    hvi_buf_fini(&t->records);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->ended);
    free(t);
    c->timeline = NULL;
}
