/** f16 / bf16 <-> f32 in integers: exact, the same under every rounding and flush mode.
 */
#ifndef HVI_PLANE_REDUCE_HALF_H
#define HVI_PLANE_REDUCE_HALF_H

#include <stdint.h>
#include <string.h>

static inline uint32_t half_bits(float f)
{
    uint32_t u;

    memcpy(&u, &f, sizeof(u));
    return u;
}

static inline float half_float(uint32_t u)
{
    float f;

    memcpy(&f, &u, sizeof(f));
    return f;
}

static inline float half_widen_bf16(uint16_t b)
{
    uint32_t u = (uint32_t)b << 16;

    if ((u & 0x7fffffffu) > 0x7f800000u)
        u |= 0x00400000u; /* quiet */
    return half_float(u);
}

static inline uint16_t half_narrow_bf16(float f)
{
    uint32_t u = half_bits(f);

    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((u >> 16) | 0x0040u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float half_widen_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t fraction = h & 0x3ffu;

    if (exponent == 0x1fu) /* infinity, or NaN made quiet */
        return half_float(sign | 0x7f800000u | fraction << 13 |
                          (fraction != 0 ? 0x00400000u : 0));
    if (exponent == 0 && fraction != 0) { /* subnormal: shift the leading bit out */
        uint32_t shift = (uint32_t)__builtin_clz(fraction) - 21u;

        exponent = 1u - shift; /* wraps; 112 is added below */
        fraction = (fraction << shift) & 0x3ffu;
    } else if (exponent == 0) {
        return half_float(sign);
    }
    return half_float(sign | (exponent + 112u) << 23 | fraction << 13);
}

static inline uint16_t half_narrow_f16(float f)
{
    uint32_t u = half_bits(f);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t shift, kept, rest, tie;

    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u | ((u >> 13) & 0x3ffu));
    if (u >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (u >=
        0x38800000u) { /* normal: rebias, then round; a carry raises the exponent */
        u -= 0x38000000u;
        return (uint16_t)(sign | (u + 0xfffu + ((u >> 13) & 1u)) >> 13);
    }
    if (u < 0x33000000u) /* less than half the smallest subnormal */
        return (uint16_t)sign;
    shift = 126u - (u >> 23); /* 14 to 24 */
    u = (u & 0x007fffffu) | 0x00800000u;
    kept = u >> shift;
    rest = u & ((1u << shift) - 1u);
    tie = 1u << (shift - 1u);
    return (uint16_t)(sign | (kept + (rest > tie || (rest == tie && (kept & 1u)))));
}

#endif
