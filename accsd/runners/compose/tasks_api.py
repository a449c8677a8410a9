"""What a service of mode http can be asked (docs/http-mode.md), by one node."""

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final

from accsd.errors import AttemptFailed, DockerUnavailable, ServiceBusy
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.runners.base import Stream
from accsd.runners.compose.container import Container
from accsd.runners.compose.http_client import Body, HttpAnswer, NoAnswer, ServiceAddress, ask, asking

TOKEN_NAMED_BY: Final = "ACC_SERVE_TOKEN"
_ANY_ADDRESS: Final = ("", "0.0.0.0", "::")
LATER: Final = (HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.BAD_GATEWAY)


@dataclass(frozen=True, slots=True)
class State:
    """Of one attempt, as the service tells it. `lost`: it cannot say how it ended."""

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
    """A port that is published on this machine, else the container's own address."""
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
    """Raises NoAnswer where the service does not answer."""

    def __init__(self, address: ServiceAddress, node: str) -> None:
        self.address: Final = address
        self._headers: Final = {"Accsd-Node": node}

    async def health(self) -> HttpAnswer:
        return await self._ask("GET", "/health")

    async def start(self, envelope: bytes, *, output_limit: int, traceparent: str | None) -> None:
        """Once: a second call joins. Raises ServiceBusy where it takes none now, AttemptFailed where not this."""
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

    async def state(self, key: Fence) -> State | None:
        """None: it has never heard of it, or has forgotten it."""
        answer = await self._ask("GET", f"{_path(key)}/status")
        if answer.status == HTTPStatus.NOT_FOUND:
            return None
        if answer.status != HTTPStatus.OK:
            raise NoAnswer(f"its status is answered with {answer.said}")
        return State.read(answer.document)

    async def cancel(self, key: Fence, grace: timedelta) -> None:
        await self._ask("DELETE", f"{_path(key)}?grace={math.ceil(grace.total_seconds())}")

    async def forget(self, key: Fence) -> None:
        await self._ask("DELETE", f"{_path(key)}?grace=0&forget=1")

    @asynccontextmanager
    async def output(self, key: Fence, stream: Stream, start: int) -> AsyncGenerator[Body]:
        rest = "/stderr" if stream is Stream.STDERR else ""
        async with asking(self.address, "GET", f"{_path(key)}{rest}?from={start}", headers=self._headers) as body:
            yield body

    async def _ask(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> HttpAnswer:
        try:
            return await ask(self.address, method, path, headers={**self._headers, **(headers or {})}, body=body)
        except TimeoutError:
            raise NoAnswer("it did not answer in time") from None


def _path(key: Fence) -> str:
    return f"/tasks/{key.task_id}/{key.attempt_id}"
