"""Claims tasks in the global order, adopts them after a restart, and looks at them without taking them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from accsd.db.pool import Database, Record
from accsd.model import Fence, JobTask

_CLAIMED: Final = (
    "SELECT task_id, job_id, task_key, service_name, attempt_id, attempt, max_attempts, status, params, options,"
    " given, timeout_sec, trace_id, trigger, output_schema FROM"
)
_CLAIM: Final = f"{_CLAIMED} accs.claim_tasks($1, $2, $3, $4, $5, $6)"
_ADOPT: Final = f"{_CLAIMED} accs.adopt_tasks($1, $2, $3)"
_LONGEST_TIMEOUT_SEC: Final = 1e9  # thirty years; a step may say 1e300, which no clock here can count


# There may be tens of thousands of claimed tasks a second: tuples cost a third of frozen dataclasses.


class ClaimedTask(NamedTuple):
    """A claimed task: all that is needed to run one attempt."""

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
    inputs: dict[str, Any]  # the results of the steps that the task depends on, by key
    timeout: timedelta | None
    trace_id: str | None
    trigger: dict[str, Any] | None = None  # what started the job, where that was not a plain submission
    tool: str | None = None  # that its step uses, with its version, where something of it is checked or done here
    output_schema: dict[str, Any] | None = None  # of that tool
    secrets: Sequence[Mapping[str, Any]] = ()  # what is missing in params: {at, name}
    resolved_at: str | None = None
    omitted: Sequence[str] = ()  # the steps whose results are not in `inputs`, because they are too large

    @property
    def fence(self) -> Fence:
        return Fence(self.task_id, self.attempt_id)


async def select_runnable(db: Database, service: str, limit: int = 100, *, node: str | None = None) -> list[JobTask]:
    """The tasks that a claim would find now, in the global order, without taking them."""
    rows = await db.fetch("SELECT * FROM accs.select_runnable($1, $2, $3)", service, limit, node, repeatable=True)
    return [JobTask.model_validate(dict(row)) for row in rows]


async def next_ordered_task(db: Database, service: str, *, node: str | None = None) -> JobTask | None:
    """The task that the next claim of this service would take."""
    found = await select_runnable(db, service, 1, node=node)
    return found[0] if found else None


async def claim_tasks(
    db: Database, service: str, *, owner: str, node: str, limit: int, lease: timedelta, start: bool = False
) -> list[ClaimedTask]:
    """Claims up to `limit` tasks in the global order, within the node's capacity; with `start` they are running
    already.

    Not repeatable: after an error ask `adopt_tasks` what was claimed before the answer was lost.
    """
    rows = await db.fetch(_CLAIM, service, owner, node, limit, lease, start)
    return [_claimed(row) for row in rows]


async def adopt_tasks(db: Database, *, owner: str, node: str, lease: timedelta) -> list[ClaimedTask]:
    """The tasks of this owner, their leases extended: after a restart, or after a claim whose answer was lost."""
    rows = await db.fetch(_ADOPT, owner, node, lease, repeatable=True)
    return [_claimed(row) for row in rows]


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a claim of a service would find: something now, or a retry after `next_due` (None: no retry waits)."""

    service: str
    claimable: bool
    next_due: timedelta | None


async def agent_outlook(db: Database, *, node: str, services: Sequence[str]) -> list[Outlook]:
    """Asks once, cheaply, for all services of a node. `next_due` is in the future, by the database's clock."""
    rows = await db.fetch("SELECT * FROM accs.agent_outlook($1, $2)", node, list(services), repeatable=True)
    return [Outlook(row["service"], row["claimable"], row["next_due"]) for row in rows]


def _claimed(row: Record) -> ClaimedTask:
    (
        task,
        job,
        key,
        service,
        attempt_id,
        attempt,
        most,
        status,
        params,
        options,
        given,
        timeout_sec,
        trace,
        cause,
        out,
    ) = row
    timeout = None if timeout_sec is None else timedelta(seconds=min(timeout_sec, _LONGEST_TIMEOUT_SEC))
    inputs: dict[str, Any] = (given.get("inputs") or {}) if given else {}
    claimed = ClaimedTask(
        task,
        job,
        key,
        service,
        attempt_id,
        attempt,
        most,
        status,
        params or {},
        options or {},
        inputs,
        timeout,
        trace,
        cause,
    )
    if given and ("tool" in given or "secrets" in given or "omitted" in given):
        claimed = claimed._replace(
            tool=given.get("tool"),
            output_schema=out,
            secrets=given.get("secrets") or (),
            resolved_at=given.get("now"),
            omitted=given.get("omitted") or (),
        )
    return claimed
