"""Refuses to work beside the original distribution, whose files have the same names."""

import os
import sys


def _original():
    """Folder of an installed distribution named horovod, or None."""
    for entry in sys.path:
        try:
            names = os.listdir(entry or ".")
        except OSError:
            continue
        for name in names:
            if name.startswith("horovod-") and name.endswith((".dist-info", ".egg-info")):
                return os.path.join(entry, name)
    return None


def check():
    """ImportError when the original Horovod is installed where Python looks."""
    found = _original()
    if found:
        raise ImportError(
            "horovod: the distribution 'hvd' provides the package horovod, but the original "
            "Horovod is installed too (%s). Both write to the same folder. Run "
            "'pip uninstall horovod hvd', then 'pip install hvd'." % found
        )
