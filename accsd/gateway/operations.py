"""One action on many jobs or dead letters: what it would do, the small ones at once, the large ones in the background.

What a person saw in the preview is what happens: the preview names a bound in the order of submission, and nothing
newer is touched. An operation is a row; whichever gateway has its lease reads the next items behind the row's position
and calls one verb that does them, counts the answers and moves the position. So a gateway that dies in the middle
leaves a chunk that is done and counted, or not begun, and another goes on from there.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, cast
from uuid import UUID, uuid4

from accsd import failpoints
from accsd.db.answers import Verdict
from accsd.db.operations import (
    Action,
    Operation,
    advance_operation,
    leave_operation,
    operation,
    start_operation,
    take_operation,
)
from accsd.db.pool import Database
from accsd.db.views.dead_letters import LetterFilter, count_letters, list_letters, matching_letters, newest_letter
from accsd.db.views.job_list import (
    Count,
    JobFilter,
    ListPosition,
    PageBudget,
    count_jobs,
    list_jobs,
    matching_jobs,
    newest_order_seq,
)
from accsd.db.views.jobs import clock, jobs_outside, letters_outside
from accsd.errors import AccsdError, Bug, InvalidValue, NotFound, QueryTooSlow, Unavailable, VerbRefused
from accsd.gateway.query import parse
from accsd.log import get_logger
from accsd.supervisor import Pass

_log = get_logger(role="operations")

CHUNK: Final = 500  # items a transaction; an operation with no more is done within the request
MAX_IDS: Final = 100_000
_LEASE: Final = timedelta(seconds=60)  # longer than any statement of a gateway
_PAUSE: Final = timedelta(seconds=5)
_EXAMPLES: Final = 20
_LONGEST_REASON: Final = 2000
_READ: Final = PageBudget(rows=100_000, seconds=1.0)  # to find the items of one chunk
_LOOK_AGAIN: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class WantedOperation:
    """An operation as somebody asks for it: a filter with its bound, or ids."""

    action: Action
    target: JobFilter | LetterFilter | None
    ids: Sequence[str] | None
    arguments: Mapping[str, Any]
    reason: str | None

    def target_document(self) -> dict[str, Any]:
        return {"ids": list(self.ids or ())} if self.target is None else {"filter": self.target.document()}


@dataclass(frozen=True, slots=True)
class OperationPreview:
    """What an operation would act on. `wanted` has the bound: asked for again, it acts on nothing newer."""

    wanted: WantedOperation
    count: Count
    examples: Sequence[Any]

    def document(self) -> dict[str, Any]:
        return {
            "action": self.wanted.action.value,
            "target": self.wanted.target_document(),
            "count": self.count.number,
            "count_is": "exact" if self.count.is_exact else "at least",
            "examples": self.examples,
        }


async def read_wanted(db: Database, body: Mapping[str, Any], *, within: Sequence[str] | None = None) -> WantedOperation:
    """An operation as a request says it: {action, target: {ids} | {filter, until_order_seq}, reason, …}. A filter may
    say `q`. Without a bound what is there now is the bound. Raises InvalidValue, and NotFound for what the caller may
    not see."""
    known = {"action", "target", "reason", "priority", "from_step", "dry_run"}
    if unknown := next((name for name in body if name not in known), None):
        raise InvalidValue(f'an operation has no "{unknown}"', hint=f"it has {', '.join(sorted(known))}")
    action = _action(body.get("action"))
    target = body.get("target")
    if not isinstance(target, Mapping):
        raise InvalidValue("target is missing", hint='write {"ids": […]} or {"filter": {…}}')
    given = cast("Mapping[str, Any]", target)
    arguments, reason = _arguments(action, body), _reason(body.get("reason"))
    if "ids" in given:
        ids = _ids(action, given["ids"])
        await _only_within(db, action, ids, within)
        return WantedOperation(action, None, ids, arguments, reason)
    asked = await _filter(db, action, given)
    return WantedOperation(action, replace(asked, within=within), None, arguments, reason)


async def preview(db: Database, wanted: WantedOperation) -> OperationPreview:
    """What it would act on now."""
    match wanted.target:
        case JobFilter() as asked:
            examples: Sequence[Any] = (await list_jobs(db, asked, limit=_EXAMPLES)).rows
        case LetterFilter() as asked:
            examples = (await list_letters(db, asked, limit=_EXAMPLES)).rows
        case None:
            examples = list(wanted.ids or ())[:_EXAMPLES]
    return OperationPreview(wanted, await _count(db, wanted), examples)


async def _count(db: Database, wanted: WantedOperation) -> Count:
    match wanted.target:
        case JobFilter() as asked:
            return await count_jobs(db, asked)
        case LetterFilter() as asked:
            return await count_letters(db, asked)
        case None:
            return Count(len(wanted.ids or ()), is_exact=True)


@dataclass(frozen=True, slots=True)
class Chunk:
    """The next items of an operation, and where they end."""

    ids: list[str]
    position: list[Any]
    looked_at: int
    is_last: bool


async def read_chunk(
    db: Database, action: Action, target: object, ids: Sequence[str] | None, at: Any, size: int = CHUNK
) -> Chunk:
    """What lies behind a position."""
    if ids is not None:
        start = 0 if at is None else int(at[0])
        taken = list(ids[start : start + size])
        return Chunk(taken, [start + len(taken)], len(taken), start + len(taken) >= len(ids))
    if action.is_on_jobs:
        assert isinstance(target, JobFilter)
        after = None if at is None else ListPosition(int(at[0]), UUID(at[1]))
        found = await matching_jobs(db, target, after=after, limit=size, budget=_READ)
        place = [] if found.next is None else [found.next.order_seq, str(found.next.id)]
        return Chunk([str(job) for job in found.ids], place, found.scan.looked_at, found.next is None)
    assert isinstance(target, LetterFilter)
    letters = await matching_letters(db, target, after=None if at is None else int(at[0]), limit=size)
    place = [] if letters.next is None else [letters.next]
    return Chunk([str(letter) for letter in letters.ids], place, letters.scan.looked_at, letters.next is None)


async def begin(
    reads: Database, verbs: Database, wanted: WantedOperation, *, by: str, key: str | None = None
) -> Operation:
    """Starts an operation. If its items are few they are done when this returns; else it is left to the workers. If
    this process dies meanwhile it is left to them, too. Raises VerbRefused where the key belongs to another one."""
    first = await read_chunk(reads, wanted.action, wanted.target, wanted.ids, None)
    owner = f"request/{uuid4()}" if first.is_last else None
    count = Count(len(first.ids), is_exact=True) if first.is_last else await _count(reads, wanted)
    started = await start_operation(
        verbs,
        wanted.action,
        by=by,
        filter=None if wanted.target is None else wanted.target.document(),
        ids=wanted.ids,
        arguments=wanted.arguments,
        reason=wanted.reason,
        key=key,
        expected=count.number if count.is_exact else None,
        owner=owner,
        lease=_LEASE if owner else None,
    )
    if started.verdict is Verdict.REFUSED:
        raise VerbRefused("start_operation", started.reason or "unknown", subject=str(started.id))
    begun = await operation(verbs, started.id)
    if owner is None or begun.owner != owner:
        return begun
    await _advance(verbs, begun, owner, first)
    return await operation(verbs, started.id)


class OperationsWorker:
    """Does operations in the background, a chunk a pass. Several gateways may run it: each operation has one owner."""

    def __init__(self, reads: Database, verbs: Database) -> None:
        self._reads = reads
        self._verbs = verbs
        self._owner = f"worker/{uuid4()}"
        self._size: int = CHUNK  # smaller after a chunk that took too long: jobs may have thousands of tasks

    async def run_once(self) -> Pass:
        taken = await take_operation(self._verbs, self._owner, _LEASE)
        if taken is None:
            return Pass(next_due=_LOOK_AGAIN)
        try:
            chunk = await read_chunk(self._reads, taken.action, filter_of(taken), taken.ids, taken.position, self._size)
            failpoints.hit("operation.read")
            # The audit has the chunk with the operation in the place of a request.
            verbs = self._verbs.acting("http", f"operation/{taken.id}")
            answered = await _advance(verbs, taken, self._owner, chunk)
        except AccsdError as error:
            self._size = max(1, self._size // 4)
            if isinstance(error, Unavailable) and not isinstance(error, QueryTooSlow):
                raise  # the lease runs out, or this one takes it again
            # What one operation asks for must not stop the others.
            _log.warning("operation_failed", operation=str(taken.id), error=str(error))
            await leave_operation(self._verbs, taken.id, owner=self._owner, error=str(error), pause=_PAUSE)
            if isinstance(error, Bug):
                raise
            return Pass(did=f"operation {taken.id} failed: {error}", more=True)
        failpoints.hit("operation.advanced")
        self._size = min(CHUNK, self._size * 2)
        ended = ", the last" if chunk.is_last and answered else ""
        return Pass(did=f"operation {taken.id}: {taken.action.value}, {len(chunk.ids)} items{ended}", more=True)


def filter_of(taken: Operation) -> JobFilter | LetterFilter | None:
    if taken.filter is None:
        return None
    reader = JobFilter if taken.action.is_on_jobs else LetterFilter
    return reader.from_document(taken.filter)


async def _advance(verbs: Database, taken: Operation, owner: str, chunk: Chunk) -> bool:
    """Whether the chunk is done: by this call, or by one whose answer got lost. Otherwise another has the operation, or
    somebody has stopped it."""
    said = await advance_operation(
        verbs,
        taken,
        owner=owner,
        ids=chunk.ids,
        position=chunk.position,
        looked_at=chunk.looked_at,
        is_last=chunk.is_last,
        lease=_LEASE,
    )
    return said.verdict is not Verdict.REFUSED


# What a request says


def _action(value: object) -> Action:
    try:
        return Action(str(value))
    except ValueError:
        raise InvalidValue(f'"{str(value)[:40]}" is no action', hint=f"actions: {', '.join(Action)}") from None


def _arguments(action: Action, body: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {name: body[name] for name in ("priority", "from_step") if body.get(name) is not None}
    if "priority" in arguments and action is not Action.SET_PRIORITY:
        raise InvalidValue(f"{action.value} takes no priority")
    if "from_step" in arguments and action is not Action.RETRY:
        raise InvalidValue(f"{action.value} takes no from_step")
    if action is Action.SET_PRIORITY:
        priority = arguments.get("priority")
        if type(priority) is not int or not -(2**31) <= priority < 2**31:
            raise InvalidValue("priority is a whole number")
    if not isinstance(arguments.get("from_step", ""), str):
        raise InvalidValue("from_step is the key of a step")
    return arguments


def _reason(value: object) -> str | None:
    if value is not None and (not isinstance(value, str) or len(value) > _LONGEST_REASON):
        raise InvalidValue(f"reason is a text of at most {_LONGEST_REASON} characters")
    return value


def _ids(action: Action, value: object) -> list[str]:
    if not isinstance(value, list) or not value or len(cast("list[Any]", value)) > MAX_IDS:
        raise InvalidValue(f"ids is a list of 1 to {MAX_IDS} ids")
    return list(dict.fromkeys(_id(action, one) for one in cast("list[Any]", value)))


def _id(action: Action, value: object) -> str:
    try:
        if action.is_on_jobs:
            return str(UUID(str(value)))
        number = int(str(value))
    except ValueError:
        number = -1
    if not 0 <= number < 2**63:
        raise InvalidValue(f'"{str(value)[:60]}" is no id of a {"job" if action.is_on_jobs else "dead letter"}')
    return str(number)


async def _filter(db: Database, action: Action, given: Mapping[str, Any]) -> JobFilter | LetterFilter:
    document = given.get("filter")
    bound = "until_order_seq" if action.is_on_jobs else "until_id"
    if not isinstance(document, Mapping) or set(given) - {"filter", bound}:
        raise InvalidValue(f"target has ids, or filter and {bound}")
    asked = dict(cast("Mapping[str, Any]", document))
    if asked.pop("within", None) is not None:
        raise InvalidValue('a filter has no "within"')
    if bound in given:
        asked[bound] = given[bound]
    if not action.is_on_jobs:
        letters = LetterFilter.from_document(asked)
        return letters if letters.up_to is not None else replace(letters, up_to=await newest_letter(db))
    query = asked.pop("q", None)
    jobs = JobFilter.from_document(asked)
    if query:
        jobs = _both(jobs, parse(str(query), await clock(db)))
    return jobs if jobs.up_to is not None else replace(jobs, up_to=await newest_order_seq(db))


def _both(one: JobFilter, other: JobFilter) -> JobFilter:
    document, more = one.document(), other.document()
    if twice := next((name for name in document if name in more and document[name] != more[name]), None):
        raise InvalidValue(f"q and the filter say something else of {twice}")
    return JobFilter.from_document(document | more)


async def _only_within(db: Database, action: Action, ids: Sequence[str], within: Sequence[str] | None) -> None:
    """A token that is limited to some workflows sees nothing of the others."""
    if within is None:
        return
    if action.is_on_jobs:
        outside: Sequence[object] = await jobs_outside(db, [UUID(one) for one in ids], within)
    else:
        outside = await letters_outside(db, [int(one) for one in ids], within)
    if outside:
        raise NotFound(f"there is no {'job' if action.is_on_jobs else 'dead letter'} {outside[0]}")
