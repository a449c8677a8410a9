"""Does the gateway stay fast beside a long past, and what does it cost the work? The budgets of the dashboard's pages.

    python -m bench.web                      1,000,000 jobs, 4 M tasks, 20 M events: about 20 minutes and 20 GB
    python -m bench.web --jobs 20000         three minutes
    python -m bench.web --keep FOLDER        leaves the filled database there, or measures the one that is there

A real gateway (`accsd --role gateway`) is asked over HTTP, one request after the other, and the answer is read to its
end. Pages: p50 and p95 of 30 requests. Then what an idle gateway uses, and how soon a waiting pull worker claims a job
while ten streams are open and while none is, in alternating rounds.
"""

import argparse
import asyncio
import os
import pickle
import random
import shutil
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import asyncpg
import httpx

from accsd import embedded
from accsd.db.access import create_token
from accsd.db.pool import Database
from accsd.model.access import Scope
from accsd.settings import DatabaseSettings
from bench.on_time import WORKER, until
from bench.throwaway import cpu_of, installed, postgres, process
from bench.web_data import Known, fill

STREAMS, ROUND_JOBS, WARM_UP = 10, 150, 20
# Nothing of the past has to survive a power cut, and its WAL is not what is measured.
FILLING = {
    "shared_buffers": "2GB",
    "max_wal_size": "16GB",
    "checkpoint_timeout": "1h",
    "fsync": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
    "maintenance_work_mem": "512MB",
}
CONFIG = """
[gateway]
listen = "127.0.0.1:{port}"
[gateway.limits]
reads_per_second = 100000
streams_each = 100
[storage]
url = "file://{store}"
"""


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    path: str
    budget: float  # milliseconds, p95


@dataclass(frozen=True, slots=True)
class Measured:
    name: str
    p50: float
    p95: float
    budget: float
    size: int
    cpu: "Cpu"  # of each request

    @property
    def row(self) -> str:
        verdict = "yes" if self.p95 <= self.budget else "**no**"
        cells = [f"{self.p50:.0f}", f"{self.p95:.0f}", f"{self.budget:.0f}", verdict]
        cells += [f"{self.cpu.gateway:.0f}", f"{self.cpu.server:.0f}"]
        return f"| {self.name} | {' | '.join(cells)} | {self.size / 1e3:.0f} |"


@dataclass(frozen=True, slots=True)
class Cpu:
    """Milliseconds on a processor: what a request costs, whatever else the machine does."""

    gateway: float
    server: float


class Meter:
    """Watches a gateway and the sessions that it has in the database."""

    def __init__(self, connection: asyncpg.Connection, pid: int) -> None:
        self._connection = connection
        self._pid = pid
        self._before = Cpu(0, 0)

    async def begin(self) -> None:
        self._before = await self._read()

    async def each(self, requests: int) -> Cpu:
        now = await self._read()
        return Cpu((now.gateway - self._before.gateway) / requests, (now.server - self._before.server) / requests)

    async def _read(self) -> Cpu:
        rows = await self._connection.fetch("SELECT pid FROM pg_stat_activity WHERE application_name LIKE '% gateway'")
        return Cpu(cpu_of([self._pid]) / 1000, cpu_of([row[0] for row in rows]) / 1000)


def pages(known: Known) -> list[Page]:
    day = datetime.now(UTC) - timedelta(days=30)
    within = f"since={day:%Y-%m-%dT00:00Z}&until={day:%Y-%m-%dT23:59Z}"
    log = f"/tasks/{known.log_task}/attempts/1/log"
    found = [
        Page("overview", "/overview", 60),
        Page("jobs, no filter", "/jobs", 20),
        Page("jobs, status:error (rare)", "/jobs?q=status:error", 200),
        Page("jobs, in motion", "/jobs?q=status:queued,running", 40),
        Page("jobs of a day last month", f"/jobs?{within}", 30),
        Page("search by the end of an id", f"/search?q={str(known.past)[-8:]}", 400),
        Page("search by the beginning of an id", f"/search?q={str(known.past)[:13]}", 400),
        Page("log of 1,000,000 lines, tail", f"{log}?tail=500", 80),
        Page("log, jump to a line", f"{log}?from_line=500000", 80),
        Page("log, jump to the first error", f"{log}?around=first_error", 80),
        Page("fleet, 24 h × 50 nodes", "/fleet/timeline", 80),
        Page("dead letters, 2,000 in groups", "/dead-letters/groups", 60),
        Page("compare with the last good one", f"/jobs/{known.failed}/compare", 80),
    ]
    jobs = {
        "job of 4 tasks": (known.past, 40),
        "job of 50 tasks": (known.middle, 40),
        "job of 5,000 tasks, done": (known.large, 250),
        "job of 5,000 tasks, running": (known.large_running, 250),
    }
    parts = {"": "", "/tasks": "?limit=5000", "/explain": "", "/history": "", "/events": ""}
    for name, (job, budget) in jobs.items():
        found += [
            Page(f"{name}: {part or 'itself'}", f"/jobs/{job}{part}{query}", budget) for part, query in parts.items()
        ]
    return found


async def measure(meter: Meter, client: httpx.AsyncClient, page: Page, requests: int) -> Measured:
    times: list[float] = []
    size = found = 0
    for number in range(requests + 2):
        if number == 2:
            await meter.begin()
        began = time.perf_counter()
        answer = await client.get(f"/api/v1{page.path}")
        spent = time.perf_counter() - began
        assert answer.status_code == 200, f"{page.path}: {answer.status_code} {answer.text[:500]}"
        size = len(answer.content)
        if number >= 2:
            times.append(spent * 1000)
            found += bool(page.path.startswith("/search") and answer.json()["groups"])
    cpu = await meter.each(requests)
    # a search gives up when it has taken too long
    name = page.name + (f" (found by {found} of {requests})" if page.path.startswith("/search") else "")
    return Measured(name, statistics.median(times), _p95(times), page.budget, size, cpu)


async def searched(meter: Meter, client: httpx.AsyncClient, known: Known, requests: int) -> list[Measured]:
    """The first hit, which is in the second of 100 parts, and the end."""
    first: list[float] = []
    whole: list[float] = []
    size = 0
    await meter.begin()
    for _ in range(requests):
        began = time.perf_counter()
        size = 0
        where = f"/api/v1/tasks/{known.log_task}/attempts/1/log/search?q=frame 1999"
        async with client.stream("GET", where) as answer:
            async for part in answer.aiter_raw():
                if not size:
                    first.append((time.perf_counter() - began) * 1000)
                size += len(part)
        whole.append((time.perf_counter() - began) * 1000)
    cpu = await meter.each(requests)
    return [
        Measured("log search 100 MiB, first hit", statistics.median(first), _p95(first), 500, 0, Cpu(0, 0)),
        Measured("log search 100 MiB, all", statistics.median(whole), _p95(whole), 3000, size, cpu),
    ]


def _p95(times: Sequence[float]) -> float:
    return statistics.quantiles(times, n=20, method="inclusive")[-1]


# The gateway


@asynccontextmanager
async def gateway(url: str, folder: Path, store: Path) -> AsyncGenerator[tuple[int, httpx.AsyncClient]]:
    """A gateway's process id, and a client with a token that may read."""
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        port = tried.getsockname()[1]
    config = folder / "gateway.toml"
    config.write_text(CONFIG.format(port=port, store=store))
    db = await Database.open(DatabaseSettings.model_validate({"url": url}), application="bench web")
    token = (await create_token(db, f"bench-{port}", [Scope.READ])).token
    await db.close()
    argv = ["-m", "accsd", "--role", "gateway", "--config", str(config)]
    headers = {"Authorization": f"Bearer {token}"}
    with process(folder, url, argv, node="gateway") as child:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=headers, timeout=120) as client:
            await until_it_answers(client)
            yield child.pid, client


async def until_it_answers(client: httpx.AsyncClient) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if (await client.get("/health")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.1)


@asynccontextmanager
async def streams(client: httpx.AsyncClient, count: int) -> AsyncGenerator[None]:
    """Viewers of the overview and the list of jobs, who read what they are sent."""

    async def view() -> None:
        async with client.stream("GET", "/api/v1/stream?topics=overview,jobs", timeout=None) as answer:
            assert answer.status_code == 200, answer.status_code
            async for _ in answer.aiter_raw():
                pass

    viewers = [asyncio.create_task(view()) for _ in range(count)]
    await asyncio.sleep(2)
    try:
        yield
    finally:
        for viewer in viewers:
            viewer.cancel()
        await asyncio.gather(*viewers, return_exceptions=True)


# Idle


async def idle(pid: int, client: httpx.AsyncClient, seconds: float) -> None:
    await asyncio.sleep(5)  # it has just begun
    print(f"idle, nobody looks:  {await _share(pid, seconds):.2%} of a core, {_memory(pid):.0f} MiB", flush=True)
    async with streams(client, 1):
        print(f"idle, one viewer:    {await _share(pid, seconds):.2%} of a core, {_memory(pid):.0f} MiB", flush=True)


async def _share(pid: int, seconds: float) -> float:
    began, used = time.monotonic(), cpu_of([pid])
    await asyncio.sleep(seconds)
    return (cpu_of([pid]) - used) / 1e6 / (time.monotonic() - began)


def _memory(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS")) / 1024


# Pickup

_PICKUPS = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(e.xmin) - pg_xact_commit_timestamp(t.xmin))::float8 * 1000
  FROM unnest($1::uuid[]) WITH ORDINALITY AS s (job, n)
  JOIN bench_submitted t ON t.job = s.job
  JOIN task_events e ON e.job_id = s.job AND e.data ->> 'to' = 'starting' ORDER BY s.n
"""


async def pickups(rounds: int) -> None:
    """From the commit of a job to that of its claim, by the database's clock."""
    times: dict[int, list[float]] = {0: [], STREAMS: []}
    ratios: list[float] = []
    with postgres(track_commit_timestamp="on") as server, tempfile.TemporaryDirectory(prefix="accsd-bench-") as name:
        folder = Path(name)
        connection = await installed(server.url)
        await connection.execute("CREATE TABLE bench_submitted (job uuid)")
        (folder / "worker.py").write_text(WORKER)
        with process(folder, server.url, ["worker.py"], node="worker"):
            async with gateway(server.url, folder, folder) as (pid, client):
                await _picked(connection, WARM_UP)
                for _ in range(rounds):
                    for count in random.sample([0, STREAMS], 2):
                        async with streams(client, count):
                            used = cpu_of([pid])
                            found = await _picked(connection, ROUND_JOBS)
                            shown = (cpu_of([pid]) - used) / 1e3 / ROUND_JOBS
                        times[count] += found
                        print(f"  {count:2} streams: {_cuts(found)}; gateway {shown:.2f} ms of CPU a job", flush=True)
                    ratios.append(_p(times[STREAMS][-ROUND_JOBS:], 50) / _p(times[0][-ROUND_JOBS:], 50))
        await connection.close()
    for count, found in times.items():
        print(f"pickup, {count:2} streams open: {_cuts(found)} ({len(found)} jobs)")
    for cut in (50, 95, 99):
        print(f"p{cut} with : without = {_p(times[STREAMS], cut) / _p(times[0], cut):.2f}")
    print(f"p50 by rounds: {', '.join(f'{ratio:.2f}' for ratio in ratios)}")


async def _picked(connection: asyncpg.Connection, count: int) -> list[float]:
    jobs = []
    for _ in range(count):
        await asyncio.sleep(random.uniform(0.03, 0.06))
        jobs.append(
            await connection.fetchval(
                """WITH made AS (SELECT job_id FROM accs.submit_jobs(ARRAY(SELECT id FROM workflows)))
                   INSERT INTO bench_submitted SELECT job_id FROM made RETURNING job"""
            )
        )
    await until(connection, "SELECT count(*) = 0 FROM jobs WHERE status <> 'done'")
    return [row[0] for row in await connection.fetch(_PICKUPS, jobs)]


def _p(times: Sequence[float], cut: int) -> float:
    return statistics.quantiles(times, n=100, method="inclusive")[cut - 1]


def _cuts(times: Sequence[float]) -> str:
    return f"p50 {_p(times, 50):.2f} ms, p95 {_p(times, 95):.2f} ms, p99 {_p(times, 99):.2f} ms"


# All of it


@contextmanager
def _server(keep: Path | None) -> Generator[tuple[embedded.Server, Path]]:
    folder = keep or Path(tempfile.mkdtemp(prefix="accsd-bench-"))
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with embedded.running(folder / "postgres", settings=FILLING) as server:
            yield server, folder
    finally:
        if keep is None:
            embedded.destroy(folder / "postgres")
            shutil.rmtree(folder, ignore_errors=True)


async def show(server: embedded.Server, folder: Path, asked: argparse.Namespace) -> None:
    store, noted = folder / "objects", folder / "known.pickle"
    if not noted.exists():
        store.mkdir(exist_ok=True)
        noted.write_bytes(pickle.dumps(await fill(server.url, store, asked.jobs)))
    known: Known = pickle.loads(noted.read_bytes())
    connection = await asyncpg.connect(server.url)
    size, jobs = await connection.fetchrow(
        "SELECT pg_size_pretty(pg_database_size(current_database())), (SELECT count(*) FROM jobs)"
    )
    print(f"\n{datetime.now(UTC):%Y-%m-%d %H:%M}, {jobs:,} jobs ({size}), load {os.getloadavg()[0]:.1f}\n", flush=True)
    async with gateway(server.url, folder, store) as (pid, client):
        if asked.idle:
            await idle(pid, client, asked.idle)
        print("\n| | p50, ms | p95, ms | budget, ms | met | CPU of the gateway, ms | of the server, ms | kB |")
        print("|---|---|---|---|---|---|---|---|")
        meter = Meter(connection, pid)
        for page in pages(known):
            if asked.only in page.name:
                print((await measure(meter, client, page, asked.requests)).row, flush=True)
        if asked.only in "log search":
            print("\n".join(each.row for each in await searched(meter, client, known, max(3, asked.requests // 3))))
        await connection.close()
        print(f"\nafter all that: {_memory(pid):.0f} MiB, load {os.getloadavg()[0]:.1f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1_000_000, help="ended jobs (default: %(default)s)")
    parser.add_argument("--requests", type=int, default=30, help="of each page (default: %(default)s)")
    parser.add_argument("--only", default="", help="pages whose name has this")
    parser.add_argument("--idle", type=float, default=60, help="seconds; 0: not at all (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=8, help="of pickups; 0: not at all (default: %(default)s)")
    parser.add_argument("--no-pages", action="store_true", help="only the pickups")
    parser.add_argument("--keep", type=Path, help="a folder that keeps the filled database")
    asked = parser.parse_args()
    if asked.requests < 2:
        parser.error("--requests: of fewer than two requests no p95 can be told")
    if not asked.no_pages:
        with _server(asked.keep) as (server, folder):
            asyncio.run(show(server, folder, asked))
    if asked.rounds:
        asyncio.run(pickups(asked.rounds))


if __name__ == "__main__":
    sys.exit(main())
