"""One line of a job's history, as `task_events` (A5) holds it."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from accsd.model.row import Row
from accsd.model.state import EventType, Level


class TaskEvent(Row):
    """Something that happened. Never changed, never deleted; ordered by id within a task."""

    id: int
    job_id: UUID
    job_task_id: UUID | None = None
    ts: datetime
    source: str | None = None
    level: Level = Level.INFO
    # The known names become members; a name of a service's own stays the text that it is.
    type: Annotated[EventType | str, Field(union_mode="left_to_right")]
    message: str | None = None
    data: Any = None
    attempt_id: int | None = None
