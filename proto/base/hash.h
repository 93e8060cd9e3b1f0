/** uthash, set up so that running out of memory is a status and not exit(-1): after an
 * add ask hvi_hash_added(). An element that was not added must not be deleted. */
#ifndef HVI_BASE_HASH_H
#define HVI_BASE_HASH_H

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

#define hvi_hash_added(element) ((element)->hh.tbl != NULL)

#endif
