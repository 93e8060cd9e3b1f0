/*
 * Shared memory: allreduce and reducescatter.
 *
 * Small allreduce, one hop: everyone stages its whole input, then everyone folds all of
 * it.
 *
 * Large allreduce: a pipeline over chunks, three deep. Of each chunk a rank
 *   FILL  stages its input, all but the slice it folds itself;
 *   FOLD  once all have filled it, folds its slice over all members, its own input
 *         straight from the user's buffer, into its own slot and its output;
 *   COPY  once all have folded it, copies the other slices to its output.
 * In place is safe: a rank's input of a chunk is read for the last time in its own FOLD
 * of that chunk, its output of the chunk is written in that FOLD and after it. It cannot
 * lock up: with three slots FILL(i) waits for the COPY(i - 3) of others, which needs of
 * this rank only FOLD(i - 3), done before.
 *
 * A tensor that all members can map (shm_share.c) is not staged: FOLD of the others
 * reads it where it lies, and this rank's FOLD leaves the result in it for their COPY.
 * In place stays safe: others read the input of a slice in their FOLD, and this rank
 * writes it in its COPY, after that FOLD. Only the end needs a wait more. Where all
 * members can map each other's outputs, FOLD stores to all of them and COPY has nothing
 * to do: a slice of an input is read by nobody but who folds it, so folds need not wait
 * for one another.
 *
 * reducescatter: in each step a slot has one part for every member, so that all fold
 * all the time; FILL(i), FOLD(i - 1) straight into the output.
 *
 * Prescale is applied in the fold and not when staging: staged 16-bit values would be
 * rounded once more, but not those a rank reads from its own buffer, so the result
 * would depend on who folds.
 */
#include <string.h>

#include "worker/plane/cpu/shm.h"
#include "worker/plane/reduce/reduce.h"

/* Chunks folded before the first of them is copied: what others have folded should
 * still be in a cache then. */
enum { AHEAD = 4, AHEAD_CROWDED = 2 };

static const uint8_t *in_at(const struct hvi_piece *p, int64_t elem, size_t es)
{
    return p->in == NULL ? NULL : (const uint8_t *)p->in + (size_t)elem * es;
}

static uint8_t *out_at(const struct hvi_piece *p, int64_t elem, size_t es)
{
    return p->out == NULL ? NULL : (uint8_t *)p->out + (size_t)elem * es;
}

static void fold(const struct hvi_shm *s, void *out, const void *const *src,
                 int64_t count, bool stream)
{
    const struct hvi_group *g = s->g;

    hvi_reduce_fold(out, src, g->nmembers, count, g->dtype, g->reduce_op, g->prescale,
                    false, -1, s->facts.post, stream);
}

/* What every member has staged for a step; NULL: it has joined. The own entry is NULL. */
static void staged(const struct hvi_shm *s, int64_t step, int32_t nmembers,
                   const uint8_t **base)
{
    for (int32_t m = 0; m < nmembers; m++) {
        bool none = m == s->g->me || hvi_shm_line(s, m, step)->joined;

        base[m] = none ? NULL : hvi_shm_payload(s, m, step);
    }
}

static void at_offset(const struct hvi_shm *s, int32_t nmembers,
                      const uint8_t *const *base, size_t offset, const void *own,
                      const void **src)
{
    for (int32_t m = 0; m < nmembers; m++)
        src[m] = base[m] == NULL ? NULL : base[m] + offset;
    src[s->g->me] = own;
}

/* ---- small allreduce */

static void small_fill(struct hvi_shm *s)
{
    int64_t begun = hvi_copy_begin(&s->base);
    uint8_t *room = hvi_shm_room(s, 0, s->facts.total_bytes);

    if (s->facts.joined)
        return;
    for (int32_t i = 0; i < s->g->npieces; i++) {
        const struct hvi_piece *p = &s->g->pieces[i];
        size_t size = (size_t)p->count * s->facts.elem_size;

        if (size > 0)
            memcpy(room, p->in, size);
        room += size;
    }
    hvi_copy_in(&s->base, begun);
}

static void small_fold(struct hvi_shm *s)
{
    int32_t n = s->g->nmembers;
    const uint8_t *base[HVI_SHM_MAX_RANKS];
    const void *src[HVI_SHM_MAX_RANKS];
    size_t at = 0;

    staged(s, 0, n, base);
    for (int32_t i = 0; i < s->g->npieces; i++) {
        const struct hvi_piece *p = &s->g->pieces[i];

        at_offset(s, n, base, at, p->in, src);
        if (p->out != NULL)
            fold(s, p->out, src, p->count, false);
        at += (size_t)p->count * s->facts.elem_size;
    }
}

static enum hvd_status small_progress(struct hvi_shm *s, struct hvi_err *err)
{
    if (s->phase == HVI_SHM_SMALL_FILL) {
        if (!hvi_shm_slot_free(s, 0))
            return HVD_INPROGRESS;
        small_fill(s);
        hvi_shm_set_filled(s, 0);
        s->phase = HVI_SHM_SMALL_FOLD;
    }
    if (!hvi_shm_all_filled(s, 0))
        return HVD_INPROGRESS;
    small_fold(s);
    hvi_shm_set_consumed(s, 0);
    return hvi_group_end(&s->facts, err);
}

/* ---- large allreduce */

/* What peers read in the tensor itself is not staged. */
static void fill_range(struct hvi_shm *s, int64_t a, int64_t b, int64_t chunk_first,
                       uint8_t *slot)
{
    const struct hvi_shm_place *places = hvi_shm_places(s, s->local);
    size_t es = s->facts.elem_size;
    struct hvi_runs it;
    struct hvi_run r;

    hvi_runs_begin(&it, &s->plan, a, b);
    while (hvi_runs_next(&it, &r))
        if (!s->shares || places[r.piece].in_reach == HVI_SHM_STAGED)
            hvi_stores_copy(&s->slot_stores, slot + (size_t)(r.at - chunk_first) * es,
                            in_at(&s->g->pieces[r.piece], r.offset, es),
                            (size_t)r.count * es);
}

static void large_fill(struct hvi_shm *s, int64_t k)
{
    struct hvi_span c = hvi_chunks_chunk(&s->plan, k);
    struct hvi_span mine = hvi_chunks_slice(&s->plan, k, s->g->nmembers, s->g->me);
    uint8_t *slot = hvi_shm_data(s, s->g->me, k);
    int64_t begun = hvi_copy_begin(&s->base);

    hvi_shm_line(s, s->g->me, k)->inlined = 0;
    if (s->facts.joined)
        return;
    fill_range(s, c.first, mine.first, c.first, slot);
    fill_range(s, mine.first + mine.count, c.first + c.count, c.first, slot);
    hvi_copy_in(&s->base, begun);
}

/* The part of a run before, inside and behind `cut` of its piece; any may be empty. */
static void part_run(const struct hvi_run *r, struct hvi_span cut,
                     struct hvi_run out[3])
{
    int64_t ends[4] = {r->offset, cut.first, cut.first + cut.count,
                       r->offset + r->count};

    for (int i = 1; i < 3; i++) {
        ends[i] = ends[i] < ends[0] ? ends[0] : ends[i];
        ends[i] = ends[i] > ends[3] ? ends[3] : ends[i];
    }
    for (int i = 0; i < 3; i++)
        out[i] = (struct hvi_run){.piece = r->piece,
                                  .offset = ends[i],
                                  .count = ends[i + 1] - ends[i],
                                  .at = r->at + ends[i] - r->offset};
}

static void fold_copies(struct hvi_shm *s, const struct hvi_run *r, const void **src,
                        void *const *also, int nalso, bool also_stream)
{
    uint8_t *out = out_at(&s->g->pieces[r->piece], r->offset, s->facts.elem_size);

    hvi_reduce_fold_to_all(out, also, nalso, src, s->g->nmembers, r->count, s->g->dtype,
                           s->g->reduce_op, s->g->prescale, s->facts.post, also_stream);
}

/* A run that all members let others write, to all of them. */
static void fold_everywhere(struct hvi_shm *s, const struct hvi_run *r,
                            const void **src)
{
    const struct hvi_piece *p = &s->g->pieces[r->piece];
    void *also[HVI_SHM_MAX_RANKS];
    int n = 0;

    for (int32_t m = 0; m < s->g->nmembers; m++)
        if (m != s->g->me)
            also[n++] = hvi_shm_share_out(s, m, r->piece) +
                        (size_t)r->offset * s->facts.elem_size;
    fold_copies(s, r, src, also, n, s->stream && p->out != p->in);
}

/* A run of the own slice, over what all members have of it (src), to where peers look for
 * it: the output, or the place in the slot. */
static void fold_here(struct hvi_shm *s, const struct hvi_run *r, const void **src,
                      uint8_t *slot)
{
    const struct hvi_piece *p = &s->g->pieces[r->piece];
    size_t es = s->facts.elem_size;
    int64_t begun;

    if (s->shares &&
        hvi_shm_places(s, s->local)[r->piece].out_reach != HVI_SHM_STAGED) {
        fold(s, out_at(p, r->offset, es), src, r->count, false);
        return;
    }
    if (p->out != NULL && (p->out == p->in || !s->stream)) {
        fold_copies(s, r, src, (void *[]){slot}, 1, s->slot_stores.past);
        return;
    }
    fold(s, slot, src, r->count, s->slot_stores.past);
    begun = hvi_copy_begin(&s->base);
    if (p->out != NULL)
        hvi_reduce_copy(out_at(p, r->offset, es), slot, (size_t)r->count * es,
                        s->stream);
    hvi_copy_out(&s->base, begun);
}

/* One run of the own slice: in the slots (base) at the byte `at`, or in the tensors. */
static void fold_run(struct hvi_shm *s, const struct hvi_run *r,
                     const uint8_t *const *base, size_t at, uint8_t *slot)
{
    const void *src[HVI_SHM_MAX_RANKS];
    struct hvi_run parts[3];
    size_t es = s->facts.elem_size;

    part_run(r, hvi_shm_share_written(s, r->piece), parts);
    for (int i = 0; i < 3; i++) {
        const struct hvi_run *part = &parts[i];
        size_t here = at + (size_t)(part->at - r->at) * es;

        if (part->count == 0)
            continue;
        at_offset(s, s->g->nmembers, base, here,
                  in_at(&s->g->pieces[r->piece], part->offset, es), src);
        for (int32_t m = 0; m < s->g->nmembers; m++) {
            const uint8_t *in = hvi_shm_share_in(s, m, r->piece);

            if (in != NULL)
                src[m] = in + (size_t)part->offset * es;
        }
        if (i == 1)
            fold_everywhere(s, part, src);
        else
            fold_here(s, part, src, slot + here);
    }
}

static void large_fold(struct hvi_shm *s, int64_t k)
{
    struct hvi_span c = hvi_chunks_chunk(&s->plan, k);
    struct hvi_span mine = hvi_chunks_slice(&s->plan, k, s->g->nmembers, s->g->me);
    const uint8_t *base[HVI_SHM_MAX_RANKS];
    struct hvi_runs it;
    struct hvi_run r;

    staged(s, k, s->g->nmembers, base);
    hvi_runs_begin(&it, &s->plan, mine.first, mine.first + mine.count);
    while (hvi_runs_next(&it, &r))
        fold_run(s, &r, base, (size_t)(r.at - c.first) * s->facts.elem_size,
                 hvi_shm_data(s, s->g->me, k));
}

static void copy_out(struct hvi_shm *s, uint8_t *out, const uint8_t *from, size_t size)
{
    if (s->stream)
        hvi_reduce_copy(out, from, size, true);
    else
        hvi_stores_copy(&s->out_stores, out, from, size);
}

/* What member m has folded of a run that begins at this place in its slot. */
static void copy_run(struct hvi_shm *s, const struct hvi_run *r, int32_t m,
                     const uint8_t *slot)
{
    size_t es = s->facts.elem_size;
    const uint8_t *theirs = hvi_shm_share_out(s, m, r->piece);
    struct hvi_run parts[3];

    part_run(r, hvi_shm_share_written(s, r->piece), parts);
    for (int i = 0; i < 3; i += 2) { /* not what m has stored here itself */
        uint8_t *out = out_at(&s->g->pieces[r->piece], parts[i].offset, es);
        const uint8_t *from = theirs != NULL
                                  ? theirs + (size_t)parts[i].offset * es
                                  : slot + (size_t)(parts[i].at - r->at) * es;

        if (out != NULL)
            copy_out(s, out, from, (size_t)parts[i].count * es);
    }
}

static void large_copy(struct hvi_shm *s, int64_t k)
{
    struct hvi_span c = hvi_chunks_chunk(&s->plan, k);
    int64_t begun = hvi_copy_begin(&s->base);

    for (int32_t i = 1; i < s->g->nmembers; i++) {
        int32_t m = (s->g->me + i) % s->g->nmembers; /* not all from one at once */
        struct hvi_span theirs = hvi_chunks_slice(&s->plan, k, s->g->nmembers, m);
        const uint8_t *slot = hvi_shm_data(s, m, k);
        struct hvi_runs it;
        struct hvi_run r;

        hvi_runs_begin(&it, &s->plan, theirs.first, theirs.first + theirs.count);
        while (hvi_runs_next(&it, &r))
            copy_run(s, &r, m, slot + (size_t)(r.at - c.first) * s->facts.elem_size);
    }
    hvi_copy_out(&s->base, begun);
}

/* True: a step was filled. */
static bool try_fill(struct hvi_shm *s)
{
    int64_t n = s->plan.nchunks;

    if (s->filled == n || s->filled > s->copied + 2)
        return false;
    if (!s->all_direct) {
        if (!hvi_shm_slot_free(s, s->filled))
            return false;
        large_fill(s, s->filled);
        hvi_shm_set_filled(s, s->filled++);
        return true;
    }
    for (; s->nlines < s->nslots; s->nlines++)
        if (!hvi_shm_fill_slot_to_end(s, s->nlines, n))
            return false;
    s->filled = n;
    return true;
}

static enum hvd_status try_fold(struct hvi_shm *s, struct hvi_err *err)
{
    if (s->folded - s->copied >= (s->spin.yield ? AHEAD_CROWDED : AHEAD) &&
        !hvi_shm_share_writes_most(s))
        return HVD_INPROGRESS;
    if (s->folded == s->filled || !hvi_shm_all_filled(s, s->folded))
        return HVD_INPROGRESS;
    if (s->folded == 0) {
        enum hvd_status rc = hvi_shm_share_read(s, 0, err);

        if (rc != HVD_OK)
            return rc;
    }
    large_fold(s, s->folded);
    hvi_shm_set_reduced(s, s->folded++);
    return HVD_OK;
}

static bool try_copy(struct hvi_shm *s)
{
    if (s->copied == s->folded || !hvi_shm_all_reduced(s, s->copied))
        return false;
    large_copy(s, s->copied);
    hvi_shm_set_consumed(s, s->copied++);
    return true;
}

/* Whatever is possible, in the order of the pipeline; a rank whose tensors all peers
 * read where they lie may fold a little ahead of slower ones. The word to wait for is that
 * of the last step tried: that of the earliest step, which others owe. */
static enum hvd_status large_steps(struct hvi_shm *s, struct hvi_err *err)
{
    while (s->copied < s->plan.nchunks) {
        enum hvd_status rc;

        if (try_fill(s))
            continue;
        if (s->all_direct && try_copy(s))
            continue;
        rc = try_fold(s, err);
        if (rc == HVD_OK)
            continue;
        if (rc != HVD_INPROGRESS)
            return rc;
        if (!try_copy(s))
            return HVD_INPROGRESS;
    }
    return hvi_shm_share_check(s, err);
}

static enum hvd_status large_progress(struct hvi_shm *s, struct hvi_err *err)
{
    if (s->phase == HVI_SHM_LARGE) {
        enum hvd_status rc = large_steps(s, err);

        if (rc != HVD_OK)
            return rc;
        s->phase = HVI_SHM_ENDING;
    }
    if (s->shares && !hvi_shm_all_consumed(s, s->plan.nchunks - 1))
        return HVD_INPROGRESS;
    hvi_shm_share_end(s);
    return hvi_group_end(&s->facts, err);
}

/* ---- one member, or no elements: nobody to wait for */

static enum hvd_status alone_progress(struct hvi_shm *s, struct hvi_err *err)
{
    for (int32_t i = 0; i < s->g->npieces; i++) {
        const struct hvi_piece *p = &s->g->pieces[i];
        const void *src[1] = {p->in};

        if (p->out != NULL && p->count > 0)
            fold(s, p->out, src, p->count, s->stream && p->out != p->in);
    }
    return hvi_group_end(&s->facts, err);
}

static enum hvd_status start_alone(struct hvi_shm *s)
{
    s->progress = alone_progress;
    s->phase = HVI_SHM_DONE;
    return HVD_OK;
}

enum hvd_status hvi_shm_allreduce_start(struct hvi_shm *s, struct hvi_err *err)
{
    int64_t bytes = s->facts.total_bytes;
    enum hvd_status rc;

    hvi_group_alloc_all(s->g, &s->facts);
    if (s->g->nmembers == 1 || bytes == 0)
        return start_alone(s);
    if (bytes <= (int64_t)s->slot_bytes &&
        bytes <= HVI_SHM_SMALL_BYTES / s->g->nmembers) {
        s->progress = small_progress;
        s->phase = HVI_SHM_SMALL_FILL;
        return HVD_OK;
    }
    rc = hvi_chunks_plan(&s->plan, s->g->pieces, s->g->npieces, s->facts.elem_size,
                         hvi_shm_chunk_bytes(s, bytes) / (int64_t)s->facts.elem_size,
                         err);
    if (rc == HVD_OK)
        rc = hvi_shm_check_steps(s, s->plan.nchunks, err);
    s->progress = large_progress;
    s->phase = HVI_SHM_LARGE;
    s->filled = s->folded = s->copied = 0;
    s->nlines = 0;
    if (rc == HVD_OK)
        hvi_shm_share_begin(s);
    return rc;
}

/* ---- reducescatter */

static int64_t kept_elems(const struct hvi_shm *s, int32_t member)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < s->g->npieces; i++) {
        int64_t first;
        int64_t count;

        hvi_group_kept(s->g, i, member, &first, &count);
        sum += count;
    }
    return sum;
}

/* The next run of at most `left` elements of what a member keeps: piece, place in the
 * input, place in the member's output. False: no more. */
static bool next_run(const struct hvi_shm *s, int32_t member, struct hvi_shm_cursor *c,
                     int64_t left, struct hvi_run *out)
{
    for (; left > 0 && c->piece < s->g->npieces;
         *c = (struct hvi_shm_cursor){c->piece + 1, 0}) {
        int64_t first;
        int64_t count;

        hvi_group_kept(s->g, c->piece, member, &first, &count);
        if (c->at == count)
            continue;
        out->piece = c->piece;
        out->offset = first + c->at;
        out->at = c->at;
        out->count = count - c->at < left ? count - c->at : left;
        c->at += out->count;
        return true;
    }
    return false;
}

static void scatter_fill(struct hvi_shm *s, int64_t k)
{
    size_t es = s->facts.elem_size;
    uint8_t *slot = hvi_shm_data(s, s->g->me, k);
    size_t part_bytes = (size_t)s->part_elems * es;
    int64_t begun = hvi_copy_begin(&s->base);

    hvi_shm_line(s, s->g->me, k)->inlined = 0;
    for (int32_t m = 0; m < s->g->nmembers && !s->facts.joined; m++) {
        uint8_t *to = slot + (size_t)m * part_bytes;
        int64_t left = s->part_elems;
        struct hvi_run r;

        if (m == s->g->me)
            continue;
        for (; next_run(s, m, &s->cursors[m], left, &r); left -= r.count) {
            hvi_stores_copy(&s->slot_stores, to,
                            in_at(&s->g->pieces[r.piece], r.offset, es),
                            (size_t)r.count * es);
            to += (size_t)r.count * es;
        }
    }
    hvi_copy_in(&s->base, begun);
}

static void scatter_fold(struct hvi_shm *s, int64_t k)
{
    int32_t n = s->g->nmembers;
    const uint8_t *base[HVI_SHM_MAX_RANKS];
    const void *src[HVI_SHM_MAX_RANKS];
    size_t es = s->facts.elem_size;
    size_t at = (size_t)s->g->me * (size_t)s->part_elems * es;
    int64_t left = s->part_elems;
    struct hvi_run r;

    staged(s, k, n, base);
    for (; next_run(s, s->g->me, &s->cursors[s->nlocal], left, &r); left -= r.count) {
        const struct hvi_piece *p = &s->g->pieces[r.piece];

        at_offset(s, n, base, at, in_at(p, r.offset, es), src);
        if (p->out != NULL)
            fold(s, out_at(p, r.at, es), src, r.count, s->stream);
        at += (size_t)r.count * es;
    }
}

static enum hvd_status scatter_progress(struct hvi_shm *s, struct hvi_err *err)
{
    for (; s->step <= s->nsteps; s->step++, s->phase = HVI_SHM_FILL) {
        int64_t i = s->step;

        if (s->phase == HVI_SHM_FILL) {
            if (i < s->nsteps) {
                if (!hvi_shm_slot_free(s, i))
                    return HVD_INPROGRESS;
                scatter_fill(s, i);
                hvi_shm_set_filled(s, i);
            }
            s->phase = HVI_SHM_FOLD;
        }
        if (i >= 1) {
            if (!hvi_shm_all_filled(s, i - 1))
                return HVD_INPROGRESS;
            scatter_fold(s, i - 1);
            hvi_shm_set_consumed(s, i - 1);
        }
    }
    return hvi_group_end(&s->facts, err);
}

enum hvd_status hvi_shm_reducescatter_start(struct hvi_shm *s, struct hvi_err *err)
{
    int64_t unit = HVI_SLICE_ALIGN_BYTES / (int64_t)s->facts.elem_size;
    int64_t most = 0;

    for (int32_t m = 0; m < s->g->nmembers; m++) {
        int64_t n = kept_elems(s, m);

        most = n > most ? n : most;
    }
    hvi_group_alloc_all(s->g, &s->facts);
    memset(s->cursors, 0, ((size_t)s->nlocal + 1) * sizeof(*s->cursors));
    s->part_elems =
        (int64_t)s->slot_bytes / (int64_t)s->facts.elem_size / s->g->nmembers;
    if (s->part_elems > unit)
        s->part_elems -= s->part_elems % unit;
    s->nsteps = (most + s->part_elems - 1) / s->part_elems;
    s->progress = scatter_progress;
    s->phase = HVI_SHM_FILL;
    return hvi_shm_check_steps(s, s->nsteps, err);
}
