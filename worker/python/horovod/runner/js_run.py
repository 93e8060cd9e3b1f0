"""Ranks that jsrun of LSF clusters starts. hvdrun needs no jsrun."""

import os
import shlex
import shutil
import tempfile

from horovod.runner import _foreign_rank
from horovod.runner.common.util import hosts
from horovod.runner.util import lsf


def is_jsrun_installed():
    """Is the program jsrun there?"""
    return shutil.which("jsrun") is not None


def _line(settings, resources, rank):
    """jsrun's command line for the shell command of a rank."""
    words = ["jsrun", settings.binding_args or "--erf_input " + shlex.quote(resources)]
    if settings.output_filename:
        words.append("--stdio_stderr %s --stdio_stdout %s"
                     % ((shlex.quote(settings.output_filename),) * 2))
    words += [settings.extra_mpi_args] if settings.extra_mpi_args else []
    return " ".join(words + [rank])


def js_run(settings, nics, env, command, stdout=None, stderr=None):
    """Run command (a list of words) as the ranks of a job, by jsrun.

    Arguments as of mpi_run(). ValueError without jsrun, RuntimeError when a rank fails.
    """
    if not is_jsrun_installed():
        raise ValueError("horovod does not find jsrun on PATH: start the ranks with hvdrun, which "
                         "needs none")
    resources = None if settings.binding_args else generate_jsrun_rankfile(settings)
    try:
        _foreign_rank.run(lambda rank, env: _line(settings, resources, rank), settings, nics, env,
                          command, stdout, stderr)
    finally:
        if resources is not None:
            os.remove(resources)


def _rank_lines(host_infos, num_proc):
    """Lines of a rank file: each rank has a host's share of cores for one GPU, or for a slot."""
    parts = lsf.LSFUtils.get_num_gpus() or max(host.slots for host in host_infos)
    share = max(1, lsf.LSFUtils.get_num_cores() * lsf.LSFUtils.get_num_threads() // parts)
    for slot in hosts.get_host_assignments(host_infos, num_proc, num_proc):
        first = slot.local_rank * share
        yield "rank: %d: { hostname: %s; cpu: {%d-%d} ; gpu: * ; mem: * }" % (
            slot.rank, slot.hostname, first, first + share - 1)


def generate_jsrun_rankfile(settings, path=None):
    """Write jsrun's explicit resource file of settings.hosts; its path.

    path  None: a new temporary file, which the caller removes
    ValueError when a host has more slots than GPUs (where it has some), or too few are there for
    num_proc.
    """
    host_infos = hosts.parse_hosts(settings.hosts)
    gpus = lsf.LSFUtils.get_num_gpus()
    for host in host_infos:
        if gpus and host.slots > gpus:
            raise ValueError("Invalid host input, slot count for host '%s:%d' is greater than "
                             "number of GPUs per host '%d'." % (host.hostname, host.slots, gpus))
    lines = ["overlapping_rs: allow", "cpu_index_using: logical", ""]
    lines += _rank_lines(host_infos, settings.num_proc)
    if path is None:
        fd, path = tempfile.mkstemp(suffix=".erf")
        os.close(fd)
    with open(path, "w", encoding="utf-8") as f:
        f.write("\n".join(lines) + "\n")
    return path
