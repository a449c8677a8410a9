"""Workers: made, listed, heard, removed (JB-10 to JB-13, JB-17)."""

from uuid import UUID

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.joblib import hear_worker, make_worker
from accsd.db.views.joblib import JoblibWorker, actor_id, worker_named, workers_of_user, workers_seen
from accsd.gateway.answers import answer
from accsd.gateway.context import caller_of
from accsd.gateway.joblib.access import READ, WORK, JoblibRoute, needs, reach, require_own
from accsd.gateway.joblib.bodies import DEFAULT_LIMIT, Limit, Offset, page, worker_summary
from accsd.gateway.joblib.desk import desk_of
from accsd.gateway.joblib.problems import JoblibProblem
from accsd.gateway.joblib.schemas import PAGE_OF_WORKERS, WORKER
from accsd.gateway.schemas import answers

router = APIRouter(prefix="/v1/joblib", route_class=JoblibRoute, tags=["workers"])


async def workers_meant(request: Request, worker_id: UUID | None) -> list[JoblibWorker]:
    """The worker of this id. For the first clients a worker was its user: the id that /v1/me tells, or none, means all
    workers of the caller, the newest first."""
    reads, user = desk_of(request).context.reads, caller_of(request).actor
    if worker_id is not None and (found := await worker_named(reads, worker_id)) is not None:
        return [found]
    if worker_id is None or worker_id == await actor_id(reads, user):
        if own := await workers_of_user(reads, user):
            return own
        raise JoblibProblem("worker-not-found", "You have no worker: register a job, or POST /v1/joblib/workers")
    raise JoblibProblem("worker-not-found", f"Worker '{worker_id}' not found")


@router.post(
    "/workers",
    operation_id="joblib.make_worker",
    summary="Make a worker",
    status_code=201,
    responses=answers(WORKER, 201),
    openapi_extra=needs(WORK),
)
async def make(request: Request) -> Response:
    """Of the caller, who may have many."""
    worker, heard = await make_worker(desk_of(request).verbs(request.state.request_id), caller_of(request).actor)
    return answer({"id": worker, "last_heartbeat": heard}, status=201)


@router.get(
    "/workers",
    operation_id="joblib.list_workers",
    summary="All workers, newest first",
    responses=answers(PAGE_OF_WORKERS),
    openapi_extra=needs(READ),
)
async def list_all(request: Request, limit: Limit = DEFAULT_LIMIT, offset: Offset = 0) -> Response:
    return await _listed(request, None, limit, offset)


@router.get(
    "/rooms/{room_id}/workers",
    operation_id="joblib.list_room_workers",
    summary="The workers that serve a job which is seen from a room",
    responses=answers(PAGE_OF_WORKERS),
    openapi_extra=needs(READ),
)
async def list_of_room(request: Request, room_id: str, limit: Limit = DEFAULT_LIMIT, offset: Offset = 0) -> Response:
    return await _listed(request, room_id, limit, offset)


async def _listed(request: Request, room: str | None, limit: int, offset: int) -> Response:
    reads, user = desk_of(request).context.reads, caller_of(request).actor
    found = await workers_seen(reads, limit=limit, offset=offset, user=user, room=room, within=reach(request))
    return answer(page(map(worker_summary, found.rows), found, limit, offset))


@router.patch(
    "/workers/{worker_id}",
    operation_id="joblib.hear_worker",
    summary="A sign of life",
    responses=answers(WORKER),
    openapi_extra=needs(WORK),
)
async def heartbeat(request: Request, worker_id: UUID) -> Response:
    """Keeps all tasks that the worker holds. Its owner only, an admin neither."""
    heard = None
    for worker in await workers_meant(request, worker_id):
        require_own(caller_of(request), worker)
        heard = await hear_worker(desk_of(request).context.verbs, worker.id, desk_of(request).settings.lease) or heard
    if heard is None:
        raise JoblibProblem("worker-not-found", f"Worker '{worker_id}' not found")
    return answer({"id": worker_id, "last_heartbeat": heard})


@router.delete(
    "/workers/{worker_id}",
    operation_id="joblib.remove_worker",
    summary="Remove a worker",
    status_code=204,
    openapi_extra=needs(WORK),
)
async def remove(request: Request, worker_id: UUID) -> Response:
    """Its tasks fail, its providers go, and so do jobs that nobody serves and nobody waits for."""
    for worker in await workers_meant(request, worker_id):
        require_own(caller_of(request), worker, or_superuser=True)
        await desk_of(request).remove_worker(
            desk_of(request).verbs(request.state.request_id), worker.node, by=caller_of(request).actor
        )
    return Response(status_code=204)
