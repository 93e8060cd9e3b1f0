/**
 * Memory that other processes of the host can map: a sealed memfd, mapped once here.
 * What hvd_alloc hands out lies in such blocks; a plane may let peers read a tensor
 * where it lies. Neither a plane nor a peer ever frees or shrinks one.
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
    _Atomic int refs;
};

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

/** Another process's block, through its descriptor: mapped for reading. NULL: there is
 *  no such block, or this process may not see it. */
const uint8_t *hvi_shared_map(int pid, int fd, uint64_t inode, uint64_t device,
                              size_t size_bytes);
void hvi_shared_unmap(const uint8_t *data, size_t size_bytes);

#endif
