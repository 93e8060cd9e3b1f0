#include "test.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/err.h"
#include "worker/core/launched.h"

static const char *const known[] = {
    "HVD_SOLO",
    "HOROVOD_SOLO",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "MV2_COMM_WORLD_RANK",
    "MV2_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "JSM_NAMESPACE_RANK",
    "JSM_NAMESPACE_SIZE",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_STEP_NUM_TASKS",
    "TORCHELASTIC_RUN_ID",
    "WORLD_SIZE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_SIZE",
    "PMIX_RANK",
};

static void nothing(void)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        unsetenv(known[i]);
}

/* What the check says with these two variables ("" when it is content). */
static const char *said(const char *rank, const char *r, const char *size,
                        const char *n)
{
    static struct hvi_err err;
    enum hvd_status rc;

    setenv(rank, r, 1);
    if (size != NULL)
        setenv(size, n, 1);
    err.text[0] = '\0';
    rc = hvi_launched_check(&err);
    cr_assert_eq(rc, err.text[0] == '\0' ? HVD_OK : HVD_EINVAL);
    unsetenv(rank);
    if (size != NULL)
        unsetenv(size);
    return err.text;
}

Test(launched, one_of_several_is_an_error_that_names_the_launcher, .timeout = 5)
{
    nothing();
    cr_assert(strstr(said("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "2"),
                     "Open MPI's mpirun"));
    cr_assert(
        strstr(said("MV2_COMM_WORLD_RANK", "0", "MV2_COMM_WORLD_SIZE", "2"), "=2"));
    cr_assert(strstr(said("PMI_RANK", "1", "PMI_SIZE", "4"), "PMI_SIZE=4"));
    cr_assert(
        strstr(said("JSM_NAMESPACE_RANK", "0", "JSM_NAMESPACE_SIZE", "6"), "jsrun"));
    cr_assert(strstr(said("SLURM_PROCID", "0", "SLURM_STEP_NUM_TASKS", "3"), "srun"));
    cr_assert(strstr(said("TORCHELASTIC_RUN_ID", "x", "WORLD_SIZE", "2"), "torchrun"));
    cr_assert(strstr(said("HOROVOD_GLOO_RENDEZVOUS_ADDR", "h", "HOROVOD_SIZE", "2"),
                     "horovodrun"));
    cr_assert(strstr(said("PMIX_RANK", "1", NULL, NULL), "HVD_SOLO=1"));
}

Test(launched, one_rank_alone_is_no_error, .timeout = 5)
{
    nothing();
    cr_assert_str_eq(said("OMPI_COMM_WORLD_RANK", "0", "OMPI_COMM_WORLD_SIZE", "1"),
                     "");
    cr_assert_str_eq(said("PMIX_RANK", "0", NULL, NULL), "");
    cr_assert_str_eq(said("SLURM_PROCID", "0", "SLURM_NTASKS", "8"), ""); /* salloc */
    cr_assert_str_eq(said("SLURM_STEP_NUM_TASKS", "8", NULL, NULL), "");
    cr_assert_str_eq(said("PMI_RANK", "0", "PMI_SIZE", "many"), "");
    cr_assert_str_eq(said("WORLD_SIZE", "2", NULL, NULL), "");
}

Test(launched, hvd_solo_allows_it, .timeout = 5)
{
    nothing();
    setenv("HVD_SOLO", "1", 1);
    cr_assert_str_eq(said("PMI_RANK", "0", "PMI_SIZE", "2"), "");
    setenv("HVD_SOLO", "perhaps", 1);
    cr_assert(strstr(said("PMI_RANK", "0", "PMI_SIZE", "1"), "HVD_SOLO"));
}
