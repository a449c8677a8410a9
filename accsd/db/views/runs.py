"""Runs of schedules: the jobs that they have started, each with its steps and results, and figures over them.

No index of jobs knows their schedule, because it would cost every job that is submitted. The ledger of a schedule knows
its jobs; without a schedule the newest jobs are looked at. Both no further back than `LOOKED_AT`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.db.views.jobs import FITS

LOOKED_AT: Final = 10_000
_MOST_STEPS: Final = 1_000  # of a run
_LARGEST: Final = 64 * 1024  # bytes of a step's results, as PostgreSQL keeps them

_OF_SCHEDULE: Final = """
  SELECT j.id, j.order_seq, j.status, j.created_at, j.started_at, j.finished_at, j.schedule_id
    FROM (SELECT DISTINCT f.job_id FROM (
            SELECT job_id FROM public.firings WHERE schedule_id = $1 AND job_id IS NOT NULL
             ORDER BY nominal DESC LIMIT $2) f) f
    JOIN public.jobs j ON j.id = f.job_id"""
_OF_ALL: Final = """
  SELECT j.id, j.order_seq, j.status, j.created_at, j.started_at, j.finished_at, j.schedule_id
    FROM (SELECT * FROM public.jobs ORDER BY order_seq DESC LIMIT $2) j
   WHERE j.schedule_id IS NOT NULL AND ($1::uuid IS NULL OR j.schedule_id = $1)"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFilter:
    """`success`: done, or ended otherwise. `within`: names of workflows, each may end in *."""

    schedule_id: UUID | None = None
    success: bool | None = None
    since: datetime | None = None
    until: datetime | None = None
    within: Sequence[str] | None = None

    def found(self) -> tuple[str, list[Any]]:
        """The statement that finds runs, with its parameters from $1 on."""
        of = _OF_ALL if self.schedule_id is None else _OF_SCHEDULE
        reached = f"""EXISTS (
            SELECT FROM (SELECT s.workflow AS name FROM public.schedules s WHERE s.id = r.schedule_id) w,
                        unnest($6::text[]) AS p (name) WHERE {FITS})"""
        return (
            f"""SELECT r.* FROM ({of}) r
                 WHERE CASE $3::boolean WHEN true THEN r.status = 'done'
                                        WHEN false THEN r.status = ANY ('{{error,cancelled}}') ELSE true END
                   AND ($4::timestamptz IS NULL OR r.created_at >= $4)
                   AND ($5::timestamptz IS NULL OR r.created_at <= $5) AND ($6::text[] IS NULL OR {reached})""",
            [
                self.schedule_id,
                LOOKED_AT,
                self.success,
                self.since,
                self.until,
                None if self.within is None else list(self.within),
            ],
        )


@dataclass(frozen=True, slots=True)
class RunRow:
    """A job that a schedule has started. `definition` are the steps of its workflow as they were written, `steps` its
    tasks: key, status, attempt, error_code, error_message, node, started_at, finished_at, results, or how large those
    are where they are `omitted`."""

    id: UUID
    schedule_id: UUID
    workflow: str
    version: int
    status: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    error_code: str | None
    error_message: str | None
    trigger: dict[str, Any] | None
    params: dict[str, Any]
    options: dict[str, Any]
    definition: list[dict[str, Any]]
    lease_owner: str | None
    leased_until: datetime | None
    steps: list[dict[str, Any]]


_RUNS: Final = f"""
  SELECT j.id, j.schedule_id, w.name AS workflow, w.version, j.status, j.created_at, j.started_at, j.finished_at,
         j.error_code, j.error_message, j.trigger, w.params, coalesce(j.options, '{{}}') AS options,
         w.steps AS definition,
         l.lease_owner, l.lease_until AS leased_until, coalesce(t.steps, '[]') AS steps
    FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id
    LEFT JOIN LATERAL (
      SELECT t.lease_owner, t.lease_until FROM public.job_tasks t
       WHERE t.job_id = j.id AND t.lease_owner IS NOT NULL ORDER BY t.step_no LIMIT 1) l ON true
    LEFT JOIN LATERAL (
      SELECT jsonb_agg(jsonb_build_object('key', t.task_key, 'status', t.status, 'attempt', t.attempt,
               'attempt_id', t.attempt_id, 'error_code', t.error_code, 'error_message', t.error_message,
               'node', t.claimed_by, 'started_at', t.started_at, 'finished_at', t.finished_at,
               'results', CASE WHEN pg_column_size(t.results) <= {_LARGEST} THEN t.results END,
               'omitted', CASE WHEN pg_column_size(t.results) > {_LARGEST} THEN pg_column_size(t.results) END)
             ORDER BY t.step_no) AS steps
        FROM (SELECT * FROM public.job_tasks t WHERE t.job_id = j.id AND t.parent IS NULL
               ORDER BY t.step_no LIMIT {_MOST_STEPS}) t) t ON true"""


async def run_page(db: Database, wanted: RunFilter, *, limit: int, offset: int = 0) -> tuple[list[RunRow], int]:
    """The newest first; and how many there are in all, as far as was looked."""
    statement, given = wanted.found()
    found = await db.fetchrow(
        f"""WITH found AS MATERIALIZED ({statement})
            SELECT (SELECT count(*)::int FROM found) AS total,
                   ARRAY(SELECT id FROM found ORDER BY order_seq DESC LIMIT $7 OFFSET $8) AS ids""",
        *given,
        limit,
        offset,
        repeatable=True,
    )
    assert found is not None, "an aggregate has one row"
    if not found["ids"]:
        return [], found["total"]
    rows = await db.fetch(f"{_RUNS} WHERE j.id = ANY ($1) ORDER BY j.order_seq DESC", found["ids"], repeatable=True)
    return [RunRow(**row) for row in rows], found["total"]


async def find_run(db: Database, run_id: UUID) -> RunRow | None:
    """None: there is no such job, or no schedule has started it."""
    row = await db.fetchrow(f"{_RUNS} WHERE j.id = $1 AND j.schedule_id IS NOT NULL", run_id, repeatable=True)
    return None if row is None else RunRow(**row)


@dataclass(frozen=True, slots=True)
class RunFigures:
    """Of runs that were created in some time; `took` is the mean of those that have ended."""

    total: int
    schedules: int
    done: int
    failed: int
    took: timedelta | None
    last: datetime | None
    last_done: datetime | None
    last_failed: datetime | None


async def run_figures(db: Database, wanted: RunFilter) -> RunFigures:
    statement, given = wanted.found()
    row = await db.fetchrow(
        f"""SELECT count(*)::int AS total, count(DISTINCT schedule_id)::int AS schedules,
                   count(*) FILTER (WHERE status = 'done')::int AS done,
                   count(*) FILTER (WHERE status = ANY ('{{error,cancelled}}'))::int AS failed,
                   avg(finished_at - started_at) AS took, max(created_at) AS last,
                   max(created_at) FILTER (WHERE status = 'done') AS last_done,
                   max(created_at) FILTER (WHERE status = ANY ('{{error,cancelled}}')) AS last_failed
              FROM ({statement}) r""",
        *given,
        repeatable=True,
    )
    assert row is not None, "an aggregate has one row"
    return RunFigures(**row)
