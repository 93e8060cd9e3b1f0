"""Environment of ranks, as launchers other than hvdrun set it up."""

import errno
import math
import os


def _pad_rank(rank, size):
    """rank with leading zeros, as wide as the largest of size ranks."""
    width = int(math.log10(size - 1)) + 1 if size > 1 else 1
    return str(rank).zfill(width)


def _mkdir_p(path):
    """Make a folder and those above it; fine when it is there."""
    try:
        os.makedirs(path)
    except OSError as error:
        if error.errno != errno.EEXIST or not os.path.isdir(path):
            raise


class MultiFile:
    """Writes the same to several files."""

    def __init__(self, files):
        self._files = files

    def write(self, text):
        for f in self._files:
            f.write(text)

    def flush(self):
        for f in self._files:
            f.flush()


def create_slot_env_vars(slot_info):
    """{variable: text} that says which rank a process is."""
    return {
        "HOROVOD_HOSTNAME": str(slot_info.hostname),
        "HOROVOD_RANK": str(slot_info.rank),
        "HOROVOD_SIZE": str(slot_info.size),
        "HOROVOD_LOCAL_RANK": str(slot_info.local_rank),
        "HOROVOD_LOCAL_SIZE": str(slot_info.local_size),
        "HOROVOD_CROSS_RANK": str(slot_info.cross_rank),
        "HOROVOD_CROSS_SIZE": str(slot_info.cross_size),
    }
