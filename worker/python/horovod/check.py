"""What this installation can do: python -m horovod.check

The report of `hvdrun --check-build` about the frameworks of this Python (HVD_PYTHON).
"""

import importlib.util
import os
import platform
import subprocess
import sys

from horovod._absent import ABSENT

FRAMEWORKS = (("TensorFlow", "tensorflow"), ("PyTorch", "torch"), ("MXNet", "mxnet"))


def _works(module):
    """Is the framework installed, and has this package a module for it?"""
    try:
        return (
            module not in ABSENT
            and importlib.util.find_spec(module) is not None
            and importlib.util.find_spec("horovod." + module) is not None
        )
    except (ImportError, ValueError):
        return False


def _own_facts():
    """What hvdrun asks for: which Python this is, and the frameworks that work."""
    return ["Python %s in %s" % (platform.python_version(), sys.prefix)] + [
        title for title, module in FRAMEWORKS if _works(module)
    ]


def _launcher_report():
    from horovod.runner import hvdrun_path

    env = dict(os.environ, HVD_PYTHON=sys.executable) if sys.executable else None
    try:
        done = subprocess.run([hvdrun_path(), "--check-build"], stdout=subprocess.PIPE,
                              env=env, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.decode()


def _own_report():
    """When there is no hvdrun: the same from the library alone."""
    from horovod import _native

    def mark(feature):
        return "X" if _native.lib.hvd_feature(feature) else " "

    python, *works = _own_facts()
    lines = ["hvd %s (%s, ABI %d)" % (_native.lib.hvd_version_string().decode(),
                                      _native.library_path, _native.ABI_VERSION),
             python, "", "Available Frameworks:"]
    lines += ["    [%s] %s" % ("X" if title in works else " ", title) for title, _ in FRAMEWORKS]
    lines += ["", "Available Controllers:", "    [ ] MPI", "    [ ] Gloo (as hvd-coordinator)", "",
              "Available Tensor Operations:", "    [%s] NCCL" % mark(b"nccl"), "    [ ] DDL",
              "    [ ] CCL", "    [ ] MPI", "    [X] Gloo (CPU tensors, as the next two)",
              "    [%s] shared memory (CPU tensors, ranks of one host)" % mark(b"shm"),
              "    [%s] TCP (CPU tensors)" % mark(b"tcp")]
    return "\n".join(lines) + "\n"


def report():
    """The report as text."""
    return _launcher_report() or _own_report()


if __name__ == "__main__":
    if sys.argv[1:] == ["--frameworks"]:  # hvdrun --check-build asks
        print("\n".join(_own_facts()))
    else:
        sys.stdout.write(report())
