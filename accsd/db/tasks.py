"""The life of a task: claimed, started, kept, finished, given back. Each function is one verb of schema.sql."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from accsd.db.answers import Answer, read_answers
from accsd.db.pool import Database, Record
from accsd.model import Fence, JobTask

_CLAIMED: Final = (
    "SELECT task_id, job_id, task_key, service_name, attempt_id, attempt, max_attempts, status, params, options,"
    " given, timeout_sec, trace_id FROM"
)
_CLAIM: Final = f"{_CLAIMED} accs.claim_tasks($1, $2, $3, $4, $5, $6)"
_ADOPT: Final = f"{_CLAIMED} accs.adopt_tasks($1, $2, $3)"
_FINISH: Final = "SELECT * FROM accs.finish_tasks($1, $2, $3, $4, $5, $6, $7, $8, $9)"
_FINISH_MANY: Final = f"{_FINISH} WHERE answer <> 'accepted'"
_LONGEST_TIMEOUT_SEC: Final = 1e9  # thirty years; a step may say 1e300, which no clock of ours can count


# There may be tens of thousands of them a second: as tuples they cost a third of what frozen dataclasses do.


class ClaimedTask(NamedTuple):
    """What a claim hands over: all that is needed to run one attempt."""

    task_id: UUID
    job_id: UUID
    task_key: str
    service_name: str
    attempt_id: int
    attempt: int
    max_attempts: int
    status: str
    params: dict[str, Any]
    options: dict[str, Any]
    inputs: dict[str, Any]  # the results of the steps that it depends on, by key
    timeout: timedelta | None
    trace_id: str | None

    @property
    def fence(self) -> Fence:
        return Fence(self.task_id, self.attempt_id)


class Done(NamedTuple):
    """An attempt succeeded."""

    fence: Fence
    results: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """An attempt failed. A permanent failure is not tried again."""

    fence: Fence
    code: str
    message: str | None = None
    permanent: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far an attempt is, 0 to 1, with a word about it and what it has so far."""

    fence: Fence
    progress: float
    message: str | None = None
    results: Mapping[str, Any] | None = None


async def select_runnable(db: Database, service: str, limit: int = 100, *, node: str | None = None) -> list[JobTask]:
    """What a claim would find now, in the global order, without taking it."""
    rows = await db.fetch("SELECT * FROM accs.select_runnable($1, $2, $3)", service, limit, node, repeatable=True)
    return [JobTask.model_validate(dict(row)) for row in rows]


async def next_ordered_task(db: Database, service: str, *, node: str | None = None) -> JobTask | None:
    """The task that the next claim of this service would take."""
    found = await select_runnable(db, service, 1, node=node)
    return found[0] if found else None


async def claim_tasks(
    db: Database, service: str, *, owner: str, node: str, limit: int, lease: timedelta, start: bool = False
) -> list[ClaimedTask]:
    """Up to `limit` tasks in the global order, within the node's capacity; with `start` they are running already.

    Not repeatable: after an error ask `adopt_tasks` what was claimed before the answer was lost.
    """
    rows = await db.fetch(_CLAIM, service, owner, node, limit, lease, start)
    return [_claimed(row) for row in rows]


async def adopt_tasks(db: Database, *, owner: str, node: str, lease: timedelta) -> list[ClaimedTask]:
    """What this owner holds, its leases extended: after a restart, or after a claim whose answer was lost."""
    rows = await db.fetch(_ADOPT, owner, node, lease, repeatable=True)
    return [_claimed(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a claim of a service would find: something now, or a retry in so long (None: none waits for its time)."""

    service: str
    claimable: bool
    next_due: timedelta | None


async def agent_outlook(db: Database, *, node: str, services: Sequence[str]) -> list[Outlook]:
    """One cheap question for all services of a node. `next_due` is in the future, by the database's clock."""
    rows = await db.fetch("SELECT * FROM accs.agent_outlook($1, $2)", node, list(services), repeatable=True)
    return [Outlook(row["service"], row["claimable"], row["next_due"]) for row in rows]


async def start_tasks(db: Database, fences: Sequence[Fence], *, owner: str) -> dict[UUID, Answer]:
    rows = await db.fetch("SELECT * FROM accs.start_tasks($1, $2, $3)", *_split(fences), owner, repeatable=True)
    return read_answers(rows)


async def heartbeat(
    db: Database,
    fences: Sequence[Fence],
    *,
    owner: str,
    node: str,
    lease: timedelta,
    instance: str | None = None,
    within: float | None = None,
) -> dict[UUID, Answer]:
    """Keeps the leases and says that the node is there. A refused one is lost: stop it and write nothing.

    `instance` is the process that registered the node; NameTaken where another one has done so since.
    """
    ids, attempts = _split(fences)
    rows = await db.fetch(
        "SELECT * FROM accs.heartbeat($1, $2, $3, $4, $5, $6)",
        node,
        owner,
        ids,
        attempts,
        lease,
        instance,
        repeatable=True,
        within=within,
    )
    return read_answers(rows)


async def report_progress(db: Database, reports: Sequence[Progress], *, owner: str) -> dict[UUID, Answer]:
    ids, attempts = _split([report.fence for report in reports])
    rows = await db.fetch(
        "SELECT * FROM accs.report_progress($1, $2, $3, $4::float8[]::numeric[], $5, $6)",
        ids,
        attempts,
        owner,
        [report.progress for report in reports],
        [report.message for report in reports],
        [report.results for report in reports],
        repeatable=True,
    )
    return read_answers(rows)


async def finish_tasks(
    db: Database,
    outcomes: Sequence[Done | Failed],
    *,
    owner: str,
    backoff_base: timedelta | None = None,
) -> dict[UUID, Answer]:
    """Ends attempts, fenced. Dependants become claimable and jobs close in the same transaction."""
    rows = await db.fetch(_FINISH, *_ends(outcomes, owner, backoff_base), repeatable=True)
    return read_answers(rows)


async def finish_many_tasks(
    db: Database,
    outcomes: Sequence[Done | Failed],
    *,
    owner: str,
    backoff_base: timedelta | None = None,
) -> dict[UUID, Answer]:
    """The same for thousands: only the answers that are not "accepted", the others need not travel."""
    rows = await db.fetch(_FINISH_MANY, *_ends(outcomes, owner, backoff_base), repeatable=True)
    return read_answers(rows)


def _ends(outcomes: Sequence[Done | Failed], owner: str, backoff_base: timedelta | None) -> tuple[Any, ...]:
    ids, attempts = _split([outcome.fence for outcome in outcomes])
    base = None if backoff_base is None else backoff_base.total_seconds()
    failures = [outcome if isinstance(outcome, Failed) else None for outcome in outcomes]
    results = [outcome.results if isinstance(outcome, Done) else None for outcome in outcomes]
    # NULL where it says the same: an array costs its reader and its writer for each element
    given = results if any(result is not None for result in results) else None
    if not any(failures):
        return ids, attempts, owner, None, given, None, None, None, base
    return (
        ids,
        attempts,
        owner,
        ["done" if failed is None else "error" for failed in failures],
        given,
        [failed and failed.code for failed in failures],
        [failed and failed.message for failed in failures],
        [failed and failed.permanent for failed in failures],
        base,
    )


async def release_tasks(
    db: Database,
    fences: Sequence[Fence],
    *,
    owner: str,
    reason: str | None = None,
    lost: bool = False,
    delay: timedelta | None = None,
    code: str = "worker_lost",
) -> dict[UUID, Answer]:
    """Gives tasks back without spending an attempt; `lost` counts among the owners lost, which are bounded.

    `code` says what was lost (image_missing, agent_disk …) and `reason` tells it: they become the task's error.
    """
    ids, attempts = _split(fences)
    rows = await db.fetch(
        "SELECT * FROM accs.release_tasks($1, $2, $3, $4, $5, $6, $7)",
        ids,
        attempts,
        owner,
        reason,
        lost,
        delay,
        code,
        repeatable=True,
    )
    return read_answers(rows)


async def reclaim_tasks(
    db: Database, *, limit: int = 100, grace: timedelta = timedelta(seconds=1)
) -> dict[UUID, Answer]:
    """Takes back what its owner has not kept."""
    rows = await db.fetch("SELECT * FROM accs.reclaim_tasks($1, $2)", limit, grace, repeatable=True)
    return read_answers(rows)


async def skip_tasks(db: Database, task_ids: Sequence[UUID], *, reason: str = "condition_false") -> dict[UUID, Answer]:
    """Skipped steps satisfy the steps that depend on them."""
    rows = await db.fetch("SELECT * FROM accs.skip_tasks($1, $2)", list(task_ids), reason, repeatable=True)
    return read_answers(rows)


async def recheck_holds(db: Database) -> int:
    """The net under pauses and keys: frees what nothing holds any more, and says how many."""
    return await db.fetchval("SELECT accs.recheck_holds()", repeatable=True)


# One task at a time, under the names of the original library.


async def mark_task_running(db: Database, fence: Fence, *, owner: str) -> Answer:
    return (await start_tasks(db, [fence], owner=owner))[fence.task_id]


async def mark_task_done(db: Database, fence: Fence, *, owner: str, results: Mapping[str, Any] | None = None) -> Answer:
    return (await finish_tasks(db, [Done(fence, results)], owner=owner))[fence.task_id]


async def mark_task_error(
    db: Database,
    fence: Fence,
    *,
    owner: str,
    code: str,
    message: str | None = None,
    permanent: bool = False,
    backoff_base: timedelta | None = None,
) -> Answer:
    failed = Failed(fence, code, message, permanent)
    return (await finish_tasks(db, [failed], owner=owner, backoff_base=backoff_base))[fence.task_id]


async def update_task_progress(
    db: Database, fence: Fence, progress: float, *, owner: str, message: str | None = None
) -> Answer:
    return (await report_progress(db, [Progress(fence, progress, message)], owner=owner))[fence.task_id]


def _split(fences: Sequence[Fence]) -> tuple[list[UUID], list[int]]:
    return [fence.task_id for fence in fences], [fence.attempt_id for fence in fences]


def _claimed(row: Record) -> ClaimedTask:
    task, job, key, service, attempt_id, attempt, most, status, params, options, given, timeout_sec, trace = row
    timeout = None if timeout_sec is None else timedelta(seconds=min(timeout_sec, _LONGEST_TIMEOUT_SEC))
    inputs: dict[str, Any] = (given.get("inputs") or {}) if given else {}
    return ClaimedTask(
        task, job, key, service, attempt_id, attempt, most, status, params or {}, options or {}, inputs, timeout, trace
    )
