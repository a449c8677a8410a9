"""Races that are forced: one session keeps its transaction open, and the other is known to wait for it.

    _, cancelled = await race.second_waits(claim, lambda b: cancel(b, job))
    assert answered(cancelled) == ACCEPTED

A deadlock shows within a tenth of a second, as the error of the session that the server chose. Below: the verbs as the
race tests call them.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from datetime import timedelta
from typing import Any, TypeVar
from uuid import UUID

from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import LEASE, OWNER, Row, diamond, done, started, submit

T = TypeVar("T")
First = TypeVar("First")
Second = TypeVar("Second")


class Race:
    def __init__(self, connect: Callable[..., Awaitable[Connection]], watcher: Connection) -> None:
        self._connect = connect
        self._watcher = watcher
        self._work: list[asyncio.Task[Any]] = []

    async def session(self) -> Connection:
        # lock_timeout: a wait that nobody ends fails by itself, long before the test's own limit
        return await self._connect(server_settings={"deadlock_timeout": "100ms", "lock_timeout": "10s", "jit": "off"})

    async def second_waits(
        self,
        first: Callable[[Connection], Awaitable[First]],
        second: Callable[[Connection], Coroutine[Any, Any, Second]],
    ) -> tuple[First, Second]:
        """Calls `first` in a transaction and `second` in another session, which must wait for the first one's commit.
        Returns what each of them returned."""
        a, b = await self.session(), await self.session()
        async with a.transaction():
            before = await first(a)
            waiting = await self.blocked(b, second(b), by=a)
        return before, await waiting

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


def answered(rows: Sequence[Row]) -> list[tuple[str, str | None]]:
    return [(row["answer"], row["reason"]) for row in rows]


ACCEPTED = [("accepted", None)]
REPEATED = [("repeated", None)]


async def reclaim(conn: Connection) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.reclaim_tasks()")


async def skip(conn: Connection, *task_ids: UUID) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.skip_tasks($1)", list(task_ids))


async def redrive(conn: Connection, *letters: int) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.redrive($1)", list(letters))


async def retry(conn: Connection, job_id: UUID) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.retry_jobs($1)", [job_id])


async def heartbeat(conn: Connection, claimed: Row, lease: timedelta = LEASE) -> Sequence[Row]:
    return await conn.fetch(
        "SELECT * FROM accs.heartbeat('n1', $1, $2, $3, $4)",
        OWNER,
        [claimed["task_id"]],
        [claimed["attempt_id"]],
        lease,
    )


async def progress(conn: Connection, claimed: Row, value: float) -> Sequence[Row]:
    return await conn.fetch(
        "SELECT * FROM accs.report_progress($1, $2, $3, ARRAY[$4::numeric])",
        [claimed["task_id"]],
        [claimed["attempt_id"]],
        OWNER,
        value,
    )


async def instantiate(conn: Connection, *job_ids: UUID) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.instantiate_due_jobs(100, $1)", list(job_ids) or None)


async def insert_job(conn: Connection, flow: UUID) -> UUID:
    return await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", flow)


async def both_sides(conn: Connection) -> tuple[UUID, Row, Row]:
    job_id = await submit(conn, *diamond())
    await done(conn)
    left, right = await started(conn, 2)
    return job_id, left, right


async def blocked(waiter: Connection, watcher: Connection) -> None:
    """Returns once `waiter` waits for a lock. `watcher` is any other connection that is free to ask."""
    pid = waiter.get_server_pid()

    async def waits() -> bool:
        return await watcher.fetchval("SELECT cardinality(pg_blocking_pids($1)) > 0", pid)

    await eventually(waits, what="waiting for a lock")
