/** Folds against a reference written without the product's code (reference.h). Every
 *  instruction set of this CPU is held to it bit for bit. */
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/names.h"
#include "reference.h"
#include "test.h"
#include "worker/plane/reduce/reduce.h"

#define MAX_SRC 9

static const char *const isas[] = {"scalar", "avx2", "avx512", "neon"};
#define NISAS ((int)(sizeof(isas) / sizeof(isas[0])))

static const uint32_t ops[] = {HVD_AVERAGE, HVD_SUM, HVD_MIN, HVD_MAX, HVD_PRODUCT};
#define NOPS ((int)(sizeof(ops) / sizeof(ops[0])))

static void make_sources(void *own[MAX_SRC], int64_t count, uint32_t dtype)
{
    random_state = UINT64_C(0x9e3779b97f4a7c15) + dtype;
    for (int k = 0; k < MAX_SRC; k++) {
        own[k] = malloc((size_t)count * hvi_dtype_size(dtype) + 1);
        cr_assert_not_null(own[k]);
        fill(own[k], count, dtype);
    }
}

static void free_sources(void *own[MAX_SRC])
{
    for (int k = 0; k < MAX_SRC; k++)
        free(own[k]);
}

static void expect_equal(const void *got, const void *want, int64_t count,
                         uint32_t dtype, const char *what)
{
    int64_t size = hvi_dtype_size(dtype);

    for (int64_t i = 0; i < count; i++) {
        const unsigned char *g = (const unsigned char *)got + i * size;
        const unsigned char *w = (const unsigned char *)want + i * size;

        if (memcmp(g, w, (size_t)size) != 0) {
            uint64_t a = 0;
            uint64_t b = 0;

            memcpy(&a, g, (size_t)size);
            memcpy(&b, w, (size_t)size);
            cr_assert_fail("%s %s %s: element %lld of %lld is %#llx, not %#llx", what,
                           hvi_reduce_isa(), hvi_dtype_name(dtype), (long long)i,
                           (long long)count, (unsigned long long)a,
                           (unsigned long long)b);
        }
    }
}

static bool foldable(uint32_t dtype, uint32_t op)
{
    return hvi_reduce_check(dtype, op, 1.0, 1.0, NULL) == HVD_OK;
}

/* Fold sources on every instruction set, apart and streamed, and compare with want. */
static void fold_everywhere(void *out, const void *want, const void *const *src,
                            int nsrc, int64_t count, uint32_t dtype, uint32_t op,
                            double pre, double post)
{
    size_t bytes = (size_t)count * hvi_dtype_size(dtype);

    for (int s = 0; s < 2 * NISAS; s++) {
        if (hvi_reduce_force(isas[s / 2]) != HVD_OK)
            continue;
        memset(out, 0xa5, bytes);
        hvi_reduce_fold(out, src, nsrc, count, dtype, op, pre, false, -1, post, s % 2);
        expect_equal(out, want, count, dtype, hvi_reduce_op_name(op));
    }
}

/* ---- the promises */

static void check_counts(const int64_t *counts, int ncounts, int nsrc_step)
{
    int64_t most =
        counts[ncounts - 1] > MAX_SRC + 1 ? counts[ncounts - 1] : MAX_SRC + 1;

    for (uint32_t dtype = HVD_UINT8; dtype < HVD_DTYPE_COUNT; dtype++) {
        size_t bytes = (size_t)most * hvi_dtype_size(dtype) + 1;
        void *own[MAX_SRC];
        void *out = malloc(bytes);
        void *want = malloc(bytes);

        make_sources(own, most, dtype);
        for (int o = 0; o < NOPS; o++)
            for (int n = 1; n <= MAX_SRC && foldable(dtype, ops[o]); n += nsrc_step)
                for (int c = 0; c < ncounts; c++) {
                    /* negative: relative to the number of sources */
                    int64_t count = counts[c] < 0 ? n + counts[c] + 2 : counts[c];
                    const void *const *src = (const void *const *)own;

                    ref_fold(want, src, n, count, dtype, ops[o], 1.0, 1.0);
                    fold_everywhere(out, want, src, n, count, dtype, ops[o], 1.0, 1.0);
                }
        free_sources(own);
        free(out);
        free(want);
    }
}

Test(reduce, equals_the_reference_for_small_counts, .timeout = 60)
{
    const int64_t counts[] = {0, 1, -3, -2, -1, 63, 64, 65, 4097};

    check_counts(counts, 9, 1);
}

Test(reduce, equals_the_reference_across_many_blocks, .timeout = 120)
{
    const int64_t counts[] = {100003};

    check_counts(counts, 1, 4); /* 1, 5 and 9 sources */
}

Test(reduce, scales_before_and_after, .timeout = 60)
{
    static const double pairs[][2] = {{0.5, 1.0},  {1.0, 1.0 / 3.0}, {3.7, 0.1},
                                      {-1e6, 1e4}, {1e-30, 1.0},     {0.0, -2.0}};
    const int64_t count = 2061;

    for (uint32_t dtype = HVD_UINT8; dtype < HVD_BOOL; dtype++) {
        void *own[MAX_SRC];
        double out[2061];
        double want[2061];

        make_sources(own, count, dtype);
        for (int o = 0; o < NOPS; o++)
            for (int p = 0; p < 6; p++)
                for (int n = 1; n <= MAX_SRC; n++) {
                    const void *const *src = (const void *const *)own;

                    ref_fold(want, src, n, count, dtype, ops[o], pairs[p][0],
                             pairs[p][1]);
                    fold_everywhere(out, want, src, n, count, dtype, ops[o],
                                    pairs[p][0], pairs[p][1]);
                }
        free_sources(own);
    }
}

Test(reduce, skips_absent_sources, .timeout = 30)
{
    const int64_t count = 300;

    for (uint32_t dtype = HVD_UINT8; dtype < HVD_DTYPE_COUNT; dtype++) {
        void *own[MAX_SRC];
        double out[300];
        double want[300];

        make_sources(own, count, dtype);
        for (int o = 0; o < NOPS; o++)
            for (unsigned mask = 0; mask < 128 && foldable(dtype, ops[o]); mask++) {
                const void *src[7];

                for (int k = 0; k < 7; k++)
                    src[k] = mask >> k & 1 ? own[k] : NULL;
                if (mask == 0)
                    hvi_reduce_neutral(want, count, dtype, ops[o]);
                else
                    ref_fold(want, src, 7, count, dtype, ops[o], 1.0, 1.0);
                fold_everywhere(out, want, src, 7, count, dtype, ops[o], 1.0, 1.0);
            }
        free_sources(own);
    }
}

Test(reduce, writes_over_any_source, .timeout = 30)
{
    const int64_t count = 3001;

    for (uint32_t dtype = HVD_UINT8; dtype < HVD_DTYPE_COUNT; dtype++) {
        uint32_t op = dtype == HVD_BOOL ? HVD_SUM : HVD_AVERAGE;
        double post = dtype == HVD_BOOL ? 1.0 : 0.25;
        size_t bytes = (size_t)count * hvi_dtype_size(dtype);

        for (int n = 1; n <= MAX_SRC; n++)
            for (int target = 0; target < 2 * n; target++) {
                void *own[MAX_SRC];
                double want[3001];
                const void *const *src = (const void *const *)own;

                make_sources(own, count, dtype);
                ref_fold(want, src, n, count, dtype, op, 1.0, post);
                hvi_reduce_force(isas[(n + target) % NISAS]); /* absent: as before */
                hvi_reduce_fold(own[target / 2], src, n, count, dtype, op, 1.0, false,
                                -1, post, target % 2);
                cr_assert_eq(memcmp(own[target / 2], want, bytes), 0,
                             "%s over source %d of %d", hvi_dtype_name(dtype),
                             target / 2, n);
                free_sources(own);
            }
    }
}

/* Any address, also an odd one, and not a byte beside the result. */
Test(reduce, takes_any_address, .timeout = 60)
{
    const int64_t count = 1100;

    for (uint32_t dtype = HVD_UINT8; dtype < HVD_DTYPE_COUNT; dtype++)
        for (int shift = 1; shift < 64; shift += 5) {
            size_t bytes = (size_t)count * hvi_dtype_size(dtype);
            unsigned char room[3][1100 * 8 + 200];
            unsigned char want[1100 * 8];
            const void *src[2] = {room[0] + shift, room[1] + 3 * shift % 64};
            unsigned char *out = room[2] + shift * 7 % 64 + 64;

            random_state = 77;
            fill(room[0] + shift, count, dtype);
            fill(room[1] + 3 * shift % 64, count, dtype);
            ref_fold(want, src, 2, count, dtype, HVD_SUM, 1.0, 1.0);
            for (int s = 0; s < 2 * NISAS; s++) {
                if (hvi_reduce_force(isas[s / 2]) != HVD_OK)
                    continue;
                memset(room[2], 0x5a, sizeof(room[2]));
                hvi_reduce_fold(out, src, 2, count, dtype, HVD_SUM, 1.0, false, -1, 1.0,
                                s % 2);
                expect_equal(out, want, count, dtype, "shifted");
                for (unsigned char *p = room[2]; p < room[2] + sizeof(room[2]); p++)
                    if (*p != 0x5a && (p < out || p >= out + bytes))
                        cr_assert_fail("%s %s: byte %td beside the result",
                                       hvi_reduce_isa(), hvi_dtype_name(dtype),
                                       p - out);
            }
        }
}

/* Whoever folds, the bits are the same: own is rounded as a stager rounds. */
Test(reduce, staged_result_does_not_depend_on_who_folds, .timeout = 30)
{
    enum { N = 700 };

    for (uint32_t dtype = HVD_UINT8; dtype < HVD_BOOL; dtype++) {
        void *own[MAX_SRC];
        double ready[4][N];
        double want[N];
        double out[N];
        const void *src[4] = {ready[0], ready[1], ready[2], ready[3]};

        make_sources(own, N, dtype);
        for (int k = 0; k < 4; k++)
            hvi_reduce_scale(ready[k], own[k], N, dtype, 0.3);
        hvi_reduce_fold(want, src, 4, N, dtype, HVD_SUM, 0.3, true, -1, 0.7, false);
        for (int s = 0; s < NISAS; s++)
            for (int me = 0; me < 4 && hvi_reduce_force(isas[s]) == HVD_OK; me++) {
                src[me] = own[me];
                hvi_reduce_fold(out, src, 4, N, dtype, HVD_SUM, 0.3, true, me, 0.7,
                                false);
                src[me] = ready[me];
                expect_equal(out, want, N, dtype, "staged");
            }
        free_sources(own);
    }
}

Test(reduce, a_single_staged_source_is_a_copy, .timeout = 5)
{
    const uint16_t in[3] = {0x7c01, 0x8001, 0x3c00};
    const void *src[2] = {NULL, in};
    uint16_t out[3] = {0};

    hvi_reduce_fold(out, src, 2, 3, HVD_FLOAT16, HVD_SUM, 0.5, true, 0, 1.0, false);
    cr_assert_eq(memcmp(out, in, sizeof(in)), 0);
    hvi_reduce_fold(out, src, 2, 3, HVD_FLOAT16, HVD_SUM, 0.5, true, 1, 1.0, false);
    cr_assert_eq(out[0], 0x7e00);
    cr_assert_eq(out[1], 0x8000, "half the smallest subnormal ties to even");
    cr_assert_eq(out[2], 0x3800);
}

Test(reduce, scale_rounds_once, .timeout = 30)
{
    static const double scales[] = {1.0, 0.1, -3.0, 1e9, 0.0};
    const int64_t count = 2500;

    for (uint32_t dtype = HVD_UINT8; dtype < HVD_BOOL; dtype++) {
        void *own[MAX_SRC];
        double want[2500];
        double out[2500];

        make_sources(own, count, dtype);
        for (int c = 0; c < 5; c++)
            for (int s = 0; s < NISAS; s++) {
                size_t bytes = (size_t)count * hvi_dtype_size(dtype);

                if (hvi_reduce_force(isas[s]) != HVD_OK)
                    continue;
                ref_fold(want, (const void *const *)own, 1, count, dtype, HVD_SUM,
                         scales[c], 1.0);
                hvi_reduce_scale(out, own[0], count, dtype, scales[c]);
                expect_equal(out, want, count, dtype, "scaled");
                memcpy(out, own[0], bytes);
                hvi_reduce_scale(out, out, count, dtype, scales[c]);
                expect_equal(out, want, count, dtype, "scaled in place");
            }
        free_sources(own);
    }
}

Test(reduce, integers_saturate_and_truncate, .timeout = 5)
{
    const int64_t in64[4] = {INT64_MAX, INT64_MIN, 7, -7};
    const uint8_t in8[4] = {255, 1, 128, 3};
    int64_t out64[4];
    uint8_t out8[4];

    hvi_reduce_scale(out64, in64, 4, HVD_INT64, 2.0);
    cr_assert(out64[0] == INT64_MAX && out64[1] == INT64_MIN && out64[2] == 14);
    hvi_reduce_scale(out64, in64, 4, HVD_INT64, 0.5);
    cr_assert(out64[2] == 3 && out64[3] == -3);
    hvi_reduce_scale(out8, in8, 4, HVD_UINT8, 1.9);
    cr_assert(out8[0] == 255 && out8[1] == 1 && out8[2] == 243 && out8[3] == 5);
    hvi_reduce_scale(out8, in8, 4, HVD_UINT8, -1.0);
    cr_assert(out8[0] == 0 && out8[1] == 0 && out8[2] == 0 && out8[3] == 0);
}

Test(reduce, converts_every_16_bit_value, .timeout = 30)
{
    for (uint32_t u = 0; u < 65536; u++) {
        uint16_t h = (uint16_t)u;
        float f = hvi_f16_to_f32(h);
        float b = hvi_bf16_to_f32(h);

        if (isnan(ref_from_f16(h))) {
            cr_assert(isnan(f) && (bits_of(f) & 0x00400000u), "%#x is not a quiet NaN",
                      u);
            cr_assert_eq(hvi_f32_to_f16(f), h | 0x0200, "%#x", u);
        } else {
            cr_assert_eq(bits_of(f), bits_of(ref_from_f16(h)), "%#x", u);
            cr_assert_eq(hvi_f32_to_f16(f), h, "%#x", u);
        }
        if (isnan(float_of(u << 16)))
            cr_assert(isnan(b) && hvi_f32_to_bf16(b) == (h | 0x0040), "%#x", u);
        else
            cr_assert(bits_of(b) == u << 16 && hvi_f32_to_bf16(b) == h, "%#x", u);
    }
}

Test(reduce, rounds_to_nearest_even, .timeout = 60)
{
    static const uint32_t around[] = {0x33000000, 0x33000001, 0x32ffffff, 0x387fffff,
                                      0x38800000, 0x477fefff, 0x477ff000, 0x477fffff,
                                      0x7f7fffff, 0x7f7f7fff, 0x7f7f8000, 0x00008000,
                                      0x00007fff, 0x00018000, 0x38fff000, 0x3f801000};

    for (int i = 0; i < 16; i++)
        for (uint32_t sign = 0; sign < 2; sign++) {
            float f = float_of(around[i] | sign << 31);

            cr_assert_eq(hvi_f32_to_f16(f), ref_to_f16(f), "f16 of %a", (double)f);
            cr_assert_eq(hvi_f32_to_bf16(f), ref_to_bf16(f), "bf16 of %a", (double)f);
        }
    for (uint64_t u = 0; u <= UINT32_MAX; u += 3571) {
        float f = float_of((uint32_t)u);

        if (isnan(f))
            continue;
        if (hvi_f32_to_f16(f) != ref_to_f16(f) || hvi_f32_to_bf16(f) != ref_to_bf16(f))
            cr_assert_fail("%a is converted wrongly", (double)f);
    }
}

Test(reduce, neutral_elements_change_nothing, .timeout = 10)
{
    enum { N = 1037 };

    for (uint32_t dtype = HVD_UINT8; dtype < HVD_DTYPE_COUNT; dtype++)
        for (int o = 0; o < NOPS; o++) {
            void *own[MAX_SRC];
            double neutral[N + 1];
            double out[N];
            double want[N];
            const void *src[3] = {neutral, NULL, neutral};
            size_t bytes = N * hvi_dtype_size(dtype);

            if (!foldable(dtype, ops[o]))
                continue;
            make_sources(own, N, dtype);
            memset(neutral, 0x77, sizeof(neutral));
            hvi_reduce_neutral(neutral, N, dtype, ops[o]);
            cr_assert_eq(((unsigned char *)neutral)[bytes], 0x77, "wrote too far");
            src[1] = own[0];
            ref_fold(want, src, 3, N, dtype, ops[o], 1.0, 1.0);
            for (int64_t i = 0; i < N; i++) { /* what the fold gives is what went in */
                struct value v = ref_get(own[0], i, dtype);

                if (dtype == HVD_FLOAT64 ? v.d != 0 : v.f != 0 || v.i != 0)
                    ref_put(want, i, dtype, v);
            }
            hvi_reduce_fold(out, src, 3, N, dtype, ops[o], 1.0, false, -1, 1.0, false);
            expect_equal(out, want, N, dtype, "neutral");
            free_sources(own);
        }
}

Test(reduce, bool_takes_any_byte_as_true, .timeout = 5)
{
    const uint8_t a[4] = {0, 2, 0, 128};
    const uint8_t b[4] = {0, 0, 255, 1};
    const void *src[2] = {a, b};
    uint8_t out[4];

    hvi_reduce_fold(out, src, 2, 4, HVD_BOOL, HVD_SUM, 1.0, false, -1, 1.0, false);
    cr_assert_eq(memcmp(out, "\0\1\1\1", 4), 0);
    hvi_reduce_fold(out, src, 2, 4, HVD_BOOL, HVD_PRODUCT, 1.0, false, -1, 1.0, false);
    cr_assert_eq(memcmp(out, "\0\0\0\1", 4), 0);
    hvi_reduce_fold(out, src, 1, 4, HVD_BOOL, HVD_MAX, 1.0, false, -1, 1.0, false);
    cr_assert_eq(memcmp(out, "\0\1\0\1", 4), 0);
}

/* In place over source `target`, or apart (-1), with src[gone] = NULL (-1: none). */
static void check_twice(uint32_t dtype, int nsrc, int target, int gone, bool stream)
{
    enum { N = 3001 };
    double post = dtype == HVD_BOOL ? 1.0 : 0.25;
    const void *src[MAX_SRC];
    void *own[MAX_SRC];
    uint8_t apart[N * sizeof(double)];
    uint8_t also[N * sizeof(double) + 1];
    uint8_t want[N * sizeof(double)];
    void *out = apart;

    make_sources(own, N, dtype);
    for (int k = 0; k < nsrc; k++)
        src[k] = k == gone ? NULL : own[k];
    hvi_reduce_fold(want, src, nsrc, N, dtype, HVD_SUM, 1.0, false, -1, post, false);
    if (target >= 0)
        out = own[target];
    memset(apart, 0xa5, sizeof(apart));
    memset(also, 0xa5, sizeof(also));
    hvi_reduce_fold_to_all(out, (void *[]){also + 1}, 1, src, nsrc, N, dtype, HVD_SUM,
                           1.0, post, stream);
    expect_equal(out, want, N, dtype, "twice: the first");
    expect_equal(also + 1, want, N, dtype, "twice: the second");
    cr_assert_eq(also[0], 0xa5, "wrote before it");
    free_sources(own);
}

Test(reduce, gives_the_same_result_twice, .timeout = 30)
{
    for (int s = 0; s < NISAS; s++)
        for (uint32_t dtype = HVD_UINT8; dtype < HVD_DTYPE_COUNT; dtype++) {
            if (hvi_reduce_force(isas[s]) != HVD_OK)
                continue;
            for (int n = 1; n <= 6; n++)
                for (int target = -1; target < n; target++)
                    check_twice(dtype, n, target, n % 2 == 0 ? n - 1 : -1,
                                (n + target) % 2);
            check_twice(dtype, 1, -1, 0, true);
            check_twice(dtype, 2, 1, 0, true);
        }
}

Test(reduce, copies_any_range, .timeout = 20)
{
    unsigned char in[1000];
    unsigned char out[1000];

    for (int i = 0; i < 1000; i++)
        in[i] = (unsigned char)(i * 7 + 1);
    for (int s = 0; s < 2 * NISAS; s++) {
        if (hvi_reduce_force(isas[s / 2]) != HVD_OK)
            continue;
        for (size_t from = 0; from < 70; from += 3)
            for (size_t size = 0; size < 400; size += 13) {
                memset(out, 0, sizeof(out));
                hvi_reduce_copy(out + 64 + from, in + 2 * from, size, s % 2);
                cr_assert_eq(memcmp(out + 64 + from, in + 2 * from, size), 0);
                cr_assert(out[64 + from + size] == 0 && out[64 + from - 1] == 0);
            }
    }
}

/* The table of reduce.h and hvd.h, as a user reads it. */
Test(reduce, refuses_what_has_no_meaning, .timeout = 5)
{
    struct hvi_err err;

    for (uint32_t dtype = HVD_UINT8; dtype < HVD_DTYPE_COUNT; dtype++)
        for (uint32_t op = 0; op < HVD_REDUCE_OP_COUNT; op++) {
            bool adasum =
                dtype == HVD_FLOAT16 || dtype == HVD_FLOAT32 || dtype == HVD_FLOAT64;
            bool ok =
                op == HVD_ADASUM ? adasum : dtype != HVD_BOOL || op != HVD_AVERAGE;

            cr_assert_eq(hvi_reduce_check(dtype, op, 1.0, 1.0, &err),
                         ok ? HVD_OK : HVD_EUNSUPPORTED, "dtype %u op %u", dtype, op);
        }
    cr_assert_eq(hvi_reduce_check(HVD_BOOL, HVD_SUM, 2.0, 1.0, &err), HVD_EUNSUPPORTED);
    cr_assert_not_null(strstr(err.text, "bool"));
    cr_assert_eq(hvi_reduce_check(HVD_INT32, HVD_SUM, (double)INFINITY, 1.0, &err),
                 HVD_EINVAL);
    cr_assert_eq(hvi_reduce_check(HVD_FLOAT32, HVD_SUM, (double)INFINITY, 1.0, &err),
                 HVD_OK);
    cr_assert_eq(hvi_reduce_check(HVD_DTYPE_UNSET, HVD_SUM, 1.0, 1.0, &err),
                 HVD_EINVAL);
    cr_assert_eq(hvi_reduce_check(99, HVD_SUM, 1.0, 1.0, &err), HVD_EINVAL);
    cr_assert_eq(hvi_reduce_check(HVD_INT8, 6, 1.0, 1.0, NULL), HVD_EINVAL);
}

Test(reduce, forces_only_what_runs_here, .timeout = 5)
{
    cr_assert_eq(hvi_reduce_force("scalar"), HVD_OK);
    cr_assert_str_eq(hvi_reduce_isa(), "scalar");
    cr_assert_eq(hvi_reduce_force("mmx"), HVD_EUNSUPPORTED);
    cr_assert_str_eq(hvi_reduce_isa(), "scalar");
}
