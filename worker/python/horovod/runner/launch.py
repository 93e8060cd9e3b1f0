"""The commands hvdrun and horovodrun of an installed wheel."""

import os
import sys

from horovod.runner import hvdrun_path


def check_build(verbose=False):
    """Print what this installation can do, and end with status 0."""
    from horovod import check

    sys.stdout.write(check.report())
    sys.exit(0)


def run_commandline():
    """Become hvdrun with this process's arguments."""
    words = sys.argv[1:]
    if words and words[0] in ("-cb", "--check-build"):
        check_build()
    path = hvdrun_path()
    os.execv(path, [path] + words)


def coordinator_commandline():
    """Become hvd-coordinator with this process's arguments."""
    path = os.path.join(os.path.dirname(hvdrun_path()), "hvd-coordinator")
    os.execv(path, [path] + sys.argv[1:])


if __name__ == "__main__":
    run_commandline()
