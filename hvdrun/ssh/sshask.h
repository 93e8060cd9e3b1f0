/** What ssh itself says about a host and about what it knows: `ssh -G`. */
#ifndef HVI_HVDRUN_SSHASK_H
#define HVI_HVDRUN_SSHASK_H

#include "hvdrun/ssh/sshargv.h"

/**
 * The name or address behind what may be an alias of the user's ssh configuration.
 * Learns on the way whether this ssh is an old one (shell->old).
 *
 * @param out  host->name where ssh does not say
 *
 * Blocks   while ssh reads its files, 5 s at most for each of two tries.
 */
void hvi_sshask(struct hvi_rshell *shell, const struct hvi_host *host,
                const struct hvi_opts *opts, char *out, size_t cap);

#endif
