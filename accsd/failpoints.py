"""Named points at which a test makes the process misbehave: ACC_FAILPOINTS=claim.committed:kill,artifact.row:pause.

They are off in production: without the variable every point is one look into an empty dictionary. Random faults alone
miss bugs that a directed one finds in seconds.

    kill    SIGKILL to this process     pause   SIGSTOP to it (the test continues it)
    raise   an exception                cut     the next database call loses its connection (the pool's are cut)
"""

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from accsd.errors import ConfigError

ACTIONS: Final = ("kill", "pause", "raise", "cut")

# In the order in which an attempt meets them; then the builder's, a gateway's, and those of a node that goes to sleep.
POINTS: Final = (
    "claim.sent",
    "claim.committed",
    "prepared",
    "runner.created",
    "runner.started",
    "start.committed",
    "line.first",
    "heartbeat.sent",
    "artifact.put",
    "artifact.row",
    "finish.sent",
    "finish.committed",
    "cleanup",
    "instantiate.committed",
    "reclaim.committed",
    "resolve.evaluated",
    "resolve.committed",
    "tool.done",
    "plan.computed",
    "plan.written",
    "settle.sent",
    "settle.committed",
    "events.evaluated",
    "events.settled",
    "probe.ran",
    "outbox.claimed",
    "outbox.sent",
    "archive.put",
    "archive.recorded",
    "archive.verified",
    "joblib.claimed",
    "operation.read",
    "operation.advanced",
    "deployment.asked",
    "deployment.begun",
    "deployment.finished",
    "sample.taken",
    "verdict.made",
    "sleep.gated",
    "sleep.said",
    "sleep.resumed",
)

_armed: dict[str, str] = {}
_cutters: list[Callable[[], None]] = []


class Injected(Exception):
    """Raised by a failpoint that is armed with `raise`."""


def arm(text: str | None) -> None:
    """Arms the points that ACC_FAILPOINTS names; None or empty disarms all."""
    _armed.clear()
    for item in filter(None, (part.strip() for part in (text or "").split(","))):
        point, _, action = item.partition(":")
        if point not in POINTS or action not in ACTIONS:
            raise ConfigError(
                f'ACC_FAILPOINTS: "{item}" is not point:action',
                hint=f"points: {', '.join(POINTS)}; actions: {', '.join(ACTIONS)}",
            )
        _armed[point] = action


def armed() -> Mapping[str, str]:
    return dict(_armed)


def when_cut(cutter: Callable[[], None]) -> None:
    """The pool says here how `cut` severs its connections."""
    _cutters.append(cutter)


def hit(point: str) -> None:
    """Fires the point if it is armed; each fires once."""
    if not _armed or (action := _armed.pop(point, None)) is None:
        return
    match action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "pause":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "cut":
            for cutter in _cutters:
                with suppress(OSError):
                    cutter()
        case _:
            raise Injected(point)
