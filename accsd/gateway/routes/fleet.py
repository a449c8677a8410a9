"""The fleet in time: what each machine did, what it drew, and what is ahead."""

from datetime import datetime, timedelta
from typing import Any, Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.views.jobs import clock
from accsd.errors import InvalidValue
from accsd.explain.fleet_time import Timeline, energy_document, read_forecast, read_timeline
from accsd.gateway.access import GuardedRoute, scoped
from accsd.gateway.answers import answer, large_answer
from accsd.gateway.context import context_of
from accsd.gateway.reach import Reach
from accsd.gateway.schemas import ANYTHING, answers
from accsd.model.access import Scope
from accsd.planning.wake import WakePolicy

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["fleet"])
_DAY: Final = timedelta(days=1)
_LONGEST: Final = timedelta(days=400)
_FROM: Final = Query(None, alias="from", description="A day ago, if it is left out.")
_TO: Final = Query(None, alias="to")


@router.get(
    "/fleet/timeline",
    operation_id="fleet.timeline",
    summary="What each machine did: asleep, waking, booting, idle, busy, away",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ),
)
async def timeline(request: Request, begin: datetime | None = _FROM, end: datetime | None = _TO) -> Response:
    found = await _timeline(request, begin, end)
    return await large_answer(found.document, sum(len(lane.intervals) for lane in found.lanes))


@router.get(
    "/fleet/energy",
    operation_id="fleet.energy",
    summary="What each machine drew, and saved by sleeping",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.FREE),
)
async def energy(request: Request, begin: datetime | None = _FROM, end: datetime | None = _TO) -> Response:
    """By the watts that its settings say; machines without them are named, and not guessed."""
    settings = context_of(request).settings.gateway
    found = energy_document(await _timeline(request, begin, end))
    price: dict[str, Any] = {}
    if settings.price_per_kwh is not None:
        price = {
            "price_per_kwh": settings.price_per_kwh,
            "currency": settings.currency,
            "cost": found["kwh"] * settings.price_per_kwh,
            "saved_cost": found["saved_kwh"] * settings.price_per_kwh,
        }
    return answer(found | price)


async def _timeline(request: Request, begin: datetime | None, end: datetime | None) -> Timeline:
    context = context_of(request)
    now = await clock(context.reads)
    until = end or now
    since = begin or until - _DAY
    if since.tzinfo is None or until.tzinfo is None:
        raise InvalidValue("from and to need an offset: 2026-11-18T12:00:00Z")
    if not timedelta(0) < until - since <= _LONGEST:
        raise InvalidValue(f"from lies before to, by at most {_LONGEST.days} days")
    return await read_timeline(context.reads, since, end, silent=context.settings.lease)


@router.get(
    "/fleet/forecast",
    operation_id="fleet.forecast",
    summary="Which machines will be woken, when and for what",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ),
)
async def forecast(request: Request, hours: float = Query(24, gt=0, le=24 * 31)) -> Response:
    """As the planner sees it now: jobs that are due, and what schedules will start."""
    context = context_of(request)
    wake = context.settings.wake
    policy = WakePolicy(boot=wake.boot, rounds=wake.rounds, rest=wake.rest, longest_rest=wake.longest_rest)
    found = await read_forecast(
        context.reads, timedelta(hours=hours), lease=context.settings.lease, policy=policy, at_once=wake.at_once
    )
    return answer(found)
