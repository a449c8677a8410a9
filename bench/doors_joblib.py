"""How long does a task of the joblib door wait for its worker, and what do workers cost that wait?

    python -m bench.doors_joblib                         200 workers at one gateway, 300 tasks, one after the other
    python -m bench.doors_joblib --workers 5 --tasks 20  whether it runs

A task is submitted, and the worker that gets it says so; the time between the two answers is the latency. First all
workers wait at the gateway (`Prefer: wait` on the claim), then they ask every two seconds, as the original's client
does without Socket.IO. What gateway and database spend meanwhile, and while nothing is submitted, is in the table.
"""

import argparse
import asyncio
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import asyncpg
import httpx

from accsd.db.access import create_token
from accsd.db.pool import Database
from accsd.model.access import Scope
from accsd.settings import DatabaseSettings
from bench.throwaway import cpu_of, installed, postgres, process
from bench.web import until_it_answers

POLLS_SEC: Final = 2.0
JOB: Final = "lab:modifiers:Bench"
_CONFIG: Final = """
[gateway]
listen = "{listen}"
[gateway.limits]
reads_per_second = 100000
writes_per_second = 100000
[gateway.joblib]
worker_timeout_seconds = 3600
"""


class Fleet:
    """Workers that claim, and notice when they got which task."""

    def __init__(self, client: httpx.AsyncClient, *, waits: bool) -> None:
        self._client = client
        self._waits = waits
        self.got: dict[str, float] = {}
        self._wanted: int = 0
        self._enough: asyncio.Event = asyncio.Event()

    async def has_got(self, tasks: int) -> None:
        self._wanted = tasks
        if len(self.got) < tasks:
            await self._enough.wait()

    async def serve(self, worker: str) -> None:
        headers = {"Prefer": "wait=60"} if self._waits else {}
        while True:
            answer = await self._client.post("/v1/joblib/tasks/claim", json={"worker_id": worker}, headers=headers)
            task = answer.raise_for_status().json()["task"]
            if task is not None:
                self.got[task["id"]] = time.perf_counter()
                if len(self.got) == self._wanted:
                    self._enough.set()
                await self._client.patch(f"/v1/joblib/tasks/{task['id']}", json={"status": "failed"})
            elif not self._waits:
                await asyncio.sleep(POLLS_SEC)


async def latencies(client: httpx.AsyncClient, fleet: Fleet, tasks: int, pause: float) -> list[float]:
    submitted: dict[str, float] = {}
    for _ in range(tasks):
        began = time.perf_counter()
        answer = await client.post(f"/v1/joblib/rooms/lab/tasks/{JOB}", json={})
        submitted[answer.raise_for_status().json()["id"]] = began
        await asyncio.sleep(pause)
    await fleet.has_got(tasks)
    return [fleet.got[task] - at for task, at in submitted.items()]


async def shares(pid: int, connection: asyncpg.Connection, seconds: float) -> tuple[float, float]:
    """Of a core, in per cent: the gateway, and the sessions of the database."""
    rows = await connection.fetch("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'accsd%'")
    groups = [pid], [row[0] for row in rows]
    before = [cpu_of(group) for group in groups]
    await asyncio.sleep(seconds)
    ours, theirs = ((cpu_of(group) - was) / seconds / 10_000 for group, was in zip(groups, before, strict=True))
    return ours, theirs


async def measured(
    client: httpx.AsyncClient,
    workers: Sequence[str],
    asked: argparse.Namespace,
    pid: int,
    connection: asyncpg.Connection,
    *,
    waits: bool,
) -> None:
    fleet = Fleet(client, waits=waits)
    serving = [asyncio.create_task(fleet.serve(worker)) for worker in workers]
    await asyncio.sleep(POLLS_SEC + 1)
    idle = await shares(pid, connection, asked.idle)
    times = sorted(await latencies(client, fleet, asked.tasks, asked.pause))
    for task in serving:
        task.cancel()
    await asyncio.gather(*serving, return_exceptions=True)
    cuts = statistics.quantiles(times, n=100)
    how = "Prefer: wait" if waits else f"asks every {POLLS_SEC:g} s"
    print(f"{how:18} p50 {cuts[49] * 1000:8.1f} ms   p99 {cuts[98] * 1000:8.1f} ms   "
          f"idle: gateway {idle[0]:.1f} %, database {idle[1]:.1f} % of a core")  # fmt: skip


@asynccontextmanager
async def gateway(url: str, folder: Path, connections: int) -> AsyncGenerator[tuple[int, httpx.AsyncClient]]:
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{tried.getsockname()[1]}"
    config = folder / "accsd.toml"
    config.write_text(_CONFIG.format(listen=listen))
    db = await Database.open(DatabaseSettings.model_validate({"url": url, "pool_size": 1}))
    token = (await create_token(db, "bench", [Scope.SUBMIT])).token
    await db.close()
    argv = ["-m", "accsd", "--role", "gateway", "--config", str(config)]
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    given = {"base_url": f"http://{listen}", "headers": {"Authorization": f"Bearer {token}"}}
    with process(folder, url, argv, node="bench") as child:
        async with httpx.AsyncClient(timeout=90, limits=limits, **given) as client:
            await until_it_answers(client)
            yield child.pid, client


async def _workers(client: httpx.AsyncClient, count: int) -> list[str]:
    body = {"category": "modifiers", "name": "Bench"}
    made = [await client.put("/v1/joblib/rooms/lab/jobs", json=body) for _ in range(count)]
    return [answer.raise_for_status().json()["worker_id"] for answer in made]


async def run(asked: argparse.Namespace) -> None:
    with postgres() as server, tempfile.TemporaryDirectory() as folder:
        connection: asyncpg.Connection = await installed(server.url)
        async with gateway(server.url, Path(folder), asked.workers + 20) as (pid, client):
            workers = await _workers(client, asked.workers)
            print(f"{asked.workers} workers, {asked.tasks} tasks, one each {asked.pause:g} s")
            for waits in (True, False):
                await measured(client, workers, asked, pid, connection, waits=waits)
        await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=200)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--pause", type=float, default=0.1, help="seconds between two submissions")
    parser.add_argument("--idle", type=float, default=10.0, help="seconds without any, while what it costs is counted")
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
