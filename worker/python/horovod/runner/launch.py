"""The commands hvdrun and horovodrun of an installed wheel, and horovodrun's arguments.

The command line itself is read by hvdrun (a C program). parse_args() and _run() are for
programs that use horovodrun's arguments from Python.
"""

import argparse
import os
import sys
import warnings

from horovod._version import __version__
from horovod.common.util import gloo_built, mpi_built
from horovod.runner import hvdrun_path
from horovod.runner.common.util import config_parser, hosts, safe_shell_exec, secret, timeout
from horovod.runner.common.util.settings import Settings
from horovod.runner.gloo_run import gloo_run, gloo_run_elastic
from horovod.runner.js_run import is_jsrun_installed, js_run  # noqa: F401
from horovod.runner.mpi_run import mpi_run  # noqa: F401
from horovod.runner.util import cache, lsf, threads
from horovod.runner.util.remote import get_remote_command

CACHE_FOLDER = os.path.join(os.path.expanduser("~"), ".horovod")
CACHE_STALENESS_THRESHOLD_MINUTES = 60
SSH_ATTEMPTS = 5
SSH_CONNECT_TIMEOUT_S = 10


@cache.use_cache()
def _check_all_hosts_ssh_successful(host_addresses, ssh_port=None, ssh_identity_file=None):
    """Can a command be run on each of these hosts by ssh? Says which ones refuse."""

    def try_one(host):
        command = get_remote_command("true", host=host, port=ssh_port,
                                     identity_file=ssh_identity_file,
                                     timeout_s=SSH_CONNECT_TIMEOUT_S)
        return any(safe_shell_exec.execute(command) == 0 for _ in range(SSH_ATTEMPTS))

    reached = threads.execute_function_multithreaded(try_one, [(h,) for h in host_addresses])
    refused = [host for i, host in enumerate(host_addresses) if not reached[i]]
    for host in refused:
        print("ssh not successful for host %s" % host, file=sys.stderr)
    if refused:
        sys.exit(1)
    return True


def check_build(verbose=False):
    """Print what this installation can do, and end with status 0."""
    from horovod import check

    sys.stdout.write(check.report())
    sys.exit(0)


# ---- actions of arguments: they remember what the command line said


def make_check_build_action(np_arg):
    """Action of --check-build: the number of ranks is then not required."""

    class CheckBuildAction(argparse.Action):
        def __call__(self, parser, args, values, option_string=None):
            np_arg.required = False
            args.check_build = True

    return CheckBuildAction


def make_override_action(override_args):
    """Action that stores a value and notes that it was given."""

    class StoreOverrideAction(argparse.Action):
        def __init__(self, option_strings, dest, default=None, type=None, choices=None,
                     required=False, help=None, metavar=None, nargs=None):
            super().__init__(option_strings=option_strings, dest=dest, default=default,
                             type=type, choices=choices, required=required, help=help,
                             metavar=metavar, nargs=nargs)

        def __call__(self, parser, args, values, option_string=None):
            override_args.add(self.dest)
            setattr(args, self.dest, values)

    return StoreOverrideAction


def make_override_bool_action(override_args, bool_value):
    """Action without a value that stores bool_value and notes that it was given."""

    class StoreOverrideBoolAction(argparse.Action):
        def __init__(self, option_strings, dest, required=False, help=None):
            super().__init__(option_strings=option_strings, dest=dest, const=bool_value,
                             nargs=0, default=None, required=required, help=help)

        def __call__(self, parser, args, values, option_string=None):
            override_args.add(self.dest)
            setattr(args, self.dest, self.const)

    return StoreOverrideBoolAction


def make_override_true_action(override_args):
    return make_override_bool_action(override_args, True)


def make_override_false_action(override_args):
    return make_override_bool_action(override_args, False)


def make_deprecated_bool_action(override_args, bool_value, replacement_option, remove_version):
    """As make_override_bool_action(), with a DeprecationWarning."""

    class StoreDeprecatedBoolAction(make_override_bool_action(override_args, bool_value)):
        def __call__(self, parser, args, values, option_string=None):
            warnings.warn("Argument %s has been replaced by %s and will be removed in %s"
                          % (self.option_strings[0], replacement_option, remove_version),
                          DeprecationWarning)
            super().__call__(parser, args, values, option_string)

    return StoreDeprecatedBoolAction


def make_nic_action(deprecated):
    """Action that adds the comma-separated names to a set."""

    class StoreNicAction(argparse.Action):
        def __call__(self, parser, args, values, option_string=None):
            if deprecated and "," in values:
                warnings.warn("--network-interface takes one name; use --network-interfaces "
                              "for several", DeprecationWarning)
            found = {name.strip() for name in values.split(",") if name.strip()}
            setattr(args, self.dest, (getattr(args, self.dest) or set()) | found)

    return StoreNicAction


# ---- arguments


def _add_bool(group, override_args, name, dest, help_text, shown="both"):
    """--name and --no-name, which exclude each other."""
    pair = group.add_mutually_exclusive_group()
    pair.add_argument("--" + name, dest=dest, action=make_override_true_action(override_args),
                      help=help_text)
    pair.add_argument("--no-" + name, dest=dest,
                      action=make_override_false_action(override_args),
                      help=help_text if shown == "both" else argparse.SUPPRESS)


def _add_tuning(parser, override_args):
    store = make_override_action(override_args)
    group = parser.add_argument_group("tuneable parameter arguments")
    group.add_argument("--fusion-threshold-mb", action=store, type=int,
                       help="tensors travel together up to this size")
    group.add_argument("--cycle-time-ms", action=store, type=float, help="no effect")
    group.add_argument("--cache-capacity", action=store, type=int,
                       help="tensors whose negotiation is remembered")
    for name in ("hierarchical-allreduce", "hierarchical-allgather", "torus-allreduce"):
        _add_bool(group, override_args, name, name.replace("-", "_"), "no effect")
    group = parser.add_argument_group("autotune arguments")
    _add_bool(group, override_args, "autotune", "autotune", "no effect", "one")
    group.add_argument("--autotune-log-file", action=store, help="no effect")
    for name, kind in (("warmup-samples", int), ("steps-per-sample", int),
                       ("bayes-opt-max-samples", int), ("gaussian-process-noise", float)):
        group.add_argument("--autotune-" + name, action=store, type=kind, help="no effect")


def _add_elastic(parser):
    group = parser.add_argument_group("elastic arguments")
    group.add_argument("--min-np", "--min-num-proc", dest="min_num_proc", type=int,
                       help="fewest ranks to go on with")
    group.add_argument("--max-np", "--max-num-proc", dest="max_num_proc", type=int,
                       help="most ranks to grow to")
    group.add_argument("--slots-per-host", dest="slots", type=int,
                       help="slots of a discovered host that names no number")
    group.add_argument("--elastic-timeout", type=int,
                       help="seconds to wait for enough slots after a change")
    group.add_argument("--reset-limit", type=int, help="most changes of size")
    group.add_argument("--blacklist-cooldown-range", dest="cooldown_range", type=int, nargs=2,
                       metavar=("MIN", "MAX"), help="seconds that a failed host stays out")


def _add_observing(parser, override_args):
    store = make_override_action(override_args)
    yes, no = make_override_true_action(override_args), make_override_false_action(override_args)
    group = parser.add_argument_group("timeline arguments")
    group.add_argument("--timeline-filename", action=store, help="trace file of rank 0")
    _add_bool(group, override_args, "timeline-mark-cycles", "timeline_mark_cycles",
              "mark each executed group in the trace", "one")
    group = parser.add_argument_group("stall check arguments")
    pair = group.add_mutually_exclusive_group()
    pair.add_argument("--no-stall-check", dest="no_stall_check", action=yes,
                      help="never warn about ranks that wait for others")
    pair.add_argument("--stall-check", dest="no_stall_check", action=no,
                      help=argparse.SUPPRESS)
    for name in ("warning", "shutdown"):
        group.add_argument("--stall-check-%s-time-seconds" % name, action=store, type=int)
    group = parser.add_argument_group("library arguments")
    _add_bool(group, override_args, "mpi-threads-disable", "mpi_threads_disable", "no effect",
              "one")
    group.add_argument("--mpi-args", help="no effect")
    group.add_argument("--tcp", dest="tcp_flag", action="store_true",
                       help="NCCL uses TCP between hosts")
    group.add_argument("--binding-args", help="no effect")
    for name in ("num-nccl-streams", "thread-affinity", "gloo-timeout-seconds"):
        group.add_argument("--" + name, action=store, type=int)
    group = parser.add_argument_group("logging arguments")
    group.add_argument("--log-level", action=store, choices=config_parser.LOG_LEVELS)
    pair = group.add_mutually_exclusive_group()
    pair.add_argument("--log-with-timestamp", dest="log_with_timestamp", action=yes,
                      help=argparse.SUPPRESS)
    pair.add_argument("--log-without-timestamp", dest="log_with_timestamp", action=no,
                      help="no time in the library's log lines")
    old = make_deprecated_bool_action
    pair.add_argument("--log-hide-timestamp", dest="log_with_timestamp",
                      action=old(override_args, False, "--log-without-timestamp", "v0.22"),
                      help=argparse.SUPPRESS)
    pair.add_argument("--no-log-hide-timestamp", dest="log_with_timestamp",
                      action=old(override_args, True, "--log-with-timestamp", "v0.22"),
                      help=argparse.SUPPRESS)
    group.add_argument("-prefix-timestamp", "--prefix-output-with-timestamp",
                       dest="prefix_output_with_timestamp", action="store_true",
                       help="a time before each line of output")


def _add_places(parser, override_args):
    yes = make_override_true_action(override_args)
    group = parser.add_argument_group("host arguments")
    pair = group.add_mutually_exclusive_group()
    pair.add_argument("-H", "--hosts", dest="hosts", help="host:slots,host:slots")
    pair.add_argument("-hostfile", "--hostfile", dest="hostfile", help="lines 'host slots=n'")
    pair.add_argument("--host-discovery-script", dest="host_discovery_script",
                      help="program that prints the hosts of an elastic job")
    group = parser.add_argument_group("controller arguments")
    pair = group.add_mutually_exclusive_group()
    for name in ("gloo", "mpi"):
        pair.add_argument("--" + name, dest="use_" + name, action=yes, help="no effect")
    pair.add_argument("--jsrun", dest="use_jsrun", action="store_true", default=None,
                      help="no effect")


def _read_config(path):
    """The sections of a YAML file."""
    try:
        import yaml
    except ImportError:
        raise ImportError("--config-file needs PyYAML here; hvdrun reads such a file without "
                          "it") from None
    with open(path, encoding="utf-8") as f:
        return yaml.safe_load(f) or {}


def parse_args():
    """horovodrun's arguments in sys.argv, as a namespace; command is the program's part."""
    override_args = set()
    parser = argparse.ArgumentParser(prog="horovodrun", description="Start a job's ranks.")
    parser.add_argument("-v", "--version", action="version", version=__version__)
    np_arg = parser.add_argument("-np", "--num-proc", dest="num_proc", type=int,
                                 required=not lsf.LSFUtils.using_lsf(),
                                 help="number of ranks")
    parser.add_argument("-cb", "--check-build", dest="check_build", nargs=0, default=False,
                        action=make_check_build_action(np_arg),
                        help="show what this installation can do")
    parser.add_argument("--disable-cache", dest="disable_cache", action="store_true",
                        help="no effect")
    parser.add_argument("--start-timeout", dest="start_timeout", type=int,
                        help="seconds that the ranks have to come together")
    for name, deprecated in (("--network-interface", True), ("--network-interfaces", False)):
        parser.add_argument(name, dest="nics", action=make_nic_action(deprecated),
                            help="interfaces to use")
    parser.add_argument("--output-filename", help="folder for each rank's output")
    parser.add_argument("--verbose", dest="verbose", action="store_const", const=2, default=0,
                        help="say more")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="program and arguments")
    parser.add_argument("--config-file", dest="config_file", help="YAML file with options")
    group = parser.add_argument_group("SSH arguments")
    group.add_argument("-p", "--ssh-port", dest="ssh_port", type=int)
    group.add_argument("-i", "--ssh-identity-file", dest="ssh_identity_file")
    _add_tuning(parser, override_args)
    _add_elastic(parser)
    _add_observing(parser, override_args)
    _add_places(parser, override_args)
    args = parser.parse_args()
    if args.config_file:
        config_parser.set_args_from_config(args, _read_config(args.config_file), override_args)
    config_parser.validate_config_args(args)
    args.run_func = None
    args.executable = None
    if args.check_build:
        check_build(args.verbose)
    return args


# ---- running


def is_gloo_used(use_gloo=None, use_mpi=None, use_jsrun=None):
    """Would Horovod start the ranks itself, without MPI and jsrun?"""
    if use_gloo:
        return True
    return not use_mpi and not use_jsrun


def run_controller(use_gloo, gloo_run, use_mpi, mpi_run, use_jsrun, js_run, verbosity):
    """Call that function of the three which was asked for, or the first that works."""
    verbose = verbosity is not None and verbosity >= 2
    if use_gloo:
        if not gloo_built(verbose=verbose):
            raise ValueError("Gloo support has not been built. If this is not expected, "
                             "reinstall the package.")
        gloo_run()
    elif use_mpi:
        if not mpi_built(verbose=verbose):
            raise ValueError("MPI support has not been built. Start the ranks without --mpi.")
        mpi_run()
    elif use_jsrun:
        if not mpi_built(verbose=verbose):
            raise ValueError("MPI support has not been built. Start the ranks without --jsrun.")
        if not lsf.LSFUtils.using_lsf():
            raise ValueError("Horovod did not detect an LSF job. The jsrun launcher can only "
                             "be used in that environment.")
        js_run()
    elif mpi_built(verbose=verbose):
        if lsf.LSFUtils.using_lsf() and is_jsrun_installed():
            js_run()
        else:
            mpi_run()
    elif gloo_built(verbose=verbose):
        gloo_run()
    else:
        raise ValueError("Neither MPI nor Gloo support has been built.")


def _is_elastic(args):
    """May the job grow and shrink?"""
    return args.host_discovery_script is not None or args.min_num_proc is not None


def _settings(args):
    """Settings of a namespace; the tuning goes through the environment."""
    given = args.hosts
    if args.hostfile is not None:
        given = hosts.parse_host_files(args.hostfile)
    seconds = args.start_timeout
    return Settings(
        num_proc=args.num_proc, hosts=given, verbose=2 if args.verbose else 0,
        ssh_port=args.ssh_port, ssh_identity_file=args.ssh_identity_file,
        extra_mpi_args=args.mpi_args, tcp_flag=args.tcp_flag, binding_args=args.binding_args,
        key=secret.make_secret_key(), nics=args.nics, output_filename=args.output_filename,
        start_timeout=None if seconds is None else timeout.Timeout(
            seconds, "Timed out waiting for {activity}. The job did not start in time."),
        prefix_output_with_timestamp=args.prefix_output_with_timestamp)


def _launch_job(args, settings, nics, command):
    """Run command as the ranks of a job, whichever controller the arguments name.

    args.run_func and args.executable: horovod.run() is for functions. RuntimeError when a
    rank fails.
    """
    env = config_parser.set_env_from_args(dict(os.environ), args)
    gloo_run(settings, nics, env, None, command)


def _run_static(args):
    """Run the job of parse_args(). RuntimeError when it fails."""
    command = list(args.command)
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        raise ValueError("no program to run")
    settings = _settings(args)
    _launch_job(args, settings, settings.nics, command)


def _run_elastic(args):
    """NotImplementedError."""
    gloo_run_elastic(None, None, args.command, args.executable)


def _run(args):
    """Run the job of parse_args(). RuntimeError when it fails."""
    return _run_elastic(args) if _is_elastic(args) else _run_static(args)


def run_commandline():
    """Become hvdrun with this process's arguments."""
    words = sys.argv[1:]
    if words and words[0] in ("-cb", "--check-build"):
        check_build()
    path = hvdrun_path()
    os.execv(path, [path] + words)


def coordinator_commandline():
    """Become hvd-coordinator with this process's arguments."""
    path = os.path.join(os.path.dirname(hvdrun_path()), "hvd-coordinator")
    os.execv(path, [path] + sys.argv[1:])


if __name__ == "__main__":
    run_commandline()
