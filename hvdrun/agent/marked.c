#include "hvdrun/agent/marked.h"

/*
 * A descendant that has called setsid is in no group that we know, and once its parent
 * and the agent are dead it is init's child. What it cannot easily lose is its
 * environment. The process is held by a pidfd from before the look until the kill, so a
 * number that is used again is never killed.
 */

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "hvdrun/agent/spawn.h"
#include "proto/base/clock.h"

#define PAUSE_MS 5
#define QUIET_LOOKS 3
#define READ_BYTES (64 * 1024)

/* The entry may lie across two reads: what may be its begin is kept. */
static bool has_entry(int fd, const char *entry)
{
    static char buf[READ_BYTES];
    size_t want = strlen(entry) + 1; /* with its NUL */
    size_t have = 0;
    bool fresh = true; /* buf begins where an entry does */
    ssize_t n;

    while ((n = read(fd, buf + have, sizeof buf - have)) > 0) {
        char *p = buf;

        have += (size_t)n;
        for (;;) {
            size_t left = have - (size_t)(p - buf);
            char *end;

            if (fresh && left >= want && memcmp(p, entry, want) == 0)
                return true;
            end = memchr(p, '\0', left);
            if (end == NULL) {
                fresh = fresh && left < want; /* a long one that is not it is dropped */
                have = fresh ? left : 0;
                memmove(buf, p, have);
                break;
            }
            p = end + 1;
            fresh = true;
        }
    }
    return false;
}

/* True: it had the entry, and was killed. */
static bool look_at(pid_t pid, const char *entry)
{
    char path[64];
    int pidfd = hvi_pidfd_open(pid);
    bool found = false;
    int fd;

    if (pidfd < 0)
        return false;
    snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
    fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        found = has_entry(fd, entry) && hvi_pidfd_kill(pidfd) == 0;
        close(fd);
    }
    close(pidfd);
    return found;
}

void hvi_marked_kill(const char *entry, int limit_ms)
{
    int64_t deadline = hvi_now_ms() + limit_ms;
    int quiet = 0; /* looks in a row that found nothing: one may meet an exec */

    while (quiet < QUIET_LOOKS && hvi_now_ms() < deadline) {
        DIR *proc = opendir("/proc");
        const struct dirent *e;
        bool found = false;

        if (proc == NULL)
            return;
        while ((e = readdir(proc)) != NULL) {
            pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);

            if (pid > 1 && pid != getpid())
                found |= look_at(pid, entry);
        }
        closedir(proc);
        quiet = found ? 0 : quiet + 1;
        poll(NULL, 0, PAUSE_MS);
    }
}
