"""Ranks by Horovod's own launcher: their environment, their commands, and running them.

gloo_run() starts them with hvdrun. launch_gloo() calls the function that it is given for
each rank, for programs that have their own way of starting processes.
"""

import errno
import math
import os
import shlex
import signal
import subprocess
import sys
import threading
import time

from horovod.runner.common.util import env as env_util
from horovod.runner.common.util import hosts, safe_shell_exec
from horovod.runner.http.http_server import RendezvousServer
from horovod.runner.util import network, threads
from horovod.runner.util.remote import get_remote_command

_NOT_ELASTIC = ("elastic jobs are not supported yet: hvdrun starts a fixed number of ranks; "
                "leave out min_num_proc and the host discovery")
_FAILED = ("Horovod detected that one or more processes exited with non-zero status, thus "
           "causing the job to be terminated. ")


def _pad_rank(rank, size):
    """rank with leading zeros, as wide as the largest of size ranks."""
    width = int(math.log10(size - 1)) + 1 if size > 1 else 1
    return str(rank).zfill(width)


def _mkdir_p(path):
    """Make a folder and those above it; fine when it is there."""
    try:
        os.makedirs(path)
    except OSError as error:
        if error.errno != errno.EEXIST or not os.path.isdir(path):
            raise


class MultiFile:
    """Writes the same to several files."""

    def __init__(self, files):
        self._files = files

    def write(self, text):
        for f in self._files:
            f.write(text)

    def flush(self):
        for f in self._files:
            f.flush()


# ---- environment and commands of ranks


def create_slot_env_vars(slot_info):
    """{variable: text} that says which rank a process is."""
    return {
        "HOROVOD_HOSTNAME": str(slot_info.hostname),
        "HOROVOD_RANK": str(slot_info.rank),
        "HOROVOD_SIZE": str(slot_info.size),
        "HOROVOD_LOCAL_RANK": str(slot_info.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot_info.local_size),
        "HOROVOD_CROSS_RANK": str(slot_info.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot_info.cross_size),
    }


def create_run_env_vars(server_ip, nics, port, elastic=False):
    """{variable: text} that all ranks of a job share."""
    found = {
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": str(server_ip),
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    }
    if nics:
        found["HOROVOD_GLOO_IFACE"] = list(nics)[0]
        found["NCCL_SOCKET_IFNAME"] = ",".join(nics)
    if elastic:
        found["HOROVOD_ELASTIC"] = "1"
    return found


def _assignments(variables):
    return " ".join("%s=%s" % (name, shlex.quote(value)) for name, value in variables.items())


def get_run_command(command, server_ip, nics, port, elastic=False):
    """Shell command of a rank: the words of command after the variables of all ranks."""
    return "%s %s" % (_assignments(create_run_env_vars(server_ip, nics, port, elastic)),
                      " ".join(shlex.quote(word) for word in command))


def _slot_info_to_command_fn(run_command, env):
    """fn(slot_info): run_command with the rank's variables and PATH and PYTHONPATH of env."""

    def command(slot_info):
        variables = create_slot_env_vars(slot_info)
        variables.update({name: str(env[name]) for name in ("PATH", "PYTHONPATH")
                          if env and env.get(name) is not None})
        return "%s %s" % (_assignments(variables), run_command)

    return command


def _create_elastic_worker_fn(exec_command, run_command, env, event):
    """fn(slot_info, events): exec_command for the slot; event ends it, too."""
    command = _slot_info_to_command_fn(run_command, env)

    def worker(slot_info, events):
        return exec_command(command(slot_info), slot_info, [event] + list(events or ()))

    return worker


def _open_outputs(settings, slot_info):
    """(files of the rank's output, streams to write to); ([], [None, None]) without a folder"""
    if not settings.output_filename:
        return [], [None, None]
    folder = os.path.join(settings.output_filename,
                          "rank." + _pad_rank(slot_info.rank, slot_info.size))
    _mkdir_p(folder)
    files = [open(os.path.join(folder, name), "w", encoding="utf-8")
             for name in ("stdout", "stderr")]
    return files, [MultiFile([sys.stdout, files[0]]), MultiFile([sys.stderr, files[1]])]


def _exec_command_fn(settings):
    """fn(command, slot_info, events): (exit status, time) of a rank's command on its host."""

    def exec_command(command, slot_info, events):
        if network.filter_local_addresses([slot_info.hostname]):
            exported = _assignments({name: value for name, value in os.environ.items()
                                     if env_util.is_exportable(name) and name.isidentifier()})
            command = get_remote_command(
                "cd %s >/dev/null 2>&1; %s %s" % (shlex.quote(os.getcwd()), exported, command),
                slot_info.hostname, settings.ssh_port, settings.ssh_identity_file)
        if settings.verbose:
            print(command)
        files, (stdout, stderr) = _open_outputs(settings, slot_info)
        try:
            status = safe_shell_exec.execute(
                command, stdout=stdout, stderr=stderr, index=slot_info.rank, events=events,
                prefix_output_with_timestamp=settings.prefix_output_with_timestamp)
        finally:
            for f in files:
                f.close()
        return status, time.time()

    return exec_command


def register_shutdown_event():
    """An Event that SIGINT and SIGTERM set, if this is the main thread."""
    event = threading.Event()

    def ends(signum, frame):
        event.set()

    if threading.current_thread() is threading.main_thread():
        event.before = [(signo, signal.signal(signo, ends))
                        for signo in (signal.SIGINT, signal.SIGTERM)]
    return event


def _restore_signals(event):
    """What register_shutdown_event() has changed is as before."""
    for signo, handler in getattr(event, "before", ()):
        signal.signal(signo, handler)


# ---- running


def launch_gloo(command, exec_command, settings, nics, env, server_ip):
    """Call exec_command(command, slot_info, events) for each rank at once; wait for all.

    exec_command returns (exit status, time). RuntimeError names the first rank that failed,
    whose failure ends the others through the events. What it starts finds the other ranks
    only if HVD_COORDINATOR and HVD_KEY_FILE of an hvd-coordinator are in its environment.
    """
    server = RendezvousServer(settings.verbose)
    port = server.start()
    ended = register_shutdown_event()
    try:
        slots = hosts.get_host_assignments(
            hosts.parse_hosts(settings.hosts or "localhost:%d" % settings.num_proc),
            settings.num_proc, settings.num_proc)
        server.init(slots)
        make = _slot_info_to_command_fn(get_run_command(command, server_ip, nics, port), env)

        def one(slot_info):
            status, when = exec_command(make(slot_info), slot_info, [ended])
            if status != 0:
                ended.set()
            return status, when

        results = threads.execute_function_multithreaded(one, [[slot] for slot in slots])
    finally:
        _restore_signals(ended)
        server.stop()
    failed = [(when, rank, status) for rank, (status, when) in results.items() if status != 0]
    if failed:
        _, rank, status = min(failed)
        raise RuntimeError(_FAILED + "The first process to do so was:\nProcess name: %d\n"
                           "Exit code: %d\n" % (rank, status))


def _hvdrun_options(settings, nics):
    """hvdrun's options of these settings."""
    found = [] if settings.num_proc is None else ["-np", str(settings.num_proc)]
    started = settings.start_timeout
    for option, value in (
        ("-H", getattr(settings, "hosts", None)), ("-p", settings.ssh_port),
        ("-i", settings.ssh_identity_file), ("--output-filename", settings.output_filename),
        ("--network-interfaces", ",".join(sorted(nics)) if nics else None),
        ("--start-timeout", math.ceil(started.remaining()) if started is not None else None),
    ):
        if value is not None:
            found += [option, str(value)]
    if settings.prefix_output_with_timestamp:
        found.append("--prefix-output-with-timestamp")
    if (settings.verbose or 0) >= 2:
        found.append("--verbose")
    return found


def gloo_run(settings, nics, env, server_ip, command):
    """Run command (a list of words) as the ranks of a job, by hvdrun.

    env  environment of the ranks; server_ip is not needed. RuntimeError when a rank fails.
    """
    from horovod.runner import hvdrun_path

    status = subprocess.call([hvdrun_path()] + _hvdrun_options(settings, nics)
                             + [str(word) for word in command], env=env)
    if status != 0:
        raise RuntimeError(_FAILED + "hvdrun's exit status: %d" % status)


def _get_min_start_hosts(settings):
    """Hosts that an elastic job needs to start: two to find interfaces, one if they are given."""
    return 1 if settings.nics else 2


def launch_gloo_elastic(command_or_func, exec_command, settings, env, get_common_interfaces,
                        rendezvous, executable):
    """NotImplementedError."""
    raise NotImplementedError(_NOT_ELASTIC)


def gloo_run_elastic(settings, env, command_or_func, executable):
    """NotImplementedError."""
    raise NotImplementedError(_NOT_ELASTIC)
