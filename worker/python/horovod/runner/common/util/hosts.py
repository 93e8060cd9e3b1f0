"""Lists of hosts with slots, and the ranks that a job gets on them."""

import collections
import re

SlotInfo = collections.namedtuple(
    "SlotInfo", "hostname rank local_rank cross_rank size local_size cross_size"
)


def _to_response_string(self):
    """Rank and size among all, on the host, and across hosts."""
    return ",".join(str(v) for v in (self.rank, self.size, self.local_rank, self.local_size,
                                     self.cross_rank, self.cross_size))


SlotInfo.to_response_string = _to_response_string

INVALID_SLOT_INFO = SlotInfo(
    hostname="", rank=-1, local_rank=-1, cross_rank=-1, size=-1, local_size=-1, cross_size=-1
)


class HostInfo:
    """A host and how many ranks it may hold."""

    def __init__(self, hostname, slots):
        self.hostname = hostname
        self.slots = slots

    @staticmethod
    def from_string(host_string):
        """From "name:slots"; without slots: one."""
        name, colon, slots = host_string.strip().rpartition(":")
        if not colon:
            name, slots = slots, "1"
        if not re.fullmatch(r"\S+", name) or not re.fullmatch("[0-9]+", slots):
            raise ValueError("Invalid host input, please make sure it has format as : "
                             "worker-0:2,worker-1:2. Found: %r" % host_string)
        return HostInfo(name, int(slots))


def parse_host_files(filename):
    """"a:2,b:4" of a file with lines 'a slots=2'."""
    hosts = []
    with open(filename, encoding="utf-8") as f:
        for line in f:
            words = line.split("#")[0].split()
            if not words:
                continue
            slots = next((w[len("slots="):] for w in words[1:] if w.startswith("slots=")), None)
            if slots is None:
                hosts.append(words[0] if re.search(r":\d+$", words[0]) else words[0] + ":1")
            else:
                hosts.append("%s:%s" % (words[0], slots))
    return ",".join(hosts)


def parse_hosts(hosts_string):
    """[HostInfo] of "a:2,b:4"."""
    return [HostInfo.from_string(host) for host in hosts_string.split(",")]


def parse_hosts_and_slots(hosts):
    """(names in order, {name: slots}) of "a:2,b:4"."""
    names, slots = [], {}
    for host in parse_hosts(hosts):
        names.append(host.hostname)
        slots[host.hostname] = host.slots
    return names, slots


def get_host_assignments(hosts, min_num_proc, max_num_proc=None):
    """[SlotInfo] in rank order: all slots of a host after one another."""
    places, local_sizes = [], []
    for index, host in enumerate(hosts):
        for local_rank in range(host.slots):
            if max_num_proc is not None and len(places) == max_num_proc:
                break
            places.append((index, local_rank))
        local_sizes.append(sum(1 for p in places if p[0] == index))
    if len(places) < min_num_proc:
        raise ValueError(
            "Requested more processes (%d) than there are available slots (%d)"
            % (min_num_proc, len(places))
        )
    found = []
    for rank, (index, local_rank) in enumerate(places):
        having = [i for i, n in enumerate(local_sizes) if n > local_rank]
        found.append(
            SlotInfo(hosts[index].hostname, rank, local_rank, having.index(index),
                     len(places), local_sizes[index], len(having))
        )
    return found
