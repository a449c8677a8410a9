"""change_jobs: priority, options and due time, changed without a plain UPDATE that would leave what waits behind."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from tests.conftest import Connect
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import cancel, chain, claim, clock, done, fail, job, node, started, step, submit, workflow
from tests.support.race import blocked


async def change(conn: Connection, *jobs: UUID, **what: Any) -> list[tuple[str, str | None]]:
    rows = await conn.fetch(
        "SELECT * FROM accs.change_jobs($1, $2, $3, $4, $5, $6)",
        list(jobs),
        *(what.get(name) for name in ("priority", "options", "scheduled_at", "by", "reason")),
    )
    return [(row["answer"], row["reason"]) for row in rows]


async def test_what_waits_takes_its_new_place_and_what_follows_keeps_it(conn: Connection):
    await node(conn)
    first, second = [await submit(conn, *chain("a", "b")) for _ in range(2)]
    assert await change(conn, second, priority=7, by="ann", reason="it is late") == [("accepted", None)]
    assert await change(conn, second, priority=7) == [("repeated", None)]
    assert [row["job_id"] for row in await done(conn, 2)] == [second, first]
    assert [row["job_id"] for row in await done(conn, 2)] == [second, first]
    said = await conn.fetchrow("SELECT source, message, data FROM task_events WHERE type = 'changed'")
    assert said == ("ann", "it is late", {"priority": {"from": 0, "to": 7}})
    await check(conn)


async def test_a_key_admits_by_the_new_order(conn: Connection):
    await node(conn)
    first, second = [await submit(conn, step("a", concurrency_key="disk")) for _ in range(2)]
    await change(conn, second, priority=1)
    assert [row["job_id"] for row in await claim(conn, 5)] == [second]
    assert await change(conn, first, second, priority=3) == [("accepted", None)] * 2
    await check(conn)


async def test_a_job_that_is_not_begun_changes_as_a_whole_and_a_running_one_its_priority(conn: Connection):
    shape = await workflow(conn)
    later = await clock(conn) + timedelta(hours=1)
    waiting = await conn.fetchval(
        "INSERT INTO jobs (workflow_id, scheduled_at, options) VALUES ($1, $2, $3) RETURNING id",
        shape,
        later,
        {"fps": 25, "lufs": -16},
    )
    sooner = later - timedelta(minutes=30)
    assert await change(conn, waiting, options={"fps": 50, "crf": 18}, scheduled_at=sooner) == [("accepted", None)]
    kept = await job(conn, waiting)
    assert (kept["options"], kept["scheduled_at"]) == ({"fps": 50, "crf": 18}, sooner)
    assert await conn.fetchval("SELECT due_at FROM accs.pending_jobs") == sooner
    data = await conn.fetchval("SELECT data FROM task_events WHERE type = 'changed'")
    assert data["options"] == ["crf", "fps", "lufs"], "which ones, not what they hold"

    running = await submit(conn)
    assert await change(conn, running, options={"fps": 1}) == [("refused", "already_started")]
    assert await change(conn, running, priority=2, scheduled_at=later) == [("refused", "already_started")]
    assert (await job(conn, running))["priority"] == 0
    assert await change(conn, running, priority=2) == [("accepted", None)]
    await cancel(conn, running)
    assert await change(conn, running, uuid4(), priority=5) == [
        ("refused", "already_finished"),
        ("refused", "not_found"),
    ]
    await check(conn)


async def test_backoff_and_attempts_are_not_touched(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", max_attempts=3))
    await fail(conn, *await started(conn))
    before = await conn.fetchrow("SELECT hold, due_at FROM accs.waiting")
    await change(conn, made, priority=4)
    assert await conn.fetchrow("SELECT hold, due_at FROM accs.waiting") == before
    await check(conn)


async def test_a_claim_that_puts_a_task_back_meanwhile_does_not_bring_the_old_rank(conn: Connection, connect: Connect):
    """It has taken the row and is about to hold it for its key; the change waits for it, and takes the new row too."""
    await node(conn)
    one, two = [await submit(conn, step("a", concurrency_key="disk")) for _ in range(2)]
    claimer, changer = await connect(), await connect()
    await conn.execute("UPDATE accs.waiting SET hold = NULL")  # both stand as claimable, as after a limit was lowered
    async with claimer.transaction():
        assert [row["job_id"] for row in await claim(claimer, 2)] == [one]  # and `two` goes back, held
        changing = asyncio.ensure_future(change(changer, two, priority=9))
        await blocked(changer, conn)
    assert await changing == [("accepted", None)]
    assert await conn.fetchval("SELECT rank FROM accs.waiting") == -9
    await check(conn)
