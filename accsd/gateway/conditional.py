"""Versions of what was read (ETag), requests that depend on them, and requests that wait for another one."""

import time
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from accsd.errors import InvalidValue
from accsd.gateway.answers import answer, encode
from accsd.gateway.context import context_of
from accsd.gateway.messages import Topic
from accsd.gateway.problems import HttpProblem

LONGEST_WAIT_SEC: Final = 120
_RELATIVE: Final = (
    "age_seconds",
    "took_seconds",
    "since_seconds",
    "due_in_seconds",
    "as_of",
    "unseen_for_seconds",
    "drained_for_seconds",
    "tried_ago_seconds",
    "paused_for_seconds",
)


def etag(document: dict[str, Any]) -> str:
    """The version of a document: ages count on by themselves, and do not make another one."""
    return f'"{blake2b(encode(_lasting(document)), digest_size=12).hexdigest()}"'


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lasting(each) for key, each in value.items() if key not in _RELATIVE}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_lasting(each) for each in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def require_version(request: Request, current: dict[str, Any]) -> None:
    """`If-Match` must name what is there, so that nobody's change is lost."""
    given, there = request.headers.get("if-match"), etag(current)
    if given is None:
        raise HttpProblem(
            "precondition_required", "this changes something: say which version you have read", current=there
        )
    if given != "*" and there not in [part.strip() for part in given.split(",")]:
        raise HttpProblem("stale", "it has changed since you have read it", current=there)


def wait_of(request: Request) -> float | None:
    """The seconds of `Prefer: wait=30`, at most LONGEST_WAIT_SEC."""
    for part in request.headers.get("prefer", "").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "wait":
            if not value.isascii() or not value.isdigit():
                raise InvalidValue('"Prefer: wait=N" takes a whole number of seconds')
            return min(float(value), LONGEST_WAIT_SEC)
    return None


async def told(
    request: Request,
    topic: Topic,
    read: Callable[[], Awaitable[dict[str, Any]]],
    is_final: Callable[[dict[str, Any]], bool],
) -> Response:
    """Answers with the document: at once; or, with `Prefer: wait`, as soon as it differs from the version that the
    client has (`If-None-Match`), or, without one, as soon as it is final. A request that waits holds no connection."""
    known, patience = request.headers.get("if-none-match"), wait_of(request)
    ends = time.monotonic() + (patience or 0)
    hub = context_of(request).hub
    headers = {} if patience is None else {"Preference-Applied": f"wait={patience:g}"}
    while True:
        mark = await hub.now()  # before the look, so that no change falls between the two
        document = await read()
        version = etag(document)
        is_news = version != known if known is not None else patience is None or is_final(document)
        left = ends - time.monotonic()
        if is_news or left <= 0:
            if known is not None and not is_news:
                return Response(status_code=304, headers={**headers, "ETag": version})
            return answer(document, headers={**headers, "ETag": version})
        if not await hub.changed(topic, within=left, after=mark):
            ends = 0.0  # the time is over, or the gateway stops: what is there now is the answer
