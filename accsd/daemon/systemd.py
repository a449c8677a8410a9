"""What the daemon tells systemd (sd_notify): ready, what it does now, still alive, reloading, stopping.

The protocol is one datagram of KEY=value lines to the socket that the manager names in the environment. Without a
manager every call does nothing, and none ever raises: the work must not stop because no manager listens.
"""

import os
import socket
import time
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Self

import anyio

_LONGEST_STATUS: Final = 500
# The manager reads at once; a manager that does not must not hold up the event loop.
_SEND_SEC: Final = 1.0
_MICROSECOND: Final = timedelta(microseconds=1)


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True)
class Notifier:
    """Sends to the manager; `address` is None where there is none."""

    address: str | None = None
    watchdog_limit: timedelta | None = None

    @classmethod
    def from_environ(cls, environ: MutableMapping[str, str]) -> Self:
        """Takes the manager's variables *out* of the environment: a child that inherited them could speak for us."""
        address = environ.pop("NOTIFY_SOCKET", "")
        limit = _watchdog_limit(environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", ""))
        return cls(_socket_name(address), limit)

    def watchdog_interval(self) -> timedelta | None:
        """How often to call `watchdog`: twice within the manager's limit; None: it does not watch."""
        return None if self.watchdog_limit is None else self.watchdog_limit / 2

    def ready(self, status: str = "") -> bool:
        """The roles run (also after a reload). Like the other calls it returns whether the manager was told."""
        return self._send("READY=1", *_status(status))

    def status(self, text: str) -> bool:
        """Sets the line that `systemctl status` shows."""
        return self._send(*_status(text))

    def watchdog(self) -> bool:
        return self._send("WATCHDOG=1")

    def reloading(self) -> bool:
        """Call it before the settings are read again; `ready` ends it. The time tells the manager which reload this
        is."""
        return self._send("RELOADING=1", f"MONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000}")

    def stopping(self, status: str = "", *, within: timedelta | None = None) -> bool:
        """The drain has begun. With `within` the manager waits that long even where its TimeoutStopSec is shorter."""
        extended = [f"EXTEND_TIMEOUT_USEC={within // _MICROSECOND}"] if within is not None else []
        return self._send("STOPPING=1", *extended, *_status(status))

    async def keep_alive(self, is_well: Callable[[], bool] = _always) -> None:
        """Calls `watchdog` for ever, from the event loop, so that the manager notices a loop that hangs.

        While `is_well` says no, nothing is sent, and the manager restarts the daemon. Ends at once without a watchdog.
        """
        interval = self.watchdog_interval()
        while interval is not None:
            if is_well():
                self.watchdog()
            await anyio.sleep(interval.total_seconds())

    def _send(self, *assignments: str) -> bool:
        if self.address is None or not assignments:
            return False
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.settimeout(_SEND_SEC)
            manager.sendto("\n".join(assignments).encode(), self.address)
            return True
        return False


def _socket_name(address: str) -> str | None:
    """The socket's path, or its abstract name, which systemd writes with an @ and the kernel with a zero byte."""
    if address.startswith("@"):
        return "\0" + address[1:]
    return address if address.startswith("/") else None


def _watchdog_limit(microseconds: str, pid: str) -> timedelta | None:
    """The limit, if it is meant for this process: a parent's watchdog is not ours to feed."""
    if not microseconds.isdecimal() or int(microseconds) == 0 or (pid and pid != str(os.getpid())):
        return None
    return timedelta(microseconds=int(microseconds))


def _status(text: str) -> list[str]:
    """The status on one line, because a second line would be an assignment of its own."""
    line = " ".join(text.split())[:_LONGEST_STATUS]
    return [f"STATUS={line}"] if line else []
