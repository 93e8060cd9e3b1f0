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
/** As execve() takes it, where what own has replaces what base has: the caller's to free,
 *  its texts are theirs. NULL: out of memory. */
char **hvi_jobenv_merge(const struct hvi_jobenv *base, const struct hvi_jobenv *own);
void hvi_jobenv_fini(struct hvi_jobenv *e);

#endif
