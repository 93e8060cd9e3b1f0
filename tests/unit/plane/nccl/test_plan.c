/** How a fused allreduce is cut into rounds and parts. */
#include "test.h"
#include "worker/plane/nccl/plan.h"
#include "worker/plane/plane.h"

#define BUFFER 65536u

/* Every element once, in order; parts of a round do not overlap and fit the buffer. */
static void check(const struct hvi_nccl_plan *plan, const struct hvi_piece *pieces,
                  int32_t npieces, uint32_t elem_size, size_t buffer)
{
    int32_t piece = 0;
    int64_t at = 0;
    int32_t part = 0;

    for (int32_t r = 0; r < plan->nrounds; r++) {
        const struct hvi_round *round = &plan->rounds[r];
        size_t packed = 0;

        cr_assert_eq(round->first_part, part);
        cr_assert_gt(round->nparts, 0);
        for (int32_t i = 0; i < round->nparts; i++, part++) {
            const struct hvi_part *p = &plan->parts[part];
            size_t end = p->offset + (size_t)p->count * elem_size;

            while (at == pieces[piece].count) {
                piece++;
                at = 0;
            }
            cr_assert_eq(p->piece, piece);
            cr_assert_eq(p->first, at);
            at += p->count;
            cr_assert_eq(p->offset % HVI_PART_ALIGN, 0);
            cr_assert_leq(end, buffer);
            if (p->packed) {
                cr_assert_geq(p->offset, packed);
                packed = end;
                cr_assert_leq(end, (size_t)round->packed_elems * elem_size);
            } else {
                cr_assert_geq(p->offset, (size_t)round->packed_elems * elem_size);
            }
            for (int32_t k = round->first_part; k < part; k++) {
                const struct hvi_part *o = &plan->parts[k];
                size_t o_end = o->offset + (size_t)o->count * elem_size;

                cr_assert(o_end <= p->offset || end <= o->offset);
            }
        }
    }
    cr_assert_eq(part, plan->nparts);
    while (piece < npieces && at == pieces[piece].count) {
        piece++;
        at = 0;
    }
    cr_assert_eq(piece, npieces, "tensor %d is not covered", piece);
}

static void cut(struct hvi_nccl_plan *plan, const int64_t *counts, int32_t n,
                uint32_t elem_size, bool cast, size_t buffer)
{
    struct hvi_piece pieces[8] = {{0}};
    struct hvi_err err = {{0}};

    for (int32_t i = 0; i < n; i++)
        pieces[i].count = counts[i];
    cr_assert_eq(hvi_nccl_plan(plan, pieces, n, elem_size, cast, buffer, &err), HVD_OK);
    check(plan, pieces, n, elem_size, buffer);
}

Test(plan, every_element_is_in_one_part, .timeout = 20)
{
    static const uint32_t sizes[] = {1, 2, 4, 8};
    struct hvi_nccl_plan plan = {0};
    uint64_t random = 7;

    for (int i = 0; i < 3000; i++) {
        int64_t counts[8];
        int32_t n = 1 + (int32_t)(random >> 60) % 8;

        for (int32_t k = 0; k < n; k++) {
            random = random * 6364136223846793005u + 1442695040888963407u;
            counts[k] = (int64_t)(random >> 33) % (random >> 62 == 0 ? 40000 : 300);
        }
        cut(&plan, counts, n, sizes[i % 4], i % 3 == 0, BUFFER);
    }
    hvi_nccl_plan_fini(&plan);
}

Test(plan, one_large_tensor_is_reduced_where_it_lies, .timeout = 5)
{
    struct hvi_nccl_plan plan = {0};

    cut(&plan, (int64_t[]){100000}, 1, 4, false, BUFFER);
    cr_assert_eq(plan.nrounds, 7);
    for (int32_t i = 0; i < plan.nparts; i++)
        cr_assert_not(plan.parts[i].packed);
    cut(&plan, (int64_t[]){3}, 1, 4, false, BUFFER);
    cr_assert_not(plan.parts[0].packed, "a single one has nothing to be packed with");
    cut(&plan, (int64_t[]){3}, 1, 4, true, BUFFER);
    cr_assert(plan.parts[0].packed, "it changes its type");
    hvi_nccl_plan_fini(&plan);
}

Test(plan, small_ones_are_packed_beside_a_large_one, .timeout = 5)
{
    struct hvi_nccl_plan plan = {0};

    cut(&plan, (int64_t[]){10, 6000, 0, 20}, 4, 4, false, BUFFER);
    cr_assert_eq(plan.nrounds, 1);
    cr_assert_eq(plan.nparts, 3);
    cr_assert(plan.parts[0].packed && !plan.parts[1].packed && plan.parts[2].packed);
    cr_assert_eq(plan.rounds[0].packed_elems, 12 + 20);
    hvi_nccl_plan_fini(&plan);
}

Test(plan, a_long_backward_pass_begins_with_a_short_round, .timeout = 5)
{
    int64_t mib = 1024 * 1024 / 4;
    struct hvi_nccl_plan plan = {0};

    cut(&plan, (int64_t[]){mib / 2, mib / 2, 20 * mib, 20 * mib}, 4, 4, false,
        HVI_ROUND_BYTES);
    cr_assert_eq(plan.nrounds, 3);
    cr_assert_eq(plan.rounds[0].nparts, 2);
    cut(&plan, (int64_t[]){mib / 2, mib / 2, 20 * mib}, 3, 4, false, HVI_ROUND_BYTES);
    cr_assert_eq(plan.nrounds, 1, "it fits one round: no need for two");
    hvi_nccl_plan_fini(&plan);
}
