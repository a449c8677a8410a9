"""What do schedules cost? The idle pass, one firing and an idle builder, among few and among many; a herd that is due
at once; a preview of a thousand times.

    python -m bench.schedules                      100 and 100,000 schedules, 10,000 due at once
    python -m bench.schedules --many 10000 --herd 2000 --idle 20

Synchronous commit. The plans are made here, so that the planner's own time is not counted. How late schedules and
events are is measured by bench.on_time.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from accsd.planning.recurrence import parse_rule, preview
from bench.throwaway import cpu_of, installed, postgres, process

ROUNDS = 80
SETTLING = 15  # seconds until a daemon that has started is idle
PREVIEWED = (
    ("cron", "*/5 * * * *"),
    ("cron", "30 2 * * 1-5"),
    ("rrule", "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17"),
    ("rrule", "FREQ=DAILY;BYHOUR=9,17;BYMINUTE=0,30"),
    ("interval", "90m"),
)
_DEFINE = """
INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, overlap)
SELECT 's' || i, 'interval', '3600s', 'noop', 'skip' FROM generate_series($1::int, $2::int) i
"""
# What the planner writes, for many schedules at once: 32 occurrences, an hour apart, the first one far ahead.
_PLAN = """
WITH due AS (
  SELECT id, now() + interval '1 day' + random() * interval '1 hour' AS first FROM schedules
), planned AS (
  INSERT INTO accs.plan_of (schedule_id, revision, zone_version, nominals, folds, dues)
  SELECT d.id, 1, '2026a',
         ARRAY(SELECT (d.first + n * interval '1 hour') AT TIME ZONE 'UTC' FROM generate_series(0, 31) n),
         array_fill(0, ARRAY[32]), ARRAY(SELECT d.first + n * interval '1 hour' FROM generate_series(0, 31) n)
    FROM due d ON CONFLICT DO NOTHING)
INSERT INTO accs.agenda (schedule_id, what, due_at) SELECT id, 'occurrence', first FROM due ON CONFLICT DO NOTHING
"""
# Makes the next occurrence of some schedules due now that have not run yet: no open job is in their way.
_MAKE_DUE = """
WITH chosen AS (
  SELECT a.schedule_id FROM accs.agenda a JOIN schedules s ON s.id = a.schedule_id
   WHERE a.what = 'occurrence' AND a.due_at > now() AND s.runs = 0 LIMIT $1
), moved AS (
  UPDATE accs.plan_of p SET dues[a.pos] = clock_timestamp(), nominals[a.pos] = clock_timestamp() AT TIME ZONE 'UTC'
    FROM accs.agenda a WHERE a.schedule_id = p.schedule_id AND a.what = 'occurrence'
     AND p.schedule_id IN (SELECT schedule_id FROM chosen) RETURNING p.schedule_id)
UPDATE accs.agenda a SET due_at = clock_timestamp() FROM moved m
 WHERE a.schedule_id = m.schedule_id AND a.what = 'occurrence'
"""


async def timed(connection: asyncpg.Connection, sql: str, *args: Any, rounds: int = ROUNDS) -> float:
    """Milliseconds, the median."""
    times: list[float] = []
    for _ in range(rounds):
        began = time.perf_counter()
        await connection.fetch(sql, *args)
        times.append((time.perf_counter() - began) * 1000)
    return statistics.median(times)


async def one_firing(connection: asyncpg.Connection) -> float:
    times: list[float] = []
    for _ in range(ROUNDS):
        await connection.execute(_MAKE_DUE, 1)
        began = time.perf_counter()
        (fired,) = await connection.fetch("SELECT * FROM accs.settle_due()")
        times.append((time.perf_counter() - began) * 1000)
        assert fired["job_id"] is not None, dict(fired)
    return statistics.median(times)


async def herd(url: str, connection: asyncpg.Connection, size: int, sessions: int) -> float:
    """Firings a second, when so many are due at once."""
    await connection.execute(_MAKE_DUE, size)
    before: int = await connection.fetchval("SELECT count(*) FROM jobs")

    async def work() -> None:
        mine = await asyncpg.connect(url)
        while await mine.fetch("SELECT * FROM accs.settle_due(200)"):
            pass
        await mine.close()

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(sessions)))
    took = time.perf_counter() - began
    made: int = await connection.fetchval("SELECT count(*) FROM jobs") - before
    assert made == size, f"{made} jobs of {size}"
    return size / took


async def idle(url: str, connection: asyncpg.Connection, seconds: float) -> tuple[float, float]:
    """Which share of a core a real builder and its sessions in the server use while nothing is due."""
    with (
        tempfile.TemporaryDirectory(prefix="accsd-bench-") as folder,
        process(Path(folder), url, ["-m", "accsd", "--role", "builder"], node="control") as builder,
    ):
        await asyncio.sleep(SETTLING)
        rows = await connection.fetch("SELECT pid FROM pg_stat_activity WHERE application_name LIKE 'accsd %'")
        sessions = [row["pid"] for row in rows]
        before, began = (cpu_of([builder.pid]), cpu_of(sessions)), time.perf_counter()
        await asyncio.sleep(seconds)
        took = (time.perf_counter() - began) * 1e6
        return (cpu_of([builder.pid]) - before[0]) / took, (cpu_of(sessions) - before[1]) / took


def previews() -> None:
    for kind, expr in PREVIEWED:
        now = datetime.now(UTC)
        times: list[float] = []
        for _ in range(5):
            began = time.perf_counter()
            rule = parse_rule(kind, expr, "Europe/Berlin", schedule_id="s", created_at=now)
            assert len(preview(rule, now, 1000)) == 1000
            times.append((time.perf_counter() - began) * 1000)
        print(f"preview of 1,000, {kind} {expr}: {statistics.median(times):.0f} ms")


async def measure(url: str, count: int, first: int, connection: asyncpg.Connection, seconds: float) -> None:
    await connection.execute(_DEFINE, first, count, timeout=600)
    await connection.execute("DELETE FROM accs.agenda WHERE what = 'replan'")
    await connection.execute(_PLAN, timeout=600)
    await connection.execute("ANALYZE", timeout=600)
    builder, sessions = await idle(url, connection, seconds)
    outlook = await timed(connection, "SELECT * FROM accs.scheduler_outlook()")
    empty = await timed(connection, "SELECT * FROM accs.settle_due()")
    firing = await one_firing(connection)
    print(f"{count:>7,} schedules: outlook {outlook:.2f} ms, idle pass {empty:.2f} ms, a firing {firing:.2f} ms")
    print(f"{'':>7} an idle builder uses {builder:.2%} of a core, its sessions in the server {sessions:.2%}")


async def main(few: int, many: int, due: int, seconds: float) -> None:
    previews()
    with postgres() as server:
        connection = await installed(server.url)
        version = await connection.fetchval("SHOW server_version")
        print(f"{datetime.now(UTC):%Y-%m-%d}, PostgreSQL {version}, load {os.getloadavg()[0]:.1f}")
        await measure(server.url, few, 1, connection, seconds)
        await measure(server.url, many, few + 1, connection, seconds)
        for sessions in (1, 3):
            rate = await herd(server.url, connection, due, sessions)
            print(f"{due:,} due at once, {sessions} schedulers: {rate:,.0f} a second, {timedelta(seconds=due / rate)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--herd", type=int, default=10_000)
    parser.add_argument("--idle", type=float, default=60, help="seconds for which an idle builder is watched")
    given = parser.parse_args()
    asyncio.run(main(given.few, given.many, given.herd, given.idle))
