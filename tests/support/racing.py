"""Races that are forced: one session keeps its transaction open, and the other is known to wait for it.

    a, b = await race.session(), await race.session()
    async with a.transaction():
        await claim(a)
        cancelling = await race.blocked(b, cancel(b, job), by=a)
    assert (await cancelling)[0]["answer"] == "accepted"

A deadlock shows within a tenth of a second, as the error of whichever session the server chose.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from tests.support.cluster import Connection
from tests.support.eventually import eventually

T = TypeVar("T")


class Race:
    def __init__(self, connect: Callable[..., Awaitable[Connection]], watcher: Connection) -> None:
        self._connect = connect
        self._watcher = watcher
        self._work: list[asyncio.Task[Any]] = []

    async def session(self) -> Connection:
        # lock_timeout: a wait that nobody ends fails by itself, long before the test's own limit
        return await self._connect(server_settings={"deadlock_timeout": "100ms", "lock_timeout": "10s", "jit": "off"})

    async def blocked(self, waiter: Connection, work: Coroutine[Any, Any, T], *, by: Connection) -> asyncio.Task[T]:
        """Starts `work`, which uses `waiter`, and returns when it stands behind a lock of `by`."""
        task = self._begin(work)

        async def stands_behind() -> bool:
            if task.done():
                raise RuntimeError(f"it did not wait, but ended with {task.exception() or task.result()}")
            return await self.is_blocked(waiter, by=by)

        await eventually(stands_behind, what="the wait for the lock")
        return task

    async def is_blocked(self, waiter: Connection, *, by: Connection) -> bool:
        return await self._watcher.fetchval(
            "SELECT $2 = ANY (pg_blocking_pids($1))", waiter.get_server_pid(), by.get_server_pid()
        )

    async def until_blocked(self, waiter: Connection) -> None:
        """Returns when `waiter` stands behind anybody's lock."""
        await eventually(lambda: self._waits(waiter), what="the wait for a lock")

    async def ends_or_waits(self, task: asyncio.Future[Any], waiter: Connection) -> bool:
        async def either() -> bool:
            return task.done() or await self._waits(waiter)

        return await eventually(either, what="its end or its wait for a lock")

    async def _waits(self, waiter: Connection) -> bool:
        return await self._watcher.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", waiter.get_server_pid())

    def _begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._work.append(task)
        return task

    async def end(self) -> None:
        for task in self._work:
            task.cancel()
        await asyncio.gather(*self._work, return_exceptions=True)
