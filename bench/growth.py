"""Does it stay as fast when the tables are full? Claims, finishes and a job's page beside millions of finished tasks.

    python -m bench.growth                      10 M finished tasks, 50 M events: about 20 minutes and 25 GB
    python -m bench.growth --tasks 1000000      two minutes

CPU time of the server's process for a task, because it does not depend on what else the machine does; medians of
batches, by turns on an empty and on the full database, in one session.
"""

import argparse
import asyncio
import statistics
import time
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import asyncpg

from accsd import embedded
from bench.filler import FINISHED
from bench.throwaway import cpu_of, installed, postgres

LEASE = timedelta(minutes=10)
BATCH = 500
FILL = 1_000_000
PAGE = """
SELECT (SELECT json_agg(t) FROM (SELECT id, task_key, status, progress FROM job_tasks WHERE job_id = $1) t),
       (SELECT json_agg(e) FROM (SELECT * FROM task_events WHERE job_id = $1 ORDER BY ts DESC, id DESC LIMIT 100) e)
"""


@dataclass
class Costs:
    """Microseconds of the server's CPU for one task, by verb, and milliseconds for a job's page."""

    submit: list[float] = field(default_factory=list)
    claim: list[float] = field(default_factory=list)
    finish: list[float] = field(default_factory=list)
    page: list[float] = field(default_factory=list)


class Measured:
    """One database and the connection whose server process is watched."""

    def __init__(self, connection: asyncpg.Connection, pid: int, workflow: Any) -> None:
        self._connection = connection
        self._pid = pid
        self._workflow = workflow
        self.costs = Costs()

    @classmethod
    async def at(cls, url: str) -> "Measured":
        connection = await installed(url)
        workflow = await connection.fetchval("SELECT id FROM workflows")
        return cls(connection, await connection.fetchval("SELECT pg_backend_pid()"), workflow)

    async def fill(self, tasks: int) -> None:
        await self._connection.execute("SET maintenance_work_mem = '1GB'")
        for done in range(0, tasks, FILL):
            began = time.monotonic()
            await self._connection.execute(FINISHED.format(done=min(FILL, tasks - done)), timeout=3600)
            print(f"  filled {min(tasks, done + FILL):,} ({time.monotonic() - began:.0f} s)", flush=True)
        await self._connection.execute("VACUUM (ANALYZE)", timeout=3600)

    async def batch(self) -> None:
        submitted = await self._cpu(
            self.costs.submit, "SELECT job_id FROM accs.submit_jobs($1)", [self._workflow] * BATCH
        )
        claimed = await self._cpu(
            self.costs.claim,
            "SELECT task_id, attempt_id FROM accs.claim_tasks('noop', 'w', 'w', $1, $2, true)",
            BATCH,
            LEASE,
        )
        assert len(claimed) == BATCH, "all that was submitted is claimed"
        fences = [row["task_id"] for row in claimed], [row["attempt_id"] for row in claimed]
        ended = await self._cpu(self.costs.finish, "SELECT answer FROM accs.finish_tasks($1, $2, 'w')", *fences)
        assert {row["answer"] for row in ended} == {"accepted"}, "all that was claimed is done"
        began = time.perf_counter()
        await self._connection.fetch(PAGE, submitted[0]["job_id"])
        self.costs.page.append((time.perf_counter() - began) * 1000)

    async def page_of_the_past(self) -> float:
        """A job in the middle of the full tables, read for the first time."""
        job = await self._connection.fetchval("SELECT id FROM jobs ORDER BY id OFFSET 123456 LIMIT 1")
        began = time.perf_counter()
        await self._connection.fetch(PAGE, job)
        return (time.perf_counter() - began) * 1000

    async def _cpu(self, into: list[float], sql: str, *args: object) -> list[Any]:
        before = cpu_of([self._pid])
        rows = await self._connection.fetch(sql, *args)
        into.append((cpu_of([self._pid]) - before) / BATCH)
        return rows

    async def close(self) -> None:
        await self._connection.close()


async def compare(server: embedded.Server, tasks: int, batches: int) -> None:
    admin = await asyncpg.connect(server.url)
    for name in ("empty", "grown"):
        await admin.execute(f"CREATE DATABASE {name}")
    empty, full = [await Measured.at(server.url_of(name)) for name in ("empty", "grown")]
    await full.fill(tasks)
    for _ in range(batches):
        await empty.batch()
        await full.batch()
    past = await full.page_of_the_past()
    size = await admin.fetchval("SELECT pg_size_pretty(pg_database_size('grown'))")
    print(f"\n{tasks:,} finished tasks and {5 * tasks:,} events ({size}), medians of {batches} batches of {BATCH}:\n")
    print("| | empty | full | full : empty |\n|---|---|---|---|")
    for verb, unit in {"submit": "µs", "claim": "µs", "finish": "µs", "page": "ms"}.items():
        one, other = (statistics.median(getattr(each.costs, verb)) for each in (empty, full))
        print(f"| {verb} | {one:.2f} {unit} | {other:.2f} {unit} | {other / one:.2f} |")
    print(f"\nThe page of a job in the middle of the past: {past:.1f} ms")
    for each in (empty, full):
        await each.close()
    await admin.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=10_000_000, help="finished tasks (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=60, help="measured batches on each (default: %(default)s)")
    asked = parser.parse_args()
    with postgres() as server:
        asyncio.run(compare(server, asked.tasks, asked.batches))


if __name__ == "__main__":
    main()
