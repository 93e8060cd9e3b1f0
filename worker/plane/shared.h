/**
 * Memory that other processes of the host can map: a sealed memfd, mapped once here.
 * What hvd_alloc hands out lies in such blocks; a plane may let peers read a tensor
 * where it lies, and store results there. Neither a plane nor a peer ever frees or
 * shrinks one.
 */
#ifndef HVI_PLANE_SHARED_H
#define HVI_PLANE_SHARED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hvi_shared {
    uint8_t *data;
    size_t size_bytes; /* whole pages */
    int fd;
    uint64_t inode, device; /* what a peer checks before it maps */
    _Atomic bool freed;     /* its owner is done with it; planes let go of it */
    _Atomic bool parted;    /* some of it was taken back: planes let go of it, too */
    _Atomic int refs;
};

size_t hvi_shared_page(void); /* bytes of a page */
/** Zeroed, one reference. NULL: no memory, descriptor, or above the file size limit. */
struct hvi_shared *hvi_shared_new(size_t size_bytes);
void hvi_shared_ref(struct hvi_shared *m);
void hvi_shared_unref(struct hvi_shared *m); /* NULL allowed */
/** The owner's end of it: its pages go at once, the addresses with the last reference.
 */
void hvi_shared_free(struct hvi_shared *m);
/** Bytes [at, at + size_bytes) lie in it. */
static inline bool hvi_shared_has(const struct hvi_shared *m, const void *at,
                                  size_t size_bytes)
{
    uintptr_t first = (uintptr_t)m->data;
    uintptr_t p = (uintptr_t)at;

    return p >= first && p - first <= m->size_bytes &&
           size_bytes <= m->size_bytes - (p - first);
}

/** Private pages that have nothing in them yet. NULL: no addresses left. */
uint8_t *hvi_shared_reserve(size_t size_bytes);
/**
 * From now on these pages are this process's alone, with what they hold at the moment:
 * what a peer stores through its mapping, however late, arrives nowhere. Whole pages of
 * the block, at least one; `own`, as many reserved ones, become them and are gone from
 * where they were. The block is parted: peers must not be sent to it any more. False: the
 * kernel refuses (too many mappings), nothing has changed.
 */
bool hvi_shared_take_back(struct hvi_shared *m, size_t offset, size_t size_bytes,
                          uint8_t *own);

/** Another process's block, through its descriptor: mapped for reading and writing. NULL:
 *  there is no such block, or this process may not see it. */
uint8_t *hvi_shared_map(int pid, int fd, uint64_t inode, uint64_t device,
                        size_t size_bytes);
void hvi_shared_unmap(uint8_t *data, size_t size_bytes);

#endif
