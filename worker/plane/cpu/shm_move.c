/*
 * Shared memory: what moves without folding. broadcast, barrier, and the exchange under
 * allgather, alltoall and Adasum (worker/plane/cpu/gather.h).
 */
#include <string.h>

#include "worker/plane/cpu/gather.h"
#include "worker/plane/cpu/shm.h"
#include "worker/plane/reduce/reduce.h"

/* ---- broadcast: the root fills step after step, everyone else copies out */

static void broadcast_fill(struct hvi_shm *s)
{
    struct hvi_span c = hvi_chunks_chunk(&s->plan, s->step);
    size_t es = s->facts.elem_size;
    uint8_t *room = hvi_shm_room(s, s->step, c.count * (int64_t)es);
    int64_t begun = hvi_copy_begin(&s->base);
    struct hvi_runs it;
    struct hvi_run r;

    hvi_runs_begin(&it, &s->plan, c.first, c.first + c.count);
    while (hvi_runs_next(&it, &r)) {
        const struct hvi_piece *p = &s->g->pieces[r.piece];
        size_t at = (size_t)r.offset * es;
        size_t size = (size_t)r.count * es;

        hvi_reduce_copy(room + (size_t)(r.at - c.first) * es,
                        (const uint8_t *)p->in + at, size, false);
        if (p->out != NULL && p->out != p->in)
            hvi_reduce_copy((uint8_t *)p->out + at, (const uint8_t *)p->in + at, size,
                            s->stream);
    }
    hvi_copy_in(&s->base, begun);
}

static void broadcast_copy(struct hvi_shm *s)
{
    struct hvi_span c = hvi_chunks_chunk(&s->plan, s->step);
    size_t es = s->facts.elem_size;
    const uint8_t *from = hvi_shm_payload(s, s->g->root, s->step);
    int64_t begun = hvi_copy_begin(&s->base);
    struct hvi_runs it;
    struct hvi_run r;

    hvi_runs_begin(&it, &s->plan, c.first, c.first + c.count);
    while (hvi_runs_next(&it, &r)) {
        const struct hvi_piece *p = &s->g->pieces[r.piece];

        if (p->out != NULL)
            hvi_reduce_copy((uint8_t *)p->out + (size_t)r.offset * es,
                            from + (size_t)(r.at - c.first) * es, (size_t)r.count * es,
                            s->stream);
    }
    hvi_copy_out(&s->base, begun);
}

static enum hvd_status broadcast_progress(struct hvi_shm *s, struct hvi_err *err)
{
    bool root = s->g->me == s->g->root;

    for (; s->step < s->plan.nchunks; s->step++) {
        if (root ? !hvi_shm_slot_free(s, s->step)
                 : !hvi_shm_is_filled(s, s->g->root, s->step))
            return HVD_INPROGRESS;
        if (root) {
            broadcast_fill(s);
            hvi_shm_set_filled(s, s->step);
        } else {
            broadcast_copy(s);
            hvi_shm_set_consumed(s, s->step);
        }
    }
    return hvi_group_end(&s->facts, err);
}

enum hvd_status hvi_shm_broadcast_start(struct hvi_shm *s, struct hvi_err *err)
{
    int64_t chunk = hvi_shm_chunk_bytes(s, s->facts.total_bytes);
    enum hvd_status rc =
        hvi_chunks_plan(&s->plan, s->g->pieces, s->g->npieces, s->facts.elem_size,
                        chunk / (int64_t)s->facts.elem_size, err);

    if (rc == HVD_OK)
        rc = hvi_shm_check_steps(s, s->plan.nchunks, err);
    if (rc != HVD_OK)
        return rc;
    hvi_group_alloc_all(s->g, &s->facts);
    s->progress = broadcast_progress;
    s->phase = HVI_SHM_COPY;
    return HVD_OK;
}

/* ---- barrier: only tickets; nothing is staged, so nothing is consumed */

static enum hvd_status barrier_progress(struct hvi_shm *s, struct hvi_err *err)
{
    (void)err;
    if (s->phase == HVI_SHM_MEET) {
        hvi_shm_set_reduced(s, 0);
        s->phase = HVI_SHM_MEETING;
    }
    return hvi_shm_all_reduced(s, 0) ? HVD_OK : HVD_INPROGRESS;
}

enum hvd_status hvi_shm_barrier_start(struct hvi_shm *s, struct hvi_err *err)
{
    (void)err;
    s->progress = barrier_progress;
    s->phase = HVI_SHM_MEET;
    return HVD_OK;
}

/* ---- exchange: fill the own stream, read all heads, then copy one step behind */

static int64_t steps_of(const struct hvi_shm *s, int64_t bytes)
{
    return (bytes + (int64_t)s->slot_bytes - 1) / (int64_t)s->slot_bytes;
}

/* Bytes of a member's stream that a step carries. */
static int64_t step_bytes(const struct hvi_shm *s, int32_t member, int64_t step)
{
    int64_t left = s->gather->stream_bytes[member] - step * (int64_t)s->slot_bytes;

    if (left <= 0)
        return 0;
    return left < (int64_t)s->slot_bytes ? left : (int64_t)s->slot_bytes;
}

/* True: filled, or nothing to fill. */
static bool exchange_fill(struct hvi_shm *s)
{
    int64_t size = step_bytes(s, s->g->me, s->step);
    int64_t begun;

    if (size == 0)
        return true;
    if (!hvi_shm_slot_free(s, s->step))
        return false;
    begun = hvi_copy_begin(&s->base);
    hvi_gather_fill(s->gather, hvi_shm_room(s, s->step, size), size);
    hvi_copy_in(&s->base, begun);
    hvi_shm_set_filled(s, s->step);
    return true;
}

/* The heads' part of a step, of every member. */
static enum hvd_status exchange_head(struct hvi_shm *s, struct hvi_err *err)
{
    int64_t from = s->step * (int64_t)s->slot_bytes;
    int64_t size = s->gather->head_bytes - from;
    enum hvd_status rc = HVD_OK;

    if (size > (int64_t)s->slot_bytes)
        size = (int64_t)s->slot_bytes;
    for (; rc == HVD_OK && s->seen < s->g->nmembers; s->seen++) {
        if (s->seen == s->g->me)
            continue;
        if (!hvi_shm_is_filled(s, s->seen, s->step))
            return HVD_INPROGRESS;
        rc = hvi_gather_head(s->gather, s->seen, from,
                             hvi_shm_payload(s, s->seen, s->step), size, err);
    }
    s->seen = 0;
    return rc;
}

/* All heads are here: results get their memory, and it is known how long this takes. */
static enum hvd_status exchange_place(struct hvi_shm *s, struct hvi_err *err)
{
    enum hvd_status rc = HVD_OK;

    if (s->gather->head_bytes > 0)
        rc = hvi_gather_place(s->gather, &s->facts, err);
    s->nsteps = steps_of(s, s->gather->head_bytes);
    for (int32_t m = 0; m < s->g->nmembers; m++) {
        int64_t n = steps_of(s, s->gather->stream_bytes[m]);

        s->nsteps = n > s->nsteps ? n : s->nsteps;
    }
    return rc == HVD_OK ? hvi_shm_check_steps(s, s->nsteps, err) : rc;
}

/* Copy out what step k carries after the heads. */
static bool exchange_copy(struct hvi_shm *s, int64_t k)
{
    int64_t skip = s->gather->head_bytes - k * (int64_t)s->slot_bytes;

    skip = skip < 0 ? 0 : skip;
    for (; s->seen < s->g->nmembers; s->seen++) {
        int64_t size = step_bytes(s, s->seen, k);
        int64_t begun;

        if (s->seen == s->g->me || size == 0)
            continue;
        if (!hvi_shm_is_filled(s, s->seen, k))
            return false;
        begun = hvi_copy_begin(&s->base);
        hvi_gather_take(s->gather, s->seen, hvi_shm_payload(s, s->seen, k) + skip,
                        size - skip);
        hvi_copy_out(&s->base, begun);
    }
    s->seen = 0;
    hvi_shm_set_consumed(s, k);
    return true;
}

static enum hvd_status exchange_heads(struct hvi_shm *s, struct hvi_err *err)
{
    int64_t heads = steps_of(s, s->gather->head_bytes);
    enum hvd_status rc;

    while (s->step < heads) {
        if (s->phase == HVI_SHM_HEAD_FILL) {
            if (!exchange_fill(s))
                return HVD_INPROGRESS;
            s->phase = HVI_SHM_HEAD_READ;
        }
        rc = exchange_head(s, err);
        if (rc != HVD_OK)
            return rc;
        if (s->step < heads - 1) /* the last one may carry data behind the head */
            hvi_shm_set_consumed(s, s->step);
        s->step++;
        s->phase = HVI_SHM_HEAD_FILL;
    }
    rc = exchange_place(s, err);
    s->phase = HVI_SHM_FILL;
    return rc;
}

static enum hvd_status exchange_progress(struct hvi_shm *s, struct hvi_err *err)
{
    if (s->phase == HVI_SHM_HEAD_FILL || s->phase == HVI_SHM_HEAD_READ) {
        enum hvd_status rc = exchange_heads(s, err);

        if (rc != HVD_OK)
            return rc;
    }
    for (; s->step <= s->nsteps; s->step++, s->phase = HVI_SHM_FILL) {
        if (s->phase == HVI_SHM_FILL) {
            if (!exchange_fill(s))
                return HVD_INPROGRESS;
            s->phase = HVI_SHM_COPY;
        }
        if (s->step > 0 && !exchange_copy(s, s->step - 1))
            return HVD_INPROGRESS;
    }
    if (s->g->kind == HVD_ALLREDUCE)
        hvi_gather_adasum(s->gather, &s->facts);
    return hvi_group_end(&s->facts, err);
}

enum hvd_status hvi_shm_gather_start(struct hvi_shm *s, struct hvi_err *err)
{
    enum hvd_status rc;

    if (s->g->kind == HVD_ALLREDUCE)
        hvi_group_alloc_all(s->g, &s->facts);
    rc = hvi_gather_begin(s->gather, s->g, &s->facts, err);
    if (rc == HVD_OK)
        rc =
            hvi_shm_check_steps(s, steps_of(s, s->gather->stream_bytes[s->g->me]), err);
    s->gather->stream = s->stream;
    s->progress = exchange_progress;
    s->phase = HVI_SHM_HEAD_FILL;
    return rc;
}
