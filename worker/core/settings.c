#include "worker/core/settings.h"

#include <string.h>

#include "proto/base/env.h"
#include "proto/base/spinrule.h"
#include "worker/core/segment.h"
#include "worker/plane/reduce/reduce.h"

enum hvd_status hvi_settings_check(struct hvi_err *err)
{
    const char *simd = hvi_env("SIMD");
    int64_t us, kib;
    enum hvd_status rc =
        hvi_env_int("SPIN_US", HVI_SPIN_MAX_US, 0, HVI_SPIN_LIMIT_US, &us, err);

    if (rc == HVD_OK)
        rc = hvi_segment_slot_kib(&kib, err);
    if (rc == HVD_OK && simd != NULL && !hvi_reduce_knows(simd))
        rc = hvi_fail(err, HVD_EINVAL, "HVD_SIMD=%.40s: write one of %s", simd,
                      hvi_reduce_names());
    return rc;
}
