"""horovod.run(): a Python function as the ranks of a job, started by hvdrun."""

import os
import shutil
import subprocess
import sys
import warnings


def hvdrun_path():
    """The launcher that belongs to this package; FileNotFoundError when there is none."""
    places = []
    library = os.environ.get("HVD_LIBRARY")
    if library:
        root = os.path.dirname(os.path.dirname(os.path.abspath(library)))
        places.append(os.path.join(root, "bin", "hvdrun"))
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    places.append(os.path.join(package, "_dist", "bin", "hvdrun"))
    found = next((p for p in places if os.access(p, os.X_OK)), None) or shutil.which("hvdrun")
    if found is None:
        raise FileNotFoundError(
            "horovod: no hvdrun on PATH nor at %s" % " nor at ".join(places)
        )
    return found


def _command(num_proc, options):
    """hvdrun's arguments. options: {option: value}, None left out, True without a value."""
    command = [hvdrun_path(), "-np", str(num_proc)]
    for option, value in options.items():
        if value is True:
            command.append(option)
        elif value is not None and value is not False:
            command += [option] + [str(v) for v in (value if type(value) in (list, tuple) else [value])]
    return command


def _environment(service):
    """This process's, with its module path, so that the ranks import what it imported."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    env.update(service.environment())
    return env


def _call(command, service, num_proc):
    """Results of the ranks of hvdrun's command. RuntimeError with what they raised."""
    status = subprocess.call(command, env=_environment(service), stdin=subprocess.DEVNULL)
    results, errors = service.results(num_proc)
    if status != 0:
        raise RuntimeError(
            "Horovod detected that one or more processes exited with non-zero status, "
            "thus causing the job to be terminated. hvdrun's exit status: %d\n%s"
            % (status, "\n".join(errors))
        )
    if errors:
        raise RuntimeError("horovod.run: " + "\n".join(errors))
    missing = [rank for rank in range(num_proc) if rank not in results]
    if missing:
        raise RuntimeError("horovod.run: no result came from rank %s"
                           % ", ".join(str(rank) for rank in missing))
    return [results[rank] for rank in range(num_proc)]


def run(func, args=(), kwargs=None, num_proc=1, min_num_proc=None, max_num_proc=None,
        slots=None, reset_limit=None, cooldown_range=None, hosts=None, hostfile=None,
        host_discovery_script=None, start_timeout=None, ssh_port=None, ssh_identity_file=None,
        disable_cache=None, output_filename=None, verbose=None, use_gloo=None, use_mpi=None,
        mpi_args=None, network_interface=None, network_interfaces=None, executable=None,
        np=None, min_np=None, max_np=None):
    """Call func(*args, **kwargs) in every rank of a new job; the results in rank order.

    num_proc            number of ranks
    hosts, hostfile     where: "a:4,b:2", or a file; default: this host
    start_timeout       seconds that the ranks have to come together
    output_filename     folder for each rank's output
    executable          Python of the ranks; default: this one
    min_num_proc, host_discovery_script
                        of an elastic job, which is not supported yet: NotImplementedError
    max_num_proc, slots, reset_limit, cooldown_range   without these no effect
    use_gloo, use_mpi, mpi_args, disable_cache   accepted for Horovod's sake, no effect
    np, min_np, max_np  deprecated names of num_proc, min_num_proc, max_num_proc

    func and results travel by cloudpickle over TCP, signed with a key of this job.
    RuntimeError with the ranks' tracebacks when one failed.
    """
    for old, new, value in (("np", "num_proc", np), ("min_np", "min_num_proc", min_np),
                            ("max_np", "max_num_proc", max_np)):
        if value is not None:
            warnings.warn("%s is deprecated, use %s instead" % (old, new), DeprecationWarning,
                          stacklevel=2)
    num_proc = num_proc if np is None else np
    min_num_proc = min_num_proc if min_np is None else min_np
    max_num_proc = max_num_proc if max_np is None else max_np
    if hosts is not None and hostfile is not None:
        raise ValueError("Argument hosts and hostfile only allow one provided.")
    if use_gloo and use_mpi:
        raise ValueError("Argument use_gloo and use_mpi only allow one set True.")
    if min_num_proc is not None or host_discovery_script is not None:
        raise NotImplementedError(
            "horovod.run: elastic jobs are not supported yet; leave out min_num_proc and "
            "host_discovery_script")
    if network_interface is not None and network_interfaces is None:
        network_interfaces = network_interface
    if not isinstance(network_interfaces, (str, type(None))):
        network_interfaces = ",".join(network_interfaces)

    command = _command(num_proc, {
        "-H": hosts, "--hostfile": hostfile, "--start-timeout": start_timeout,
        "-p": ssh_port, "-i": ssh_identity_file, "--output-filename": output_filename,
        "--verbose": bool(verbose), "--network-interfaces": network_interfaces,
    })
    command += [executable or sys.executable, "-m", "horovod.runner.run_task"]
    from horovod.runner._function import FunctionService

    service = FunctionService(func, tuple(args), dict(kwargs or {}))
    try:
        return _call(command, service, num_proc)
    finally:
        service.shutdown()


__all__ = ["hvdrun_path", "run"]
