"""Jobs and their tasks, as the tables `jobs` (A3) and `job_tasks` (A4) hold them."""

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import Field

from accsd.model.row import JsonObject, Row
from accsd.model.state import JobStatus, TaskStatus


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
