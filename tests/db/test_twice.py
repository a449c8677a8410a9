"""Every verb called twice: the second call answers `repeated` and changes nothing, not even a timestamp."""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from tests.support.cluster import Connection
from tests.support.factory import (
    LEASE,
    cancel,
    chain,
    claim,
    clock,
    dead_letters,
    dump,
    fail,
    finish,
    node,
    pass_time,
    release,
    start,
    started,
    step,
    submit,
    task,
    workflow,
)

pytestmark = pytest.mark.every_postgresql

Call = Callable[[], Awaitable[Any]]


async def fetch(conn: Connection, sql: str, *arguments: Any) -> list[str]:
    return [row["answer"] for row in await conn.fetch(sql, *arguments)]


async def submitting(conn: Connection) -> Call:
    shapes = [await workflow(conn, *chain("a", "b"))] * 2
    later = await clock(conn) + timedelta(hours=1)
    return lambda: fetch(
        conn,
        "SELECT * FROM accs.submit_jobs($1, p_scheduled_at => $2, p_keys => $3)",
        shapes,
        [None, later],
        ["x", "y"],
    )


async def submitting_by_id(conn: Connection) -> Call:
    shape = await workflow(conn)
    wanted = await conn.fetchval("SELECT gen_random_uuid()")
    return lambda: fetch(conn, "SELECT * FROM accs.submit_jobs($1, p_job_ids => $2)", [shape], [wanted])


async def instantiating(conn: Connection) -> Call:
    made = await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", await workflow(conn))
    return lambda: fetch(conn, "SELECT * FROM accs.instantiate_due_jobs(100, $1)", [made])


async def starting(conn: Connection) -> Call:
    await submit(conn, step("a"), step("b"))
    claimed = await claim(conn, 2)
    return lambda: answers(start(conn, *claimed))


async def finishing(conn: Connection) -> Call:
    await submit(conn, *chain("a", "b"))
    claimed = await started(conn)
    return lambda: answers(finish(conn, *claimed, results=[{"x": 1}]))


async def finishing_the_last(conn: Connection) -> Call:
    await submit(conn)
    claimed = await started(conn)
    return lambda: answers(finish(conn, *claimed))


async def failing(conn: Connection) -> Call:
    await submit(conn)
    claimed = await started(conn)
    return lambda: answers(fail(conn, *claimed))


async def failing_for_good(conn: Connection) -> Call:
    await submit(conn, *chain("a", "b"))
    claimed = await started(conn)
    return lambda: answers(fail(conn, *claimed, permanent=True))


async def releasing(conn: Connection) -> Call:
    await submit(conn)
    claimed = await claim(conn)
    return lambda: answers(release(conn, *claimed))


async def releasing_as_lost(conn: Connection) -> Call:
    await submit(conn)
    claimed = await started(conn)
    return lambda: answers(release(conn, *claimed, lost=True))


async def skipping(conn: Connection) -> Call:
    made = await submit(conn, *chain("a", "b"))
    a = (await task(conn, made, "a"))["id"]
    return lambda: fetch(conn, "SELECT * FROM accs.skip_tasks($1)", [a])


async def cancelling(conn: Connection) -> Call:
    made = await submit(conn, step("a"), step("b"))
    await started(conn)
    return lambda: answers(cancel(conn, made))


async def redriving(conn: Connection) -> Call:
    made = await submit(conn, *chain("a", "b"))
    await fail(conn, *await started(conn), permanent=True)
    (letter,) = await dead_letters(conn, made)
    return lambda: fetch(conn, "SELECT * FROM accs.redrive($1)", [letter["id"]])


async def dismissing(conn: Connection) -> Call:
    made = await submit(conn)
    await fail(conn, *await started(conn), permanent=True)
    (letter,) = await dead_letters(conn, made)
    return lambda: fetch(conn, "SELECT * FROM accs.dismiss($1)", [letter["id"]])


async def retrying(conn: Connection) -> Call:
    made = await submit(conn, *chain("a", "b"))
    await finish(conn, *await started(conn))
    await cancel(conn, made)
    return lambda: fetch(conn, "SELECT * FROM accs.retry_jobs($1)", [made])


async def retrying_from_a_step(conn: Connection) -> Call:
    made = await submit(conn)
    await finish(conn, *await started(conn))
    return lambda: fetch(conn, "SELECT * FROM accs.retry_jobs($1, $2)", [made], ["a"])


async def pausing(conn: Connection) -> Call:
    await submit(conn)
    await conn.execute("UPDATE workflows SET name = 'media'")
    return lambda: fetch(conn, "SELECT accs.pause('workflow', 'media', 'why', 'ops') AS answer")


async def resuming(conn: Connection) -> Call:
    await submit(conn)
    await conn.execute("UPDATE workflows SET name = 'media'")
    await conn.execute("SELECT accs.pause('workflow', 'media')")
    return lambda: fetch(conn, "SELECT accs.resume('workflow', 'media') AS answer")


async def limiting(conn: Connection) -> Call:
    await submit(conn, step("a", concurrency_key="k"))
    return lambda: fetch(conn, "SELECT accs.set_concurrency_limit('k', 4) AS answer")


async def recording(conn: Connection) -> Call:
    await submit(conn)
    (a,) = await started(conn)
    return lambda: fetch(
        conn, "SELECT * FROM accs.record_artifact($1, 1, 'owner-1', 'output', 'media', 'k')", a["task_id"]
    )


async def answers(call: Awaitable[list[Any]]) -> list[str]:
    return [row["answer"] for row in await call]


@pytest.mark.parametrize(
    "prepare",
    [
        submitting,
        submitting_by_id,
        instantiating,
        starting,
        finishing,
        finishing_the_last,
        failing,
        failing_for_good,
        releasing,
        releasing_as_lost,
        skipping,
        cancelling,
        redriving,
        dismissing,
        retrying,
        retrying_from_a_step,
        pausing,
        resuming,
        limiting,
        recording,
    ],
    ids=lambda prepare: prepare.__name__,
)
async def test_the_second_call_answers_repeated_and_changes_nothing(
    conn: Connection, prepare: Callable[[Connection], Awaitable[Call]]
):
    await node(conn)
    call = await prepare(conn)
    before = await dump(conn, "accs.audit")
    first = await call()
    assert first
    assert set(first) == {"accepted"}
    between = await dump(conn, "accs.audit")
    assert between != before
    await pass_time(conn, 5)
    clock_moved = {"accs.test_clock"}

    assert await call() == ["repeated"] * len(first)
    after = await dump(conn, "accs.audit")
    assert {t: rows for t, rows in after.items() if t not in clock_moved} == {
        t: rows for t, rows in between.items() if t not in clock_moved
    }


async def test_a_second_pass_of_reclaim_close_and_the_builder_finds_nothing_to_do(conn: Connection):
    await node(conn)
    made = await submit(conn)
    await conn.execute("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
    await started(conn)
    await pass_time(conn, 100)
    assert len(await conn.fetch("SELECT * FROM accs.reclaim_tasks()")) == 1
    assert len(await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()")) == 1
    before = await dump(conn)
    assert await conn.fetch("SELECT * FROM accs.reclaim_tasks()") == []
    assert await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()") == []
    assert await fetch(conn, "SELECT * FROM accs.close_jobs($1)", [made]) == ["refused"]
    assert await conn.fetch("SELECT accs.make_months(name) FROM accs.monthly") == []
    assert await dump(conn) == before


async def test_a_claim_whose_answer_was_lost_is_settled_by_adopting(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"))
    lost = await claim(conn, 2)
    found = await conn.fetch("SELECT * FROM accs.adopt_tasks('owner-1', 'n1', $1)", LEASE)
    fences = [(row["task_id"], row["attempt_id"]) for row in found]
    assert fences == [(row["task_id"], row["attempt_id"]) for row in lost]
