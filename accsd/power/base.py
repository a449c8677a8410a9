"""What every way of waking a node has in common: the protocol, and the answer for the record."""

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol

from accsd.errors import Unavailable
from accsd.model import Node
from accsd.net import CallFailed

_LONGEST_OUTPUT: Final = 2000


class WakeFailed(Unavailable):
    """A node was not woken. `output` is what the method said about it."""

    def __init__(self, message: str, *, output: str = "") -> None:
        super().__init__(message)
        self.output = output


@dataclass(frozen=True, slots=True)
class WakeResult:
    """How a wake call went; true if it got through. Whether the machine comes up shows when it is seen again."""

    ok: bool
    method: str  # a WakeMethod, or "relay"
    latency: timedelta
    output: str = ""
    error: str | None = None

    def __bool__(self) -> bool:
        return self.ok


class WakeProvider(Protocol):
    """`if await provider.wake(node): …` It never raises because of the node, or of what is between here and the
    node."""

    async def wake(self, node: Node) -> WakeResult: ...


async def outcome(method: str, attempt: Awaitable[str]) -> WakeResult:
    """Awaits a wake call and makes a result of it: what the call returned is the output, what it raised is the
    error."""
    began = time.monotonic()
    try:
        output, error = await attempt, None
    except WakeFailed as failure:
        output, error = failure.output, failure.message
    except CallFailed as failure:
        output, error = "", failure.message
    except (OSError, TimeoutError) as failure:
        output, error = "", str(failure) or type(failure).__name__
    latency = timedelta(seconds=time.monotonic() - began)
    return WakeResult(error is None, method, latency, output.strip()[:_LONGEST_OUTPUT], error)
