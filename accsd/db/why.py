"""Why something waits: the blockers that accs.why finds for a task, or for a job without tasks; explain/ words them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database, Record

_SHOWN: Final = 200  # tasks of a job that are explained; the blockers of the first also keep the others


@dataclass(frozen=True, slots=True)
class Blocker:
    """One reason; schema.sql has the list. `waited` and `remains` are by the database's clock."""

    blocker: str
    since: datetime | None
    until: datetime | None
    waited: timedelta | None
    remains: timedelta | None
    detail: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task of a job that has not ended."""

    id: UUID
    task_key: str
    status: str
    depends_on: Sequence[str]
    is_next: bool  # all tasks that it depends on have ended


async def why(db: Database, subject: UUID, *, silent: timedelta) -> list[Blocker]:
    """The blockers. A node that was not seen for `silent`, the lease, counts as away."""
    return (await why_each(db, [subject], silent=silent))[subject]


async def why_each(db: Database, subjects: Sequence[UUID], *, silent: timedelta) -> dict[UUID, list[Blocker]]:
    rows = await db.fetch(
        """SELECT u.id, w.*, CASE WHEN isfinite(w.since) THEN accs.clock() - w.since END AS waited,
                  CASE WHEN isfinite(w.until) THEN w.until - accs.clock() END AS remains,
                  o.service, o.reason, o.since AS hindered_since, accs.clock() - o.since AS hindered_for
             FROM unnest($1::uuid[]) WITH ORDINALITY AS u (id, n)
            CROSS JOIN LATERAL accs.why(u.id, $2) WITH ORDINALITY AS w
             LEFT JOIN public.job_tasks t ON t.id = u.id AND w.blocker IN ('starting', 'running')
             LEFT JOIN accs.obstacles o ON o.node = w.detail ->> 'node' AND o.service = t.service_name
            ORDER BY u.n, w.ordinality""",
        list(subjects),
        silent,
        repeatable=True,
    )
    found: dict[UUID, list[Blocker]] = {subject: [] for subject in subjects}
    for row in rows:
        found[row["id"]].append(_read(row))
        if row["reason"] is not None:
            found[row["id"]].append(_obstacle(row))
    return found


async def open_tasks(db: Database, job_id: UUID) -> list[OpenTask]:
    """The open tasks in the order of the workflow."""
    rows = await db.fetch(
        """SELECT id, task_key, status, depends_on, remaining = 0 AS is_next FROM public.job_tasks
            WHERE job_id = $1 AND status IN ('queued', 'starting', 'running') ORDER BY step_no""",
        job_id,
        repeatable=True,
    )
    return [OpenTask(**dict(row)) for row in rows]


async def failed_tasks(db: Database, job_id: UUID) -> dict[UUID, str]:
    """The tasks that ended a job in error, with their keys, the first failure first."""
    rows = await db.fetch(
        """SELECT id, task_key FROM public.job_tasks WHERE job_id = $1 AND status = 'error'
            ORDER BY finished_at, id LIMIT $2""",
        job_id,
        _SHOWN,
        repeatable=True,
    )
    return {row["id"]: row["task_key"] for row in rows}


async def step_of(db: Database, task_id: UUID) -> tuple[UUID, str]:
    """A task's job and its key in it."""
    row = await db.fetchrow("SELECT job_id, task_key FROM public.job_tasks WHERE id = $1", task_id, repeatable=True)
    assert row is not None, "its id was found a moment ago, and tasks are not deleted while their jobs are known"
    return row["job_id"], row["task_key"]


async def job_of_task(db: Database, task_id: UUID) -> UUID | None:
    return await db.fetchval("SELECT job_id FROM public.job_tasks WHERE id = $1", task_id, repeatable=True)


def _obstacle(row: Record) -> Blocker:
    """The obstacle that a live task's node reports for its service: whether the task gets on is not known."""
    detail = {"node": row["detail"]["node"], "service": row["service"], "obstacle": row["reason"]}
    return Blocker("node_hindered", row["hindered_since"], None, row["hindered_for"], None, detail)


def _read(row: Record) -> Blocker:
    return Blocker(row["blocker"], row["since"], row["until"], row["waited"], row["remains"], row["detail"])
