"""The shapes that cross accsd's boundary: rows that leave the process, and the workflows that users
write.

Columns have the names that the tables have; contract tests compare them with the DDL. A row becomes a model by
`Model.model_validate(dict(row))`.
"""

from typing import TYPE_CHECKING

from accsd.lazy import lazily

if TYPE_CHECKING:
    from accsd.model.fence import Fence
    from accsd.model.rows import Job, JobTask, Node, TaskArtifact, TaskEvent
    from accsd.model.state import (
        JOB_TRANSITIONS,
        TASK_TRANSITIONS,
        ArtifactKind,
        AwakeState,
        EventType,
        JobStatus,
        Level,
        Status,
        TaskStatus,
        WakeMethod,
    )
    from accsd.model.workflow import WorkflowDef, WorkflowStep

__all__ = [
    "JOB_TRANSITIONS",
    "TASK_TRANSITIONS",
    "ArtifactKind",
    "AwakeState",
    "EventType",
    "Fence",
    "Job",
    "JobStatus",
    "JobTask",
    "Level",
    "Node",
    "Status",
    "TaskArtifact",
    "TaskEvent",
    "TaskStatus",
    "WakeMethod",
    "WorkflowDef",
    "WorkflowStep",
]

__getattr__ = lazily(
    __name__,
    __all__,
    ("fence", "rows", "state", "workflow"),
)
