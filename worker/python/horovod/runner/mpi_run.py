"""MPI is not used: no implementation is ever found, and nothing is started through one."""

MPI_NOT_BUILT = "MPI support has not been built: ranks are started by hvdrun, without MPI."


def mpi_available(env=None):
    """Can ranks be started with mpirun? No."""
    return False


def is_open_mpi(env=None):
    return False


def is_spectrum_mpi(env=None):
    return False


def is_mpich(env=None):
    return False


def is_intel_mpi(env=None):
    return False


def mpi_run(settings, nics, env, command, stdout=None, stderr=None):
    """ValueError: use hvdrun."""
    raise ValueError(MPI_NOT_BUILT)
