/** Adasum of vectors at hand: the properties that its paper promises. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "test.h"
#include "worker/plane/reduce/reduce.h"
#include "worker/plane/sched/adasum.h"

enum { COUNT = 1100 }; /* more than one block, not a multiple of the lanes */

static void fold(double *out, double *const *src, int n, int64_t count)
{
    void *scratch = malloc(hvi_adasum_scratch_size(n, count, HVD_FLOAT64) + 1);

    cr_assert_not_null(scratch);
    hvi_adasum_fold(out, (const void *const *)src, n, count, HVD_FLOAT64, scratch);
    free(scratch);
}

static void close_to(double got, double want, const char *what)
{
    cr_assert(fabs(got - want) <= 1e-12 * (1 + fabs(want)), "%s: %g, not %g", what, got,
              want);
}

Test(adasum, parallel_vectors_average_and_orthogonal_ones_add, .timeout = 5)
{
    static double v[4][COUNT];
    static double out[COUNT];
    double *src[4] = {v[0], v[1], v[2], v[3]};

    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < 4; k++)
            v[k][i] = sin(i + 1) * 3;
    fold(out, src, 4, COUNT);
    for (int i = 0; i < COUNT; i++)
        close_to(out[i], v[0][i], "four equal vectors");
    for (int i = 0; i < COUNT; i++)
        for (int k = 0; k < 4; k++)
            v[k][i] = i % 4 == k ? i + 1 : 0;
    fold(out, src, 4, COUNT);
    for (int i = 0; i < COUNT; i++)
        close_to(out[i], i + 1, "four orthogonal vectors");
}

Test(adasum, a_zero_vector_adds_nothing, .timeout = 5)
{
    static double zero[COUNT];
    static double v[COUNT];
    static double out[COUNT];

    for (int i = 0; i < COUNT; i++)
        v[i] = cos(i);
    fold(out, (double *[2]){zero, v}, 2, COUNT);
    cr_assert_eq(memcmp(out, v, sizeof(v)), 0);
    fold(out, (double *[2]){v, NULL}, 2, COUNT); /* NULL: zeros */
    cr_assert_eq(memcmp(out, v, sizeof(v)), 0);
}

Test(adasum, follows_the_formula, .timeout = 5)
{
    double a[3] = {1, 2, 3};
    double b[3] = {4, -1, 0.5};
    double out[3];
    double ab = 0;
    double aa = 0;
    double bb = 0;

    for (int i = 0; i < 3; i++) {
        ab += a[i] * b[i];
        aa += a[i] * a[i];
        bb += b[i] * b[i];
    }
    fold(out, (double *[2]){a, b}, 2, 3);
    for (int i = 0; i < 3; i++)
        close_to(out[i], a[i] * (1 - ab / (2 * aa)) + b[i] * (1 - ab / (2 * bb)), "2");
    fold(out, (double *[1]){a}, 1, 3);
    cr_assert_eq(memcmp(out, a, sizeof(a)), 0, "one vector is itself");
}

Test(adasum, the_result_may_replace_a_source, .timeout = 5)
{
    static double v[8][COUNT];
    static double want[COUNT];
    double *src[8];

    for (int k = 0; k < 8; k++) {
        src[k] = v[k];
        for (int i = 0; i < COUNT; i++)
            v[k][i] = sin(i * 8 + k);
    }
    fold(want, src, 8, COUNT);
    fold(v[5], src, 8, COUNT);
    cr_assert_eq(memcmp(v[5], want, sizeof(want)), 0);
}

Test(adasum, half_precision_is_rounded_once_at_the_end, .timeout = 5)
{
    enum { N = 300 };
    uint16_t half[4][N];
    double exact[4][N];
    double want[N];
    uint16_t out[N];
    double *src[4];
    const void *halves[4];
    void *scratch = malloc(hvi_adasum_scratch_size(4, N, HVD_FLOAT16));

    cr_assert_not_null(scratch);
    for (int k = 0; k < 4; k++) {
        src[k] = exact[k];
        halves[k] = half[k];
        for (int i = 0; i < N; i++) {
            half[k][i] = hvi_f32_to_f16((float)sin(i * 4 + k));
            exact[k][i] = (double)hvi_f16_to_f32(half[k][i]);
        }
    }
    fold(want, src, 4, N);
    hvi_adasum_fold(out, halves, 4, N, HVD_FLOAT16, scratch);
    for (int i = 0; i < N; i++)
        cr_assert(fabs((double)hvi_f16_to_f32(out[i]) - want[i]) <=
                      0x1p-11 * 1.001 * fmax(fabs(want[i]), 0x1p-14),
                  "element %d is %g, not %g", i, (double)hvi_f16_to_f32(out[i]),
                  want[i]);
    free(scratch);
}

Test(adasum, refuses_other_types_and_other_numbers_of_ranks, .timeout = 5)
{
    struct hvi_err err = {{0}};

    cr_assert_eq(hvi_adasum_check(4, HVD_FLOAT32, &err), HVD_OK);
    cr_assert_eq(hvi_adasum_check(1, HVD_FLOAT16, &err), HVD_OK);
    cr_assert_eq(hvi_adasum_check(3, HVD_FLOAT32, &err), HVD_EUNSUPPORTED);
    cr_assert_eq(hvi_adasum_check(0, HVD_FLOAT32, &err), HVD_EUNSUPPORTED);
    cr_assert_eq(hvi_adasum_check(4, HVD_BFLOAT16, &err), HVD_EUNSUPPORTED);
    cr_assert_eq(hvi_adasum_check(4, HVD_INT32, &err), HVD_EUNSUPPORTED);
    cr_assert_eq(hvi_adasum_scratch_size(2, INT64_MAX, HVD_FLOAT64), SIZE_MAX);
}
