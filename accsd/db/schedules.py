"""Schedules: written, edited, paused, held, ended; and what the planner reads and writes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record
from accsd.errors import NotFound, VerbRefused

CHANNEL: Final = "_schedule"  # something earlier was put into the agenda, or EVENT
EVENT: Final = "event"  # the payload: an event was put into an inbox, and nothing else


@dataclass(frozen=True, slots=True)
class ScheduleAnswer:
    """The answer for one schedule; `reason` says why it was refused."""

    verdict: Verdict
    reason: str | None = None
    id: UUID | None = None
    revision: int | None = None

    def or_raise(self, verb: str, name: str) -> "ScheduleAnswer":
        if self.verdict is Verdict.REFUSED:
            if self.reason == "not_found":
                raise NotFound(f'there is no schedule "{name}"', hint="accsd schedules list shows them")
            raise VerbRefused(verb, self.reason or "unknown", subject=name)
        return self


async def put_schedule(
    db: Database,
    definition: Mapping[str, Any],
    *,
    by: str | None = None,
    reason: str | None = None,
    if_revision: int | None = None,
) -> ScheduleAnswer:
    """Writes a schedule by its name: the columns that are given. The same definition again is repeated."""
    row = await db.fetchrow(
        "SELECT * FROM accs.put_schedule($1, $2, $3, $4)", dict(definition), by, reason, if_revision, repeatable=True
    )
    assert row is not None, "put_schedule always answers"
    return ScheduleAnswer(Verdict(row["answer"]), row["reason"], row["id"], row["revision"])


async def end_schedule(
    db: Database, name: str, *, by: str | None = None, reason: str | None = None, cancel: bool = False
) -> tuple[ScheduleAnswer, int]:
    """Ends a schedule. Returns how many of its open jobs were cancelled, too."""
    row = await _one(db, "end_schedule($1, $2, $3, $4)", name, by, reason, cancel)
    return _answer(row), row["cancelled"]


async def lock_schedules(db: Database, ids: Sequence[UUID]) -> None:
    """For a transaction that will change several: all of them first, in the one order, before it touches their jobs."""
    await db.fetch("SELECT FROM public.schedules WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE", list(ids))


async def pause_schedule(
    db: Database, name: str, *, until: datetime | None = None, by: str | None = None, reason: str | None = None
) -> ScheduleAnswer:
    return _answer(await _one(db, "pause_schedule($1, $2, $3, $4)", name, reason, by, until))


async def resume_schedule(
    db: Database, name: str, *, recover: str = "none", by: str | None = None, reason: str | None = None
) -> tuple[ScheduleAnswer, int]:
    """Ends a pause. `recover`: none, one or all of the occurrences that it skipped run now; returns how many do."""
    row = await _one(db, "resume_schedule($1, $2, $3, $4)", name, recover, reason, by)
    return _answer(row), row["recovered"]


async def hold_schedules(
    db: Database, *, lift: bool = False, by: str | None = None, reason: str | None = None
) -> Verdict:
    """Stops all schedules, or lets them go on: as if all schedulers had been down."""
    return Verdict(await db.fetchval("SELECT accs.hold_schedules($1, $2, $3)", reason, by, lift, repeatable=True))


# The planner


@dataclass(frozen=True, slots=True)
class ScheduleToPlan:
    """What a plan is made from. `after`: what was due until then is settled."""

    id: UUID
    name: str
    revision: int
    kind: str
    expr: str
    timezone: str
    spread: timedelta | None
    exclude: Sequence[str]
    only_on: Sequence[str]
    start_at: datetime | None
    end_at: datetime | None
    anchor: datetime | None
    options: Mapping[str, Any]
    condition: Mapping[str, Any] | None
    filter: str | None
    gather: Mapping[str, Any] | None
    created_at: datetime
    after: datetime
    least_interval: timedelta | None  # that the schedule's owner may have
    calendars: Mapping[str, Mapping[str, Any]]
    snoozed: Sequence[str]  # nominal time and fold of each
    planned: datetime | None  # the first due time of the plan that is there
    now: datetime


async def schedules_to_plan(db: Database, *, limit: int, except_zones: Sequence[str] = ()) -> list[ScheduleToPlan]:
    """Schedules whose plan is short, outdated or absent."""
    rows = await db.fetch("SELECT * FROM accs.schedules_to_plan($1, $2)", limit, list(except_zones), repeatable=True)
    return [_to_plan(row) for row in rows]


def _to_plan(row: Record) -> ScheduleToPlan:
    least = row["least_interval_sec"]
    return ScheduleToPlan(
        id=row["id"],
        name=row["name"],
        revision=row["revision"],
        kind=row["schedule_kind"],
        expr=row["schedule_expr"],
        timezone=row["timezone"],
        spread=row["spread"],
        exclude=row["exclude"],
        only_on=row["only_on"],
        start_at=row["start_at"],
        end_at=row["end_at"],
        anchor=row["anchor"],
        options=row["options"],
        condition=row["condition"],
        filter=row["filter"],
        gather=row["gather"],
        created_at=row["created_at"],
        after=row["settled_until"],
        least_interval=None if least is None else timedelta(seconds=least),
        calendars=row["calendars"] or {},
        snoozed=row["snoozed"],
        planned=row["planned"],
        now=row["now"],
    )


async def plan_schedules(db: Database, plans: Sequence[Mapping[str, Any]], *, by: str | None = None) -> dict[UUID, str]:
    """Writes plans; returns what became of each: accepted, or why it was refused."""
    rows = await db.fetch("SELECT * FROM accs.plan_schedules($1, $2)", list(plans), by, repeatable=True)
    return {row["id"]: row["reason"] or row["answer"] for row in rows}


async def note_zones(
    db: Database, version: str, digests: Mapping[str, str], *, by: str | None = None
) -> dict[str, str]:
    """Says with which zone rules this process plans. Returns the zones for which newer rules are on record, and their
    version: this process must not plan there."""
    rows = await db.fetch(
        "SELECT * FROM accs.note_zones($1, $2, $3, $4)",
        list(digests),
        version,
        list(digests.values()),
        by,
        repeatable=True,
    )
    return {row["name"]: row["recorded"] for row in rows if row["answer"] == "older"}


def _answer(row: Record) -> ScheduleAnswer:
    return ScheduleAnswer(Verdict(row["answer"]), row["reason"])


async def _one(db: Database, call: str, *args: object) -> Record:
    row = await db.fetchrow(f"SELECT * FROM accs.{call}", *args, repeatable=True)
    assert row is not None, f"{call} always answers"
    return row
