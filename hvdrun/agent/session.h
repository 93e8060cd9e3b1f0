/** What a debugger leaves behind: the processes of its session. */
#ifndef HVI_AGENT_SESSION_H
#define HVI_AGENT_SESSION_H

#include <sys/types.h>

/** Kills all of the session but its leader, which must not have been reaped: its number
 *  is the session's. Blocks for some looks at /proc. */
void hvi_session_kill(pid_t leader);

#endif
