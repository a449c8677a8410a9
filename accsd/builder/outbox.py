"""Delivers events of jobs to one target: claims those that are due, sends them, and writes down how it went.

Each event is delivered at least once, and each job's events in their order: the next one waits until the one before it
is delivered or given up. A target has a role of its own, so that a slow receiver delays no other; a dead one is left
alone by its circuit breaker, which stands in the database, for all builders.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID, uuid4

import anyio

from accsd import failpoints
from accsd.builder.webhook import address_of, deliver, read_secrets
from accsd.db import Database, Verdict
from accsd.db.outbox import (
    Breaker,
    DeliveryOutcome,
    OutgoingEvent,
    Settlement,
    claim_events,
    count_pending,
    outbox_outlook,
    register_target,
    settle_events,
)
from accsd.errors import AccsdError
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.net import CallFailed
from accsd.planning.backoff import Persistence, again_in
from accsd.settings import OutboxSettings, OutboxTarget
from accsd.supervisor import Pass

_EACH: Final = 200  # events of one job at a time
_MARGIN: Final = timedelta(seconds=10)
_COUNT_EVERY: Final = timedelta(seconds=15)
_LAST_WORDS_SEC: Final = 3.0
_LOCKED_PAUSE: Final = timedelta(milliseconds=100)
_COUNTED: Final = {
    DeliveryOutcome.DELIVERED: "delivered",
    DeliveryOutcome.FAILED: "retried",
    DeliveryOutcome.DEAD: "dead",
}
_log = get_logger(role="outbox")


class Dispatcher:
    """Dispatchers of several builders may run at once: a claim holds, and a dispatcher learns that it lost its
    claim."""

    def __init__(self, db: Database, name: str, settings: OutboxSettings, *, metrics: Metrics | None = None) -> None:
        self._db = db
        self._name = name
        self._settings = settings
        self._target: OutboxTarget = settings.targets[name]
        self._metrics: Metrics = metrics or Metrics()
        self._persistence: Persistence = Persistence(settings.retry, settings.longest_retry, settings.give_up)
        self._breaker: Breaker = Breaker(settings.failures, settings.rest, settings.longest_rest)
        # Time for two, so that a job with many events does not always lose those that it has no time for.
        self._lease: timedelta = 2 * self._target.timeout + _MARGIN
        self._is_registered: bool = False
        self._counts_at: float = time.monotonic()

    async def run_once(self) -> Pass:
        if not self._is_registered:
            await self._register()
        done = await self._dispatch()
        for outcome, count in done.items():
            if outcome in _COUNTED:
                self._metrics.outbox(_COUNTED[outcome], count)
        did, more = self._told(done), done[DeliveryOutcome.DELIVERED] > 0
        if not more or time.monotonic() >= self._counts_at:  # counting a large backlog takes longer than a batch
            self._metrics.outbox_pending(await count_pending(self._db))
            self._counts_at = time.monotonic() + _COUNT_EVERY.total_seconds()
        if more:
            return Pass(did=did, more=True)
        ahead = await outbox_outlook(self._db, self._name)
        return Pass(did=did, next_due=None if ahead is None else max(ahead, _LOCKED_PAUSE))

    async def _register(self) -> None:
        target = self._target
        if await register_target(
            self._db, self._name, address=address_of(target), events=target.events, workflows=target.workflows
        ):
            _log.info("outbox_target_registered", target=self._name, address=address_of(target))
        self._is_registered = True

    async def _dispatch(self) -> Counter[DeliveryOutcome]:
        claim = uuid4()
        events = await claim_events(
            self._db, self._name, claim, lease=self._lease, jobs=self._settings.at_once, each=_EACH
        )
        done = Counter[DeliveryOutcome]()
        failures: list[AccsdError] = []

        async def send(of_job: Sequence[OutgoingEvent]) -> None:
            try:
                done.update(await self._send(claim, of_job))
            except AccsdError as failure:  # the database's error: the other jobs end what they have begun
                failures.append(failure)

        if events:
            failpoints.hit("outbox.claimed")
        async with anyio.create_task_group() as group:
            for of_job in _by_job(events):
                group.start_soon(send, of_job)
        if failures:
            raise failures[0]
        return done

    async def _send(self, claim: UUID, events: Sequence[OutgoingEvent]) -> Counter[DeliveryOutcome]:
        """Sends the events of one job. What was sent is written down even if this is cancelled meanwhile."""
        settled: list[Settlement] = []
        try:
            await self._send_in_turn(events, settled)
        except anyio.get_cancelled_exc_class():
            with anyio.move_on_after(_LAST_WORDS_SEC, shield=True):
                await self._settle(claim, events, settled)
            raise
        return await self._settle(claim, events, settled)

    async def _send_in_turn(self, events: Sequence[OutgoingEvent], settled: list[Settlement]) -> None:
        """Sends events until one fails, or there is no time for another."""
        ends = time.monotonic() + (self._target.timeout + _MARGIN / 2).total_seconds()
        try:
            secrets = await asyncio.to_thread(read_secrets, self._target)
        except CallFailed as failure:
            settled.append(self._judged(events[0], failure.message))
            return
        for event in events:
            if time.monotonic() >= ends:
                return
            settled.append(self._judged(event, await deliver(self._target, secrets, event.payload)))
            if settled[-1].outcome is DeliveryOutcome.FAILED:
                return

    def _judged(self, event: OutgoingEvent, error: str | None) -> Settlement:
        if error is None:
            return Settlement(event.id, DeliveryOutcome.DELIVERED)
        delay = again_in(event.id, failures=event.attempts + 1, age=event.age, persistence=self._persistence)
        outcome = DeliveryOutcome.DEAD if delay is None else DeliveryOutcome.FAILED
        _log.warning(
            "outbox_failed", target=self._name, event_id=event.id, job_id=event.job_id, outcome=outcome, error=error
        )
        return Settlement(event.id, outcome, delay, error)

    async def _settle(
        self, claim: UUID, events: Sequence[OutgoingEvent], sent: Sequence[Settlement]
    ) -> Counter[DeliveryOutcome]:
        """Writes down the outcomes. Events that were not sent wait as long as the one that failed before them."""
        failpoints.hit("outbox.sent")
        delay = sent[-1].delay if sent else None
        left = [Settlement(event.id, DeliveryOutcome.RETURNED, delay) for event in events[len(sent) :]]
        answers = await settle_events(self._db, self._name, claim, [*sent, *left], self._breaker)
        for answer in answers:
            if answer.verdict is Verdict.REFUSED:
                _log.warning("outbox_claim_lost", target=self._name, event_id=answer.id, reason=answer.reason)
        return Counter(each.outcome for each in sent)

    def _told(self, done: Counter[DeliveryOutcome]) -> str | None:
        parts = [f"{done[outcome]} {outcome}" for outcome in _COUNTED if done[outcome]]
        return f"events to {self._name}: {', '.join(parts)}" if parts else None


def _by_job(events: Sequence[OutgoingEvent]) -> list[list[OutgoingEvent]]:
    """The events by job. An event that belongs to no job has no order to keep."""
    chains: dict[UUID | int, list[OutgoingEvent]] = {}
    for event in events:
        chains.setdefault(event.job_id or event.id, []).append(event)
    return list(chains.values())
