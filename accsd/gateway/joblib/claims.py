"""Workers that wait for a task (`Prefer: wait` on a claim): who is woken, so that one task does not wake all of them.

The database notifies that something of the service joblib can be claimed, and not what. One look then counts it by job,
and wakes as many of those who serve that job; each claims for itself, and whoever finds nothing waits again.
"""

import asyncio
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Final

from starlette.requests import Request

from accsd import failpoints
from accsd.db.joblib import claim_task
from accsd.db.listen import CANCEL
from accsd.db.views.joblib import JoblibTask, JoblibWorker, claimable, node_of, worker_named
from accsd.errors import TooManyWaiting, Unavailable
from accsd.gateway.context import GatewayContext
from accsd.settings.doors import JoblibSettings

SERVICE: Final = "joblib"
_DEAF_SEC: Final = 1.0  # between two looks while no notification may arrive, or something stays that nobody could claim
_IDLE_SEC: Final = 10.0


@dataclass(eq=False, slots=True)
class _Waiter:
    worker: str
    jobs: frozenset[str]
    news: asyncio.Event = field(default_factory=asyncio.Event)


class Claims:
    def __init__(self, context: GatewayContext, settings: JoblibSettings) -> None:
        self._context = context
        self._settings = settings
        self._waiters: dict[_Waiter, None] = {}  # in the order in which they came
        self._stirred: asyncio.Event = asyncio.Event()
        self._is_over: bool = False
        context.listener.subscribe(SERVICE, self._hear)
        context.hub.subscribe_drain(self._release)

    @property
    def waiting(self) -> int:
        return len(self._waiters)

    async def claim(self, worker: JoblibWorker, patience: float, request: Request) -> JoblibTask | None:
        """A task of this worker's jobs, at once or within so many seconds. A client that has gone is given none."""
        ends = time.monotonic() + patience
        while True:
            with self._waiting_for(worker, patience) as waiter:
                task = await self._claimed(worker)
                left = ends - time.monotonic()
                if task is not None or left <= 0 or self._is_over:
                    return task
                if not await _comes(waiter.news, left, request):
                    return None
            worker = await worker_named(self._context.reads, worker.id) or worker

    async def _claimed(self, worker: JoblibWorker) -> JoblibTask | None:
        task = await claim_task(self._context.verbs, self._context.reads, worker.id, self._settings.lease)
        if task is not None:
            failpoints.hit("joblib.claimed")
        return task

    @contextmanager
    def _waiting_for(self, worker: JoblibWorker, patience: float) -> Generator[_Waiter]:
        """Counts as waiting from before its claim, so that nothing falls between the two."""
        if patience > 0 and len(self._waiters) >= self._context.settings.gateway.limits.waiters:
            raise TooManyWaiting(f"{len(self._waiters)} workers wait already")
        waiter = _Waiter(node_of(worker.id), frozenset(worker.jobs))
        if patience > 0:
            self._waiters[waiter] = None
        try:
            yield waiter
        finally:
            self._waiters.pop(waiter, None)

    def reconsider(self, node: str) -> None:
        """This worker serves another job now."""
        for waiter in self._waiters:
            if waiter.worker == node:
                waiter.news.set()

    def _hear(self, payload: str) -> None:
        if payload != CANCEL:
            self._stirred.set()

    async def serve(self) -> None:
        self._is_over = self._context.hub.is_drained
        pause = _IDLE_SEC
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._stirred.wait()
                self._stirred.clear()
                pause = await self._wake() if self._waiters else _IDLE_SEC
        finally:
            self._release()

    def _release(self) -> None:
        self._is_over = True
        for waiter in self._waiters:
            waiter.news.set()

    async def _wake(self) -> float:
        """Wakes as many as there are tasks for, and says when to look again."""
        try:
            found = await claimable(self._context.reads, len(self._waiters))
        except Unavailable:
            return _DEAF_SEC
        ready = dict(found.ready)
        for waiter in self._waiters:
            job = next((each for each in waiter.jobs if ready.get(each, 0) > 0), None)
            if job is not None and not waiter.news.is_set():
                ready[job] -= 1
                waiter.news.set()
        pause = _IDLE_SEC if self._context.listener.is_listening and not found.ready else _DEAF_SEC
        return pause if found.next_due is None else max(0.01, min(pause, found.next_due))


async def _comes(news: asyncio.Event, within: float, request: Request) -> bool:
    """Whether there is news, or the time is over; False: nobody waits for the answer any more."""
    told, gone = asyncio.ensure_future(news.wait()), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((told, gone), timeout=within, return_when=asyncio.FIRST_COMPLETED)
        return not gone.done()
    finally:
        for task in (told, gone):
            task.cancel()


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
