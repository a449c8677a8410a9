"""One object in storage, as `task_artifacts` (A6) announces it."""

from datetime import datetime
from uuid import UUID

from pydantic import Field

from accsd.model.row import Row
from accsd.model.state import ArtifactKind


class TaskArtifact(Row):
    """Where an object is. The row is written after the upload: what it announces exists."""

    id: int
    job_id: UUID
    job_task_id: UUID | None = None
    kind: ArtifactKind
    bucket: str | None = None
    key: str
    size_bytes: int | None = Field(default=None, ge=0)
    content_type: str | None = None
    checksum: str | None = None
    created_at: datetime

    attempt_id: int | None = None
