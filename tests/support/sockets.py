"""A client of Socket.IO, by python-socketio's own, that remembers what it was told."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import socketio

from tests.support.eventually import eventually
from tests.support.joblib import User

EVENTS = (
    "task_status_event",
    "task_available",
    "jobs_invalidate",
    "providers_invalidate",
    "provider_request",
    "provider_result_ready",
)


class Listening:
    def __init__(self, client: socketio.AsyncClient) -> None:
        self.client = client
        self.told: list[tuple[str, Any]] = []
        for event in EVENTS:
            client.on(event, self._hear(event))

    def _hear(self, event: str) -> Any:
        async def hear(payload: Any) -> None:
            self.told.append((event, payload))

        return hear

    async def emit(self, event: str, **payload: Any) -> None:
        """Sent, and handled: the library acknowledges it."""
        await self.client.call(event, payload, timeout=10)

    def of(self, event: str) -> list[Any]:
        return [payload for name, payload in self.told if name == event]

    async def awaits(self, event: str, **members: Any) -> Any:
        def found() -> Any:
            return next((each for each in self.of(event) if each.items() >= members.items()), None)

        await eventually(lambda: found() is not None, within=10)
        return found()


@asynccontextmanager
async def connected(user: User, *, transports: tuple[str, ...] = ("websocket",)) -> AsyncGenerator[Listening]:
    client = socketio.AsyncClient(reconnection=False)
    listening = Listening(client)
    await client.connect(user.gateway.url, auth={"token": user.token}, transports=list(transports))
    try:
        yield listening
    finally:
        await client.disconnect()
        await client.shutdown()
