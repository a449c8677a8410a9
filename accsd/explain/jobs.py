"""A job and its tasks in words: what each waits for, how it ended, why it is dead."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.views.events import AttemptRow, EventRow
from accsd.db.views.jobs import DeadLetterRow, JobRow, TaskRow
from accsd.explain.words import duration, short
from accsd.model.outcome import DatabaseCode, ErrorCode, meaning_of
from accsd.model.state import JobStatus, TaskStatus
from accsd.values.times import FarTime

_HOLDS: Final = {
    "backoff": "backoff",
    "key": "its concurrency key is taken",
    "paused": "paused",
    "resolve": "its condition and input are worked out",
}
_SKIPPED_BY_ITSELF: Final = (DatabaseCode.CONDITION_FALSE, DatabaseCode.INPUT_SKIPPED, DatabaseCode.NOT_IN_LIST)
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
        return str(job.scheduled_at)
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
            return "" if task.cached is None else f"cached: the result of job {short(task.cached['job_id'])}"
        case TaskStatus.SKIPPED if task.error_code in _SKIPPED_BY_ITSELF:
            return task.error_message or meaning_of(task.error_code).sentence
        case TaskStatus.ERROR if task.tolerated:
            return f"tolerated: {failure(task.error_code, task.error_message)}"
        case _:
            return failure(task.error_code, task.error_message)


# Steps that became a task for each item


@dataclass(frozen=True, slots=True)
class FoldedStep:
    """A step of a job with the tasks that it became, if it was multiplied."""

    task: TaskRow
    items: Sequence[TaskRow] = ()

    @property
    def title(self) -> str:
        count = self.task.items
        return self.task.task_key if count is None else f"{self.task.task_key} × {count}"

    @property
    def status(self) -> str:
        """That of its items together: what runs counts first, then what failed."""
        found = {task.status for task in self.items if not task.tolerated} | ({self.task.status} - {"done"})
        if found & {"starting", "running"} or (found & {"queued"} and found - {"queued"}):
            return "running"
        return next(
            (status for status in ("queued", "error", "cancelled", "done", "skipped") if status in found), "done"
        )

    @property
    def note(self) -> str:
        """`9 done, 2 running, 1 queued`"""
        if self.task.items is None:
            return task_note(self.task)
        if not self.items:
            return "its list was empty"
        counts = Counter(_kind(task) for task in self.items)
        return ", ".join(f"{counts[kind]} {kind}" for kind in _KINDS if counts[kind])

    @property
    def failures(self) -> list[TaskRow]:
        return [task for task in self.items if task.status == TaskStatus.ERROR]


_KINDS: Final = (
    "done",
    "cached",
    "running",
    "starting",
    "queued",
    "failed",
    "failed (tolerated)",
    "skipped",
    "cancelled",
)


def _kind(task: TaskRow) -> str:
    if task.status != TaskStatus.ERROR:
        return task.status if task.cached is None else "cached"
    return "failed (tolerated)" if task.tolerated else "failed"


def folded(tasks: Sequence[TaskRow]) -> list[FoldedStep]:
    """The steps in the order of the workflow; a task for an item stands with its step."""
    items: dict[UUID, list[TaskRow]] = {}
    for task in tasks:
        if task.parent is not None:
            items.setdefault(task.parent, []).append(task)
    ordered = {step: sorted(found, key=lambda task: task.item_no or 0) for step, found in items.items()}
    return [FoldedStep(task, ordered.get(task.id, ())) for task in tasks if task.parent is None]


def _waits_for(task: TaskRow) -> str:
    waits = "waits for earlier steps" if task.remaining else _HOLDS.get(task.hold or "", "waits for a node")
    if task.is_delayed:
        waits = "delayed by its step"
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
