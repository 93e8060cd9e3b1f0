"""What this installation can do: python -m horovod.check

The report of `hvdrun --check-build`, with the frameworks of this Python marked; hvdrun
itself asks the python3 on PATH.
"""

import importlib.util
import re
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


def _launcher_report():
    from horovod.runner import hvdrun_path

    try:
        done = subprocess.run([hvdrun_path(), "--check-build"], stdout=subprocess.PIPE,
                              check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.decode()


def _own_report():
    """When there is no hvdrun: the same from the library alone."""
    from horovod import _native

    def mark(feature):
        return "X" if _native.lib.hvd_feature(feature) else " "

    lines = ["hvd %s (%s, ABI %d)" % (_native.lib.hvd_version_string().decode(),
                                      _native.library_path, _native.ABI_VERSION),
             "", "Available Frameworks:"]
    lines += ["    [ ] " + title for title, _ in FRAMEWORKS]
    lines += ["", "Available Controllers:", "    [ ] MPI", "    [ ] Gloo (as hvd-coordinator)", "",
              "Available Tensor Operations:", "    [%s] NCCL" % mark(b"nccl"), "    [ ] DDL",
              "    [ ] CCL", "    [ ] MPI", "    [X] Gloo (CPU tensors, as the next two)",
              "    [%s] shared memory (CPU tensors, ranks of one host)" % mark(b"shm"),
              "    [%s] TCP (CPU tensors)" % mark(b"tcp")]
    return "\n".join(lines) + "\n"


def report():
    """The report as text."""
    text = _launcher_report() or _own_report()
    for title, module in FRAMEWORKS:
        sign = "X" if _works(module) else " "
        text = re.sub(r"\[.\] %s\b" % title, "[%s] %s" % (sign, title), text)
    return text


if __name__ == "__main__":
    if sys.argv[1:] == ["--frameworks"]:  # hvdrun --check-build asks
        for name, package in FRAMEWORKS:
            if _works(package):
                print(name)
    else:
        sys.stdout.write(report())
