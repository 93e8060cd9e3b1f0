"""Tuning options: from a configuration file into arguments, and into the ranks' environment."""

HOROVOD_FUSION_THRESHOLD = "HOROVOD_FUSION_THRESHOLD"
HOROVOD_CYCLE_TIME = "HOROVOD_CYCLE_TIME"
HOROVOD_CACHE_CAPACITY = "HOROVOD_CACHE_CAPACITY"
HOROVOD_HIERARCHICAL_ALLREDUCE = "HOROVOD_HIERARCHICAL_ALLREDUCE"
HOROVOD_HIERARCHICAL_ALLGATHER = "HOROVOD_HIERARCHICAL_ALLGATHER"
HOROVOD_TORUS_ALLREDUCE = "HOROVOD_TORUS_ALLREDUCE"
HOROVOD_AUTOTUNE = "HOROVOD_AUTOTUNE"
HOROVOD_AUTOTUNE_LOG = "HOROVOD_AUTOTUNE_LOG"
HOROVOD_AUTOTUNE_WARMUP_SAMPLES = "HOROVOD_AUTOTUNE_WARMUP_SAMPLES"
HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE = "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"
HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES = "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"
HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE = "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"
HOROVOD_TIMELINE = "HOROVOD_TIMELINE"
HOROVOD_TIMELINE_MARK_CYCLES = "HOROVOD_TIMELINE_MARK_CYCLES"
HOROVOD_STALL_CHECK_DISABLE = "HOROVOD_STALL_CHECK_DISABLE"
HOROVOD_STALL_CHECK_TIME_SECONDS = "HOROVOD_STALL_CHECK_TIME_SECONDS"
HOROVOD_STALL_SHUTDOWN_TIME_SECONDS = "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"
HOROVOD_MPI_THREADS_DISABLE = "HOROVOD_MPI_THREADS_DISABLE"
HOROVOD_NUM_NCCL_STREAMS = "HOROVOD_NUM_NCCL_STREAMS"
NCCL_IB_DISABLE = "NCCL_IB_DISABLE"
HOROVOD_THREAD_AFFINITY = "HOROVOD_THREAD_AFFINITY"
HOROVOD_GLOO_TIMEOUT_SECONDS = "HOROVOD_GLOO_TIMEOUT_SECONDS"
HOROVOD_LOG_LEVEL = "HOROVOD_LOG_LEVEL"
HOROVOD_LOG_HIDE_TIME = "HOROVOD_LOG_HIDE_TIME"
LOG_LEVELS = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"]

# (section of the file, key, argument)
_FILE_KEYS = (
    ("params", "fusion_threshold_mb", "fusion_threshold_mb"),
    ("params", "cycle_time_ms", "cycle_time_ms"),
    ("params", "cache_capacity", "cache_capacity"),
    ("params", "hierarchical_allreduce", "hierarchical_allreduce"),
    ("params", "hierarchical_allgather", "hierarchical_allgather"),
    ("params", "torus_allreduce", "torus_allreduce"),
    ("autotune", "enabled", "autotune"),
    ("autotune", "log_file", "autotune_log_file"),
    ("autotune", "warmup_samples", "autotune_warmup_samples"),
    ("autotune", "steps_per_sample", "autotune_steps_per_sample"),
    ("autotune", "bayes_opt_max_samples", "autotune_bayes_opt_max_samples"),
    ("autotune", "gaussian_process_noise", "autotune_gaussian_process_noise"),
    ("timeline", "filename", "timeline_filename"),
    ("timeline", "mark_cycles", "timeline_mark_cycles"),
    ("stall_check", "warning_time_seconds", "stall_check_warning_time_seconds"),
    ("stall_check", "shutdown_time_seconds", "stall_check_shutdown_time_seconds"),
    ("library_options", "mpi_threads_disable", "mpi_threads_disable"),
    ("library_options", "num_nccl_streams", "num_nccl_streams"),
    ("library_options", "thread_affinity", "thread_affinity"),
    ("library_options", "gloo_timeout_seconds", "gloo_timeout_seconds"),
    ("logging", "level", "log_level"),
    ("logging", "with_timestamp", "log_with_timestamp"),
)

_NOT_NEGATIVE = (
    "fusion_threshold_mb", "cycle_time_ms", "cache_capacity", "autotune_warmup_samples",
    "autotune_steps_per_sample", "autotune_bayes_opt_max_samples",
    "stall_check_warning_time_seconds", "stall_check_shutdown_time_seconds",
    "num_nccl_streams", "thread_affinity", "gloo_timeout_seconds",
)


def set_args_from_config(args, config, override_args):
    """Fill args from the sections of a configuration file.

    override_args  names of arguments that were given on the command line and stay
    """

    def put(argument, value):
        if argument not in override_args:
            setattr(args, argument, value)

    for section, key, argument in _FILE_KEYS:
        found = config.get(section)
        if found and key in found:
            put(argument, found[key])
    stall = config.get("stall_check")
    if stall and "enabled" in stall:
        put("no_stall_check", not stall["enabled"])
    controller = (config.get("controller") or "").lower()
    if controller and controller not in ("gloo", "mpi"):
        raise ValueError("No such controller supported: %s" % controller)
    if controller and not {"use_gloo", "use_mpi"} & set(override_args):
        args.use_gloo = controller == "gloo"
        args.use_mpi = controller == "mpi"


def validate_config_args(args):
    """ValueError for values that no run can have."""
    for name in _NOT_NEGATIVE:
        value = getattr(args, name, None)
        if value is not None and value < 0:
            raise ValueError("%s=%s must be >= 0" % (name, value))
    noise = getattr(args, "autotune_gaussian_process_noise", None)
    if noise is not None and not 0 <= noise <= 1:
        raise ValueError("autotune_gaussian_process_noise=%s must be in [0, 1]" % noise)


def set_env_from_args(env, args):
    """Put into env what the ranks must know; returns env."""

    def put(variable, argument, convert=str):
        value = getattr(args, argument, None)
        if value is not None:
            env[variable] = convert(value)

    def flag(value):
        return "1" if value else "0"

    put(HOROVOD_FUSION_THRESHOLD, "fusion_threshold_mb", lambda mb: str(mb * 1024 * 1024))
    put(HOROVOD_CYCLE_TIME, "cycle_time_ms")
    put(HOROVOD_CACHE_CAPACITY, "cache_capacity")
    put(HOROVOD_HIERARCHICAL_ALLREDUCE, "hierarchical_allreduce", flag)
    put(HOROVOD_HIERARCHICAL_ALLGATHER, "hierarchical_allgather", flag)
    put(HOROVOD_TORUS_ALLREDUCE, "torus_allreduce", flag)
    if getattr(args, "autotune", None):
        env[HOROVOD_AUTOTUNE] = "1"
        put(HOROVOD_AUTOTUNE_LOG, "autotune_log_file")
        put(HOROVOD_AUTOTUNE_WARMUP_SAMPLES, "autotune_warmup_samples")
        put(HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE, "autotune_steps_per_sample")
        put(HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES, "autotune_bayes_opt_max_samples")
        put(HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE, "autotune_gaussian_process_noise")
    if getattr(args, "timeline_filename", None):
        put(HOROVOD_TIMELINE, "timeline_filename")
        put(HOROVOD_TIMELINE_MARK_CYCLES, "timeline_mark_cycles", flag)
    put(HOROVOD_STALL_CHECK_DISABLE, "no_stall_check", flag)
    put(HOROVOD_STALL_CHECK_TIME_SECONDS, "stall_check_warning_time_seconds")
    put(HOROVOD_STALL_SHUTDOWN_TIME_SECONDS, "stall_check_shutdown_time_seconds")
    put(HOROVOD_MPI_THREADS_DISABLE, "mpi_threads_disable", flag)
    if getattr(args, "tcp_flag", None):
        env[NCCL_IB_DISABLE] = "1"
    put(HOROVOD_NUM_NCCL_STREAMS, "num_nccl_streams")
    put(HOROVOD_THREAD_AFFINITY, "thread_affinity")
    put(HOROVOD_GLOO_TIMEOUT_SECONDS, "gloo_timeout_seconds")
    put(HOROVOD_LOG_LEVEL, "log_level")
    put(HOROVOD_LOG_HIDE_TIME, "log_with_timestamp", lambda shown: flag(not shown))
    return env
