"""Submissions to an online judge, and what its door asks of the queue: schema/submissions.sql has the view."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database

_RECENT: Final = timedelta(minutes=15)  # outcomes older than this say nothing about the pace of today


@dataclass(frozen=True, slots=True)
class SubmissionRow:
    """`workflow` is that of its problem; `owner` who submitted it."""

    job_id: UUID
    status: str
    state: str
    attempt_id: int
    result: Mapping[str, Any] | None
    owner: str | None
    workflow: str
    progress: float

    @property
    def is_done(self) -> bool:
        return self.state == "done"

    @property
    def is_judged(self) -> bool:
        """Whether the code was judged, and not the judge."""
        return self.is_done and self.status not in ("System Error", "Cancelled")


_COLUMNS: Final = """s.job_id, s.status, s.state, s.attempt_id, s.result, j.created_by AS owner, w.name AS workflow,
    coalesce(j.progress, 0)::float8 AS progress"""
_FROM: Final = """public.submissions s JOIN public.jobs j ON j.id = s.job_id
    JOIN public.workflows w ON w.id = j.workflow_id"""


async def submission(db: Database, job_id: UUID) -> SubmissionRow | None:
    row = await db.fetchrow(f"SELECT {_COLUMNS} FROM {_FROM} WHERE s.job_id = $1", job_id, repeatable=True)
    return None if row is None else SubmissionRow(**row)


async def submissions_with_keys(db: Database, keys: Sequence[str], within: timedelta) -> dict[str, SubmissionRow]:
    """By idempotency key; those that are older than `within` are left out."""
    rows = await db.fetch(
        f"""SELECT k.idempotency_key AS key, {_COLUMNS} FROM public.jobs k, LATERAL (
              SELECT * FROM public.submissions WHERE job_id = k.id OFFSET 0) s
              JOIN public.jobs j ON j.id = s.job_id JOIN public.workflows w ON w.id = j.workflow_id
             WHERE k.idempotency_key = ANY ($1) AND k.created_at > accs.clock() - $2::interval""",
        list(keys),
        within,
        repeatable=True,
    )
    return {row["key"]: SubmissionRow(**{name: value for name, value in row.items() if name != "key"}) for row in rows}


async def ended_submissions(db: Database, workflow: str, *, after: UUID | None, limit: int) -> list[UUID]:
    """Those of one problem that have ended, of all its versions, by id."""
    rows = await db.fetch(
        """SELECT j.id FROM public.jobs j
            WHERE j.workflow_id IN (SELECT id FROM public.workflows WHERE name = $1)
              AND j.status IN ('done', 'error', 'cancelled') AND ($2::uuid IS NULL OR j.id > $2)
            ORDER BY j.id LIMIT $3""",
        workflow,
        after,
        limit,
        repeatable=True,
    )
    return [row["id"] for row in rows]


async def next_problem_id(db: Database) -> int:
    """An id that no problem has had."""
    return await db.fetchval("SELECT nextval('accs.judge_problems')::int", repeatable=True)


@dataclass(frozen=True, slots=True)
class Load:
    """What a service has before it. Of `waiting` nothing is counted beyond the limit that was asked for."""

    waiting: int  # whatever holds it
    live: int
    slots: int  # of nodes that are awake
    run_seconds: float | None  # of one attempt, on average; None: nothing has ended lately

    @property
    def in_flight(self) -> int:
        return self.waiting + self.live

    @property
    def drained_in(self) -> float:
        """Seconds until what waits has been taken, at the pace of the last minutes; infinite while nobody works."""
        return self.waiting * (self.run_seconds or 1.0) / self.slots if self.slots else float("inf")


async def load_of(db: Database, service: str, *, most: int) -> Load:
    """By look-ups in the narrow tables of the queue; what waits is counted up to `most`."""
    row = await db.fetchrow(
        """SELECT (SELECT count(*) FROM (SELECT FROM accs.lanes l JOIN accs.waiting w ON w.lane = l.id
                                          WHERE l.service = $1 LIMIT $2) x)::int AS waiting,
                  (SELECT count(*) FROM accs.live WHERE service = $1)::int AS live,
                  (SELECT coalesce(sum(coalesce((max_concurrency ->> $1)::int, 0)), 0) FROM public.nodes
                    WHERE awake_state = 'awake')::int AS slots,
                  (SELECT sum(run_s) / nullif(sum(done + error + retried), 0) FROM accs.outcomes
                    WHERE service = $1 AND minute > accs.clock() - $3::interval) AS run_seconds""",
        service,
        most,
        _RECENT,
        repeatable=True,
    )
    assert row is not None, "a query without FROM always answers"
    return Load(**row)
