"""What happened in a job, for people: its events, its attempts as told by the events, and its log lines."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from accsd.db.history import LineSource, events_source
from accsd.db.pool import Database
from accsd.errors import NotFound
from accsd.model.state import EventType


@dataclass(frozen=True, slots=True)
class EventRow:
    """One line of a timeline. `since` counts from the job's submission."""

    id: int
    ts: datetime
    since: timedelta
    job_task_id: UUID | None
    task_key: str | None
    attempt_id: int | None
    source: str
    level: str
    type: str
    message: str | None
    data: Any


_EVENTS: Final = """
    {before}
    SELECT e.id, e.ts, CASE WHEN isfinite(j.created_at) THEN e.ts - j.created_at ELSE '0' END AS since,
           e.job_task_id, t.task_key, e.attempt_id, e.source, e.level, e.type, e.message, e.data
      FROM {table} e JOIN public.jobs j ON j.id = e.job_id
      LEFT JOIN public.job_tasks t ON t.id = e.job_task_id
     WHERE e.job_id = $1 """


def _events_in(source: LineSource) -> str:
    return _EVENTS.format(before=source.before, table=source.table)


# Events of a running task, and those for programs: there may be thousands for each change of state.
_CHATTER: Final = """(e.type IN ('log', 'progress') OR e.level = 'debug'
                      OR e.type = 'artifact' AND coalesce(e.data ->> 'kind', '') = 'log')"""


async def newest_events(
    db: Database, job_id: UUID, limit: int, archived: Sequence[str] = (), *, chatter: bool = True
) -> list[EventRow]:
    """The newest events, in the order in which they happened. Along task_events_job. `archived`: the job's events that
    have left the database, as lines. Without `chatter` only changes of state."""
    source = events_source(archived, 3)
    rows = await db.fetch(
        f"""{_events_in(source)} {"" if chatter else f"AND NOT {_CHATTER}"}
            ORDER BY e.ts DESC, e.id DESC LIMIT $2""",
        job_id,
        limit,
        *source.arguments,
        repeatable=True,
    )
    return [EventRow(**row) for row in reversed(rows)]


async def count_events(db: Database, job_id: UUID, archived: Sequence[str] = ()) -> dict[str, int]:
    """The number of events of each type."""
    source = events_source(archived, 2)
    rows = await db.fetch(
        f"{source.before} SELECT type, count(*) AS n FROM {source.table} WHERE job_id = $1 GROUP BY type",
        job_id,
        *source.arguments,
        repeatable=True,
    )
    return {row["type"]: row["n"] for row in rows}


async def events_from(db: Database, job_id: UUID, since: datetime, seen: Sequence[int], limit: int) -> list[EventRow]:
    """Events since a moment that are not among `seen`. By time, because the index and the partitions know it; ids
    alone would miss an event whose transaction began earlier and ended later."""
    rows = await db.fetch(
        f"{_events_in(events_source((), 0))} AND e.ts >= $2 AND e.id <> ALL ($3) ORDER BY e.ts, e.id LIMIT $4",
        job_id,
        since,
        list(seen),
        limit,
        repeatable=True,
    )
    return [EventRow(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class PlainEvent:
    """A task event of any job."""

    id: int
    ts: datetime
    job_id: UUID
    job_task_id: UUID | None
    attempt_id: int | None
    source: str
    level: str
    type: str
    message: str | None
    data: Any


async def events_after(db: Database, after: int, limit: int) -> list[PlainEvent]:
    """Events of all jobs after an id, in the order of ids; along the index on ids."""
    rows = await db.fetch(
        """SELECT id, ts, job_id, job_task_id, attempt_id, source, level, type, message, data
             FROM public.task_events WHERE id > $1 ORDER BY id LIMIT $2""",
        after,
        limit,
        repeatable=True,
    )
    return [PlainEvent(**dict(row)) for row in rows]


class TransitionRow(NamedTuple):
    """One change of a task's state. (A tuple: a replay may have 400,000 of them.)"""

    ts: datetime
    task_key: str
    status: str


async def transitions_of(
    db: Database, job_id: UUID, archived: Sequence[str] = (), *, limit: int
) -> list[TransitionRow]:
    """Every change of state of a job's tasks, in order. A task is queued from its making on, which is no event:
    tasks_made has that."""
    source = events_source(archived, 3)
    rows = await db.fetch(
        f"""{source.before}
            SELECT e.ts, t.task_key, e.data ->> 'to' AS status
              FROM {source.table} e JOIN public.job_tasks t ON t.id = e.job_task_id
             WHERE e.job_id = $1 AND e.type IN ('status', 'retry') AND e.data ? 'to' ORDER BY e.ts, e.id LIMIT $2""",
        job_id,
        limit,
        *source.arguments,
        repeatable=True,
    )
    return [TransitionRow._make(row) for row in rows]  # the columns are in the order of the fields


async def tasks_made(db: Database, job_id: UUID) -> dict[str, datetime]:
    """When each task of a job was made, by its key, in the order of the workflow: items of a step are made when it is
    resolved."""
    rows = await db.fetch(
        "SELECT task_key, created_at FROM public.job_tasks WHERE job_id = $1 ORDER BY step_no", job_id, repeatable=True
    )
    return {row[0]: row[1] for row in rows}


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """One attempt, as told by its events. `outcome`: done, error, released, lost, cancelled; None: it runs."""

    task_key: str
    attempt_id: int
    node: str | None
    claimed_at: datetime
    ended_at: datetime | None
    took: timedelta
    outcome: str | None
    error_code: str | None
    message: str | None


_CLAIM: Final = "type = 'status' AND data ->> 'to' = 'starting'"
_END: Final = "type IN ('status', 'retry') AND data ->> 'to' NOT IN ('starting', 'running')"
# The newest claims with their ends. In the table each end is found by the job's index, from its claim on, and little
# more is read than is shown. Archived lines have no index: they are sorted once, and the end of each claim is the row
# after it.
_BY_INDEX: Final = f"""
    SELECT c.*, e.ts AS ended_at, e.data AS end_data, e.message AS end_message
      FROM (SELECT id, job_task_id, attempt_id, ts, data FROM public.task_events WHERE job_id = $1 AND {_CLAIM}
             ORDER BY ts DESC, id DESC LIMIT $2) c
      LEFT JOIN LATERAL (
        SELECT ts, data, message FROM public.task_events e
         WHERE e.job_id = $1 AND e.ts >= c.ts AND e.job_task_id = c.job_task_id AND e.attempt_id = c.attempt_id
           AND {_END}
         ORDER BY ts, id LIMIT 1) e ON true"""
_SORTED: Final = f"""
    SELECT * FROM (
      SELECT id, job_task_id, attempt_id, ts, data, is_claim, lead(ts) OVER story AS ended_at,
             lead(data) OVER story AS end_data, lead(message) OVER story AS end_message
        FROM (SELECT *, {_CLAIM} AS is_claim FROM history) h WHERE is_claim OR {_END}
      WINDOW story AS (PARTITION BY job_task_id, attempt_id ORDER BY ts, is_claim DESC, id)) c
     WHERE is_claim ORDER BY ts DESC, id DESC LIMIT $2"""


async def attempts_of(db: Database, job_id: UUID, limit: int, archived: Sequence[str] = ()) -> list[AttemptRow]:
    """The newest attempts, in the order of their claims."""
    source = events_source(archived, 3)
    rows = await db.fetch(
        f"""{source.before}
           SELECT t.task_key, c.attempt_id, c.data ->> 'node' AS node, c.ts AS claimed_at,
                  c.ended_at, coalesce(c.ended_at, accs.clock()) - c.ts AS took,
                  coalesce(c.end_data ->> 'outcome', c.end_data ->> 'to') AS outcome,
                  c.end_data ->> 'error_code' AS error_code,
                  CASE WHEN c.end_data ->> 'outcome' IS NOT NULL THEN c.end_message END AS message
             FROM ({_SORTED if archived else _BY_INDEX}) c JOIN public.job_tasks t ON t.id = c.job_task_id
            ORDER BY c.ts, t.step_no, c.attempt_id""",
        job_id,
        limit,
        *source.arguments,
        repeatable=True,
    )
    return [AttemptRow(**row) for row in rows]


# Log lines


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """An attempt that may have written lines. The events of a live attempt are newer than its log in the store."""

    task_id: UUID
    task_key: str
    attempt_id: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class LogEvent:
    id: int
    task_id: UUID
    attempt_id: int
    ts: datetime
    level: str
    message: str | None
    data: Any


async def begun_attempts(db: Database, job_id: UUID, *, step: str | None, attempt: int | None) -> list[AttemptLog]:
    """The last attempt of each step that was ever begun, or the one with that number, in the order of the workflow. A
    step that was multiplied stands for its items."""
    rows = await db.fetch(
        """SELECT id, task_key, coalesce($3, attempt_id) AS attempt_id,
                  lease_owner IS NOT NULL AND attempt_id = coalesce($3, attempt_id) AS is_live
             FROM public.job_tasks
            WHERE job_id = $1 AND attempt_id >= greatest(1, $3)
              AND ($2::text IS NULL OR task_key = $2 OR parent = (
                    SELECT id FROM public.job_tasks WHERE job_id = $1 AND task_key = $2))
            ORDER BY step_no""",
        job_id,
        step,
        attempt,
        repeatable=True,
    )
    return [AttemptLog(row["id"], row["task_key"], row["attempt_id"], row["is_live"]) for row in rows]


async def attempt_log(db: Database, task_id: UUID, attempt_id: int) -> AttemptLog:
    """NotFound if the task was never claimed so often."""
    row = await db.fetchrow(
        """SELECT id, task_key, attempt_id, lease_owner IS NOT NULL AS is_live FROM public.job_tasks WHERE id = $1""",
        task_id,
        repeatable=True,
    )
    if row is None:
        raise NotFound(f"there is no task {task_id}")
    if not 1 <= attempt_id <= row["attempt_id"]:
        raise NotFound(f"task {task_id} has no attempt {attempt_id}; it was claimed {row['attempt_id']} times")
    return AttemptLog(row["id"], row["task_key"], attempt_id, row["is_live"] and attempt_id == row["attempt_id"])


async def attempt_log_events(db: Database, task_id: UUID, attempt_id: int) -> list[LogEvent]:
    """The log lines of one attempt that are events, in the order of writing."""
    job_id = await db.fetchval("SELECT job_id FROM public.job_tasks WHERE id = $1", task_id, repeatable=True)
    return [event for event in await log_events(db, job_id, tasks=[task_id]) if event.attempt_id == attempt_id]


async def log_events(
    db: Database,
    job_id: UUID,
    *,
    tasks: Sequence[UUID] | None = None,
    since: datetime | None = None,
    archived: Sequence[str] = (),
    kind: EventType = EventType.LOG,
) -> list[LogEvent]:
    """Log lines of attempts, in the order of writing, only of these tasks. `archived`: the job's events that have left
    the database, as lines."""
    source = events_source(archived, 5)
    rows = await db.fetch(
        f"""{source.before} SELECT id, job_task_id AS task_id, attempt_id, ts, level, message, data FROM {source.table}
            WHERE job_id = $1 AND type = $4 AND attempt_id IS NOT NULL
              AND ($2::uuid[] IS NULL OR job_task_id = ANY ($2)) AND ts >= coalesce($3, '-infinity'::timestamptz)
            ORDER BY id""",
        job_id,
        None if tasks is None else list(tasks),
        since,
        kind,
        *source.arguments,
        repeatable=True,
    )
    return [LogEvent(**dict(row)) for row in rows]
