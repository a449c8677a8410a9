"""A job and its tasks in words: what each waits for, how it ended, why it is dead."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final

from accsd.db.views.events import AttemptRow, EventRow
from accsd.db.views.jobs import DeadLetterRow, JobRow, TaskRow
from accsd.explain.words import duration, since
from accsd.model.outcome import ErrorCode
from accsd.model.state import JobStatus, TaskStatus
from accsd.values.times import FarTime

_HOLDS: Final = {"backoff": "backoff", "key": "its concurrency key is taken", "paused": "paused"}
_DEAD: Final = {
    "attempts_exhausted": "all attempts failed",
    "permanent_error": "permanent error",
    "lost_too_often": "lost its node too often",
    "poison": "poison",
}
# lost_too_often too, for the database; but no node was lost
_LOST_OTHERWISE: Final[Mapping[str | None, str]] = {
    ErrorCode.IMAGE_MISSING: "could not be started",
    ErrorCode.ENGINE_UNAVAILABLE: "could not be started",
    ErrorCode.NODE_UNFIT: "its nodes were unfit",
    ErrorCode.AGENT_DISK: "its nodes had no room",
    ErrorCode.STORAGE_UNAVAILABLE: "storage was away",
}


def job_document(
    job: JobRow, tasks: Sequence[TaskRow], attempts: Sequence[AttemptRow], events: Sequence[EventRow]
) -> dict[str, Any]:
    """A job with its tasks, attempts and events, for programs."""
    return asdict(job) | {
        "tasks": [asdict(task) for task in tasks],
        "attempts": [asdict(attempt) for attempt in attempts],
        "events": [asdict(event) for event in events],
    }


def job_state(job: JobRow) -> str:
    """The job's status; "(paused)" if its workflow is paused, because then nothing new begins in it."""
    is_held = job.is_paused and job.status in (JobStatus.QUEUED, JobStatus.RUNNING)
    return f"{job.status} (paused)" if is_held else job.status


def job_due(job: JobRow) -> str:
    """When a job that has not begun is due."""
    if job.status != JobStatus.QUEUED or job.scheduled_at is None:
        return ""
    if isinstance(job.scheduled_at, FarTime) or job.age is None:
        return since(job.scheduled_at)
    left = job.scheduled_at - job.created_at - job.age
    return f"in {duration(left)}" if left > timedelta(0) else "due"


def task_note(task: TaskRow) -> str:
    """A task's progress while it runs, what it waits for, or why it failed."""
    match TaskStatus(task.status):
        case TaskStatus.RUNNING if task.progress:
            return f"{task.progress:.0%}"
        case TaskStatus.QUEUED:
            return _waits_for(task)
        case TaskStatus.DONE:
            return ""
        case _:
            return failure(task.error_code, task.error_message)


def _waits_for(task: TaskRow) -> str:
    waits = "waits for earlier steps" if task.remaining else _HOLDS.get(task.hold or "", "waits for a node")
    due = f" for {duration(task.due_in)}" if task.hold == "backoff" and task.due_in is not None else ""
    last = f"; last: {failure(task.error_code, task.error_message)}" if task.error_code else ""
    everywhere = "; the step fails everywhere" if task.fails_everywhere else ""
    return waits + due + everywhere + last


def failure(code: str | None, message: str | None) -> str:
    """An error code and its message as one line."""
    return " ".join(part for part in (code, (message or "").replace("\n", " ")) if part)


def dead_because(letter: DeadLetterRow) -> str:
    """Why a task is not tried any more."""
    said = _DEAD.get(letter.reason, letter.reason)
    return _LOST_OTHERWISE.get(letter.error_code, said) if letter.reason == "lost_too_often" else said
