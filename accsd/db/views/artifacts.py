"""The artifacts of a job, for people."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from accsd.db.pool import Database
from accsd.errors import NotFound

# The names of work/tasklog.py. Any other log of a task is an artifact like others.
_SEGMENT: Final = re.compile(r"\d{6,}\.jsonl")


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
    facts: dict[str, Any] | None  # of a part of a log
    borrowed_as: str | None = None  # of a cached result: what its task called it; the key is that of another job

    @property
    def name(self) -> str:
        """The name that the task gave it: the key without the part that build_key puts before it."""
        if self.borrowed_as is not None:
            return self.borrowed_as
        name = self.key
        for part in (f"{self.kind}s", self.job_id, self.task_key, self.attempt_id):
            name = name.removeprefix(f"{part}/")
        return name

    @property
    def is_log_segment(self) -> bool:
        return self.kind == "log" and _SEGMENT.fullmatch(self.name) is not None


_ARTIFACTS: Final = """
    SELECT a.id, a.job_id, a.job_task_id AS task_id, t.task_key, a.attempt_id, a.kind, a.bucket, a.key,
           a.size_bytes, a.content_type, a.checksum, a.created_at, a.facts, NULL AS borrowed_as
      FROM public.task_artifacts a LEFT JOIN public.job_tasks t ON t.id = a.job_task_id """


async def artifacts_of(db: Database, job_id: UUID, *, artifact_id: str | None = None) -> list[StoredArtifact]:
    """A job's artifacts in the order of the workflow, the job's own first; log segments in their order. Or that one."""
    rows = await db.fetch(
        f"""SELECT f.* FROM (
              {_ARTIFACTS} WHERE a.job_id = $1
              UNION ALL
              SELECT b.artifact_id, b.job_id, b.job_task_id, t.task_key, t.outcome_attempt_id, 'output', b.bucket,
                     b.key, b.size_bytes, b.content_type, b.checksum, b.created_at, NULL, b.name
                FROM accs.borrowed_files b JOIN public.job_tasks t ON t.id = b.job_task_id WHERE b.job_id = $1) f
              LEFT JOIN public.job_tasks s ON s.id = f.task_id
             {"" if artifact_id is None else "WHERE f.id::text = $2"}
             ORDER BY s.step_no NULLS FIRST, f.attempt_id, f.id""",
        job_id,
        *(() if artifact_id is None else (artifact_id,)),
        repeatable=True,
    )
    return [StoredArtifact(**dict(row)) for row in rows]


async def artifact(db: Database, artifact_id: int) -> StoredArtifact:
    row = await db.fetchrow(f"{_ARTIFACTS} WHERE a.id = $1", artifact_id, repeatable=True)
    if row is None:
        raise NotFound(f"there is no artifact {artifact_id}", hint="`accsd artifacts JOB` lists those of a job")
    return StoredArtifact(**dict(row))


async def artifact_of_share(db: Database, artifact_id: str, job_id: UUID) -> StoredArtifact | None:
    """As whoever has a link to this job knows it: it is the job's own or borrowed, and no part of a log."""
    found = await artifacts_of(db, job_id, artifact_id=artifact_id)
    return found[0] if found and not found[0].is_log_segment else None


async def log_parts(db: Database, task_id: UUID, attempt_id: int) -> list[StoredArtifact]:
    """The sealed parts of an attempt's log, in order."""
    rows = await db.fetch(
        f"{_ARTIFACTS} WHERE a.job_task_id = $1 AND a.attempt_id = $2 AND a.kind = 'log'",
        task_id,
        attempt_id,
        repeatable=True,
    )
    parts = [part for part in (StoredArtifact(**dict(row)) for row in rows) if part.is_log_segment]
    return sorted(parts, key=lambda part: (len(part.name), part.name))
