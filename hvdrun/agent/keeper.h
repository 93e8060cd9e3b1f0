/**
 * The keeper: a child of the agent, forked before anything else, that knows all process
 * groups of the workers and kills them when the agent is gone, however it went. The
 * last of the three lifelines (DESIGN.md section 5): PDEATHSIG misses children of a
 * worker.
 */
#ifndef HVI_AGENT_KEEPER_H
#define HVI_AGENT_KEEPER_H

#include <sys/types.h>

#include "proto/base/err.h"

struct hvi_keeper {
    pid_t pid;
    int fd; /* readable or hung up: the keeper has died */
    int own;
};

/**
 * Forks it.
 *
 * @param lifeline_fd  the agent's stdin: hung up once hvdrun is gone
 * @param rundir       removed at the end when hvdrun is gone; when own, always
 *
 * Returns  HVD_OK, HVD_EIO. The calling process must have one thread.
 */
enum hvd_status hvi_keeper_start(int lifeline_fd, const char *rundir, int own,
                                 struct hvi_keeper *out, struct hvi_err *err);

/**
 * Tells it of a process group whose leader is not reaped yet. It reads all that it was told
 * before it finds its caller gone, so what was sent is known. 0, or an errno: EPIPE, it is
 * gone; ETIMEDOUT, it took nothing for 5 s. Async-signal-safe; also for a child of the
 * agent before its exec.
 */
int hvi_keeper_add(const struct hvi_keeper *k, pid_t pgid);
/** Forget a group; call before its leader is reaped, while the number is still its own.
 */
void hvi_keeper_remove(struct hvi_keeper *k, pid_t pgid);
/** A cgroup v2 directory all workers are in: its cgroup.kill catches what left the
 * groups. */
enum hvd_status hvi_keeper_cgroup(struct hvi_keeper *k, const char *dir,
                                  struct hvi_err *err);
/** Lets it end (it kills what is left) and waits for that, at most a second. */
void hvi_keeper_stop(struct hvi_keeper *k);
/** The same at the caller's own end: where the directory is hvdrun's, which waits for all
 * that its agent leaves, without waiting. */
void hvi_keeper_leave(struct hvi_keeper *k);

#endif
