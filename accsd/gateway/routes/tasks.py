"""Tasks, and the log of each attempt by line: windows, a search that is complete, the whole of it."""

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import datetime
from typing import Any, Final, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from starlette import types
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from accsd.db.views import jobs as job_views
from accsd.errors import AccsdError, InvalidValue, NotFound
from accsd.explain import why as explained
from accsd.explain.identifiers import task_named
from accsd.explain.log import MOST_LINES, AttemptLines, Line, Wanted
from accsd.gateway.access import GuardedRoute, counted_as, redaction_for, scoped
from accsd.gateway.answers import answer, document, encode
from accsd.gateway.conditional import told
from accsd.gateway.context import GatewayContext, caller_of, context_of, require_store
from accsd.gateway.limits import CountedAnswer
from accsd.gateway.messages import Topic
from accsd.gateway.problems import HttpProblem
from accsd.gateway.routes.jobs import TASK
from accsd.gateway.schemas import ANYTHING, answers, listed, objects
from accsd.model.access import Scope
from accsd.model.state import Level, TaskStatus
from accsd.runners.base import Stream

router = APIRouter(prefix="/api/v1", route_class=GuardedRoute, tags=["tasks"])
NDJSON: Final = "application/x-ndjson"
_GATHERS_SEC: Final = 0.2
_searches: Counter[str] = Counter()  # by caller, in this process


@router.get(
    "/tasks/{task_id}",
    operation_id="tasks.get",
    summary="A task",
    responses=answers(TASK),
    openapi_extra=scoped(Scope.READ),
)
async def get_task(request: Request, task_id: str, reveal: bool = False) -> Response:
    """`task_id` may be the beginning of an id. With `Prefer: wait=30` the answer comes when the task has ended.
    `reveal` shows an admin what is masked, and is audited."""
    context = context_of(request)
    found = await task_named(context.reads, task_id)
    redaction = await redaction_for(request, "task", str(found), reveal=reveal)

    async def read() -> dict[str, Any]:
        return document(await job_views.task(context.reads, found), redaction)

    topic = Topic.job(await _job_of(context, found))
    return await told(request, topic, read, lambda shown: TaskStatus(shown["status"]).is_terminal)


async def _job_of(context: GatewayContext, task_id: UUID) -> UUID:
    from accsd.db.why import step_of

    return (await step_of(context.reads, task_id))[0]


@router.get(
    "/tasks/{task_id}/why",
    operation_id="tasks.why",
    summary="Why a task does not run",
    responses=answers(listed(ANYTHING)),
    openapi_extra=scoped(Scope.READ),
)
async def why(request: Request, task_id: str) -> Response:
    context = context_of(request)
    found = await task_named(context.reads, task_id)
    return answer(
        {"items": explained.document([await explained.why_task(context.reads, found, context.settings.lease)])}
    )


# Logs

_WINDOW: Final = objects(
    lines={"type": "array", "items": ANYTHING},
    first_line={"type": ["integer", "null"]},
    last_line={"type": ["integer", "null"]},
    total_lines={"type": "integer"},
    errors={"type": "array", "items": {"type": "integer"}},
    complete={"type": "boolean"},
    source={"type": "string"},
)
_ATTEMPT: Final = Query(ge=1, le=2**31 - 1)


@router.get(
    "/tasks/{task_id}/attempts/{attempt_id}/log",
    operation_id="tasks.log",
    summary="Lines of an attempt's log",
    responses=answers(_WINDOW),
    openapi_extra=scoped(Scope.READ),
)
async def log(
    request: Request,
    task_id: str,
    attempt_id: int,
    tail: int | None = Query(None, ge=1, le=MOST_LINES),
    from_line: int | None = Query(None, ge=1, le=2**53),
    limit: int = Query(500, ge=1, le=MOST_LINES),
    around: str | None = Query(None, max_length=64, description="`first_error`, or `ts:` and a time"),
) -> Response:
    """Lines are numbered from 1, and a number never changes its line. Without a parameter: the last 500."""
    context = context_of(request)
    lines = await _opened(context, task_id, attempt_id)
    if sum(given is not None for given in (tail, from_line, around)) > 1:
        raise InvalidValue("give one of tail, from_line and around")
    if around == "first_error":
        window = await lines.around_error(limit)
    elif around is not None:
        window = await lines.around(_moment(around), limit)
    elif from_line is not None:
        window = await lines.window(from_line, limit)
    else:
        window = await lines.tail(tail or limit)
    return answer(window.document(context.redaction))


@router.get(
    "/tasks/{task_id}/attempts/{attempt_id}/log/search",
    operation_id="tasks.search_log",
    summary="Every line of a log that has a text",
    responses={200: {"description": "A line of JSON for each hit, then `{done, hits}`", "content": {NDJSON: {}}}},
    openapi_extra=scoped(Scope.READ),
)
async def search_log(
    request: Request,
    task_id: str,
    attempt_id: int,
    q: str | None = Query(None, min_length=1, max_length=1_000),
    case: bool = False,
    level: list[Level] = Query([], description="Of one of these; all, if there are none."),
    stream: Stream | None = None,
    numbers: bool = False,
    progress: bool = False,
) -> Response:
    """The search is complete: hits come as they are found; `numbers` leaves them their `n` alone. At least one of `q`,
    `level` and `stream` is needed. With `progress` lines `{looked_at, of}` between them tell how many lines were
    looked at."""
    if q is None and not level and stream is None:
        raise InvalidValue("a search needs a text, a level or a stream to look for")
    wanted, redaction = Wanted(q or "", case, level, stream), context_of(request).redaction

    async def hits(lines: AttemptLines) -> AsyncIterator[bytes]:
        count = 0
        async for found in lines.search(wanted):
            if isinstance(found, Line):
                count += 1
                yield encode({"n": found.n} if numbers else found.document(redaction)) + b"\n"
            elif progress:
                yield encode({"looked_at": found.lines, "of": lines.total}) + b"\n"
        yield encode({"done": True, "hits": count}) + b"\n"

    async def found() -> Response:
        lines = await _opened(context_of(request), task_id, attempt_id)
        return StreamingResponse(_told_to_the_end(hits(lines)), media_type=NDJSON)

    return _searching(request, found)


@router.get(
    "/tasks/{task_id}/attempts/{attempt_id}/log/raw",
    operation_id="tasks.raw_log",
    summary="A whole log, to keep",
    responses={200: {"description": "The lines", "content": {"text/plain": {}, NDJSON: {}}}},
    openapi_extra=scoped(Scope.READ),
)
async def raw_log(
    request: Request,
    task_id: str,
    attempt_id: int,
    format: Literal["text", "jsonl"] = "text",  # noqa: A002 - so the parameter is called
    q: str | None = Query(None, min_length=1, max_length=1_000),
    level: list[Level] = Query([], description="Of one of these; all, if there are none."),
    stream: Stream | None = None,
) -> Response:
    """As text or as JSON lines; with `q`, `level` or `stream`, only what they leave."""
    wanted, redaction = Wanted(q or "", levels=level, stream=stream), context_of(request).redaction
    is_text = format == "text"

    async def content(lines: AttemptLines) -> AsyncIterator[bytes]:
        async for line in lines.search(wanted):
            if isinstance(line, Line):
                told = f"{line.text}\n".encode("utf-8", "replace")
                yield told if is_text else encode(line.document(redaction)) + b"\n"

    name = f"{task_id[:8]}-{attempt_id}.{'log' if is_text else 'jsonl'}"

    async def found() -> Response:
        lines = await _opened(context_of(request), task_id, attempt_id)
        return StreamingResponse(
            _told_to_the_end(content(lines)),
            media_type="text/plain; charset=utf-8" if is_text else NDJSON,
            headers={"Content-Disposition": f'attachment; filename="{name}"'},
        )

    return _searching(request, found) if q or level or stream else await found()


def _searching(request: Request, found: Callable[[], Awaitable[Response]]) -> Response:
    """Counts from before the log is opened: that takes a while in which others would slip through."""
    who, most = counted_as(caller_of(request)), context_of(request).settings.gateway.limits.searches_each
    if _searches[who] >= most:
        raise HttpProblem("rate_limited", f"{most} searches of logs are under way", headers={"Retry-After": "1"})

    async def sent(scope: types.Scope, receive: types.Receive, send: types.Send) -> None:
        await (await found())(scope, receive, send)

    return CountedAnswer(sent, _searches, who)


async def _opened(context: GatewayContext, task_id: str, attempt_id: int) -> AttemptLines:
    if not 1 <= attempt_id < 2**31:
        raise InvalidValue("attempts are counted from 1")
    found = await task_named(context.reads, task_id)
    try:
        return await AttemptLines.open(context.reads, require_store(context), found, attempt_id)
    except NotFound as error:
        raise _elsewhere(error) from None


def _elsewhere(error: NotFound) -> AccsdError:
    """What is on record and not in the store lies on another machine's disk."""
    is_object = "task" not in error.message
    return HttpProblem("stored_elsewhere", error.message) if is_object else error


async def _told_to_the_end(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Gathers small parts: a message for each line would cost more than the line. The first hit of a search, and one
    that comes after a while, goes out at once."""
    gathered, sent = bytearray(), 0.0
    async for part in parts:
        gathered += part
        if len(gathered) >= 64 * 1024 or time.monotonic() - sent > _GATHERS_SEC:
            yield bytes(gathered)
            gathered.clear()
            sent = time.monotonic()
    if gathered:
        yield bytes(gathered)


def _moment(around: str) -> datetime:
    try:
        found = datetime.fromisoformat(around.removeprefix("ts:"))
    except ValueError:
        raise InvalidValue('around is "first_error", or "ts:" and a time such as ts:2026-11-18T12:00:00Z') from None
    if found.tzinfo is None:
        raise InvalidValue("the time of around needs an offset: ts:2026-11-18T12:00:00Z")
    return found


__all__ = ["Line", "router"]
