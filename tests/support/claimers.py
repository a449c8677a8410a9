"""Claimers that work off a database together, fail, forget what they have and are killed; and what they saw of it.

Everything that goes wrong is bounded, so that every task can be done in the end: leases run out only when the test
moves the clock, and what a claimer forgets or fails is limited for each task.
"""

import asyncio
import random
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import asyncpg

from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import Row, claim, fail, finish, node, start

# InternalClientError is what asyncpg says when the end of the connection meets the next statement on its way
KILLED = (
    asyncpg.PostgresConnectionError,
    asyncpg.InterfaceError,
    asyncpg.AdminShutdownError,
    asyncpg.InternalClientError,
    OSError,
)
Place = tuple[int, int, Any, UUID]


@dataclass(slots=True)
class Claim:
    """One call of claim_tasks as its caller saw it: asked and answered at these moments of one clock."""

    service: str
    limit: int
    began: float
    ended: float
    tasks: list[UUID]
    first_time: set[UUID]


@dataclass
class History:
    claims: list[Claim] = field(default_factory=list)
    unheard: list[tuple[float, float]] = field(
        default_factory=list
    )  # calls that ended in a cut, to the end of the backend
    done: dict[UUID, list[int]] = field(default_factory=lambda: defaultdict(list))  # accepted or repeated, by attempt
    done_by: dict[UUID, float] = field(default_factory=dict)
    failed: Counter[UUID] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    forgotten: int = 0


class Claimer:
    def __init__(
        self,
        name: str,
        connect: Callable[[], Awaitable[Connection]],
        history: History,
        seed: int,
        services: Iterable[str],
    ) -> None:
        self.name = name
        self.conn: Connection | None = None
        self.can_be_killed = False  # not while it comes back from the last time
        self.may_forget = True
        self._connect = connect
        self._history = history
        self._random = random.Random(seed)
        self._services = list(services)

    async def work(self, over: asyncio.Event) -> None:
        self.conn = await self._connect()
        await node(self.conn, self.name, {"gpu": True})
        held: Sequence[Row] = []
        self.can_be_killed = True
        while not over.is_set():
            began = time.monotonic()
            try:
                held = held or await self._claim(began)
                await self._end(held)
                idle = not held
                held = []
            except KILLED:
                self.can_be_killed = False
                held = await self._come_back(began)
                self.can_be_killed = True
                idle = False
            if idle:
                await asyncio.sleep(0.005)  # the poll of somebody who found nothing

    async def _claim(self, began: float) -> Sequence[Row]:
        assert self.conn is not None
        service, limit = self._random.choice(self._services), self._random.randint(1, 12)
        taken = await claim(self.conn, limit, service, owner=self.name, on=self.name)
        self._history.claims.append(
            Claim(
                service,
                limit,
                began,
                time.monotonic(),
                [row["task_id"] for row in taken],
                {row["task_id"] for row in taken if row["attempt_id"] == 1},
            )
        )
        return taken

    async def _end(self, held: Sequence[Row]) -> None:
        """Starts what it holds and ends each in one of three ways."""
        assert self.conn is not None
        await start(self.conn, *held, owner=self.name)
        good: list[Row] = []
        bad: list[Row] = []
        for row in held:
            fate = self._random.random()
            if fate < 0.03 and self.may_forget:
                self._history.forgotten += 1
            elif fate < 0.08 and self._history.failed[row["task_id"]] < 2:
                bad.append(row)
            else:
                good.append(row)
        if bad:
            self._history.failed.update(row["task_id"] for row in bad)
            await fail(self.conn, *bad, owner=self.name)
        if good:
            self._note(good, await finish(self.conn, *good, owner=self.name))

    def _note(self, said: list[Row], answers: Sequence[Row]) -> None:
        attempt = {row["task_id"]: row["attempt_id"] for row in said}
        for answer in answers:
            if answer["answer"] == "refused":
                self._history.refused[answer["reason"]] += 1
            else:
                self._history.done[answer["id"]].append(attempt[answer["id"]])
                self._history.done_by.setdefault(answer["id"], time.monotonic())

    async def _come_back(self, began: float) -> Sequence[Row]:
        """After a cut: lists its own leases, as an agent does, or forgets that it had any."""
        assert self.conn is not None
        lost = self.conn.get_server_pid()
        self.conn.terminate()
        self.conn = await self._connect()
        conn = self.conn
        gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1)"
        await eventually(lambda: conn.fetchval(gone, lost), what="the end of the killed backend")
        self._history.unheard.append((began, time.monotonic()))
        if self.may_forget and self._random.random() < 0.3:
            return []
        return await conn.fetch("SELECT * FROM accs.adopt_tasks($1, $1, '60 s')", self.name)


async def kill_one(watcher: Connection, claimers: list[Claimer], history: History, chance: random.Random) -> None:
    victim = chance.choice(claimers)
    if victim.conn is not None and victim.can_be_killed:
        history.kills += await watcher.fetchval("SELECT pg_terminate_backend($1)::int", victim.conn.get_server_pid())


def passed_over(
    history: History, place: dict[UUID, Place], lane: dict[UUID, str], ready_by: dict[UUID, float]
) -> list[str]:
    """Claims that took a later task although an earlier one was there for certain.

    For certain: it was claimable before the claim began (whoever released it had his answer), and it was taken for the
    first time by a claim that began after this one had ended. Claims during which somebody was killed are left out:
    the dead may have held locks.
    """
    first_claimed: dict[UUID, float] = {}
    for one in history.claims:
        for task_id in one.first_time:
            first_claimed[task_id] = one.began
    by_service: dict[str, list[tuple[Place, UUID]]] = defaultdict(list)
    for task_id in first_claimed:
        by_service[lane[task_id]].append((place[task_id], task_id))
    for tasks in by_service.values():
        tasks.sort()
    complaints: list[str] = []
    for one in history.claims:
        order = [place[task_id] for task_id in one.tasks]
        if order != sorted(order):
            complaints.append(f"a batch of {one.service} out of order: {order}")
        if any(began < one.ended and ended > one.began for began, ended in history.unheard):
            continue
        last = order[-1] if len(order) == one.limit else None
        for spot, task_id in by_service[one.service]:
            if last is not None and spot >= last:
                break
            if ready_by[task_id] <= one.began and first_claimed[task_id] >= one.ended:
                complaints.append(
                    f"{task_id} was passed over by a claim of {one.service} that took {len(order)} of {one.limit}"
                )
    return complaints
