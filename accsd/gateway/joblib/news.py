"""The role that tells sockets what happens: it follows the hub's whole events for as long as somebody is connected.

Nothing is told by the handler that made a change: so a cancel by a command, a reclaim by the builder, or what another
gateway did is told like everything else (G-8).
"""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final
from uuid import UUID

import anyio

from accsd.db.feed import FeedEvent
from accsd.db.views.joblib import JoblibTask, tasks_of
from accsd.errors import Unavailable
from accsd.gateway.context import GatewayContext
from accsd.gateway.joblib.events import STATES, Emission, emissions_of
from accsd.gateway.joblib.sockets import Sockets
from accsd.log import get_logger

_log = get_logger(component="joblib")
_MOST_WAITING: Final = 1_000  # batches; of more, some are missed, and that is told
_CHECK_SEC: Final = 60.0  # a socket asks so often whether its token still lets anybody in


class News:
    def __init__(self, context: GatewayContext, sockets: Sockets) -> None:
        self._context = context
        self._sockets = sockets
        self._batches: asyncio.Queue[Sequence[FeedEvent] | Emission] = asyncio.Queue(_MOST_WAITING)

    async def serve(self) -> None:
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._check_tokens)
                while True:
                    await self._sockets.somebody.wait()
                    with self._context.hub.subscribe_events(self._take):
                        await self._context.hub.now()  # what happens from here on is told
                        self._sockets.listening.set()
                        while self._sockets.somebody.is_set():
                            await self._tell_next()
                    self._sockets.listening.clear()
        finally:
            self._sockets.listening.clear()
            with anyio.CancelScope(shield=True):
                await self._sockets.close()

    def invalidate(self, event: str, rooms: Iterable[str] | None) -> None:
        """None: of every room where somebody is."""
        for room in self._sockets.viewed() if rooms is None else rooms:
            self._take(Emission(event, {}, f"room:{room}", ""))

    def _take(self, batch: Sequence[FeedEvent] | Emission) -> None:
        if not self._sockets.somebody.is_set():
            return
        try:
            self._batches.put_nowait(batch)
        except asyncio.QueueFull:
            _log.warning("joblib_news_missed", batches=_MOST_WAITING)

    async def _tell_next(self) -> None:
        """A second, or the next news."""
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                batch = await self._batches.get()
            with suppress(Unavailable):
                await self._tell(batch)

    async def _tell(self, batch: Sequence[FeedEvent] | Emission) -> None:
        if isinstance(batch, Emission):
            await self._sockets.emit(batch)
        elif not batch:
            self.invalidate("jobs_invalidate", None)  # some may have been missed
        else:
            for emission in await self._emissions(batch):
                await self._sockets.emit(emission)

    async def _emissions(self, batch: Sequence[FeedEvent]) -> Sequence[Emission]:
        """In the order of the events, each once."""
        jobs = {event.job_id for event in batch if event.type in STATES}
        known: dict[UUID, JoblibTask] = {}
        if jobs:
            known = {task.id: task for task in await tasks_of(self._context.reads, list(jobs))}
        made: list[Emission] = []
        for event in batch:
            if (task := known.get(event.job_id)) is not None:
                made += [each for each in emissions_of(event, task) if each not in made[-4:]]
        return made

    async def _check_tokens(self) -> None:
        while True:
            await asyncio.sleep(_CHECK_SEC)
            with suppress(Unavailable):
                await self._sockets.check()
