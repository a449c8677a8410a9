"""The rows that leave the process, as the tables hold them: jobs, tasks, events, artifacts, nodes."""

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from accsd.model.state import ArtifactKind, AwakeState, EventType, JobStatus, Level, TaskStatus, WakeMethod


class Row(BaseModel):
    """A row that left the database: frozen, and patient with the columns of a newer schema than this accsd's,
    because versions N and N − 1 work on one database."""

    model_config = ConfigDict(frozen=True, extra="ignore")


def empty_for_null(value: object) -> object:
    return {} if value is None else value


# A jsonb column that a client may have left NULL, where only "nothing" can be meant.
JsonObject = Annotated[dict[str, Any], BeforeValidator(empty_for_null)]


class Job(Row):
    """One run of a workflow."""

    id: UUID
    workflow_id: UUID
    status: JobStatus = JobStatus.QUEUED
    progress: float | None = Field(default=None, ge=0, le=1)
    current_task_key: str | None = None
    priority: int = 0
    order_seq: int
    options: JsonObject = Field(default_factory=dict)
    scheduled_at: datetime | None = None
    error_code: str | None = None
    error_message: str | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    updated_at: datetime

    idempotency_key: str | None = None
    created_by: str | None = None
    generation: int = 0
    task_count: int = 0
    open_tasks: int = 0
    trace_id: str | None = None
    trigger: dict[str, Any] | None = None
    schedule_id: UUID | None = None
    run_key: str | None = None
    no_cache: bool | None = None  # true: its steps take no result of an earlier task


class JobTask(Row):
    """One step of a job. `attempt` counts failures that spend the budget; `attempt_id`, the fence, claims."""

    id: UUID
    job_id: UUID
    task_key: str
    service_name: str
    status: TaskStatus = TaskStatus.QUEUED
    depends_on: list[str] = Field(default_factory=list)
    attempt: int = 0
    max_attempts: int = 3
    next_attempt_at: datetime | None = None
    priority: int = 0
    progress: float | None = Field(default=None, ge=0, le=1)
    params: JsonObject = Field(default_factory=dict)
    results: dict[str, Any] | None = None
    assigned_node: str | None = None
    claimed_by: str | None = None
    claimed_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    created_at: datetime
    updated_at: datetime

    attempt_id: int = 0
    lease_owner: str | None = None
    lease_until: datetime | None = None
    lost: int = 0
    remaining: int = 0
    dependants: list[UUID] | None = None
    given: dict[str, Any] | None = None
    error_code: str | None = None
    error_message: str | None = None
    requires: JsonObject = Field(default_factory=dict)
    concurrency_key: str | None = None
    timeout_sec: float | None = None
    backoff: dict[str, Any] | list[float] | None = None
    notify: list[str] | None = None
    generation: int = 0
    step_no: int
    lane: int
    outcome_attempt_id: int | None = None
    outcome: str | None = None
    resolve: bool | None = None
    items: int | None = None
    tolerate: int | None = None
    parent: UUID | None = None
    item_no: int | None = None
    tolerated: bool | None = None
    files: int | None = None


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
    facts: dict[str, Any] | None = None  # of a part of a log: how many lines, warnings, errors; from when to when


class Node(Row):
    """What a machine can do, whether it is awake, and how to wake it."""

    name: str
    labels: JsonObject = Field(default_factory=dict)
    last_seen: datetime | None = None
    awake_state: AwakeState = AwakeState.UNKNOWN
    wake_method: WakeMethod | None = None
    mac: str | None = None
    provider_ref: str | None = None
    script: str | None = None
    max_concurrency: Annotated[dict[str, int], BeforeValidator(empty_for_null)] = Field(default_factory=dict)

    login: str | None = None
    machine_id: str | None = None
    boot_id: str | None = None
    instance: str | None = None
