/** The plan as JSON, for --dry-run --json. */
#ifndef HVI_HVDRUN_PLANJSON_H
#define HVI_HVDRUN_PLANJSON_H

#include <stdio.h>

#include "hvdrun/cli/opts.h"
#include "hvdrun/hosts/plan.h"

/** Of the format: a member may be added without a new number. */
#define HVI_PLANJSON_VERSION 1

/**
 * Writes one object, with a newline behind it:
 *
 *     version      1
 *     source       {"kind": ..., "from": ...}; kind: "command-line" (-H), "host-file",
 *                  "flux", "slurm", "pbs", "lsf", "sge", "kubernetes", or "none": this
 *                  host; from: the option, the file, or the variables
 *     np           number of ranks
 *     hosts        [{"name", "user" (or null), "slots", "ranks", "first_rank" (null where
 *                  ranks is 0), "remote"}], all that were named, in order
 *     ranks        [{"rank", "host", "host_index", "local_rank", "local_size",
 *                  "cross_rank", "cross_size", "placing"}], in the order of the ranks;
 *                  placing: null on other hosts, which are looked at when the job begins;
 *                  {"error": text} where the job would fail for it; else {"bound_to":
 *                  as bind_to, "why_not" (null where bound), "cores", "processors":
 *                  "0-3,8", "threads": OMP_NUM_THREADS unless that is set, "gpus":
 *                  [{"name": as in CUDA_VISIBLE_DEVICES, "pci" (or null)}]}
 *     command      [words]
 *     environment  {variables that options set for the ranks}
 *     bind_to      "none", "core", "numa", "socket", "gpu", "auto" (not given)
 *     map_by       "slot", "core", "numa", "socket", "auto" (not given)
 *     cores_per_rank, gpus_per_rank  0: not given
 *
 * Bytes that are not UTF-8 stand as \xNN in the texts.
 *
 * Returns  HVD_OK, HVD_ENOMEM, HVD_EIO: out does not take it.
 */
enum hvd_status hvi_planjson_write(const struct hvi_opts *o, const char *kind,
                                   const char *from, const struct hvi_plan *p,
                                   FILE *out, struct hvi_err *err);

#endif
