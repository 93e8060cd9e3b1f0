#include "worker/plane/nccl/plan.h"

#include <stdlib.h>

#include "worker/plane/plane.h"

static int64_t min_i64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static size_t padded(int64_t count, uint32_t elem_size)
{
    size_t bytes = (size_t)count * elem_size;

    return (bytes + HVI_PART_ALIGN - 1) / HVI_PART_ALIGN * HVI_PART_ALIGN;
}

static bool reserve(void **list, int32_t *cap, int32_t n, size_t size)
{
    int32_t want = *cap > 0 ? *cap * 2 : 64;
    void *more;

    if (n < *cap)
        return true;
    more = realloc(*list, (size_t)want * size);
    if (more == NULL)
        return false;
    *list = more;
    *cap = want;
    return true;
}

static bool add_round(struct hvi_nccl_plan *plan)
{
    if (!reserve((void **)&plan->rounds, &plan->cap_rounds, plan->nrounds,
                 sizeof *plan->rounds))
        return false;
    plan->rounds[plan->nrounds++] = (struct hvi_round){.first_part = plan->nparts};
    return true;
}

static bool add_part(struct hvi_nccl_plan *plan, int32_t piece, int64_t first,
                     int64_t count)
{
    if (!reserve((void **)&plan->parts, &plan->cap_parts, plan->nparts,
                 sizeof *plan->parts))
        return false;
    plan->parts[plan->nparts++] =
        (struct hvi_part){.piece = piece, .first = first, .count = count};
    plan->rounds[plan->nrounds - 1].nparts++;
    return true;
}

/* Packed parts first, so that they are one range; then places for the others. */
static void place_round(struct hvi_nccl_plan *plan, struct hvi_round *r,
                        uint32_t elem_size, bool cast, size_t buffer_bytes)
{
    size_t most =
        buffer_bytes / 4 < HVI_DIRECT_BYTES ? buffer_bytes / 4 : HVI_DIRECT_BYTES;
    size_t at = 0;

    for (int32_t i = 0; i < r->nparts; i++) {
        struct hvi_part *p = &plan->parts[r->first_part + i];
        bool large = (size_t)p->count * elem_size >= most;

        p->packed = cast || (!large && r->nparts > 1);
        if (!p->packed)
            continue;
        p->offset = at;
        at += padded(p->count, elem_size);
    }
    r->packed_elems = (int64_t)(at / elem_size);
    for (int32_t i = 0; i < r->nparts; i++) {
        struct hvi_part *p = &plan->parts[r->first_part + i];

        if (p->packed)
            continue;
        p->offset = at;
        at += padded(p->count, elem_size);
    }
}

static int64_t all_bytes(const struct hvi_piece *pieces, int32_t npieces,
                         uint32_t elem_size)
{
    int64_t sum = 0;

    for (int32_t i = 0; i < npieces; i++)
        sum += (int64_t)padded(pieces[i].count, elem_size);
    return sum;
}

enum hvd_status hvi_nccl_plan(struct hvi_nccl_plan *plan,
                              const struct hvi_piece *pieces, int32_t npieces,
                              uint32_t elem_size, bool cast, size_t buffer_bytes,
                              struct hvi_err *err)
{
    int64_t most = (int64_t)(buffer_bytes / elem_size);
    int64_t total = all_bytes(pieces, npieces, elem_size);
    size_t limit = buffer_bytes;
    size_t used = 0;

    plan->nparts = plan->nrounds = 0;
    if (total > (int64_t)buffer_bytes + HVI_FIRST_BYTES && npieces > 1 &&
        buffer_bytes > HVI_FIRST_BYTES)
        limit = HVI_FIRST_BYTES;
    for (int32_t i = 0; i < npieces; i++) {
        for (int64_t at = 0; at < pieces[i].count;) {
            int64_t n = min_i64(pieces[i].count - at, most);
            size_t bytes = padded(n, elem_size);

            if (plan->nrounds == 0 || (used > 0 && used + bytes > limit)) {
                if (plan->nrounds > 0)
                    limit = buffer_bytes;
                used = 0;
                if (!add_round(plan))
                    return hvi_fail(err, HVD_ENOMEM, "out of memory");
            }
            if (!add_part(plan, i, at, n))
                return hvi_fail(err, HVD_ENOMEM, "out of memory");
            used += bytes;
            at += n;
        }
    }
    for (int32_t i = 0; i < plan->nrounds; i++)
        place_round(plan, &plan->rounds[i], elem_size, cast, buffer_bytes);
    return HVD_OK;
}

void hvi_nccl_plan_fini(struct hvi_nccl_plan *plan)
{
    free(plan->parts);
    free(plan->rounds);
    *plan = (struct hvi_nccl_plan){0};
}
