"""What a rank hears about hosts that come and go."""

from enum import IntFlag

from horovod.common.elastic import WorkerNotificationManager  # noqa: F401

HOROVOD_GLOO_RENDEZVOUS_ADDR = "HOROVOD_GLOO_RENDEZVOUS_ADDR"
HOROVOD_GLOO_RENDEZVOUS_PORT = "HOROVOD_GLOO_RENDEZVOUS_PORT"
HOROVOD_GLOO_IFACE = "HOROVOD_GLOO_IFACE"
HOROVOD_HOSTNAME = "HOROVOD_HOSTNAME"
HOROVOD_LOCAL_RANK = "HOROVOD_LOCAL_RANK"


class HostUpdateResult(IntFlag):
    """How the set of hosts changed."""

    no_update = 0
    removed = 1
    added = 2
    mixed = removed | added


class HostsUpdatedRequest:
    """Message: the set of hosts changed at that time."""

    def __init__(self, timestamp, res=HostUpdateResult.no_update):
        self.timestamp = timestamp
        self.res = res
