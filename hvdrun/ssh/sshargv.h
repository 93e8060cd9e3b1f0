/** The command line of ssh, or of what stands for it, and how a command travels through
 * it. Pure, but for hvi_rshell_choose(). */
#ifndef HVI_HVDRUN_SSHARGV_H
#define HVI_HVDRUN_SSHARGV_H

#include "hvdrun/hosts/hosts.h"
#include "hvdrun/cli/opts.h"

#define HVI_SSH_CONNECT_S 10 /* until TCP is there and the server has said a word */
/* A connection that no longer carries anything ends after two unanswered questions:
 * the same 15 s that the coordinator gives an agent (DESIGN.md section 5). */
#define HVI_SSH_ALIVE_S 5
#define HVI_SSH_ALIVE_COUNT 2

/** What leads to other hosts. */
enum hvi_rshell_kind {
    HVI_RSHELL_SSH = 0,  /* the user's ssh, under whatever path */
    HVI_RSHELL_SRUN,     /* Slurm: a step of one task in the job's own allocation */
    HVI_RSHELL_RSH,      /* COMMAND host 'command line' */
    HVI_RSHELL_TEMPLATE, /* %h stands for the host; a program and its words follow */
};

struct hvi_rshell {
    enum hvi_rshell_kind kind;
    const char *command; /* its words, separated by blanks; borrowed */
    bool check;          /* hvd-agent --check in place of --stdin */
    bool old;            /* ssh before 8.7, which refuses some options (sshask.h) */
};

/**
 * --rsh, else HVD_RSH; else what Kubeflow's MPI operator says
 * (OMPI_MCA_plm_rsh_agent); else srun inside a Slurm job that has it on PATH, unless an
 * option for ssh was given; else ssh. Reads the environment.
 */
struct hvi_rshell hvi_rshell_choose(const struct hvi_opts *opts);

/**
 * The words that start the agent on a host. ssh: the user's own, never asking anything
 * (BatchMode), without a terminal, forwardings or a master connection of its own. Host
 * keys, users, jump hosts and the like stay a matter of the user's configuration. What
 * --ssh-arg says comes first: ssh takes the first value of an option.
 *
 * @param program  path there. Absolute, and not from --agent-path: when there is none,
 *                 the one on PATH there is taken. NULL: `ssh -G`, which only prints the
 *                 settings (for other shells there is none)
 *
 * Returns  heap, NULL terminated, for hvi_sshargv_free(); NULL: out of memory, or none.
 */
char **hvi_sshargv_make(const struct hvi_rshell *shell, const struct hvi_host *host,
                        const struct hvi_opts *opts, const char *program);
void hvi_sshargv_free(char **argv);

/** "user@name" or "name": as ssh takes it and texts show it. Returns out. */
char *hvi_sshargv_destination(const struct hvi_host *host, char *out, size_t cap);

/** word in single quotes for the login shell there (sh, csh, fish). Heap, or NULL. */
char *hvi_sshargv_quote(const char *word);

/** The value of a setting in what `ssh -G` prints ("hostname 10.0.0.2"). false: not
 * there, or longer than cap. */
bool hvi_sshargv_setting(const char *text, const char *name, char *out, size_t cap);

#endif
