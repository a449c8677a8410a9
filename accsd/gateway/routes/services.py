"""Services and concurrency keys."""

from datetime import timedelta
from typing import Any, Final

from fastapi import APIRouter, Body, Path
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import Database, Pausable, Verdict, set_concurrency_limit
from accsd.db.quarantine import NodeEvidence, evidence_by_node
from accsd.db.statistics import Outcomes, outcomes_of
from accsd.db.views import fleet
from accsd.db.views.fleet import KeyView, ServiceView
from accsd.db.views.jobs import clock
from accsd.explain.fleet import service_state
from accsd.gateway.access import GuardedRoute, require_limit, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Body as RequestBody
from accsd.gateway.bodies import Reason
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.reach import Reach
from accsd.gateway.routes.pauses import pause_thing, resume_thing
from accsd.gateway.routes.verbs import done
from accsd.gateway.schemas import ANYTHING, TEXT, answers, listed, objects, row_schema
from accsd.model.access import Scope

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["services"])
_NAME: Final = Path(min_length=1, max_length=200)
SERVICE: Final = {"allOf": [row_schema(ServiceView), objects(state=TEXT)]}
_ONE: Final = objects(
    outcomes={"type": "array", "items": row_schema(Outcomes)},
    evidence={"type": "array", "items": row_schema(NodeEvidence)},
)
_DAY: Final = timedelta(days=1)
_BUCKET: Final = timedelta(minutes=30)


@router.get(
    "/services",
    operation_id="services.list",
    summary="What waits for each service, what runs, who offers it",
    responses=answers(listed(SERVICE)),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def list_services(request: Request) -> Response:
    return answer({"items": [_document(row) for row in await fleet.services(context_of(request).reads)]})


@router.get(
    "/services/{name}",
    operation_id="services.get",
    summary="A service",
    responses=answers({"allOf": [SERVICE, _ONE]}),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def get_service(request: Request, name: str = _NAME) -> Response:
    """With how its attempts ended in the last 24 hours, and on which machines it fails."""
    db = context_of(request).reads
    found = _document(await fleet.service_named(db, name))
    ended = await outcomes_of(db, name, await clock(db) - _DAY, bucket=_BUCKET)
    evidence = await evidence_by_node(db, name)
    more = {"outcomes": [document(row) for row in ended], "evidence": [document(row) for row in evidence]}
    return answer(found | more)


def _document(row: ServiceView) -> dict[str, Any]:
    return document(row) | {"state": service_state(row)}


@router.post(
    "/services/{name}/pause",
    operation_id="services.pause",
    summary="Let nobody begin a task of a service",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def pause(
    request: Request, name: str = _NAME, asked: Reason = Body(default=Reason()), dry_run: bool = False
) -> Response:
    """What runs goes on."""
    require_limit(caller_of(request), "services", name)
    await fleet.service_named(context_of(request).reads, name)
    return await pause_thing(request, Pausable.SERVICE, name, asked, dry_run=dry_run)


@router.post(
    "/services/{name}/resume",
    operation_id="services.resume",
    summary="Let the tasks of a service begin again",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def resume(
    request: Request, name: str = _NAME, asked: Reason = Body(default=Reason()), dry_run: bool = False
) -> Response:
    """Also on machines where it is in quarantine."""
    require_limit(caller_of(request), "services", name)
    await fleet.service_named(context_of(request).reads, name)
    return await resume_thing(request, Pausable.SERVICE, name, asked, dry_run=dry_run)


class KeyLimit(RequestBody):
    limit: int = Field(ge=1, le=2**31 - 1)
    reason: str | None = Field(default=None, max_length=1000)


@router.get(
    "/keys",
    operation_id="keys.list",
    summary="Concurrency keys, their limits and what they hold back",
    responses=answers(listed(row_schema(KeyView))),
    openapi_extra=scoped(Scope.READ),
)
async def list_keys(request: Request) -> Response:
    return answer({"items": [document(row) for row in await fleet.keys(context_of(request).reads)]})


@router.put(
    "/keys/{key}",
    operation_id="keys.limit",
    summary="How many tasks of a key may run at once",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.OPERATE),
)
async def limit(
    request: Request, asked: KeyLimit, key: str = Path(min_length=1, max_length=500), dry_run: bool = False
) -> Response:
    by = caller_of(request).actor

    async def work(db: Database) -> Verdict:
        return await set_concurrency_limit(db, key, asked.limit, by=by, reason=asked.reason)

    verdict = await done(request, work, dry_run=dry_run)
    return answer({"answer": verdict, "key": key, "limit": asked.limit} | ({"dry_run": True} if dry_run else {}))
