/** Words of other launchers for --map-by and --bind-to. Pure. */
#ifndef HVI_HVDRUN_OPTPLACE_H
#define HVI_HVDRUN_OPTPLACE_H

#include <stdbool.h>

#include "proto/base/err.h"

/** HVD_EINVAL, with the nearest word that is right and how to get what was meant.
 * words: those that there are. */
enum hvd_status hvi_optplace_refuse(bool map, const char *what, const char *value,
                                    const char *words, struct hvi_err *err);

#endif
