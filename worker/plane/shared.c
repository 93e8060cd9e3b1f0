#include "worker/plane/shared.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A peer that reads beyond the end of a file is killed: the size never changes. */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Beyond it ftruncate is answered by a signal. */
static bool within_limit(size_t size)
{
    struct rlimit limit;

    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
           limit.rlim_cur >= size;
}

static bool fill_in(struct hvi_shared *m)
{
    struct stat st;
    void *data;

    if (m->fd < 0 || ftruncate(m->fd, (off_t)m->size_bytes) != 0 ||
        fcntl(m->fd, F_ADD_SEALS, SEALS) != 0 || fstat(m->fd, &st) != 0)
        return false;
    data = mmap(NULL, m->size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
    if (data == MAP_FAILED)
        return false;
    m->data = data;
    m->inode = st.st_ino;
    m->device = st.st_dev;
    return true;
}

size_t hvi_shared_page(void)
{
    static _Atomic size_t page;

    if (page == 0)
        page = (size_t)sysconf(_SC_PAGESIZE);
    return page;
}

struct hvi_shared *hvi_shared_new(size_t size_bytes)
{
    size_t page = hvi_shared_page();
    struct hvi_shared *m;

    if (size_bytes > SIZE_MAX / 2)
        return NULL;
    size_bytes = (size_bytes + page - 1) / page * page;
    if (size_bytes == 0)
        size_bytes = page;
    if (!within_limit(size_bytes))
        return NULL;
    m = calloc(1, sizeof(*m));
    if (m == NULL)
        return NULL;
    m->size_bytes = size_bytes;
    atomic_init(&m->refs, 1);
    m->fd = memfd_create("hvd-tensor", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fill_in(m))
        return m;
    if (m->fd >= 0)
        close(m->fd);
    free(m);
    return NULL;
}

void hvi_shared_ref(struct hvi_shared *m)
{
    atomic_fetch_add(&m->refs, 1);
}

void hvi_shared_unref(struct hvi_shared *m)
{
    if (m == NULL || atomic_fetch_sub(&m->refs, 1) != 1)
        return;
    munmap(m->data, m->size_bytes);
    close(m->fd);
    free(m);
}

void hvi_shared_free(struct hvi_shared *m)
{
    /* A kernel that cannot do it frees them with the last mapping. */
    (void)!fallocate(m->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                     (off_t)m->size_bytes);
    atomic_store(&m->freed, true);
    hvi_shared_unref(m);
}

uint8_t *hvi_shared_reserve(size_t size_bytes)
{
    void *own = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    return own == MAP_FAILED ? NULL : own;
}

/* The copy replaces the pages in one step: another thread of this process that looks at
 * them meanwhile sees one or the other. */
bool hvi_shared_take_back(struct hvi_shared *m, size_t offset, size_t size_bytes,
                          uint8_t *own)
{
    uint8_t *at = m->data + offset;

    memcpy(own, at, size_bytes);
    if (mremap(own, size_bytes, size_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, at) != at)
        return false;
    atomic_store(&m->parted, true);
    /* Nobody needs the old ones; what stays of them goes with the block. */
    (void)!fallocate(m->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)offset,
                     (off_t)size_bytes);
    return true;
}

/* Between two namespaces of process numbers, pid may be a stranger: look before it is
 * opened, and at what was opened. */
uint8_t *hvi_shared_map(int pid, int fd, uint64_t inode, uint64_t device,
                        size_t size_bytes)
{
    char path[64];
    struct stat st;
    void *data = MAP_FAILED;
    int own;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", pid, fd);
    if (stat(path, &st) != 0 || st.st_ino != inode || st.st_dev != device)
        return NULL;
    own = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (own < 0)
        return NULL;
    if (fstat(own, &st) == 0 && st.st_ino == inode && st.st_dev == device &&
        size_bytes > 0 && (uint64_t)st.st_size == size_bytes &&
        (fcntl(own, F_GET_SEALS) & SEALS) == SEALS)
        data = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
    close(own);
    return data == MAP_FAILED ? NULL : data;
}

void hvi_shared_unmap(uint8_t *data, size_t size_bytes)
{
    if (data != NULL)
        munmap(data, size_bytes);
}
