"""What Socket.IO tells, made of events of accsd (JB, 1.10): names and payloads, and to which rooms they go.

An event says what its task became; the rest is as the task is now. A new task has no event of its own: that its job is
begun stands for it.
"""

from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple, cast

from accsd.db.feed import FeedEvent
from accsd.db.views.joblib import TERMINAL, JoblibTask
from accsd.gateway.joblib.names import INTERNAL, parts_of

STATES: Final = frozenset({"status", "retry"})  # events after which a task is another one than before
_STATUS: Final = {
    "queued": "pending",
    "starting": "claimed",
    "running": "running",
    "done": "completed",
    "skipped": "completed",
    "error": "failed",
    "cancelled": "cancelled",
}


class Emission(NamedTuple):
    event: str
    payload: dict[str, Any]
    room: str
    job: str  # what a token that is limited to some jobs has to reach


def emissions_of(event: FeedEvent, task: JoblibTask) -> Iterator[Emission]:
    status = _status_of(event, task)
    if status is None:
        return
    yield Emission("task_status_event", _status_event(task, status), f"room:{task.room_id}", task.job_name)
    parts = parts_of(task.job_name)
    if status == "pending" and parts is not None and parts[0] != INTERNAL:
        available = {"job_name": task.job_name, "room_id": task.room_id, "task_id": str(task.id)}
        yield Emission("task_available", available, f"jobs:{task.job_name}", task.job_name)


def _status_of(event: FeedEvent, task: JoblibTask) -> str | None:
    """None: the event is none of the door's."""
    data = cast("dict[str, Any]", event.data) if isinstance(event.data, dict) else {}
    if event.type not in STATES:
        return None
    if not task.is_single or task.task_id is None:
        return task.status
    if event.task_id is not None:
        return _STATUS.get(data.get("to", ""))
    return "pending" if (data.get("from"), data.get("to")) == ("queued", "running") else None


def _status_event(task: JoblibTask, status: str) -> dict[str, Any]:
    known = _as_it_was(task, status)
    return {
        "id": str(known.id),
        "name": known.job_name,
        "room_id": known.room_id,
        "status": status,
        "created_at": _written(known.created_at),
        "started_at": _written(known.started_at),
        "completed_at": _written(known.completed_at),
        "queue_position": known.queue_position,
        "worker_id": None if known.worker_id is None else str(known.worker_id),
        "error": known.error,
    }


def _as_it_was(task: JoblibTask, status: str) -> JoblibTask:
    """Without what came later than the event."""
    if status in TERMINAL or status == task.status:
        return task
    earlier = replace(task, completed_at=None, error=None, queue_position=None)
    if status == "running":
        return earlier
    return replace(earlier, started_at=None, node=task.node if status == "claimed" else None)


def _written(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
