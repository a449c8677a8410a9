"""Counts what has happened: how attempts ended, how long steps take, how busy nodes are. Nothing on the way of a task
waits for it: it reads the events afterwards, and what it did not come to is counted by the next pass."""

import time
from datetime import timedelta
from typing import Final

from accsd.db import Database
from accsd.db.statistics import count_events, forget_statistics
from accsd.supervisor import Pass

_EVERY: Final = timedelta(seconds=30)
_FORGETS_EVERY_SEC: Final = 3600.0


class Statistics:
    """Several may run at once: the database lets one of them count at a time."""

    def __init__(self, db: Database, *, forgets_in: timedelta = _EVERY) -> None:  # not while a daemon starts
        self._db = db
        self._forgets_at: float = time.monotonic() + forgets_in.total_seconds()

    async def run_once(self) -> Pass:
        counted = await count_events(self._db)
        did = await self._forget() if time.monotonic() >= self._forgets_at and not counted.more else None
        return Pass(did=did, more=counted.more, next_due=_EVERY)

    async def _forget(self) -> str | None:
        self._forgets_at = time.monotonic() + _FORGETS_EVERY_SEC
        less = await forget_statistics(self._db)
        return f"{less} old figures put together or forgotten" if less else None
