"""What is seen of the database: the tasks of the demo's jobs, the machines, what was written about them."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from accsd.db import Database


@dataclass(frozen=True, slots=True)
class TaskSeen:
    job_id: UUID
    job_number: int
    task_id: UUID
    key: str
    service: str
    status: str
    node: str | None
    attempt_id: int
    progress: float
    elapsed: timedelta | None


@dataclass(frozen=True, slots=True)
class SceneLine:
    """An event of a job, with the time since the job's beginning."""

    after: timedelta
    task_key: str | None
    source: str
    type: str
    message: str


async def look(db: Database, jobs: Sequence[UUID]) -> list[TaskSeen]:
    rows = await db.fetch(
        """SELECT t.*, array_position($1::uuid[], t.job_id) AS job_number,
                  coalesce(t.finished_at, accs.clock()) - t.started_at AS elapsed
             FROM public.job_tasks t WHERE t.job_id = ANY ($1) ORDER BY job_number, t.step_no""",
        list(jobs),
        repeatable=True,
    )
    return [
        TaskSeen(
            job_id=row["job_id"],
            job_number=row["job_number"],
            task_id=row["id"],
            key=row["task_key"],
            service=row["service_name"],
            status=row["status"],
            node=row["claimed_by"] if row["attempt_id"] else None,
            attempt_id=row["attempt_id"],
            progress=1.0 if row["status"] == "done" else float(row["progress"] or 0),
            elapsed=row["elapsed"] if row["started_at"] else None,
        )
        for row in rows
    ]


async def job_states(db: Database, jobs: Sequence[UUID]) -> dict[UUID, str]:
    rows = await db.fetch("SELECT id, status FROM public.jobs WHERE id = ANY ($1)", list(jobs), repeatable=True)
    return {row["id"]: row["status"] for row in rows}


async def timeline(db: Database, job: UUID) -> list[SceneLine]:
    """Without its log lines and progress: those are many, and `accsd logs` has them."""
    rows = await db.fetch(
        """SELECT e.ts, e.source, e.type, t.task_key, first_value(e.ts) OVER (ORDER BY e.id) AS began,
                  concat_ws(', ', CASE e.type WHEN 'artifact' THEN regexp_replace(e.message, '^.*/', 'kept ')
                                              ELSE e.message END,
                            'on ' || (e.data ->> 'node'), 'attempt ' || e.attempt_id) AS message
             FROM public.task_events e LEFT JOIN public.job_tasks t ON t.id = e.job_task_id
            WHERE e.job_id = $1 AND e.type NOT IN ('log', 'progress', 'usage')
              AND e.data ->> 'kind' IS DISTINCT FROM 'log' ORDER BY e.id""",
        job,
        repeatable=True,
    )
    return [
        SceneLine(row["ts"] - row["began"], row["task_key"], row["source"], row["type"], row["message"]) for row in rows
    ]


async def wake_tries(db: Database) -> list[tuple[datetime, str, dict[str, Any]]]:
    rows = await db.fetch(
        "SELECT ts, message, data FROM public.task_events WHERE type = 'wake' ORDER BY id", repeatable=True
    )
    return [(row["ts"], row["message"], row["data"]) for row in rows]


async def outputs(db: Database, job: UUID) -> list[tuple[str, str, int]]:
    """(step, key, size) of what the steps put out."""
    rows = await db.fetch(
        """SELECT t.task_key, a.key, a.size_bytes
             FROM public.task_artifacts a JOIN public.job_tasks t ON t.id = a.job_task_id
            WHERE a.job_id = $1 AND a.kind = 'output' ORDER BY a.id""",
        job,
        repeatable=True,
    )
    return [(row["task_key"], row["key"], row["size_bytes"]) for row in rows]
