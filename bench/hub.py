"""How long does it take from the commit of an event to a client of the hub, and what does the hub cost?

    python -m bench.hub                    200,000 events before, 200 events while others flow, 40 in silence
    python -m bench.hub --before 2000000

In one process: the hub, its clients and the writer. What HTTP adds is not in it. The commit is over when its answer is
here, so a client may be told a moment earlier; such a latency counts as 0.
"""

import argparse
import asyncio
import os
import random
import resource
import statistics
import time
from uuid import UUID, uuid4

import anyio
import asyncpg
import orjson

from accsd.db.feed import Feed
from accsd.db.listen import Listener
from accsd.db.pool import Database
from accsd.gateway.hub import Hub
from accsd.gateway.messages import Topic
from accsd.metrics import Metrics
from accsd.settings import DatabaseSettings
from bench.throwaway import installed, postgres

_FILL = """INSERT INTO task_events (job_id, source, type, message)
           SELECT gen_random_uuid(), 'bench', 'log', repeat('x', 100) FROM generate_series(1, $1)"""
_SAY = "INSERT INTO task_events (job_id, source, type, message) VALUES ($1, 'bench', 'wake', $2)"


async def latencies(
    hub: Hub, connection: asyncpg.Connection, job: UUID, events: int, pauses: tuple[float, float]
) -> list[float]:
    """Seconds from the commit of each event until a client has it."""
    committed: dict[str, float] = {}
    told: dict[str, float] = {}
    all_told = anyio.Event()
    async with hub.subscribe([Topic.job(job)]) as subscription, anyio.create_task_group() as group:

        async def listen() -> None:
            async for message in subscription:
                if message.event == "event":
                    told[orjson.loads(message.data)["message"]] = time.perf_counter()
                    if len(told) == events:
                        all_told.set()

        group.start_soon(listen)
        for n in range(events):
            await asyncio.sleep(random.uniform(*pauses))
            await connection.execute(_SAY, job, str(n))
            committed[str(n)] = time.perf_counter()
        await all_told.wait()
        group.cancel_scope.cancel()
    return [max(0.0, told[n] - at) for n, at in committed.items()]


async def cost(hub: Hub, connection: asyncpg.Connection, job: UUID, streams: int, rate: float, seconds: float) -> float:
    """The share of a core that this process uses: the hub, the streams' readers, and the writer."""
    share = 0.0
    async with anyio.create_task_group() as group:

        async def listen() -> None:
            async with hub.subscribe([Topic.job(job)]) as subscription:
                async for message in subscription:
                    assert message.sse

        for _ in range(streams):
            group.start_soon(listen)
        await asyncio.sleep(2)
        began, used = time.perf_counter(), _cpu()
        while time.perf_counter() - began < seconds:
            if rate:
                await connection.execute(_SAY, job, "x")
            await asyncio.sleep(1 / rate if rate else 1.0)
        share = (_cpu() - used) / (time.perf_counter() - began)
        group.cancel_scope.cancel()
    return share


async def reading(feed: Feed) -> float:
    """Seconds of one read of the hub that finds nothing new: the median of 200."""
    head = await feed.head()
    times: list[float] = []
    for _ in range(200):
        began = time.perf_counter()
        assert not await feed.after(head.last, head.clock)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _shown(found: list[float]) -> str:
    p50, p95 = statistics.median(found), statistics.quantiles(found, n=20)[-1]
    return f"p50 {p50 * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms, most {max(found) * 1000:.0f} ms"


async def main(before: int) -> None:
    with postgres() as server:
        connection = await installed(server.url)
        for _ in range(0, before, 100_000):
            await connection.execute(_FILL, min(before, 100_000))
        await connection.execute("VACUUM ANALYZE task_events")
        settings = DatabaseSettings.model_validate({"url": server.url})
        db = await Database.open(settings, application="bench hub")
        listener = Listener(settings, "accs_", behind_pooler=False)
        hub = Hub(db, listener, metrics=Metrics())
        async with anyio.create_task_group() as group:
            await group.start(listener.serve)
            await group.start(hub.serve)
            job = uuid4()
            print(f"{before:,} events before; load of the machine {os.getloadavg()[0]:.1f}")
            print(f"a read that finds nothing: {await reading(Feed(db)) * 1000:.2f} ms")
            await connection.execute(_FILL, 50_000)
            print(f"after 50,000 events more:  {await reading(Feed(db)) * 1000:.2f} ms")
            print("while others flow:", _shown(await latencies(hub, connection, job, 200, (0.02, 0.2))))
            print("after silence:    ", _shown(await latencies(hub, connection, job, 40, (1.5, 2.5))))
            print(f"one viewer, nothing happens: {await cost(hub, connection, job, 1, 0, 20):.2%} of a core")
            print(f"50 streams, 50 events/s:     {await cost(hub, connection, job, 50, 50, 20):.2%} of a core")
            group.cancel_scope.cancel()
        await db.close()
        await connection.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=int, default=200_000)
    asyncio.run(main(parser.parse_args().before))
