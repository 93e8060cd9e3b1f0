/** The kernel's source on the CPU: index arithmetic, casts and scales, held to the CPU
 *  planes' element loops. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "test.h"
#include "worker/plane/nccl/pack.h"
#include "worker/plane/reduce/half.h"
#include "worker/plane/reduce/reduce.h"

#define PACK_FN static inline
PACK_FN float pack_widen_f16(uint16_t h)
{
    return half_widen_f16(h);
}
PACK_FN uint16_t pack_narrow_f16(float f)
{
    return half_narrow_f16(f);
}
#include "worker/plane/nccl/kernels/pack_body.inc"

#define MOST (3 * HVI_PACK_TILE + 77)
#define GUARD 0xa5

/* As the device: every thread of every block, in any order. */
static void run(const struct hvi_pack_item *items, int n, int nthreads)
{
    int64_t tiles = 0;

    for (int i = 0; i < n; i++)
        tiles += hvi_pack_tiles(items[i].count);
    for (int64_t tile = tiles - 1; tile >= 0; tile--)
        for (int thread = nthreads - 1; thread >= 0; thread--) {
            const struct hvi_pack_item *it = &items[pack_find(items, n, tile)];

            pack_tile(it, tile - it->first_tile, thread, nthreads);
        }
}

static uint64_t random_state = 99;
static uint8_t random_byte(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint8_t)(random_state >> 56);
}

static bool is_nan(const uint8_t *p, uint32_t dtype)
{
    double d;
    float f;

    if (dtype == HVD_FLOAT64) {
        memcpy(&d, p, sizeof(d));
        return isnan(d);
    }
    if (dtype < HVD_FLOAT16 || dtype > HVD_FLOAT32)
        return false;
    f = pack_load_float(p, 0, dtype);
    return isnan(f);
}

static void check_same_type(uint32_t dtype, double scale, int64_t count,
                            size_t shift_in, size_t shift_out)
{
    static uint8_t in[MOST * 8 + 64], out[MOST * 8 + 64], want[MOST * 8 + 64];
    size_t size = pack_size(dtype);
    size_t bytes = (size_t)count * size;
    uint8_t *to = out + 16 + shift_out * size;
    const uint8_t *from = in + shift_in * size;
    struct hvi_pack_item it = {.dst = (uint64_t)(uintptr_t)to,
                               .src = (uint64_t)(uintptr_t)from,
                               .count = count,
                               .scale = scale,
                               .from = dtype,
                               .to = dtype};

    for (size_t i = 0; i < sizeof(in); i++)
        in[i] = random_byte();
    memset(out, GUARD, sizeof(out));
    hvi_reduce_scale(want, from, count, dtype, scale);
    for (int64_t i = 0; dtype == HVD_BOOL && i < count; i++)
        want[i] = from[i] != 0;
    run(&it, 1, 7);
    for (size_t i = 0; i < (size_t)count; i++)
        cr_assert(memcmp(to + i * size, want + i * size, size) == 0 ||
                      (is_nan(to + i * size, dtype) && is_nan(want + i * size, dtype)),
                  "dtype %u scale %g: element %zu of %lld", dtype, scale, i,
                  (long long)count);
    cr_assert(to[-1] == GUARD && to[bytes] == GUARD, "written outside");
}

Test(pack, every_type_and_scale_is_as_on_the_cpu, .timeout = 30)
{
    static const int64_t counts[] = {1, 7, 8, 255, HVI_PACK_TILE, MOST};

    for (uint32_t dtype = 1; dtype < HVD_DTYPE_COUNT; dtype++)
        for (int s = 0; s < 3; s++)
            for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++)
                for (size_t shift = 0; shift < 3; shift++) {
                    double scale = dtype == HVD_BOOL || s == 0 ? 1.0
                                   : s == 1                    ? 0.3
                                                               : -2.5;

                    check_same_type(dtype, scale, counts[c], shift, shift * 2 % 3);
                }
}

Test(pack, sixteen_bit_integers_go_out_and_come_back, .timeout = 10)
{
    int16_t in[1000], out[1000];
    int32_t wide[1000];
    struct hvi_pack_item there = {.dst = (uint64_t)(uintptr_t)wide,
                                  .src = (uint64_t)(uintptr_t)in,
                                  .count = 1000,
                                  .scale = 0.5,
                                  .from = HVD_INT16,
                                  .to = HVD_INT32};
    struct hvi_pack_item back = {.dst = (uint64_t)(uintptr_t)out,
                                 .src = (uint64_t)(uintptr_t)wide,
                                 .count = 1000,
                                 .scale = 2.0,
                                 .from = HVD_INT32,
                                 .to = HVD_INT16};

    for (int i = 0; i < 1000; i++)
        in[i] = (int16_t)(i * 131 - 32000);
    run(&there, 1, 16);
    for (int i = 0; i < 1000; i++)
        cr_assert_eq(wide[i], in[i] / 2);
    wide[0] = 100000; /* the sum of many: wraps, as 16-bit sums do, and then scales */
    wide[1] = 20000;  /* saturates */
    run(&back, 1, 16);
    cr_assert_eq(out[0], INT16_MIN); /* 100000 is -31072 in 16 bits */
    cr_assert_eq(out[1], INT16_MAX);
    cr_assert_eq(out[2], in[2] / 2 * 2);
}

Test(pack, compression_is_part_of_the_copy, .timeout = 10)
{
    static const uint32_t halves[] = {HVD_FLOAT16, HVD_BFLOAT16};
    _Alignas(16) float in[HVI_PACK_TILE + 5], out[HVI_PACK_TILE + 5];
    _Alignas(16) uint16_t half[HVI_PACK_TILE + 5];

    for (int i = 0; i < HVI_PACK_TILE + 5; i++)
        in[i] = (float)(i - 2000) * 0.37f;
    for (int k = 0; k < 2; k++) {
        struct hvi_pack_item there = {.dst = (uint64_t)(uintptr_t)half,
                                      .src = (uint64_t)(uintptr_t)in,
                                      .count = HVI_PACK_TILE + 5,
                                      .scale = 0.25,
                                      .from = HVD_FLOAT32,
                                      .to = halves[k]};
        struct hvi_pack_item back = {.dst = (uint64_t)(uintptr_t)out,
                                     .src = (uint64_t)(uintptr_t)half,
                                     .count = HVI_PACK_TILE + 5,
                                     .scale = 4.0,
                                     .from = halves[k],
                                     .to = HVD_FLOAT32};

        run(&there, 1, 32);
        run(&back, 1, 32);
        for (int i = 0; i < HVI_PACK_TILE + 5; i++) {
            float narrow = k == 0 ? hvi_f16_to_f32(hvi_f32_to_f16(in[i] * 0.25f))
                                  : hvi_bf16_to_f32(hvi_f32_to_bf16(in[i] * 0.25f));

            cr_assert_eq(out[i], narrow * 4.0f, "element %d", i);
        }
    }
}

Test(pack, a_batch_finds_every_tensor, .timeout = 10)
{
    static uint8_t in[200][HVI_PACK_TILE * 2], out[200][HVI_PACK_TILE * 2];
    struct hvi_pack_item items[200];
    int64_t tiles = 0;

    for (int i = 0; i < 200; i++) {
        for (size_t k = 0; k < sizeof(in[i]); k++)
            in[i][k] = (uint8_t)(i * 7 + (int)k);
        items[i] =
            (struct hvi_pack_item){.dst = (uint64_t)(uintptr_t)out[i],
                                   .src = i % 5 == 4 ? 0 : (uint64_t)(uintptr_t)in[i],
                                   .count = 1 + (i * 409) % (HVI_PACK_TILE * 2),
                                   .scale = 1.0,
                                   .fill = 0x2a,
                                   .from = HVD_UINT8,
                                   .to = HVD_UINT8,
                                   .first_tile = tiles};
        tiles += hvi_pack_tiles(items[i].count);
    }
    run(items, 200, 5);
    for (int i = 0; i < 200; i++)
        for (int64_t k = 0; k < HVI_PACK_TILE * 2; k++)
            cr_assert_eq(out[i][k],
                         k >= items[i].count ? 0
                         : i % 5 == 4        ? 0x2a
                                             : in[i][k],
                         "tensor %d byte %lld", i, (long long)k);
}
