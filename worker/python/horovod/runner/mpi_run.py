"""Which MPI is here, and ranks that its mpirun starts. hvdrun needs none."""

import shlex

from horovod.runner import _foreign_rank
from horovod.runner.common.util import env as env_util
from horovod.runner.common.util import tiny_shell_exec

_OPEN_MPI, _SPECTRUM_MPI, _MPICH, _INTEL_MPI = "OpenMPI", "SpectrumMPI", "MPICH", "IMPI"
_UNKNOWN, _MISSING = "Unknown", "Missing"
_NO_MPI = ("horovod does not find an installed MPI: no mpirun on PATH is Open MPI's, Spectrum MPI's, "
           "MPICH's or Intel's; start the ranks with hvdrun, which needs none")

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


def _export(names, name):
    """Options with which the ranks get these variables, where not all travel by themselves."""
    if name not in (_OPEN_MPI, _SPECTRUM_MPI):
        return []
    return ["-x %s" % variable for variable in sorted(names)
            if env_util.is_exportable(variable) and variable.isidentifier()]


def _line(settings, nics, env, rank):
    """mpirun's command line for the shell command of a rank."""
    options, binding, name = _get_mpi_implementation_flags(settings.tcp_flag, env)
    if options is None:
        raise ValueError(_NO_MPI)
    words = ["mpirun"]
    if name in (_OPEN_MPI, _SPECTRUM_MPI):
        words += ["--allow-run-as-root", "--tag-output"]
    words.append("-np %d" % settings.num_proc)
    if settings.hosts:
        words.append(("-H " if name in (_OPEN_MPI, _SPECTRUM_MPI) else "-hosts ") + settings.hosts)
    words += [settings.binding_args] if settings.binding_args else binding
    words += options
    if nics and name == _OPEN_MPI:
        words.append("-mca btl_tcp_if_include " + ",".join(sorted(nics)))
    ssh = ["-p %s" % settings.ssh_port] if settings.ssh_port else []
    ssh += ["-i %s" % settings.ssh_identity_file] if settings.ssh_identity_file else []
    if ssh and name == _OPEN_MPI:
        words.append("-mca plm_rsh_args " + shlex.quote(" ".join(ssh)))
    if settings.output_filename:
        words.append("--output-filename " + shlex.quote(settings.output_filename))
    words += _export(env, name)
    words += [settings.extra_mpi_args] if settings.extra_mpi_args else []
    return " ".join(words + [rank])


def mpi_run(settings, nics, env, command, stdout=None, stderr=None):
    """Run command (a list of words) as the ranks of a job, by mpirun.

    env             the ranks' variables; None: this process's
    nics            interfaces that MPI and the coordinator use
    stdout, stderr  text streams for the output; None: this process's
    ValueError without an mpirun that is known, RuntimeError when a rank fails. Collectives are
    hvd's all the same.
    """
    if not mpi_available(env):
        raise ValueError(_NO_MPI)
    _foreign_rank.run(lambda rank, env: _line(settings, nics, env, rank), settings, nics, env,
                      command, stdout, stderr)
