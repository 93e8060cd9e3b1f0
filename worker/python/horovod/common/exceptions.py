"""Exceptions of the public surface, and the one place that chooses among them."""

from horovod import _native


class HorovodInternalError(RuntimeError):
    """An operation failed after it was queued: ranks disagreed, or one was lost.

    Elastic training restores the last committed state when it sees this.
    """


class HostsUpdatedInterrupt(RuntimeError):
    """The set of hosts changed; raised at a commit, so nothing has to be restored.

    skip_sync  the change needs no new synchronisation of the state
    """

    def __init__(self, skip_sync=False):
        super().__init__("hosts have been updated")
        self.skip_sync = skip_sync


def get_version_mismatch_message(name, version, installed_version):
    """Text about a framework whose version is not the one that was expected."""
    return (
        "Framework %s installed with version %s but found version %s.\n"
        "             This can result in unexpected behavior including runtime errors.\n"
        "             Reinstall Horovod using `pip install --no-cache-dir` to build with "
        "the new version." % (name, installed_version, version)
    )


class HorovodVersionMismatchError(ImportError):
    """Kept for programs that name it; no part of this package is bound to one version."""

    def __init__(self, name, version, installed_version):
        super().__init__(get_version_mismatch_message(name, version, installed_version))
        self.name = name
        self.version = version
        self.installed_version = installed_version


NOT_INITIALIZED = "Horovod has not been initialized; use hvd.init()."
SHUT_DOWN = (
    "Horovod has been shut down. This was caused by an exception on one of the ranks or an "
    "attempt to allreduce, allgather or broadcast a tensor after one of the ranks finished "
    "execution."
)
SAME_NAME = (
    "Requested to allreduce, allgather, or broadcast a tensor with the same name as another "
    "tensor that is currently being processed. If you want to request another tensor, use a "
    "different tensor name."
)

_SHUT = (_native.ESHUTDOWN, _native.EPEER)


def queue_error(status, text=None):
    """The exception for a call that was refused at once."""
    text = _native.last_error() if text is None else text
    if status == _native.ESTATE:
        return ValueError(NOT_INITIALIZED)
    if status == _native.EDUPLICATE:
        return ValueError("%s (%s)" % (SAME_NAME, text))
    if status in (_native.EINVAL, _native.EUNSUPPORTED, _native.EHANDLE):
        return ValueError(text)
    if status == _native.ENOMEM:
        return MemoryError(text)
    return late_error(status, text)


def late_error(status, text):
    """The exception for an operation that was queued and then failed."""
    if status in _SHUT or status == _native.EHANDLE:
        return HorovodInternalError("%s Reason: %s" % (SHUT_DOWN, text))
    return HorovodInternalError(text)
