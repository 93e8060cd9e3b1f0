"""jsrun is not used."""

import shutil


def is_jsrun_installed():
    """Is the program jsrun there?"""
    return shutil.which("jsrun") is not None


def js_run(settings, nics, env, command, stdout=None, stderr=None):
    """ValueError: use hvdrun."""
    raise ValueError("jsrun is not supported: ranks are started by hvdrun.")
