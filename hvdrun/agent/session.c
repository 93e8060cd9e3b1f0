#include "hvdrun/agent/session.h"

#include <dirent.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>

#include "hvdrun/agent/procstat.h"

#define LOOKS_MAX 8 /* one that is killed may have forked after we passed */

static bool kill_some(pid_t leader)
{
    DIR *proc = opendir("/proc");
    const struct dirent *e;
    bool found = false;

    if (proc == NULL)
        return false;
    while ((e = readdir(proc)) != NULL) {
        pid_t pid = (pid_t)strtol(e->d_name, NULL, 10);

        if (pid > 1 && pid != leader && hvi_procstat_session(pid) == leader)
            found |= kill(pid, SIGKILL) == 0;
    }
    closedir(proc);
    return found;
}

void hvi_session_kill(pid_t leader)
{
    for (int i = 0; i < LOOKS_MAX && kill_some(leader); i++)
        continue;
}
