"""A job of 100,000 tasks: made in one go, worked off at a steady pace and cancelled, while other services go on."""

import asyncio
import time
from collections.abc import Awaitable
from typing import Any, TypeVar

import pytest

from tests.support.checker import check
from tests.support.cluster import SERVER_NAMES, Connection, TestServer
from tests.support.factory import (
    cancel,
    claim,
    done,
    fail,
    finish,
    job,
    node,
    started,
    step,
    workflow,
)
from tests.support.race import Race

# The full size once; on the other version a fifth shows the same plans in a fifth of the time.
FULL_SIZE = 100_000
T = TypeVar("T")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


def fan_and_chain(size: int) -> list[dict[str, Any]]:
    """Half of it depends on one root, the other half is one long chain (of another service, to take them apart)."""
    half = size // 2
    fan = [step("root"), *(step(f"leaf{i}", after="root") for i in range(half - 1))]
    return fan + [step(f"s{i}", "video", after=[f"s{i - 1}"] if i else []) for i in range(half)]


async def timed(what: str, work: Awaitable[T]) -> T:
    began = time.monotonic()
    result = await work
    print(f"{what}: {time.monotonic() - began:.2f} s")
    return result


async def while_others_claim(conn: Connection, what: str, work: Awaitable[T]) -> T:
    """Does `work` while another service is claimed and finished without a pause; none of that may take long."""
    times: list[float] = []
    ending = asyncio.ensure_future(work)
    began = time.monotonic()
    while not ending.done():
        asked = time.monotonic()
        assert len(await done(conn, 1, "audio")) == 1
        times.append(time.monotonic() - asked)
    times.sort()
    print(
        f"{what}: {time.monotonic() - began:.2f} s; meanwhile {len(times)} other tasks,"
        f" median {times[len(times) // 2] * 1000:.1f} ms, longest {times[-1] * 1000:.0f} ms"
    )
    assert len(times) > 10, "the others stood still"
    assert times[-1] < 1.5
    return await ending


async def audio_jobs(conn: Connection, count: int) -> None:
    flow = await workflow(conn, step("a", "audio"))
    await conn.fetch("SELECT * FROM accs.submit_jobs($1)", [flow] * count)


async def test_a_job_of_100_000_tasks_does_not_stop_the_others(
    conn: Connection, race: Race, server: TestServer
) -> None:
    size = FULL_SIZE if server.name == SERVER_NAMES[0] else FULL_SIZE // 5
    print()
    await conn.execute("SET jit = off")  # for the checker: PostgreSQL 15 would compile it for longer than it runs
    await node(conn)
    await audio_jobs(conn, 10_000)
    await conn.execute("ANALYZE")  # statistics of many small jobs, as they stand where a large one is rare
    other = await race.session()
    flow = await timed("workflow written", workflow(conn, *fan_and_chain(size)))
    await other.execute("INSERT INTO jobs (workflow_id) VALUES ($1)", flow)
    (made,) = await while_others_claim(conn, "instantiated", other.fetch("SELECT * FROM accs.instantiate_due_jobs()"))
    job_id = made["job_id"]
    assert (await job(conn, job_id))["open_tasks"] == size
    assert await conn.fetchval("SELECT count(*) FROM job_tasks WHERE job_id = $1", job_id) == size

    (root,) = await started(other)
    await while_others_claim(conn, "the root of the fan finished", finish(other, root))
    await finish_in_batches(other)
    await walk_the_chain(other)
    (failing,) = await started(other, 1, "video")
    await while_others_claim(conn, "the chain failed, all below skipped", fail(other, failing, permanent=True))
    await while_others_claim(conn, "cancelled", cancel(other, job_id))

    row = await job(conn, job_id)
    assert (row["status"], row["open_tasks"]) == ("cancelled", 0)
    assert await claim(conn) == await claim(conn, 1, "video") == []
    again = other.fetch("SELECT * FROM accs.retry_jobs($1)", [job_id])
    assert [row["answer"] for row in await while_others_claim(conn, "all of it but 3051 opened again", again)] == [
        "accepted"
    ]
    assert (await job(conn, job_id))["open_tasks"] == size - 3051  # the root, 3,000 leaves and 50 links are done
    await timed("checked", check(conn))


async def finish_in_batches(conn: Connection) -> None:
    """A batch touches its own rows: it must not matter how many tasks the job has or how many are done."""
    paces: list[float] = []
    for _ in range(6):
        batch = await started(conn, 500)
        assert len(batch) == 500
        began = time.monotonic()
        await finish(conn, *batch)
        paces.append(time.monotonic() - began)
    print("500 of its tasks finished: " + ", ".join(f"{pace * 1000:.0f} ms" for pace in paces))
    assert max(paces) < 2.0


async def walk_the_chain(conn: Connection) -> None:
    began = time.monotonic()
    for number in range(50):
        assert [row["task_key"] for row in await done(conn, 1, "video")] == [f"s{number}"]
    took = time.monotonic() - began
    print(f"50 steps of the chain, one after the other: {took:.2f} s")
    assert took < 10
