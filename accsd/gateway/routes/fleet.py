"""The fleet in time: what each machine did, what it drew, what is ahead, and what more jobs would do."""

import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Annotated, Any, Final

import anyio
import anyio.to_thread
from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.views.jobs import clock
from accsd.db.views.workflows import workflow_named
from accsd.errors import InvalidValue, QueryTooSlow
from accsd.explain.fleet_time import Timeline, energy_document, read_forecast, read_timeline
from accsd.gateway.access import GuardedRoute, counted_as, scoped
from accsd.gateway.answers import answer, large_answer
from accsd.gateway.bodies import Body
from accsd.gateway.context import GatewayContext, caller_of, context_of
from accsd.gateway.limits import counting
from accsd.gateway.problems import HttpProblem
from accsd.gateway.reach import Reach
from accsd.gateway.schemas import ANYTHING, TEXT, answers, objects
from accsd.model.access import Scope
from accsd.planning.wake import WakePolicy
from accsd.simulation.present import Asked, Planner, Present, read_present, rehearse_present, unknown_steps

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["fleet"])
_DAY: Final = timedelta(days=1)
_LONGEST: Final = timedelta(days=400)
_LONGEST_REHEARSAL: Final = timedelta(seconds=10)
_FARTHEST: Final = timedelta(days=3660)
_one_rehearsal: Final = anyio.Semaphore(1)  # each takes a core for as long as it lasts
_rehearsals: Final = Counter[str]()  # by caller, in this process; those that wait, too
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
    found = await read_forecast(
        context.reads,
        timedelta(hours=hours),
        lease=context.settings.lease,
        policy=_policy(context),
        at_once=context.settings.wake.at_once,
    )
    return answer(found)


def _policy(context: GatewayContext) -> WakePolicy:
    wake = context.settings.wake
    return WakePolicy(boot=wake.boot, rounds=wake.rounds, rest=wake.rest, longest_rest=wake.longest_rest)


class RehearsalAsked(Body):
    workflow: str = Field(min_length=1, max_length=200)
    version: int | None = Field(default=None, ge=1, le=2**31 - 1)
    count: int = Field(default=1, ge=1, le=1000, description="How many jobs of it.")
    due_at: datetime | None = Field(default=None, description="When they are to begin; now, if it is left out.")
    priority: int = Field(default=0, ge=-(2**31), le=2**31 - 1)
    durations: dict[str, Annotated[float, Field(gt=0, le=31_622_400)]] = Field(
        default_factory=dict, description="Seconds by step, instead of the usual ones; for a step that never ran."
    )


_MOMENT: Final = {"type": ["string", "null"], "format": "date-time"}
_WHEN: Final = {"starts_at": _MOMENT, "ends_at": _MOMENT, "slow_ends_at": _MOMENT}
_REHEARSAL: Final = objects(
    **_WHEN,
    jobs={"type": "array", "items": objects(**_WHEN)},
    wakes={"type": "array", "items": ANYTHING},
    nodes={"type": "array", "items": ANYTHING},
    kwh={"type": "number"},
    unmet={"type": "array", "items": ANYTHING},
    delayed=ANYTHING,
    assumed={"type": "array", "items": TEXT},
)


@router.post(
    "/fleet/rehearsal",
    operation_id="fleet.rehearse",
    summary="What some more jobs would do to the fleet: who wakes, when they end, what it costs",
    responses=answers(_REHEARSAL),
    openapi_extra=scoped(Scope.READ),
)
async def rehearse(request: Request, asked: RehearsalAsked) -> Response:
    """Nothing is written. The planner's own code runs on virtual time, with the machines and all that is in motion as
    they are now: once with these jobs and once without. Steps take as long as they usually do (`ends_at`), and as their
    slow runs (`slow_ends_at`)."""
    context = context_of(request)
    if asked.due_at is not None and asked.due_at.tzinfo is None:
        raise InvalidValue("due_at needs an offset: 2026-11-18T12:00:00Z")
    workflow = await workflow_named(context.reads, asked.workflow, asked.version)
    wake = context.settings.wake
    planner = Planner(context.settings.lease, _policy(context), wake.ahead, wake.at_once)
    async with _turn_of(counted_as(caller_of(request))):
        present = await read_present(context.reads, workflow, silent=context.settings.lease)
        due_in = timedelta(0) if asked.due_at is None else max(timedelta(0), asked.due_at - present.now)
        if due_in > _FARTHEST:
            raise InvalidValue(f"due_at lies at most {_FARTHEST.days} days ahead in a rehearsal")
        wanted = Asked(workflow, asked.count, due_in.total_seconds(), asked.priority, asked.durations)
        _require_durations(present, wanted)
        found = await in_time(lambda tell: rehearse_present(present, wanted, planner, tell))
    settings = context.settings.gateway
    price: dict[str, Any] = {}
    if settings.price_per_kwh is not None:
        price = {"cost": found["kwh"] * settings.price_per_kwh, "currency": settings.currency}
    return answer(found | price)


@asynccontextmanager
async def _turn_of(caller: str) -> AsyncGenerator[None]:
    """One after the other, and one of each caller: who asks again and again, or has hung up, is in nobody's way."""
    if _rehearsals[caller]:
        raise HttpProblem(
            "rate_limited",
            "a rehearsal of the same token or session is under way",
            hint="ask again when it has ended",
            headers={"Retry-After": "1"},
        )
    with counting(_rehearsals, caller):
        with anyio.move_on_after(_LONGEST_REHEARSAL.total_seconds()) as waiting:
            await _one_rehearsal.acquire()
        if waiting.cancelled_caught:
            raise QueryTooSlow("rehearsals of others take too long", hint="ask again later")
        try:
            yield
        finally:
            _one_rehearsal.release()


async def in_time(
    work: Callable[[Callable[[float], None]], dict[str, Any]], most: timedelta = _LONGEST_REHEARSAL
) -> dict[str, Any]:
    """Does the work in a thread. It is given up when it has taken too long, or the gateway stops: a process does not
    end before its threads have."""
    until, is_left = time.monotonic() + most.total_seconds(), threading.Event()

    def tell(_: float) -> None:
        if is_left.is_set() or time.monotonic() > until:
            raise QueryTooSlow("the rehearsal took too long", hint="ask for fewer jobs")

    try:
        return await anyio.to_thread.run_sync(work, tell, abandon_on_cancel=True)
    finally:
        is_left.set()


def _require_durations(present: Present, wanted: Asked) -> None:
    keys = {str(step["key"]) for step in wanted.workflow.steps}
    wrong = {
        f"/body/durations/{key}": "the workflow has no such step" for key in sorted(wanted.durations.keys() - keys)
    }
    wrong |= {
        f"/body/durations/{key}": "it is not known yet how long the step takes: say how many seconds"
        for key in unknown_steps(present, wanted)
    }
    if wrong:
        told = "; ".join(f"{place}: {said}" for place, said in list(wrong.items())[:5])
        raise HttpProblem("invalid", told, errors=[{"pointer": place, "detail": said} for place, said in wrong.items()])
