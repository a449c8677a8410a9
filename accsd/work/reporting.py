"""What attempts have to say, gathered for the whole node and sent in batches: events, and the newest progress of each.

While one batch is under way the next one gathers, so that a busy node sends large batches and an idle one is not
delayed. Nobody waits for it but an attempt that is about to end: its words must be in before its lease is given up.
"""

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import anyio

from accsd.db import Database, Fence, Progress, TaskEvent, append_events, append_task_events, report_progress
from accsd.errors import AccsdError, DatabaseUnavailable
from accsd.log import LoggedEvent, get_logger
from accsd.wakeup import Backoff, Wakeup

_log = get_logger(component="reporting")
_GATHER: Final = timedelta(milliseconds=100)
_BATCH: Final = 500
_PROGRESS_EVERY: Final = timedelta(seconds=0.5)
# While the database is away the oldest words are dropped first; what matters is in the task's log anyway.
_KEPT: Final = 20_000


@dataclass(slots=True)
class _Said:
    progress: float
    message: str | None


class Reporter:
    def __init__(self, db: Database, *, owner: str) -> None:
        self._db: Database = db
        self._owner: str = owner
        self._events: deque[TaskEvent | LoggedEvent] = deque(maxlen=_KEPT)
        self._progress: dict[Fence, _Said] = {}
        self._wakeup: Wakeup = Wakeup()
        self._sending: asyncio.Lock = asyncio.Lock()
        self._progress_due: float = 0.0  # monotonic

    def event(self, event: TaskEvent | LoggedEvent) -> None:
        """Never blocks; the sink of `log_event` too."""
        self._events.append(event)
        self._wakeup.set()

    def progress(self, fence: Fence, progress: float, message: str | None) -> None:
        """Only the newest counts."""
        self._progress[fence] = _Said(progress, message)
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
        """All that was said before this call is in the database afterwards, or DatabaseUnavailable."""
        await self._flush(progress_too=True)

    def _is_progress_due(self) -> bool:
        return time.monotonic() >= self._progress_due

    async def _pace_progress(self) -> None:
        """Each report is an event: a task that counts every frame must not fill the history."""
        if self._progress:
            with anyio.move_on_after(max(0.0, self._progress_due - time.monotonic())):
                await self._wakeup.wait()
            self._wakeup.set()

    async def _flush(self, *, progress_too: bool) -> None:
        async with self._sending:
            if progress_too:
                await self._send_progress()
            while self._events:
                batch = [self._events.popleft() for _ in range(min(_BATCH, len(self._events)))]
                try:
                    await self._send(batch)
                except DatabaseUnavailable:
                    self._events.extendleft(reversed(batch))
                    raise

    async def _send_progress(self) -> None:
        said, self._progress = self._progress, {}
        self._progress_due = time.monotonic() + _PROGRESS_EVERY.total_seconds()
        reports = [Progress(fence, it.progress, it.message) for fence, it in said.items()]
        for start in range(0, len(reports), _BATCH):
            try:
                await report_progress(self._db, reports[start : start + _BATCH], owner=self._owner)
            except DatabaseUnavailable:
                self._progress = said | self._progress
                raise

    async def _send(self, batch: Sequence[TaskEvent | LoggedEvent]) -> None:
        """One event that the database won't have must not keep the others out."""
        try:
            await self._write(batch)
        except DatabaseUnavailable:
            raise
        except AccsdError as error:
            if len(batch) == 1:
                _log.error("event_refused", error=str(error))
                return
            half = len(batch) // 2
            await self._send(batch[:half])
            await self._send(batch[half:])

    async def _write(self, batch: Sequence[TaskEvent | LoggedEvent]) -> None:
        if of_attempts := [event for event in batch if isinstance(event, TaskEvent)]:
            await append_task_events(self._db, of_attempts, owner=self._owner)
        if others := [event for event in batch if isinstance(event, LoggedEvent)]:
            await append_events(self._db, others)
