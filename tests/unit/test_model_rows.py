"""Rows become models as asyncpg delivers them, and stay as they are."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from pydantic import ValidationError

from accsd.model import EventType, Job, JobStatus, JobTask, Level, Node, TaskArtifact, TaskEvent, TaskStatus

NOW = datetime(2026, 11, 1, tzinfo=UTC)


def job_row(**changes: Any) -> dict[str, Any]:
    return {
        "id": uuid4(),
        "workflow_id": uuid4(),
        "status": "running",
        "progress": Decimal("0.25"),
        "order_seq": 7,
        "options": None,
        "created_at": NOW,
        "updated_at": NOW,
    } | changes


def task_row(**changes: Any) -> dict[str, Any]:
    return {
        "id": uuid4(),
        "job_id": uuid4(),
        "task_key": "render",
        "service_name": "renderer",
        "status": "queued",
        "depends_on": ["audio"],
        "params": {"preset": "1080p30"},
        "results": None,
        "dependants": [UUID(int=3)],
        "given": {"inputs": {}},
        "requires": {"gpu": True},
        "backoff": [30, 120],
        "step_no": 2,
        "lane": 1,
        "created_at": NOW,
        "updated_at": NOW,
    } | changes


def test_a_row_of_jobs_becomes_a_job():
    job = Job.model_validate(job_row())

    assert job.status is JobStatus.RUNNING
    assert job.progress == 0.25
    assert job.options == {}
    assert (job.priority, job.generation, job.task_count, job.open_tasks) == (0, 0, 0, 0)


def test_a_row_of_job_tasks_becomes_a_task():
    task = JobTask.model_validate(task_row())

    assert task.status is TaskStatus.QUEUED
    assert task.depends_on == ["audio"]
    assert task.dependants == [UUID(int=3)]
    assert task.backoff == [30, 120]
    assert (task.attempt, task.attempt_id, task.max_attempts, task.lost) == (0, 0, 3, 0)


def test_an_event_keeps_known_types_as_members_and_unknown_ones_as_text():
    row = {
        "id": 1,
        "job_id": uuid4(),
        "job_task_id": None,
        "ts": NOW,
        "source": "agent:renderer",
        "level": "warn",
    }

    known = TaskEvent.model_validate(row | {"type": "status"})
    own = TaskEvent.model_validate(row | {"type": "frame_dropped", "data": [1, 2]})

    assert known.type is EventType.STATUS
    assert known.level is Level.WARN
    assert own.type == "frame_dropped"
    assert own.data == [1, 2]


def test_rows_of_artifacts_and_nodes_become_models():
    artifact = TaskArtifact.model_validate(
        {
            "id": 1,
            "job_id": uuid4(),
            "kind": "output",
            "bucket": "accs",
            "key": "outputs/x",
            "created_at": NOW,
        }
    )
    node = Node.model_validate({"name": "gpu-node-1", "labels": None, "max_concurrency": {"renderer": 2}})

    assert artifact.kind == "output"
    assert node.labels == {}
    assert node.max_concurrency == {"renderer": 2}
    assert node.awake_state == "unknown"


def test_a_column_of_a_newer_schema_disturbs_nobody():
    assert Job.model_validate(job_row(column_of_next_year=1)).order_seq == 7


def test_a_status_that_is_no_status_is_refused():
    with pytest.raises(ValidationError):
        Job.model_validate(job_row(status="skipped"))


def test_models_are_frozen():
    task = JobTask.model_validate(task_row())

    with pytest.raises(ValidationError):
        task.status = TaskStatus.DONE  # pyright: ignore[reportAttributeAccessIssue]
