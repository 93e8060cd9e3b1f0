"""The driver's service of a launch, and the interfaces that its hosts share."""

from horovod.runner.common.service import driver_service
from horovod.runner.util import network


class HorovodRunDriverService(driver_service.BasicDriverService):
    """Knows the tasks of a launch: one per host."""

    NAME = "horovod driver service"

    def __init__(self, num_hosts, key, nics):
        super().__init__(num_hosts, self.NAME, key, nics)


class HorovodRunDriverClient(driver_service.BasicDriverClient):
    """Talks to a HorovodRunDriverService."""

    def __init__(self, driver_addresses, key, verbose, match_intf=False):
        super().__init__(HorovodRunDriverService.NAME, driver_addresses, key, verbose,
                         match_intf=match_intf)


def get_local_interfaces(settings):
    """Names of the interfaces with which ranks of this host reach each other."""
    return set(settings.nics) if settings.nics else network.get_local_intfs()


def get_common_interfaces(settings, all_host_names, remote_host_names=None, fn_cache=None):
    """Names of the interfaces that the hosts share: those asked for, or the loopback.

    RuntimeError for several hosts without settings.nics: no name is common to all then;
    ranks find for each pair of hosts an address that answers.
    """
    if settings.nics:
        return get_local_interfaces(settings)
    if remote_host_names is None:
        remote_host_names = network.filter_local_addresses(all_host_names)
    if remote_host_names:
        raise RuntimeError("horovod.runner does not probe hosts for common interfaces (%s): "
                           "hvdrun finds addresses for each pair of hosts; or name the "
                           "interfaces with --network-interfaces"
                           % ", ".join(remote_host_names))
    return get_local_interfaces(settings)
