"""How accsd does: health for anybody, the first screen, the daemons, the description of this API."""

from dataclasses import asdict
from typing import Any, Final

from fastapi import APIRouter, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from accsd import __version__
from accsd.db.install import read_status
from accsd.db.statistics import HourOfOutcomes, hourly_outcomes
from accsd.db.views import fleet, health
from accsd.db.views import jobs as job_views
from accsd.errors import Unavailable
from accsd.explain.health import no_builder, troubles
from accsd.explain.months import months, retention_words
from accsd.gateway.access import GuardedRoute, public, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.context import context_of
from accsd.gateway.problems import KINDS, HttpProblem
from accsd.gateway.reach import Reach
from accsd.gateway.routes.nodes import node_shown
from accsd.gateway.schemas import ANYTHING, answers, listed, objects, row_schema
from accsd.model.access import Scope

router = APIRouter(route_class=GuardedRoute, tags=["system"])
_TASKS: Final = 50
_FAILURES: Final = 20
_COUNTED: Final = {"type": "integer"}
_HEALTH: Final = objects(
    pending=_COUNTED, running=_COUNTED, failed=_COUNTED, stuck_running=_COUNTED, poller_running={"type": "boolean"}
)


@router.get(
    "/health",
    operation_id="health",
    summary="Whether this gateway answers",
    responses=answers(ANYTHING),
    openapi_extra=public(),
)
async def gateway_health(request: Request) -> Response:
    """Always 200, and nothing but counts: anybody may ask."""
    return await _counts(request)


@router.get(
    "/health/scheduler",
    operation_id="health.scheduler",
    summary="What is pending, running, failed, stuck",
    responses=answers(_HEALTH),
    openapi_extra=public(),
)
async def scheduler_health(request: Request) -> Response:
    return await _counts(request)


async def _counts(request: Request) -> Response:
    try:
        found = await health.scheduler_health(context_of(request).reads)
    except Unavailable:
        return answer({"status": "database_unavailable", "version": __version__, "poller_running": False})
    names = ("pending", "running", "failed", "stuck_running", "poller_running")
    return answer({"status": "ok", "version": __version__, **{name: getattr(found, name) for name in names}})


@router.get(
    "/api/v1/overview",
    operation_id="overview",
    summary="The first screen in one document",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ),
)
async def overview(request: Request) -> Response:
    """What runs, waits and failed, which machines are awake, what somebody should see to. From narrow tables only."""
    context = context_of(request)
    db = context.reads
    counts, builders = await health.scheduler_health(db), await health.builders(db)
    nodes = [node for node in await fleet.nodes(db) if node.is_machine]
    return answer(
        {
            "as_of": await job_views.clock(db),
            "counts": document(counts),
            "attention": [*no_builder(counts, builders), *troubles(counts, builders)],
            "workflows": [document(row) for row in await fleet.in_motion(db)],
            "services": [document(row) for row in await fleet.services(db)],
            "nodes": [node_shown(context, node) for node in nodes],
            "running": [document(row) for row in await fleet.live_tasks(db, limit=_TASKS)],
            "failures": [document(row) for row in await fleet.latest_failures(db, limit=_FAILURES)],
        }
    )


@router.get(
    "/api/v1/overview/outcomes",
    operation_id="overview.outcomes",
    summary="How attempts ended, hour by hour",
    responses=answers(listed(row_schema(HourOfOutcomes))),
    openapi_extra=scoped(Scope.READ),
)
async def outcomes(request: Request, hours: int = Query(24, ge=1, le=24 * 31)) -> Response:
    """The hours before now in which something ended, the oldest first."""
    db = context_of(request).reads
    now = await job_views.clock(db)
    return answer({"items": [document(row) for row in await hourly_outcomes(db, now, hours)], "as_of": now})


@router.get(
    "/api/v1/system",
    operation_id="system",
    summary="Daemons, the database, what is heard",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def system(request: Request) -> Response:
    context = context_of(request)
    listening = context.listener.state
    async with context.reads.acquire() as connection:
        schema = await read_status(connection)
    builders = await health.builders(context.reads)
    return answer(
        {
            "version": __version__,
            "schema": asdict(schema),
            "clock": await job_views.clock(context.reads),
            "hearing": {"state": listening.hearing, "reason": listening.reason},
            "hub": context.hub.facts,
            "builders": [document(row) for row in builders],
            "daemons": [document(row) for row in await health.daemons(context.reads)],
            "months": [document(row) for row in await months(context.reads)],
            "retention": retention_words(context.settings.retention),
            "scheduler": document(await health.scheduler_health(context.reads)),
        }
    )


@router.get(
    "/api/v1/openapi.json",
    operation_id="openapi",
    summary="This description",
    responses=answers(ANYTHING),
    openapi_extra=public(),
)
async def description() -> Response:
    from accsd.gateway.app import openapi  # which has these routes

    return answer(openapi())


@router.get(
    "/problems/{code}",
    operation_id="problems.get",
    summary="What a problem means",
    responses=answers(ANYTHING),
    openapi_extra=public(),
)
async def problem(code: str = Path(max_length=100)) -> Response:
    """Reasons of the state machine are told by `refused`."""
    kind = KINDS.get(code)
    if kind is None:
        raise HttpProblem("not_found", f'there is no kind of problem "{code}"')
    said: dict[str, Any] = {"code": code, "status": kind.status, "title": kind.title, "what_to_do": kind.page}
    return answer(said)
