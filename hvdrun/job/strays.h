/** Children that came to us because their own parent died: descendants of workers that
 * left their process group. Only for a process with PR_SET_CHILD_SUBREAPER. */
#ifndef HVI_HVDRUN_STRAYS_H
#define HVI_HVDRUN_STRAYS_H

#include <sys/types.h>

/** Kills and reaps all children of this process but `except` (0: none), and what comes
 * to us by that, for at most limit_ms. */
void hvi_strays_kill(pid_t except, int limit_ms);

#endif
