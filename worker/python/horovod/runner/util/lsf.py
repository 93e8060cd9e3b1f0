"""Is this an LSF job, and what do its hosts have?"""

import functools
import os
import subprocess

from horovod.runner.util import network
from horovod.runner.util.remote import get_remote_command

_ASK_TIMEOUT_S = 30
#: prints a line for each CPU (its core), then one for each GPU
_ASK = "lscpu -p=CORE,SOCKET && { nvidia-smi -L 2>/dev/null || true; }"


@functools.lru_cache(maxsize=None)
def _ask(host):
    """What _ASK prints on a host. RuntimeError when it cannot be asked."""
    command = _ASK
    if host is not None and network.filter_local_addresses([host]):
        command = get_remote_command(_ASK, host, timeout_s=_ASK_TIMEOUT_S)
    try:
        done = subprocess.run(command, shell=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=2 * _ASK_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise RuntimeError("%s did not say within %d s what cores and GPUs it has (%s)"
                           % (host, 2 * _ASK_TIMEOUT_S, command)) from None
    if done.returncode != 0:
        raise RuntimeError("%s does not say what cores and GPUs it has: %s (%s)" % (
            host or "this host", done.stderr.decode("utf-8", "replace").strip().split("\n")[-1],
            command))
    return done.stdout.decode("utf-8", "replace")


class LSFUtils:
    """Facts of an LSF allocation: hosts from LSF's variables, their cores from the first one."""

    @staticmethod
    def using_lsf():
        """Was this process started inside an LSF job?"""
        return "LSB_JOBID" in os.environ

    @staticmethod
    def get_compute_hosts():
        """Names of the allocated hosts without the launching one, in order."""
        words = os.environ.get("LSB_MCPU_HOSTS", "").split()
        hosts = words[0::2]
        return hosts[1:] if len(hosts) > 1 else hosts

    @staticmethod
    def get_num_processes():
        """Slots of the allocated hosts together."""
        words = os.environ.get("LSB_MCPU_HOSTS", "").split()
        slots = dict(zip(words[0::2], words[1::2]))
        return sum(int(slots[host]) for host in LSFUtils.get_compute_hosts())

    @staticmethod
    def get_allocation_info():
        """{"hosts", "cores", "threads", "gpus"}: compute hosts, and what one of them has.

        The first is asked by ssh, once; without one this host. RuntimeError when it cannot be.
        """
        hosts = LSFUtils.get_compute_hosts()
        lines = [line for line in _ask(hosts[0] if hosts else None).splitlines()
                 if line and not line.startswith("#")]
        gpus = [line for line in lines if line.startswith("GPU ")]
        cpus = [line for line in lines if line[0].isdigit()]
        cores = len(set(cpus))
        return {"hosts": hosts, "cores": cores, "threads": len(cpus) // max(1, cores),
                "gpus": len(gpus)}

    @staticmethod
    def get_num_cores():
        """Cores of a compute host."""
        return LSFUtils.get_allocation_info()["cores"]

    @staticmethod
    def get_num_gpus():
        """GPUs of a compute host; 0 without an nvidia-smi."""
        return LSFUtils.get_allocation_info()["gpus"]

    @staticmethod
    def get_num_threads():
        """Hardware threads of a core."""
        return LSFUtils.get_allocation_info()["threads"]
