#include "hvdrun/opttab.h"

#define BIG 1e15
#define NO_MPI "there is no MPI below this launcher"
#define NO_TUNER "there is nothing to tune: no cycle time, and fusion adapts by itself"
#define ONE_SCHEDULE "the collective schedule is chosen by message size and layout"

/* Rows of one section stand together, in the order in which they are shown. */
const struct hvi_opt hvi_opt_table[] = {
    /* ---- job */
    {.name = "num-proc", .single = "np", .letter = 'n', .arg = HVI_ARG_INT, .min = 1, .max = 1024,
     .section = HVI_OPT_JOB, .id = HVI_OPT_NP,
     .help = "Number of ranks; default: all slots of the hosts, without hosts one per core"},
    {.name = "wdir", .single = "wdir", .arg = HVI_ARG_DIR, .section = HVI_OPT_JOB, .id = HVI_OPT_WDIR,
     .help = "Working directory of the ranks; default: this one"},
    {.name = "env", .letter = 'x', .arg = HVI_ARG_TEXT, .arg_name = "NAME[=VALUE]",
     .section = HVI_OPT_JOB, .id = HVI_OPT_X,
     .help = "Give this variable to the ranks (may be repeated); the rest of the environment goes to them too"},
    {.name = "stdin", .arg = HVI_ARG_WORD, .words = "0 all none", .section = HVI_OPT_JOB, .id = HVI_OPT_STDIN,
     .help = "Who reads this terminal's input; default: rank 0"},
    {.name = "config-file", .arg = HVI_ARG_FILE, .section = HVI_OPT_JOB, .id = HVI_OPT_CONFIG,
     .help = "YAML file with tuning, timeline and stall settings; options given here win"},
    /* ---- hosts */
    {.name = "hosts", .letter = 'H', .arg = HVI_ARG_HOSTS, .section = HVI_OPT_HOSTS, .id = HVI_OPT_HOST_LIST,
     .help = "Hosts with their slots: a:4,b:2,node[01-16]:8; in this version only this host"},
    {.name = "hostfile", .single = "hostfile", .arg = HVI_ARG_FILE, .section = HVI_OPT_HOSTS, .id = HVI_OPT_HOSTFILE,
     .help = "File with one host a line: 'host slots=4', 'host:4' or 'host'; # starts a comment"},
    {.name = "oversubscribe", .section = HVI_OPT_HOSTS, .id = HVI_OPT_OVERSUBSCRIBE,
     .help = "Allow more ranks than slots"},
    {.name = "ssh-port", .letter = 'p', .arg = HVI_ARG_INT, .min = 1, .max = 65535, .section = HVI_OPT_HOSTS,
     .id = HVI_OPT_SSH, .help = "Port of the remote hosts' ssh server"},
    {.name = "ssh-identity-file", .letter = 'i', .arg = HVI_ARG_FILE, .section = HVI_OPT_HOSTS,
     .id = HVI_OPT_SSH, .help = "Key file for ssh"},
    {.name = "network-interfaces", .also = "network-interface", .arg = HVI_ARG_TEXT, .arg_name = "NAME[,NAME...]",
     .section = HVI_OPT_HOSTS, .id = HVI_OPT_NETWORK,
     .help = "Network interfaces for data between hosts (may be repeated)"},
    /* ---- output */
    {.name = "output-filename", .arg = HVI_ARG_DIR, .section = HVI_OPT_OUTPUT, .id = HVI_OPT_OUTPUT_DIR,
     .help = "Also write each rank's output to DIR/rank.N/stdout and stderr"},
    {.name = "prefix", .arg = HVI_ARG_WORD, .words = "horovod rank none", .section = HVI_OPT_OUTPUT,
     .id = HVI_OPT_PREFIX, .help = "What stands before each line: [1]<stdout>: (default), '1: ', or nothing"},
    {.name = "prefix-output-with-timestamp", .single = "prefix-timestamp", .section = HVI_OPT_OUTPUT,
     .id = HVI_OPT_TIMESTAMP, .help = "Put the time before the prefix of each line"},
    {.name = "verbose", .section = HVI_OPT_OUTPUT, .id = HVI_OPT_VERBOSE,
     .help = "Say what hvdrun does"},
    {.name = "log-level", .arg = HVI_ARG_WORD, .words = "TRACE DEBUG INFO WARNING ERROR FATAL",
     .section = HVI_OPT_OUTPUT, .env = "LOG_LEVEL", .config = "logging.level",
     .help = "How much the library tells; default: WARNING"},
    {.name = "log-without-timestamp", .also = "log-hide-timestamp", .section = HVI_OPT_OUTPUT,
     .env = "LOG_HIDE_TIME", .env_value = "1", .help = "No time in the library's log lines"},
    {.name = "log-with-timestamp", .also = "no-log-hide-timestamp", .section = HVI_OPT_OUTPUT, .hidden = true,
     .env = "LOG_HIDE_TIME", .env_value = "0", .config = "!logging.with_timestamp",
     .help = "Time in the library's log lines"},
    /* ---- end of the job */
    {.name = "timeout", .arg = HVI_ARG_TIME, .section = HVI_OPT_END, .id = HVI_OPT_TIMEOUT,
     .help = "End the job after this time, with status 124"},
    {.name = "start-timeout", .arg = HVI_ARG_TIME, .section = HVI_OPT_END, .id = HVI_OPT_START_TIMEOUT,
     .help = "Time that all ranks have to come together once the first has called init; default: 30s"},
    {.name = "grace", .arg = HVI_ARG_TIME, .section = HVI_OPT_END, .id = HVI_OPT_GRACE,
     .help = "Time between asking a rank to end (SIGTERM) and killing it; default: 10s"},
    /* ---- elastic */
    {.name = "min-np", .also = "min-num-proc", .arg = HVI_ARG_INT, .min = 1, .max = 1024,
     .section = HVI_OPT_ELASTIC, .id = HVI_OPT_FIXED_SIZE, .help = "Fewest ranks to go on with"},
    {.name = "max-np", .also = "max-num-proc", .arg = HVI_ARG_INT, .min = 1, .max = 1024,
     .section = HVI_OPT_ELASTIC, .id = HVI_OPT_FIXED_SIZE, .help = "Most ranks to grow to"},
    {.name = "slots-per-host", .arg = HVI_ARG_INT, .min = 1, .max = 1024, .section = HVI_OPT_ELASTIC,
     .id = HVI_OPT_FIXED_SIZE, .help = "Slots of a discovered host that names no number"},
    {.name = "elastic-timeout", .arg = HVI_ARG_TIME, .section = HVI_OPT_ELASTIC, .id = HVI_OPT_FIXED_SIZE,
     .help = "Time to wait for enough slots after a change"},
    {.name = "reset-limit", .arg = HVI_ARG_INT, .max = BIG, .section = HVI_OPT_ELASTIC,
     .id = HVI_OPT_FIXED_SIZE, .help = "Most changes of size"},
    {.name = "blacklist-cooldown-range", .arg = HVI_ARG_TEXT, .arg_name = "MIN MAX", .section = HVI_OPT_ELASTIC,
     .id = HVI_OPT_FIXED_SIZE, .help = "Seconds that a failed host is left out"},
    {.name = "host-discovery-script", .arg = HVI_ARG_FILE, .section = HVI_OPT_ELASTIC, .id = HVI_OPT_DISCOVERY,
     .help = "Program that prints the hosts of an elastic job; refused in this version"},
    /* ---- tuning */
    {.name = "fusion-threshold-mb", .arg = HVI_ARG_INT, .max = 1048576, .section = HVI_OPT_TUNING,
     .env = "FUSION_THRESHOLD", .env_scale = 1048576, .config = "params.fusion_threshold_mb",
     .help = "Tensors that are ready together travel together up to this size; 0: never"},
    {.name = "cache-capacity", .arg = HVI_ARG_INT, .max = BIG, .section = HVI_OPT_TUNING,
     .env = "CACHE_CAPACITY", .config = "params.cache_capacity",
     .help = "Number of tensors whose negotiation is remembered"},
    {.name = "cpu-plane", .arg = HVI_ARG_WORD, .words = "auto shm tcp", .section = HVI_OPT_TUNING,
     .env = "CPU_PLANE", .help = "How CPU tensors travel between ranks of a host; default: auto"},
    {.name = "gloo-timeout-seconds", .arg = HVI_ARG_INT, .max = BIG, .section = HVI_OPT_TUNING, .hidden = true,
     .env = "GLOO_TIMEOUT_SECONDS", .config = "library_options.gloo_timeout_seconds",
     .help = "Horovod's variable of that name"},
    {.name = "num-nccl-streams", .arg = HVI_ARG_INT, .max = BIG, .section = HVI_OPT_TUNING, .hidden = true,
     .env = "NUM_NCCL_STREAMS", .config = "library_options.num_nccl_streams",
     .help = "Horovod's variable of that name"},
    {.name = "thread-affinity", .arg = HVI_ARG_TEXT, .section = HVI_OPT_TUNING, .hidden = true,
     .env = "THREAD_AFFINITY", .config = "library_options.thread_affinity",
     .help = "Horovod's variable of that name"},
    {.name = "tcp", .section = HVI_OPT_TUNING, .id = HVI_OPT_TCP,
     .help = "NCCL uses TCP between hosts, not InfiniBand"},
    /* ---- timeline */
    {.name = "timeline-filename", .arg = HVI_ARG_FILE, .section = HVI_OPT_TIMELINE, .env = "TIMELINE",
     .config = "timeline.filename", .help = "Write a trace of all tensors' phases, for Perfetto or chrome://tracing"},
    {.name = "timeline-mark-cycles", .section = HVI_OPT_TIMELINE, .env = "TIMELINE_MARK_CYCLES",
     .env_value = "1", .config = "timeline.mark_cycles", .help = "Mark each executed group in the trace"},
    {.name = "no-timeline-mark-cycles", .section = HVI_OPT_TIMELINE, .hidden = true,
     .env = "TIMELINE_MARK_CYCLES", .env_value = "0", .help = "No such marks"},
    /* ---- stalls */
    {.name = "no-stall-check", .section = HVI_OPT_STALL, .id = HVI_OPT_NO_STALL, .env = "STALL_CHECK_DISABLE",
     .env_value = "1", .config = "!stall_check.enabled", .help = "Never warn about ranks that wait for others"},
    {.name = "stall-check", .section = HVI_OPT_STALL, .hidden = true, .env = "STALL_CHECK_DISABLE",
     .env_value = "0", .help = "Warn about ranks that wait for others"},
    {.name = "stall-check-warning-time-seconds", .arg = HVI_ARG_INT, .max = 1e6, .section = HVI_OPT_STALL,
     .env = "STALL_CHECK_TIME_SECONDS", .config = "stall_check.warning_time_seconds",
     .help = "Warn after this many seconds; default: 10"},
    {.name = "stall-check-shutdown-time-seconds", .arg = HVI_ARG_INT, .max = 1e6, .section = HVI_OPT_STALL,
     .env = "STALL_SHUTDOWN_TIME_SECONDS", .config = "stall_check.shutdown_time_seconds",
     .help = "End the job after this many seconds of waiting; default: 0, never"},
    /* ---- information */
    {.name = "help", .letter = 'h', .section = HVI_OPT_INFO, .id = HVI_OPT_HELP, .help = "Show this text"},
    {.name = "version", .letter = 'v', .section = HVI_OPT_INFO, .id = HVI_OPT_VERSION,
     .help = "Show the version"},
    {.name = "check-build", .single = "cb", .section = HVI_OPT_INFO, .id = HVI_OPT_CHECK_BUILD,
     .help = "Show what the installed library can do"},
    {.name = "dry-run", .section = HVI_OPT_INFO, .id = HVI_OPT_DRY_RUN,
     .help = "Show which rank would run where, and start nothing"},
    {.name = "generate-man", .section = HVI_OPT_INFO, .id = HVI_OPT_MAN,
     .help = "Print the manual page"},
    {.name = "generate-completion", .section = HVI_OPT_INFO, .id = HVI_OPT_COMPLETION,
     .help = "Print the completion script for bash"},
    /* ---- accepted for horovodrun's sake */
    {.name = "disable-cache", .section = HVI_OPT_OBSOLETE, .id = HVI_OPT_NOTHING,
     .help = "no result of earlier runs is kept"},
    {.name = "cycle-time-ms", .arg = HVI_ARG_REAL, .max = 1e6, .section = HVI_OPT_OBSOLETE, .env = "CYCLE_TIME",
     .config = "params.cycle_time_ms", .help = "there is no fixed cycle"},
    {.name = "hierarchical-allreduce", .section = HVI_OPT_OBSOLETE, .env = "HIERARCHICAL_ALLREDUCE",
     .env_value = "1", .config = "params.hierarchical_allreduce", .help = ONE_SCHEDULE},
    {.name = "no-hierarchical-allreduce", .section = HVI_OPT_OBSOLETE, .env = "HIERARCHICAL_ALLREDUCE",
     .env_value = "0", .help = ONE_SCHEDULE},
    {.name = "hierarchical-allgather", .section = HVI_OPT_OBSOLETE, .env = "HIERARCHICAL_ALLGATHER",
     .env_value = "1", .config = "params.hierarchical_allgather", .help = ONE_SCHEDULE},
    {.name = "no-hierarchical-allgather", .section = HVI_OPT_OBSOLETE, .env = "HIERARCHICAL_ALLGATHER",
     .env_value = "0", .help = ONE_SCHEDULE},
    {.name = "torus-allreduce", .section = HVI_OPT_OBSOLETE, .env = "TORUS_ALLREDUCE", .env_value = "1",
     .config = "params.torus_allreduce", .help = ONE_SCHEDULE},
    {.name = "no-torus-allreduce", .section = HVI_OPT_OBSOLETE, .env = "TORUS_ALLREDUCE", .env_value = "0",
     .help = ONE_SCHEDULE},
    {.name = "autotune", .section = HVI_OPT_OBSOLETE, .env = "AUTOTUNE", .env_value = "1",
     .config = "autotune.enabled", .help = NO_TUNER},
    {.name = "no-autotune", .section = HVI_OPT_OBSOLETE, .env = "AUTOTUNE", .env_value = "0", .help = NO_TUNER},
    {.name = "autotune-log-file", .arg = HVI_ARG_FILE, .section = HVI_OPT_OBSOLETE, .env = "AUTOTUNE_LOG",
     .config = "autotune.log_file", .help = NO_TUNER},
    {.name = "autotune-warmup-samples", .arg = HVI_ARG_INT, .max = BIG, .section = HVI_OPT_OBSOLETE,
     .env = "AUTOTUNE_WARMUP_SAMPLES", .config = "autotune.warmup_samples", .help = NO_TUNER},
    {.name = "autotune-steps-per-sample", .arg = HVI_ARG_INT, .max = BIG, .section = HVI_OPT_OBSOLETE,
     .env = "AUTOTUNE_STEPS_PER_SAMPLE", .config = "autotune.steps_per_sample", .help = NO_TUNER},
    {.name = "autotune-bayes-opt-max-samples", .arg = HVI_ARG_INT, .max = BIG, .section = HVI_OPT_OBSOLETE,
     .env = "AUTOTUNE_BAYES_OPT_MAX_SAMPLES", .config = "autotune.bayes_opt_max_samples", .help = NO_TUNER},
    {.name = "autotune-gaussian-process-noise", .arg = HVI_ARG_REAL, .max = 1, .section = HVI_OPT_OBSOLETE,
     .env = "AUTOTUNE_GAUSSIAN_PROCESS_NOISE", .config = "autotune.gaussian_process_noise", .help = NO_TUNER},
    {.name = "mpi-threads-disable", .section = HVI_OPT_OBSOLETE, .env = "MPI_THREADS_DISABLE", .env_value = "1",
     .config = "library_options.mpi_threads_disable", .help = NO_MPI},
    {.name = "no-mpi-threads-disable", .section = HVI_OPT_OBSOLETE, .env = "MPI_THREADS_DISABLE",
     .env_value = "0", .help = NO_MPI},
    {.name = "mpi-args", .arg = HVI_ARG_TEXT, .section = HVI_OPT_OBSOLETE, .id = HVI_OPT_NOTHING, .help = NO_MPI},
    {.name = "binding-args", .arg = HVI_ARG_TEXT, .section = HVI_OPT_OBSOLETE, .id = HVI_OPT_NOTHING, .help = NO_MPI},
    {.name = "mpi", .section = HVI_OPT_OBSOLETE, .id = HVI_OPT_NOTHING, .help = NO_MPI},
    {.name = "gloo", .section = HVI_OPT_OBSOLETE, .id = HVI_OPT_NOTHING,
     .help = "the library's own collectives are always used"},
    {.name = "jsrun", .section = HVI_OPT_OBSOLETE, .id = HVI_OPT_NOTHING, .help = NO_MPI},
};
const size_t hvi_opt_count = sizeof hvi_opt_table / sizeof hvi_opt_table[0];

const char *hvi_opt_section_name(enum hvi_opt_section section)
{
    static const char *const names[HVI_OPT_SECTIONS] = {
        [HVI_OPT_JOB] = "Job",
        [HVI_OPT_HOSTS] = "Hosts",
        [HVI_OPT_OUTPUT] = "Output",
        [HVI_OPT_END] = "End of the job",
        [HVI_OPT_ELASTIC] = "Elastic jobs (in this version the size of a job is fixed)",
        [HVI_OPT_TUNING] = "Tuning",
        [HVI_OPT_TIMELINE] = "Timeline",
        [HVI_OPT_STALL] = "Waiting ranks",
        [HVI_OPT_INFO] = "Information",
        [HVI_OPT_OBSOLETE] = "Accepted from horovodrun lines, without effect",
    };

    return section > 0 && section < HVI_OPT_SECTIONS ? names[section] : "";
}

const char *hvi_opt_arg_name(const struct hvi_opt *o)
{
    if (o->arg_name != NULL)
        return o->arg_name;
    switch (o->arg) {
    case HVI_ARG_NONE:
        return NULL;
    case HVI_ARG_INT:
    case HVI_ARG_REAL:
        return "N";
    case HVI_ARG_TIME:
        return "TIME";
    case HVI_ARG_WORD:
        return "WORD";
    case HVI_ARG_FILE:
        return "FILE";
    case HVI_ARG_DIR:
        return "DIR";
    case HVI_ARG_HOSTS:
        return "HOSTS";
    case HVI_ARG_TEXT:
    default:
        return "TEXT";
    }
}
