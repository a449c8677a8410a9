"""Wake-on-LAN: magic packets into the networks that this machine is in."""

import asyncio
import fcntl
import re
import socket
import struct
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Final

import wakeonlan

from accsd.model import Node, WakeMethod
from accsd.power.base import WakeFailed, WakeResult, outcome

_MAC: Final = re.compile(r"[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{12}")
_WITHIN_SEC: Final = 5
_SIOCGIFCONF: Final = 0x8912
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFADDR: Final = 0x8915
_SIOCGIFBRDADDR: Final = 0x8919
_SIOCGIFNETMASK: Final = 0x891B
_IFF_UP: Final = 0x1
_IFF_BROADCAST: Final = 0x2
_LONGEST_NAME: Final = 15
_IFREQ_SIZE: Final = 16 + max(16, 3 * struct.calcsize("P"))  # a name, and the largest of many things
_MOST_INTERFACES: Final = 1000
# Networks inside a machine: others have one of the same address, and no packet gets from one to the other.
_INSIDE: Final = re.compile(
    r"(docker|virbr|lxcbr|lxdbr|podman|cni|vboxnet|vmnet|dummy|tailscale)\d*(-nic)?|docker_gwbridge|br-[0-9a-f]{12}"
    r"|(veth|flannel|cali|vnet|tap).*"
)


@dataclass(frozen=True, slots=True)
class WakeOnLAN:
    """Sends to the broadcast address of `iface` (None: of every interface), to 255.255.255.255 and to `also`: networks
    differ in which of them they let through, and a machine that hears it twice wakes once."""

    mac: str
    iface: str | None = None
    also: Sequence[str] = field(default=(), kw_only=True)
    port: int = field(default=9, kw_only=True)

    async def wake(self, node: Node) -> WakeResult:
        return await outcome(WakeMethod.WOL, self._wake(node))

    async def _wake(self, node: Node) -> str:
        if not _MAC.fullmatch(self.mac):
            raise WakeFailed(f"node {node.name} has no valid MAC address; expected one such as 52:54:00:12:34:56")
        async with asyncio.timeout(_WITHIN_SEC):
            return await asyncio.to_thread(self._send)

    def _send(self) -> str:
        """A network that can't be reached is no failure while another one can."""
        sent: list[str] = []
        failures: list[str] = []
        for address in self._addresses():
            try:
                wakeonlan.wake(self.mac, host=address, port=self.port, family=socket.AF_INET)
            except OSError as error:
                failures.append(f"{address}: {error.strerror or error}")
            else:
                sent.append(address)
        said = f"sent to {', '.join(sent) or 'nobody'}" + "".join(f"; {failure}" for failure in failures)
        if not sent:
            raise WakeFailed("no magic packet could be sent", output=said)
        return said

    def _addresses(self) -> list[str]:
        near = directed_broadcasts(self.iface)
        if self.iface is not None and not near:
            raise WakeFailed(f"the interface {self.iface} is down, or has no broadcast address")
        return list(dict.fromkeys([*near, *self.also, wakeonlan.BROADCAST_IP]))


def directed_broadcasts(iface: str | None = None) -> list[str]:
    """The broadcast addresses of one interface, or of all interfaces that are up and lead out of this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        names = _leading_out(asking) if iface is None else [iface]
        return [address for name in names for address in _broadcast_of(asking, name)]


def networks() -> list[str]:
    """The networks that this machine is in, as "192.168.7.0/24": a broadcast in one of them reaches the machines that
    share it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        found = {str(network) for name in _leading_out(asking) for network in _network_of(asking, name)}
    return sorted(found)


def _leading_out(asking: socket.socket) -> list[str]:
    return [name for name in _interfaces(asking) if not _INSIDE.fullmatch(name)]


def _interfaces(asking: socket.socket) -> list[str]:
    """The interfaces with an IPv4 address. Not by if_nameindex: our units of systemd forbid the netlink socket that it
    needs."""
    found = array("B", bytes(_IFREQ_SIZE * _MOST_INTERFACES))
    address, _ = found.buffer_info()
    length, _ = struct.unpack("iP", fcntl.ioctl(asking, _SIOCGIFCONF, struct.pack("iP", len(found), address)))
    rows = [found[at : at + _LONGEST_NAME + 1].tobytes() for at in range(0, length, _IFREQ_SIZE)]
    return list(dict.fromkeys(row.partition(b"\0")[0].decode(errors="replace") for row in rows))


def _network_of(asking: socket.socket, name: str) -> Iterator[IPv4Network]:
    with suppress(OSError):
        if _can_broadcast(asking, name):
            address, mask = (_asked(asking, name, what) for what in (_SIOCGIFADDR, _SIOCGIFNETMASK))
            network = IPv4Network((address, socket.inet_ntoa(mask)), strict=False)
            if network.prefixlen < 32 and not network.is_link_local:
                yield network


def _broadcast_of(asking: socket.socket, name: str) -> Iterator[str]:
    """The broadcast address that was set (`brd`), or else the last address of the network, which the kernel routes as
    well."""
    with suppress(OSError):  # it has no IPv4 address, or is not there
        if _can_broadcast(asking, name):
            address = _asked(asking, name, _SIOCGIFBRDADDR)
            if any(address):
                yield socket.inet_ntoa(address)
            else:
                yield from (str(each.broadcast_address) for each in _network_of(asking, name) if each.prefixlen < 31)


def _can_broadcast(asking: socket.socket, name: str) -> bool:
    flags = struct.unpack_from("H", fcntl.ioctl(asking, _SIOCGIFFLAGS, _request(name)), 16)[0]
    return bool(flags & _IFF_UP and flags & _IFF_BROADCAST)


def _asked(asking: socket.socket, name: str, what: int) -> bytes:
    return fcntl.ioctl(asking, what, _request(name))[20:24]


def _request(name: str) -> bytes:
    return struct.pack("256s", name.encode()[:_LONGEST_NAME])
