/*
 * hvd_alloc: memory that the ranks of a host can share. A large tensor has a block of
 * its own; small ones lie together in arenas, so that a thousand of them do not cost a
 * thousand descriptors and mappings. A table sorted by address tells where a pointer
 * lies: hvd_free is told a pointer only, and tensors may be parts of what was given out.
 */
#include "worker/core/alloc.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include <hvd/hvd.h>

#define ALIGN ((size_t)64)
#define ARENA_BYTES ((size_t)16 << 20)
#define SMALL_BYTES ((size_t)1 << 20)

struct extent {
    size_t at, size_bytes;
};

struct arena {
    struct hvi_shared *mem;
    struct extent *free; /* [nfree] sorted, never touching; room for cap */
    size_t nfree, cap;
    size_t used_to; /* beyond it nobody has written yet */
    struct arena *next;
};

struct hvi_region {
    uint8_t *data;
    size_t size_bytes;
    struct hvi_shared *mem;
    struct arena *arena; /* NULL: the block is this region's alone */
    int uses;            /* operations in flight */
    bool freed;
};

static struct {
    pthread_mutex_t lock;
    struct hvi_region **regions; /* [count] by address */
    size_t count, cap;
    _Atomic size_t live; /* count, read without the lock */
    struct arena *arenas;
} g = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* ---- the table; under the lock */

/* Regions that begin at or before p. */
static size_t upto(const void *p)
{
    size_t lo = 0;
    size_t hi = g.count;

    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;

        if ((uintptr_t)g.regions[mid]->data <= (uintptr_t)p)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static bool table_add(struct hvi_region *r)
{
    size_t at;

    if (g.count == g.cap) {
        size_t cap = g.cap > 0 ? g.cap * 2 : 64;
        struct hvi_region **bigger = realloc(g.regions, cap * sizeof *bigger);

        if (bigger == NULL)
            return false;
        g.regions = bigger;
        g.cap = cap;
    }
    at = upto(r->data);
    memmove(g.regions + at + 1, g.regions + at, (g.count - at) * sizeof *g.regions);
    g.regions[at] = r;
    g.live = ++g.count;
    return true;
}

static void table_remove(const struct hvi_region *r)
{
    size_t at = upto(r->data) - 1;

    g.count--;
    memmove(g.regions + at, g.regions + at + 1, (g.count - at) * sizeof *g.regions);
    g.live = g.count;
}

/* ---- arenas; under the lock */

static void arena_free(struct arena *a)
{
    if (a == NULL)
        return;
    if (a->mem != NULL)
        hvi_shared_free(a->mem);
    free(a->free);
    free(a);
}

static struct arena *arena_new(void)
{
    struct arena *a = calloc(1, sizeof *a);

    if (a == NULL)
        return NULL;
    a->cap = 16;
    a->free = malloc(a->cap * sizeof *a->free);
    a->mem = hvi_shared_new(ARENA_BYTES);
    if (a->free == NULL || a->mem == NULL) {
        arena_free(a);
        return NULL;
    }
    a->free[a->nfree++] = (struct extent){0, ARENA_BYTES};
    a->next = g.arenas;
    g.arenas = a;
    return a;
}

static bool arena_take(struct arena *a, size_t size, size_t *out)
{
    for (size_t i = 0; i < a->nfree; i++) {
        struct extent *e = &a->free[i];

        if (e->size_bytes < size)
            continue;
        *out = e->at;
        e->at += size;
        e->size_bytes -= size;
        if (e->size_bytes == 0) {
            a->nfree--;
            memmove(e, e + 1, (a->nfree - i) * sizeof *e);
        }
        return true;
    }
    return false;
}

/* There is room for one extent more: made when it was taken. */
static void arena_give(struct arena *a, struct extent gone)
{
    size_t i = 0;

    while (i < a->nfree && a->free[i].at < gone.at)
        i++;
    if (i < a->nfree && gone.at + gone.size_bytes == a->free[i].at) {
        a->free[i].at = gone.at;
        a->free[i].size_bytes += gone.size_bytes;
    } else {
        memmove(a->free + i + 1, a->free + i, (a->nfree - i) * sizeof *a->free);
        a->free[i] = gone;
        a->nfree++;
    }
    if (i > 0 && a->free[i - 1].at + a->free[i - 1].size_bytes == a->free[i].at) {
        a->free[i - 1].size_bytes += a->free[i].size_bytes;
        a->nfree--;
        memmove(a->free + i, a->free + i + 1, (a->nfree - i) * sizeof *a->free);
    }
}

/* Room to give back everything: each free extent but the last precedes a taken one. */
static bool arena_reserve(struct arena *a, size_t ntaken)
{
    struct extent *bigger;

    if (ntaken + 2 <= a->cap)
        return true;
    bigger = realloc(a->free, 2 * a->cap * sizeof *bigger);
    if (bigger == NULL)
        return false;
    a->free = bigger;
    a->cap *= 2;
    return true;
}

static size_t taken_of(const struct arena *a)
{
    size_t n = 0;

    for (size_t i = 0; i < g.count; i++)
        n += g.regions[i]->arena == a;
    return n;
}

static bool in_arena(struct hvi_region *r, size_t size)
{
    struct arena *a = g.arenas;
    size_t at = 0;

    while (a != NULL && !arena_take(a, size, &at))
        a = a->next;
    if (a == NULL) {
        a = arena_new();
        if (a == NULL || !arena_take(a, size, &at))
            return false;
    }
    if (!arena_reserve(a, taken_of(a) + 1)) {
        arena_give(a, (struct extent){at, size}); /* where it came from */
        return false;
    }
    if (at < a->used_to)
        memset(a->mem->data + at, 0, size);
    a->used_to = at + size > a->used_to ? at + size : a->used_to;
    *r = (struct hvi_region){a->mem->data + at, size, a->mem, a, 0, false};
    return true;
}

static void arena_drop(struct hvi_region *r)
{
    struct arena *a = r->arena;
    struct arena **at = &g.arenas;

    arena_give(a, (struct extent){(size_t)(r->data - a->mem->data), r->size_bytes});
    if (a->free[0].size_bytes < ARENA_BYTES)
        return;
    while (*at != a)
        at = &(*at)->next;
    *at = a->next;
    arena_free(a);
}

/* ---- regions */

static bool alone(struct hvi_region *r, size_t size)
{
    struct hvi_shared *m = hvi_shared_new(size);

    if (m == NULL)
        return false;
    *r = (struct hvi_region){m->data, m->size_bytes, m, NULL, 0, false};
    return true;
}

/* Nobody uses it any more; under the lock. */
static void give_back(struct hvi_region *r)
{
    if (r->arena != NULL)
        arena_drop(r);
    else
        hvi_shared_free(r->mem);
    free(r);
}

void *hvd_alloc(size_t size_bytes)
{
    struct hvi_region *r;
    void *data = NULL;
    bool got;

    if (size_bytes > SIZE_MAX / 2)
        return NULL;
    r = calloc(1, sizeof *r);
    if (r == NULL)
        return NULL;
    size_bytes = (size_bytes + ALIGN) / ALIGN * ALIGN; /* never 0 */
    pthread_mutex_lock(&g.lock);
    got =
        (size_bytes <= SMALL_BYTES && in_arena(r, size_bytes)) || alone(r, size_bytes);
    if (got && table_add(r)) {
        data = r->data;
        r = NULL;
    } else if (got) {
        give_back(r);
        r = NULL;
    }
    pthread_mutex_unlock(&g.lock);
    free(r);
    return data;
}

void hvd_free(void *data)
{
    size_t n;

    if (data == NULL)
        return;
    pthread_mutex_lock(&g.lock);
    n = upto(data);
    if (n > 0 && g.regions[n - 1]->data == data && !g.regions[n - 1]->freed) {
        struct hvi_region *r = g.regions[n - 1];

        r->freed = true;
        if (r->uses == 0) {
            table_remove(r);
            give_back(r);
        }
    }
    pthread_mutex_unlock(&g.lock);
}

struct hvi_region *hvi_region_find(const void *at, size_t size_bytes)
{
    struct hvi_region *r = NULL;
    size_t n;

    if (at == NULL || g.live == 0)
        return NULL;
    pthread_mutex_lock(&g.lock);
    n = upto(at);
    if (n > 0) {
        size_t offset = (size_t)((uintptr_t)at - (uintptr_t)g.regions[n - 1]->data);

        r = g.regions[n - 1];
        if (r->freed || offset > r->size_bytes || size_bytes > r->size_bytes - offset)
            r = NULL;
        else
            r->uses++;
    }
    pthread_mutex_unlock(&g.lock);
    return r;
}

void hvi_region_release(struct hvi_region *r)
{
    if (r == NULL)
        return;
    pthread_mutex_lock(&g.lock);
    if (--r->uses == 0 && r->freed) {
        table_remove(r);
        give_back(r);
    }
    pthread_mutex_unlock(&g.lock);
}

struct hvi_shared *hvi_region_block(const struct hvi_region *r)
{
    return r != NULL ? r->mem : NULL;
}
