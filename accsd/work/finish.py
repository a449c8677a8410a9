"""Tells the database how attempts ended: fenced, and again until it is answered. A finish is repeatable.

`tell_ends` and `instead` are for everybody. An attempt of the agent tells its own end by `AttemptFinish`, and gives up
with its lease; a service in pull mode, in which thousands end each second, gathers them (sdk/pull/finisher.py).
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, TypeAlias
from uuid import UUID

import anyio

from accsd import failpoints
from accsd.db import Answer, Done, Failed, finish_many_tasks, release_tasks
from accsd.db.answers import Verdict as AnswerVerdict
from accsd.errors import AccsdError, DatabaseUnavailable
from accsd.log import get_logger, redact
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.retry import DATABASE_PAUSES, Backoff
from accsd.values.json import sanitise
from accsd.work.context import AttemptContext
from accsd.work.lease import WatchedLease
from accsd.work.protocol import Failure, Infrastructure, Success, Verdict

_log = get_logger(component="attempt")


@dataclass(frozen=True, slots=True)
class GivenBack:
    """The task is given back and no attempt is spent: the agent stops, or the service takes no task now."""

    reason: str
    delay: timedelta | None = None  # before anybody may have it again


End: TypeAlias = Done | Failed | Infrastructure | GivenBack
"""What is written when an attempt has ended."""


async def tell_ends(context: AttemptContext, fences: Sequence[Fence], ends: Sequence[End]) -> Mapping[UUID, Answer]:
    """Writes ends of one kind: finished ones, or tasks that are released for the same reason. Returns the answers that
    are not "accepted"."""
    db, owner, first = context.db, context.name, ends[0]
    failpoints.hit("finish.sent")
    match first:
        case GivenBack():
            answers = await release_tasks(db, fences, owner=owner, reason=_clean(first.reason), delay=first.delay)
        case Infrastructure():
            reason = _clean(first.message)
            answers = await release_tasks(db, fences, owner=owner, reason=reason, lost=True, code=first.code)
        case _:
            finished = [end for end in ends if isinstance(end, Done | Failed)]
            answers = await finish_many_tasks(db, finished, owner=owner, backoff_base=context.backoff_base)
    failpoints.hit("finish.committed")
    return answers


# What is told instead of a result that the database counts as too large, whatever this process has counted.
TOO_LARGE: Final = "its result is larger than the database takes"


def instead(said: End | Verdict, error: AccsdError) -> Infrastructure | None:
    """What is told instead of an end that the database refuses to store: without an answer the task would wait for its
    lease to run out. None: nothing."""
    _log.error("end_not_taken", verdict=type(said).__name__, error=str(error), exc_info=error)
    if isinstance(said, Infrastructure):
        return None
    return Infrastructure(ErrorCode.WORKER_LOST, f"its end could not be written: {error}")


class AttemptFinish:
    def __init__(self, fence: Fence, context: AttemptContext) -> None:
        self.fence = fence
        self._context = context

    async def tell(self, verdict: Verdict | GivenBack, lease: WatchedLease) -> str:
        """Writes the end until it is answered or the lease is gone. Returns what to count it as: done, released, an
        error code, or lease_lost."""
        lease.is_being_ended = True
        said: Verdict | GivenBack | None = verdict
        pauses = Backoff(*DATABASE_PAUSES)
        while said is not None and not lease.is_gone:
            try:
                answer = await self._write(said)
            except DatabaseUnavailable as error:
                self._context.metrics.finalize_failed()
                _log.warning("end_not_told_yet", error=str(error))
                with anyio.move_on_after(pauses.next().total_seconds()):
                    await lease.gone.wait()
            except AccsdError as error:
                said = instead(said, error)
            else:
                if answer is None or answer.reason != ErrorCode.RESULT_TOO_LARGE:
                    return self._meaning(said, answer)
                said = Failure(ErrorCode.RESULT_TOO_LARGE, TOO_LARGE)
        _log.warning("abandoned", reason=lease.reason, verdict=type(said or verdict).__name__)
        return "lease_lost"

    async def _write(self, said: Verdict | GivenBack) -> Answer | None:
        """The answer of the database; None: it accepts."""
        began = time.monotonic()
        # A write that is cancelled in the middle has an unknown outcome.
        with anyio.CancelScope(shield=True):
            answer = (await tell_ends(self._context, [self.fence], [self._end(said)])).get(self.fence.task_id)
            if answer is None or answer.is_effective:
                self._context.metrics.finalized(_status(said), timedelta(seconds=time.monotonic() - began))
            return answer

    def _end(self, said: Verdict | GivenBack) -> End:
        match said:
            case Success():
                return Done(self.fence, said.results)
            case Failure():
                return Failed(self.fence, said.code, redact(said.message), said.permanent)
            case Infrastructure() | GivenBack():
                return said

    def _meaning(self, said: Verdict | GivenBack, answer: Answer | None) -> str:
        if answer is not None and not answer.is_effective:
            tell_refused(self._context, self.fence, type(said).__name__, answer)
            return "lease_lost"
        answered = AnswerVerdict.ACCEPTED if answer is None else answer.verdict
        _log.info("ended", verdict=type(said).__name__, code=_code(said), answer=answered)
        return _code(said)


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


def _clean(reason: str) -> str:
    return sanitise(redact(reason))
