"""What the network cards of this machine say of themselves: their addresses, and whether a magic packet wakes it."""

import array
import errno
import fcntl
import socket
import struct
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

_CARDS: Final = Path("/sys/class/net")
_ETHERNET: Final = "1"
_SIOCETHTOOL: Final = 0x8946
_ETHTOOL_GWOL: Final = 5
_WAKE_MAGIC: Final = 1 << 5
_WOLINFO: Final = struct.Struct("=III8x")  # command, supported, switched on, password
_IFREQ: Final = struct.Struct("16sP16x")
_LONGEST_NAME: Final = 15


class Magic(StrEnum):
    ON = "it wakes the machine by a magic packet"
    OFF = "it could wake the machine by a magic packet, and is not told to"
    UNSUPPORTED = "it can't wake the machine by a magic packet"
    FORBIDDEN = "it does not tell this user whether it wakes the machine"


@dataclass(frozen=True, slots=True)
class Card:
    name: str
    mac: str

    def magic(self) -> Magic:
        """What `ethtool` shows as Wake-on. The kernel is asked as ethtool asks it."""
        info = array.array("B", _WOLINFO.pack(_ETHTOOL_GWOL, 0, 0))
        address, _ = info.buffer_info()
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
                fcntl.ioctl(asking, _SIOCETHTOOL, _IFREQ.pack(self.name.encode()[:_LONGEST_NAME], address))
        except OSError as refusal:
            return Magic.FORBIDDEN if refusal.errno == errno.EPERM else Magic.UNSUPPORTED
        return magic_in(info.tobytes())

    def may_wake(self) -> bool | None:
        """Whether the kernel lets the device wake the machine; None where the device has no such switch."""
        try:
            return (_CARDS / self.name / "device/power/wakeup").read_text().strip() == "enabled"
        except OSError:
            return None


def magic_in(wolinfo: bytes) -> Magic:
    _, supported, switched_on = _WOLINFO.unpack(wolinfo)
    if switched_on & _WAKE_MAGIC:
        return Magic.ON
    return Magic.OFF if supported & _WAKE_MAGIC else Magic.UNSUPPORTED


def cards() -> list[Card]:
    """The network cards that have an Ethernet address."""
    found: list[Card] = []
    for folder in sorted(_CARDS.iterdir()):
        try:
            if (folder / "type").read_text().strip() == _ETHERNET:
                found.append(Card(folder.name, (folder / "address").read_text().strip()))
        except OSError:  # it has gone meanwhile
            continue
    return found
