/** A worker's environment, pure: later settings of a name replace earlier ones. */
#ifndef HVI_AGENT_JOBENV_H
#define HVI_AGENT_JOBENV_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/base/err.h"

/** "NAME=VALUE" texts, heap; NULL-terminated once anything was put. */
struct hvi_jobenv {
    char **vars;
    size_t n, cap;
};

/** HVD_EINVAL: empty name, '=' in the name, NUL in either. HVD_ENOMEM. */
enum hvd_status hvi_jobenv_put(struct hvi_jobenv *e, const void *name,
                               size_t name_bytes, const void *value,
                               size_t value_bytes);
enum hvd_status hvi_jobenv_set(struct hvi_jobenv *e, const char *name,
                               const char *value);
/** NULL when not set. Borrowed. */
const char *hvi_jobenv_get(const struct hvi_jobenv *e, const char *name);
enum hvd_status hvi_jobenv_copy(const struct hvi_jobenv *from, struct hvi_jobenv *to);
void hvi_jobenv_fini(struct hvi_jobenv *e);

#endif
