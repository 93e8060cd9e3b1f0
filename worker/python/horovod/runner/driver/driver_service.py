"""The driver's service of a launch, and the interfaces that its hosts share."""

import copy
import math

from horovod.runner.common.service import driver_service
from horovod.runner.common.util import secret, timeout
from horovod.runner.task import task_service
from horovod.runner.util import network, threads

_START_TIMEOUT_S = 30


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


def _probe(settings, host_names):
    """Names of the interfaces under which each host reaches the next one, around all of them.

    hvdrun starts a task on each host; they tell this host's driver service what they found.
    """
    from horovod import runner
    from horovod.runner import task_fn

    count = len(host_names)
    given = copy.copy(settings)
    given.key = settings.key or secret.make_secret_key()
    if given.start_timeout is None:
        given.start_timeout = timeout.Timeout(
            _START_TIMEOUT_S, "Timed out waiting for {activity}.")
    driver = HorovodRunDriverService(count, given.key, None)
    notified = threads.in_thread(_notify, args=(driver, given), silent=True)
    try:
        runner.run(task_fn.look_for_neighbour_as_rank, args=(count, driver.addresses(), given),
                   num_proc=count, hosts=",".join("%s:1" % name for name in host_names),
                   start_timeout=math.ceil(given.start_timeout.remaining()),
                   ssh_port=settings.ssh_port, ssh_identity_file=settings.ssh_identity_file)
        notified.join()
        return {name: set(driver.task_addresses_for_tasks(i))
                for i, name in enumerate(host_names)}
    finally:
        driver.shutdown()


def _notify(driver, settings):
    """Tell the tasks that all have registered, once they have."""
    driver.wait_for_initial_registration(settings.start_timeout)
    for index in driver.task_indices():
        task_service.HorovodRunTaskClient(
            index, driver.task_addresses_for_driver(index), settings.key,
            settings.verbose).notify_initial_registration_complete()


def get_common_interfaces(settings, all_host_names, remote_host_names=None, fn_cache=None):
    """Names of the interfaces that the hosts share: those asked for, the loopback, or found ones.

    Hosts elsewhere are asked through hvdrun, by its ssh. hvdrun itself needs no common names:
    it finds an address for each pair of hosts.

    remote_host_names  those of all_host_names that are not this host; None: found out
    fn_cache           cache.Cache in which to look first
    RuntimeError when there is no common name, or a host cannot be asked.
    """
    if settings.nics:
        return get_local_interfaces(settings)
    if remote_host_names is None:
        remote_host_names = network.filter_local_addresses(all_host_names)
    if not remote_host_names:
        return get_local_interfaces(settings)
    hosts = list(dict.fromkeys(all_host_names))
    key = ("common interfaces", hosts)
    known = fn_cache.get(key) if fn_cache is not None else None
    if known is not None:
        return set(known)
    found = _probe(settings, hosts)
    common = set.intersection(*found.values())
    if not common:
        raise RuntimeError(
            "Unable to find a set of common task-to-task communication interfaces: %s"
            % ", ".join("%s is reached by %s" % (name, " ".join(sorted(found[name])) or "none")
                        for name in hosts))
    if fn_cache is not None:
        fn_cache.put(key, sorted(common))
    return common
