/** The agent of one host: starts the workers hvdrun asks for and sees them to their
 * end. */
#ifndef HVI_AGENT_AGENT_H
#define HVI_AGENT_AGENT_H

#include "hvdrun/agent/keeper.h"

/**
 * Serves hvdrun until the job on this host is over.
 *
 * @param in_fd, out_fd  frames from and to hvdrun; taken
 * @param rundir         the runtime directory on this host
 *
 * Returns  the process's exit status: 0 when hvdrun knows everything, 1 when the agent
 *          could not even begin. Blocks until then.
 */
int hvi_agent_run(int in_fd, int out_fd, const char *rundir, struct hvi_keeper *keeper);

#endif
