/*
 * Launchers tell a process its rank and the number of ranks. A batch script and the shell
 * of salloc have a rank in Slurm too (SLURM_PROCID, SLURM_NTASKS), but only what srun
 * starts has the number of its step, so that is what counts there. PMIx gives no number:
 * every rank but 0 then says that there are several, and the launcher ends the rest.
 */
#include "worker/core/launched.h"

#include <stdint.h>
#include <stdlib.h>

#include "proto/base/env.h"

static const struct launcher {
    const char *who;
    const char *rank; /* a process has no such launcher without this variable */
    const char *size; /* NULL: not told */
} launchers[] = {
    {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"MVAPICH's mpirun", "MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"},
    {"mpiexec or another PMI launcher", "PMI_RANK", "PMI_SIZE"},
    {"jsrun", "JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE"},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"torchrun", "TORCHELASTIC_RUN_ID", "WORLD_SIZE"},
    {"the original horovodrun", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "HOROVOD_SIZE"},
    {"a PMIx launcher", "PMIX_RANK", NULL},
};

/* The number in a variable; 0 when it is no number. */
static int64_t number(const char *name)
{
    const char *text = getenv(name);
    int64_t n = 0;

    if (text == NULL || hvi_parse_int(name, text, 0, INT32_MAX, &n, NULL) != HVD_OK)
        return 0;
    return n;
}

enum hvd_status hvi_launched_check(struct hvi_err *err)
{
    int solo = 0;
    enum hvd_status rc = hvi_env_bool("SOLO", 0, &solo, err);

    if (rc != HVD_OK || solo)
        return rc;
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const struct launcher *l = &launchers[i];
        const char *name = l->size != NULL ? l->size : l->rank;
        int64_t n = getenv(l->rank) != NULL ? number(name) : 0;

        if (n > (l->size != NULL ? 1 : 0))
            return hvi_fail(
                err, HVD_EINVAL,
                "hvd_init: %s started this process as one of several "
                "(%s=%d), but HVD_COORDINATOR is not set: use hvdrun -np N "
                "in its place, or set HVD_COORDINATOR and HVD_KEY_FILE of an "
                "hvd-coordinator, or HVD_SOLO=1 if each is to train alone",
                l->who, name, (int)n);
    }
    return HVD_OK;
}
