"""What do schedules cost? The idle pass and one firing, among few and among many; and a herd that is due at once.

    python -m bench.schedules                      100 and 100,000 schedules, 10,000 due at once
    python -m bench.schedules --many 10000 --herd 2000

Synchronous commit. The plans are made here, so that the planner's own time is not counted.
"""

import argparse
import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg

from bench.throwaway import installed, postgres

ROUNDS = 80
_DEFINE = """
INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, overlap)
SELECT 's' || i, 'interval', '3600s', 'noop', 'skip' FROM generate_series($1::int, $2::int) i
"""
# What the planner writes, for many schedules at once: 32 occurrences, an hour apart, the first one far ahead.
_PLAN = """
WITH due AS (
  SELECT id, now() + interval '1 day' + random() * interval '1 hour' AS first FROM schedules
), planned AS (
  INSERT INTO accs.plan_of (schedule_id, revision, zone_version, zone_digest, nominals, folds, dues)
  SELECT d.id, 1, '2026a', 'd',
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


async def measure(url: str, count: int, first: int, connection: asyncpg.Connection) -> None:
    await connection.execute(_DEFINE, first, count, timeout=600)
    await connection.execute("DELETE FROM accs.agenda WHERE what = 'replan'")
    await connection.execute(_PLAN, timeout=600)
    await connection.execute("ANALYZE", timeout=600)
    outlook = await timed(connection, "SELECT * FROM accs.scheduler_outlook()")
    idle = await timed(connection, "SELECT * FROM accs.settle_due()")
    firing = await one_firing(connection)
    print(f"{count:>7,} schedules: outlook {outlook:.2f} ms, idle pass {idle:.2f} ms, a firing {firing:.2f} ms")


async def main(few: int, many: int, due: int) -> None:
    with postgres() as server:
        connection = await installed(server.url)
        print(f"{datetime.now(UTC):%Y-%m-%d}, PostgreSQL {(await connection.fetchval('SHOW server_version'))}")
        await measure(server.url, few, 1, connection)
        await measure(server.url, many, few + 1, connection)
        for sessions in (1, 3):
            rate = await herd(server.url, connection, due, sessions)
            print(f"{due:,} due at once, {sessions} schedulers: {rate:,.0f} a second, {timedelta(seconds=due / rate)}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--few", type=int, default=100)
    parser.add_argument("--many", type=int, default=100_000)
    parser.add_argument("--herd", type=int, default=10_000)
    given = parser.parse_args()
    asyncio.run(main(given.few, given.many, given.herd))
