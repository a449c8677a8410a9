"""Outcomes on their way to the database. They gather while earlier flushes are under way: an idle worker writes at
once and a busy one in large batches, and no timer delays anything.

A finish is repeatable and fenced: it is sent until it is answered. A refused task belongs to another owner by then.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final
from uuid import UUID

from accsd import failpoints
from accsd.db import Answer, Done, Failed, Fence, finish_many_tasks, release_tasks
from accsd.errors import AccsdError, DatabaseUnavailable
from accsd.log import get_logger, redact
from accsd.model.outcome import ErrorCode
from accsd.retry import DATABASE_PAUSES, Backoff
from accsd.sdk.pull.attempt import Outcome, PullAttempt
from accsd.values.json import sanitise
from accsd.work.context import AttemptContext
from accsd.work.finish import GivenBack, tell_refused
from accsd.work.protocol import Infrastructure

_log = get_logger(component="pull")
_BATCH: Final = 1000

Ended = tuple[PullAttempt, Outcome]


class Finisher:
    def __init__(self, context: AttemptContext, *, when_settled: Callable[[Sequence[Ended]], None]) -> None:
        self._context: AttemptContext = context
        self._when_settled: Callable[[Sequence[Ended]], None] = when_settled
        self._ended: deque[Ended] = deque()
        self._under_way: int = 0
        self._pauses: Backoff = Backoff(*DATABASE_PAUSES)
        self._news: asyncio.Event = asyncio.Event()
        self._empty: asyncio.Event = asyncio.Event()

    def add(self, attempt: PullAttempt, outcome: Outcome) -> None:
        self._ended.append((attempt, outcome))
        self._news.set()

    async def serve(self) -> None:
        """Flushes batch by batch: a second flush beside the first cost more processors than it gained."""
        while True:
            if not self._ended:
                self._news.clear()
                await self._news.wait()
                continue
            batch = [self._ended.popleft() for _ in range(min(_BATCH, len(self._ended)))]
            self._under_way += 1
            try:
                await self._flush(batch)
            finally:
                self._under_way -= 1
                self._empty.set()

    async def emptied(self, within: timedelta) -> bool:
        """Returns whether all outcomes were answered `within` this time."""
        try:
            async with asyncio.timeout(within.total_seconds()):
                while self._ended or self._under_way:
                    self._empty.clear()
                    await self._empty.wait()
        except TimeoutError:
            return False
        return True

    async def _flush(self, batch: Sequence[Ended]) -> None:
        """Writes a batch. Tasks released for the same reason go in one call: a drain may release thousands."""
        alike: dict[Outcome | None, list[Ended]] = {}
        for each in batch:
            alike.setdefault(None if isinstance(each[1], Done | Failed) else each[1], []).append(each)
        for said in alike.values():
            await self._tell(said)

    async def _tell(self, batch: Sequence[Ended]) -> None:
        """Writes outcomes; halves a refused batch, down to the one that the database refuses, so that it does not keep
        the others out. A batch that takes longer than a statement may is halved, too."""
        try:
            answers = await self._answers(batch)
        except AccsdError as error:
            if len(batch) > 1:
                await self._tell_by_halves(batch)
            else:
                await self._not_taken(*batch[0], error)
            return
        if answers is not None:
            self._settle(batch, answers)
        elif len(batch) > 1:
            await self._tell_by_halves(batch)
        else:
            self.add(*batch[0])  # again, behind the others

    async def _tell_by_halves(self, batch: Sequence[Ended]) -> None:
        await self._tell(batch[: len(batch) // 2])
        await self._tell(batch[len(batch) // 2 :])

    async def _not_taken(self, attempt: PullAttempt, outcome: Outcome, error: AccsdError) -> None:
        _log.error("end_not_taken", outcome=type(outcome).__name__, error=str(error), exc_info=error)
        if isinstance(outcome, Infrastructure):
            self._when_settled([(attempt, outcome)])
            return
        lost = Infrastructure(ErrorCode.WORKER_LOST, f"its end could not be written: {error}")
        await self._tell([(attempt, lost)])

    async def _answers(self, batch: Sequence[Ended]) -> Mapping[UUID, Answer] | None:
        """The answers; a task without one was accepted. None: the database did not answer, and there was a pause.
        Meanwhile no heartbeat asks about these leases: it would hear that they have ended and take that for a loss."""
        attempts = [attempt for attempt, _ in batch]
        self._context.leases.let_go(*attempts)
        try:
            answers = await self._send(batch)
        except DatabaseUnavailable as error:
            self._context.metrics.finalize_failed()
            _log.warning("ends_not_told_yet", count=len(batch), error=str(error))
            self._context.leases.hold(*attempts)
            await asyncio.sleep(self._pauses.next().total_seconds())
            return None
        self._pauses.reset()
        return answers

    async def _send(self, batch: Sequence[Ended]) -> Mapping[UUID, Answer]:
        db, owner = self._context.db, self._context.name
        outcome = batch[0][1]
        if isinstance(outcome, GivenBack):
            return await release_tasks(db, _fences(batch), owner=owner, reason=outcome.reason)
        if isinstance(outcome, Infrastructure):
            reason = sanitise(redact(outcome.message))
            return await release_tasks(db, _fences(batch), owner=owner, reason=reason, lost=True, code=outcome.code)
        failpoints.hit("finish.sent")
        outcomes = [each for _, each in batch if isinstance(each, Done | Failed)]
        answers = await finish_many_tasks(db, outcomes, owner=owner, backoff_base=self._context.backoff_base)
        failpoints.hit("finish.committed")
        return answers

    def _settle(self, batch: Sequence[Ended], answers: Mapping[UUID, Answer]) -> None:
        settled: list[Ended] = []
        for each in batch:
            attempt = each[0]
            answer = answers.get(attempt.fence.task_id)
            if answer is None:
                settled.append(each)
                continue
            if answer.reason == ErrorCode.RESULT_TOO_LARGE:  # by the database's measure
                said = "its result is larger than the database takes"
                self._context.leases.hold(attempt)
                self.add(attempt, Failed(attempt.fence, ErrorCode.RESULT_TOO_LARGE, said))
                continue
            if not answer.is_effective:
                tell_refused(self._context, attempt.fence, type(each[1]).__name__, answer)
            settled.append(each)
        self._when_settled(settled)


def _fences(batch: Sequence[Ended]) -> list[Fence]:
    return [attempt.fence for attempt, _ in batch]
