"""Outgoing events: targets, claims of due events, and their outcomes; lists for people."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from accsd.db.answers import Verdict
from accsd.db.pool import Database
from accsd.errors import NotFound
from accsd.log import redact
from accsd.values.json import sanitise

# The channel on which new events are announced; no service's name begins like this.
OUTBOX_CHANNEL: Final = "_outbox"
_LONGEST_ERROR: Final = 2000


class DeliveryOutcome(StrEnum):
    DELIVERED = "delivered"
    FAILED = "failed"
    DEAD = "dead"  # failed, and given up
    RETURNED = "returned"  # not sent


@dataclass(frozen=True, slots=True)
class OutgoingEvent:
    """An event to be sent. `age` counts since it happened, or since it was redriven."""

    id: int
    job_id: UUID | None
    event: str
    payload: dict[str, Any]
    attempts: int
    age: timedelta


@dataclass(frozen=True, slots=True)
class Settlement:
    """The outcome of one delivery. `delay` until it may be sent again; `error` says why it failed."""

    id: int
    outcome: DeliveryOutcome
    delay: timedelta | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Breaker:
    """After `failures` in a row a target is left alone for `rest`, each time in a row for twice as long."""

    failures: int
    rest: timedelta
    longest_rest: timedelta


@dataclass(frozen=True, slots=True)
class OutboxAnswer:
    id: int
    verdict: Verdict
    reason: str | None


async def register_target(
    db: Database, name: str, *, address: str, events: Sequence[str], workflows: Sequence[str] | None
) -> bool:
    """Registers a target, which gets events from now on. Returns whether that changed anything."""
    answer = await db.fetchval(
        "SELECT accs.register_outbox_target($1, $2, $3, $4)",
        name,
        address,
        sorted(set(events)),
        None if workflows is None else sorted(set(workflows)),
        repeatable=True,
    )
    return Verdict(answer) is Verdict.ACCEPTED


async def forget_target(db: Database, name: str, *, by: str | None = None, reason: str | None = None) -> None:
    answer = await db.fetchval("SELECT accs.forget_outbox_target($1, $2, $3)", name, by, reason)
    if Verdict(answer) is Verdict.REFUSED:
        raise NotFound(f'there is no target "{name}"', hint="`accsd outbox targets` lists them")


async def claim_events(
    db: Database, target: str, claim: UUID, *, lease: timedelta, jobs: int, each: int
) -> list[OutgoingEvent]:
    """Claims due events in the order of their ids: of some jobs, the first that wait."""
    rows = await db.fetch("SELECT * FROM accs.claim_outbox($1, $2, $3, $4, $5)", target, claim, lease, jobs, each)
    return [OutgoingEvent(**row) for row in rows]


async def settle_events(
    db: Database, target: str, claim: UUID, settled: Sequence[Settlement], breaker: Breaker
) -> list[OutboxAnswer]:
    """Writes outcomes. A refused event was claimed by another dispatcher meanwhile, and may have been sent twice."""
    rows = await db.fetch(
        "SELECT * FROM accs.settle_outbox($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        target,
        claim,
        [each.id for each in settled],
        [each.outcome.value for each in settled],
        [each.delay for each in settled],
        [None if each.error is None else sanitise(each.error, scrub=redact)[:_LONGEST_ERROR] for each in settled],
        breaker.failures,
        breaker.rest,
        breaker.longest_rest,
        repeatable=True,
    )
    return [OutboxAnswer(row["id"], Verdict(row["answer"]), row["reason"]) for row in rows]


async def redrive_events(
    db: Database,
    ids: Sequence[int] | None,
    *,
    target: str | None = None,
    by: str | None = None,
    reason: str | None = None,
) -> list[OutboxAnswer]:
    """Sends events again, whatever became of them; without ids those that were given up."""
    wanted = ids if ids is None else list(ids)
    rows = await db.fetch("SELECT * FROM accs.redrive_outbox($1, $2, $3, $4)", wanted, target, by, reason)
    return [OutboxAnswer(row["id"], Verdict(row["answer"]), row["reason"]) for row in rows]


async def prune_events(db: Database, *, keep: timedelta, keep_dead: timedelta, limit: int = 1000) -> int:
    return await db.fetchval("SELECT accs.prune_outbox($1, $2, $3)", keep, keep_dead, limit, repeatable=True)


async def outbox_outlook(db: Database, target: str) -> timedelta | None:
    """How long until the target's next event is due; None: none waits."""
    return await db.fetchval("SELECT accs.outbox_outlook($1)", target, repeatable=True)


async def count_pending(db: Database) -> int:
    """How many events wait, for all targets, counted up to 100,000."""
    return await db.fetchval(
        """SELECT count(*)::int FROM (
             SELECT FROM public.outbox_events WHERE status = 'pending' AND dead_at IS NULL LIMIT 100000) w""",
        repeatable=True,
    )


# For people


@dataclass(frozen=True, slots=True)
class OutboxRow:
    id: int
    target: str
    event: str
    job_id: UUID | None
    state: str  # waiting, delivered, dead
    attempts: int
    due_in: timedelta | None  # None: it does not wait, or waits for another event of its job
    last_error: str | None
    created_at: datetime
    age: timedelta
    dispatched_at: datetime | None
    dead_at: datetime | None
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True)
class TargetRow:
    """`waiting` and `dead` are counted up to 100,000. The breaker is open until `open_until`."""

    name: str
    address: str
    events: list[str]
    workflows: list[str] | None
    waiting: int
    dead: int
    failures: int
    open_until: datetime | None
    is_open: bool
    last_error: str | None
    seen_at: datetime
    unseen_for: timedelta


_STATE: Final = """CASE WHEN status = 'delivered' THEN 'delivered' WHEN dead_at IS NOT NULL THEN 'dead'
                        ELSE 'waiting' END"""
_ROW: Final = f"""id, target, event, job_id, {_STATE} AS state, attempts,
                  CASE WHEN status = 'pending' AND dead_at IS NULL AND isfinite(next_attempt_at)
                       THEN next_attempt_at - accs.clock() END AS due_in,
                  last_error, created_at, accs.clock() - created_at AS age, dispatched_at, dead_at, payload"""


async def events(
    db: Database,
    *,
    target: str | None = None,
    job_id: UUID | None = None,
    states: Sequence[str] = (),
    limit: int = 50,
) -> list[OutboxRow]:
    """The events, newest first."""
    rows = await db.fetch(
        f"""SELECT {_ROW} FROM public.outbox_events
             WHERE ($1::text IS NULL OR target = $1) AND ($2::uuid IS NULL OR job_id = $2)
               AND (cardinality($3::text[]) = 0 OR {_STATE} = ANY ($3))
             ORDER BY id DESC LIMIT $4""",
        target,
        job_id,
        list(states),
        limit,
        repeatable=True,
    )
    return [OutboxRow(**row) for row in rows]


async def event(db: Database, event_id: int) -> OutboxRow:
    row = await db.fetchrow(f"SELECT {_ROW} FROM public.outbox_events WHERE id = $1", event_id, repeatable=True)
    if row is None:
        raise NotFound(f"there is no outgoing event {event_id}", hint="`accsd outbox list` shows the newest")
    return OutboxRow(**row)


async def targets(db: Database) -> list[TargetRow]:
    rows = await db.fetch(
        """SELECT t.name, t.address, t.events, t.workflows,
                  (SELECT count(*)::int FROM (SELECT FROM public.outbox_events e WHERE e.target = t.name
                     AND e.status = 'pending' AND e.dead_at IS NULL LIMIT 100000) w) AS waiting,
                  (SELECT count(*)::int FROM (SELECT FROM public.outbox_events e WHERE e.target = t.name
                     AND e.status = 'pending' AND e.dead_at IS NOT NULL LIMIT 100000) d) AS dead,
                  t.failures, t.open_until, coalesce(t.open_until > accs.clock(), false) AS is_open, t.last_error,
                  t.seen_at, accs.clock() - t.seen_at AS unseen_for
             FROM accs.outbox_targets t ORDER BY t.name""",
        repeatable=True,
    )
    return [TargetRow(**row) for row in rows]
