"""What the gateway's hub reads: events by id, the ids that it has not seen yet, and the rows that messages tell of.

Ids are given in the order of writing and become visible in the order of committing; the hub keeps account of what is
missing. Every statement here reads only, along BRIN(id) or a key, and no more rows than it says.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database, Record
from accsd.db.views import fleet
from accsd.db.views.artifacts import log_parts
from accsd.db.views.events import LogEvent, attempt_log_events
from accsd.db.views.fleet import NodeView

BATCH: Final = 5_000  # events of one read
COUNTED: Final = 10_000  # rows of each kind: more are "at least"
_RANGES: Final = 16  # look-ups for missing ids, whatever their number
# Partitions of months that ended longer ago are not looked at: a transaction may have begun as long before its commit.
_LOOK_BACK: Final = timedelta(days=1)
# Where a reader begins: ids of transactions that are still under way were given a moment ago.
_RECENT: Final = timedelta(minutes=2)
_RECENT_IDS: Final = 1_000

IdRange = tuple[int, int]  # first and last, both in it


@dataclass(frozen=True, slots=True)
class FeedEvent:
    """One event. Of long ones the beginning: 4 KiB of the message, and data up to 8 KiB."""

    id: int
    ts: datetime
    job_id: UUID
    task_id: UUID | None
    attempt_id: int | None
    source: str
    level: str
    type: str
    message: str | None
    data: Any


@dataclass(frozen=True, slots=True)
class Head:
    """Where the ids are: the highest that was given; one before those of transactions that are still under way, as far
    as can be told by time and number; the clock."""

    last: int
    recent: int
    clock: datetime


@dataclass(frozen=True, slots=True)
class Horizon:
    """Transactions below `ended` are over; those from `begun` on have not begun yet."""

    ended: int
    begun: int
    clock: datetime


@dataclass(frozen=True, slots=True)
class JobState:
    """A job, as a list shows it."""

    id: UUID
    workflow: str
    status: str
    progress: float
    current_task_key: str | None
    open_tasks: int
    task_count: int
    error_code: str | None
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class TaskState:
    id: UUID
    job_id: UUID
    task_key: str
    service: str
    status: str
    attempt_id: int
    node: str | None
    progress: float
    hold: str | None
    next_attempt_at: datetime | None
    error_code: str | None


# Anybody may write events with any time; one that datetime can't hold must not hide the others.
_EVENT: Final = """e.id, greatest('0001-01-02Z', least(e.ts, '9999-12-30Z')) AS ts,
           e.job_id, e.job_task_id AS task_id, e.attempt_id, e.source, e.level, e.type,
           left(e.message, 4096) AS message,
           CASE WHEN pg_column_size(e.data) <= 8192 THEN e.data
                WHEN e.data IS NOT NULL THEN jsonb_build_object('omitted', 'more than 8 KiB') END AS data"""
# Nothing is read while no id was given since: the sequence is asked first, and most reads end there.
_AFTER: Final = f"""
    SELECT {_EVENT} FROM public.task_events e
     WHERE accs.feed_head() > $1 AND e.id > $1 AND e.id <= $2 AND e.ts >= $3 ORDER BY e.id LIMIT $4"""
_AFTER_OF_JOBS: Final = f"""
    SELECT {_EVENT} FROM public.task_events e
     WHERE e.job_id = ANY ($5) AND e.id > $1 AND e.id <= $2 AND e.ts >= $3 ORDER BY e.id LIMIT $4"""
# One look-up for each range, so that each goes along BRIN(id).
_MISSING: Final = f"""
    SELECT m.* FROM unnest($1::bigint[], $2::bigint[]) AS r (first, last), LATERAL (
      SELECT {_EVENT} FROM public.task_events e
       WHERE e.id BETWEEN r.first AND r.last AND e.ts >= $4 AND e.id <@ $3::text::int8multirange OFFSET 0) m
     ORDER BY m.id LIMIT $5"""
_HEAD: Final = """
    SELECT h.last, accs.clock() AS clock, greatest(0, h.last - $1, coalesce((
             SELECT min(e.id) FROM public.task_events e
              WHERE e.id > h.last - $1 AND e.ts >= accs.clock() - $2::interval), h.last) - $3) AS recent
      FROM (SELECT accs.feed_head() AS last) h"""
_HORIZON: Final = """
    SELECT pg_snapshot_xmin(s)::text::bigint AS ended, pg_snapshot_xmax(s)::text::bigint AS begun, accs.clock() AS clock
      FROM pg_current_snapshot() s"""
_JOBS: Final = """
    SELECT j.id, w.name AS workflow, j.status, coalesce(j.progress, 0)::float8 AS progress, j.current_task_key,
           j.open_tasks, j.task_count, j.error_code,
           greatest('0001-01-02Z', least(j.updated_at, '9999-12-30Z')) AS updated_at
      FROM unnest($1::uuid[]) AS u (id), LATERAL (SELECT * FROM public.jobs j WHERE j.id = u.id OFFSET 0) j
      JOIN public.workflows w ON w.id = j.workflow_id"""
_TASKS: Final = """
    SELECT t.id, t.job_id, t.task_key, t.service_name AS service, t.status, t.attempt_id, t.claimed_by AS node,
           coalesce(t.progress, 0)::float8 AS progress, w.hold,
           CASE WHEN isfinite(t.next_attempt_at) THEN t.next_attempt_at END AS next_attempt_at, t.error_code
      FROM unnest($1::uuid[]) AS u (id), LATERAL (SELECT * FROM public.job_tasks t WHERE t.id = u.id OFFSET 0) t
      LEFT JOIN LATERAL (SELECT w.hold FROM accs.waiting w WHERE w.task_id = t.id OFFSET 0) w ON true"""
# Each is counted up to COUNTED: this is asked all the time, with a backlog of any length.
_COUNTS: Final = f"""
    WITH waiting AS (SELECT lane, coalesce(hold, 'claimable') AS hold FROM accs.waiting LIMIT {COUNTED}),
         live AS (SELECT service FROM accs.live LIMIT {COUNTED}),
         found AS (
           SELECT l.service, w.hold AS what, count(*) AS n
             FROM waiting w JOIN accs.lanes l ON l.id = w.lane GROUP BY 1, 2
           UNION ALL SELECT service, 'live', count(*) FROM live GROUP BY 1
         )
    SELECT coalesce((SELECT jsonb_object_agg(s.service, s.counts) FROM (
                       SELECT service, jsonb_object_agg(what, n) AS counts FROM found GROUP BY service) s), '{{}}')
             AS services,
           (SELECT count(*) FROM (SELECT FROM accs.pending_jobs LIMIT {COUNTED}) p) AS pending,
           (SELECT count(*) FROM waiting) AS waiting, (SELECT count(*) FROM live) AS live,
           (SELECT jsonb_build_object('open', count(*), 'newest', max(d.id)) FROM (
              SELECT d.id FROM public.dead_letters d WHERE d.redriven_at IS NULL AND d.dismissed_at IS NULL
               ORDER BY d.id DESC LIMIT {COUNTED}) d) AS dead"""


class Feed:
    def __init__(self, db: Database) -> None:
        self._db = db

    async def head(self, *, most: int = BATCH) -> Head:
        """`recent` is at most `most` ids before the last one."""
        row = await self._db.fetchrow(_HEAD, most, _RECENT, _RECENT_IDS, repeatable=True)
        assert row is not None
        return Head(row["last"], row["recent"], row["clock"])

    async def horizon(self) -> Horizon:
        row = await self._db.fetchrow(_HORIZON, repeatable=True)
        assert row is not None
        return Horizon(row["ended"], row["begun"], row["clock"])

    async def after(
        self,
        seen: int,
        since: datetime,
        *,
        upto: int | None = None,
        limit: int = BATCH,
        jobs: Sequence[UUID] | None = None,
        within: float | None = None,
    ) -> list[FeedEvent]:
        """The next events by id, those of some jobs only. `since`: when the one before was read, by the database."""
        bounds = (seen, upto if upto is not None else 2**63 - 1, since - _LOOK_BACK, limit)
        if jobs is None:
            rows = await self._db.fetch(_AFTER, *bounds, repeatable=True, within=within)
        else:
            rows = await self._db.fetch(_AFTER_OF_JOBS, *bounds, list(jobs), repeatable=True, within=within)
        return _events(rows)

    async def missing(self, holes: Sequence[IdRange], since: datetime) -> list[FeedEvent]:
        """Those of the missing ids, in ascending ranges, that are there by now."""
        together = gathered(holes, _RANGES)
        rows = await self._db.fetch(
            _MISSING,
            [first for first, _ in together],
            [last for _, last in together],
            "{" + ",".join(f"[{first},{last}]" for first, last in holes) + "}",
            since - _LOOK_BACK,
            BATCH,
            repeatable=True,
        )
        return _events(rows)

    async def jobs(self, ids: Iterable[UUID]) -> dict[UUID, JobState]:
        rows = await self._db.fetch(_JOBS, list(ids), repeatable=True)
        return {row["id"]: JobState(**dict(row)) for row in rows}

    async def tasks(self, ids: Iterable[UUID]) -> dict[UUID, TaskState]:
        rows = await self._db.fetch(_TASKS, list(ids), repeatable=True)
        return {row["id"]: TaskState(**dict(row)) for row in rows}

    async def counts(self) -> dict[str, Any]:
        """What waits and is live by service, jobs that are not begun, open dead letters; each up to COUNTED."""
        row = await self._db.fetchrow(_COUNTS, repeatable=True)
        assert row is not None
        return dict(row) | {"counted_up_to": COUNTED}

    async def nodes(self) -> list[NodeView]:
        return await fleet.nodes(self._db)

    async def log_lines(self, task_id: UUID, attempt_id: int) -> list[LogEvent]:
        """The lines of an attempt that are events: at most a thousand, and one that says that there are more."""
        return await attempt_log_events(self._db, task_id, attempt_id)

    async def sealed_lines(self, task_id: UUID, attempt_id: int) -> int:
        """How many lines of an attempt's log are in the store, as its parts say it."""
        parts = await log_parts(self._db, task_id, attempt_id)
        return sum((part.facts or {}).get("lines", 0) for part in parts)


def gathered(holes: Sequence[IdRange], most: int) -> list[IdRange]:
    """At most so many ranges that hold all the others: the narrowest gaps between them are closed."""
    if len(holes) <= most:
        return list(holes)
    gaps = sorted(range(1, len(holes)), key=lambda i: holes[i][0] - holes[i - 1][1], reverse=True)[: most - 1]
    cuts = [0, *sorted(gaps), len(holes)]
    return [(holes[a][0], holes[b - 1][1]) for a, b in pairwise(cuts)]


def _events(rows: Sequence[Record]) -> list[FeedEvent]:
    return [FeedEvent(*row.values()) for row in rows]
