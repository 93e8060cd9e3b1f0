"""Which hosts there are, and which of them are trusted."""

import logging
import os
import random
import subprocess
import threading
import time

from horovod.runner.common.util.hosts import HostInfo
from horovod.runner.elastic.worker import HostUpdateResult

DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS = 1
DEFAULT_COOLDOWN_UPPER_LIMIT_SECONDS = 1 * 60 * 60


class HostState:
    """Is a host in use, and is it blacklisted?

    cooldown_range  (least, most) seconds of a blacklisting; None: for ever
    """

    def __init__(self, cooldown_range=None):
        if cooldown_range is not None:
            least, most = cooldown_range
            if not DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS <= least:
                raise ValueError("the least cooldown is below %d s: %s"
                                 % (DEFAULT_COOLDOWN_LOWER_LIMIT_SECONDS, least))
            if not least <= most <= DEFAULT_COOLDOWN_UPPER_LIMIT_SECONDS:
                raise ValueError("the most cooldown is not between %s and %d s: %s"
                                 % (least, DEFAULT_COOLDOWN_UPPER_LIMIT_SECONDS, most))
        self._cooldown_range = cooldown_range
        self._event = threading.Event()
        self._blacklisted = False
        self._times = 0
        self._until = 0.0

    def get_event(self):
        """Event of the host's workers: set when they must end."""
        if self._event.is_set():
            self._event = threading.Event()
        return self._event

    def set_event(self):
        self._event.set()

    def blacklist(self):
        """Use this host no more, or not before its cooldown has passed."""
        self._blacklisted = True
        if self._cooldown_range is not None and time.time() >= self._until:
            least, most = self._cooldown_range
            self._times += 1
            delay = least * 2**self._times + random.uniform(0, 1) * least
            self._until = time.time() + max(least, min(most, delay))
        self.set_event()

    def whitelist(self):
        """Use this host again."""
        self._until = 0.0
        self._blacklisted = False

    def is_blacklisted(self):
        return self._blacklisted

    def is_resurrected(self):
        """Is it blacklisted, but its cooldown has passed?"""
        return (self._blacklisted and self._cooldown_range is not None
                and time.time() > self._until)


class DiscoveredHosts:
    """Hosts with slots, and the order in which ranks are given to them."""

    def __init__(self, host_slots, host_assignment_order):
        self._host_slots = host_slots
        self._host_assignment_order = host_assignment_order

    @property
    def host_slots(self):
        return self._host_slots

    @property
    def available_hosts(self):
        return set(self._host_assignment_order)

    @property
    def host_assignment_order(self):
        return self._host_assignment_order

    def get_slots(self, host):
        return self._host_slots.get(host, 0)

    def count_available_slots(self):
        return sum(self.get_slots(host) for host in self._host_assignment_order)

    def update(self, hosts_state):
        """This without the blacklisted hosts."""
        self._host_assignment_order = [
            host for host in self._host_assignment_order
            if not hosts_state[host].is_blacklisted()
        ]
        return self

    def __str__(self):
        return "slots: %s order: %s" % (self._host_slots, self._host_assignment_order)


class HostDiscovery:
    """Says which hosts there are; subclasses know how."""

    def find_available_hosts_and_slots(self):
        """{host: slots}"""
        raise NotImplementedError()


class HostDiscoveryScript(HostDiscovery):
    """Asks a program that prints lines "host" or "host:slots".

    slots  for hosts without a number
    """

    def __init__(self, discovery_script, slots):
        self._discovery_script = discovery_script
        self._default_slots = slots

    def find_available_hosts_and_slots(self):
        done = subprocess.run(self._discovery_script, shell=not os.access(
            self._discovery_script, os.X_OK), stdout=subprocess.PIPE, timeout=600)
        if done.returncode != 0:
            raise RuntimeError("%s ended with status %d"
                               % (self._discovery_script, done.returncode))
        found = {}
        for line in filter(None, (l.strip() for l in done.stdout.decode().splitlines())):
            if ":" not in line and self._default_slots is None:
                raise ValueError("%s: no slots for %r; use the option --slots-per-host"
                                 % (self._discovery_script, line))
            host = (HostInfo.from_string(line) if ":" in line
                    else HostInfo(line, self._default_slots))
            found[host.hostname] = host.slots
        return found


class FixedHosts(HostDiscovery):
    """Hosts that the program names itself."""

    def __init__(self, host_slots):
        self._host_slots = host_slots

    def find_available_hosts_and_slots(self):
        return self._host_slots

    def set(self, host_slots):
        self._host_slots = host_slots


class HostManager:
    """The hosts that may be used now: discovered, and not blacklisted."""

    def __init__(self, discovery, cooldown_range=None):
        self._current_hosts = DiscoveredHosts({}, [])
        self._cooldown_range = cooldown_range
        self._states = {}
        self._discovery = discovery
        self._lock = threading.Lock()

    def _state(self, host):
        if host not in self._states:
            self._states[host] = HostState(self._cooldown_range)
        return self._states[host]

    def update_available_hosts(self):
        """Ask again; the HostUpdateResult."""
        found = self._discovery.find_available_hosts_and_slots()
        with self._lock:
            before = self._current_hosts.host_slots
            result = HostUpdateResult.no_update
            for host, slots in before.items():
                if found.get(host, 0) < slots:
                    result |= HostUpdateResult.removed
            for host, slots in found.items():
                if before.get(host, 0) < slots:
                    result |= HostUpdateResult.added
            for host in found:
                if self._state(host).is_resurrected():
                    self._state(host).whitelist()
                    result |= HostUpdateResult.added
            if result != HostUpdateResult.no_update:
                usable = {host for host in found if not self._state(host).is_blacklisted()}
                order = self.order_available_hosts(
                    usable, self._current_hosts.host_assignment_order)
                self._current_hosts = DiscoveredHosts(dict(found), order)
        return result

    @property
    def current_hosts(self):
        with self._lock:
            return self._current_hosts

    def blacklist(self, host):
        """Use this host no more."""
        with self._lock:
            if not self._state(host).is_blacklisted():
                logging.warning("blacklist failing host: %s", host)
            self._state(host).blacklist()
            hosts = self._current_hosts
            self._current_hosts = DiscoveredHosts(
                dict(hosts.host_slots),
                [h for h in hosts.host_assignment_order if h != host])

    def is_blacklisted(self, host):
        return self._state(host).is_blacklisted()

    def get_host_event(self, host):
        return self._state(host).get_event()

    @staticmethod
    def order_available_hosts(available_hosts, prev_host_assignment_order):
        """Hosts of before in their order, then the new ones."""
        kept = [host for host in prev_host_assignment_order if host in available_hosts]
        return kept + [host for host in available_hosts if host not in kept]
