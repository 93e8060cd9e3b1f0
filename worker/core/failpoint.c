/* HVD_FAILPOINT=name:action[:count], for tests: at the count-th pass do it. */
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/core/ctx.h"

void hvi_failpoint(const char *name)
{
    static _Atomic long passes;
    const char *spec = getenv("HVD_FAILPOINT");
    size_t n = strlen(name);
    const char *action;
    const char *count;

    if (spec == NULL || strncmp(spec, name, n) != 0 || spec[n] != ':')
        return;
    action = spec + n + 1;
    count = strchr(action, ':');
    if (count != NULL && atomic_fetch_add(&passes, 1) + 1 < strtol(count + 1, NULL, 10))
        return;
    if (strncmp(action, "exit", 4) == 0)
        _exit(1);
    if (strncmp(action, "abort", 5) == 0)
        abort();
    if (strncmp(action, "kill", 4) == 0)
        raise(SIGKILL);
    if (strncmp(action, "stop", 4) == 0)
        raise(SIGSTOP);
}
