/** `hvdrun doctor -H ...`: can a job run on these hosts, and what would hurt? */
#ifndef HVI_HVDRUN_DOCTOR_H
#define HVI_HVDRUN_DOCTOR_H

#include "hvdrun/hosts/hosts.h"
#include "hvdrun/cli/opts.h"

/**
 * Asks every host, by the way a job takes, and prints a table (or JSON) to stdout.
 *
 * @param hosts  empty: this host alone; `remote` is set
 *
 * Returns  the exit status: 0, 1 when a host cannot take part in a job, 125.
 * Blocks   for the start timeout at most.
 */
int hvi_doctor_run(const struct hvi_opts *opts, const struct hvi_hosts *hosts);

#endif
