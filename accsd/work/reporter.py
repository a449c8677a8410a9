"""Events and progress of all attempts of a node, gathered and sent in batches; of progress, the newest of each attempt.

While one batch is under way the next one gathers, so that a busy node sends large batches and an idle one is not
delayed. Only an attempt that is about to end waits for it: its events must be in before its lease is given up.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from itertools import chain
from typing import Final, TypeVar

import anyio

from accsd.db import Database, Fence, Progress, TaskEvent, append_events, append_task_events, report_progress
from accsd.errors import AccsdError, DatabaseUnavailable
from accsd.log import LoggedEvent, get_logger
from accsd.retry import Backoff
from accsd.wakeup import Wakeup

_log = get_logger(component="reporting")
_GATHER: Final = timedelta(milliseconds=100)
_BATCH: Final = 500
_PROGRESS_EVERY: Final = timedelta(seconds=0.5)
# While the database is away the oldest events are dropped first; the task's log has the important lines anyway.
_KEPT: Final = 20_000
T = TypeVar("T")


Event = TaskEvent | LoggedEvent


class Reporter:
    def __init__(self, db: Database, *, owner: str, batches: bool = True) -> None:
        self._db = db
        self._owner = owner
        self._most: int = _BATCH if batches else 1  # in one call
        self._events: deque[Event] = deque(maxlen=_KEPT)
        self._progress: dict[Fence, Progress] = {}
        self._wakeup: Wakeup = Wakeup()
        self._sending: asyncio.Lock = asyncio.Lock()
        self._progress_due: float = 0.0  # monotonic

    def event(self, event: Event) -> None:
        """Adds an event and never blocks. It is the sink of `log_event`, too."""
        self._events.append(event)
        self._wakeup.set()

    def progress(self, fence: Fence, progress: float, message: str | None) -> None:
        """Notes progress; only the newest of an attempt counts."""
        self._progress[fence] = Progress(fence, progress, message)
        self._wakeup.set()

    async def serve(self) -> None:
        outages = Backoff(timedelta(seconds=0.2), timedelta(seconds=5))
        while True:
            await self._wakeup.wait()
            await asyncio.sleep(_GATHER.total_seconds())
            self._wakeup.clear()
            try:
                await self._flush(progress_too=self._is_progress_due())
                outages.reset()
                await self._pace_progress()
            except DatabaseUnavailable as error:
                _log.warning("reports_wait", error=str(error), waiting=len(self._events))
                await asyncio.sleep(outages.next().total_seconds())
                self._wakeup.set()

    async def flush(self) -> None:
        """Sends everything that was added before this call. DatabaseUnavailable: it is not in the database."""
        await self._flush(progress_too=True)

    def _is_progress_due(self) -> bool:
        return time.monotonic() >= self._progress_due

    async def _pace_progress(self) -> None:
        """Spaces reports out. Each is an event: a task that counts every frame must not fill the history."""
        if self._progress:
            with anyio.move_on_after(max(0.0, self._progress_due - time.monotonic())):
                await self._wakeup.wait()
            self._wakeup.set()

    async def _flush(self, *, progress_too: bool) -> None:
        async with self._sending:
            if progress_too:
                await self._send_progress()
            left = len(self._events)  # not what is added meanwhile, or this might never end
            while left > 0 and self._events:
                batch = [self._events.popleft() for _ in range(min(self._most, len(self._events)))]
                left -= len(batch)
                await self._send(batch)

    async def _send_progress(self) -> None:
        said, self._progress = self._progress, {}
        self._progress_due = time.monotonic() + _PROGRESS_EVERY.total_seconds()
        await _deliver(list(said.values()), self._write_progress, self._put_back_progress, most=self._most)

    async def _send(self, batch: Sequence[Event]) -> None:
        """Sends one batch. Each kind is a call of its own: a refused call has written nothing, and is repeated."""
        of_attempts = [event for event in batch if isinstance(event, TaskEvent)]
        others = [event for event in batch if isinstance(event, LoggedEvent)]
        try:
            await _deliver(of_attempts, self._write_of_attempts, self._put_back)
        except DatabaseUnavailable:
            self._put_back(others)
            raise
        await _deliver(others, self._write_others, self._put_back)

    async def _write_progress(self, reports: Sequence[Progress]) -> None:
        await report_progress(self._db, reports, owner=self._owner)

    async def _write_of_attempts(self, events: Sequence[TaskEvent]) -> None:
        await append_task_events(self._db, events, owner=self._owner)

    async def _write_others(self, events: Sequence[LoggedEvent]) -> None:
        await append_events(self._db, events)

    def _put_back(self, unsent: Sequence[Event]) -> None:
        room = _KEPT - len(self._events)  # the oldest go first
        self._events.extendleft(reversed(unsent[max(0, len(unsent) - room) :]))

    def _put_back_progress(self, unsent: Sequence[Progress]) -> None:
        self._progress = {report.fence: report for report in unsent} | self._progress


async def _deliver(
    said: Sequence[T],
    write: Callable[[Sequence[T]], Awaitable[None]],
    put_back: Callable[[Sequence[T]], None],
    *,
    most: int = _BATCH,
) -> None:
    """Sends items; halves a refused batch, down to the one item that the database refuses, so that it does not keep
    the others out.

    Shielded: a flush sends the items of other attempts too, and a cancellation in the middle would lose them.
    """
    parts = [said[start : start + most] for start in range(0, len(said), most)]
    while parts:
        part = parts.pop(0)
        try:
            with anyio.CancelScope(shield=True):
                await write(part)
        except DatabaseUnavailable:
            put_back([*part, *chain.from_iterable(parts)])
            raise
        except AccsdError as error:
            if len(part) == 1:
                _log.error("report_refused", error=str(error))
            else:
                parts[:0] = [part[: len(part) // 2], part[len(part) // 2 :]]
