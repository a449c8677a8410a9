"""A sleeper and its departure on a real database, with all around them.

The machine itself does not sleep: the way to sleep is the test's own, and so is the clock that counts suspended time.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accsd.agent.node import IdleClock, Node
from accsd.agent.sleep import Machine, Sleeper
from accsd.db import Database
from tests.support.attempts import Shop, shop
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import NODE, node
from tests.support.library import opened

AT_ONCE = {"idle": "0", "awake": "0"}


@dataclass
class Bed:
    """A sleeper with all around it; what the machine was told is counted."""

    db: Database
    here: Shop
    objection: str | None = None
    when_stopping: Callable[[], Awaitable[Any]] | None = None
    when_told: Callable[[], Awaitable[str | None]] | None = None
    told: int = 0
    sleeper: Sleeper = field(init=False)

    def __post_init__(self) -> None:
        self.sleeper = Sleeper(self.node, _Machine(self))

    @property
    def node(self) -> Node:
        return self.here.context

    @property
    def wakefulness(self) -> IdleClock:
        return self.node.idle


class _Machine(Machine):
    """Does what the test says."""

    def __init__(self, bed: Bed) -> None:
        super().__init__(bed.node)
        self._bed: Bed = bed

    async def veto(self) -> str | None:
        return self._bed.objection

    async def stop_containers(self) -> None:
        if self._bed.when_stopping:
            await self._bed.when_stopping()

    async def fall_asleep(self) -> str | None:
        self._bed.told += 1
        return await self._bed.when_told() if self._bed.when_told else "the machine won't"


@asynccontextmanager
async def bed(db_url: str, conn: Connection, root: Path, *, db_within: float = 30, **rules: Any) -> AsyncGenerator[Bed]:
    await node(conn, NODE, render=1)
    sleep = {"method": "suspend", **AT_ONCE, **rules}
    async with opened(db_url, statement_timeout_sec=db_within) as db, shop(db, root, sleep=sleep) as here:
        yield Bed(db, here)


async def because(conn: Connection) -> str | None:
    return await conn.fetchval("SELECT because FROM accs.power WHERE node = $1", NODE)


async def awake_state(conn: Connection, name: str = NODE) -> str:
    return await conn.fetchval("SELECT awake_state FROM nodes WHERE name = $1", name)


async def is_back(conn: Connection) -> None:
    async def there() -> bool:
        assert await conn.fetchval("SELECT state FROM accs.power WHERE node = $1", NODE) == "ready"
        return await awake_state(conn) == "awake"

    await eventually(there)
