"""Run a short command."""

import subprocess


def execute(command, env=None):
    """(output of both streams, exit status) of a shell command; None when it cannot start."""
    try:
        done = subprocess.run(command, shell=True, env=env, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
    except OSError:
        return None
    return done.stdout.decode("utf-8", "replace"), done.returncode
