/** One job from its first process to its last: starts the coordinator and the agents,
 * joins their output, carries signals, and knows when and with what status it is over.
 */
#ifndef HVI_HVDRUN_JOB_H
#define HVI_HVDRUN_JOB_H

#include "hvdrun/cli/opts.h"
#include "hvdrun/hosts/plan.h"

/**
 * Runs the job.
 *
 * Returns  the exit status (exitcode.h); everything worth saying has been said.
 * Blocks   until all processes of the job are gone. Handles signals meanwhile.
 */
int hvi_job_run(const struct hvi_opts *opts, const struct hvi_plan *plan);

#endif
