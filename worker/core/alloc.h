/**
 * hvd_alloc's memory, as the rest of the library sees it: regions inside blocks that
 * peers can map. An operation holds the regions its tensors lie in until it completes;
 * one that is freed meanwhile goes only then.
 */
#ifndef HVI_CORE_ALLOC_H
#define HVI_CORE_ALLOC_H

#include <stddef.h>

#include "worker/plane/shared.h"

struct hvi_region;

/** The region that holds [at, at + size_bytes), held once more; NULL: ordinary memory.
 *  Any thread. */
struct hvi_region *hvi_region_find(const void *at, size_t size_bytes);
void hvi_region_release(struct hvi_region *r); /* NULL allowed */
/** Borrowed, while r is held. NULL for NULL. */
struct hvi_shared *hvi_region_block(const struct hvi_region *r);

#endif
