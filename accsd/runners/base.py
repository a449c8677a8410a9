"""What the attempt (work/attempt.py) asks of a runner, and what it gets back.

One runner serves one service on this node. The attempt's folder is made and removed by the caller; a runner keeps its
own files in it and reads the envelope from it. Nothing here decides about retries: a runner reports what it saw.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from math import inf
from pathlib import Path
from typing import Any, Final, Protocol
from uuid import UUID

from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode

TASK_FILE: Final = "task.json"  # the envelope, one line of JSON, in the attempt's folder
WORK_FOLDER: Final = "work"  # the task's own folder, in the attempt's folder

# What a runner needs to go on after a restart without losing or repeating a byte. JSON; only the runner reads it.
Cursor = Mapping[str, Any]
NO_CURSOR: Final[Cursor] = {}
# Heard in some ten milliseconds. 64 KiB of empty lines took a second, in which no heartbeat was sent.
_MOST_LINES: Final = 1000


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


@dataclass(frozen=True, slots=True)
class Workdir:
    """The task's folder: where it lies on this machine, and what the task calls it."""

    here: Path
    seen: str


async def at_any_time() -> float:
    """The clearance of an attempt that has no lease."""
    return inf


@dataclass(frozen=True, slots=True)
class Launch:
    """All that a runner needs to start one attempt. The envelope is in `folder / TASK_FILE` already.

    `clearance` is asked for as the last thing before the work begins, however long the runner had to prepare it: the
    lease may have ended meanwhile, and the machine may have slept. It returns only while the lease is good, with the
    time until which it is, by CLOCK_BOOTTIME."""

    fence: Fence
    job_id: UUID
    folder: Path
    workdir: Workdir | None
    environ: Mapping[str, str] = field(default_factory=dict[str, str])  # ACC_JOB_ID, ACC_ATTEMPT_ID …
    clearance: Callable[[], Awaitable[float]] = at_any_time


@dataclass(frozen=True, slots=True)
class Output:
    """Bytes as they came, cut anywhere; `cursor` points behind them. `waiting` is how many more bytes of both streams
    are there already, where the runner knows it: a task may write a thousand times faster than its output is heard."""

    stream: Stream
    data: bytes
    cursor: Cursor
    waiting: int = 0


def pieces(data: bytes) -> Iterator[bytes]:
    """Cuts output into pieces, in order, each of which can be heard without keeping everybody else waiting."""
    if data.count(b"\n") <= _MOST_LINES:
        yield data
    else:
        middle = len(data) // 2
        yield from pieces(data[:middle])
        yield from pieces(data[middle:])


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended, as far as looking at the process or container tells (never: that its output ended).

    `cause` is what the runner itself knows: oom, pids_limit, killed, start_failed, image_missing, worker_lost. Without
    a cause the exit code decides.
    """

    exit_code: int | None = None
    cause: ErrorCode | None = None
    detail: str | None = None
    max_rss_bytes: int | None = None
    cpu: timedelta | None = None


TakeOutput = Callable[[Output], Awaitable[None]]


class Execution(Protocol):
    """One attempt under way."""

    async def watch(self, take: TakeOutput, since: Cursor = NO_CURSOR) -> Ending:
        """Hands on all output from `since` until the work has ended and its output is drained (bounded after the end:
        a grandchild may hold stdout open). `take` is awaited before more is read. If cancelled, the work goes on."""
        ...

    async def stop(self, grace: timedelta) -> None:
        """Ends the work: TERM, grace, KILL, verified gone, together with its grandchildren and whatever runs inside the
        container. Idempotent, and safe while watch() runs, which then returns."""
        ...

    async def remove(self) -> None:
        """Removes everything that is left of the attempt, except for its folder, which is the caller's. Idempotent."""
        ...


class Runner(Protocol):
    """How one service runs on this node. An attempt is named by its fence: its folder, its container, its labels."""

    def workdir(self, fence: Fence, folder: Path) -> Workdir | None:
        """Where the task will find its folder; None where this mode has none. The caller makes and removes it."""
        ...

    async def check(self) -> None:
        """Raises Unavailable while this node cannot take work of the service. It is asked before every claim, so it is
        cheap."""
        ...

    async def start(self, launch: Launch) -> Execution:
        """Starts the attempt, once: a second call with the same fence finds what the first one started. Raises
        AttemptFailed with an ErrorCode where it cannot be started, EngineUnavailable where its engine is away."""
        ...

    async def survivors(self) -> Sequence[Fence]:
        """The earlier attempts of this service and node of which something is still here, running or ended: processes,
        containers."""
        ...

    async def adopt(self, launch: Launch) -> Execution | None:
        """Takes up a survivor; None where this mode cannot, or where nothing is left that would tell how it ends."""
        ...

    async def discard(self, fence: Fence, folder: Path | None) -> None:
        """Stops and removes a survivor, verified gone. Idempotent. Never touches what does not bear our labels."""
        ...

    async def rest(self, idle_for: timedelta | None) -> bool:
        """Called when the service has had no attempt for `idle_for` (None: the machine goes to sleep, however long that
        is). Returns whether something was stopped."""
        ...
