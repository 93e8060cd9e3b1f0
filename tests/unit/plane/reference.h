/** What a fold must give, written without the product's code: one element at a time,
 *  conversions by ldexp and nearbyint. And inputs that hold every kind of odd value. */
#ifndef HVI_TEST_PLANE_REFERENCE_H
#define HVI_TEST_PLANE_REFERENCE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include <hvd/hvd.h>

#include "proto/base/names.h"
#include "test.h"

static uint32_t bits_of(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static float float_of(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static float ref_from_f16(uint16_t h)
{
    int exponent = (h >> 10) & 31;
    int fraction = h & 1023;
    double v =
        exponent == 0 ? ldexp(fraction, -24) : ldexp(1024 + fraction, exponent - 25);

    if (exponent == 31)
        v = fraction != 0 ? (double)NAN : (double)INFINITY;
    return (float)(h & 0x8000 ? -v : v);
}

/* Nearest multiple of the spacing at |x|, ties to even; spacing is 2^(exponent -
 * digits), at least 2^lowest. */
static double ref_round(float x, int digits, int lowest)
{
    int exponent;
    int unit;

    frexp((double)x, &exponent);
    unit = exponent - digits < lowest ? lowest : exponent - digits;
    return ldexp(nearbyint(ldexp((double)x, -unit)), unit);
}

static uint16_t ref_to_f16(float x)
{
    uint16_t sign = signbit(x) ? 0x8000 : 0;
    double v;
    int exponent;

    if (isnan(x))
        return 0x7e00;
    v = isinf(x) ? (double)INFINITY : fabs(ref_round(x, 11, -24));
    if (v > 65504.0)
        return (uint16_t)(sign | 0x7c00);
    if (v < ldexp(1, -14))
        return (uint16_t)(sign | (uint16_t)ldexp(v, 24));
    frexp(v, &exponent);
    return (uint16_t)(sign | ((exponent + 14) << 10) |
                      ((uint16_t)ldexp(v, 11 - exponent) - 1024));
}

static uint16_t ref_to_bf16(float x)
{
    if (isnan(x))
        return 0x7fc0;
    if (isinf(x) || x == 0.0f)
        return (uint16_t)(bits_of(x) >> 16);
    return (uint16_t)(bits_of((float)ref_round(x, 8, -133)) >> 16);
}

/* One element of any type. Integers of up to 64 bits in i, floats of f16, bf16, f32 in
 * f. */
struct value {
    int64_t i;
    float f;
    double d;
};

static struct value ref_get(const void *p, int64_t at, uint32_t dtype)
{
    const char *b = (const char *)p + at * (int64_t)hvi_dtype_size(dtype);
    struct value v = {0, 0, 0};
    uint16_t h;

    switch (dtype) {
    case HVD_UINT8:
        v.i = *(const uint8_t *)b;
        break;
    case HVD_BOOL:
        v.i = *b != 0;
        break;
    case HVD_INT8:
        v.i = *(const int8_t *)b;
        break;
    case HVD_UINT16:
        memcpy(&h, b, 2);
        v.i = h;
        break;
    case HVD_INT16:
        memcpy(&h, b, 2);
        v.i = (int16_t)h;
        break;
    case HVD_INT32: {
        int32_t x;
        memcpy(&x, b, 4);
        v.i = x;
        break;
    }
    case HVD_INT64:
        memcpy(&v.i, b, 8);
        break;
    case HVD_FLOAT16:
        memcpy(&h, b, 2);
        v.f = ref_from_f16(h);
        break;
    case HVD_BFLOAT16:
        memcpy(&h, b, 2);
        v.f = float_of((uint32_t)h << 16);
        break;
    case HVD_FLOAT32:
        memcpy(&v.f, b, 4);
        break;
    case HVD_FLOAT64:
        memcpy(&v.d, b, 8);
        break;
    default:
        cr_assert_fail("dtype %u", dtype);
    }
    return v;
}

static void ref_put(void *p, int64_t at, uint32_t dtype, struct value v)
{
    char *b = (char *)p + at * (int64_t)hvi_dtype_size(dtype);
    uint16_t h;

    switch (dtype) {
    case HVD_FLOAT16:
        h = ref_to_f16(v.f);
        memcpy(b, &h, 2);
        break;
    case HVD_BFLOAT16:
        h = ref_to_bf16(v.f);
        memcpy(b, &h, 2);
        break;
    case HVD_FLOAT32:
        v.f = isnan(v.f) ? float_of(0x7fc00000u) : v.f;
        memcpy(b, &v.f, 4);
        break;
    case HVD_FLOAT64:
        v.d = isnan(v.d) ? fabs((double)NAN) : v.d;
        memcpy(b, &v.d, 8);
        break;
    default: /* the low bytes: little endian */
        memcpy(b, &v.i, hvi_dtype_size(dtype));
    }
}

#define PICK(a, b, lower) (isnan(a) || !((lower) ? (b) < (a) : (b) > (a)) ? (a) : (b))
#define FOLD_FLOAT(a, b, op)                                                           \
    ((op) == HVD_PRODUCT ? (a) * (b)                                                   \
     : (op) == HVD_MIN || (op) == HVD_MAX                                              \
         ? (isnan(b) ? (b) : PICK(a, b, (op) == HVD_MIN))                              \
         : (a) + (b))

static struct value ref_two(struct value a, struct value b, uint32_t dtype, uint32_t op)
{
    struct value r = {0, 0, 0};

    r.f = FOLD_FLOAT(a.f, b.f, op);
    r.d = FOLD_FLOAT(a.d, b.d, op);
    if (op == HVD_MIN)
        r.i = b.i < a.i ? b.i : a.i;
    else if (op == HVD_MAX)
        r.i = b.i > a.i ? b.i : a.i;
    else if (op == HVD_PRODUCT)
        r.i = (int64_t)((uint64_t)a.i * (uint64_t)b.i);
    else
        r.i = (int64_t)((uint64_t)a.i + (uint64_t)b.i);
    if (dtype == HVD_BOOL)
        r.i = r.i != 0;
    return r;
}

static int64_t ref_clamp(double d, uint32_t dtype)
{
    int bits = 8 * (int)hvi_dtype_size(dtype);
    bool is_unsigned = dtype == HVD_UINT8 || dtype == HVD_UINT16;
    double top = ldexp(1, is_unsigned ? bits : bits - 1);

    if (d >= top)
        return is_unsigned ? (int64_t)top - 1
                           : (int64_t)((UINT64_C(1) << (bits - 1)) - 1);
    if (is_unsigned)
        return d <= 0 ? 0 : (int64_t)d;
    return d < -top ? (int64_t)-top : (int64_t)d;
}

static struct value ref_scale(struct value v, uint32_t dtype, double scale)
{
    bool is_float = dtype >= HVD_FLOAT16 && dtype <= HVD_FLOAT64;

    if (scale == 1.0)
        return v;
    v.f *= (float)scale;
    v.d *= scale;
    if (!is_float)
        v.i = ref_clamp((double)v.i * scale, dtype);
    return v;
}

/* The integer as its own type holds it (a wrapped sum of int8 is an int8 again). */
static struct value ref_wrap(struct value v, uint32_t dtype)
{
    int64_t room;

    if (dtype >= HVD_FLOAT16 && dtype <= HVD_FLOAT64)
        return v;
    ref_put(&room, 0, dtype, v);
    return ref_get(&room, 0, dtype);
}

/* The 16-bit float as its own type holds it. */
static inline struct value ref_wrap_half(struct value v, uint32_t dtype)
{
    uint16_t room;

    ref_put(&room, 0, dtype, v);
    return ref_get(&room, 0, dtype);
}

static void ref_fold(void *out, const void *const *src, int nsrc, int64_t count,
                     uint32_t dtype, uint32_t op, double pre, double post)
{
    for (int64_t i = 0; i < count; i++) {
        struct value r = {0, 0, 0};
        int taken = 0;
        int last = 0;

        for (int k = 0; k < nsrc; k++) {
            struct value v;

            if (src[k] == NULL)
                continue;
            v = ref_scale(ref_get(src[k], i, dtype), dtype, pre);
            r = taken++ == 0 ? v : ref_wrap(ref_two(r, v, dtype, op), dtype);
            last = k;
        }
        if (taken == 1 && pre == 1.0 && post == 1.0 && dtype != HVD_BOOL) { /* a copy */
            int64_t size = hvi_dtype_size(dtype);

            memcpy((char *)out + i * size, (const char *)src[last] + i * size,
                   (size_t)size);
            continue;
        }
        ref_put(out, i, dtype, ref_scale(r, dtype, post));
    }
}

/* Every source on a host of its own: 16-bit floats are rounded after the prescale and
 * after every host, the last time with the postscale. At least two sources. */
static inline void ref_fold_hosts(void *out, const void *const *src, int nsrc,
                                  int64_t count, uint32_t dtype, uint32_t op,
                                  double pre, double post)
{
    int left = 0;

    for (int k = 0; k < nsrc; k++)
        left += src[k] != NULL;
    for (int64_t i = 0; i < count; i++) {
        struct value r = {0, 0, 0};
        int taken = 0;

        for (int k = 0; k < nsrc; k++) {
            struct value v;

            if (src[k] == NULL)
                continue;
            v = ref_wrap_half(ref_scale(ref_get(src[k], i, dtype), dtype, pre), dtype);
            r = taken == 0 ? v : ref_two(r, v, dtype, op);
            taken++;
            if (taken == left)
                r = ref_scale(r, dtype, post);
            r = ref_wrap_half(r, dtype);
        }
        ref_put(out, i, dtype, r);
    }
}

/* ---- inputs */

static _Thread_local uint64_t random_state;

static uint64_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

/* Half of the floats are numbers near 1, the others any bits: NaN, infinities,
 * subnormals and zeros of both signs are among them. */
static void fill(void *p, int64_t count, uint32_t dtype)
{
    static const uint16_t odd16[] = {0x8000, 0x0000, 0x7c00, 0xfc00, 0x7c01, 0xffff,
                                     0x0001, 0x83ff, 0x7bff, 0x7f80, 0xff81, 0x7f7f};
    static const uint32_t odd32[] = {0x80000000, 0,          0x7f800000, 0xff800000,
                                     0x7f800001, 0xffffffff, 1,          0x807fffff,
                                     0x7f7fffff, 0x00800000, 0x33000000, 0x38800000};
    static const uint64_t odd64[] = {UINT64_C(1) << 63,
                                     0,
                                     0x7ff0000000000000,
                                     0xfff0000000000000,
                                     0x7ff0000000000001,
                                     UINT64_MAX,
                                     1,
                                     0x800fffffffffffff,
                                     0x7fefffffffffffff,
                                     INT64_MAX,
                                     UINT64_C(1) << 62,
                                     0x0010000000000000};
    uint32_t size = hvi_dtype_size(dtype);

    for (int64_t i = 0; i < count; i++) {
        uint64_t u = random_bits();
        unsigned which = (unsigned)(u >> 60) % 12;
        char *b = (char *)p + i * (int64_t)size;
        struct value v = {(int64_t)(u >> 8), (float)(u >> 40) * 0x1p-23f - 1.0f,
                          (double)(u >> 11) * 0x1p-52 - 1.0};

        if (u % 8 == 0)
            memcpy(b, &u, size);
        else if (u % 8 == 1)
            memcpy(b,
                   size == 8   ? (const void *)&odd64[which]
                   : size == 4 ? (const void *)&odd32[which]
                               : (const void *)&odd16[which],
                   size);
        else
            ref_put(b, 0, dtype, v);
        if (dtype == HVD_BOOL && u % 3 != 0)
            *b = (char)(u % 3 - 1);
    }
}

#endif
