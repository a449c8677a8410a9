"""Tasks: submitted, listed, claimed, shown, changed (JB-18 to JB-26)."""

import re
import time
from typing import Any, Final
from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.joblib import SubmittedTask, end_task, submit_task
from accsd.db.lease import start_tasks
from accsd.db.views.joblib import TERMINAL, JoblibJob, JoblibTask, task_of, tasks_seen, worker_named
from accsd.errors import NotFound
from accsd.gateway.answers import answer
from accsd.gateway.context import caller_of
from accsd.gateway.joblib.access import (
    READ,
    SUBMIT,
    WORK,
    JoblibRoute,
    is_superuser,
    needs,
    reach,
    require_own,
)
from accsd.gateway.joblib.bodies import (
    DEFAULT_LIMIT,
    Limit,
    Offset,
    Status,
    TaskClaim,
    TaskSubmission,
    TaskUpdate,
    page,
    task_document,
)
from accsd.gateway.joblib.desk import desk_of
from accsd.gateway.joblib.jobs import job_or_404
from accsd.gateway.joblib.problems import JoblibProblem
from accsd.gateway.joblib.schemas import CLAIM, PAGE_OF_TASKS, TASK
from accsd.gateway.joblib.workers import workers_meant
from accsd.gateway.messages import Topic
from accsd.gateway.problems import HttpProblem
from accsd.gateway.routes.jobs import idempotency_key, refuse_a_backlog
from accsd.gateway.schemas import answers
from accsd.model import Fence

router = APIRouter(prefix="/v1/joblib", route_class=JoblibRoute, tags=["tasks"])
_WAIT: Final = re.compile(r"(?:^|,)\s*wait=(\d{1,9})\s*(?:,|;|$)")
_ATTEMPT: Final = re.compile(r'"(\d{1,9})"')
_MOVES: Final = {
    "pending": {"cancelled"},
    "claimed": {"running", "failed", "cancelled"},
    "running": {"completed", "failed", "cancelled"},
}
_REFUSALS: Final = {
    "workflow_inactive": ("job-not-found", "Job '{}' not found"),
    "no_executor": ("internal-job-not-configured", "Internal job '{}' is registered but no executor is available"),
    "no_workers": ("no-workers-available", "nobody serves the job '{}'"),
}


def wait_of(request: Request, longest: int) -> int | None:
    """The seconds of `Prefer: wait=N`, wherever in it; None: not asked for, or not a number."""
    found = _WAIT.search(request.headers.get("prefer", ""))
    return None if found is None else min(int(found[1]), longest)


# Submission and lists


@router.post(
    "/rooms/{room_id}/tasks/{job_name:path}",
    operation_id="joblib.submit_task",
    summary="Submit a task into a room",
    status_code=202,
    responses=answers(TASK, 202),
    openapi_extra=needs(SUBMIT),
)
async def submit(request: Request, room_id: str, job_name: str, wanted: TaskSubmission) -> Response:
    """Of a job of any room. The same `Idempotency-Key` again is the same task."""
    at = desk_of(request)
    job = await job_or_404(request, job_name)
    await refuse_a_backlog(at.context)
    options = {"room_id": room_id, "payload": wanted.payload}
    made = await submit_task(
        at.verbs(request.state.request_id),
        job,
        options,
        key=idempotency_key(request),
        user=caller_of(request).actor,
        needs_worker=at.settings.submit_without_workers == "refuse",
    )
    task = await _submitted(request, made, job, options)
    headers = {"Location": f"{at.context.settings.gateway.base_path}/v1/joblib/tasks/{task.id}", "Retry-After": "1"}
    if made.verdict == "repeated":
        headers["Idempotency-Replayed"] = "true"
    return answer(task_document(task, at.context.redaction), status=202, headers=headers)


async def _submitted(request: Request, made: SubmittedTask, job: JoblibJob, options: dict[str, Any]) -> JoblibTask:
    if made.job_id is None:
        kind, said = _REFUSALS.get(made.reason or "", ("job-not-found", "Job '{}' can't be submitted"))
        raise JoblibProblem(kind, said.format(job.full_name))
    asked = job.full_name, options["room_id"], options["payload"]
    task = await task_of(desk_of(request).context.reads, made.job_id)
    if task is None or (made.verdict == "repeated" and (task.job_name, task.room_id, task.payload) != asked):
        raise HttpProblem("idempotency_mismatch", f"this key was used for job {made.job_id}, which is another")
    return task


@router.get(
    "/rooms/{room_id}/tasks",
    operation_id="joblib.list_tasks",
    summary="The tasks that were submitted into a room, newest first",
    responses=answers(PAGE_OF_TASKS),
    openapi_extra=needs(READ),
)
async def list_of_room(
    request: Request,
    room_id: str,
    status: Status | None = None,
    limit: Limit = DEFAULT_LIMIT,
    offset: Offset = 0,
) -> Response:
    return await _listed(request, room_id, None, status, limit, offset)


@router.get(
    "/rooms/{room_id}/jobs/{job_name:path}/tasks",
    operation_id="joblib.list_job_tasks",
    summary="Those of one job",
    responses=answers(PAGE_OF_TASKS),
    openapi_extra=needs(READ),
)
async def list_of_job(
    request: Request,
    room_id: str,
    job_name: str,
    status: Status | None = None,
    limit: Limit = DEFAULT_LIMIT,
    offset: Offset = 0,
) -> Response:
    job = await job_or_404(request, job_name)
    return await _listed(request, room_id, job.full_name, status, limit, offset)


async def _listed(
    request: Request, room: str, job: str | None, status: str | None, limit: int, offset: int
) -> Response:
    context = desk_of(request).context
    found = await tasks_seen(
        context.reads, room, limit=limit, offset=offset, job=job, status=status, within=reach(request)
    )
    return answer(page((task_document(task, context.redaction) for task in found.rows), found, limit, offset))


# What a worker does


@router.post(
    "/tasks/claim",
    operation_id="joblib.claim_task",
    summary="Claim the oldest task of all jobs that a worker serves",
    responses=answers(CLAIM),
    openapi_extra=needs(WORK),
)
async def claim(request: Request, wanted: TaskClaim | None = None) -> Response:
    """`{"task": null}` if there is none; with `Prefer: wait=N` only after so many seconds. The ETag is the attempt.
    Without a body: for any worker of the caller; the newest of them waits."""
    at = desk_of(request)
    newest, *others = await workers_meant(request, None if wanted is None else wanted.worker_id)
    patience = wait_of(request, at.settings.long_poll_max_wait_seconds)
    headers = {"Preference-Applied": f"wait={patience}"} if patience else {}
    task: JoblibTask | None = None
    for worker, waits in [*((other, 0) for other in others), (newest, patience or 0)]:
        require_own(caller_of(request), worker)
        try:
            task = await at.claims.claim(worker, waits, request)
        except NotFound:
            raise JoblibProblem("worker-not-found", f"Worker '{worker.id}' not found") from None
        if task is not None:
            break
    if task is None:
        return answer({"task": None}, headers=headers)
    return answer({"task": task_document(task, None)}, headers=headers | {"ETag": f'"{task.attempt_id}"'})


@router.get(
    "/tasks/{task_id}",
    operation_id="joblib.get_task",
    summary="A task",
    responses=answers(TASK),
    openapi_extra=needs(READ),
)
async def show(request: Request, task_id: UUID) -> Response:
    """With `Prefer: wait=N` as soon as it has ended, or after so many seconds (JB-23)."""
    context, hub = desk_of(request).context, desk_of(request).context.hub
    patience = wait_of(request, desk_of(request).settings.long_poll_max_wait_seconds)
    ends = time.monotonic() + (patience or 0)
    headers: dict[str, str] = {}
    while True:
        mark = await hub.now() if patience else None  # before the look, so that no change falls between the two
        task = await _task_or_404(request, task_id)
        left = ends - time.monotonic()
        if not patience or task.status in TERMINAL or left <= 0:
            return answer(task_document(task, context.redaction), headers=headers)
        headers = {"Preference-Applied": f"wait={patience}"}
        if not await hub.changed(Topic.job(task_id), within=left, after=mark):
            ends = 0.0  # the time is over, or the gateway stops: what is there now is the answer


@router.patch(
    "/tasks/{task_id}",
    operation_id="joblib.update_task",
    summary="Say that a task runs, or how it has ended",
    responses=answers(TASK),
    openapi_extra=needs(WORK),
)
async def update(request: Request, task_id: UUID, wanted: TaskUpdate) -> Response:
    """By the user whose worker holds it, or an admin. With `If-Match` (the ETag of the claim) only of that attempt;
    then it may be said again."""
    task = await _task_or_404(request, task_id)
    await _require_holder(request, task)
    attempt = _attempt_of(request, wanted)
    if attempt is not None and attempt != task.attempt_id:
        raise JoblibProblem("stale-attempt", f"attempt {attempt} is over: the present one is {task.attempt_id}")
    is_repeated = attempt is not None and task.status == wanted.status and task.is_served
    if not is_repeated:
        _require_move(task, wanted.status)
        if wanted.status == "running":
            await _start(request, task)
        else:
            await _end(request, task, wanted, attempt)
    shown = await _task_or_404(request, task_id)
    return answer(task_document(shown, None), headers={"ETag": f'"{shown.attempt_id}"'})


async def _task_or_404(request: Request, task_id: UUID) -> JoblibTask:
    found = await task_of(desk_of(request).context.reads, task_id, within=reach(request))
    if found is None:
        raise JoblibProblem("task-not-found", f"Task '{task_id}' not found")
    return found


async def _require_holder(request: Request, task: JoblibTask) -> None:
    caller = caller_of(request)
    if is_superuser(caller):
        return
    if task.worker_id is None:
        raise JoblibProblem("forbidden", "Task not claimed by any worker")
    worker = await worker_named(desk_of(request).context.reads, task.worker_id)
    if worker is None:
        raise JoblibProblem("forbidden", "Not authorized to update this task")
    require_own(caller, worker)


def _attempt_of(request: Request, wanted: TaskUpdate) -> int | None:
    given = request.headers.get("if-match")
    found = None if given is None else _ATTEMPT.fullmatch(given.strip())
    if given is not None and given != "*" and found is None:
        raise JoblibProblem("stale-attempt", 'If-Match is the ETag of a claim: an attempt in quotes, such as "1"')
    return wanted.attempt_id if found is None else int(found[1])


def _require_move(task: JoblibTask, to: str) -> None:
    """What the fleet does can only be cancelled here: its machines say how it ends."""
    if to not in _MOVES.get(task.status, ()) or (not task.is_served and to != "cancelled"):
        raise JoblibProblem("invalid-task-transition", f"Cannot transition from '{task.status}' to '{to}'")


async def _start(request: Request, task: JoblibTask) -> None:
    assert task.task_id is not None
    assert task.node is not None
    fence = Fence(task.task_id, task.attempt_id)
    said = (await start_tasks(desk_of(request).context.verbs, [fence], owner=task.node))[task.task_id]
    if not said.is_effective:
        raise JoblibProblem("invalid-task-transition", f"Cannot transition to 'running': {said.reason}")


async def _end(request: Request, task: JoblibTask, wanted: TaskUpdate, attempt: int | None) -> None:
    at = desk_of(request)
    verdict, reason = await end_task(
        at.verbs(request.state.request_id),
        task,
        wanted.status,
        attempt=attempt,
        error=wanted.error or None,
        result=wanted.result if wanted.status == "completed" else None,
        keep=at.keeps_dead_letters,
        by=caller_of(request).actor,
    )
    if reason == "stale_attempt":
        raise JoblibProblem("stale-attempt", f"the task was given to another worker than that of attempt {attempt}")
    if verdict == "refused":
        raise JoblibProblem("invalid-task-transition", f"Cannot transition to '{wanted.status}': {reason}")
