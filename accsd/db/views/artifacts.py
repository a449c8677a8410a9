"""The artifacts of a job, for people."""

import re
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from uuid import UUID

from accsd.db.pool import Database

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

    @property
    def name(self) -> str:
        """The name that the task gave it: the key without the part that build_key puts before it."""
        name = self.key
        for part in (f"{self.kind}s", self.job_id, self.task_key, self.attempt_id):
            name = name.removeprefix(f"{part}/")
        return name

    @property
    def is_log_segment(self) -> bool:
        return self.kind == "log" and _SEGMENT.fullmatch(self.name) is not None


async def artifacts_of(db: Database, job_id: UUID) -> list[StoredArtifact]:
    """A job's artifacts in the order of the workflow, the job's own first; log segments in their order."""
    rows = await db.fetch(
        """SELECT a.id, a.job_id, a.job_task_id AS task_id, t.task_key, a.attempt_id, a.kind, a.bucket, a.key,
                  a.size_bytes, a.content_type, a.checksum, a.created_at
             FROM public.task_artifacts a LEFT JOIN public.job_tasks t ON t.id = a.job_task_id
            WHERE a.job_id = $1 ORDER BY t.step_no NULLS FIRST, a.attempt_id, a.id""",
        job_id,
        repeatable=True,
    )
    return [StoredArtifact(**dict(row)) for row in rows]
