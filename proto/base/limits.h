/**
 * The process's limits, looked at before something that cannot fail in order runs into
 * them: libuv aborts where it finds no descriptor or no memory for its own state.
 */
#ifndef HVI_BASE_LIMITS_H
#define HVI_BASE_LIMITS_H

#include <stddef.h>
#include <stdint.h>

#include "proto/base/err.h"

/** Raises the soft limit of open files to what the hard one allows (65,536 at most). */
void hvi_limits_raise_fds(void);
/** In a child before exec: the soft limit that was there before hvi_limits_raise_fds();
 *  programs that use select() count on it. Async-signal-safe. */
void hvi_limits_restore_fds(void);

/**
 * Can `need` more descriptors be opened? Opens and closes them.
 *
 * @param whom  for the message: "16 ranks"
 *
 * Returns  HVD_OK; HVD_ELIMIT with the limit that is needed.
 */
enum hvd_status hvi_limits_fds(size_t need, const char *whom, struct hvi_err *err);

/** What to do about the errno of fork() or pthread_create(): "; raise the limit ...", static;
 *  "" where no limit is the reason. */
const char *hvi_limits_of_processes(int error);

/** Are there size_bytes of address space? HVD_ENOMEM names the limit (ulimit -v). */
enum hvd_status hvi_limits_memory(size_t size_bytes, struct hvi_err *err);

/** How often the kernel of this host killed a process for want of memory since it
 * started, also in a cgroup; 0: unknown. */
uint64_t hvi_limits_oom_kills(void);

#endif
