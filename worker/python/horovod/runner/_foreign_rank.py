"""One rank that mpirun or jsrun starts: python -m horovod.runner._foreign_rank COMMAND...

The job's coordinator and its key come in the environment, as Job.environment() says.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile

from horovod.runner.common.util import codec, safe_shell_exec
from horovod.runner.util import network

_JOB = "HVD_FOREIGN_JOB"
#: what launchers call rank, number of ranks, rank in its host and number of ranks there
_NAMES = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("JSM_NAMESPACE_RANK", "JSM_NAMESPACE_SIZE", "JSM_NAMESPACE_LOCAL_RANK",
     "JSM_NAMESPACE_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
)


class Job:
    """A coordinator for ranks that another launcher starts, until close().

    num_proc  how many ranks will come
    hosts     names of their hosts; None: this one
    nics      interfaces at one of whose addresses they reach this host; None: any
    """

    def __init__(self, num_proc, hosts, nics):
        from horovod.runner import hvdrun_path

        self._folder = tempfile.mkdtemp(prefix="hvd-")
        key_file = os.path.join(self._folder, "key")
        remote = network.filter_local_addresses(hosts or ["localhost"])
        address = network.get_driver_ip(nics) if remote else "127.0.0.1"
        self._coordinator = subprocess.Popen(
            [os.path.join(os.path.dirname(hvdrun_path()), "hvd-coordinator"), "--np",
             str(num_proc), "--listen", address + ":0", "--key-file", key_file],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, universal_newlines=True)
        words = self._coordinator.stdout.readline().split()
        found = [w.partition("=")[2] for w in words if w.startswith("HVD_COORDINATOR=")]
        if not found:
            self.close()
            raise RuntimeError("hvd-coordinator did not start: it says why above")
        with open(key_file, "rb") as f:
            self._job = codec.dumps_base64((found[0], f.read()))

    def environment(self):
        """{variable: text} that the ranks need."""
        return {_JOB: self._job}

    def close(self):
        """End the coordinator; ranks that are left lose their job."""
        self._coordinator.terminate()
        self._coordinator.wait()
        self._coordinator.stdout.close()
        shutil.rmtree(self._folder)


def command(words):
    """Shell command that runs words as a rank."""
    return " ".join(shlex.quote(str(word)) for word in [sys.executable, "-m", __name__] + list(words))


def run(make_line, settings, nics, env, words, stdout, stderr):
    """Run the line of another launcher as a job. RuntimeError when it fails.

    make_line  function from the shell command of a rank to the line that starts all of them
    words      the ranks' program and its arguments
    env        the ranks' variables; None: this process's
    """
    hosts = [host.rpartition(":")[0] or host for host in (settings.hosts or "").split(",") if host]
    job = Job(settings.num_proc, hosts, nics)
    try:
        env = dict(os.environ if env is None else env, **job.environment())
        env.setdefault("PATH", os.environ.get("PATH", os.defpath))
        env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
        line = make_line(command(words), env)
        if settings.verbose and settings.verbose >= 2:
            print(line)
        status = safe_shell_exec.execute(line, env=env, stdout=stdout, stderr=stderr)
    finally:
        job.close()
    if status != 0:
        raise RuntimeError("%s failed with exit status %d, see the errors above for details."
                           % (line.split()[0], status))


def _rank_variables():
    """{variable: text} of this rank, from those of its launcher."""
    for names in _NAMES:
        if names[0] in os.environ:
            ours = ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE")
            found = {our: os.environ[name] for our, name in zip(ours, names) if name in os.environ}
            return dict(found, HVD_RANK=os.environ[names[0]])
    raise SystemExit("%s: no launcher has given this process a rank: none of %s is set"
                     % (__name__, ", ".join(names[0] for names in _NAMES)))


def main(words):
    """Run the words as a rank; its exit status."""
    if _JOB not in os.environ:
        raise SystemExit("%s: %s is not set: only mpi_run() and js_run() start this"
                         % (__name__, _JOB))
    coordinator, key = codec.loads_base64(os.environ.pop(_JOB))
    env = dict(os.environ, HVD_COORDINATOR=coordinator, **_rank_variables())
    with tempfile.TemporaryDirectory(prefix="hvd-") as folder:
        env["HVD_KEY_FILE"] = os.path.join(folder, "key")
        with open(env["HVD_KEY_FILE"], "wb", opener=lambda p, flags: os.open(p, flags, 0o600)) as f:
            f.write(key)
        rank = subprocess.Popen(words, env=env)
        for signo in (signal.SIGTERM, signal.SIGINT):
            signal.signal(signo, lambda signo, frame: rank.send_signal(signo))
        status = rank.wait()
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
