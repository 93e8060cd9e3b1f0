#include "hvdrun/agent/session.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#include "hvdrun/agent/spawn.h"
#include "hvdrun/io/procstat.h"

#define LOOKS_MAX 8 /* one that is killed may have forked after we passed */

/* Held by a pidfd from before the look: a number that is used again is not killed. */
static bool kill_if_of(pid_t pid, pid_t leader)
{
    int pidfd = hvi_pidfd_open(pid);
    bool killed = hvi_procstat_session(pid) == leader &&
                  (pidfd >= 0 ? hvi_pidfd_kill(pidfd) : kill(pid, SIGKILL)) == 0;

    if (pidfd >= 0)
        close(pidfd);
    return killed;
}

static bool kill_some(pid_t leader)
{
    DIR *proc = opendir("/proc");
    const struct dirent *e;
    bool found = false;

    if (proc == NULL)
        return false;
    while ((e = readdir(proc)) != NULL) {
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);

        if (pid > 1 && pid != leader)
            found |= kill_if_of(pid, leader);
    }
    closedir(proc);
    return found;
}

void hvi_session_kill(pid_t leader)
{
    for (int i = 0; i < LOOKS_MAX && kill_some(leader); i++)
        continue;
}
