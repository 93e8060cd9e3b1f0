/** --check-build: what the installed library can do. */
#ifndef HVI_HVDRUN_CHECKBUILD_H
#define HVI_HVDRUN_CHECKBUILD_H

#include <stdio.h>

/** Loads libhvd (beside this program, else where the linker finds it) and prints the
 * same sections as horovodrun. Returns the exit status: 0, or 125 when it cannot be
 * loaded. */
int hvi_check_build(FILE *out);

#endif
