"""Pairs of calls that want the same rows, brought to the point where a wrong lock order is a deadlock.

A third session holds one row until both stand where they would cross; then it lets go.
"""

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid4

import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    OWNER,
    Row,
    cancel,
    claim,
    fail,
    finish,
    node,
    pass_time,
    started,
    step,
    submit,
    submit_to,
    tasks,
    workflow,
)
from tests.support.race import Race

pytestmark = pytest.mark.every_postgresql


async def lock_task(conn: Connection, claimed: Row) -> None:
    await conn.execute("SELECT FROM job_tasks WHERE id = $1 FOR NO KEY UPDATE", claimed["task_id"])


async def lock_key(conn: Connection, key: str) -> None:
    await conn.execute("SELECT FROM accs.concurrency_keys WHERE key = $1 FOR NO KEY UPDATE", key)


async def heartbeat(conn: Connection, *claimed: Row) -> Sequence[Row]:
    return await conn.fetch(
        "SELECT * FROM accs.heartbeat('n1', $1, $2, $3, '60 s')",
        OWNER,
        [c["task_id"] for c in claimed],
        [c["attempt_id"] for c in claimed],
    )


def answers(rows: Sequence[Row]) -> dict[UUID, str]:
    return {row["id"]: row["answer"] for row in rows}


async def finish_some(conn: Connection, done: list[Row], failed: list[Row]) -> Sequence[Row]:
    both = done + failed
    return await conn.fetch(
        "SELECT * FROM accs.finish_tasks($1, $2, $3, $4)",
        [c["task_id"] for c in both],
        [c["attempt_id"] for c in both],
        OWNER,
        ["done"] * len(done) + ["error"] * len(failed),
    )


async def stale_and_free(conn: Connection, *steps) -> Sequence[Row]:
    """Attempts whose leases ran out and were reclaimed: their owner does not know yet."""
    for one in steps:
        await submit(conn, one)
    lost = await started(conn, len(steps))
    await pass_time(conn, 120)
    await conn.fetch("SELECT * FROM accs.reclaim_tasks()")
    return lost


async def test_a_zombies_finish_and_a_claim_of_the_same_tasks(conn: Connection, race: Race) -> None:
    """The claim goes by the global order, the finish by id: here they are opposite."""
    await node(conn)
    flow = await workflow(conn, step("a"))
    later = await submit_to(conn, flow, priority=0)
    sooner = await submit_to(conn, flow, priority=5)
    lost = await started(conn, 2)
    assert [row["job_id"] for row in lost] == [sooner, later]
    await pass_time(conn, 120)
    await conn.fetch("SELECT * FROM accs.reclaim_tasks()")
    first_by_id = min(lost, key=lambda row: row["task_id"])
    holder, zombie, claimer = await race.session(), await race.session(), await race.session()
    async with holder.transaction():
        await lock_task(holder, first_by_id)
        finishing = asyncio.ensure_future(fail(zombie, *lost))
        await race.ends_or_waits(finishing, zombie)
        claiming = asyncio.ensure_future(claim(claimer, 2, owner="new"))
        await race.until_blocked(claimer)
    assert len(await claiming) == 2
    assert set(answers(await finishing).values()) == {"refused"}
    await check(conn)


async def test_a_zombies_release_and_a_claim_of_the_same_tasks(conn: Connection, race: Race) -> None:
    await node(conn)
    lost = await stale_and_free(conn, step("a"), step("a"))
    claimer, zombie = await race.session(), await race.session()
    async with claimer.transaction():
        assert len(await claim(claimer, 2, owner="new")) == 2
        told = await zombie.fetch(
            "SELECT * FROM accs.release_tasks($1, $2, $3)",
            [c["task_id"] for c in lost],
            [c["attempt_id"] for c in lost],
            OWNER,
        )
        assert set(answers(told).values()) == {"refused"}
    await check(conn)


async def test_a_finish_that_is_half_stale_and_a_claim_with_its_key(conn: Connection, race: Race) -> None:
    """The claim holds the key and wants the stale task's row; the finish must not hold that row and want the key."""
    await node(conn)
    (stale,) = await stale_and_free(conn, step("a", concurrency_key="k", concurrency_limit=2))
    await submit(conn, step("a", "audio", concurrency_key="k"))
    (valid,) = await started(conn, service="audio")
    holder, zombie, claimer = await race.session(), await race.session(), await race.session()
    async with holder.transaction():
        await lock_task(holder, stale)
        finishing = asyncio.ensure_future(fail(zombie, stale, valid))
        await race.ends_or_waits(finishing, zombie)
        claiming = asyncio.ensure_future(claim(claimer, owner="new"))
        await race.until_blocked(claimer)
    assert [row["task_id"] for row in await claiming] == [stale["task_id"]]
    assert answers(await finishing) == {stale["task_id"]: "refused", valid["task_id"]: "accepted"}
    await check(conn)


async def test_a_finish_of_done_and_failed_tasks_and_the_heartbeat_of_the_same(conn: Connection, race: Race) -> None:
    await node(conn)
    for _ in range(2):
        await submit(conn, step("a"))
    low, high = sorted(await started(conn, 2), key=lambda row: row["task_id"])
    holder, finisher, keeper = await race.session(), await race.session(), await race.session()
    async with holder.transaction():
        await lock_task(holder, high)
        finishing = await race.blocked(finisher, finish_some(finisher, [high], [low]), by=holder)
        beating = asyncio.ensure_future(heartbeat(keeper, low, high))
        await race.until_blocked(keeper)
    assert set(answers(await finishing).values()) == {"accepted"}
    assert set(answers(await beating).values()) <= {"refused", "accepted"}
    await check(conn)


async def test_two_finishes_that_hand_two_keys_to_each_other(conn: Connection, race: Race) -> None:
    """One frees a and unblocks a step that needs b, the other the other way round."""
    await node(conn)
    for mine, next_one in (("a", "b"), ("b", "a")):
        await submit(
            conn,
            step("one", mine, concurrency_key=mine),
            step("two", after="one", concurrency_key=next_one),
        )
    (frees_a,), (frees_b,) = await started(conn, service="a"), await started(conn, service="b")
    holds_a, holds_b, one, two = [await race.session() for _ in range(4)]
    async with holds_a.transaction():
        await lock_key(holds_a, "a")
        async with holds_b.transaction():
            await lock_key(holds_b, "b")
            first = asyncio.ensure_future(finish(one, frees_a))
            await race.until_blocked(one)
            second = asyncio.ensure_future(finish(two, frees_b))
            await race.until_blocked(two)
    assert set(answers(await first).values()) | set(answers(await second).values()) == {"accepted"}
    assert len(await claim(conn, 2)) == 2
    await check(conn)


async def test_a_redrive_of_two_jobs_and_a_finish_that_need_two_keys(conn: Connection, race: Race) -> None:
    await node(conn)
    for key in ("b", "a"):
        await submit(conn, step("one", concurrency_key=key))
    await fail(conn, *await started(conn, 2), permanent=True)
    await submit(conn, step("one", "audio", concurrency_key="b"), step("two", after="one", concurrency_key="a"))
    (frees_b,) = await started(conn, service="audio")
    letters = [row["id"] for row in await conn.fetch("SELECT id FROM dead_letters")]
    holds_a, holds_b, redriver, finisher = [await race.session() for _ in range(4)]
    async with holds_a.transaction():
        await lock_key(holds_a, "a")
        async with holds_b.transaction():
            await lock_key(holds_b, "b")
            redriving = asyncio.ensure_future(redriver.fetch("SELECT * FROM accs.redrive($1)", letters))
            await race.until_blocked(redriver)
            finishing = asyncio.ensure_future(finish(finisher, frees_b))
            await race.until_blocked(finisher)
    assert {row["answer"] for row in await redriving} == {"accepted"}
    assert set(answers(await finishing).values()) == {"accepted"}
    await check(conn)


async def test_a_claim_of_two_rounds_and_a_finish_that_need_two_keys(conn: Connection, race: Race) -> None:
    """The claim's first round locks b (which is full) and its second meets a; the finish frees a and wants b."""
    await node(conn)
    await submit(conn, step("full", "video", concurrency_key="b"))
    await submit(
        conn, step("one", "audio", concurrency_key="a"), step("two", "audio", after="one", concurrency_key="b")
    )
    await submit(conn, step("b", concurrency_key="b"))
    await submit(conn, step("a", concurrency_key="a"))
    await claim(conn, service="video")
    (frees_a,) = await started(conn, service="audio")
    holds_a, finisher, claimer = [await race.session() for _ in range(3)]
    async with holds_a.transaction():
        await lock_key(holds_a, "a")
        finishing = await race.blocked(finisher, finish(finisher, frees_a), by=holds_a)
        claiming = asyncio.ensure_future(claim(claimer, 1))
        assert await race.ends_or_waits(claiming, claimer)
    assert set(answers(await finishing).values()) == {"accepted"}
    assert len(await claiming) <= 1
    await check(conn)


async def test_two_submissions_of_the_same_keys_in_opposite_order(conn: Connection, race: Race) -> None:
    flow = await workflow(conn, step("a"))
    holder, one, two = [await race.session() for _ in range(3)]

    async def submit_keys(session: Connection, *keys: str) -> Sequence[Row]:
        return await session.fetch("SELECT * FROM accs.submit_jobs($1, p_keys => $2)", [flow] * len(keys), list(keys))

    holding = holder.transaction()
    await holding.start()
    await submit_keys(holder, "m")
    first = await race.blocked(one, submit_keys(one, "a", "m", "b"), by=holder)
    second = asyncio.ensure_future(submit_keys(two, "b", "a"))
    await race.until_blocked(two)
    await holding.rollback()
    assert [row["answer"] for row in await first] == ["accepted"] * 3
    assert [row["answer"] for row in await second] == ["repeated"] * 2
    assert [row["job_id"] for row in await second] == [(await first)[2]["job_id"], (await first)[0]["job_id"]]
    await check(conn)


async def test_two_submissions_of_the_same_job_ids_in_opposite_order(conn: Connection, race: Race) -> None:
    flow = await workflow(conn, step("a"))
    holder, one, two = [await race.session() for _ in range(3)]
    a, m, b = sorted(uuid4() for _ in range(3))  # one has the first of them when it meets m

    async def submit_ids(session: Connection, *ids: UUID) -> Sequence[Row]:
        return await session.fetch("SELECT * FROM accs.submit_jobs($1, p_job_ids => $2)", [flow] * len(ids), list(ids))

    holding = holder.transaction()
    await holding.start()
    await submit_ids(holder, m)
    first = await race.blocked(one, submit_ids(one, a, m, b), by=holder)
    second = asyncio.ensure_future(submit_ids(two, b, a))
    await race.until_blocked(two)
    await holding.rollback()
    assert [row["answer"] for row in await first] == ["accepted"] * 3
    assert [row["answer"] for row in await second] == ["repeated"] * 2
    await check(conn)


async def test_two_workflows_written_at_once_with_the_same_new_services(conn: Connection, race: Race) -> None:
    holder, one, two = [await race.session() for _ in range(3)]
    services = [f"s{i}" for i in range(200)]
    steps = [step(f"k{i}", name, concurrency_key=name) for i, name in enumerate(services)]
    async with holder.transaction():
        await workflow(holder, step("a", "s100", concurrency_key="s100"))
        first = await race.blocked(one, workflow(one, *steps), by=holder)
        second = await race.blocked(two, workflow(two, *reversed(steps[95:105])), by=holder)
    await asyncio.gather(first, second)
    assert await conn.fetchval("SELECT count(*) FROM accs.lanes") == 200


@pytest.mark.parametrize("verb", ["cancel_jobs", "retry_jobs"])
async def test_batches_of_jobs_in_opposite_order(conn: Connection, race: Race, verb: str) -> None:
    await node(conn)
    flow = await workflow(conn, step("a", concurrency_key="k"))
    jobs = [await submit_to(conn, flow) for _ in range(3)]
    if verb == "retry_jobs":
        await cancel(conn, *jobs)
    holder, one, two = [await race.session() for _ in range(3)]
    query = f"SELECT * FROM accs.{verb}($1)"
    async with holder.transaction():
        await holder.execute("SELECT FROM jobs WHERE id = $1 FOR NO KEY UPDATE", jobs[1])
        first = await race.blocked(one, one.fetch(query, jobs), by=holder)
        second = asyncio.ensure_future(two.fetch(query, jobs[::-1]))
        await race.until_blocked(two)
    assert set(answers(await first).values()) == {"accepted"}
    assert set(answers(await second).values()) == {"repeated"}
    await check(conn)


async def test_a_cancel_and_a_heartbeat_of_the_same_tasks(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"), step("b"), step("c"))
    claimed = await started(conn, 3)
    holder, one, two = [await race.session() for _ in range(3)]
    async with holder.transaction():
        await lock_task(holder, claimed[1])
        beating = await race.blocked(one, heartbeat(one, *claimed[::-1]), by=holder)
        cancelling = asyncio.ensure_future(cancel(two, job_id))
        await race.until_blocked(two)
    assert set(answers(await beating).values()) == {"accepted"}
    assert [row["answer"] for row in await cancelling] == ["accepted"]
    assert set((await tasks(conn, job_id)).values()) == {"cancelled"}
    await check(conn)
