/**
 * The one device kernel: a batch of copies, each with cast and scale, in one launch
 * whatever the number of tensors. It fills the fusion buffer (pack), empties it (unpack)
 * and scales in place. The body is plain C that nvcc compiles for the device and the
 * tests for the CPU (kernels/pack_body.inc).
 *
 * An item is cut into tiles of HVI_PACK_TILE elements; a block of HVI_PACK_THREADS
 * threads takes tiles in a grid-wide stride and finds the item of a tile by bisection.
 */
#ifndef HVI_PLANE_NCCL_PACK_H
#define HVI_PLANE_NCCL_PACK_H

#include <stdint.h>

#define HVI_PACK_TILE 4096 /* elements; a multiple of 16 */
#define HVI_PACK_THREADS 256
/* Of one launch, at most. More than any GPU holds at once: it gives a block that ends the next
 * one, where a launch that is just larger than the GPU would wait for its few last blocks. */
#define HVI_PACK_BLOCKS 16384
#define HVI_PACK_KERNEL "hvd_pack"

/** dst[i] = (to)(scale * src[i]); the scale is applied in the narrower integer type
 *  (saturating), in f32 for 16-bit floats. bool comes out as 0 or 1. src == 0: `fill`
 *  repeated, its low bytes in the size of `to`. */
struct hvi_pack_item {
    uint64_t dst, src;  /* device addresses, aligned to their elements */
    int64_t count;      /* elements */
    int64_t first_tile; /* of all items' tiles, this item's first */
    double scale;       /* 1.0: none */
    uint64_t fill;
    uint32_t from, to; /* enum hvd_dtype */
};
_Static_assert(sizeof(struct hvi_pack_item) == 56, "layout is shared with the kernel");

static inline int64_t hvi_pack_tiles(int64_t count)
{
    return (count + HVI_PACK_TILE - 1) / HVI_PACK_TILE;
}

#endif
