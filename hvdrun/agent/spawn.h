/** Forking a worker so that it cannot outlive the agent. */
#ifndef HVI_AGENT_SPAWN_H
#define HVI_AGENT_SPAWN_H

#include <sched.h>
#include <stdbool.h>
#include <sys/types.h>

#include "hvdrun/agent/keeper.h"
#include "proto/base/err.h"

enum hvi_spawn_stage {
    HVI_SPAWN_UNSET = 0,
    HVI_SPAWN_FORK = 1,
    HVI_SPAWN_CHDIR = 2,
    HVI_SPAWN_EXEC = 3,
    HVI_SPAWN_TRACE = 4,
    HVI_SPAWN_KEEPER = 5 /* the keeper is gone or does not listen */
};

/** What to run; descriptors are the caller's and must be above 2. */
struct hvi_spawn_plan {
    char **argv, **envp;
    const char *cwd;
    int in_fd, out_fd, err_fd;
    int cgroup_fd;                   /* the directory of one to be born in, or -1 */
    const cpu_set_t *cpus;           /* to be bound to, or NULL */
    const struct hvi_keeper *keeper; /* is told before the exec; NULL: nobody is */
    const char *note; /* a line for its stderr before it begins, or NULL */
    bool
        terminal; /* in_fd is a terminal: it leads a session there; out_fd, err_fd: too */
    bool hold;    /* stops before its first instruction, traced by the caller */
};

/** Whether a child of plan->hold is held by now. */
enum hvi_spawn_hold {
    HVI_SPAWN_HOLD_UNSET = 0, /* not yet */
    HVI_SPAWN_HELD,           /* and no longer traced */
    HVI_SPAWN_HOLD_ENDED      /* it has ended before */
};

/** What came of it. fail_fd, which does not block, yields struct hvi_spawn_failure, or end
 * of file after exec: mostly at once. */
struct hvi_spawned {
    pid_t pid;
    int fail_fd;
};
struct hvi_spawn_failure {
    int stage; /* enum hvi_spawn_stage */
    int error; /* errno */
};

/**
 * Starts a child in its own process group (session, when plan->terminal) that dies with
 * the agent. Before it becomes the program it tells the keeper, so that none runs that the
 * keeper would not kill.
 *
 * Returns  HVD_OK, also where the child then fails (fail_fd tells); HVD_EIO with the
 *          reason; error: its errno.
 * Blocks   where hvi_vclone() is built, until the exec; with plan->hold never.
 */
enum hvd_status hvi_spawn(const struct hvi_spawn_plan *plan, struct hvi_spawned *out,
                          int *error, struct hvi_err *err);
/** Looks at a child of plan->hold, and lets go of it once its exec has stopped it, which
 * it then stays. fail_fd: the child's, of which nothing is read. To be asked again until
 * the answer is not UNSET; then fail_fd has what it yields.    Blocks  never. */
enum hvi_spawn_hold hvi_spawn_hold(pid_t pid, int fail_fd);
/** A descriptor that polls readable once pid has ended; -1 with errno. */
int hvi_pidfd_open(pid_t pid);
/** SIGKILL to the process that it was opened for, and to no other that has its number by
 * now. 0, or -1 with errno. */
int hvi_pidfd_kill(int pidfd);

#endif
