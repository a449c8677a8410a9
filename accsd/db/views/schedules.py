"""Schedules for people: lists, what was done to one, what is due, and the name that was meant."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.errors import NotFound
from accsd.model.schedule import TIMES, ScheduleTiming
from accsd.values.validation import did_you_mean


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRow:
    """A schedule with its state in one word. `late_for`: how long it has been due and nobody has settled it;
    `unplanned_for`: how long it has waited for its plan."""

    id: UUID
    name: str
    title: str | None
    description: str | None
    schedule_kind: str
    schedule_expr: str
    timezone: str
    workflow: str
    version: int | None
    options: dict[str, Any]
    priority: int
    missed: str
    grace: timedelta
    catch_up: timedelta | None
    catch_up_max: int
    overlap: str
    run_key: str | None
    spread: timedelta | None
    exclude: list[str]
    only_on: list[str]
    start_at: datetime | None
    end_at: datetime | None
    max_runs: int | None
    pause_after: int | None
    pause_for: timedelta | None
    anchor: datetime | None
    filter: str | None
    gather: dict[str, Any] | None
    cooldown: timedelta | None
    cooldown_trailing: bool
    reenter: bool
    condition: dict[str, Any] | None
    created_by: str | None
    created_at: datetime
    updated_at: datetime
    revision: int
    runs: int
    failures_in_row: int
    last_nominal: datetime | None
    last_job_id: UUID | None
    settled_until: datetime
    state: str
    reason: str | None
    since: datetime
    paused_until: datetime | None
    next_nominal: datetime | None
    next_fold: int | None
    next_due: datetime | None
    open_jobs: int
    waiting_jobs: int
    can_start: bool  # its workflow has an active version
    late_for: timedelta | None
    unplanned_for: timedelta | None
    calendars: dict[str, dict[str, Any]]
    now: datetime

    @property
    def has_times(self) -> bool:
        """Events and conditions have none."""
        return self.schedule_kind in TIMES.values()

    def timing(self) -> ScheduleTiming:
        return ScheduleTiming(
            id=str(self.id),
            kind=self.schedule_kind,
            expr=self.schedule_expr,
            timezone=self.timezone,
            created_at=self.created_at,
            anchor=self.anchor,
            start_at=self.start_at,
            end_at=self.end_at,
            spread=self.spread,
            exclude=self.exclude,
            only_on=self.only_on,
            calendars=self.calendars,
        )


_OWN: Final = """s.id, s.name, s.title, s.description, s.schedule_kind, s.schedule_expr, s.timezone, s.workflow,
    s.version, s.options, s.priority, s.missed, s.grace, s.catch_up, s.catch_up_max, s.overlap, s.run_key, s.spread,
    s.exclude, s.only_on, s.start_at, s.end_at, s.max_runs, s.pause_after, s.pause_for, s.anchor, s.filter, s.gather,
    s.cooldown, s.cooldown_trailing, s.reenter, s.condition, s.created_by, s.created_at, s.updated_at, s.revision,
    s.runs, s.failures_in_row, s.last_nominal, s.last_job_id, s.settled_until"""
# One that has its own due time back keeps its row in the agenda, and is snoozed no longer.
_MOVED: Final = "a.due_at > (f.detail ->> 'was_due')::timestamptz"
# The same as the view accs.schedule_states, which only its owner may read: it calls a function that is no verb.
_ROWS: Final = f"""SELECT {_OWN}, v.state, v.reason, v.since, s.paused_until, n.nominal AS next_nominal,
        n.fold AS next_fold, n.due_at AS next_due, o.open_jobs, o.waiting_jobs,
        EXISTS (SELECT FROM public.workflows w WHERE w.name = s.workflow AND w.is_active
                   AND (s.version IS NULL OR w.version = s.version)) AS can_start,
        (SELECT accs.clock() - a.due_at FROM accs.agenda a
          WHERE a.schedule_id = s.id AND a.what = 'occurrence' AND a.due_at < accs.clock()) AS late_for,
        (SELECT accs.clock() - a.due_at FROM accs.agenda a
          WHERE a.schedule_id = s.id AND a.what = 'replan' AND a.due_at < accs.clock()) AS unplanned_for,
        coalesce((SELECT jsonb_object_agg(k.name, jsonb_build_object('entries', k.entries, 'timezone', k.timezone))
                    FROM public.calendars k
                   WHERE k.name = ANY (s.exclude || s.only_on)), '{{}}') AS calendars, accs.clock() AS now
   FROM public.schedules s LEFT JOIN accs.schedule_hold h ON true
   LEFT JOIN LATERAL (
     SELECT f.nominal, f.fold, a.due_at, {_MOVED} AS is_snoozed
       FROM accs.agenda a JOIN public.firings f ON f.schedule_id = a.schedule_id AND f.cause_id = 0
        AND f.nominal = split_part(a.key, '/', 1)::timestamp AND f.fold = split_part(a.key, '/', 2)::int
      WHERE a.schedule_id = s.id AND a.what = 'snoozed'
      UNION ALL
     SELECT p.nominals[a.pos], p.folds[a.pos], p.dues[a.pos], false
       FROM accs.agenda a JOIN accs.plan_of p ON p.schedule_id = a.schedule_id
      WHERE a.schedule_id = s.id AND a.what = 'occurrence' AND p.nominals[a.pos] IS NOT NULL
      ORDER BY 3, 1 LIMIT 1) n ON s.state <> 'ended'
  CROSS JOIN LATERAL (
     SELECT CASE WHEN s.state = 'active' AND h.only_row THEN 'held'
                 WHEN s.state = 'active' AND n.is_snoozed THEN 'snoozed' ELSE s.state END AS state,
            CASE WHEN s.state = 'active' AND h.only_row THEN h.reason ELSE s.state_reason END AS reason,
            CASE WHEN s.state = 'active' AND h.only_row THEN h.since ELSE s.state_since END AS since) v
  CROSS JOIN LATERAL (
     SELECT count(*) FILTER (WHERE NOT r.waits)::int AS open_jobs, count(*) FILTER (WHERE r.waits)::int AS waiting_jobs
       FROM accs.open_runs r WHERE r.schedule_id = s.id) o"""


async def schedules(
    db: Database, *, states: Sequence[str] = (), workflow: str | None = None, ended: bool = False
) -> list[ScheduleRow]:
    """By name. Those that have ended only if they are asked for."""
    rows = await db.fetch(
        f"""{_ROWS} WHERE CASE WHEN $1::text[] = '{{}}' THEN $2 OR v.state <> 'ended' ELSE v.state = ANY ($1) END
               AND ($3::text IS NULL OR s.workflow = $3) ORDER BY s.name""",
        list(states),
        ended,
        workflow,
        repeatable=True,
    )
    return [ScheduleRow(**row) for row in rows]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleFilter:
    """`states` as they are kept: active, paused, ended, broken. `within`: names of workflows, each may end in *."""

    states: Sequence[str] | None = None
    kind: str | None = None
    created_by: str | None = None
    ids: Sequence[UUID] | None = None
    within: Sequence[str] | None = None


async def schedule_page(
    db: Database, wanted: ScheduleFilter, *, limit: int, offset: int = 0
) -> tuple[list[ScheduleRow], int]:
    """The newest first, those that have ended, too; and how many there are in all."""
    found = await db.fetchrow(
        """WITH found AS MATERIALIZED (
             SELECT s.id, s.created_at FROM public.schedules s
              WHERE ($1::text[] IS NULL OR s.state = ANY ($1)) AND ($2::text IS NULL OR s.schedule_kind = $2)
                AND ($3::text IS NULL OR s.created_by = $3) AND ($4::uuid[] IS NULL OR s.id = ANY ($4))
                AND ($5::text[] IS NULL OR EXISTS (
                      SELECT FROM unnest($5) AS p (name)
                       WHERE CASE WHEN right(p.name, 1) = '*' THEN starts_with(s.workflow, left(p.name, -1))
                                  ELSE s.workflow = p.name END)))
           SELECT (SELECT count(*)::int FROM found) AS total,
                  ARRAY(SELECT id FROM found ORDER BY created_at DESC, id DESC LIMIT $6 OFFSET $7) AS ids""",
        None if wanted.states is None else list(wanted.states),
        wanted.kind,
        wanted.created_by,
        None if wanted.ids is None else list(wanted.ids),
        None if wanted.within is None else list(wanted.within),
        limit,
        offset,
        repeatable=True,
    )
    assert found is not None, "an aggregate has one row"
    if not found["ids"]:
        return [], found["total"]
    rows = await db.fetch(
        f"{_ROWS} WHERE s.id = ANY ($1) ORDER BY s.created_at DESC, s.id DESC", found["ids"], repeatable=True
    )
    return [ScheduleRow(**row) for row in rows], found["total"]


async def find_schedule(db: Database, name: str) -> ScheduleRow | None:
    """By its name or its id."""
    row = await db.fetchrow(
        f"{_ROWS} WHERE s.name = $1 OR s.id::text = $1 ORDER BY s.name = $1 DESC LIMIT 1", name, repeatable=True
    )
    return None if row is None else ScheduleRow(**row)


async def schedule_named(db: Database, name: str) -> ScheduleRow:
    """The same, or NotFound with the name that was meant."""
    found = await find_schedule(db, name)
    if found is not None:
        return found
    names = [row[0] for row in await db.fetch("SELECT name FROM public.schedules ORDER BY 1", repeatable=True)]
    if not names:
        raise NotFound(f'there is no schedule "{name}", nor any other', hint="`accsd schedules create` makes one")
    raise NotFound(f'there is no schedule "{name}"{did_you_mean(name, names)}', hint="try `accsd schedules list`")


@dataclass(frozen=True, slots=True)
class SkipRow:
    """An occurrence that is not to run."""

    nominal: datetime
    fold: int
    by: str | None
    reason: str | None


@dataclass(frozen=True, slots=True)
class SnoozeRow:
    """An occurrence whose due time was moved."""

    nominal: datetime
    fold: int
    due_at: datetime
    by: str | None
    reason: str | None


async def skips_of(db: Database, schedule_id: UUID) -> list[SkipRow]:
    rows = await db.fetch(
        "SELECT nominal, fold, by, reason FROM accs.schedule_marks WHERE schedule_id = $1 ORDER BY 1, 2",
        schedule_id,
        repeatable=True,
    )
    return [SkipRow(**row) for row in rows]


async def snoozes_of(db: Database, schedule_id: UUID) -> list[SnoozeRow]:
    rows = await db.fetch(
        f"""SELECT f.nominal, f.fold, a.due_at, f.detail ->> 'by' AS by, f.detail ->> 'reason' AS reason
             FROM accs.agenda a JOIN public.firings f ON f.schedule_id = a.schedule_id AND f.cause_id = 0
              AND f.nominal = split_part(a.key, '/', 1)::timestamp AND f.fold = split_part(a.key, '/', 2)::int
            WHERE a.schedule_id = $1 AND a.what = 'snoozed' AND {_MOVED} ORDER BY a.due_at""",
        schedule_id,
        repeatable=True,
    )
    return [SnoozeRow(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class HistoryRow:
    ts: datetime
    what: str
    by: str | None
    reason: str | None
    revision: int | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None


async def history_of(db: Database, schedule_id: UUID, *, limit: int) -> list[HistoryRow]:
    """The newest first."""
    rows = await db.fetch(
        """SELECT ts, what, by, reason, revision, before, after FROM accs.schedule_history
            WHERE schedule_id = $1 ORDER BY id DESC LIMIT $2""",
        schedule_id,
        limit,
        repeatable=True,
    )
    return [HistoryRow(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A job of a schedule that has not ended; `waits`: for its run key."""

    job_id: UUID
    status: str
    run_key: str
    nominal: datetime | None
    waits: bool
    created_at: datetime


async def open_runs_of(db: Database, schedule_id: UUID, *, limit: int = 20) -> list[OpenRun]:
    """In the order in which they run."""
    rows = await db.fetch(
        """SELECT o.job_id, j.status, o.key AS run_key, o.nominal, o.waits, j.created_at
             FROM accs.open_runs o JOIN public.jobs j ON j.id = o.job_id
            WHERE o.schedule_id = $1 ORDER BY o.waits, o.order_seq LIMIT $2""",
        schedule_id,
        limit,
        repeatable=True,
    )
    return [OpenRun(**row) for row in rows]


async def due_within(db: Database, begin: datetime, end: datetime, *, but: UUID | None = None) -> int:
    """How many schedules have their next due time in there, beside this one."""
    return await db.fetchval(
        """SELECT count(*)::int FROM accs.agenda WHERE what = 'occurrence' AND due_at >= $1 AND due_at < $2
              AND schedule_id IS DISTINCT FROM $3""",
        begin,
        end,
        but,
        repeatable=True,
    )


@dataclass(frozen=True, slots=True)
class HoldRow:
    since: datetime
    by: str | None
    reason: str | None


async def hold(db: Database) -> HoldRow | None:
    """Why all schedules stand still, if they do."""
    row = await db.fetchrow("SELECT since, by, reason FROM accs.schedule_hold", repeatable=True)
    return None if row is None else HoldRow(**row)
