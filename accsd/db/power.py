"""What is known of the nodes' power in a time: its changes, how busy they were, what they draw. Read only, bounded."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from accsd.db.pool import Database
from accsd.values.names import KIND_LABEL


class PowerChange(NamedTuple):
    """From `ts` on the node's power was in this state."""

    node: str
    ts: datetime
    state: str
    because: str | None
    method: str | None


async def power_changes(
    db: Database, since: datetime, until: datetime, *, nodes: Sequence[str] | None = None, limit: int
) -> list[PowerChange]:
    """Those between two times, and of each node the last one before them; by node and time. Not those of what works
    under a node's name without being a machine."""
    rows = await db.fetch(
        """SELECT p.node, p.ts, p.state, p.because, p.method
             FROM (SELECT name FROM public.nodes
                    WHERE ($4::text[] IS NULL OR name = ANY ($4)) AND NOT labels ? $5 ORDER BY name) n, LATERAL (
               (SELECT * FROM accs.power_log l WHERE l.node = n.name AND l.ts < $1
                 ORDER BY l.ts DESC, l.id DESC LIMIT 1)
               UNION ALL
               (SELECT * FROM accs.power_log l WHERE l.node = n.name AND l.ts >= $1 AND l.ts < $2)) p
            ORDER BY p.node, p.ts, p.id LIMIT $3""",
        since,
        until,
        limit,
        None if nodes is None else list(nodes),
        KIND_LABEL,
        repeatable=True,
    )
    return [PowerChange._make(row) for row in rows]  # the columns are in the order of the fields


class NodeSample(NamedTuple):
    """From `ts` on so many tasks of the service were live on the node. (A tuple: a day of 50 machines has 10,000 of
    them.)"""

    node: str
    service: str
    ts: datetime
    live: int


async def samples(db: Database, since: datetime, until: datetime, *, limit: int) -> list[NodeSample]:
    """Those between two times, and of each node and service the last one before them; by node and time. A row for each
    node: to read one for each sample would cost three times as much."""
    rows = await db.fetch(
        """SELECT t.node, array_agg(t.service ORDER BY t.ts, t.service) AS services,
                  array_agg(t.ts ORDER BY t.ts, t.service) AS moments,
                  array_agg(t.live ORDER BY t.ts, t.service) AS live
             FROM (SELECT s.node, s.service, p.ts, p.live
                     FROM accs.slots s, LATERAL (
                       (SELECT ts, live FROM accs.samples l
                         WHERE l.node = s.node AND l.service = s.service AND l.ts < $1 ORDER BY l.ts DESC LIMIT 1)
                       UNION ALL
                       (SELECT ts, live FROM accs.samples l
                         WHERE l.node = s.node AND l.service = s.service AND l.ts >= $1 AND l.ts < $2)) p
                    ORDER BY s.node, p.ts, s.service LIMIT $3) t
            GROUP BY t.node ORDER BY t.node""",
        since,
        until,
        limit,
        repeatable=True,
    )
    return [
        NodeSample(node, service, ts, live)
        for node, services, moments, its_live in rows
        for service, ts, live in zip(services, moments, its_live, strict=True)
    ]


@dataclass(frozen=True, slots=True)
class KnownNode:
    """A machine now: when it was last seen, and what it draws."""

    name: str
    awake_state: str
    last_seen: datetime | None
    unseen_for: timedelta | None
    because: str | None
    watts: dict[str, float] | None
    busy: bool


async def known_nodes(db: Database) -> list[KnownNode]:
    """All machines, by name."""
    rows = await db.fetch(
        """SELECT n.name, n.awake_state, n.last_seen, accs.clock() - n.last_seen AS unseen_for, w.because, w.watts,
                  EXISTS (SELECT FROM accs.live l WHERE l.node = n.name) AS busy
             FROM public.nodes n LEFT JOIN accs.power w ON w.node = n.name WHERE NOT n.labels ? $1
            ORDER BY n.name LIMIT 1000""",
        KIND_LABEL,
        repeatable=True,
    )
    return [KnownNode(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Firing:
    """What a schedule will start, if nobody changes that."""

    schedule: str
    workflow: str
    due_at: datetime


async def next_firings(db: Database, within: timedelta, *, limit: int) -> list[Firing]:
    """Of active schedules, the first first: occurrences that are not to be skipped, and ends of a snooze. None while
    all schedules are held."""
    rows = await db.fetch(
        """SELECT s.name AS schedule, s.workflow, a.due_at
             FROM (SELECT * FROM accs.agenda WHERE what <> ALL ('{replan,probe}') AND due_at <= accs.clock() + $1
                    ORDER BY due_at LIMIT $2) a
             JOIN public.schedules s ON s.id = a.schedule_id AND s.state = 'active'
             LEFT JOIN accs.plan_of p ON p.schedule_id = s.id AND a.what = 'occurrence'
            WHERE (a.what = 'snoozed' OR a.what = 'occurrence' AND p.notes -> a.pos::text IS NULL AND NOT EXISTS (
                    SELECT FROM accs.schedule_marks m
                     WHERE m.schedule_id = s.id AND m.nominal = p.nominals[a.pos] AND m.fold = p.folds[a.pos]))
              AND NOT EXISTS (SELECT FROM accs.schedule_hold)
            ORDER BY a.due_at, s.name""",
        within,
        limit,
        repeatable=True,
    )
    return [Firing(**dict(row)) for row in rows]
