/** The processor's cache. */
#ifndef HVI_PLANE_CPU_CACHE_H
#define HVI_PLANE_CPU_CACHE_H

#include <stdint.h>

/** Bytes of the last-level cache that one of nranks ranks of this host has, as the kernel
 *  tells it; 8 MiB over nranks where it does not. Reads files. */
int64_t hvi_cache_share(int nranks);

#endif
