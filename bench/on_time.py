"""How late is a schedule, and how soon does an event become a job? With a real builder, a real worker, a real agent.

    python -m bench.on_time                  300 due times and 300 events, one every 50 ms; then 10,000 events
    python -m bench.on_time --samples 100 --events 2000

Times are those of commits (track_commit_timestamp), by one clock: a due time is what the plan says, an event's time is
that of its emission. The first samples of each are left out: statements are planned once in a session.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from bench.throwaway import installed, postgres, process

WARM_UP = 20
GAP = timedelta(milliseconds=50)
AGENT_GAP = timedelta(milliseconds=200)  # it starts a process for each
EMITTERS = 4
# A pull worker as a service's author writes it.
WORKER = """
from accsd.sdk import Service, Task
service = Service("noop")
@service.task
async def run(task: Task): pass
service.run(concurrency=4)
"""
AGENT = """
[services.noop]
runner = "process"
concurrency = 4
command = ["true"]
"""
_ONCE = """
INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, overlap)
SELECT $1 || i, 'once',
       to_char((now() + interval '3 s' + i * $2::interval) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), 'noop',
       'allow' FROM generate_series(1, $3::int) i
"""
_SUBSCRIBE = """
INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, overlap, filter, options)
SELECT name, 'event', name, 'noop', 'allow', filter, options FROM (VALUES
  ('plain', NULL, '{}'::jsonb), ('flood', NULL, '{}'), ('burst', NULL, '{}'),
  ('filtered', 'event.payload.n >= 0', '{"n": "${event.payload.n}"}')) AS s (name, filter, options)
"""
# For each firing, in the order of its due time: when its job was committed, and when somebody had claimed it.
_LATE = """
SELECT extract(epoch FROM pg_xact_commit_timestamp(f.xmin) - f.due_at)::float8 * 1000 AS committed,
       extract(epoch FROM pg_xact_commit_timestamp(c.xmin) - f.due_at)::float8 * 1000 AS claimed
  FROM firings f JOIN schedules s ON s.id = f.schedule_id
  LEFT JOIN LATERAL (SELECT e.xmin FROM task_events e WHERE e.job_id = f.job_id AND e.data ->> 'to' = 'starting'
                      ORDER BY e.id LIMIT 1) c ON true
 WHERE s.name LIKE $1 || '%' ORDER BY f.due_at, f.cause_id
"""


def told(what: str, times: Sequence[float]) -> None:
    cuts = statistics.quantiles(times, n=100, method="inclusive")
    print(f"{what}: p50 {cuts[49]:.1f} ms, p99 {cuts[98]:.1f} ms, longest {max(times):.1f} ms ({len(times)} samples)")


async def until(connection: asyncpg.Connection, sql: str, *args: Any, within: float = 120) -> None:
    async with asyncio.timeout(within):
        while True:
            if await connection.fetchval(sql, *args):
                return
            await asyncio.sleep(0.2)


async def late(connection: asyncpg.Connection, name: str, samples: int, gap: timedelta) -> list[asyncpg.Record]:
    await connection.execute(_ONCE, name, gap, samples + WARM_UP)
    await until(
        connection,
        "SELECT count(*) = $2 FROM schedules s JOIN firings f ON f.schedule_id = s.id JOIN jobs j ON j.id = f.job_id"
        " WHERE s.name LIKE $1 || '%' AND j.status = 'done'",
        name,
        samples + WARM_UP,
    )
    return (await connection.fetch(_LATE, name))[WARM_UP:]


async def emitted(connection: asyncpg.Connection, name: str, samples: int) -> list[float]:
    """Milliseconds from each emission to its job, one after the other."""
    for n in range(samples + WARM_UP):
        began = time.perf_counter()
        await connection.execute("SELECT accs.emit_event($1, $2)", name, f'{{"n": {n}}}')
        await asyncio.sleep(max(0.0, GAP.total_seconds() - (time.perf_counter() - began)))
    await until(connection, "SELECT count(*) = 0 FROM accs.inbox")
    rows = await connection.fetch(_LATE, name)
    assert len(rows) == samples + WARM_UP, f"{len(rows)} firings"
    return [row["committed"] for row in rows[WARM_UP:]]


async def flood(url: str, connection: asyncpg.Connection, count: int) -> None:
    """Emitted by several sessions, each event in a transaction of its own, and settled beside it."""

    async def emit() -> None:
        mine = await asyncpg.connect(url)
        statement = await mine.prepare("SELECT accs.emit_event('flood', '{}')")
        for _ in range(count // EMITTERS):
            await statement.fetch()
        await mine.close()

    began = time.perf_counter()
    await asyncio.gather(*(emit() for _ in range(EMITTERS)))
    sent = time.perf_counter() - began
    await until(connection, "SELECT count(*) = 0 FROM accs.inbox")
    await _told_rate(connection, f"{count:,} events of {EMITTERS} sessions, all emitted after {sent:.1f} s", "flood")
    await connection.execute("SELECT accs.emit_event('burst', '{}') FROM generate_series(1, $1::int)", count)
    await until(connection, "SELECT count(*) = 0 FROM accs.inbox")
    await _told_rate(connection, f"{count:,} events of one transaction", "burst")


async def _told_rate(connection: asyncpg.Connection, what: str, topic: str) -> None:
    """From the first commit of an event to the last commit of its job."""
    n, seconds = await connection.fetchrow(
        "SELECT count(*), extract(epoch FROM max(pg_xact_commit_timestamp(f.xmin)) - (SELECT"
        "       min(pg_xact_commit_timestamp(e.xmin)) FROM events e WHERE e.topic = $1))::float8"
        "  FROM firings f JOIN schedules s ON s.id = f.schedule_id WHERE s.name = $1 AND f.job_id IS NOT NULL",
        topic,
    )
    print(f"{what}: {n:,} jobs in {seconds:.1f} s, {n / seconds:,.0f} a second")


async def measure(url: str, folder: Path, samples: int, events: int) -> None:
    connection = await installed(url)
    version = await connection.fetchval("SHOW server_version")
    print(f"{datetime.now(UTC):%Y-%m-%d}, PostgreSQL {version}, load {os.getloadavg()[0]:.1f}")
    (folder / "worker.py").write_text(WORKER)
    (folder / "agent.toml").write_text(AGENT)
    agent = ["-m", "accsd", "--role", "agent", "--config", str(folder / "agent.toml")]
    with process(folder, url, ["-m", "accsd", "--role", "builder"], node="control"):
        for what, argv, gap in (("pull worker", ["worker.py"], GAP), ("agent", agent, AGENT_GAP)):
            with process(folder, url, argv, node=what.split()[-1]):
                rows = await late(connection, f"{what}-", samples, gap)
            told("due → job committed", [row["committed"] for row in rows])
            told(f"due → claimed by a waiting {what}", [row["claimed"] for row in rows])
        await connection.execute(_SUBSCRIBE)
        await until(connection, "SELECT NOT EXISTS (SELECT FROM accs.agenda WHERE what = 'replan')")
        told("emitted → job committed", await emitted(connection, "plain", samples))
        told("emitted → filtered, filled in and committed", await emitted(connection, "filtered", samples))
        await flood(url, connection, events)
    await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=300)
    parser.add_argument("--events", type=int, default=10_000)
    asked = parser.parse_args()
    with postgres(track_commit_timestamp="on") as server, tempfile.TemporaryDirectory(prefix="accsd-bench-") as folder:
        asyncio.run(measure(server.url, Path(folder), asked.samples, asked.events))


if __name__ == "__main__":
    sys.exit(main())
