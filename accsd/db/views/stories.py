"""The facts behind a job's explain bar: its tasks and what happened to them, the machines that could take them, pauses,
the holders of its concurrency keys, and what stands before it in the queue. Read only; each question is bounded."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple
from uuid import UUID

from accsd.db.history import events_source
from accsd.db.pool import Database
from accsd.errors import NotFound

MOST_TASKS: Final = 10_000
MOST_EVENTS: Final = 100_000
_MOST_ENDS: Final = 20_000
_MOST_PAUSES: Final = 1000
_MOST_AHEAD: Final = 1000
_MOST_WAITING: Final = 50


@dataclass(frozen=True, slots=True)
class JobFacts:
    id: UUID
    workflow: str
    status: str
    created_at: datetime
    scheduled_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    now: datetime
    delays: dict[str, Any]  # by step: what its workflow says, a number, a text or an expression


async def job_facts(db: Database, job_id: UUID) -> JobFacts:
    row = await db.fetchrow(
        """SELECT j.id, w.name AS workflow, j.status, j.created_at, j.scheduled_at, j.started_at, j.finished_at,
                  accs.clock() AS now,
                  coalesce((SELECT jsonb_object_agg(s ->> 'key', s -> 'delay')
                              FROM jsonb_array_elements(w.steps) s WHERE s ? 'delay'), '{}') AS delays
             FROM public.jobs j JOIN public.workflows w ON w.id = j.workflow_id WHERE j.id = $1""",
        job_id,
        repeatable=True,
    )
    if row is None:
        raise NotFound(f"there is no job {job_id}", hint="`accsd jobs` lists the newest jobs")
    return JobFacts(**dict(row))


class TaskFacts(NamedTuple):
    """(Tuples, because a large job has 100,000 rows of these two kinds, and a frozen dataclass takes four times as long
    to make.)"""

    id: UUID
    task_key: str
    parent: UUID | None
    items: int | None
    depends_on: list[str]
    service: str
    lane: int
    key: str | None
    status: str
    created_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    node: str | None
    attempt_id: int
    outcome: str | None
    hold: str | None
    due_at: datetime | None


async def task_facts(db: Database, job_id: UUID) -> list[TaskFacts]:
    """In the order of the workflow, MOST_TASKS at most."""
    rows = await db.fetch(
        """SELECT t.id, t.task_key, t.parent, t.items, t.depends_on, t.service_name AS service, t.lane,
                  t.concurrency_key AS key, t.status, t.created_at, t.claimed_at, t.started_at, t.finished_at,
                  coalesce(l.node, t.claimed_by) AS node, t.attempt_id, t.outcome, w.hold, w.due_at
             FROM public.job_tasks t LEFT JOIN accs.live l ON l.task_id = t.id
             LEFT JOIN accs.waiting w ON w.task_id = t.id
            WHERE t.job_id = $1 ORDER BY t.step_no LIMIT $2""",
        job_id,
        MOST_TASKS,
        repeatable=True,
    )
    return [TaskFacts._make(row) for row in rows]  # the columns are in the order of the fields


class Move(NamedTuple):
    """One change of state of a task, or of the job (no `task_id`). `generation`: it was opened anew."""

    task_id: UUID | None
    attempt_id: int | None
    ts: datetime
    to: str
    node: str | None
    outcome: str | None
    again_at: datetime | None
    generation: int | None


async def moves(db: Database, job_id: UUID, archived: Sequence[str] = ()) -> list[Move]:
    """In the order in which they happened, the newest MOST_EVENTS. They come as columns, because to read a row for each
    costs twice as much."""
    source = events_source(archived, 3)
    columns = await db.fetchrow(
        f"""{source.before}
            SELECT array_agg(m.task_id), array_agg(m.attempt_id), array_agg(m.ts), array_agg(m.to), array_agg(m.node),
                   array_agg(m.outcome), array_agg(m.again_at), array_agg(m.generation)
              FROM (SELECT e.job_task_id AS task_id, e.attempt_id, e.ts, e.data ->> 'to' AS to,
                           e.data ->> 'node' AS node, e.data ->> 'outcome' AS outcome,
                           (e.data ->> 'next_attempt_at')::timestamptz AS again_at,
                           (e.data ->> 'generation')::int AS generation
                      FROM (SELECT * FROM {source.table}
                             WHERE job_id = $1 AND type IN ('status', 'retry') AND data ? 'to'
                             ORDER BY ts DESC, id DESC LIMIT $2) e ORDER BY e.ts, e.id) m""",
        job_id,
        MOST_EVENTS,
        *source.arguments,
        repeatable=True,
    )
    if columns is None or columns[0] is None:
        return []
    return list(map(Move._make, zip(*columns, strict=True)))  # the columns are in the order of the fields


@dataclass(frozen=True, slots=True)
class FittingNode:
    """A machine that may take the tasks of a lane. `latency`: how long it usually takes to wake."""

    lane: int
    name: str
    slots: int
    awake_state: str
    last_seen: datetime | None
    latency: timedelta | None
    called_at: datetime | None
    can_be_woken: bool


async def fitting_nodes(db: Database, lanes: Collection[int]) -> list[FittingNode]:
    rows = await db.fetch(
        """SELECT l.id AS lane, n.name, coalesce((n.max_concurrency ->> l.service)::int, 0) AS slots, n.awake_state,
                  n.last_seen, w.latency, w.called_at, n.wake_method IS NOT NULL AS can_be_woken
             FROM accs.lanes l JOIN public.nodes n
               ON (l.node IS NULL OR l.node = n.name) AND l.requires <@ n.labels AND n.max_concurrency ? l.service
             LEFT JOIN accs.power w ON w.node = n.name
            WHERE l.id = ANY ($1) ORDER BY l.id, n.name LIMIT 10000""",
        list(lanes),
        repeatable=True,
    )
    return [FittingNode(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class PauseRow:
    """Something took nothing new from `since` on; `until` is None while it does not."""

    kind: str
    name: str
    since: datetime
    until: datetime | None


async def pause_intervals(db: Database, since: datetime, until: datetime) -> list[PauseRow]:
    """When services, workflows and nodes were paused. The table of pauses knows only those that are; the audit, where
    there is one, knows those that were."""
    now = await db.fetch("SELECT kind, name, since FROM accs.pauses WHERE since < $1 LIMIT $2", until, _MOST_PAUSES)
    found = [PauseRow(row["kind"], row["name"], row["since"], None) for row in now]
    if not await db.fetchval("SELECT to_regclass('accs.audit') IS NOT NULL", repeatable=True):
        return found
    rows = await db.fetch(
        """SELECT a.kind, a.target AS name, a.ts AS since, a.next_ts AS until
             FROM (SELECT p.kind, p.target, p.ts, p.action,
                          lead(p.ts) OVER (PARTITION BY p.kind, p.target ORDER BY p.ts, p.id) AS next_ts,
                          lead(p.action) OVER (PARTITION BY p.kind, p.target ORDER BY p.ts, p.id) AS next_action
                     FROM (SELECT * FROM accs.audit WHERE action IN ('pause', 'resume') AND answer = 'accepted'
                              AND target IS NOT NULL ORDER BY id DESC LIMIT $3) p) a
            WHERE a.action = 'pause' AND a.next_action = 'resume' AND a.ts < $2 AND a.next_ts > $1""",
        since,
        until,
        _MOST_PAUSES,
        repeatable=True,
    )
    return found + [PauseRow(**dict(row)) for row in rows]


@dataclass(frozen=True, slots=True)
class Holder:
    """A task that held a concurrency key; `until` is None while it does."""

    key: str
    since: datetime
    until: datetime | None


async def key_holders(
    db: Database, keys: Collection[str], since: datetime, until: datetime
) -> tuple[list[Holder], dict[str, int], bool]:
    """Who held these keys, the limits of the keys, and whether all were found: what has ended is looked for among the
    first ends of that time, because no index knows the key of an ended task."""
    live = await db.fetch(
        """SELECT l.key, t.claimed_at AS since, NULL::timestamptz AS until
             FROM accs.live l JOIN public.job_tasks t ON t.id = l.task_id WHERE l.key = ANY ($1) LIMIT 10000""",
        list(keys),
        repeatable=True,
    )
    ended = await db.fetch(
        """SELECT t.concurrency_key AS key, e.ts AS until, e.n,
                  CASE WHEN t.attempt_id = e.attempt_id THEN t.claimed_at ELSE (
                    SELECT c.ts FROM public.task_events c
                     WHERE c.job_id = e.job_id AND c.ts <= e.ts AND c.job_task_id = e.job_task_id
                       AND c.attempt_id = e.attempt_id AND c.data ->> 'to' = 'starting'
                     ORDER BY c.ts DESC LIMIT 1) END AS since
             FROM (SELECT e.*, count(*) OVER () AS n FROM (
                     SELECT job_id, job_task_id, attempt_id, ts FROM public.task_events
                      WHERE ts > $2 AND ts <= $3 AND type IN ('status', 'retry') AND attempt_id IS NOT NULL
                        AND data ->> 'to' NOT IN ('starting', 'running') LIMIT $4) e) e
             LEFT JOIN public.job_tasks t ON t.id = e.job_task_id AND t.concurrency_key = ANY ($1)""",
        list(keys),
        since,
        until,
        _MOST_ENDS,
        repeatable=True,
    )
    limits = await db.fetch(
        "SELECT key, max_running FROM accs.concurrency_keys WHERE key = ANY ($1)", list(keys), repeatable=True
    )
    found = [Holder(**dict(row)) for row in live]
    found += [Holder(row["key"], row["since"], row["until"]) for row in ended if row["key"] and row["since"]]
    is_all = not ended or ended[0]["n"] < _MOST_ENDS
    return found, {row["key"]: row["max_running"] for row in limits}, is_all


@dataclass(frozen=True, slots=True)
class QueuePlace:
    """A task of the job that waits: how many of its lane are claimed before it; None: it is held."""

    task_id: UUID
    lane: int
    hold: str | None
    due_at: datetime | None
    ahead: int


async def places(db: Database, job_id: UUID) -> list[QueuePlace]:
    """The first tasks of the job that wait; each counts at most 1,000 before it."""
    rows = await db.fetch(
        """SELECT w.task_id, w.lane, w.hold, w.due_at, (
                  SELECT count(*)::int FROM (
                    SELECT FROM accs.waiting o WHERE o.lane = w.lane AND o.hold IS NULL
                       AND (o.rank, o.order_seq, o.created_at, o.task_id)
                           < (w.rank, w.order_seq, w.created_at, w.task_id)
                     ORDER BY o.rank, o.order_seq, o.created_at, o.task_id LIMIT $2) a) AS ahead
             FROM (SELECT w.* FROM public.job_tasks t JOIN accs.waiting w ON w.task_id = t.id
                    WHERE t.job_id = $1 ORDER BY t.step_no LIMIT $3) w""",
        job_id,
        _MOST_AHEAD,
        _MOST_WAITING,
        repeatable=True,
    )
    return [QueuePlace(**dict(row)) for row in rows]
