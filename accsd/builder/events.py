"""Settles events: evaluates filters, gathering keys and templated options, and lets SQL decide (accs.settle_events).

Several may run at once, and none leads: an event is decided by whoever takes it out of the inbox. What no expression
has to be evaluated for is settled by SQL alone.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from accsd import failpoints
from accsd.builder.subscriptions import verdict_of
from accsd.db import Database, Verdict
from accsd.db.topics import (
    EventSettled,
    EventToSettle,
    TopicSubscription,
    choose_outcomes,
    events_outlook,
    events_to_settle,
    settle_events,
    settle_plain_events,
    subscriptions,
    trim_inbox,
)
from accsd.errors import AccsdError, ConfigError, Unavailable
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.supervisor import Pass

_BATCH: Final = 500
_LOCKED_PAUSE: Final = timedelta(milliseconds=50)  # of what waits, somebody is changing the schedule
_REST: Final = timedelta(milliseconds=5)  # after events: what comes meanwhile is settled at once, for the price of one
_log = get_logger(role="events")


class Evaluator:
    def __init__(self, db: Database, *, node: str, metrics: Metrics) -> None:
        self._db = db
        self._node = node
        self._metrics = metrics
        self._known: dict[UUID, TopicSubscription] = {}
        self._locked: list[UUID] = []  # schedules that somebody was changing in the last pass: others first
        self._rests_until: float = time.monotonic()

    async def run_once(self) -> Pass:
        await asyncio.sleep(max(0.0, self._rests_until - time.monotonic()))
        ahead = await events_outlook(self._db)
        chosen = await self._choose() if ahead.choose else None
        if ahead.hold is not None:
            missed = await trim_inbox(self._db, by=self._node)
            return Pass(
                did=f"{missed} events are more than may wait: missed" if missed else None,
                obstacle=f"all schedules are held: {ahead.hold}",
            )
        try:
            settled = await self._settle(plain=ahead.plain, work=ahead.work)
        except ConfigError as error:  # the CEL library is missing
            return Pass(obstacle=str(error))
        for each in settled:
            if each.late is not None and each.outcome is not None and each.reason is not None:
                self._metrics.settled(each.outcome, each.reason, each.late, 1)
        if done := _sentence(settled):
            if len(settled) < _BATCH:
                self._rests_until = time.monotonic() + _REST.total_seconds()
            return Pass(did="; ".join(filter(None, (chosen, done))), more=True)
        waits = ahead.plain or ahead.work
        return Pass(did=chosen, next_due=_LOCKED_PAUSE if waits else None)

    async def _settle(self, *, plain: bool, work: bool) -> list[EventSettled]:
        settled: list[EventSettled] = []
        if plain:
            settled += await settle_plain_events(self._db, limit=_BATCH, by=self._node)
        if work:
            settled += await self._evaluate()
        return settled

    async def _evaluate(self) -> list[EventSettled]:
        passed_over, self._locked = self._locked, []
        asked = await events_to_settle(self._db, limit=_BATCH, skip=passed_over)
        if not asked:
            return []
        known = await self._subscriptions(asked)
        # In a thread: an expression may take milliseconds, and the loop has leases to keep.
        verdicts = await asyncio.to_thread(
            lambda: [verdict_of(known[each.schedule_id], each) for each in asked if each.schedule_id in known]
        )
        failpoints.hit("events.evaluated")
        settled = await settle_events(self._db, verdicts, by=self._node)
        failpoints.hit("events.settled")
        self._locked = list({each.schedule_id for each in settled if each.reason == "locked" and each.outcome is None})
        for each in settled:
            if each.outcome == "skipped" and each.reason in ("filter_error", "refused"):
                _log.warning("event_refused", schedule=known[each.schedule_id].name, event_id=each.event_id)
        return settled

    async def _subscriptions(self, asked: Sequence[EventToSettle]) -> dict[UUID, TopicSubscription]:
        """The definitions of these schedules, of the revision that is asked for or a newer one."""
        wanted = {each.schedule_id: each.revision for each in asked}
        known = {which: self._known[which] for which in wanted if which in self._known}
        stale = [which for which, revision in wanted.items() if which not in known or known[which].revision != revision]
        if stale:
            known |= {each.id: each for each in await subscriptions(self._db, stale)}
        self._known = known
        return known

    async def _choose(self) -> str | None:
        try:
            chosen = await choose_outcomes(self._db)
        except Unavailable:
            raise
        except AccsdError as error:  # a long writer: it is tried again with the next pass
            _log.warning("outcomes_not_chosen", error=str(error))
            return None
        return f"accsd's own events: {', '.join(chosen)}" if chosen else None


def _sentence(settled: Sequence[EventSettled]) -> str | None:
    counted = Counter(
        each.outcome if each.reason is None else f"{each.outcome} ({each.reason})"
        for each in settled
        if each.verdict is Verdict.ACCEPTED
    )
    return ", ".join(f"{n} {word}" for word, n in sorted(counted.items())) or None
