"""Addresses and interfaces of this host."""

import fcntl
import random
import socket
import struct

from horovod.common.util import _cache

_SIOCGIFADDR = 0x8915


def _interface_address(name):
    """IPv4 address of an interface; None when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            found = fcntl.ioctl(s.fileno(), _SIOCGIFADDR,
                                struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(found[20:24])


def _interfaces():
    """{interface: IPv4 address}"""
    found = {name: _interface_address(name) for _, name in socket.if_nameindex()}
    return {name: address for name, address in found.items() if address is not None}


@_cache
def get_local_host_addresses():
    """IPv4 addresses of this host."""
    return set(_interfaces().values())


def get_local_intfs(nic=None):
    """Names of this host's interfaces that have the address of the loopback, or nic's."""
    wanted = "127.0.0.1" if nic is None else _interface_address(nic)
    return {name for name, address in _interfaces().items() if address == wanted}


def resolve_host_address(host_name):
    """IPv4 address of a host; None when its name is unknown."""
    try:
        return socket.gethostbyname(host_name)
    except OSError:
        return None


def filter_local_addresses(all_host_names):
    """The names that are not this host's, and those that nobody knows."""
    local = get_local_host_addresses()
    return [name for name in all_host_names if resolve_host_address(name) not in local
            or resolve_host_address(name) is None]


def find_port(server_factory):
    """(server, port) on a free port of all addresses."""
    first, count = 1024, 65536 - 1024
    offset = random.randrange(count)
    for i in range(count):
        port = first + (offset + i) % count
        try:
            return server_factory(("", port)), port
        except OSError:
            continue
    raise OSError("no free port")


def get_driver_ip(nics):
    """An IPv4 address of this host: of one of nics, or not of the loopback where possible."""
    found = _interfaces()
    for name in nics or ():
        if name in found:
            return found[name]
    if nics:
        raise RuntimeError("no interface of %s has an IPv4 address here" % sorted(nics))
    others = [a for a in found.values() if not a.startswith("127.")]
    return others[0] if others else "127.0.0.1"
