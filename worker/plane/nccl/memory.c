/*
 * Device memory that libhvd owns: results nobody gave memory for.
 *
 * The driver's free waits for all that runs on the GPU. Memory that is let go of while work
 * may still read it (hvi_device_free_after) is parked with an event behind that work, and the
 * next result of about its size takes it once the event has come: a step that gathers frees
 * and allocates nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "proto/base/hash.h"
#include "worker/plane/nccl/device.h"

enum { PARKED_BLOCKS = 32 };
#define PARKED_BYTES ((size_t)256 << 20)

struct block {
    UT_hash_handle hh;
    void *data;
    size_t size_bytes;
    struct hvi_device *dev;
    struct block *next;      /* parked after it */
    struct hvi_event *after; /* parked: the last that uses it; NULL: nothing does */
};

static struct {
    pthread_mutex_t lock;
    struct block *blocks;           /* by address, in use */
    struct block *parked, **newest; /* oldest first */
    int nparked;
    size_t parked_bytes;
    _Atomic pid_t pid; /* that uses the GPUs */
    _Atomic int nblocks;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER, .newest = &g.parked};

/* Context current. */
static void block_free(struct block *b)
{
    if (b == NULL)
        return;
    if (b->after != NULL)
        b->dev->cu->event_sync(b->after->event);
    hvi_event_unref(b->after);
    b->dev->cu->mem_free((uint64_t)(uintptr_t)b->data);
    free(b);
}

/* ---- parked ---------------------------------------------------------------------- */

/* Under the lock: takes the block that *at points to. */
static struct block *unpark(struct block **at)
{
    struct block *b = *at;

    *at = b->next;
    if (b->next == NULL)
        g.newest = at;
    g.nparked--;
    g.parked_bytes -= b->size_bytes;
    return b;
}

/* Of that size or less than twice, and nothing uses it any more; else NULL. */
static struct block *unpark_for(struct hvi_device *dev, size_t size_bytes)
{
    struct block *found = NULL;

    pthread_mutex_lock(&g.lock);
    for (struct block **at = &g.parked; *at != NULL && found == NULL;
         at = &(*at)->next) {
        const struct block *b = *at;

        if (b->dev != dev || b->size_bytes < size_bytes ||
            b->size_bytes / 2 > size_bytes)
            continue;
        if (b->after == NULL ||
            dev->cu->event_query(b->after->event) == HVI_CU_SUCCESS) {
            found = unpark(at);
            break;
        }
    }
    pthread_mutex_unlock(&g.lock);
    if (found != NULL) {
        hvi_event_unref(found->after);
        found->after = NULL;
    }
    return found;
}

/* The oldest, while more is parked than that; or NULL. */
static struct block *unpark_oldest(int blocks, size_t bytes)
{
    struct block *b = NULL;

    pthread_mutex_lock(&g.lock);
    if (g.nparked > blocks || g.parked_bytes > bytes)
        b = unpark(&g.parked);
    pthread_mutex_unlock(&g.lock);
    return b;
}

static void park(struct block *b)
{
    pthread_mutex_lock(&g.lock);
    b->next = NULL;
    *g.newest = b;
    g.newest = &b->next;
    g.nparked++;
    g.parked_bytes += b->size_bytes;
    pthread_mutex_unlock(&g.lock);
}

/* ---- in use ---------------------------------------------------------------------- */

static enum hvd_status block_new(struct hvi_device *dev, size_t size_bytes,
                                 struct block **out, struct hvi_err *err)
{
    struct block *b = calloc(1, sizeof *b);
    struct block *old;
    uint64_t address = 0;
    enum hvd_status rc;
    char what[64];
    int cu;

    if (b == NULL)
        return hvi_fail(err, HVD_ENOMEM, "out of memory");
    snprintf(what, sizeof what, "%zu bytes of GPU memory", size_bytes);
    cu = dev->cu->mem_alloc(&address, size_bytes + 16);
    while (cu == HVI_CU_OUT_OF_MEMORY && (old = unpark_oldest(0, 0)) != NULL) {
        block_free(old);
        cu = dev->cu->mem_alloc(&address, size_bytes + 16);
    }
    rc = hvi_device_check(dev, cu, what, err);
    if (rc != HVD_OK) {
        free(b);
        return rc;
    }
    b->data = (void *)(uintptr_t)address;
    b->size_bytes = size_bytes;
    b->dev = dev;
    *out = b;
    return HVD_OK;
}

void *hvi_device_alloc(struct hvi_device *dev, size_t size_bytes, struct hvi_err *err)
{
    struct block *b;
    void *data = NULL;

    hvi_device_enter(dev);
    b = unpark_for(dev, size_bytes);
    if (b == NULL && block_new(dev, size_bytes, &b, err) != HVD_OK)
        goto done;
    data = b->data;
    atomic_store(&g.pid, getpid());
    pthread_mutex_lock(&g.lock);
    HASH_ADD_PTR(g.blocks, data, b);
    pthread_mutex_unlock(&g.lock);
    if (hvi_hash_added(b)) {
        atomic_fetch_add(&g.nblocks, 1);
    } else {
        block_free(b);
        data = NULL;
        hvi_fail(err, HVD_ENOMEM, "out of memory");
    }
done:
    hvi_device_leave(dev);
    return data;
}

/* false: not one of ours. *out NULL: one of ours, but not to be touched. */
static bool take_block(void *data, struct block **out)
{
    struct block *b = NULL;

    *out = NULL;
    if (data == NULL || atomic_load(&g.nblocks) == 0)
        return false;
    if (getpid() != atomic_load(&g.pid)) {
        /* a forked child cannot use the GPU, nor wait for the lock */
        if (pthread_mutex_trylock(&g.lock) != 0)
            return true;
        HASH_FIND_PTR(g.blocks, &data, b);
        pthread_mutex_unlock(&g.lock);
        return b != NULL;
    }
    pthread_mutex_lock(&g.lock);
    HASH_FIND_PTR(g.blocks, &data, b);
    if (b != NULL)
        HASH_DEL(g.blocks, b);
    pthread_mutex_unlock(&g.lock);
    if (b == NULL)
        return false;
    atomic_fetch_sub(&g.nblocks, 1);
    *out = b;
    return true;
}

bool hvi_device_free(void *data)
{
    return hvi_device_free_after(data, &(struct hvd_ready){.kind = HVD_READY_NONE});
}

bool hvi_device_free_after(void *data, const struct hvd_ready *last_use)
{
    struct hvi_err err = {{0}};
    struct hvi_device *dev;
    struct block *b = NULL;
    struct block *old;

    if (!take_block(data, &b))
        return false;
    if (b == NULL)
        return true;
    dev = b->dev;
    hvi_device_enter(dev);
    /* a refusal (a capture, the driver has left): the driver's free waits by itself */
    if (last_use->kind == HVD_READY_NONE ||
        hvi_device_ready(dev, last_use, &b->after, &err) != HVD_OK) {
        block_free(b);
    } else {
        park(b);
        while ((old = unpark_oldest(PARKED_BLOCKS, PARKED_BYTES)) != NULL)
            block_free(old);
    }
    hvi_device_leave(dev);
    return true;
}
