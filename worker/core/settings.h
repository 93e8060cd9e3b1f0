/** What the environment says of this library's own ways of working. */
#ifndef HVI_CORE_SETTINGS_H
#define HVI_CORE_SETTINGS_H

#include "proto/base/err.h"

/** HVD_EINVAL names a variable of those that are read later, where nobody could be told,
 *  its value and what may be written. */
enum hvd_status hvi_settings_check(struct hvi_err *err);

#endif
