/*
 * HVD_FAILPOINT=name:action[:count], for tests: at the count-th pass do it. Names: form, formed
 * (its plane, before it says so), announced, collective, moving (in the middle of one), moved,
 * leaving (before BYE), bye (after its echo).
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/core/ctx.h"

static const char *spec;

static void read_spec(void)
{
    spec = getenv("HVD_FAILPOINT");
}

void hvi_failpoint(const char *name)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    static _Atomic long passes;
    size_t n = strlen(name);
    const char *action;
    const char *count;

    pthread_once(&once, read_spec);
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
