/** A cgroup v2 of our own for the workers, where this user may make one: killing it
 * also reaches descendants that left their process group. Optional everywhere. */
#ifndef HVI_AGENT_CGROUP_H
#define HVI_AGENT_CGROUP_H

#include <stddef.h>

/**
 * Makes a cgroup below the caller's.
 *
 * @param dir  [cap], its directory
 * @param fd   its cgroup.procs, close-on-exec: a child writes "0" to enter
 * Returns     0; -1 where there is no cgroup v2, no right to make one, or no
 * cgroup.kill
 */
int hvi_cgroup_make(char *dir, size_t cap, int *fd);
/** Kills everything in it. Also safe in the keeper. */
void hvi_cgroup_kill(const char *dir);
/** Removes it, waiting up to half a second for the killed to be gone. */
void hvi_cgroup_remove(const char *dir);

#endif
