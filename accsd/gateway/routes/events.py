"""Events from outside, conditions, and webhooks: what starts schedules without a time."""

import time
from datetime import datetime
from typing import Any, Final

from fastapi import APIRouter, Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from accsd.db import conditions as condition_store
from accsd.db import topics
from accsd.db.conditions import ConditionRow, SampleAnswer, SampleRow
from accsd.db.topics import Emitted, TopicEvent
from accsd.errors import AccsdError, InvalidValue, NotFound, VerbRefused
from accsd.gateway.access import GuardedRoute, address_of, public, require_limit, scoped
from accsd.gateway.answers import answer, document
from accsd.gateway.bodies import Body as RequestBody
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.hooks import Forged, Sent, receive, secrets_of
from accsd.gateway.problems import HttpProblem
from accsd.gateway.reach import Reach, events_within
from accsd.gateway.routes.jobs import idempotency_key
from accsd.gateway.routes.verbs import done
from accsd.gateway.schemas import ANYTHING, answers, listed, row_schema
from accsd.log import get_logger
from accsd.model.access import Scope

router = APIRouter(route_class=GuardedRoute, tags=["events"])
_log = get_logger(component="hooks")
_EVENT: Final = row_schema(TopicEvent)
_MOST: Final = 500
_OUR_KEYS: Final = frozenset({"hook", "http", "task", "accs"})


class EventEmitted(RequestBody):
    topic: str = Field(min_length=1, max_length=200, examples=["shop.order.created"])
    payload: dict[str, Any] = Field(default_factory=dict)
    key: str | None = Field(default=None, min_length=1, max_length=500, description="The same again is the same event.")
    occurred_at: datetime | None = None


@router.post(
    "/api/v1/events",
    operation_id="events.emit",
    summary="Emit an event",
    status_code=202,
    responses=answers(ANYTHING, 202, "Emitted") | answers(ANYTHING, 200, "Emitted before, or a dry run"),
    openapi_extra=scoped(Scope.SUBMIT, Reach.FREE),
)
async def emit(request: Request, wanted: EventEmitted, dry_run: bool = False) -> Response:
    """Schedules of kind event start for it. An `Idempotency-Key` is a key, too."""
    caller = caller_of(request)
    require_limit(caller, "events", wanted.topic)
    key = _own_key(request, wanted.key)

    async def work(db: topics.Database) -> Emitted:
        return await topics.emit_event(
            db, wanted.topic, wanted.payload, key=key, occurred_at=wanted.occurred_at, source=caller.actor
        )

    made = await done(request, work, dry_run=dry_run)
    said = {"event_id": made.event_id, "answer": made.verdict, "matched": made.matched}
    if dry_run:
        return answer({"dry_run": True, "answer": made.verdict, "matched": made.matched})
    return answer(said, status=202 if made.verdict == "accepted" else 200)


def _own_key(request: Request, given: str | None) -> str | None:
    """A key that was given, unless it is one of accsd's own: whoever may use those could make a webhook's delivery, or
    somebody else's event, look as if it had come before."""
    if given is None:
        return idempotency_key(request)
    if given.partition("/")[0] in _OUR_KEYS and "/" in given:
        raise InvalidValue(f'a key does not begin with "{given.partition("/")[0]}/": those are accsd\'s own')
    return given


@router.get(
    "/api/v1/events",
    operation_id="events.list",
    summary="Events, and what each one caused",
    responses=answers(listed(_EVENT)),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_events(
    request: Request,
    topic: str | None = Query(None, max_length=200, description="A topic; its last segment may be * or **"),
    after: int | None = Query(None, ge=0, le=2**53, description="Those after this id, the oldest first"),
    limit: int = Query(100, ge=1, le=_MOST),
) -> Response:
    context = context_of(request)
    rows = await topics.events(context.reads, pattern=topic, after=after, limit=limit)
    shown = await events_within(context, caller_of(request), rows)
    return answer({"items": [document(row, context.redaction) for row in shown]})


# Conditions


class Sample(RequestBody):
    value: float | bool | None = Field(description="null: it could not be measured")
    at: datetime | None = None
    key: str | None = Field(default=None, min_length=1, max_length=500)


@router.get(
    "/api/v1/conditions",
    operation_id="conditions.list",
    summary="Conditions, and how they stand",
    responses=answers(listed(row_schema(ConditionRow))),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def list_conditions(request: Request) -> Response:
    caller, found = caller_of(request), await condition_store.conditions(context_of(request).reads)
    rows = [row for row in found if caller.reaches("workflows", row.workflow)]
    redaction = context_of(request).redaction
    return answer({"items": [document(row, redaction) for row in rows]})


_CONDITION: Final = Path(min_length=1, max_length=200)


async def _condition(request: Request, name: str) -> list[ConditionRow]:
    """The condition in every schedule that has it: who does not reach all of them reaches none."""
    rows, caller = await condition_store.conditions(context_of(request).reads, name), caller_of(request)
    if not all(caller.reaches("workflows", row.workflow) for row in rows):
        raise NotFound(f"there is no condition {name}")
    return rows


@router.get(
    "/api/v1/conditions/{name}",
    operation_id="conditions.get",
    summary="A condition with its last samples",
    responses=answers(ANYTHING),
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def get_condition(request: Request, name: str = _CONDITION, limit: int = Query(20, ge=0, le=200)) -> Response:
    context = context_of(request)
    rows = await _condition(request, name)
    samples: list[SampleRow] = await condition_store.samples(context.reads, name, limit=limit)
    shown = [document(row, context.redaction) for row in rows]
    return answer({"items": shown, "samples": [document(row) for row in samples]})


@router.post(
    "/api/v1/conditions/{name}",
    operation_id="conditions.report",
    summary="Report a value",
    responses=answers(listed(row_schema(SampleAnswer))),
    openapi_extra=scoped(Scope.SUBMIT, Reach.NARROWED),
)
async def report(request: Request, wanted: Sample, name: str = _CONDITION, dry_run: bool = False) -> Response:
    """It goes to every schedule that has this condition."""
    if caller_of(request).limits:
        await _condition(request, name)
    by, key = caller_of(request).actor, _own_key(request, wanted.key)

    async def work(db: topics.Database) -> list[SampleAnswer]:
        return await condition_store.report_sample(db, name, wanted.value, at=wanted.at, key=key, by=by)

    made = await done(request, work, dry_run=dry_run)
    if all(each.verdict == "refused" for each in made):
        raise VerbRefused("report_sample", made[0].reason or "unknown", subject=f"condition {name}")
    return answer({"items": [document(each) for each in made]} | ({"dry_run": True} if dry_run else {}))


# Webhooks


@router.post(
    "/hooks/{name}",
    operation_id="hooks.receive",
    summary="A webhook",
    status_code=202,
    responses=answers(ANYTHING, 202, "It is an event now") | answers(ANYTHING, 200, "It was one before"),
    openapi_extra=public(),
)
async def hook(request: Request, name: str = Path(max_length=100)) -> Response:
    """Who sent it is proved by its signature. Answered after the event's commit, never before."""
    context = context_of(request)
    body = await request.body()
    settings = context.settings.gateway.hooks.get(name)
    sent = Sent({key.lower(): value for key, value in request.headers.items()}, body, address_of(request))
    try:
        if settings is None:
            raise Forged(f"there is no hook {name[:100]}")
        received = receive(name, settings, await secrets_of(settings), sent, time.time())
    except Forged as error:
        context.metrics.hook_refused(name if settings is not None else "unknown")
        _log.warning("hook_refused", hook=name[:100], address=sent.address, reason=str(error))
        raise HttpProblem("unauthenticated", "the request does not prove who sent it") from None
    except AccsdError as error:
        _log.warning("hook_unusable", hook=name[:100], reason=str(error))
        raise
    context.buckets.take_hook(name, settings.per_minute)  # after the proof: nobody else uses up what the sender may
    made = await topics.emit_event(
        context.verbs, received.topic, received.payload, key=received.key, source=f"hook/{name}", window=settings.dedup
    )
    return answer(
        {"event_id": made.event_id, "answer": made.verdict}, status=202 if made.verdict == "accepted" else 200
    )
