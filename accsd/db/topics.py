"""Events: emitted, evaluated and settled, replayed; and what each one caused."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database, Record
from accsd.errors import InvalidValue
from accsd.values.json import MAX_DEPTH, is_too_deep

KEY_WINDOW: Final = timedelta(hours=24)
# Whether the workflow of the schedule s has one of the names $1, each may end in *
_REACHED: Final = """EXISTS (SELECT FROM unnest($1::text[]) AS p (name)
    WHERE CASE WHEN right(p.name, 1) = '*' THEN starts_with(s.workflow, left(p.name, -1))
               ELSE s.workflow = p.name END)"""


@dataclass(frozen=True, slots=True)
class Emitted:
    """The event's id (of the first one, where it was repeated), and how many schedules it met."""

    event_id: int
    verdict: Verdict
    matched: int


async def emit_event(
    db: Database,
    topic: str,
    payload: Mapping[str, Any] | None = None,
    *,
    key: str | None = None,
    occurred_at: datetime | None = None,
    source: str | None = None,
    job_id: UUID | None = None,
    window: timedelta = KEY_WINDOW,
) -> Emitted:
    """Emits an event. With `Database.over(connection)` it is part of the transaction of that connection: a rollback
    takes it back. The same topic and key again, within the window, is the same event. `job_id`: the job in which it
    happens, so that a run that it causes knows how deep in a chain it is."""
    if is_too_deep(payload):
        raise InvalidValue(f"the payload of an event is nested deeper than {MAX_DEPTH} levels")
    row = await db.fetchrow(
        "SELECT * FROM accs.emit_event($1, $2, $3, $4, $5, $6, $7)",
        topic,
        dict(payload or {}),
        key,
        occurred_at,
        source,
        job_id,
        window,
        repeatable=key is not None,
    )
    assert row is not None, "emit_event always answers"
    return Emitted(row["event_id"], Verdict(row["answer"]), row["matched"])


async def listened_topics(db: Database, *, within: Sequence[str] | None = None) -> dict[str, list[UUID]]:
    """What active schedules listen to, and which. `within`: names of workflows, each may end in *."""
    rows = await db.fetch(
        f"""SELECT s.schedule_expr AS topic, array_agg(s.id ORDER BY s.created_at, s.id) AS ids FROM public.schedules s
             WHERE s.state = 'active' AND s.schedule_kind = 'event' AND ($1::text[] IS NULL OR {_REACHED})
             GROUP BY 1 ORDER BY 1""",
        None if within is None else list(within),
        repeatable=True,
    )
    return {row["topic"]: row["ids"] for row in rows}


async def listeners_of(db: Database, event_id: int, *, within: Sequence[str] | None = None) -> list[UUID]:
    """The active schedules that have this event before them, or have had it. `within`: names of workflows, each may end
    in *."""
    rows = await db.fetch(
        f"""SELECT s.id FROM public.schedules s
            WHERE ($1::text[] IS NULL OR {_REACHED}) AND s.state = 'active' AND s.schedule_kind = 'event'
              AND s.id IN (SELECT i.schedule_id FROM accs.inbox i
                            WHERE i.event_id = $2 AND i.plain AND i.gathering IS NULL
                           UNION ALL
                           SELECT i.schedule_id FROM accs.inbox i
                            WHERE i.event_id = $2 AND NOT i.plain AND i.gathering IS NULL
                           UNION ALL
                           SELECT f.schedule_id FROM public.firings f WHERE f.cause_id = $2 AND f.cause_id <> 0)
            ORDER BY s.created_at, s.id""",
        None if within is None else list(within),
        event_id,
        repeatable=True,
    )
    return [row["id"] for row in rows]


async def events_of_topic(
    db: Database, topic: str, since: datetime, *, after: int = 0, limit: int = 100
) -> Sequence[Record]:
    """The events of one topic that were emitted since then, by id."""
    return await db.fetch(
        """SELECT id, topic, payload, key, source, occurred_at, at, job_id, depth FROM public.events
            WHERE topic = $1 AND at >= $2 AND id > $3 ORDER BY id LIMIT $4""",
        topic,
        since,
        after,
        limit,
        repeatable=True,
    )


async def time_since(db: Database, moment: datetime) -> timedelta:
    return await db.fetchval("SELECT accs.clock() - $1::timestamptz", moment, repeatable=True)


# The evaluator


@dataclass(frozen=True, slots=True)
class EventsOutlook:
    plain: bool  # events that SQL alone can settle
    work: bool  # events to evaluate
    choose: bool  # triggers of accsd's own events are to be enabled or disabled
    hold: str | None  # why all schedules stand still


async def events_outlook(db: Database) -> EventsOutlook:
    row = await db.fetchrow("SELECT * FROM accs.events_outlook()", repeatable=True)
    assert row is not None, "events_outlook always answers"
    return EventsOutlook(**dict(row))


@dataclass(frozen=True, slots=True)
class EventToSettle:
    """One event in the inbox of one schedule. `topic` is None where the event is not kept any more."""

    schedule_id: UUID
    revision: int
    event_id: int
    topic: str | None
    payload: Mapping[str, Any] | None
    key: str | None
    source: str | None
    occurred_at: datetime | None
    at: datetime | None
    job_id: UUID | None
    depth: int | None


async def events_to_settle(db: Database, *, limit: int, skip: Sequence[UUID] = ()) -> list[EventToSettle]:
    rows = await db.fetch("SELECT * FROM accs.events_to_settle($1, $2)", limit, list(skip), repeatable=True)
    return [EventToSettle(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class TopicSubscription:
    """What an evaluator has to know of a schedule of kind event."""

    id: UUID
    name: str
    revision: int
    filter: str | None
    gather: Mapping[str, Any] | None
    options: Mapping[str, Any]


async def subscriptions(db: Database, schedules: Sequence[UUID]) -> list[TopicSubscription]:
    rows = await db.fetch(
        "SELECT id, name, revision, filter, gather, options FROM schedules WHERE id = ANY ($1)",
        list(schedules),
        repeatable=True,
    )
    return [TopicSubscription(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class EventSettled:
    """What became of one event in one schedule. `outcome` is that of the ledger, or filtered or gathered; None: nothing
    was changed, and `reason` says why (locked, stale, held)."""

    schedule_id: UUID
    event_id: int
    verdict: Verdict
    outcome: str | None
    reason: str | None
    late: timedelta | None
    job_id: UUID | None


async def settle_events(
    db: Database, verdicts: Sequence[Mapping[str, Any]], *, by: str | None = None
) -> list[EventSettled]:
    """Settles events by what was found: {schedule_id, revision, event_id, verdict, options, gathering, message}."""
    rows = await db.fetch("SELECT * FROM accs.settle_events($1, $2)", list(verdicts), by, repeatable=True)
    return [_settled(row) for row in rows]


async def settle_plain_events(db: Database, *, limit: int, by: str | None = None) -> list[EventSettled]:
    """Settles events of schedules in which nothing is an expression."""
    rows = await db.fetch("SELECT * FROM accs.settle_plain_events($1, $2)", limit, by, repeatable=True)
    return [_settled(row) for row in rows]


async def trim_inbox(db: Database, *, by: str | None = None) -> int:
    """While all schedules are held: events beyond what may wait are missed. Returns how many."""
    trimmed: int = await db.fetchval("SELECT accs.trim_inbox($1)", by, repeatable=True)
    return trimmed


async def choose_outcomes(db: Database) -> list[str]:
    """Enables the triggers of accsd's own events that somebody listens to, and disables the others."""
    chosen: list[str] = await db.fetchval("SELECT accs.choose_outcomes()", repeatable=True)
    return chosen


async def forget_event_keys(db: Database) -> int:
    """Forgets the keys whose time is over; returns how many."""
    return await db.fetchval("SELECT accs.forget_event_keys()", repeatable=True)


def _settled(row: Record) -> EventSettled:
    return EventSettled(
        row["schedule_id"],
        row["event_id"],
        Verdict(row["answer"]),
        row["outcome"],
        row["reason"],
        row["late"],
        row["job_id"],
    )


# For people


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    event_id: int
    verdict: Verdict
    reason: str | None


async def replay_events(
    db: Database, events: Sequence[int], schedule: str, *, by: str | None = None, reason: str | None = None
) -> list[ReplayAnswer]:
    """Gives events to one schedule again."""
    rows = await db.fetch(
        "SELECT * FROM accs.replay_events($1, $2, $3, $4)", list(events), schedule, by, reason, repeatable=True
    )
    return [ReplayAnswer(row["event_id"], Verdict(row["answer"]), row["reason"]) for row in rows]


@dataclass(frozen=True, slots=True)
class Caused:
    """What an event came to in one schedule; `outcome` is waiting or gathering while it is not settled."""

    schedule: str
    outcome: str
    reason: str | None
    job_id: UUID | None


@dataclass(frozen=True, slots=True)
class TopicEvent:
    id: int
    topic: str
    payload: Mapping[str, Any]
    key: str | None
    source: str | None
    occurred_at: datetime | None
    at: datetime
    job_id: UUID | None
    depth: int
    matched: int
    caused: Sequence[Caused] = field(default=())


_CAUSED: Final = """
  SELECT jsonb_agg(c ORDER BY c.schedule) FROM (
    SELECT s.name AS schedule, f.outcome, f.reason, coalesce(f.job_id, r.job_id) AS job_id
      FROM firings f JOIN schedules s ON s.id = f.schedule_id
      LEFT JOIN firings r ON r.schedule_id = f.schedule_id AND r.nominal = f.merged_into AND r.fold = 0
                         AND r.cause_id = (f.detail ->> 'run')::bigint
     WHERE f.cause_id = e.id AND f.cause_id <> 0 AND s.schedule_kind = 'event'
    UNION ALL
    SELECT s.name, CASE WHEN i.gathering IS NULL THEN 'waiting' ELSE 'gathering' END, NULL, NULL
      FROM accs.inbox i JOIN schedules s ON s.id = i.schedule_id WHERE i.event_id = e.id) c"""


async def events(
    db: Database, *, pattern: str | None = None, after: int | None = None, limit: int = 50
) -> list[TopicEvent]:
    """Events with what each one caused: the newest first, or those after an id in their order. `pattern` is a topic,
    or one with * or ** as its last segment."""
    order = "DESC" if after is None else "ASC"
    rows = await db.fetch(
        f"""SELECT e.id, e.topic, e.payload, e.key, e.source, e.occurred_at, e.at, e.job_id, e.depth, e.matched,
                   ({_CAUSED}) AS caused
              FROM (SELECT * FROM events e WHERE e.id > $1 AND ($2::text IS NULL OR e.topic ~ $2)
                     ORDER BY e.id {order} LIMIT $3) e
             ORDER BY e.id {order}""",
        after or 0,
        None if pattern is None else _expression(pattern),
        limit,
        repeatable=True,
    )
    return [_event(row) for row in rows]


def _expression(pattern: str) -> str:
    """The regular expression of a topic pattern."""
    *before, last = map(re.escape, pattern.split("."))
    segment = "[^.]+"
    end = {r"\*": segment, r"\*\*": rf"{segment}(\.{segment})*"}.get(last, last)
    return "^" + r"\.".join([*before, end]) + "$"


def _event(row: Record) -> TopicEvent:
    caused = [
        Caused(
            each["schedule"], each["outcome"], each["reason"], None if each["job_id"] is None else UUID(each["job_id"])
        )
        for each in row["caused"] or ()
    ]
    return TopicEvent(
        id=row["id"],
        topic=row["topic"],
        payload=row["payload"],
        key=row["key"],
        source=row["source"],
        occurred_at=row["occurred_at"],
        at=row["at"],
        job_id=row["job_id"],
        depth=row["depth"],
        matched=row["matched"],
        caused=caused,
    )


@dataclass(frozen=True, slots=True)
class EventTally:
    """What is known of a schedule of kind event beside its ledger. `last_filtered` is a sample of what its filter left
    out: id, topic, at, payload."""

    waiting: int
    gathering: int
    filtered: int
    last_filtered: Mapping[str, Any] | None


async def tally_of(db: Database, schedule_id: UUID) -> EventTally:
    row = await db.fetchrow(
        """SELECT count(*) FILTER (WHERE i.gathering IS NULL)::int AS waiting, count(i.gathering)::int AS gathering,
                  coalesce((SELECT t.filtered FROM accs.event_tallies t WHERE t.schedule_id = $1), 0) AS filtered,
                  (SELECT t.last_filtered FROM accs.event_tallies t WHERE t.schedule_id = $1) AS last_filtered
             FROM accs.inbox i WHERE i.schedule_id = $1""",
        schedule_id,
        repeatable=True,
    )
    assert row is not None, "an aggregate has one row"
    return EventTally(**dict(row))
