#include "proto/base/limits.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#define FDS_MAX 65536

static struct rlimit before; /* rlim_cur 0: not raised */

void hvi_limits_raise_fds(void)
{
    struct rlimit r;

    if (getrlimit(RLIMIT_NOFILE, &r) != 0 || r.rlim_cur >= r.rlim_max ||
        r.rlim_cur >= FDS_MAX)
        return;
    before = r;
    r.rlim_cur = r.rlim_max < FDS_MAX ? r.rlim_max : FDS_MAX;
    if (setrlimit(RLIMIT_NOFILE, &r) != 0)
        before.rlim_cur = 0;
}

void hvi_limits_restore_fds(void)
{
    if (before.rlim_cur != 0)
        (void)setrlimit(RLIMIT_NOFILE, &before);
}

/* Whether so many numbers are free among the first that the limit allows: one call, where to
 * open them all takes two for each. */
static bool seen_free(size_t want)
{
    struct pollfd at[256];
    struct rlimit r;
    size_t n = 0, unused = 0;

    if (getrlimit(RLIMIT_NOFILE, &r) != 0)
        return false;
    while (n < sizeof at / sizeof *at && n < r.rlim_cur) {
        at[n] = (struct pollfd){.fd = (int)n, .events = 0};
        n++;
    }
    if (want > n || poll(at, (nfds_t)n, 0) < 0)
        return false;
    for (size_t i = 0; i < n; i++)
        unused += (at[i].revents & POLLNVAL) != 0;
    return unused >= want;
}

/* How many of `want` can be opened. */
static size_t try_fds(size_t want)
{
    int *fd;
    size_t n = 0, got;

    if (seen_free(want))
        return want;
    fd = malloc((want + 1) * sizeof *fd);
    if (fd == NULL)
        return 0;
    while (n < want && (fd[n] = open("/", O_PATH | O_CLOEXEC)) >= 0)
        n++;
    got = n;
    while (n > 0)
        close(fd[--n]);
    free(fd);
    return got;
}

enum hvd_status hvi_limits_fds(size_t need, const char *whom, struct hvi_err *err)
{
    size_t got = try_fds(need);
    struct rlimit r = {0, 0};

    if (got >= need)
        return HVD_OK;
    (void)getrlimit(RLIMIT_NOFILE, &r);
    return hvi_fail(err, HVD_ELIMIT,
                    "the limit of %llu open files is too small for %s, which %s %llu; "
                    "raise it (ulimit -n)",
                    (unsigned long long)r.rlim_cur, whom,
                    strncmp(whom, "1 ", 2) == 0 || whom[0] > '9' ? "needs" : "need",
                    (unsigned long long)r.rlim_cur + need - got);
}

const char *hvi_limits_of_processes(int error)
{
    return error == EAGAIN ? "; raise the limit of processes there (ulimit -u, or "
                             "pids.max of the cgroup)"
                           : "";
}

enum hvd_status hvi_limits_memory(size_t size_bytes, struct hvi_err *err)
{
    void *p = mmap(NULL, size_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        return hvi_fail(
            err, HVD_ENOMEM,
            "no room for %zu MiB of memory: %s; raise the limit (ulimit -v)",
            size_bytes >> 20, strerror(errno));
    munmap(p, size_bytes);
    return HVD_OK;
}

uint64_t hvi_limits_oom_kills(void)
{
    FILE *f = fopen("/proc/vmstat", "re");
    unsigned long long n = 0;
    char line[128];

    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, "oom_kill %llu", &n) == 1)
            break;
    if (f != NULL)
        fclose(f);
    return n;
}
