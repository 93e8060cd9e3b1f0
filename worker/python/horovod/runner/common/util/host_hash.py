"""A text that is equal for processes that share a host and its namespaces."""

import hashlib
import os
import socket

NAMESPACE_PATH = "/proc/self/ns"


def _namespaces():
    try:
        return sorted(os.readlink(os.path.join(NAMESPACE_PATH, name))
                      for name in os.listdir(NAMESPACE_PATH))
    except OSError:
        return []


def host_hash(salt=None):
    """Name and digest of this host, so that containers of one host differ."""
    hostname = socket.gethostname()
    text = "-".join([hostname] + _namespaces() + ([str(salt)] if salt is not None else []))
    return "%s-%s" % (hostname.split(".")[0],
                      hashlib.sha256(text.encode()).hexdigest()[:32])
