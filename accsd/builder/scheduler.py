"""Fires what is due. The decision is SQL's (accs.settle_due): this role calls it at the right moment.

Several schedulers may run at once, and none leads: each call takes what no other has. Killed at any point, a scheduler
has settled a due time or has not.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from accsd import failpoints
from accsd.clock import time_asleep
from accsd.db import Database
from accsd.db.firings import SchedulerOutlook, Settled, scheduler_outlook, settle_due
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.supervisor import Pass

_BATCH: Final = 200
_LOCKED_PAUSE: Final = timedelta(milliseconds=50)  # what is due and was not taken is locked, perhaps by a colleague
# So long before the due time it looks, and then waits for the moment itself: neither the look nor the way back to the
# supervisor makes the firing late.
_NEAR: Final = timedelta(milliseconds=6)
_TIMER: Final = timedelta(milliseconds=1)  # uvloop counts whole milliseconds, and may be early by one
_LEAP: Final = timedelta(minutes=10)
_CONFIRMED_AFTER: Final = timedelta(minutes=1)
_log = get_logger(role="scheduler")


class Scheduler:
    def __init__(self, db: Database, *, node: str, metrics: Metrics) -> None:
        self._db = db
        self._node = node
        self._metrics = metrics
        self._clock: DatabaseClock = DatabaseClock()

    async def run_once(self) -> Pass:
        ahead = await scheduler_outlook(self._db)
        if doubt := self._clock.doubt(ahead.now):
            return Pass(obstacle=doubt, next_due=_CONFIRMED_AFTER)
        if ahead.hold is not None:
            return Pass(obstacle=f"all schedules are held: {ahead.hold}")
        if ahead.next_due is None:
            return Pass()
        if ahead.next_due > _NEAR:
            return Pass(next_due=ahead.next_due - _NEAR)
        if ahead.next_due > timedelta(0):
            await asyncio.sleep((ahead.next_due + _TIMER).total_seconds())
        return await self._settle(ahead)

    async def _settle(self, ahead: SchedulerOutlook) -> Pass:
        failpoints.hit("settle.sent")
        settled = await settle_due(self._db, limit=_BATCH, by=self._node)
        failpoints.hit("settle.committed")
        if not settled:  # a colleague may have been quicker with what was awaited: then it is gone by the next look
            return Pass(next_due=timedelta(0) if ahead.next_due else _LOCKED_PAUSE)
        for each in settled:
            self._metrics.settled(each.outcome, each.reason, each.late, each.times)
        return Pass(did=_sentence(settled), more=True)


def _sentence(settled: Sequence[Settled]) -> str:
    counted = Counter[str]()
    for each in settled:
        counted[f"{each.outcome} ({each.reason})"] += each.times
    return ", ".join(f"{n} {word}" for word, n in sorted(counted.items()))


class DatabaseClock:
    """Notices that the database's clock has leapt: a wrong time must not fire a year of schedules. The new time counts
    when a second reading, a minute later, confirms it."""

    def __init__(self) -> None:
        self._last: tuple[datetime, float] | None = None
        self._leapt_at: float | None = None

    def doubt(self, now: datetime) -> str | None:
        mine = time.monotonic() + time_asleep()
        last, self._last = self._last, (now, mine)
        if last is None:
            return None
        drift = (now - last[0]) - timedelta(seconds=mine - last[1])
        if abs(drift) > _LEAP:
            self._leapt_at = mine
            _log.warning("clock_leapt", by_sec=round(drift.total_seconds()), now=now.isoformat())
        if self._leapt_at is None:
            return None
        if mine - self._leapt_at >= _CONFIRMED_AFTER.total_seconds():
            self._leapt_at = None
            return None
        return f"the database's clock has leapt to {now:%Y-%m-%d %H:%M:%S %Z}; firing goes on if it stays there"
