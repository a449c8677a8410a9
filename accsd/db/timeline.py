"""What happened in a job: its events, and its attempts as the events tell them. For people: read only."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.archives import Source, events_source
from accsd.db.pool import Database


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
    SELECT e.id, e.ts, e.ts - j.created_at AS since, e.job_task_id, t.task_key, e.attempt_id, e.source, e.level, e.type,
           e.message, e.data
      FROM {table} e JOIN public.jobs j ON j.id = e.job_id
      LEFT JOIN public.job_tasks t ON t.id = e.job_task_id
     WHERE e.job_id = $1 """


def _events_in(source: Source) -> str:
    return _EVENTS.format(before=source.before, table=source.table)


async def newest_events(db: Database, job_id: UUID, limit: int, archived: Sequence[str] = ()) -> list[EventRow]:
    """The last ones, in the order in which they happened. Along task_events_job. `archived`: those of its events that
    have left the database, as lines."""
    source = events_source(archived, 3)
    rows = await db.fetch(
        f"{_events_in(source)} ORDER BY e.ts DESC, e.id DESC LIMIT $2",
        job_id,
        limit,
        *source.arguments,
        repeatable=True,
    )
    return [EventRow(**row) for row in reversed(rows)]


async def events_from(db: Database, job_id: UUID, since: datetime, seen: Sequence[int], limit: int) -> list[EventRow]:
    """Those of a moment and later that are not among `seen`. By time, because that is what the index and the partitions
    know; ids alone would miss an event whose transaction began earlier and ended later."""
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
class AttemptRow:
    """One try at one step, as its events tell it. `outcome`: done, error, released, lost, cancelled; None: it runs."""

    task_key: str
    attempt_id: int
    node: str | None
    claimed_at: datetime
    ended_at: datetime | None
    took: timedelta
    outcome: str | None
    error_code: str | None
    message: str | None


async def attempts_of(db: Database, job_id: UUID, limit: int, archived: Sequence[str] = ()) -> list[AttemptRow]:
    """The newest ones, in the order of their claims."""
    source = events_source(archived, 3)
    rows = await db.fetch(
        f"""{source.before}
           SELECT t.task_key, c.attempt_id, c.data ->> 'node' AS node, c.ts AS claimed_at,
                  e.ts AS ended_at, coalesce(e.ts, accs.clock()) - c.ts AS took,
                  CASE WHEN e.id IS NOT NULL THEN coalesce(e.data ->> 'outcome', e.data ->> 'to') END AS outcome,
                  e.data ->> 'error_code' AS error_code,
                  CASE WHEN e.data ->> 'outcome' IS NOT NULL THEN e.message END AS message
             FROM (  -- first these few: for each of them archived lines are read through, which no index covers
               SELECT c.job_task_id, c.attempt_id, c.ts, c.data FROM {source.table} c
                WHERE c.job_id = $1 AND c.type = 'status' AND c.data ->> 'to' = 'starting'
                ORDER BY c.ts DESC, c.id DESC LIMIT $2) c
             JOIN public.job_tasks t ON t.id = c.job_task_id
             LEFT JOIN LATERAL (
               SELECT e.id, e.ts, e.data, e.message FROM {source.table} e
                WHERE e.job_task_id = c.job_task_id AND e.attempt_id = c.attempt_id AND e.ts >= c.ts
                  AND e.type IN ('status', 'retry') AND e.data ->> 'to' NOT IN ('starting', 'running')
                ORDER BY e.ts, e.id LIMIT 1) e ON true
            ORDER BY c.ts, t.step_no, c.attempt_id""",
        job_id,
        limit,
        *source.arguments,
        repeatable=True,
    )
    return [AttemptRow(**row) for row in rows]
