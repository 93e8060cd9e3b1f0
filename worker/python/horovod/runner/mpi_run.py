"""Which MPI is here. Ranks are not started through it: hvdrun does that."""

from horovod.runner.common.util import tiny_shell_exec

_OPEN_MPI, _SPECTRUM_MPI, _MPICH, _INTEL_MPI = "OpenMPI", "SpectrumMPI", "MPICH", "IMPI"
_UNKNOWN, _MISSING = "Unknown", "Missing"
MPI_NOT_BUILT = "MPI support has not been built: ranks are started by hvdrun, without MPI."

#: words of mpirun --version: the implementation
_WORDS = (("Open MPI", _OPEN_MPI), ("OpenRTE", _OPEN_MPI), ("IBM Spectrum MPI", _SPECTRUM_MPI),
          ("MPICH", _MPICH), ("HYDRA", _MPICH), ("Intel(R) MPI", _INTEL_MPI))
#: implementation: (its options, options that bind ranks), as its manual advises for Horovod
_FLAGS = {
    _OPEN_MPI: (["-mca pml ob1", "-mca btl ^openib"], ["-bind-to none", "-map-by slot"]),
    _SPECTRUM_MPI: ([], ["-bind-to socket", "-map-by socket", "-rank-by core"]),
    _MPICH: ([], ["-bind-to none", "-map-by slot"]),
    _INTEL_MPI: ([], []),
}


def mpi_available(env=None):
    """Is there an mpirun that is known? Ranks are started without it all the same."""
    return _get_mpi_implementation(env) not in (_UNKNOWN, _MISSING)


def is_open_mpi(env=None):
    return _get_mpi_implementation(env) == _OPEN_MPI


def is_spectrum_mpi(env=None):
    return _get_mpi_implementation(env) == _SPECTRUM_MPI


def is_mpich(env=None):
    return _get_mpi_implementation(env) == _MPICH


def is_intel_mpi(env=None):
    return _get_mpi_implementation(env) == _INTEL_MPI


def _get_mpi_implementation(env=None):
    """Name of the mpirun on PATH: "OpenMPI", ...; "Unknown", or "Missing" without one."""
    found = tiny_shell_exec.execute("mpirun --version", env)
    if found is None or found[1] != 0:
        return _MISSING
    return next((name for words, name in _WORDS if words in found[0]), _UNKNOWN)


def _get_mpi_implementation_flags(tcp_flag, env=None):
    """(options, binding options, implementation); None three times for one that is not known.

    tcp_flag  Spectrum MPI is to use TCP
    """
    name = _get_mpi_implementation(env)
    if name not in _FLAGS:
        return None, None, None
    options, binding = _FLAGS[name]
    tcp = ["-tcp"] if tcp_flag and name == _SPECTRUM_MPI else []
    return options + tcp, list(binding), name


def mpi_run(settings, nics, env, command, stdout=None, stderr=None):
    """ValueError: use hvdrun."""
    raise ValueError(MPI_NOT_BUILT)
