/** Starting our own programs (hvd-agent, hvd-coordinator) with frame pipes. */
#ifndef HVI_HVDRUN_PROC_H
#define HVI_HVDRUN_PROC_H

#include <limits.h>
#include <sys/types.h>

#include "proto/base/err.h"

/** A started child: our ends of its stdin and stdout (close-on-exec). */
struct hvi_proc {
    pid_t pid;
    int to_fd;   /* its stdin */
    int from_fd; /* its stdout */
    int err_fd;  /* its stderr, or -1: inherited */
};

/** Absolute path of a program of ours: beside this executable, else on PATH. HVD_EIO. */
enum hvd_status hvi_proc_find(const char *name, char out[PATH_MAX],
                              struct hvi_err *err);

/**
 * Forks and executes argv[0] (a path, or a name to look up on PATH) in a process group
 * of its own, so that the terminal's ^C reaches hvdrun alone. stderr is inherited.
 *
 * Returns  HVD_OK, HVD_EIO with the reason (also when the exec failed).
 * Blocks   until the exec has happened.
 */
enum hvd_status hvi_proc_start(char *const argv[], struct hvi_proc *out,
                               struct hvi_err *err);
/** The same, with a pipe for its stderr too. */
enum hvd_status hvi_proc_start_piped(char *const argv[], struct hvi_proc *out,
                                     struct hvi_err *err);

/** Notes which signals have an action of their own here: before a child is started, by a
 *  thread that no other starts children beside. */
void hvi_proc_note_signals(void);
/** In a child, before exec: default actions of those noted, nothing blocked, the user's
 *  limit of open files. Async-signal-safe. */
void hvi_proc_reset_signals(void);

#endif
