"""Jobs: registered, listed, shown (JB-14 to JB-16)."""

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.joblib import Registered, register_job
from accsd.db.views.joblib import JoblibJob, job_named, jobs_seen, node_of
from accsd.gateway.answers import answer
from accsd.gateway.context import caller_of
from accsd.gateway.joblib.access import READ, WORK, JoblibRoute, needs, reach, reaches, require_superuser
from accsd.gateway.joblib.bodies import (
    DEFAULT_LIMIT,
    JobRegistration,
    Limit,
    Offset,
    job_document,
    job_summary,
    page,
)
from accsd.gateway.joblib.desk import desk_of
from accsd.gateway.joblib.names import EVERYWHERE, full_name, parts_of
from accsd.gateway.joblib.problems import JoblibProblem
from accsd.gateway.joblib.schemas import JOB, PAGE_OF_JOBS
from accsd.gateway.schemas import answers
from accsd.values.schemas import schema_of

router = APIRouter(prefix="/v1/joblib", route_class=JoblibRoute, tags=["jobs"])


async def job_or_404(request: Request, name: str) -> JoblibJob:
    if parts_of(name) is None:
        raise JoblibProblem("job-not-found", f"Invalid job name format: {name[:300]}")
    found = await job_named(desk_of(request).context.reads, name, within=reach(request))
    if found is None:
        raise JoblibProblem("job-not-found", f"Job '{name[:300]}' not found")
    return found


@router.put(
    "/rooms/{room_id}/jobs",
    operation_id="joblib.register_job",
    summary="Register a job, and that a worker serves it",
    status_code=201,
    responses=answers(JOB, 201, "New, or back again") | answers(JOB, 200, "It was there"),
    openapi_extra=needs(WORK),
)
async def register(request: Request, room_id: str, wanted: JobRegistration) -> Response:
    """Without `worker_id` a worker is made. A job that is there has to have the same schema."""
    caller = caller_of(request)
    if room_id in EVERYWHERE:
        require_superuser(caller, f"to register a job of {room_id}")
    _require_category(wanted.category, desk_of(request).settings.allowed_categories)
    name = full_name(room_id, wanted.category, wanted.name)
    if not reaches(caller, name):
        raise JoblibProblem("forbidden", f"token {caller.token_id} is limited to other jobs than {name}")
    registered = await register_job(
        desk_of(request).verbs(request.state.request_id),
        name,
        wanted.schema_,
        policy=_policy(request, wanted),
        at_once=wanted.max_concurrency,
        worker=wanted.worker_id,
        user=caller.actor,
    )
    _require_done(registered, name, wanted)
    desk_of(request).changed(jobs=[room_id], node=node_of(registered.worker))
    job = await job_or_404(request, name)
    document = job_document(job, workers=registered.workers, worker=registered.worker)
    return answer(document, status=200 if registered.verdict == "repeated" else 201)


def _require_category(category: str, allowed: list[str] | None) -> None:
    if allowed is not None and category not in allowed:
        raise JoblibProblem("invalid-category", f"Category '{category}' not in allowed list: {allowed}")


def _policy(request: Request, wanted: JobRegistration) -> dict[str, Any] | None:
    """How its tasks are treated, where something was said of that. A schema that payloads are checked with is one."""
    policy = wanted.policy()
    if desk_of(request).settings.validate_payloads:
        policy = {"validate": True} | policy
    if policy.get("validate"):
        schema_of(wanted.schema_)
    return policy or None


def _require_done(registered: Registered, name: str, wanted: JobRegistration) -> None:
    if registered.reason == "schema_conflict":
        raise JoblibProblem("schema-conflict", f"Schema mismatch for job '{name}'")
    if registered.reason is not None:
        raise JoblibProblem("worker-not-found", f"Worker '{wanted.worker_id}' not found or not owned by user")


@router.get(
    "/rooms/{room_id}/jobs",
    operation_id="joblib.list_jobs",
    summary="The jobs that are seen from a room, newest first",
    responses=answers(PAGE_OF_JOBS),
    openapi_extra=needs(READ),
)
async def list_page(request: Request, room_id: str, limit: Limit = DEFAULT_LIMIT, offset: Offset = 0) -> Response:
    reads = desk_of(request).context.reads
    found = await jobs_seen(reads, room_id, limit=limit, offset=offset, within=reach(request))
    return answer(page(map(job_summary, found.rows), found, limit, offset))


@router.get(
    "/rooms/{room_id}/jobs/{job_name:path}",
    operation_id="joblib.get_job",
    summary="A job by its full name",
    responses=answers(JOB),
    openapi_extra=needs(READ),
)
async def show(request: Request, room_id: str, job_name: str) -> Response:
    """The room need not be the job's."""
    return answer(job_document(await job_or_404(request, job_name)))
