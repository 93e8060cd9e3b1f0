#include "worker/core/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "proto/base/env.h"
#include "worker/board/board.h"

#define PAGE 4096
#define NSLOTS 4
#define KIB ((size_t)1024)
#define POPULATE_MAX (64 * KIB * KIB) /* map larger segments page by page */
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

/* Larger slots amortize hand-overs; but what a rank stages and what it folds of a step
 * should both still be in its second-level cache (1 MiB is common) when they are read
 * again, and many ranks must fit memory limits. The variable is for measuring that; all
 * ranks of a host must have the same. */
enum hvd_status hvi_segment_slot_kib(int64_t *kib, struct hvi_err *err)
{
    int64_t n = 0;
    enum hvd_status rc = hvi_env_int("SHM_SLOT_KIB", 0, 4, 4096, &n, err);

    if (rc == HVD_OK && (n & (n - 1)) != 0)
        rc = hvi_fail(err, HVD_EINVAL,
                      "HVD_SHM_SLOT_KIB=%d: write a power of two, 4 to 4096", (int)n);
    if (rc == HVD_OK)
        *kib = n;
    return rc;
}

static size_t slot_bytes(int nlocal)
{
    int64_t kib = 0;

    if (hvi_segment_slot_kib(&kib, NULL) == HVD_OK && kib > 0)
        return (size_t)kib * KIB;
    return nlocal <= 32 ? 512 * KIB : 256 * KIB;
}

static size_t pages(size_t size_bytes)
{
    return (size_bytes + PAGE - 1) / PAGE * PAGE;
}

/* Offsets are the same on every rank: a function of nlocal. */
static void lay_out(struct hvi_segment *s, void *mem, int nlocal)
{
    size_t at = pages(sizeof(struct hvi_bells));

    s->mem = mem;
    s->bells = mem;
    s->board = (char *)mem + at;
    at += pages(hvi_board_size(nlocal));
    s->plane = (char *)mem + at;
}

static size_t total_bytes(int nlocal)
{
    return pages(sizeof(struct hvi_bells)) + pages(hvi_board_size(nlocal)) +
           pages(hvi_shm_size(nlocal, slot_bytes(nlocal), NSLOTS));
}

enum hvd_status hvi_segment_private(struct hvi_segment *s, struct hvi_err *err)
{
    size_t size = total_bytes(1);
    void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (mem == MAP_FAILED)
        return hvi_fail(err, HVD_ENOMEM, "no memory for %zu MiB of staging slots: %s",
                        size >> 20, strerror(errno));
    lay_out(s, mem, 1);
    s->size_bytes = size;
    hvi_board_format(s->board, 1, 0);
    hvi_board_set_forwarding(s->board);
    hvi_shm_format(s->plane, 1, slot_bytes(1), NSLOTS);
    return HVD_OK;
}

/* A number in a cgroup file; UINT64_MAX for "max" or no such file. */
static uint64_t cgroup_number(const char *dir, const char *name)
{
    char path[600];
    char text[64] = "";
    FILE *f;

    snprintf(path, sizeof path, "/sys/fs/cgroup%s/%s", dir, name);
    f = fopen(path, "re");
    if (f == NULL)
        return UINT64_MAX;
    if (fgets(text, sizeof text, f) == NULL)
        text[0] = '\0';
    fclose(f);
    if (text[0] < '0' || text[0] > '9')
        return UINT64_MAX;
    return strtoull(text, NULL, 10);
}

/* Memory that the cgroups above this process still allow. fallocate beyond it would be
 * answered by SIGKILL, not ENOMEM. */
static uint64_t cgroup_headroom(void)
{
    char line[512] = "";
    char *dir;
    uint64_t least = UINT64_MAX;
    FILE *f = fopen("/proc/self/cgroup", "re");

    if (f == NULL)
        return least;
    while (fgets(line, sizeof line, f) != NULL && strncmp(line, "0::", 3) != 0)
        line[0] = '\0';
    fclose(f);
    line[strcspn(line, "\n")] = '\0';
    dir = strlen(line) > 3 ? line + 3 : line;
    for (;;) {
        uint64_t max = cgroup_number(dir, "memory.max");
        uint64_t now = cgroup_number(dir, "memory.current");
        char *slash = strrchr(dir, '/');

        if (max != UINT64_MAX && now != UINT64_MAX &&
            (max > now ? max - now : 0) < least)
            least = max > now ? max - now : 0;
        if (slash == NULL || dir[0] == '\0')
            return least;
        *slash = '\0';
    }
}

static enum hvd_status check_limits(size_t size, int nlocal, struct hvi_err *err)
{
    struct rlimit limit;
    uint64_t room = cgroup_headroom();

    if (room < size)
        return hvi_fail(err, HVD_ENOMEM,
                        "no memory for the shared segment: %d ranks need %zu MiB, the "
                        "memory cgroup has %" PRIu64
                        " MiB left (memory.max); raise it or "
                        "start fewer ranks",
                        nlocal, size >> 20, room >> 20);
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < size)
        return hvi_fail(
            err, HVD_ELIMIT,
            "the shared segment of %d ranks needs %zu MiB, above the file size "
            "limit (ulimit -f)",
            nlocal, size >> 20);
    return HVD_OK;
}

static enum hvd_status map(int fd, size_t size, void **out, struct hvi_err *err)
{
    int populate = size <= POPULATE_MAX ? MAP_POPULATE : 0;
    void *mem = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | populate, fd, 0);

    if (mem == MAP_FAILED)
        return hvi_fail(err, HVD_ENOMEM, "cannot map the shared segment of %zu MiB: %s",
                        size >> 20, strerror(errno));
    *out = mem;
    return HVD_OK;
}

enum hvd_status hvi_segment_create(struct hvi_segment *s, int nlocal,
                                   bool several_hosts, uint64_t fusion_bytes,
                                   int *out_fd, struct hvi_err *err)
{
    size_t size = total_bytes(nlocal);
    enum hvd_status rc = check_limits(size, nlocal, err);
    void *mem = NULL;
    int error;
    int fd;

    if (rc != HVD_OK)
        return rc;
    fd = memfd_create("hvd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0)
        return hvi_fail(err,
                        errno == EMFILE || errno == ENFILE ? HVD_ELIMIT : HVD_ENOMEM,
                        "cannot make the shared segment: %s", strerror(errno));
    do
        error = fallocate(fd, 0, 0, (off_t)size) == 0 ? 0 : errno;
    while (error == EINTR);
    if (error != 0)
        rc =
            hvi_fail(err, HVD_ENOMEM, "no memory for the shared segment of %zu MiB: %s",
                     size >> 20, strerror(error));
    if (rc == HVD_OK && fcntl(fd, F_ADD_SEALS, SEALS) != 0)
        rc = hvi_fail(err, HVD_EIO, "cannot seal the shared segment: %s",
                      strerror(errno));
    if (rc == HVD_OK)
        rc = map(fd, size, &mem, err);
    if (rc != HVD_OK) {
        close(fd);
        return rc;
    }
    lay_out(s, mem, nlocal);
    s->size_bytes = size;
    hvi_board_format(s->board, nlocal, fusion_bytes);
    if (several_hosts)
        hvi_board_set_forwarding(s->board);
    hvi_shm_format(s->plane, nlocal, slot_bytes(nlocal), NSLOTS);
    *out_fd = fd;
    return HVD_OK;
}

enum hvd_status hvi_segment_map(struct hvi_segment *s, int nlocal, int fd,
                                struct hvi_err *err)
{
    size_t size = total_bytes(nlocal);
    struct stat st;
    void *mem = NULL;
    enum hvd_status rc;

    if (fstat(fd, &st) != 0 || st.st_size != (off_t)size ||
        (fcntl(fd, F_GET_SEALS) & SEALS) != SEALS)
        return hvi_fail(err, HVD_EPROTO,
                        "the shared segment has another size or no seals");
    rc = map(fd, size, &mem, err);
    if (rc != HVD_OK)
        return rc;
    lay_out(s, mem, nlocal);
    s->size_bytes = size;
    return HVD_OK;
}

void hvi_segment_fini(struct hvi_segment *s)
{
    if (s->mem != NULL)
        munmap(s->mem, s->size_bytes);
    memset(s, 0, sizeof *s);
}
