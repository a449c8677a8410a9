"""Settles what is due; snoozes, skips or runs single occurrences; backfills times that lie behind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record


@dataclass(frozen=True, slots=True)
class Settled:
    """A due time that has its row in the ledger now. `times`: how many due times the row stands for."""

    schedule_id: UUID
    nominal: datetime
    outcome: str
    reason: str
    late: timedelta
    times: int
    job_id: UUID | None


async def settle_due(db: Database, *, limit: int, by: str | None = None) -> list[Settled]:
    """Settles what is due: any number of schedulers may call it at once. The same call again settles nothing twice."""
    rows = await db.fetch("SELECT * FROM accs.settle_due($1, $2)", limit, by, repeatable=True)
    return [Settled(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class SchedulerOutlook:
    """How long until something is due, a plan is wanted, or a probe; None: nothing waits. `now` is the database's."""

    next_due: timedelta | None
    next_plan: timedelta | None
    next_probe: timedelta | None
    hold: str | None  # why all schedules stand still
    now: datetime


async def scheduler_outlook(db: Database) -> SchedulerOutlook:
    row = await db.fetchrow("SELECT * FROM accs.scheduler_outlook()", repeatable=True)
    assert row is not None, "scheduler_outlook always answers"
    return SchedulerOutlook(**dict(row))


@dataclass(frozen=True, slots=True)
class OccurrenceAnswer:
    verdict: Verdict
    reason: str | None
    nominal: datetime | None = None
    due_at: datetime | None = None


async def snooze(
    db: Database,
    name: str,
    *,
    length: timedelta | None = None,
    until: datetime | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> OccurrenceAnswer:
    """Moves the due time of the next occurrence, and of no other."""
    row = await _one(db, "snooze($1, $2, $3, $4, $5)", name, length, until, reason, by, repeatable=False)
    return OccurrenceAnswer(Verdict(row["answer"]), row["reason"], row["nominal"], row["due_at"])


async def unsnooze(db: Database, name: str, *, by: str | None = None, reason: str | None = None) -> OccurrenceAnswer:
    row = await _one(db, "unsnooze($1, $2, $3)", name, reason, by)
    return OccurrenceAnswer(Verdict(row["answer"]), row["reason"])


async def skip_occurrence(
    db: Database,
    name: str,
    nominal: datetime,
    *,
    fold: int = 0,
    skip: bool = True,
    by: str | None = None,
    reason: str | None = None,
) -> OccurrenceAnswer:
    """Marks an occurrence that is ahead, so that it is skipped when it is due; `skip=False` takes the mark away."""
    row = await _one(db, "skip_occurrence($1, $2, $3, $4, $5, $6)", name, nominal, fold, reason, by, skip)
    return OccurrenceAnswer(Verdict(row["answer"]), row["reason"], nominal)


@dataclass(frozen=True, slots=True)
class Ran:
    verdict: Verdict
    reason: str | None
    job_id: UUID | None
    state: str  # of the schedule
    detail: Mapping[str, Any]


async def run_now(
    db: Database,
    name: str,
    *,
    options: Mapping[str, Any] | None = None,
    key: str | None = None,
    force: bool = False,
    by: str | None = None,
    reason: str | None = None,
) -> Ran:
    """A run at once, beside the schedule's due times. With a key the same call again is the same job."""
    given = None if options is None else dict(options)
    args = (name, given, key, force, reason, by)
    row = await _one(db, "run_now($1, $2, $3, $4, $5, $6)", *args, repeatable=key is not None)
    return Ran(Verdict(row["answer"]), row["reason"], row["job_id"], row["state"], row["detail"] or {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Backfill:
    """Runs for times that lie behind, in this order; the caller has found them by the schedule's present rule."""

    revision: int
    nominals: Sequence[datetime]
    folds: Sequence[int]
    dues: Sequence[datetime]
    parallel: int = 1
    existing: str = "none"  # which of those that have run are to run again: none, failed, all
    options: Mapping[str, Any] | None = None
    priority: int | None = None
    force: bool = False


@dataclass(frozen=True, slots=True)
class BackfillAnswer:
    """`token` names what would happen: a backfill that is started with it is refused if that has changed."""

    verdict: Verdict
    reason: str | None
    id: UUID | None
    token: str | None
    would_run: int | None
    would_leave: int | None


async def start_backfill(
    db: Database,
    name: str,
    asked: Backfill,
    *,
    dry_run: bool = False,
    token: str | None = None,
    by: str | None = None,
    reason: str | None = None,
    key: str | None = None,
    request: Mapping[str, Any] | None = None,
) -> BackfillAnswer:
    """With a key the same request again is the same backfill; another one is refused."""
    row = await _one(
        db,
        "start_backfill($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16)",
        name,
        asked.revision,
        list(asked.nominals),
        list(asked.folds),
        list(asked.dues),
        asked.parallel,
        asked.existing,
        None if asked.options is None else dict(asked.options),
        asked.priority,
        asked.force,
        dry_run,
        token,
        reason,
        by,
        key,
        None if request is None else dict(request),
        repeatable=dry_run or key is not None,
    )
    return BackfillAnswer(
        Verdict(row["answer"]), row["reason"], row["id"], row["token"], row["would_run"], row["would_leave"]
    )


async def cancel_backfill(
    db: Database, backfill: UUID, *, cancel: bool = False, by: str | None = None, reason: str | None = None
) -> OccurrenceAnswer:
    """Ends a backfill; with `cancel` its open jobs, too."""
    row = await _one(db, "cancel_backfill($1, $2, $3, $4)", backfill, cancel, reason, by)
    return OccurrenceAnswer(Verdict(row["answer"]), row["reason"])


async def set_run_limit(
    db: Database, key: str, max_open: int, *, by: str | None = None, reason: str | None = None
) -> Verdict:
    """Sets how many jobs of a run key may be open at once."""
    answer = await db.fetchval("SELECT accs.set_run_limit($1, $2, $3, $4)", key, max_open, by, reason, repeatable=True)
    return Verdict(answer)


async def _one(db: Database, call: str, *args: object, repeatable: bool = True) -> Record:
    row = await db.fetchrow(f"SELECT * FROM accs.{call}", *args, repeatable=repeatable)
    assert row is not None, f"{call} always answers"
    return row
