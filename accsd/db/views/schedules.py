"""Schedules for people: lists, the ledger, what was done to one, what is due, and the name that was meant."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.errors import NotFound
from accsd.model.schedule import ScheduleTiming
from accsd.values.validation import did_you_mean

_FURTHEST_SNOOZE: Final = timedelta(days=64)  # and the offset of a zone; a snooze may be repeated
Entries = Sequence[Mapping[str, Any]]  # of a calendar


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
        return self.schedule_kind not in ("event", "condition")

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
    s.exclude, s.only_on, s.start_at, s.end_at, s.max_runs, s.pause_after, s.pause_for, s.anchor, s.created_by,
    s.created_at, s.updated_at, s.revision, s.runs, s.failures_in_row, s.last_nominal, s.last_job_id, s.settled_until"""
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
class RunRow:
    """A job of a schedule that has not ended; `waits`: for its run key."""

    job_id: UUID
    status: str
    run_key: str
    nominal: datetime | None
    waits: bool
    created_at: datetime


async def open_runs_of(db: Database, schedule_id: UUID, *, limit: int = 20) -> list[RunRow]:
    """In the order in which they run."""
    rows = await db.fetch(
        """SELECT o.job_id, j.status, o.key AS run_key, o.nominal, o.waits, j.created_at
             FROM accs.open_runs o JOIN public.jobs j ON j.id = o.job_id
            WHERE o.schedule_id = $1 ORDER BY o.waits, o.order_seq LIMIT $2""",
        schedule_id,
        limit,
        repeatable=True,
    )
    return [RunRow(**row) for row in rows]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class BackfillRow:
    """`done` of `total` occurrences were looked at; `failed` counts jobs of it that ended in error."""

    id: UUID
    schedule: str
    state: str
    total: int
    done: int
    started: int
    left_alone: int
    refused: int
    failed: int
    open_jobs: int
    parallel: int
    existing: str
    first: datetime
    last: datetime
    by: str | None
    reason: str | None
    created_at: datetime
    ended_at: datetime | None


async def backfills(db: Database, *, schedule_id: UUID | None = None, limit: int = 20) -> list[BackfillRow]:
    """The newest first."""
    rows = await db.fetch(
        """SELECT b.id, s.name AS schedule, b.state, cardinality(b.nominals) AS total, b.pos - 1 AS done, b.started,
                  b.left_alone, b.refused, b.parallel, b.existing, b.by, b.reason, b.created_at, b.ended_at,
                  (SELECT min(n) FROM unnest(b.nominals) n) AS first,
                  (SELECT max(n) FROM unnest(b.nominals) n) AS last,
                  (SELECT count(*)::int FROM accs.open_runs o WHERE o.key = 'backfill:' || b.id) AS open_jobs,
                  (SELECT count(*)::int FROM public.firings f JOIN public.jobs j ON j.id = f.job_id
                    WHERE f.schedule_id = b.schedule_id AND f.nominal = ANY (b.nominals)
                      AND f.detail ->> 'backfill' = b.id::text AND j.status = 'error') AS failed
             FROM accs.backfills b JOIN public.schedules s ON s.id = b.schedule_id
            WHERE $1::uuid IS NULL OR b.schedule_id = $1 ORDER BY b.id DESC LIMIT $2""",
        schedule_id,
        limit,
        repeatable=True,
    )
    return [BackfillRow(**row) for row in rows]


async def backfill_ids_like(db: Database, text: str) -> list[UUID]:
    """Those whose id begins or ends with this."""
    rows = await db.fetch(
        """SELECT id FROM accs.backfills
            WHERE starts_with(id::text, $1) OR right(id::text, length($1)) = $1 ORDER BY id DESC LIMIT 2""",
        text,
        repeatable=True,
    )
    return [row[0] for row in rows]


@dataclass(frozen=True, slots=True)
class BackfillPlanRow:
    """What a backfill would do to an occurrence, as accs.preview_backfill has it: run it, or leave it because of what
    the ledger says."""

    nominal: datetime
    fold: int
    would: str
    outcome: str | None
    job_id: UUID | None


async def preview_backfill(
    db: Database, schedule_id: UUID, nominals: Sequence[datetime], folds: Sequence[int], existing: str
) -> list[BackfillPlanRow]:
    rows = await db.fetch(
        """SELECT u.nominal, u.fold,
                  CASE WHEN f.outcome IN ('fired', 'caught_up')
                            AND NOT ($4 = 'all' OR $4 = 'failed' AND j.status IN ('error', 'cancelled'))
                         OR f.outcome IN ('snoozed', 'merged') THEN 'leave' ELSE 'run' END AS would, f.outcome, f.job_id
             FROM unnest($2::timestamp[], $3::int[]) WITH ORDINALITY AS u (nominal, fold, n)
             LEFT JOIN public.firings f ON f.schedule_id = $1 AND f.nominal = u.nominal AND f.fold = u.fold
              AND f.cause_id = 0
             LEFT JOIN public.jobs j ON j.id = f.job_id ORDER BY u.n""",
        schedule_id,
        list(nominals),
        list(folds),
        existing,
        repeatable=True,
    )
    return [BackfillPlanRow(**row) for row in rows]


@dataclass(frozen=True, slots=True)
class CalendarRow:
    name: str
    timezone: str
    entries: list[dict[str, Any]]
    created_by: str | None
    updated_at: datetime
    schedules: list[str]  # that name it, ended ones not


async def calendars(db: Database) -> list[CalendarRow]:
    rows = await db.fetch(
        """SELECT k.name, k.timezone, k.entries, k.created_by, k.updated_at,
                  ARRAY(SELECT s.name FROM public.schedules s WHERE k.name = ANY (s.exclude || s.only_on)
                           AND s.state <> 'ended' ORDER BY 1) AS schedules
             FROM public.calendars k ORDER BY k.name""",
        repeatable=True,
    )
    return [CalendarRow(**row) for row in rows]


async def calendars_named(db: Database, names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """The entries and zones of calendars by name, or NotFound with the name that was meant."""
    if not names:
        return {}
    known = {row.name: {"entries": row.entries, "timezone": row.timezone} for row in await calendars(db)}
    for name in names:
        if name not in known:
            raise NotFound(
                f'there is no calendar "{name}"{did_you_mean(name, known)}',
                hint="`accsd schedules calendars list` shows them, `import FILE` brings one in",
            )
    return {name: known[name] for name in names}
