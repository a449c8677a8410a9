"""One job, its tasks, and dead letters, for people; job_list has the lists of jobs. These queries only read, never
lock, and never read the whole of a large table unless asked to: no index covers a status, because that would cost every
transition a HOT update.

Ages and durations are counted by the database, whose clock stamped the times.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from accsd.db.pool import Database
from accsd.errors import NotFound

# Whether the workflow w has the name p.name, which may end in *.
FITS: Final = "CASE WHEN right(p.name, 1) = '*' THEN starts_with(w.name, left(p.name, -1)) ELSE w.name = p.name END"
_SHORTEST_END: Final = 4  # digits; shorter ends match too many ids


async def clock(db: Database) -> datetime:
    """The database's time, the only one that counts."""
    return await db.fetchval("SELECT accs.clock()", repeatable=True)


# Ids


# Any program may write jobs.created_at and scheduled_at. PostgreSQL before 17 subtracts no infinity.
_AGE: Final = (
    "CASE WHEN j.created_at >= '0001-01-01' AND j.created_at < '10000-01-01' THEN accs.clock() - j.created_at END"
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job whose id may be the one that was meant."""

    id: UUID
    workflow: str
    age: timedelta | None  # since its submission; None where that is too far off for a program to count


async def job_ids_like(db: Database, part: str, *, limit: int) -> list[Candidate]:
    """Jobs whose id begins or ends with this; newest first. No index knows the ends, so all ids are read (an
    index-only scan: 0.3 s for a million) unless the id is whole."""
    is_end = _SHORTEST_END <= len(part) < len(str(UUID(int=0)))
    rows = await db.fetch(
        f"""SELECT j.id, w.name AS workflow, {_AGE} AS age
             FROM ((SELECT id FROM public.jobs WHERE id BETWEEN $1 AND $2 ORDER BY id DESC LIMIT $4)
                   UNION
                   (SELECT id FROM public.jobs WHERE $3::text IS NOT NULL AND right(id::text, length($3)) = $3
                     ORDER BY id DESC LIMIT $4)) found
             JOIN public.jobs j USING (id) JOIN public.workflows w ON w.id = j.workflow_id
            ORDER BY j.id DESC LIMIT $4""",
        *_range(part),
        part if is_end else None,
        limit,
        repeatable=True,
    )
    return [Candidate(**row) for row in rows]


async def task_ids_like(db: Database, beginning: str, *, limit: int) -> list[UUID]:
    """Tasks whose id begins with this."""
    rows = await db.fetch(
        "SELECT id FROM public.job_tasks WHERE id BETWEEN $1 AND $2 ORDER BY id LIMIT $3",
        *_range(beginning),
        limit,
        repeatable=True,
    )
    return [row[0] for row in rows]


async def task_ids_of(db: Database, job_id: UUID) -> dict[str, UUID]:
    """The ids of a job's tasks by step, in the order of the workflow."""
    rows = await db.fetch(
        "SELECT task_key, id FROM public.job_tasks WHERE job_id = $1 ORDER BY step_no", job_id, repeatable=True
    )
    return {row["task_key"]: row["id"] for row in rows}


def _range(beginning: str) -> tuple[UUID, UUID]:
    """The first and the last UUID with this beginning, whether the hyphens were typed or not."""
    digits = beginning.replace("-", "")[:32]
    return UUID(digits.ljust(32, "0")), UUID(digits.ljust(32, "f"))


# Jobs


@dataclass(frozen=True, slots=True)
class JobRow:
    """One line of a list. `age` counts from the submission, None where that is a FarTime; `took` from the start until
    the end or now."""

    id: UUID
    workflow: str
    version: int
    status: str
    progress: float
    current_task_key: str | None
    priority: int
    created_at: datetime
    scheduled_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    age: timedelta | None
    took: timedelta | None
    error_code: str | None
    error_message: str | None
    task_count: int
    open_tasks: int
    generation: int
    idempotency_key: str | None
    created_by: str | None
    trace_id: str | None
    options: dict[str, Any]
    trigger: dict[str, Any] | None
    no_cache: bool
    is_paused: bool  # whether its workflow is paused


JOB_COLUMNS: Final = f"""
    j.id, w.name AS workflow, w.version, j.status, coalesce(j.progress, 0)::float8 AS progress, j.current_task_key,
    j.priority, j.created_at, j.scheduled_at, j.started_at, j.finished_at,
    {_AGE} AS age,
    coalesce(j.finished_at, accs.clock()) - j.started_at AS took, j.error_code, j.error_message, j.task_count,
    j.open_tasks, j.generation, j.idempotency_key, j.created_by, j.trace_id, coalesce(j.options, '{{}}') AS options,
    j.trigger, coalesce(j.no_cache, false) AS no_cache,
    EXISTS (SELECT FROM accs.pauses p WHERE p.kind = 'workflow' AND p.name = w.name) AS is_paused"""


async def job(db: Database, job_id: UUID) -> JobRow:
    row = await db.fetchrow(
        f"SELECT {JOB_COLUMNS} FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id WHERE j.id = $1",
        job_id,
        repeatable=True,
    )
    if row is None:
        raise NotFound(f"there is no job {job_id}", hint="`accsd jobs` lists the newest jobs")
    return JobRow(**row)


async def job_status(db: Database, job_id: UUID) -> str | None:
    return await db.fetchval("SELECT status FROM public.jobs WHERE id = $1", job_id, repeatable=True)


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One step of a job. `node` is where it runs, or ran last; `hold` is what keeps a queued one (accs.waiting)."""

    id: UUID
    task_key: str
    service: str
    status: str
    depends_on: list[str]
    progress: float
    attempt: int
    max_attempts: int
    attempt_id: int
    lost: int
    generation: int
    node: str | None
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    took: timedelta | None  # of its last attempt, from the claim on, as in the list of attempts
    next_attempt_at: datetime | None
    due_in: timedelta | None
    remaining: int
    hold: str | None
    error_code: str | None
    error_message: str | None
    params: dict[str, Any] | None
    results: dict[str, Any] | None
    fails_everywhere: str | None  # why its step counts as failing on every node
    outcome: str | None  # of its last attempt
    items: int | None  # of a step that was multiplied: how many tasks it became
    parent: UUID | None  # of such a task: the step that became it
    item_no: int | None
    tolerated: bool  # it failed for good, and the steps below go on without it
    cached: dict[str, Any] | None  # whose result it is done with: job_id, task_id, finished_at

    @property
    def is_delayed(self) -> bool:
        """Whether its step says when it begins; else a failure does (accs.is_delayed)."""
        return self.hold == "backoff" and self.attempt == 0 and self.lost == 0 and self.outcome != "released"


_TASKS: Final = """
    SELECT t.id, t.task_key, t.service_name AS service, t.status, t.depends_on,
           coalesce(t.progress, 0)::float8 AS progress, t.attempt, t.max_attempts, t.attempt_id, t.lost,
           t.generation, coalesce(l.node, t.claimed_by) AS node, t.claimed_at, t.started_at, t.finished_at,
           coalesce(t.finished_at, CASE WHEN t.lease_owner IS NOT NULL THEN accs.clock() END)
             - t.claimed_at AS took,
           t.next_attempt_at, t.next_attempt_at - accs.clock() AS due_in, t.remaining, w.hold,
           t.error_code, t.error_message, t.params, t.results, h.reason AS fails_everywhere, t.outcome, t.items,
           t.parent, t.item_no, coalesce(t.tolerated, false) AS tolerated,
           CASE WHEN t.status = 'done' AND t.claimed_by IS NULL THEN t.given -> 'cached' END AS cached
      FROM public.job_tasks t JOIN public.jobs j ON j.id = t.job_id LEFT JOIN accs.live l ON l.task_id = t.id
      LEFT JOIN accs.step_health h ON h.workflow_id = j.workflow_id AND h.task_key = t.task_key
      LEFT JOIN accs.waiting w ON w.task_id = t.id """


async def tasks_of(
    db: Database, job_id: UUID, *, limit: int | None = None, offset: int = 0, key: str | None = None
) -> list[TaskRow]:
    """A job's tasks in the order of the workflow, all of them or a page; or the one with this key."""
    rows = await db.fetch(
        f"""{_TASKS} WHERE t.job_id = $1 {"" if key is None else "AND t.task_key = $4"}
            ORDER BY t.step_no LIMIT $2 OFFSET $3""",
        job_id,
        limit,
        offset,
        *(() if key is None else (key,)),
        repeatable=True,
    )
    return [TaskRow(*row) for row in rows]  # the columns are in the order of the fields


class TaskSketch(NamedTuple):
    """As much of a task as a graph shows. (A tuple: a job may have 100,000 of them.)"""

    id: UUID
    key: str
    service: str
    state: str  # its status, or backoff
    depends_on: Sequence[str]  # none, for an item
    parent: UUID | None


async def sketches_of(db: Database, job_id: UUID) -> list[TaskSketch]:
    """All tasks of a job in the order of the workflow."""
    rows = await db.fetch(
        """SELECT t.id, t.task_key, t.service_name, CASE WHEN w.hold = 'backoff' THEN 'backoff' ELSE t.status END,
                  CASE WHEN t.parent IS NULL THEN t.depends_on ELSE '{}' END, t.parent
             FROM public.job_tasks t LEFT JOIN accs.waiting w ON w.task_id = t.id
            WHERE t.job_id = $1 ORDER BY t.step_no""",
        job_id,
        repeatable=True,
    )
    return [TaskSketch._make(row) for row in rows]


async def task(db: Database, task_id: UUID) -> TaskRow:
    row = await db.fetchrow(f"{_TASKS} WHERE t.id = $1", task_id, repeatable=True)
    if row is None:
        raise NotFound(f"there is no task {task_id}", hint="`accsd job JOB -o json` lists the tasks of a job")
    return TaskRow(**row)


async def last_good(db: Database, job_id: UUID, *, scan: int = 100_000) -> UUID | None:
    """The newest job of the same workflow, of any version, that was submitted before this one and is done."""
    return await db.fetchval(
        """SELECT n.id FROM (SELECT j.id, j.workflow_id, j.status FROM public.jobs j
                              WHERE j.order_seq < (SELECT order_seq FROM public.jobs WHERE id = $1)
                              ORDER BY j.order_seq DESC LIMIT $2) n
             JOIN public.workflows w ON w.id = n.workflow_id
            WHERE n.status = 'done' AND w.name = (SELECT o.name FROM public.jobs j JOIN public.workflows o
                                                      ON o.id = j.workflow_id WHERE j.id = $1)
            LIMIT 1""",
        job_id,
        scan,
        repeatable=True,
    )


# Dead letters


@dataclass(frozen=True, slots=True)
class DeadLetterRow:
    """A task that ended in error. It is open until it is redriven or dismissed."""

    id: int
    job_id: UUID
    workflow: str
    task_key: str
    service: str
    reason: str
    error_code: str | None
    error_message: str | None
    created_at: datetime
    age: timedelta
    redriven_at: datetime | None
    dismissed_at: datetime | None


async def dead_letters(
    db: Database, *, service: str | None = None, settled: bool = False, limit: int = 100
) -> list[DeadLetterRow]:
    """The open dead letters, along dead_letters_open, or all of them; newest first."""
    rows = await db.fetch(
        f"""SELECT d.id, d.job_id, w.name AS workflow, t.task_key, d.service_name AS service, d.reason, d.error_code,
                   d.error_message, d.created_at, accs.clock() - d.created_at AS age, d.redriven_at, d.dismissed_at
              FROM public.dead_letters d JOIN public.job_tasks t ON t.id = d.job_task_id
              JOIN public.jobs j ON j.id = d.job_id JOIN public.workflows w ON w.id = j.workflow_id
             WHERE {"true" if settled else "d.redriven_at IS NULL AND d.dismissed_at IS NULL"}
               AND ($1::text IS NULL OR d.service_name = $1)
             ORDER BY d.id DESC LIMIT $2""",
        service,
        limit,
        repeatable=True,
    )
    return [DeadLetterRow(**row) for row in rows]


async def is_open(db: Database, job_id: UUID, step: str | None) -> bool:
    """Whether more may come: the job, or the named step with its items, has not ended."""
    return await db.fetchval(
        """SELECT status IN ('queued', 'starting', 'running') FROM public.jobs WHERE id = $1 AND $2::text IS NULL
           UNION ALL
           SELECT EXISTS (
             SELECT FROM public.job_tasks
              WHERE job_id = $1 AND status IN ('queued', 'starting', 'running') AND (task_key = $2 OR parent = (
                    SELECT id FROM public.job_tasks WHERE job_id = $1 AND task_key = $2)))
            WHERE $2 IS NOT NULL""",
        job_id,
        step,
        repeatable=True,
    )


# What a caller that is limited to some workflows may not see


async def jobs_outside(db: Database, job_ids: Sequence[UUID], within: Sequence[str]) -> list[UUID]:
    """Of these jobs those whose workflow's name fits none of these."""
    rows = await db.fetch(
        f"""SELECT j.id FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id
            WHERE j.id = ANY ($1)
              AND NOT EXISTS (SELECT FROM unnest($2::text[]) AS p (name) WHERE {FITS})
            ORDER BY j.id LIMIT 10""",
        list(job_ids),
        list(within),
        repeatable=True,
    )
    return [row[0] for row in rows]


async def letters_outside(db: Database, letter_ids: Sequence[int], within: Sequence[str]) -> list[int]:
    rows = await db.fetch(
        f"""SELECT d.id FROM public.dead_letters d JOIN public.jobs j ON j.id = d.job_id
             JOIN public.workflows w ON w.id = j.workflow_id
            WHERE d.id = ANY ($1)
              AND NOT EXISTS (SELECT FROM unnest($2::text[]) AS p (name) WHERE {FITS})
            ORDER BY d.id LIMIT 10""",
        list(letter_ids),
        list(within),
        repeatable=True,
    )
    return [row[0] for row in rows]
