"""What a cancel or a retry would do, told before it is done: the verb itself is rehearsed, and its tasks compared."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import UUID

from accsd.db.answers import Answer
from accsd.db.pool import Database
from accsd.db.rehearsal import rehearsed
from accsd.db.views.jobs import TaskRow, tasks_of
from accsd.model.state import TaskStatus

Verb = Callable[[Database], Awaitable[dict[UUID, Answer]]]
_LIVE = (TaskStatus.STARTING, TaskStatus.RUNNING)


async def cancel_preview(db: Database, job_id: UUID, verb: Verb) -> dict[str, Any]:
    answer, before, after = await _both(db, job_id, verb)
    ended = {task.id for task in after if task.status == TaskStatus.CANCELLED}
    return _told(answer) | {
        "stops": [task.task_key for task in before if task.status in _LIVE and task.id in ended],
        "never_begins": [task.task_key for task in before if task.status == TaskStatus.QUEUED and task.id in ended],
        "stays": [task.task_key for task in before if TaskStatus(task.status).is_terminal],
    }


async def retry_preview(db: Database, job_id: UUID, verb: Verb) -> dict[str, Any]:
    answer, before, after = await _both(db, job_id, verb)
    runs = {task.id: task.generation for task in before}
    again = [task for task in after if task.generation > runs.get(task.id, task.generation)]
    reopened = {task.id for task in again}
    return _told(answer) | {
        "runs_again": [task.task_key for task in again],
        "kept": [task.task_key for task in after if task.id not in reopened],
    }


async def _both(db: Database, job_id: UUID, verb: Verb) -> tuple[Answer, Sequence[TaskRow], Sequence[TaskRow]]:
    async def work(within: Database) -> tuple[Answer, Sequence[TaskRow], Sequence[TaskRow]]:
        before = await tasks_of(within, job_id)
        answer = (await verb(within))[job_id]
        return answer, before, await tasks_of(within, job_id)

    return await rehearsed(db, work)


def _told(answer: Answer) -> dict[str, Any]:
    return {"dry_run": True, "answer": answer.verdict, "reason": answer.reason}
