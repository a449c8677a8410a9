"""What do many idle agents cost the database? Their polls and heartbeats, and one notification that all of them hear.

    python -m bench.idle_agents               100 agents, for 20 seconds
    python -m bench.idle_agents --agents 500

Each agent has what a daemon's has: a connection that listens, a node, a heartbeat and the polls, at the pace of the
default settings. Then one job is submitted, and all of them ask for it: one gets it.
"""

import argparse
import asyncio
import random
import statistics
import time
from datetime import timedelta
from typing import Any

import asyncpg

from accsd import embedded
from accsd.settings import Settings
from bench.throwaway import cpu_of, installed, postgres

LEASE = timedelta(minutes=2)
ROUNDS = 20


class IdleAgent:
    """Listens on one connection and asks on another, as the daemon does."""

    def __init__(
        self,
        name: str,
        settings: Settings,
        listening: asyncpg.Connection,
        asking: asyncpg.Connection,
        claims: asyncio.Queue[float],
    ) -> None:
        self._name = name
        self._settings = settings
        self._listening = listening
        self._asking = asking
        self._free = asyncio.Lock()
        self._news = asyncio.Event()
        self.claims: asyncio.Queue[float] = claims

    @classmethod
    async def at(cls, url: str, name: str, settings: Settings, claims: asyncio.Queue[float]) -> "IdleAgent":
        agent = cls(name, settings, await asyncpg.connect(url), await asyncpg.connect(url), claims)
        await agent._ask("SELECT accs.register_node($1, '{}', '{\"noop\": 1}')", name)
        await agent._listening.add_listener("accs_noop", lambda *_: agent._news.set())
        await agent._listening.add_listener("accs_orders", lambda *_: None)
        return agent

    async def pids(self) -> list[int]:
        return [await each.fetchval("SELECT pg_backend_pid()") for each in (self._listening, self._asking)]

    async def live(self) -> None:
        poll = self._settings.poll_sec
        async with asyncio.TaskGroup() as group:
            group.create_task(
                self._every(
                    self._settings.heartbeat.total_seconds(),
                    "SELECT * FROM accs.heartbeat($1, $1, '{}', '{}', $2)",
                    self._name,
                    LEASE,
                )
            )
            group.create_task(
                self._every(poll, "SELECT * FROM accs.agent_outlook($1, $2)", self._name, ["noop"]),
            )
            group.create_task(self._every(poll, "SELECT * FROM accs.take_orders($1)", self._name))
            group.create_task(self._claim())

    async def _every(self, seconds: float, sql: str, *args: object) -> None:
        await self._ask(sql, *args)  # plans it, which a daemon does once
        await asyncio.sleep(random.uniform(0, seconds))
        while True:
            await self._ask(sql, *args)
            await asyncio.sleep(seconds * random.uniform(0.8, 1.2))

    async def _claim(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            if await self._ask("SELECT * FROM accs.claim_tasks('noop', $1, $1, 1, $2)", self._name, LEASE):
                self.claims.put_nowait(time.perf_counter())

    async def _ask(self, sql: str, *args: object) -> list[Any]:
        async with self._free:
            return await self._asking.fetch(sql, *args)


async def measure(server: embedded.Server, count: int, seconds: float) -> None:
    admin = await installed(server.url)
    settings = Settings()
    claims: asyncio.Queue[float] = asyncio.Queue()
    agents = [await IdleAgent.at(server.url, f"n{number}", settings, claims) for number in range(count)]
    pids = [pid for agent in agents for pid in await agent.pids()]
    async with asyncio.TaskGroup() as group:
        lives = [group.create_task(agent.live()) for agent in agents]
        await asyncio.sleep(count / 50)
        calls, spent, began = await _calls(admin), cpu_of(pids), time.monotonic()
        await asyncio.sleep(seconds)
        took = time.monotonic() - began
        rate, share = (await _calls(admin) - calls) / took, (cpu_of(pids) - spent) / took / 1e6
        await _pickups(admin, claims, ROUNDS)  # the first ones plan their statements
        spent = cpu_of(pids)
        pickups = await _pickups(admin, claims, ROUNDS)
        each = (cpu_of(pids) - spent) / ROUNDS / 1000
        for life in lives:
            life.cancel()
    print(f"{count} idle agents of one service, {2 * count} connections:")
    print(f"  {rate:.1f} transactions a second ({rate / count:.2f} an agent), {share:.1%} of a core in the server")
    print(f"  one job that all of them hear of: picked up after {statistics.median(pickups):.1f} ms (median),")
    print(f"  {each:.1f} ms of the server's CPU for all that ask for it ({each / count * 1000:.0f} µs an agent)")


async def _calls(admin: asyncpg.Connection) -> int:
    await admin.execute("SELECT pg_stat_clear_snapshot()")
    return await admin.fetchval("SELECT sum(xact_commit)::bigint FROM pg_stat_database WHERE datname IS NOT NULL")


async def _pickups(admin: asyncpg.Connection, claims: asyncio.Queue[float], rounds: int) -> list[float]:
    """Milliseconds from the submission until somebody has it, for one job after the other."""
    waits: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        await admin.execute("SELECT accs.submit('noop')")
        waits.append((await claims.get() - began) * 1000)
        await asyncio.sleep(0.3)  # the others have asked in vain
        await admin.execute(
            "SELECT accs.start_tasks(ARRAY[task_id], ARRAY[attempt_id], owner), "
            "accs.finish_tasks(ARRAY[task_id], ARRAY[attempt_id], owner) FROM accs.live"
        )
    return waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    asked = parser.parse_args()
    with postgres() as server:
        asyncio.run(measure(server, asked.agents, asked.seconds))


if __name__ == "__main__":
    main()
