/** A cgroup v2 of our own for the workers, where this user may make one: killing it
 * also reaches descendants that left their process group. Optional everywhere. */
#ifndef HVI_AGENT_CGROUP_H
#define HVI_AGENT_CGROUP_H

#include <stddef.h>
#include <sys/types.h>

/**
 * Makes a cgroup below the caller's.
 *
 * @param dir  [cap], its directory
 * @param fd   the same, open, close-on-exec
 * Returns     0; -1 where there is no cgroup v2, no right to make one, or no
 * cgroup.kill
 */
int hvi_cgroup_make(char *dir, size_t cap, int *fd);
/**
 * As fork(), and the child is born in the cgroup: entering it later takes a lock that
 * waits for every processor, milliseconds a child. As after vfork(), nothing was prepared
 * for the child: it may only make async-signal-safe calls. Block signals around it, or a
 * handler may run twice. -1 where the kernel has no such call (before 5.7), or refuses.
 */
pid_t hvi_cgroup_fork(int dir_fd);
/** Moves the caller into it. Async-signal-safe. */
void hvi_cgroup_enter(int dir_fd);
/** Kills everything in it. Also safe in the keeper. */
void hvi_cgroup_kill(const char *dir);
/** Removes it, waiting up to half a second for the killed to be gone. */
void hvi_cgroup_remove(const char *dir);

#endif
