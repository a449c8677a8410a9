"""Wake-on-LAN: magic packets into the networks that this machine is in (A18)."""

import asyncio
import fcntl
import re
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Final

import wakeonlan

from accsd.model import Node, WakeMethod
from accsd.power.base import WakeFailed, WakeResult, outcome

_MAC: Final = re.compile(r"[0-9A-Fa-f]{2}([:-][0-9A-Fa-f]{2}){5}|[0-9A-Fa-f]{12}")
_WITHIN_SEC: Final = 5
_SIOCGIFFLAGS: Final = 0x8913
_SIOCGIFBRDADDR: Final = 0x8919
_IFF_UP: Final = 0x1
_IFF_BROADCAST: Final = 0x2
_LONGEST_NAME: Final = 15


class WakeOnLAN:
    """Sends to the broadcast address of `iface` (None: of every interface), to 255.255.255.255 and to `also`: networks
    differ in which of them they let through, and a machine that hears it twice wakes once."""

    def __init__(self, mac: str, iface: str | None = None, *, also: Iterable[str] = (), port: int = 9) -> None:
        self._mac: str = mac
        self._iface: str | None = iface
        self._also: tuple[str, ...] = tuple(also)
        self._port: int = port

    async def wake(self, node: Node) -> WakeResult:
        return await outcome(WakeMethod.WOL, self._wake(node))

    async def _wake(self, node: Node) -> str:
        if not _MAC.fullmatch(self._mac):
            raise WakeFailed(f"node {node.name} has no valid MAC address; expected one such as 52:54:00:12:34:56")
        async with asyncio.timeout(_WITHIN_SEC):
            return await asyncio.to_thread(self._send)

    def _send(self) -> str:
        """A network that can't be reached is no failure while another one can."""
        sent: list[str] = []
        failures: list[str] = []
        for address in self._addresses():
            try:
                wakeonlan.wake(self._mac, host=address, port=self._port, family=socket.AF_INET)
            except OSError as error:
                failures.append(f"{address}: {error.strerror or error}")
            else:
                sent.append(address)
        said = f"sent to {', '.join(sent) or 'nobody'}" + "".join(f"; {failure}" for failure in failures)
        if not sent:
            raise WakeFailed("no magic packet could be sent", output=said)
        return said

    def _addresses(self) -> list[str]:
        near = directed_broadcasts(self._iface)
        if self._iface is not None and not near:
            raise WakeFailed(f"the interface {self._iface} is down, or has no broadcast address")
        return list(dict.fromkeys([*near, *self._also, wakeonlan.BROADCAST_IP]))


def directed_broadcasts(iface: str | None = None) -> list[str]:
    """Of one interface, or of all that are up and know one."""
    names = [name for _, name in socket.if_nameindex()] if iface is None else [iface]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        return [address for name in names for address in _broadcast_of(asking, name)]


def _broadcast_of(asking: socket.socket, name: str) -> Iterator[str]:
    request = struct.pack("256s", name.encode()[:_LONGEST_NAME])
    with suppress(OSError):  # it has no IPv4 address, or is not there
        flags = struct.unpack_from("H", fcntl.ioctl(asking, _SIOCGIFFLAGS, request), 16)[0]
        if flags & _IFF_UP and flags & _IFF_BROADCAST:
            address = fcntl.ioctl(asking, _SIOCGIFBRDADDR, request)[20:24]
            if any(address):
                yield socket.inet_ntoa(address)
