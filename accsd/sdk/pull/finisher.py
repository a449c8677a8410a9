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

from accsd.db import Answer, Done, Failed
from accsd.errors import AccsdError, DatabaseUnavailable
from accsd.log import get_logger
from accsd.model.outcome import ErrorCode
from accsd.retry import DATABASE_PAUSES, Backoff
from accsd.sdk.pull.attempt import PullAttempt
from accsd.work.context import AttemptContext
from accsd.work.finish import TOO_LARGE, End, instead, tell_ends, tell_refused

_log = get_logger(component="pull")
_BATCH: Final = 1000

Ended = tuple[PullAttempt, End]


class Finisher:
    def __init__(self, context: AttemptContext, *, when_settled: Callable[[Sequence[Ended]], None]) -> None:
        self._context = context
        self._when_settled = when_settled
        self._ended: deque[Ended] = deque()
        self._under_way: int = 0
        self._pauses: Backoff = Backoff(*DATABASE_PAUSES)
        self._news: asyncio.Event = asyncio.Event()
        self._empty: asyncio.Event = asyncio.Event()

    def add(self, attempt: PullAttempt, end: End) -> None:
        self._ended.append((attempt, end))
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
        alike: dict[End | None, list[Ended]] = {}
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

    async def _not_taken(self, attempt: PullAttempt, end: End, error: AccsdError) -> None:
        said = instead(end, error)
        if said is None:
            self._when_settled([(attempt, end)])
        else:
            await self._tell([(attempt, said)])

    async def _answers(self, batch: Sequence[Ended]) -> Mapping[UUID, Answer] | None:
        """The answers; a task without one was accepted. None: the database did not answer, and there was a pause.
        Meanwhile no heartbeat asks about these leases: it would hear that they have ended and take that for a loss."""
        attempts = [attempt for attempt, _ in batch]
        self._context.leases.let_go(*attempts)
        try:
            ends = [end for _, end in batch]
            answers = await tell_ends(self._context, [attempt.fence for attempt in attempts], ends)
        except DatabaseUnavailable as error:
            self._context.metrics.finalize_failed()
            _log.warning("ends_not_told_yet", count=len(batch), error=str(error))
            self._context.leases.hold(*attempts)
            await asyncio.sleep(self._pauses.next().total_seconds())
            return None
        self._pauses.reset()
        return answers

    def _settle(self, batch: Sequence[Ended], answers: Mapping[UUID, Answer]) -> None:
        settled: list[Ended] = []
        for each in batch:
            attempt = each[0]
            answer = answers.get(attempt.fence.task_id)
            if answer is None:
                settled.append(each)
                continue
            if answer.reason == ErrorCode.RESULT_TOO_LARGE:
                self._context.leases.hold(attempt)
                self.add(attempt, Failed(attempt.fence, ErrorCode.RESULT_TOO_LARGE, TOO_LARGE))
                continue
            if not answer.is_effective:
                tell_refused(self._context, attempt.fence, type(each[1]).__name__, answer)
            settled.append(each)
        self._when_settled(settled)
