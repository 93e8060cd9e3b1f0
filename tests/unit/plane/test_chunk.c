/** Who works on which elements: every element exactly once, whatever the sizes. */
#include <stdlib.h>
#include <string.h>

#include "fault.h"
#include "test.h"
#include "worker/plane/plane.h"
#include "worker/plane/sched/chunk.h"

enum { MOST = 1200 };

static void plan_of(struct hvi_chunks *c, const int64_t *counts, int32_t n,
                    uint32_t size, int64_t chunk)
{
    struct hvi_err err = {{0}};

    cr_assert_eq(hvi_chunks_plan_counts(c, counts, n, size, chunk, &err), HVD_OK, "%s",
                 err.text);
}

Test(chunk, slices_cover_every_chunk_once_and_begin_on_cache_lines, .timeout = 20)
{
    static const uint32_t sizes[] = {1, 2, 4, 8};
    struct hvi_chunks c = {0};

    for (int64_t count = 0; count < MOST; count += 1 + count / 7)
        for (int i = 0; i < 4; i++)
            for (int32_t n = 1; n <= 9; n++) {
                int64_t unit = HVI_SLICE_ALIGN_BYTES / sizes[i];
                int64_t at = 0;

                plan_of(&c, &count, 1, sizes[i], 3 * unit);
                cr_assert_eq(c.nchunks, (count + 3 * unit - 1) / (3 * unit));
                for (int64_t k = 0; k < c.nchunks; k++) {
                    struct hvi_span whole = hvi_chunks_chunk(&c, k);
                    int64_t least = INT64_MAX;
                    int64_t most = 0;

                    cr_assert_eq(whole.first, k * 3 * unit);
                    for (int32_t m = 0; m < n; m++) {
                        struct hvi_span s = hvi_chunks_slice(&c, k, n, m);

                        cr_assert_eq(s.first, at, "slice %d of %d", m, n);
                        cr_assert(s.count == 0 || (s.first - whole.first) % unit == 0);
                        at += s.count;
                        least = s.count < least ? s.count : least;
                        most = s.count > most ? s.count : most;
                    }
                    cr_assert_eq(at, whole.first + whole.count);
                    cr_assert_leq(most - least, 2 * unit);
                }
                cr_assert_eq(at, count);
            }
    hvi_chunks_fini(&c);
}

Test(chunk, runs_give_every_element_of_every_tensor_back, .timeout = 20)
{
    static const int64_t counts[] = {0, 3, 0, 0, 7, 1, 0, 20, 0};
    enum { N = sizeof(counts) / sizeof(counts[0]), TOTAL = 31 };
    struct hvi_chunks c = {0};

    plan_of(&c, counts, N, 4, 16);
    cr_assert_eq(c.total, TOTAL);
    for (int64_t a = 0; a <= TOTAL; a++)
        for (int64_t b = a; b <= TOTAL; b++) {
            struct hvi_runs it;
            struct hvi_run r;
            int64_t at = a;

            hvi_runs_begin(&it, &c, a, b);
            while (hvi_runs_next(&it, &r)) {
                int64_t before = 0;

                for (int32_t i = 0; i < r.piece; i++)
                    before += counts[i];
                cr_assert_eq(r.at, at);
                cr_assert_eq(before + r.offset, at);
                cr_assert_gt(r.count, 0);
                cr_assert_leq(r.offset + r.count, counts[r.piece]);
                at += r.count;
            }
            cr_assert_eq(at, b, "runs of [%lld, %lld) end at %lld", (long long)a,
                         (long long)b, (long long)at);
        }
    hvi_chunks_fini(&c);
}

Test(chunk, a_plan_of_nothing_has_no_chunks, .timeout = 5)
{
    struct hvi_chunks c = {0};
    struct hvi_runs it;
    struct hvi_run r;

    plan_of(&c, NULL, 0, 8, 8);
    cr_assert_eq(c.nchunks, 0);
    hvi_runs_begin(&it, &c, 0, 0);
    cr_assert_not(hvi_runs_next(&it, &r));
    plan_of(&c, (int64_t[2]){0, 0}, 2, 8, 8);
    cr_assert_eq(c.nchunks, 0);
    hvi_chunks_fini(&c);
    hvi_chunks_fini(NULL);
}

Test(chunk, sizes_that_cannot_be_are_refused, .timeout = 5)
{
    struct hvi_chunks c = {0};
    struct hvi_err err = {{0}};
    int64_t huge[2] = {INT64_MAX / 8, 1};

    cr_assert_eq(hvi_chunks_plan_counts(&c, (int64_t[2]){4, -1}, 2, 4, 16, &err),
                 HVD_EINVAL);
    cr_assert(strstr(err.text, "tensor 1") != NULL, "%s", err.text);
    cr_assert_eq(hvi_chunks_plan_counts(&c, huge, 2, 8, 8, &err), HVD_ELIMIT);
    cr_assert_eq(hvi_chunks_plan_counts(&c, huge, 1, 8, 8, &err), HVD_OK);
    huge[0] = huge[1] = INT64_MAX;
    cr_assert_eq(hvi_chunks_plan_counts(&c, huge, 2, 1, 64, &err), HVD_ELIMIT);
    hvi_chunks_fini(&c);
}

Test(chunk, slices_of_the_largest_count_do_not_overflow, .timeout = 5)
{
    int64_t at = 0;

    for (int32_t m = 0; m < 7; m++) {
        struct hvi_span s = hvi_slice(INT64_MAX, 1, 7, m);

        cr_assert_eq(s.first, at);
        at += s.count;
    }
    cr_assert_eq(at, INT64_MAX);
}

Test(chunk, plans_survive_a_failed_allocation, .timeout = 5)
{
    struct hvi_chunks c = {0};
    struct hvi_err err = {{0}};
    int64_t counts[3] = {1, 2, 3};

    if (hvi_fault_available()) {
        hvi_fault_malloc_after(0);
        cr_assert_eq(hvi_chunks_plan_counts(&c, counts, 3, 4, 16, &err), HVD_ENOMEM);
        cr_assert(hvi_fault_malloc_off());
    }
    plan_of(&c, counts, 3, 4, 16);
    cr_assert_eq(c.total, 6);
    hvi_chunks_fini(&c);
}

Test(chunk, the_first_members_keep_one_row_more, .timeout = 5)
{
    for (int64_t rows = 0; rows < 40; rows++)
        for (int32_t n = 1; n <= 9; n++) {
            int64_t at = 0;

            for (int32_t m = 0; m < n; m++) {
                struct hvi_span s = hvi_rows_split(rows, n, m);

                cr_assert_eq(s.first, at);
                cr_assert_eq(s.count, rows / n + (m < rows % n));
                at += s.count;
            }
            cr_assert_eq(at, rows);
        }
}

Test(chunk, turns_send_a_window_ahead_and_bring_all_back)
{
    for (int64_t n = 0; n < 9; n++)
        for (int64_t window = 1; window < 5; window++) {
            int64_t out = 0;
            int64_t back = 0;

            for (int64_t i = 0; i < 2 * n; i++) {
                struct hvi_turn t = hvi_turn_at(n, window, i);

                cr_assert_eq(hvi_turns_out(n, window, i), out);
                cr_assert_eq(t.chunk, t.back ? back : out);
                cr_assert(!t.back || hvi_turn_of_back(n, window, back) == i);
                back += t.back;
                out += !t.back;
                cr_assert(back <= out && out - back <= window);
                cr_assert(!t.back || out == n || out - back == window - 1);
            }
            cr_assert(out == n && back == n);
        }
}
