#include "worker/core/affinity.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "proto/base/env.h"

#define WHAT "HVD_THREAD_AFFINITY (or HOROVOD_THREAD_AFFINITY)"

enum hvd_status hvi_affinity_core(const char *text, int local_rank, int local_size,
                                  int *out, struct hvi_err *err)
{
    int core = -1;
    int n = 0;

    for (const char *at = text; at != NULL; n++) {
        size_t len = strcspn(at, ",");
        char one[16];
        int64_t value;
        enum hvd_status rc;

        snprintf(one, sizeof one, "%.*s", (int)(len < 15 ? len : 15), at);
        rc = hvi_parse_int(WHAT, one, 0, CPU_SETSIZE - 1, &value, err);
        if (rc != HVD_OK)
            return rc;
        if (n == local_rank)
            core = (int)value;
        at = at[len] == ',' ? at + len + 1 : NULL;
    }
    *out = n < local_size ? -1 : core;
    return HVD_OK;
}

enum hvd_status hvi_affinity_bind(pthread_t thread, int core, struct hvi_err *err)
{
    cpu_set_t set;
    int error;

    if (core < 0)
        return HVD_OK;
    CPU_ZERO(&set);
    CPU_SET((size_t)core, &set);
    error = pthread_setaffinity_np(thread, sizeof set, &set);
    if (error != 0)
        return hvi_fail(err, HVD_EINVAL,
                        WHAT ": core %d: %s; taskset -pc $$ shows "
                             "which may be used here",
                        core, strerror(error));
    return HVD_OK;
}
