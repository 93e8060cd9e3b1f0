"""What a rank hears about hosts that come and go."""

from enum import IntFlag

from horovod.common.elastic import WorkerNotificationManager  # noqa: F401
from horovod.runner.common.util import network

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


class WorkerNotificationService(network.BasicService):
    """Hears of changed hosts and tells the manager.

    nic  name of the interface whose address is told; None: all
    """

    NAME = "worker notification service"

    def __init__(self, key, nic, manager):
        self._manager = manager
        super().__init__(self.NAME, key, [nic] if nic else None)

    def _handle(self, req, client_address):
        if isinstance(req, HostsUpdatedRequest):
            self._manager.handle_hosts_updated(req.timestamp, req.res)
            return network.AckResponse()
        return super()._handle(req, client_address)


class WorkerNotificationClient(network.BasicClient):
    """Tells a WorkerNotificationService."""

    def __init__(self, addresses, key, verbose, match_intf=False):
        super().__init__(WorkerNotificationService.NAME, addresses, key, verbose,
                         match_intf=match_intf)

    def notify_hosts_updated(self, timestamp, update_res):
        self._send(HostsUpdatedRequest(timestamp, update_res))
