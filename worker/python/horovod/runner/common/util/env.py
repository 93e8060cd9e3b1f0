"""Which environment variables go to the ranks, and what other launchers set."""

import os
import re

from horovod.runner.common.util import secret

LOG_LEVEL_STR = ["FATAL", "ERROR", "WARNING", "INFO", "DEBUG", "TRACE"]
IGNORE_REGEXES = {"BASH_FUNC_.*", "OLDPWD", ".*CUDA_VISIBLE_DEVICES", secret.HOROVOD_SECRET_KEY,
                  "HVD_RUN_FUNCTION"}  # the last two hold keys
KUBEFLOW_MPI_EXEC = "/etc/mpi/kubexec.sh"

_RANK_AND_SIZE = (
    ("HOROVOD_RANK", "HOROVOD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
)


def is_exportable(v):
    """May this variable go to the ranks?"""
    return not any(re.match(pattern, v) for pattern in IGNORE_REGEXES)


def get_env_rank_and_size():
    """(rank, size) that the launcher gave to this process; (0, 1) without one."""
    for rank, size in _RANK_AND_SIZE:
        if rank in os.environ:
            return int(os.environ[rank]), int(os.environ.get(size, 1))
    return 0, 1


def is_kubeflow_mpi():
    """Are remote processes started through Kubeflow's helper?"""
    return os.environ.get("OMPI_MCA_plm_rsh_agent") == KUBEFLOW_MPI_EXEC
