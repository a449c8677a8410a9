"""Does a drain stay as fast while it lasts? A backlog is drained to its end with nothing but autovacuum to clean up.

    python -m bench.long_drain                   1 M tasks: some three minutes
    python -m bench.long_drain --tasks 200000    half a minute

The server's CPU for a task in each tenth of the drain, beside how large the two tables are in which rows come and go.
"""

import argparse
import asyncio
from datetime import timedelta

import asyncpg

from accsd import embedded
from bench.throwaway import cpu_of, installed, postgres

LEASE = timedelta(minutes=10)
BATCH = 1000
PARTS = 10
SIZES = """
SELECT pg_total_relation_size('accs.waiting') / 2^20 AS waiting, pg_total_relation_size('accs.live') / 2^20 AS live,
       (SELECT sum(autovacuum_count) FROM pg_stat_user_tables WHERE relname IN ('waiting', 'live')) AS vacuumed
"""


async def submit(connection: asyncpg.Connection, tasks: int) -> None:
    workflow = await connection.fetchval("SELECT id FROM workflows")
    for _ in range(tasks // BATCH):
        await connection.fetch("SELECT FROM accs.submit_jobs($1)", [workflow] * BATCH)


async def drain(connection: asyncpg.Connection, tasks: int) -> None:
    for _ in range(tasks // BATCH):
        claimed = await connection.fetch(
            "SELECT task_id, attempt_id FROM accs.claim_tasks('noop', 'w', 'w', $1, $2, true)", BATCH, LEASE
        )
        fences = [row["task_id"] for row in claimed], [row["attempt_id"] for row in claimed]
        refused = await connection.fetch(
            "SELECT FROM accs.finish_tasks($1, $2, 'w') WHERE answer <> 'accepted'", *fences
        )
        assert len(claimed) == BATCH
        assert not refused


async def measure(server: embedded.Server, tasks: int) -> None:
    connection = await installed(server.url)
    pid = await connection.fetchval("SELECT pg_backend_pid()")
    await submit(connection, tasks)
    print("| drained | server's CPU a task | waiting | live | vacuumed so far |\n|---|---|---|---|---|")
    for part in range(PARTS):
        before = cpu_of([pid])
        await drain(connection, tasks // PARTS)
        spent = (cpu_of([pid]) - before) / (tasks // PARTS)
        sizes = await connection.fetchrow(SIZES)
        assert sizes is not None
        waiting, live, vacuumed = sizes
        done = tasks // PARTS * (part + 1)
        print(f"| {done:,} | {spent:.1f} µs | {waiting:.0f} MiB | {live:.0f} MiB | {vacuumed} |", flush=True)
    await connection.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=1_000_000, help="in the backlog (default: %(default)s)")
    asked = parser.parse_args()
    with postgres() as server:
        asyncio.run(measure(server, asked.tasks))


if __name__ == "__main__":
    main()
