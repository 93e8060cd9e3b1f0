/**
 * Which stores a copy takes: ordinary ones, or such that go past the caches. Ordinary ones
 * are the quicker where writer and reader share a cache. Where they do not (two sockets,
 * two dies of one, or a virtual machine whose cores come and go between such) each line
 * that the other one has read costs a round trip first, and the copy takes several times as
 * long. No description of the machine says which of both it is now, so copies are timed,
 * and a small part of some of them is done the other way.
 */
#ifndef HVI_PLANE_CPU_STORES_H
#define HVI_PLANE_CPU_STORES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HVI_STORES_LEAST_BYTES = 16 * 1024, /* what is shorter is not timed */
    HVI_STORES_PROBE_BYTES = 8 * 1024,
    HVI_STORES_PROBE_EVERY = 8
};

/** Of one kind of target. Zeroed: nothing is known, ordinary stores. One thread. */
struct hvi_stores {
    int64_t cost[2]; /* ps a byte, lately: ordinary stores, those past the caches */
    uint32_t copies;
    bool past; /* the next copy goes past the caches */
};

/** A copy of size_bytes, done so or so, took so long: decides anew. */
void hvi_stores_took(struct hvi_stores *s, bool past, size_t size_bytes, int64_t ns);
/** memcpy. */
void hvi_stores_copy(struct hvi_stores *s, void *out, const void *in,
                     size_t size_bytes);

#endif
