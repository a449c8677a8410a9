"""The ledger for people: what became of each due time of a schedule, and how long its jobs usually take."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database

_FURTHEST_SNOOZE: Final = timedelta(days=64)  # and the offset of a zone; a snooze may be repeated


@dataclass(frozen=True, slots=True)
class FiringRow:
    """One row of the ledger. `cause_id` is not 0 where no time of the rule was due, but somebody or something asked."""

    nominal: datetime
    fold: int
    cause_id: int
    outcome: str
    reason: str
    due_at: datetime
    settled_at: datetime
    late: timedelta
    job_id: UUID | None
    job_status: str | None
    revision: int
    settled_by: str | None
    merged_into: datetime | None
    until_nominal: datetime | None
    times: int | None
    detail: dict[str, Any] | None


_FIRINGS: Final = """SELECT f.nominal, f.fold, f.cause_id, f.outcome, f.reason, f.due_at, f.settled_at, f.late,
        f.job_id, j.status AS job_status, f.revision, f.settled_by, f.merged_into, f.until_nominal, f.times, f.detail
   FROM public.firings f LEFT JOIN public.jobs j ON j.id = f.job_id"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerFilter:
    """`by_time`: only what the rule named, not what somebody or something asked for."""

    since: datetime | None = None
    by_time: bool = False
    outcomes: Sequence[str] = ()
    limit: int = 20


async def ledger_of(db: Database, schedule_id: UUID, asked: LedgerFilter) -> list[FiringRow]:
    """The newest first. They are found along the nominal times, which the ledger's key has; a nominal time is never
    more than a day from its instant, nor a snoozed one more than a month from its due time."""
    rows = await db.fetch(
        f"""{_FIRINGS} WHERE f.schedule_id = $1
               AND ($2::timestamptz IS NULL OR f.due_at >= $2 AND f.nominal >= $3::timestamp)
               AND ($4::text[] = '{{}}' OR f.outcome = ANY ($4)) AND (NOT $5 OR f.cause_id = 0)
             ORDER BY f.nominal DESC, f.fold DESC, f.cause_id DESC LIMIT $6""",
        schedule_id,
        asked.since,
        None if asked.since is None else asked.since.astimezone(UTC).replace(tzinfo=None) - _FURTHEST_SNOOZE,
        list(asked.outcomes),
        asked.by_time,
        asked.limit,
        repeatable=True,
    )
    return sorted((FiringRow(**row) for row in rows), key=lambda row: (row.due_at, row.nominal, row.fold), reverse=True)


@dataclass(frozen=True, slots=True)
class LedgerOutcome:
    """A row of the ledger in short."""

    due_at: datetime
    outcome: str
    reason: str
    late: timedelta
    job_id: UUID | None
    times: int | None


async def last_outcomes(db: Database, schedules: Sequence[UUID], *, each: int) -> dict[UUID, list[LedgerOutcome]]:
    """Of each schedule the last rows of its ledger, the oldest of them first."""
    rows = await db.fetch(
        """SELECT s.id, f.due_at, f.outcome, f.reason, f.late, f.job_id, f.times
             FROM unnest($1::uuid[]) AS s (id), LATERAL (
               SELECT * FROM public.firings f WHERE f.schedule_id = s.id
                ORDER BY f.nominal DESC, f.fold DESC, f.cause_id DESC LIMIT $2) f""",
        list(schedules),
        each,
        repeatable=True,
    )
    found: dict[UUID, list[LedgerOutcome]] = {id_: [] for id_ in schedules}
    for row in sorted(rows, key=lambda row: row["due_at"]):
        given = dict(row)
        found[given.pop("id")].append(LedgerOutcome(**given))
    return found


async def firings_at(db: Database, schedule_id: UUID, nominal: datetime) -> list[FiringRow]:
    """The rows of a nominal time, or the one that stands for it and others."""
    rows = await db.fetch(
        f"""{_FIRINGS} WHERE f.schedule_id = $1 AND f.cause_id = 0
               AND (f.nominal = $2 OR f.nominal < $2 AND f.until_nominal >= $2) ORDER BY f.nominal DESC, f.fold""",
        schedule_id,
        nominal,
        repeatable=True,
    )
    return [FiringRow(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The rows within a span, and those beside it."""

    within: Sequence[FiringRow]
    before: FiringRow | None
    after: FiringRow | None


async def firings_around(db: Database, schedule_id: UUID, begin: datetime, end: datetime) -> Surroundings:
    """Of a schedule without times: the nominal time of each row is its moment in UTC."""
    bounds = [moment.astimezone(UTC).replace(tzinfo=None) for moment in (begin, end)]

    async def found(where: str, *values: object) -> list[FiringRow]:
        rows = await db.fetch(f"{_FIRINGS} WHERE f.schedule_id = $1 AND {where}", schedule_id, *values, repeatable=True)
        return [FiringRow(**row) for row in rows]

    within = await found("f.nominal >= $2 AND f.nominal < $3 ORDER BY f.nominal, f.cause_id LIMIT 1000", *bounds)
    before = await found("f.nominal < $2 ORDER BY f.nominal DESC, f.cause_id DESC LIMIT 1", bounds[0])
    after = await found("f.nominal >= $2 ORDER BY f.nominal, f.cause_id LIMIT 1", bounds[1])
    return Surroundings(within, before[0] if before else None, after[0] if after else None)


@dataclass(frozen=True, slots=True)
class UsualTimes:
    """Medians over the last jobs: from being due until a task began, and from there to the end."""

    wait: timedelta | None
    run: timedelta | None


_USUAL: Final = """SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM l.started_at - l.created_at)),
        percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM l.finished_at - l.started_at))"""


async def usual_times_of(db: Database, schedule_id: UUID) -> UsualTimes:
    """Of the schedule's last 20 jobs that have ended."""
    row = await db.fetchrow(
        f"""{_USUAL} FROM (SELECT j.created_at, j.started_at, j.finished_at
                             FROM public.firings f JOIN public.jobs j ON j.id = f.job_id
                            WHERE f.schedule_id = $1 AND j.finished_at IS NOT NULL
                            ORDER BY f.nominal DESC LIMIT 20) l""",
        schedule_id,
        repeatable=True,
    )
    assert row is not None, "an aggregate has one row"
    return UsualTimes(*(None if seconds is None else timedelta(seconds=float(seconds)) for seconds in row))
