/**
 * The work of one thread on one tile: the same source for the device (nvcc) and for the
 * CPU (tests). No includes of its own but integers: PACK_FN qualifies functions, and the
 * including file defines pack_widen_f16 and pack_narrow_f16.
 */
#ifndef HVI_PLANE_NCCL_PACK_BODY_H
#define HVI_PLANE_NCCL_PACK_BODY_H

/* enum hvd_dtype; the kernel does not see hvd.h */
enum {
    PACK_U8 = 1,
    PACK_I8 = 2,
    PACK_U16 = 3,
    PACK_I16 = 4,
    PACK_I32 = 5,
    PACK_I64 = 6,
    PACK_F16 = 7,
    PACK_BF16 = 8,
    PACK_F32 = 9,
    PACK_F64 = 10,
    PACK_BOOL = 11
};

struct pack_16 { /* one vector load or store */
    uint64_t a, b;
} __attribute__((aligned(16)));

union pack_bits {
    float f;
    uint32_t u;
};

PACK_FN float pack_widen_bf16(uint16_t b)
{
    union pack_bits v;

    v.u = (uint32_t)b << 16;
    return v.f;
}

PACK_FN uint16_t pack_narrow_bf16(float f)
{
    union pack_bits v;

    v.f = f;
    if ((v.u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((v.u >> 16) | 0x0040u);
    return (uint16_t)((v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16);
}

PACK_FN uint32_t pack_size(uint32_t dtype)
{
    switch (dtype) {
    case PACK_U16:
    case PACK_I16:
    case PACK_F16:
    case PACK_BF16:
        return 2;
    case PACK_I32:
    case PACK_F32:
        return 4;
    case PACK_I64:
    case PACK_F64:
        return 8;
    default:
        return 1;
    }
}

PACK_FN int pack_is_float(uint32_t dtype)
{
    return dtype >= PACK_F16 && dtype <= PACK_F32;
}

PACK_FN float pack_load_float(const void *p, int64_t i, uint32_t dtype)
{
    if (dtype == PACK_F16)
        return pack_widen_f16(((const uint16_t *)p)[i]);
    if (dtype == PACK_BF16)
        return pack_widen_bf16(((const uint16_t *)p)[i]);
    return ((const float *)p)[i];
}

PACK_FN void pack_store_float(void *p, int64_t i, uint32_t dtype, float v)
{
    if (dtype == PACK_F16)
        ((uint16_t *)p)[i] = pack_narrow_f16(v);
    else if (dtype == PACK_BF16)
        ((uint16_t *)p)[i] = pack_narrow_bf16(v);
    else
        ((float *)p)[i] = v;
}

PACK_FN int64_t pack_load_int(const void *p, int64_t i, uint32_t dtype)
{
    switch (dtype) {
    case PACK_I8:
        return ((const int8_t *)p)[i];
    case PACK_U16:
        return ((const uint16_t *)p)[i];
    case PACK_I16:
        return ((const int16_t *)p)[i];
    case PACK_I32:
        return ((const int32_t *)p)[i];
    case PACK_I64:
        return ((const int64_t *)p)[i];
    default:
        return ((const uint8_t *)p)[i];
    }
}

PACK_FN void pack_store_int(void *p, int64_t i, uint32_t dtype, int64_t v)
{
    switch (pack_size(dtype)) {
    case 2:
        ((uint16_t *)p)[i] = (uint16_t)v;
        break;
    case 4:
        ((uint32_t *)p)[i] = (uint32_t)v;
        break;
    case 8:
        ((int64_t *)p)[i] = v;
        break;
    default:
        ((uint8_t *)p)[i] = (uint8_t)v;
    }
}

/* What a value is in a type: the low bits, with that type's sign. */
PACK_FN int64_t pack_wrap(int64_t v, uint32_t dtype)
{
    switch (dtype) {
    case PACK_U8:
        return (uint8_t)v;
    case PACK_I8:
        return (int8_t)v;
    case PACK_U16:
        return (uint16_t)v;
    case PACK_I16:
        return (int16_t)v;
    case PACK_I32:
        return (int32_t)v;
    default:
        return v;
    }
}

/* As double, towards zero, saturating: the rule of the CPU planes. */
PACK_FN int64_t pack_scale_int(int64_t v, double scale, uint32_t dtype)
{
    const int64_t most = INT64_MAX;
    int is_signed =
        dtype == PACK_I8 || dtype == PACK_I16 || dtype == PACK_I32 || dtype == PACK_I64;
    uint32_t bits = 8 * pack_size(dtype) - (is_signed ? 1u : 0u);
    int64_t high = bits >= 63 ? most : ((int64_t)1 << bits) - 1;
    int64_t low = is_signed ? -high - 1 : 0;
    double d = (double)v * scale;

    return d >= (double)high ? high : d > (double)low ? (int64_t)d : low;
}

PACK_FN void pack_element(const struct hvi_pack_item *it, int64_t i)
{
    const void *src = (const void *)(uintptr_t)it->src;
    void *dst = (void *)(uintptr_t)it->dst;

    if (it->src == 0) {
        pack_store_int(dst, i, it->to == PACK_F64 ? PACK_I64 : it->to,
                       (int64_t)it->fill);
    } else if (pack_is_float(it->from)) {
        float v = pack_load_float(src, i, it->from);

        pack_store_float(dst, i, it->to, it->scale != 1.0 ? v * (float)it->scale : v);
    } else if (it->from == PACK_F64) {
        double v = ((const double *)src)[i];

        ((double *)dst)[i] = it->scale != 1.0 ? v * it->scale : v;
    } else if (it->from == PACK_BOOL) {
        ((uint8_t *)dst)[i] = ((const uint8_t *)src)[i] != 0;
    } else {
        uint32_t narrow = pack_size(it->from) < pack_size(it->to) ? it->from : it->to;
        int64_t v = pack_wrap(pack_load_int(src, i, it->from), narrow);

        if (it->scale != 1.0)
            v = pack_scale_int(v, it->scale, narrow);
        pack_store_int(dst, i, it->to, v);
    }
}

/* Bytes unchanged: 16 at a time where both ends allow it, then one at a time. */
PACK_FN void pack_raw(uint64_t dst, uint64_t src, int64_t bytes, int thread,
                      int nthreads)
{
    int64_t done = 0;

    if (((dst | src) & 15) == 0) {
        int64_t n = bytes / 16;

        for (int64_t i = thread; i < n; i += nthreads)
            ((struct pack_16 *)(uintptr_t)dst)[i] =
                ((const struct pack_16 *)(uintptr_t)src)[i];
        done = n * 16;
    } else if (((dst | src) & 3) == 0) {
        int64_t n = bytes / 4;

        for (int64_t i = thread; i < n; i += nthreads)
            ((uint32_t *)(uintptr_t)dst)[i] = ((const uint32_t *)(uintptr_t)src)[i];
        done = n * 4;
    }
    for (int64_t i = done + thread; i < bytes; i += nthreads)
        ((uint8_t *)(uintptr_t)dst)[i] = ((const uint8_t *)(uintptr_t)src)[i];
}

/* Eight floats of any of the three types in registers. */
PACK_FN void pack_load_8(float *v, uint64_t at, uint32_t dtype)
{
    union {
        struct pack_16 q[2];
        float f[8];
        uint16_t h[8];
    } x;

    x.q[0] = *(const struct pack_16 *)(uintptr_t)at;
    if (dtype == PACK_F32)
        x.q[1] = ((const struct pack_16 *)(uintptr_t)at)[1];
    for (int k = 0; k < 8; k++)
        v[k] = dtype == PACK_F32    ? x.f[k]
               : dtype == PACK_BF16 ? pack_widen_bf16(x.h[k])
                                    : pack_widen_f16(x.h[k]);
}

PACK_FN void pack_store_8(uint64_t at, const float *v, uint32_t dtype)
{
    union {
        struct pack_16 q[2];
        float f[8];
        uint16_t h[8];
    } x;

    for (int k = 0; k < 8; k++) {
        if (dtype == PACK_F32)
            x.f[k] = v[k];
        else
            x.h[k] =
                dtype == PACK_BF16 ? pack_narrow_bf16(v[k]) : pack_narrow_f16(v[k]);
    }
    *(struct pack_16 *)(uintptr_t)at = x.q[0];
    if (dtype == PACK_F32)
        ((struct pack_16 *)(uintptr_t)at)[1] = x.q[1];
}

/* Elements [first, end) of an item of floats; both addresses are multiples of 16 there. */
PACK_FN void pack_floats(const struct hvi_pack_item *it, int64_t first, int64_t end,
                         int thread, int nthreads)
{
    int64_t n = (end - first) / 8;
    float scale = (float)it->scale;

    for (int64_t i = thread; i < n; i += nthreads) {
        int64_t at = first + i * 8;
        float v[8];

        pack_load_8(v, it->src + (uint64_t)at * pack_size(it->from), it->from);
        for (int k = 0; k < 8; k++)
            v[k] *= scale;
        pack_store_8(it->dst + (uint64_t)at * pack_size(it->to), v, it->to);
    }
    for (int64_t i = first + n * 8 + thread; i < end; i += nthreads)
        pack_element(it, i);
}

/* One thread's part of tile `tile` of the item. */
PACK_FN void pack_tile(const struct hvi_pack_item *it, int64_t tile, int thread,
                       int nthreads)
{
    int64_t first = tile * HVI_PACK_TILE;
    int64_t end = first + HVI_PACK_TILE < it->count ? first + HVI_PACK_TILE : it->count;

    if (it->src != 0 && it->from == it->to && it->scale == 1.0 &&
        it->from != PACK_BOOL) {
        uint64_t offset = (uint64_t)first * pack_size(it->to);

        pack_raw(it->dst + offset, it->src + offset, (end - first) * pack_size(it->to),
                 thread, nthreads);
    } else if (it->src != 0 && pack_is_float(it->from) &&
               ((it->src | it->dst) & 15) == 0) {
        pack_floats(it, first, end, thread, nthreads);
    } else {
        for (int64_t i = first + thread; i < end; i += nthreads)
            pack_element(it, i);
    }
}

/* The item that a tile belongs to: the last one that begins at it or before. Items
 * without elements have no tiles. */
PACK_FN int pack_find(const struct hvi_pack_item *items, int nitems, int64_t tile)
{
    int low = 0;
    int high = nitems - 1;

    while (low < high) {
        int middle = (low + high + 1) / 2;

        if (items[middle].first_tile <= tile)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

#endif
