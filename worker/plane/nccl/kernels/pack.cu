/* pack.h on the device. scripts/ptx.sh makes pack.ptx of it, which is checked in. */
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
typedef unsigned long uintptr_t;
#define INT64_MAX 0x7fffffffffffffffL
#define _Static_assert static_assert
#define _STDINT_H
#define PACK_FN static __device__ __forceinline__

#include "../pack.h"

PACK_FN float pack_widen_f16(uint16_t h)
{
    float f;

    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(h));
    return f;
}

PACK_FN uint16_t pack_narrow_f16(float f)
{
    uint16_t h;

    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(f));
    return h;
}

#include "pack_body.inc"

extern "C" __global__ void __launch_bounds__(HVI_PACK_THREADS)
    hvd_pack(const struct hvi_pack_item *items, int32_t nitems, int64_t ntiles)
{
    for (int64_t tile = blockIdx.x; tile < ntiles; tile += gridDim.x) {
        const struct hvi_pack_item *it = &items[pack_find(items, nitems, tile)];

        pack_tile(it, tile - it->first_tile, (int)threadIdx.x, (int)blockDim.x);
    }
}
