/** Hosts that a batch scheduler has given this job, read from the environment. */
#ifndef HVI_HVDRUN_ALLOC_H
#define HVI_HVDRUN_ALLOC_H

#include "hvdrun/hosts/hosts.h"

/** What is looked at; a table, so that tests can bring their own. */
struct hvi_alloc_sys {
    /** Value of a variable, or NULL. */
    const char *(*get)(void *data, const char *name);
    /** Contents of a file, heap. HVD_EINVAL with the reason. */
    enum hvd_status (*read)(void *data, const char *path, char **text,
                            size_t *size_bytes, struct hvi_err *err);
    /** What a program prints on stdout, heap, with a final zero. HVD_EINVAL: not there,
     * not done in time, or a status but 0. */
    enum hvd_status (*ask)(void *data, char *const argv[], char **text,
                           struct hvi_err *err);
    void *data;
};

/** This process's environment, the file system, and programs on PATH. */
extern const struct hvi_alloc_sys hvi_alloc_here;

struct hvi_alloc {
    const char *key;   /* "slurm", "pbs", ...; NULL: there is no allocation */
    const char *title; /* "Slurm" */
    char from[160];    /* the variables that were used, "A, B" */
    const char *own;   /* this host's name as the scheduler writes it; NULL: not said */
};

/**
 * Adds the hosts of the allocation that this process runs in. The first of these that
 * is there counts:
 *
 *     Flux        FLUX_URI: `flux resource R`, else `flux hostlist local`
 *     Slurm       SLURM_JOB_NODELIST; slots: SLURM_TASKS_PER_NODE, else
 *                 SLURM_NTASKS_PER_NODE, else SLURM_JOB_CPUS_PER_NODE over
 *                 SLURM_CPUS_PER_TASK
 *     PBS         PBS_NODEFILE, a line a slot; each host once: PBS_NUM_PPN slots
 *     LSF         LSB_DJOB_HOSTFILE, else LSB_MCPU_HOSTS, else LSB_HOSTS; where CSM
 *                 allocates (CSM_ALLOCATION_ID), a first host with one slot before
 *                 larger ones is the launch node and left out
 *     SGE         PE_HOSTFILE
 *     Kubernetes  OMPI_MCA_orte_default_hostfile, PRTE_MCA_prte_default_hostfile,
 *                 HYDRA_HOST_FILE, I_MPI_HYDRA_HOST_FILE; in a pod /etc/mpi/hostfile
 *
 * Flux comes first because its instances run inside the jobs of others. An empty
 * variable counts as one that is not set.
 *
 * Returns  HVD_OK, also without an allocation (out->key is NULL); HVD_EINVAL: a variable
 *          or file is wrong, or a job without its hosts: one line with the variable, the
 *          place and what to do; HVD_ELIMIT; HVD_ENOMEM.
 * Blocks   for Flux until its program has answered, at most 20 s.
 */
enum hvd_status hvi_alloc_find(const struct hvi_alloc_sys *sys, struct hvi_hosts *hosts,
                               struct hvi_alloc *out, struct hvi_err *err);

/** true when name is this machine: as hvi_host_is_local(), as the scheduler calls it, or
 * own_name with a domain behind it (a scheduler knows no two such hosts). */
bool hvi_alloc_is_local(const struct hvi_alloc *a, const char *name,
                        const char *own_name);

#endif
