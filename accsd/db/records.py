"""What a job has left behind, for people: its log lines and its artifacts."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from accsd.db.archives import events_source
from accsd.db.pool import Database
from accsd.model.state import EventType

# As work/tasklog.py names them. Whatever else a task calls a log is an artifact like any other.
_SEGMENT: Final = re.compile(r"\d{6,}\.jsonl")


@dataclass(frozen=True, slots=True)
class AttemptLog:
    """An attempt that may have written something. The events of a live one are newer than what was kept of it."""

    task_id: UUID
    task_key: str
    attempt_id: int
    is_live: bool


@dataclass(frozen=True, slots=True)
class LogEvent:
    id: int
    task_id: UUID
    attempt_id: int
    ts: datetime
    level: str
    message: str | None
    data: Any


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    id: int
    job_id: UUID
    task_id: UUID | None
    task_key: str | None
    attempt_id: int | None
    kind: str
    bucket: str
    key: str
    size_bytes: int | None
    content_type: str | None
    checksum: str | None
    created_at: datetime

    @property
    def name(self) -> str:
        """As its task called it: the key without what build_key has put before it."""
        name = self.key
        for part in (f"{self.kind}s", self.job_id, self.task_key, self.attempt_id):
            name = name.removeprefix(f"{part}/")
        return name

    @property
    def is_log_segment(self) -> bool:
        return self.kind == "log" and _SEGMENT.fullmatch(self.name) is not None


async def attempts_of(db: Database, job_id: UUID, *, step: str | None, attempt: int | None) -> list[AttemptLog]:
    """The last attempt of each step that was ever begun, or the one with that number, in the order of the workflow."""
    rows = await db.fetch(
        """SELECT id, task_key, coalesce($3, attempt_id) AS attempt_id,
                  lease_owner IS NOT NULL AND attempt_id = coalesce($3, attempt_id) AS is_live
             FROM public.job_tasks
            WHERE job_id = $1 AND ($2::text IS NULL OR task_key = $2) AND attempt_id >= greatest(1, $3)
            ORDER BY step_no""",
        job_id,
        step,
        attempt,
        repeatable=True,
    )
    return [AttemptLog(row["id"], row["task_key"], row["attempt_id"], row["is_live"]) for row in rows]


async def log_events(
    db: Database,
    job_id: UUID,
    *,
    tasks: Sequence[UUID] | None = None,
    since: datetime | None = None,
    archived: Sequence[str] = (),
    kind: EventType = EventType.LOG,
) -> list[LogEvent]:
    """In the order of writing; only what attempts said, and only of these tasks. `archived`: those of the job's events
    that have left the database, as lines."""
    source = events_source(archived, 5)
    rows = await db.fetch(
        f"""{source.before} SELECT id, job_task_id AS task_id, attempt_id, ts, level, message, data FROM {source.table}
            WHERE job_id = $1 AND type = $4 AND attempt_id IS NOT NULL
              AND ($2::uuid[] IS NULL OR job_task_id = ANY ($2)) AND ts >= coalesce($3, '-infinity'::timestamptz)
            ORDER BY id""",
        job_id,
        None if tasks is None else list(tasks),
        since,
        kind,
        *source.arguments,
        repeatable=True,
    )
    return [LogEvent(**dict(row)) for row in rows]


async def artifacts_of(db: Database, job_id: UUID) -> list[StoredArtifact]:
    """In the order of the workflow, the job's own first; log segments in their order."""
    rows = await db.fetch(
        """SELECT a.id, a.job_id, a.job_task_id AS task_id, t.task_key, a.attempt_id, a.kind, a.bucket, a.key,
                  a.size_bytes, a.content_type, a.checksum, a.created_at
             FROM public.task_artifacts a LEFT JOIN public.job_tasks t ON t.id = a.job_task_id
            WHERE a.job_id = $1 ORDER BY t.step_no NULLS FIRST, a.attempt_id, a.id""",
        job_id,
        repeatable=True,
    )
    return [StoredArtifact(**dict(row)) for row in rows]


async def is_open(db: Database, job_id: UUID, step: str | None) -> bool:
    """Whether more may come: the job, or the step where one is named, has not ended."""
    return await db.fetchval(
        """SELECT status IN ('queued', 'starting', 'running') FROM public.jobs WHERE id = $1 AND $2::text IS NULL
           UNION ALL
           SELECT status IN ('queued', 'starting', 'running') FROM public.job_tasks
            WHERE job_id = $1 AND task_key = $2""",
        job_id,
        step,
        repeatable=True,
    )
