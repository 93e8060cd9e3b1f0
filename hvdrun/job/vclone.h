/** vfork() into a cgroup. vclone/x86.c or vclone/other.c is built: it takes an assembler's
 * word for each kind of processor. */
#ifndef HVI_JOB_VCLONE_H
#define HVI_JOB_VCLONE_H

/**
 * Runs fn in a child that has the caller's memory and the stack below the caller's frame,
 * while the caller waits until the child has called exec or ended: nothing is copied, so
 * it costs a fraction of fork(). fn must not return, and everything it changes but
 * descriptors, signals, directory and limits is changed for the caller too.
 *
 * @param cgroup_fd  the directory of the one it is born in, or -1
 *
 * Returns  the child's pid; an errno, negated: nothing runs (ENOSYS: not for this machine)
 * Threads  those of the caller's process go on meanwhile. Block signals around it.
 * Blocks   until the exec.
 */
long hvi_vclone(int cgroup_fd, void (*fn)(void *), void *arg);

#endif
