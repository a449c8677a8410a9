"""What happens, as it happens: a stream for browsers and programs, and task events from a cursor on."""

from collections import Counter
from typing import Final

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from accsd.db.views import events as event_views
from accsd.explain.identifiers import job_named
from accsd.gateway.access import GuardedRoute, authenticated, counted_as, is_shut, scoped, shared
from accsd.gateway.answers import answer, document
from accsd.gateway.context import caller_of, context_of
from accsd.gateway.limits import CountedAnswer
from accsd.gateway.messages import MOST_TOPICS, Topic
from accsd.gateway.problems import HttpProblem
from accsd.gateway.reach import Reach, require_topics
from accsd.gateway.schemas import ANYTHING, answers, listed
from accsd.gateway.shares import told_to_share
from accsd.gateway.stream import StreamAnswer, format_of
from accsd.model.access import Scope

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["live"])
_MOST: Final = 1_000
_open: Counter[str] = Counter()  # streams by caller, in this process


@router.get(
    "/stream",
    operation_id="stream",
    summary="What happens, live",
    responses={
        200: {
            "description": "Server-sent events, or lines of JSON",
            "content": {"text/event-stream": {}, "application/x-ndjson": {}},
        }
    },
    openapi_extra=scoped(Scope.READ, Reach.NARROWED),
)
async def live(
    request: Request,
    topics: str = Query(
        "overview,jobs",
        max_length=4_000,
        description="overview, jobs, job:ID, node:NAME, log:TASK:ATTEMPT, operation:ID",
    ),
    after: str | None = Query(None, max_length=100),
) -> Response:
    """Server-sent events; with `Accept: application/x-ndjson` lines of JSON. `Last-Event-ID` (or `after`) resumes."""
    wanted = [Topic.parse(each.strip()) for each in topics.split(",") if each.strip()][: MOST_TOPICS + 1]
    await require_topics(context_of(request), caller_of(request), wanted)
    return _streamed(request, wanted, after)


@router.get(
    "/jobs/{job_id}/stream",
    operation_id="jobs.stream",
    summary="What happens in one job, live",
    responses={200: {"description": "Server-sent events, or lines of JSON", "content": {"text/event-stream": {}}}},
    openapi_extra=shared(),
)
async def live_job(request: Request, job_id: str, after: str | None = Query(None, max_length=100)) -> Response:
    return _streamed(request, [Topic.job(await job_named(context_of(request).reads, job_id))], after)


def _streamed(request: Request, topics: list[Topic], after: str | None) -> Response:
    context, caller = context_of(request), caller_of(request)
    if not 1 <= len(topics) <= MOST_TOPICS:
        raise HttpProblem("invalid", f"a stream has 1 to {MOST_TOPICS} topics")
    who = counted_as(caller)
    limits = context.settings.gateway.limits
    if _open.total() >= limits.streams or _open[who] >= limits.streams_each:
        raise HttpProblem("too_many_streams", "too many streams are open", headers={"Retry-After": "5"})

    async def may() -> bool:
        found = await authenticated(context, request)
        return found is not None and found.may(Scope.READ) and not is_shut(context, found)

    since = request.headers.get("last-event-id") or after
    form = format_of(request.headers.get("accept"))
    shown = None if caller.subject is None else told_to_share
    stream = StreamAnswer(context.hub, topics, after=since, may=may, metrics=context.metrics, shown=shown, form=form)
    return CountedAnswer(stream, _open, who)


@router.get(
    "/task-events",
    operation_id="task_events.list",
    summary="Task events of all jobs, from an id on",
    responses=answers(listed(ANYTHING)),
    openapi_extra=scoped(Scope.READ),
)
async def task_events(
    request: Request,
    after: int = Query(0, ge=0, le=2**53, description="The id of the last event that is known"),
    limit: int = Query(500, ge=1, le=_MOST),
) -> Response:
    """In the order of their ids. An event that is committed late may have a smaller id than one that was read before:
    `/stream` does not miss it."""
    context = context_of(request)
    rows = await event_views.events_after(context.reads, after, limit)
    return answer({"items": [document(row, context.redaction) for row in rows], "next": rows[-1].id if rows else after})
