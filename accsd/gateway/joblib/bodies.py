"""What is sent and answered (1.4 of the contract). Fields that are not known are ignored: the clients are not ours."""

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal
from uuid import UUID

from fastapi import Query
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from accsd.db.views.joblib import JoblibJob, JoblibPage, JoblibProvider, JoblibTask, JoblibWorker
from accsd.explain.redaction import Redaction

Status = Literal["pending", "claimed", "running", "completed", "failed", "cancelled"]
Limit = Annotated[int, Query(ge=0, le=500)]
Offset = Annotated[int, Query(ge=0, le=2**31)]
DEFAULT_LIMIT: Final = 50
_SCHEMA: Final = AliasChoices("schema", "schema_")
_POLICY: Final = ("max_attempts", "backoff", "timeout", "concurrency_key", "on_worker_loss", "validate")


class LenientBody(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class JobRegistration(LenientBody):
    """What is below `worker_id` only this server knows; what is left out stays as it was registered."""

    category: str = Field(max_length=100)
    name: str = Field(min_length=1, max_length=200)
    schema_: dict[str, Any] = Field(default_factory=dict, validation_alias=_SCHEMA)
    worker_id: UUID | None = None
    max_attempts: int | None = Field(default=None, ge=1, le=1_000_000)
    backoff: dict[str, Any] | list[float] | None = None
    timeout: float | None = Field(default=None, gt=0, le=1e9, description="Seconds that a task may run.")
    concurrency_key: str | None = Field(default=None, min_length=1, max_length=200)
    on_worker_loss: Literal["fail", "requeue"] | None = None
    max_concurrency: int | None = Field(default=None, ge=1, le=1_000_000, description="Tasks of this worker at once.")
    validate_: bool | None = Field(default=None, validation_alias="validate")

    def policy(self) -> dict[str, Any]:
        """What was said of how its tasks are treated."""
        said = {name: getattr(self, "validate_" if name == "validate" else name) for name in _POLICY}
        return {name: value for name, value in said.items() if value is not None}


class TaskSubmission(LenientBody):
    payload: dict[str, Any] = Field(default_factory=dict)


class TaskClaim(LenientBody):
    worker_id: UUID


class TaskUpdate(LenientBody):
    status: Status
    error: str | None = None
    result: dict[str, Any] | None = None
    attempt_id: int | None = Field(default=None, ge=1, le=2**31 - 1)


class ProviderRegistration(LenientBody):
    category: str = Field(min_length=1, max_length=100)
    name: str = Field(min_length=1, max_length=200)
    schema_: dict[str, Any] = Field(default_factory=dict, validation_alias=_SCHEMA)
    content_type: str = Field(default="application/json", min_length=1, max_length=200, pattern=r"^[\x20-\x7e]+$")
    worker_id: UUID | None = None


# What is answered


def page(items: Iterable[dict[str, Any]], found: JoblibPage, limit: int, offset: int) -> dict[str, Any]:
    return {"items": list(items), "total": found.total, "limit": limit, "offset": offset}


def job_document(
    job: JoblibJob, *, workers: Sequence[UUID] | None = None, worker: UUID | None = None
) -> dict[str, Any]:
    room, category, name = job.parts
    return {
        "id": job.id,
        "room_id": room,
        "category": category,
        "name": name,
        "full_name": job.full_name,
        "schema": job.schema,
        "workers": job.workers if workers is None else workers,
        "worker_id": worker,
    }


def job_summary(job: JoblibJob) -> dict[str, Any]:
    _, category, name = job.parts
    return {"full_name": job.full_name, "category": category, "name": name, "workers": job.workers}


def worker_summary(worker: JoblibWorker) -> dict[str, Any]:
    return {"id": worker.id, "last_heartbeat": worker.last_heartbeat, "job_count": len(worker.jobs)}


def task_document(task: JoblibTask, redaction: Redaction | None) -> dict[str, Any]:
    """`redaction`: for whoever only looks; whoever does the task sees what it is."""
    return {
        "id": task.id,
        "job_name": task.job_name,
        "room_id": task.room_id,
        "status": task.status,
        "created_at": task.created_at,
        "started_at": task.started_at,
        "completed_at": task.completed_at,
        "worker_id": task.worker_id,
        "error": task.error,
        "payload": task.payload if redaction is None else redaction.inside(task.payload),
        "queue_position": task.queue_position,
        "attempt": task.attempt,
        "attempt_id": task.attempt_id,
        "progress": task.progress,
        "result": task.result if redaction is None else redaction.inside(task.result),
        "next_attempt_at": task.next_attempt_at,
    }


def provider_document(provider: JoblibProvider, worker: UUID | None) -> dict[str, Any]:
    return {
        "id": provider.id,
        "room_id": provider.room,
        "category": provider.category,
        "name": provider.name,
        "full_name": provider.full_name,
        "schema": provider.schema,
        "worker_id": worker,
        "created_at": provider.created_at,
    }
