"""Tells the database how an attempt ended: fenced, again and again until it is answered or the lease is gone."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

import anyio

from accsd import failpoints
from accsd.db import Answer, Done, Failed, finish_tasks, release_tasks
from accsd.errors import AccsdError, DatabaseUnavailable
from accsd.log import get_logger, redact
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.retry import DATABASE_PAUSES, Backoff
from accsd.work.context import AttemptContext
from accsd.work.lease import WatchedLease
from accsd.work.protocol import Failure, Infrastructure, Success, Verdict

_log = get_logger(component="attempt")


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The task is given back and no attempt is spent: the agent stops, or the service takes no task now."""

    reason: str


class AttemptFinish:
    def __init__(self, fence: Fence, context: AttemptContext) -> None:
        self.fence: Fence = fence
        self._context: AttemptContext = context

    async def tell(self, verdict: Verdict | GivenBack, lease: WatchedLease) -> str:
        """Writes the end. Returns what to count it as: done, released, an error code, or lease_lost."""
        lease.is_being_ended = True
        answer = await self._until_answered(verdict, lease)
        if answer is not None and answer.reason == ErrorCode.RESULT_TOO_LARGE:
            # as the database counts it: that may differ from the count of this process
            verdict = Failure(ErrorCode.RESULT_TOO_LARGE, "its result is larger than the database takes")
            answer = await self._until_answered(verdict, lease)
        if answer is None:
            _log.warning("abandoned", reason=lease.reason, verdict=type(verdict).__name__)
            return "lease_lost"
        if not answer.is_effective:
            tell_refused(self._context, self.fence, type(verdict).__name__, answer)
            return "lease_lost"
        _log.info("ended", verdict=type(verdict).__name__, code=_code(verdict), answer=answer.verdict)
        return _code(verdict)

    async def _until_answered(self, verdict: Verdict | GivenBack, lease: WatchedLease) -> Answer | None:
        """Writes until the database answers. An end that the database refuses to store is told as a loss: without an
        answer the task would wait for its lease to run out."""
        pauses = Backoff(*DATABASE_PAUSES)
        while not lease.is_gone:
            try:
                # A write that is cancelled in the middle has an unknown outcome.
                with anyio.CancelScope(shield=True):
                    return await self._write(verdict)
            except DatabaseUnavailable as error:
                self._context.metrics.finalize_failed()
                _log.warning("end_not_told_yet", error=str(error))
                with anyio.move_on_after(pauses.next().total_seconds()):
                    await lease.gone.wait()
            except AccsdError as error:
                _log.error("end_not_taken", verdict=type(verdict).__name__, error=str(error), exc_info=error)
                if isinstance(verdict, Infrastructure):
                    return None
                verdict = Infrastructure(ErrorCode.WORKER_LOST, f"its end could not be written: {error}")
        return None

    async def _write(self, verdict: Verdict | GivenBack) -> Answer:
        began = time.monotonic()
        failpoints.hit("finish.sent")
        answers = await self._call(verdict)
        failpoints.hit("finish.committed")
        answer = answers[self.fence.task_id]
        if answer.is_effective:
            self._context.metrics.finalized(_status(verdict), timedelta(seconds=time.monotonic() - began))
        return answer

    async def _call(self, verdict: Verdict | GivenBack) -> Mapping[UUID, Answer]:
        db, owner, base = self._context.db, self._context.name, self._context.backoff_base
        match verdict:
            case Success():
                return await finish_tasks(db, [Done(self.fence, verdict.results)], owner=owner, backoff_base=base)
            case Failure():
                failed = Failed(self.fence, verdict.code, redact(verdict.message), verdict.permanent)
                return await finish_tasks(db, [failed], owner=owner, backoff_base=base)
            case Infrastructure():
                return await release_tasks(
                    db, [self.fence], owner=owner, reason=redact(verdict.message), lost=True, code=verdict.code
                )
            case GivenBack():
                return await release_tasks(db, [self.fence], owner=owner, reason=redact(verdict.reason))


def tell_refused(context: AttemptContext, fence: Fence, what: str, answer: Answer) -> None:
    """Reports a refusal: the database said no, why, and what it holds."""
    context.metrics.refused(answer.reason)
    held = answer.held
    _log.warning(
        "refused",
        task_id=str(fence.task_id),
        attempt_id=fence.attempt_id,
        what=what,
        reason=answer.reason,
        db_status=held.status,
        db_attempt_id=held.attempt_id,
        db_lease_owner=held.lease_owner,
        db_lease_until=None if held.lease_until is None else held.lease_until.isoformat(),
    )


def _code(verdict: Verdict | GivenBack) -> str:
    match verdict:
        case Success():
            return "done"
        case GivenBack():
            return "released"
        case Failure() | Infrastructure():
            return verdict.code


def _status(verdict: Verdict | GivenBack) -> str:
    match verdict:
        case Success():
            return "done"
        case Failure():
            return "error"
        case Infrastructure() | GivenBack():
            return "released"
