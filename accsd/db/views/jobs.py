"""Jobs, their tasks and dead letters, for people. These queries only read, never lock, and never read the whole of a
large table unless asked to: no index covers a status, because that would cost every transition a HOT update.

Ages and durations are counted by the database, whose clock stamped the times.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.errors import NotFound

# A filter that few jobs pass stops after this many: about 0.1 s. The oldest open jobs are found by the narrow tables.
SCAN: Final = 100_000
_OPEN_SCAN: Final = 10_000
_SHORTEST_END: Final = 4  # digits; shorter ends match too many ids


async def clock(db: Database) -> datetime:
    """The database's time, the only one that counts."""
    return await db.fetchval("SELECT accs.clock()", repeatable=True)


# Ids


@dataclass(frozen=True, slots=True)
class Candidate:
    """A job whose id may be the one that was meant."""

    id: UUID
    workflow: str
    created_at: datetime


async def job_ids_like(db: Database, part: str, *, limit: int) -> list[Candidate]:
    """Jobs whose id begins or ends with this; newest first. No index knows the ends, so all ids are read (an
    index-only scan: 0.3 s for a million) unless the id is whole."""
    is_end = _SHORTEST_END <= len(part) < len(str(UUID(int=0)))
    rows = await db.fetch(
        """SELECT j.id, w.name AS workflow, j.created_at
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
class JobFilter:
    """The conditions of a job, all of them. `node`: one of its tasks is or was last there; `options` are among its
    own."""

    statuses: Sequence[str] = ()
    workflow: str | None = None
    since: datetime | None = None
    until: datetime | None = None
    service: str | None = None
    node: str | None = None
    error_code: str | None = None
    key: str | None = None
    by: str | None = None
    options: Mapping[str, Any] | None = None
    limit: int = 20
    scan: int = SCAN

    @property
    def is_open(self) -> bool:
        """Whether every status asked for is one of jobs in motion."""
        return bool(self.statuses) and set(self.statuses) <= {"queued", "running"}

    @property
    def is_selective(self) -> bool:
        return replace(self, limit=0, scan=0) != JobFilter(limit=0, scan=0)

    @property
    def is_a_scan(self) -> bool:
        """Whether a job may be left out because too many came after it. A key is found in an index."""
        return self.is_selective and self.key is None


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


# Any program may write jobs.created_at and scheduled_at. PostgreSQL before 17 subtracts no infinity.
_JOB_COLUMNS: Final = """
    j.id, w.name AS workflow, w.version, j.status, coalesce(j.progress, 0)::float8 AS progress, j.current_task_key,
    j.priority, j.created_at, j.scheduled_at, j.started_at, j.finished_at,
    CASE WHEN j.created_at >= '0001-01-01' AND j.created_at < '10000-01-01' THEN accs.clock() - j.created_at END AS age,
    coalesce(j.finished_at, accs.clock()) - j.started_at AS took, j.error_code, j.error_message, j.task_count,
    j.open_tasks, j.generation, j.idempotency_key, j.created_by, j.trace_id, coalesce(j.options, '{}') AS options,
    j.trigger, coalesce(j.no_cache, false) AS no_cache,
    EXISTS (SELECT FROM accs.pauses p WHERE p.kind = 'workflow' AND p.name = w.name) AS is_paused"""

# The newest jobs along jobs_order_seq. The inner LIMIT bounds how many jobs a filter may pass over; the outer one ends
# the walk as soon as it has enough.
_NEWEST: Final = "SELECT * FROM public.jobs ORDER BY order_seq DESC LIMIT $3"
# A key is in an index of its own, however old its job is.
_BY_KEY: Final = "SELECT * FROM public.jobs WHERE idempotency_key = $9 LIMIT $3"
# Jobs in motion have a row in a narrow table: those that wait longest are found there, however many came after them.
_IN_MOTION: Final = f"""
    SELECT * FROM public.jobs WHERE status = ANY ($1) AND id IN (
      (SELECT job_id FROM accs.pending_jobs ORDER BY job_id LIMIT {_OPEN_SCAN})
      UNION ALL SELECT job_id FROM accs.live
      UNION ALL SELECT t.job_id FROM (SELECT task_id FROM accs.waiting ORDER BY task_id LIMIT {_OPEN_SCAN}) o
                  JOIN public.job_tasks t ON t.id = o.task_id)"""


async def jobs(db: Database, asked: JobFilter) -> list[JobRow]:
    """The jobs that pass the filter, newest first."""
    found = _BY_KEY if asked.key is not None else _NEWEST
    newest = f"SELECT * FROM ({found}) n WHERE cardinality($1::text[]) = 0 OR status = ANY ($1)"
    source = f"({newest}) UNION ({_IN_MOTION})" if asked.is_open and asked.key is None else newest
    rows = await db.fetch(
        f"""SELECT {_JOB_COLUMNS} FROM ({source}) j JOIN public.workflows w ON w.id = j.workflow_id
             WHERE ($4::text IS NULL OR w.name = $4)
               AND ($5::timestamptz IS NULL OR j.created_at >= $5)
               AND ($6::timestamptz IS NULL OR j.created_at <= $6)
               AND ($7::jsonb IS NULL OR w.id IN (SELECT id FROM public.workflows WHERE steps @> $7))
               AND ($8::text IS NULL OR j.error_code = $8)
               AND ($9::text IS NULL OR j.idempotency_key = $9)
               AND ($10::text IS NULL OR j.created_by = $10)
               AND ($11::jsonb IS NULL OR j.options @> $11)
               AND ($12::text IS NULL OR EXISTS (
                     SELECT FROM public.job_tasks t LEFT JOIN accs.live l ON l.task_id = t.id
                      WHERE t.job_id = j.id AND coalesce(l.node, t.claimed_by) = $12))
             ORDER BY j.order_seq DESC LIMIT $2""",
        list(asked.statuses),
        asked.limit,
        asked.scan,
        asked.workflow,
        asked.since,
        asked.until,
        None if asked.service is None else [{"service": asked.service}],
        asked.error_code,
        asked.key,
        asked.by,
        None if not asked.options else dict(asked.options),
        asked.node,
        repeatable=True,
    )
    return [JobRow(**row) for row in rows]


async def has_more_than(db: Database, count: int) -> bool:
    """Whether a scan of this many jobs has left some unread."""
    return await db.fetchval(
        "SELECT EXISTS (SELECT FROM public.jobs ORDER BY order_seq DESC OFFSET $1 LIMIT 1)", count, repeatable=True
    )


async def job(db: Database, job_id: UUID) -> JobRow:
    row = await db.fetchrow(
        f"SELECT {_JOB_COLUMNS} FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id WHERE j.id = $1",
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


async def tasks_of(db: Database, job_id: UUID) -> list[TaskRow]:
    """A job's tasks in the order of the workflow."""
    rows = await db.fetch(
        """SELECT t.id, t.task_key, t.service_name AS service, t.status, t.depends_on,
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
             LEFT JOIN accs.waiting w ON w.task_id = t.id
            WHERE t.job_id = $1 ORDER BY t.step_no""",
        job_id,
        repeatable=True,
    )
    return [TaskRow(**row) for row in rows]


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
