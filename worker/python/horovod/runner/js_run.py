"""jsrun of LSF clusters. Ranks are not started through it: hvdrun does that."""

import os
import shutil
import tempfile

from horovod.runner.common.util import hosts
from horovod.runner.util import lsf


def is_jsrun_installed():
    """Is the program jsrun there?"""
    return shutil.which("jsrun") is not None


def js_run(settings, nics, env, command, stdout=None, stderr=None):
    """ValueError: use hvdrun."""
    raise ValueError("jsrun is not supported: ranks are started by hvdrun.")


def _rank_lines(host_infos, num_proc):
    """Lines of a rank file: each rank has a host's share of cores for one GPU."""
    gpus = lsf.LSFUtils.get_num_gpus()
    cpus = lsf.LSFUtils.get_num_cores() * lsf.LSFUtils.get_num_threads()
    share = cpus // gpus
    for slot in hosts.get_host_assignments(host_infos, num_proc, num_proc):
        first = slot.local_rank * share
        yield "rank: %d: { hostname: %s; cpu: {%d-%d} ; gpu: * ; mem: * }" % (
            slot.rank, slot.hostname, first, first + share - 1)


def generate_jsrun_rankfile(settings, path=None):
    """Write jsrun's explicit resource file of settings.hosts; its path.

    path  None: a new temporary file, which the caller removes
    ValueError when a host has more slots than GPUs, or too few are there for num_proc.
    """
    host_infos = hosts.parse_hosts(settings.hosts)
    gpus = lsf.LSFUtils.get_num_gpus()
    for host in host_infos:
        if host.slots > gpus:
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
