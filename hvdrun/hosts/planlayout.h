/** Where the ranks of this host will be bound, for --dry-run. */
#ifndef HVI_HVDRUN_PLANLAYOUT_H
#define HVI_HVDRUN_PLANLAYOUT_H

#include "hvdrun/cli/opts.h"
#include "hvdrun/topo/layout.h"

/**
 * Looks at this host and lays nranks ranks out as its agent will. Free with
 * hvi_layout_fini().
 *
 * Returns  as hvi_layout_make().    Blocks  for the time hwloc needs to look.
 */
enum hvd_status hvi_planlayout_make(const struct hvi_opts *o, int nranks,
                                    struct hvi_layout *out, struct hvi_err *err);

#endif
