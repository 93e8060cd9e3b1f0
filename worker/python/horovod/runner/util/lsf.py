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
