/** Settings from the environment: HVD_<name> wins over HOROVOD_<name>. */
#ifndef HVI_BASE_ENV_H
#define HVI_BASE_ENV_H

#include <stdint.h>

#include "proto/base/err.h"

/** Seconds without a heartbeat after which an agent or the coordinator counts as lost;
 *  15 when it is not set. */
#define HVI_LEASE_ENV "HVD_LEASE_SECONDS"
#define HVI_LEASE_DEFAULT_S 15
#define HVI_LEASE_MIN_S 3 /* one beat, every 2 s, may come late */
#define HVI_LEASE_MAX_S 86400

/** NULL when neither is set or it is empty. Borrowed from the environment. */
const char *hvi_env(const char *name);
/** Decimal integer in [min, max]; fallback when unset. HVD_EINVAL names the variable. */
enum hvd_status hvi_env_int(const char *name, int64_t fallback, int64_t min,
                            int64_t max, int64_t *out, struct hvi_err *err);
/** 0/1/true/false/yes/no; fallback when unset. */
enum hvd_status hvi_env_bool(const char *name, int fallback, int *out,
                             struct hvi_err *err);
/** As above; HVD_EINVAL words "what: ...". */
enum hvd_status hvi_parse_bool(const char *what, const char *text, int *out,
                               struct hvi_err *err);
/** Whole-string decimal; HVD_EINVAL words "what: ..." . */
enum hvd_status hvi_parse_int(const char *what, const char *text, int64_t min,
                              int64_t max, int64_t *out, struct hvi_err *err);

#endif
