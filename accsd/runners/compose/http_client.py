"""What a service of mode http can be asked (docs/http-mode.md), by one node: small requests with a deadline, and output
that is read piece by piece.

It speaks to one address that the engine named, follows nothing and keeps nothing open; every way in which there is no
answer is one exception.
"""

import asyncio
import math
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, cast

import orjson

from accsd import net
from accsd.errors import AttemptFailed, DockerUnavailable, ServiceBusy
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.runners.base import Stream
from accsd.runners.compose.docker import Container

TOKEN_NAMED_BY: Final = "ACC_SERVE_TOKEN"
_ANY_ADDRESS: Final = ("", "0.0.0.0", "::")
LATER: Final = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY)
_CHUNK: Final = 64 * 1024
_MAX_DOCUMENT: Final = 4 * 1024 * 1024
_WITHIN: Final = timedelta(seconds=10)
_LONGEST_RETRY_AFTER: Final = timedelta(minutes=5)


class NoAnswer(Exception):
    """Nobody listens, or answers in time, or what answers does not speak HTTP."""


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    host: str
    port: int
    token: str | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    document: Mapping[str, Any]
    retry_after: timedelta = timedelta(0)

    @property
    def said(self) -> str:
        return f"{self.status} {self.document.get('error', '')}".strip()[:500]


class AnswerBody:
    """What follows the head of an answer."""

    def __init__(self, answer: net.StreamedResponse) -> None:
        self.status: Final = answer.status
        self.retry_after: Final = _retry_after(answer.headers.get("Retry-After", ""))
        self._answer: Final = answer

    async def read(self, within: timedelta) -> bytes:
        """The next piece; b"" at the proper end. Raises NoAnswer where the answer is cut off, TimeoutError in
        silence."""
        with _telling():
            async with asyncio.timeout(within.total_seconds()):
                return await self._answer.read(_CHUNK)


@asynccontextmanager
async def asking(
    address: ServiceAddress, method: str, path: str, *, headers: Mapping[str, str], body: bytes = b""
) -> AsyncGenerator[AnswerBody]:
    """Sends a request and yields its answer when the head has come."""
    token = {"Authorization": f"Bearer {address.token}"} if address.token else {}
    await net.ready()
    async with AsyncExitStack() as stack:
        with _telling():
            async with asyncio.timeout(_WITHIN.total_seconds()):
                exchange = net.exchange(method, f"{address}{path}", {**headers, **token}, body)
                answer = await stack.enter_async_context(exchange)
        yield AnswerBody(answer)


@contextmanager
def _telling() -> Generator[None]:
    """Every failure is NoAnswer. TimeoutError stays what it is: where a body is read, silence is no failure."""
    try:
        yield
    except TimeoutError:
        raise
    except (OSError, ValueError, net.CallFailed) as error:
        raise NoAnswer(str(error) or type(error).__name__) from error


async def ask(
    address: ServiceAddress, method: str, path: str, *, headers: Mapping[str, str], body: bytes = b""
) -> HttpAnswer:
    """Sends a request and reads its small answer as a whole."""
    async with asking(address, method, path, headers=headers, body=body) as answer:
        read = bytearray()
        try:
            async with asyncio.timeout(_WITHIN.total_seconds()):  # for all of it: it may come drop by drop
                while data := await answer.read(_WITHIN):
                    read += data
                    if len(read) > _MAX_DOCUMENT:
                        raise NoAnswer("its answer is too long")
        except TimeoutError:
            raise NoAnswer("its answer does not come to an end") from None
        return HttpAnswer(answer.status, _document(read), answer.retry_after)


def _retry_after(written: str) -> timedelta:
    """The header in seconds, limited so that a slip does not stop a service for a day. A date is ignored."""
    if not (written.isascii() and written.isdigit()):
        return timedelta(0)
    return min(timedelta(seconds=int(written[:9])), _LONGEST_RETRY_AFTER)


def _document(read: bytearray) -> Mapping[str, Any]:
    try:
        document: object = orjson.loads(read)
    except orjson.JSONDecodeError:
        return {}
    return cast("dict[str, Any]", document) if isinstance(document, dict) else {}


@dataclass(frozen=True, slots=True)
class State:
    """The state of one attempt, as the service tells it. `lost` says why the service cannot tell how it ended."""

    has_ended: bool
    exit_code: int | None = None
    lost: str | None = None
    sizes: Mapping[Stream, int] = field(default_factory=dict[Stream, int])

    @classmethod
    def read(cls, document: Mapping[str, Any]) -> "State":
        code, lost = document.get("exit_code"), document.get("lost")
        has_ended = document.get("state") == "ended"
        if has_ended and not isinstance(code, int):
            lost = lost or "the service does not say how it ended"
        sizes = {stream: size for stream in Stream if isinstance(size := document.get(stream), int)}
        return cls(has_ended, code if isinstance(code, int) else None, None if lost is None else str(lost)[:500], sizes)


def address_of(container: Container, port: int) -> ServiceAddress:
    """Where the service is asked: at a port that is published on this machine, otherwise at the container's own
    address."""
    token = container.environ.get(TOKEN_NAMED_BY)
    if published := container.published.get(port):
        host, ours = published
        return ServiceAddress("127.0.0.1" if host in _ANY_ADDRESS else host, ours, token)
    if not container.addresses:
        raise DockerUnavailable(
            f"{container.name} has no address at which it could be asked",
            hint=f'publish its port, such as ports: ["127.0.0.1::{port}"], or give it a network',
        )
    return ServiceAddress(container.addresses[0], port, token)


class TasksApi:
    """What one service can be asked. Every method raises NoAnswer where the service does not answer."""

    def __init__(self, address: ServiceAddress, node: str) -> None:
        self.address: Final = address
        self._headers: Final = {"Accsd-Node": node}

    async def health(self) -> HttpAnswer:
        return await self._ask("GET", "/health")

    async def start(self, envelope: bytes, *, output_limit: int, traceparent: str | None) -> None:
        """Starts a task once: a second call joins the first. Raises ServiceBusy where the service takes no task now,
        AttemptFailed where it refuses this one."""
        headers = {
            "Content-Type": "application/json",
            "Prefer": "respond-async",
            "Accsd-Output-Limit": str(output_limit),
            **({"Traceparent": traceparent} if traceparent else {}),
        }
        answer = await self._ask("POST", "/tasks", envelope, headers)
        if answer.status in LATER:
            raise ServiceBusy(f"the service takes no task now: {answer.said}", again_in=answer.retry_after)
        if answer.status not in (HTTPStatus.OK, HTTPStatus.ACCEPTED, HTTPStatus.CREATED):
            raise AttemptFailed(ErrorCode.START_FAILED, f"the service refused the task: {answer.said}")

    async def known(self) -> Sequence[Fence]:
        answer = await self._ask("GET", "/tasks")
        if answer.status != HTTPStatus.OK:
            raise NoAnswer(f"GET /tasks is answered with {answer.said}")
        found: list[Fence] = []
        for each in answer.document.get("tasks") or ():
            with suppress(ValueError, TypeError, KeyError):
                found.append(Fence.parse(f"{each['task_id']}.{each['attempt_id']}"))
        return found

    async def state(self, fence: Fence) -> State | None:
        """None where the service has never heard of the attempt, or has forgotten it."""
        answer = await self._ask("GET", f"{_path(fence)}/status")
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise NoAnswer(f"its status is answered with {answer.said}")
        return State.read(answer.document)

    async def cancel(self, fence: Fence, grace: timedelta) -> None:
        await self._ask("DELETE", f"{_path(fence)}?grace={math.ceil(grace.total_seconds())}")

    async def forget(self, fence: Fence) -> None:
        await self._ask("DELETE", f"{_path(fence)}?grace=0&forget=1")

    @asynccontextmanager
    async def output(self, fence: Fence, stream: Stream, start: int) -> AsyncGenerator[AnswerBody]:
        rest = "/stderr" if stream is Stream.STDERR else ""
        async with asking(self.address, "GET", f"{_path(fence)}{rest}?from={start}", headers=self._headers) as body:
            yield body

    async def _ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        try:
            return await ask(self.address, method, path, headers={**self._headers, **(headers or {})}, body=body)
        except TimeoutError:
            raise NoAnswer("it did not answer in time") from None


def _path(fence: Fence) -> str:
    return f"/tasks/{fence.task_id}/{fence.attempt_id}"
