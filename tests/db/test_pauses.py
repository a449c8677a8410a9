"""pause, resume, drain, set_concurrency_limit: what keeps claimable work from being claimed."""

import asyncio

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    claim,
    done,
    fail,
    finish,
    node,
    pass_time,
    release,
    started,
    step,
    submit,
    submit_to,
    workflow,
)
from tests.support.race import blocked


async def pause(conn: Connection, kind: str, name: str) -> str:
    return await conn.fetchval("SELECT accs.pause($1, $2, 'a reason', 'ops')", kind, name)


async def resume(conn: Connection, kind: str, name: str) -> str:
    return await conn.fetchval("SELECT accs.resume($1, $2)", kind, name)


async def limit(conn: Connection, key: str, n: int) -> str:
    return await conn.fetchval("SELECT accs.set_concurrency_limit($1, $2)", key, n)


async def test_a_paused_service_gives_nothing_and_what_runs_goes_on(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"), step("c", "audio"))
    (running,) = await started(conn)
    assert await pause(conn, "service", "render") == "accepted"
    assert await claim(conn, 5) == []
    assert len(await claim(conn, 5, "audio")) == 1
    assert [row["answer"] for row in await finish(conn, running)] == ["accepted"]
    assert await resume(conn, "service", "render") == "accepted"
    assert len(await claim(conn, 5)) == 1
    assert await conn.fetchval("SELECT count(*) FROM accs.pauses") == 0


async def test_a_drained_node_claims_nothing_and_the_others_do(conn: Connection):
    await node(conn)
    await node(conn, "n2")
    await submit(conn, step("a"), step("b"))
    await pause(conn, "node", "n1")
    assert await claim(conn, 5) == []
    assert len(await claim(conn, 1, on="n2")) == 1
    await resume(conn, "node", "n1")
    assert len(await claim(conn, 5)) == 1


async def test_a_paused_workflow_waits_with_all_its_versions_whatever_becomes_runnable_meanwhile(conn: Connection):
    await node(conn)
    shape = await workflow(conn, step("a"), step("b", after="a"), step("r", backoff=[5]), name="media")
    newer = await workflow(conn, step("a"), name="media", version=2)
    await submit_to(conn, shape)
    a, r = await started(conn, 2)
    await submit_to(conn, newer)
    other = await submit(conn, step("x"))
    assert await pause(conn, "workflow", "media") == "accepted"
    await finish(conn, a)  # b becomes runnable
    await fail(conn, r)  # and r due
    await submit_to(conn, shape)  # and a whole job
    await pass_time(conn, 10)

    assert [row["job_id"] for row in await claim(conn, 9)] == [other]
    held = await conn.fetch("SELECT hold FROM accs.waiting")
    assert [row["hold"] for row in held] == ["paused"] * 5
    assert await resume(conn, "workflow", "media") == "accepted"
    assert [row["task_key"] for row in await claim(conn, 9)] == ["b", "r", "a", "a", "r"]


async def test_pausing_something_of_another_kind_is_refused(conn: Connection):
    with pytest.raises(asyncpg.CheckViolationError):
        await pause(conn, "planet", "earth")


async def test_a_pause_says_since_when_why_and_by_whom(conn: Connection):
    await pause(conn, "service", "render")
    row = await conn.fetchrow("SELECT kind, name, reason, by, since IS NOT NULL FROM accs.pauses")
    assert row == ("service", "render", "a reason", "ops", True)


async def test_a_workflow_that_is_paused_while_its_task_becomes_claimable_is_held_by_the_claim(
    conn: Connection, connect: Connect
):
    await node(conn)
    shape = await workflow(conn, name="media")
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await submit_to(other, shape)  # not visible to the pause
    await pause(conn, "workflow", "media")
    await transaction.commit()
    assert await conn.fetch("SELECT hold FROM accs.waiting") == [(None,)]
    assert await claim(conn) == []
    assert await conn.fetch("SELECT hold FROM accs.waiting") == [("paused",)]
    await resume(conn, "workflow", "media")
    assert len(await claim(conn)) == 1


async def test_resume_waits_for_whoever_holds_a_task_because_of_the_pause(conn: Connection, connect: Connect):
    await node(conn)
    shape = await workflow(conn, name="media")
    await pause(conn, "workflow", "media")
    other = await connect()
    async with conn.transaction():
        await submit_to(conn, shape)
        late = asyncio.ensure_future(resume(other, "workflow", "media"))
        await blocked(other, conn)
    assert await late == "accepted"
    assert len(await claim(conn)) == 1


async def test_a_key_lets_one_at_a_time_run_unless_it_says_otherwise(conn: Connection):
    await node(conn)
    one = await workflow(conn, step("a", concurrency_key="one"), step("b", "audio", concurrency_key="one"))
    two = await workflow(conn, step("a", concurrency_key="two", concurrency_limit=2))
    for _ in range(3):
        await submit_to(conn, one)
    assert len(await claim(conn, 9)) == 1
    assert await claim(conn, 9, "audio") == []  # the key counts across services
    for _ in range(5):
        await submit_to(conn, two)
    assert len(await claim(conn, 9)) == 2
    assert await claim(conn, 9) == []


@pytest.mark.parametrize("end", ["finish", "fail", "release", "reclaim", "permanent"])
async def test_the_next_of_a_key_is_claimable_however_the_one_before_it_ended(conn: Connection, end: str):
    await node(conn)
    shape = await workflow(conn, step("a", concurrency_key="k", backoff=[900]))
    for _ in range(2):
        await submit_to(conn, shape)
    (first,) = await started(conn, 2)
    if end == "finish":
        await finish(conn, first)
    elif end == "release":
        await release(conn, first)
    elif end == "reclaim":
        await pass_time(conn, 62)
        await conn.fetch("SELECT * FROM accs.reclaim_tasks()")
    else:
        await fail(conn, first, permanent=end == "permanent")
    (nxt,) = await claim(conn, 9)
    # What was given back keeps its place; what failed has left it.
    assert (nxt["job_id"] == first["job_id"]) == (end in ("release", "reclaim"))


async def test_a_limit_can_be_raised_and_lowered_by_hand(conn: Connection):
    await node(conn)
    shape = await workflow(conn, step("a", concurrency_key="k"))
    for _ in range(6):
        await submit_to(conn, shape)
    assert await limit(conn, "k", 3) == "accepted"
    running = await started(conn, 9)
    assert len(running) == 3
    assert await limit(conn, "k", 1) == "accepted"
    await finish(conn, *running[:2])
    assert await claim(conn, 9) == []  # one still runs
    await finish(conn, running[2])
    assert len(await done(conn, 9)) == 1
    with pytest.raises(asyncpg.CheckViolationError):
        await limit(conn, "k", 0)


async def test_the_global_order_holds_within_a_key(conn: Connection):
    await node(conn)
    shape = await workflow(conn, step("a", concurrency_key="k"))
    low = [await submit_to(conn, shape) for _ in range(2)]
    high = await submit_to(conn, shape, priority=5)
    order = [(await done(conn))[0]["job_id"] for _ in range(3)]
    assert order == [high, *low]


async def test_a_limit_counts_within_one_batch_and_against_another_session(conn: Connection, connect: Connect):
    await node(conn, labels={"gpu": True})
    plain = await workflow(conn, step("a", concurrency_key="k"))
    gpu = await workflow(conn, step("a", concurrency_key="k", requires={"gpu": True}))
    for shape in (plain, gpu, plain, gpu):
        await submit_to(conn, shape)
    other = await connect()
    async with conn.transaction():
        assert len(await claim(conn, 1)) == 1
        late = asyncio.ensure_future(claim(other, 9, owner="owner-2"))
        await asyncio.wait([late], timeout=0.2)
    assert await late == []
    assert await conn.fetchval("SELECT count(*) FROM accs.live") == 1


async def test_a_name_that_nothing_can_have_is_not_paused(conn: Connection):
    """It could never be resumed: its channel would be too long."""
    for kind, name in (("service", "s" * 41), ("workflow", "w" * 201), ("node", ""), ("service", None)):
        with pytest.raises(asyncpg.InvalidParameterValueError, match="can't be paused"):
            await conn.execute("SELECT accs.pause($1, $2)", kind, name)
    longest = "s" * 40
    assert await conn.fetchval("SELECT accs.pause('service', $1)", longest) == "accepted"
    assert await conn.fetchval("SELECT accs.resume('service', $1)", longest) == "accepted"


# Found by the state machine


async def test_a_paused_workflow_does_not_keep_others_from_a_claim_without_keys(conn: Connection) -> None:
    await node(conn)
    await workflow(conn, name="asleep")
    await submit(conn, step("a"))
    assert await conn.fetchval("SELECT accs.pause('workflow', 'asleep')") == "accepted"
    assert len(await claim(conn)) == 1
    await check(conn)


async def test_a_recheck_of_the_holds_that_frees_nothing_counts_none(conn: Connection) -> None:
    assert await conn.fetchval("SELECT accs.recheck_holds()") == 0
