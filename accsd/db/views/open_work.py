"""All that is in motion, with what it waits for and how long such steps usually run: what a rehearsal begins with.

Read only, from the narrow tables and the tasks of the jobs that they name. Whoever asks says how much is too much.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from accsd.db.pool import Database
from accsd.db.statistics import StepStats


class OpenTask(NamedTuple):
    """A task that has not ended. `dependants` wait for it; `ran_for`: since it was claimed, on `on`."""

    id: UUID
    job_id: UUID
    workflow: str
    task_key: str
    priority: int
    order_seq: int
    service: str
    requires: Mapping[str, Any]
    node: str | None
    key: str | None
    dependants: list[UUID] | None
    hold: str | None
    due_in: timedelta | None
    on: str | None
    ran_for: timedelta | None


async def open_tasks(db: Database, *, limit: int) -> list[OpenTask]:
    """Of jobs that have a task that is live or could be, in the global order, each step after those before it in its
    workflow."""
    rows = await db.fetch(
        """SELECT t.id, t.job_id, f.name AS workflow, t.task_key, j.priority, j.order_seq, t.service_name AS service,
                  n.requires, n.node, t.concurrency_key AS key, t.dependants, w.hold, w.due_at - accs.clock() AS due_in,
                  l.node AS on, accs.clock() - t.claimed_at AS ran_for
             FROM (SELECT job_id FROM (SELECT job_id FROM accs.live LIMIT $1) l
                   UNION
                   SELECT t.job_id FROM (SELECT task_id FROM accs.waiting LIMIT $1) w
                     JOIN public.job_tasks t ON t.id = w.task_id) o
             JOIN public.jobs j ON j.id = o.job_id JOIN public.workflows f ON f.id = j.workflow_id
             JOIN public.job_tasks t ON t.job_id = o.job_id AND t.status = ANY ('{queued,starting,running}')
             JOIN accs.lanes n ON n.id = t.lane
             LEFT JOIN accs.waiting w ON w.task_id = t.id LEFT JOIN accs.live l ON l.task_id = t.id
            ORDER BY j.priority DESC, j.order_seq, t.step_no, t.item_no LIMIT $1""",
        limit,
        repeatable=True,
    )
    return [OpenTask._make(row) for row in rows]  # the columns are in the order of the fields


@dataclass(frozen=True, slots=True)
class PendingJob:
    """A job that is not due yet, or was submitted just now: its tasks do not exist."""

    id: UUID
    workflow_id: UUID
    priority: int
    order_seq: int
    due_in: timedelta


async def pending_jobs(db: Database, *, limit: int) -> list[PendingJob]:
    """The first first. Those that wait for a run key are left out: nobody knows for how long."""
    rows = await db.fetch(
        """SELECT j.id, j.workflow_id, j.priority, j.order_seq, p.due_at - accs.clock() AS due_in
             FROM (SELECT * FROM accs.pending_jobs WHERE due_at < 'infinity' ORDER BY due_at LIMIT $1) p
             JOIN public.jobs j ON j.id = p.job_id ORDER BY p.due_at, j.order_seq""",
        limit,
        repeatable=True,
    )
    return [PendingJob(**dict(row)) for row in rows]


async def usual_runs(db: Database, workflows: Collection[str]) -> dict[tuple[str, str], StepStats]:
    """By workflow and step."""
    rows = await db.fetch(
        """SELECT workflow, task_key, n, p50, p95, wait_p50 FROM accs.step_stats
            WHERE workflow = ANY ($1) LIMIT 100000""",
        list(workflows),
        repeatable=True,
    )
    return {(row[0], row[1]): StepStats(row[2], row[3], row[4], row[5]) for row in rows}


@dataclass(frozen=True, slots=True)
class Gates:
    """How many tasks of each concurrency key may run at once, and what is paused: (kind, name)."""

    keys: Mapping[str, int]
    paused: frozenset[tuple[str, str]]


async def gates(db: Database) -> Gates:
    keys = await db.fetch("SELECT key, max_running FROM accs.concurrency_keys LIMIT 100000", repeatable=True)
    paused = await db.fetch("SELECT kind, name FROM accs.pauses LIMIT 10000", repeatable=True)
    return Gates({row["key"]: row["max_running"] for row in keys}, frozenset((r["kind"], r["name"]) for r in paused))
