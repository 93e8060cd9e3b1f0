"""Is this an LSF job?"""

import os


class LSFUtils:
    """Facts of an LSF allocation, from the variables that LSF sets."""

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
        """RuntimeError: what a host has is asked of IBM's CSM, which is not used."""
        raise RuntimeError("cores and GPUs of LSF's hosts are known to IBM's CSM only, which is "
                           "not used: give hosts with slots (hvdrun -H host:slots)")

    @staticmethod
    def get_num_cores():
        """Cores of a compute host: RuntimeError, as get_allocation_info()."""
        return LSFUtils.get_allocation_info()["cores"]

    @staticmethod
    def get_num_gpus():
        """GPUs of a compute host: RuntimeError, as get_allocation_info()."""
        return LSFUtils.get_allocation_info()["gpus"]

    @staticmethod
    def get_num_threads():
        """Hardware threads of a core: RuntimeError, as get_allocation_info()."""
        return LSFUtils.get_allocation_info()["threads"]
