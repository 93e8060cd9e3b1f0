/** hvdrun's command line, understood. Pure but for reading the environment it is given.
 */
#ifndef HVI_HVDRUN_OPTS_H
#define HVI_HVDRUN_OPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "hvdrun/cli/opttab.h"
#include "hvdrun/topo/share.h"
#include "proto/base/err.h"

enum hvi_mode {
    HVI_MODE_UNSET = 0,
    HVI_MODE_RUN,
    HVI_MODE_DRY_RUN,
    HVI_MODE_DOCTOR, /* first word of the line */
    HVI_MODE_HELP,
    HVI_MODE_VERSION,
    HVI_MODE_CHECK_BUILD,
    HVI_MODE_MAN,
    HVI_MODE_COMPLETION
};

/* In the order of the option's words. */
enum hvi_prefix {
    HVI_PREFIX_HOROVOD = 0,
    HVI_PREFIX_RANK,
    HVI_PREFIX_NONE,
    HVI_PREFIX_HOST
};

enum hvi_color { HVI_COLOR_AUTO = 0, HVI_COLOR_ALWAYS, HVI_COLOR_NEVER };

#define HVI_GRACE_DEFAULT_MS                                                           \
    10000 /* Slurm's KillWait is 30 s; a terminal wants less                           \
           */
#define HVI_START_TIMEOUT_DEFAULT_MS 30000

struct hvi_optenv {
    char *name, *value;
    bool passed_on; /* -x NAME: the value is this environment's, not the line's */
};

/** Free with hvi_opts_fini(). Texts are owned. */
struct hvi_opts {
    enum hvi_mode mode;
    int np;      /* 0: not given */
    char *hosts; /* NULL: not given */
    char *hostfile;
    bool no_allocation; /* a batch job's hosts are not looked for */
    bool oversubscribe;
    char *wdir;
    int stdin_rank; /* a rank, -1 none, -2 all */
    enum hvi_bind bind_to;
    enum hvi_map map_by;
    int cores_per_rank, gpus_per_rank; /* 0: not given */
    bool oversubscribe_gpu;
    bool report_bindings;
    char *output_dir;
    bool files_only, tee, merge_stderr;
    char *only_rank; /* NULL: all; see hvi_opts_ranks() */
    enum hvi_prefix prefix;
    enum hvi_color color;
    bool timestamp, verbose;
    bool json;                    /* what is shown, as JSON */
    char *json_events;            /* a path or "fd:N"; NULL: not given */
    int64_t grace_ms, timeout_ms; /* timeout 0: none */
    int64_t start_timeout_ms;     /* 0: not given */
    char *config_file;
    char *debug, *wait_debug; /* ranks, or "all"; NULL: not given */
    char *debugger;           /* words separated by blanks; NULL: not given */
    char *interfaces;         /* joined by commas */
    char *advertise;          /* numeric; NULL: not given */
    int port, port_last;      /* of the coordinator; 0: any */
    int ssh_port;             /* 0: not given */
    char *ssh_identity;       /* NULL: not given */
    char **ssh_args;          /* [nssh_args] words for ssh */
    size_t nssh_args;
    char *rsh;              /* NULL: not given */
    char *agent_path;       /* on other hosts; NULL: not given */
    int fanout;             /* 0: not given */
    struct hvi_optenv *env; /* [nenv] for the workers, in the order given */
    size_t nenv, env_cap;
    bool no_env;      /* of the environment only PATH and what is in env_globs */
    char **env_globs; /* [nenv_globs] "NCCL_*" */
    size_t nenv_globs;
    char **notes; /* [nnotes] lines to show: options without effect */
    size_t nnotes;
    char **command; /* [ncommand] + NULL; borrowed from argv */
    int ncommand;
    bool *given; /* [hvi_opt_count] */
};

/**
 * Understands argv; parsing stops at the program to run.
 *
 * Returns  HVD_OK; HVD_EINVAL: one line that says what is wrong, exit status 2;
 * HVD_ENOMEM.
 */
enum hvd_status hvi_opts_parse(int argc, char **argv, struct hvi_opts *out,
                               struct hvi_err *err);
void hvi_opts_fini(struct hvi_opts *o);

/** How many cores a list like "0,2,4" has. out_n: may be NULL. HVD_EINVAL: it is none,
 *  worded. */
enum hvd_status hvi_opts_cores(const char *what, const char *list, int *out_n,
                               struct hvi_err *err);

/** One option by its row, as if it stood on the line (also for --config-file). value:
 * NULL where it takes none. */
enum hvd_status hvi_opts_apply(struct hvi_opts *o, const struct hvi_opt *row,
                               const char *value, struct hvi_err *err);
/** Sets a worker variable; a later one of that name wins. */
enum hvd_status hvi_opts_setenv(struct hvi_opts *o, const char *name, const char *value,
                                struct hvi_err *err);
/** Value of a worker variable set by an option: HVD_<name>; else the environment's
 *  (HVD_<name>, HOROVOD_<name>); NULL when not set. */
const char *hvi_opts_env(const struct hvi_opts *o, const char *name);
/** Marks the ranks of a list ("0,4-6") in out[np]. HVD_EINVAL names what is wrong. */
enum hvd_status hvi_opts_ranks(const char *what, const char *list, int np, bool *out,
                               struct hvi_err *err);
/** "90", "90s", "1.5m", "2h" to milliseconds. HVD_EINVAL. */
enum hvd_status hvi_opts_parse_time(const char *what, const char *text, int64_t *out_ms,
                                    struct hvi_err *err);

#endif
