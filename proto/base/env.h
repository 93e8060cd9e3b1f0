/** Settings from the environment: HVD_<name> wins over HOROVOD_<name>. */
#ifndef HVI_BASE_ENV_H
#define HVI_BASE_ENV_H

#include <stdint.h>

#include "proto/base/err.h"

/** NULL when neither is set or it is empty. Borrowed from the environment. */
const char *hvi_env(const char *name);
/** Decimal integer in [min, max]; fallback when unset. HVD_EINVAL names the variable. */
enum hvd_status hvi_env_int(const char *name, int64_t fallback, int64_t min,
                            int64_t max, int64_t *out, struct hvi_err *err);
/** 0/1/true/false/yes/no; fallback when unset. */
enum hvd_status hvi_env_bool(const char *name, int fallback, int *out,
                             struct hvi_err *err);
/** Whole-string decimal; HVD_EINVAL words "what: ..." . */
enum hvd_status hvi_parse_int(const char *what, const char *text, int64_t min,
                              int64_t max, int64_t *out, struct hvi_err *err);

#endif
