"""What do steps with expressions cost? How many a resolver resolves in a second, what a fan-out of many items takes,
and how much longer a step with an expression waits than one without.

    python -m bench.pipelines                     10,000 steps, a fan-out of 10,000, 200 rounds of latency
    python -m bench.pipelines --steps 2000 --items 1000

Synchronous commit. The resolver runs in this process, as the daemon's role does.
"""

import argparse
import asyncio
import statistics
import time
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import asyncpg
import orjson

from accsd.builder.resolver import Resolver
from accsd.db.pool import Database
from accsd.settings.model import DatabaseSettings
from bench.throwaway import installed, postgres

_LEASE: Final = timedelta(minutes=5)
_WORKFLOWS: Final = {
    "plain": [{"key": "a", "service": "noop"}, {"key": "b", "service": "noop", "depends_on": ["a"]}],
    "flow": [
        {"key": "a", "service": "noop"},
        {
            "key": "b",
            "service": "noop",
            "depends_on": ["a"],
            "if": "steps.a.n > 0",
            "with": {"n": "${steps.a.n}", "text": "part ${steps.a.n} of ${params.of}"},
        },
    ],
    "fan": [
        {"key": "split", "service": "noop"},
        {
            "key": "each",
            "service": "items",
            "depends_on": ["split"],
            "for_each": "${steps.split.parts}",
            "max_items": 10_000,
            "with": {"part": "${item}", "n": "${index}"},
        },
        {"key": "join", "service": "noop", "depends_on": ["each"]},
    ],
}


async def define(connection: asyncpg.Connection) -> None:
    for name, steps in _WORKFLOWS.items():
        await connection.execute(
            "INSERT INTO workflows (name, steps, params) VALUES ($1, $2, '{\"of\": 3}')",
            name,
            orjson.dumps(steps).decode(),
        )


async def submit(connection: asyncpg.Connection, workflow: str, jobs: int) -> None:
    await connection.execute(
        "SELECT accs.submit_jobs(array_agg(id)) FROM workflows, generate_series(1, $2) WHERE name = $1", workflow, jobs
    )


async def work(connection: asyncpg.Connection, most: int, results: dict[str, Any], service: str = "noop") -> int:
    """Claims, starts and finishes up to so many tasks."""
    return await connection.fetchval(
        """WITH taken AS MATERIALIZED (SELECT * FROM accs.claim_tasks($1, 'w', 'w', $2, $3, true))
           SELECT count(*) FROM accs.finish_tasks(
             ARRAY(SELECT task_id FROM taken ORDER BY task_id),
             ARRAY(SELECT attempt_id FROM taken ORDER BY task_id), 'w', NULL, ARRAY(SELECT $4::jsonb FROM taken))""",
        service,
        most,
        _LEASE,
        orjson.dumps(results).decode(),
    )


async def rate(connection: asyncpg.Connection, resolver: Resolver, steps: int) -> float:
    """Steps a second that one resolver resolves, each with a condition and three expressions."""
    await submit(connection, "flow", steps)
    while await work(connection, 1000, {"n": 1}):
        pass
    began = time.perf_counter()
    while (await resolver.run_once()).more:
        pass
    took = time.perf_counter() - began
    left: int = await connection.fetchval("SELECT count(*) FROM accs.waiting WHERE hold = 'resolve'")
    assert left == 0, f"{left} are left"
    while await work(connection, 1000, {}):
        pass
    return steps / took


async def fan_out(connection: asyncpg.Connection, resolver: Resolver, items: int) -> tuple[float, float]:
    """Seconds until all tasks are there: with the expressions of the items, and of it in SQL alone."""
    await submit(connection, "fan", 1)
    await work(connection, 1, {"parts": [f"part{n}" for n in range(items)]})
    began = time.perf_counter()
    await resolver.run_once()
    whole = time.perf_counter() - began
    made: int = await connection.fetchval(
        "SELECT count(*) FROM accs.waiting w JOIN job_tasks t ON t.id = w.task_id WHERE parent IS NOT NULL"
    )
    assert made == items, f"{made} of {items}"
    while await work(connection, 1000, {}, "items"):
        pass

    await submit(connection, "fan", 1)
    await work(connection, 1, {})
    task = await connection.fetchval(
        "SELECT task_id FROM accs.waiting WHERE hold = 'resolve' ORDER BY order_seq DESC LIMIT 1"
    )
    began = time.perf_counter()
    answer = await connection.fetchval(
        """SELECT answer FROM accs.fan_out($1, 0, ARRAY(
             SELECT jsonb_build_object('with', jsonb_build_object('n', n)) FROM generate_series(1, $2) n))""",
        task,
        items,
    )
    assert answer == "accepted", answer
    return whole, time.perf_counter() - began


async def latency(connection: asyncpg.Connection, resolver: Resolver, workflow: str, rounds: int) -> float:
    """Milliseconds from the end of a step to the claim of the next one, the median."""
    times: list[float] = []
    for _ in range(rounds):
        await submit(connection, workflow, 1)
        await work(connection, 1, {"n": 1})
        began = time.perf_counter()
        if workflow == "flow":
            await resolver.run_once()
        done = await work(connection, 1, {})
        times.append((time.perf_counter() - began) * 1000)
        assert done == 1, done
    return statistics.median(times)


async def main(steps: int, items: int, rounds: int) -> None:
    with postgres() as server:
        connection = await installed(server.url)
        print(f"{datetime.now(UTC):%Y-%m-%d}, PostgreSQL {await connection.fetchval('SHOW server_version')}")
        await define(connection)
        db = await Database.open(DatabaseSettings(url=server.url), application="bench")
        resolver = Resolver(db)
        try:
            await rate(connection, resolver, 200)
            print(f"resolved: {await rate(connection, resolver, steps):,.0f} steps a second, one resolver")
            plain, flow = [await latency(connection, resolver, name, rounds) for name in ("plain", "flow")]
            print(
                f"from the end of a step to the end of the next: {plain:.2f} ms plain, {flow:.2f} ms with expressions"
            )
            whole, sql = await fan_out(connection, resolver, items)
            print(f"a fan-out of {items:,}: {whole:.2f} s with its expressions, {sql:.2f} s in SQL alone")
        finally:
            await db.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=200)
    given = parser.parse_args()
    asyncio.run(main(given.steps, given.items, given.rounds))
