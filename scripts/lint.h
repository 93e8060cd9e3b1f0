/* Included before every file that scripts/lint.sh analyzes: says what the analyzers cannot
 * see, that hvi_fail() returns the status it is given. */
#include "proto/base/err.h"

static inline enum hvd_status hvi_lint_same(enum hvd_status rc)
{
    return rc;
}
#define hvi_fail(err, rc, ...) (hvi_fail(err, rc, __VA_ARGS__), hvi_lint_same(rc))
