/*
 * hvd_alloc: memory in a memfd of its own, so that it can be shared with the ranks of a
 * host. A table keeps the sizes: hvd_free is told a pointer only.
 */
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <hvd/hvd.h>

#include "proto/base/hash.h"

#define PAGE 4096

struct block {
    UT_hash_handle hh;
    void *data;
    size_t size_bytes;
    int fd;
};

static struct {
    pthread_mutex_t lock;
    struct block *blocks;
} g = {PTHREAD_MUTEX_INITIALIZER, NULL};

void *hvd_alloc(size_t size_bytes)
{
    struct block *b = calloc(1, sizeof *b);

    if (b == NULL || size_bytes > SIZE_MAX / 2) {
        free(b);
        return NULL;
    }
    b->size_bytes = (size_bytes + PAGE) / PAGE * PAGE; /* never 0 */
    b->fd = memfd_create("hvd-tensor", MFD_CLOEXEC);
    if (b->fd < 0 || ftruncate(b->fd, (off_t)b->size_bytes) != 0)
        goto fail;
    b->data = mmap(NULL, b->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->fd, 0);
    if (b->data == MAP_FAILED)
        goto fail;
    pthread_mutex_lock(&g.lock);
    HASH_ADD_PTR(g.blocks, data, b);
    pthread_mutex_unlock(&g.lock);
    if (hvi_hash_added(b))
        return b->data;
    munmap(b->data, b->size_bytes);
fail:
    if (b->fd >= 0)
        close(b->fd);
    free(b);
    return NULL;
}

void hvd_free(void *data)
{
    struct block *b = NULL;

    if (data == NULL)
        return;
    pthread_mutex_lock(&g.lock);
    HASH_FIND_PTR(g.blocks, &data, b);
    if (b != NULL)
        HASH_DEL(g.blocks, b);
    pthread_mutex_unlock(&g.lock);
    if (b == NULL)
        return; /* not ours */
    munmap(b->data, b->size_bytes);
    close(b->fd);
    free(b);
}
