/**
 * The one table of hvdrun's options: parsing, --help, the man page, bash completion and
 * the configuration file all come from it. Pure data.
 */
#ifndef HVI_HVDRUN_OPTTAB_H
#define HVI_HVDRUN_OPTTAB_H

#include <stdbool.h>
#include <stddef.h>

enum hvi_opt_section {
    HVI_OPT_SECTION_UNSET = 0,
    HVI_OPT_JOB,
    HVI_OPT_HOSTS,
    HVI_OPT_OUTPUT,
    HVI_OPT_END,
    HVI_OPT_DEBUGGING,
    HVI_OPT_ELASTIC,
    HVI_OPT_TUNING,
    HVI_OPT_TIMELINE,
    HVI_OPT_STALL,
    HVI_OPT_INFO,
    HVI_OPT_OBSOLETE,
    HVI_OPT_SECTIONS
};

enum hvi_opt_arg {
    HVI_ARG_NONE = 0,
    HVI_ARG_INT,
    HVI_ARG_REAL,
    HVI_ARG_TIME, /* seconds, or with s, m, h behind */
    HVI_ARG_TEXT,
    HVI_ARG_WORD, /* one of `words` */
    HVI_ARG_FILE,
    HVI_ARG_DIR,
    HVI_ARG_HOSTS
};

/** What hvdrun itself does with it; ENV rows only set variables for the workers. */
enum hvi_opt_id {
    HVI_OPT_ENV = 0,
    HVI_OPT_NP,
    HVI_OPT_WDIR,
    HVI_OPT_X,
    HVI_OPT_STDIN,
    HVI_OPT_BIND_TO,
    HVI_OPT_MAP_BY,
    HVI_OPT_CORES,
    HVI_OPT_GPUS,
    HVI_OPT_CROWD_GPUS,
    HVI_OPT_REPORT_BINDINGS,
    HVI_OPT_OVERSUBSCRIBE,
    HVI_OPT_HOST_LIST,
    HVI_OPT_HOSTFILE,
    HVI_OPT_NO_ALLOCATION,
    HVI_OPT_SSH_PORT, /* for remote hosts: without effect on local ones */
    HVI_OPT_SSH_IDENTITY,
    HVI_OPT_SSH_ARG,
    HVI_OPT_RSH,
    HVI_OPT_AGENT_PATH,
    HVI_OPT_FANOUT,
    HVI_OPT_NETWORK,
    HVI_OPT_ADVERTISE,
    HVI_OPT_PORT,
    HVI_OPT_PORT_RANGE,
    HVI_OPT_NO_ENV,
    HVI_OPT_OUTPUT_DIR, /* files; the output is shown as well */
    HVI_OPT_FILES_ONLY,
    HVI_OPT_TEE,
    HVI_OPT_MERGE,
    HVI_OPT_ONLY_RANK,
    HVI_OPT_COLOR,
    HVI_OPT_PREFIX,
    HVI_OPT_TIMESTAMP,
    HVI_OPT_VERBOSE,
    HVI_OPT_EVENTS,
    HVI_OPT_GRACE,
    HVI_OPT_TIMEOUT,
    HVI_OPT_START_TIMEOUT,
    HVI_OPT_CONFIG,
    HVI_OPT_DEBUG,
    HVI_OPT_DEBUGGER,
    HVI_OPT_WAIT_DEBUGGER,
    HVI_OPT_NOT_YET, /* elastic jobs: refused, in one line */
    HVI_OPT_NO_STALL,
    HVI_OPT_AFFINITY,
    HVI_OPT_TCP,
    HVI_OPT_HELP,
    HVI_OPT_VERSION,
    HVI_OPT_CHECK_BUILD,
    HVI_OPT_DRY_RUN,
    HVI_OPT_JSON,
    HVI_OPT_MAN,
    HVI_OPT_COMPLETION,
    HVI_OPT_NOTHING /* obsolete, and no variable either */
};

struct hvi_opt {
    const char *name;     /* --name */
    const char *also;     /* --also, or NULL */
    const char *single;   /* -single, with one dash, or NULL */
    const char *arg_name; /* for the texts; NULL: by arg */
    const char *words;    /* ARG_WORD: "a b c" */
    /** Worker variable without its HVD_ or HOROVOD_ prefix (both are set), or NULL. */
    const char *env;
    const char *env_value; /* ARG_NONE: what it is set to */
    /** Variable (HVD_...) that counts where the option is not given; not the workers'. */
    const char *own_env;
    const char *config; /* "section.key" in --config-file, "!section.key" for the
                            * opposite    of the key, or NULL */
    const char *help;   /* one sentence without its full stop; obsolete: the reason */
    double min, max;    /* INT, REAL */
    double env_scale;   /* INT: multiplied; 0 = 1 */
    enum hvi_opt_arg arg;
    enum hvi_opt_section section;
    enum hvi_opt_id id;
    char letter;   /* -x, or 0 */
    bool hidden;   /* not in the texts */
    bool optional; /* the argument may be missing: --name[=ARG], never --name ARG */
};

extern const struct hvi_opt hvi_opt_table[];
extern const size_t hvi_opt_count;

/** "Job", "Hosts", ...: headings in the order of the sections. */
const char *hvi_opt_section_name(enum hvi_opt_section section);
/** What stands for the argument in texts: "N"; NULL when there is none. */
const char *hvi_opt_arg_name(const struct hvi_opt *o);

#endif
