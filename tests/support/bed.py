"""A sleeper and its departure on a real database, with all around them.

The machine itself does not sleep: the way to sleep is the test's own, and so is the clock that counts suspended time.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accsd.agent.idle import IdleClock
from accsd.agent.sleep import Sleeper
from accsd.agent.suspend import Suspension
from accsd.db import Database
from accsd.settings import SleepSettings
from tests.support.attempts import LEASE, Shop, shop
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
    settings: SleepSettings
    objection: str | None = None
    when_stopping: Callable[[], Awaitable[Any]] | None = None
    when_told: Callable[[], Awaitable[str | None]] | None = None
    told: int = 0
    wakefulness: IdleClock = field(default_factory=IdleClock)
    departure: Suspension = field(init=False)
    sleeper: Sleeper = field(init=False)

    def __post_init__(self) -> None:
        bench = self.here.bench
        self.departure = Suspension(
            self.db,
            node=NODE,
            attempts=self.here.attempts,
            keeper=bench.keeper,
            reporter=bench.reporter,
            stop_containers=self._stop,
            when_back=lambda: None,
        )
        self.sleeper = Sleeper(
            self.db,
            node=NODE,
            lease=LEASE,
            settings=lambda: self.settings,
            wakefulness=self.wakefulness,
            departure=self.departure,
            veto=self._veto,
            way=self._sleep,
            is_ready=lambda: not bench.keeper.is_frozen,
            wake=lambda: None,
        )

    async def _veto(self) -> str | None:
        return self.objection

    async def _stop(self) -> None:
        if self.when_stopping:
            await self.when_stopping()

    async def _sleep(self) -> str | None:
        self.told += 1
        return await self.when_told() if self.when_told else "the machine won't"


@asynccontextmanager
async def bed(db_url: str, conn: Connection, root: Path, *, db_within: float = 30, **rules: Any) -> AsyncGenerator[Bed]:
    await node(conn, NODE, render=1)
    settings = SleepSettings.model_validate({"method": "suspend", **AT_ONCE, **rules})
    async with opened(db_url, statement_timeout_sec=db_within) as db, shop(db, root) as here:
        yield Bed(db, here, settings)


async def because(conn: Connection) -> str | None:
    return await conn.fetchval("SELECT because FROM accs.power WHERE node = $1", NODE)


async def awake_state(conn: Connection, name: str = NODE) -> str:
    return await conn.fetchval("SELECT awake_state FROM nodes WHERE name = $1", name)


async def is_back(conn: Connection) -> None:
    async def there() -> bool:
        assert await conn.fetchval("SELECT state FROM accs.power WHERE node = $1", NODE) == "ready"
        return await awake_state(conn) == "awake"

    await eventually(there)
