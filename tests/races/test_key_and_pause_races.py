"""Concurrency keys and pauses under forced interleavings: a limit holds, and nothing is held for ever."""

from uuid import UUID

import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    cancel,
    claim,
    fail,
    finish,
    job,
    node,
    pass_time,
    start,
    started,
    step,
    submit,
    submit_to,
    task,
    tasks,
    workflow,
)
from tests.support.race import Race


async def hold_of(conn: Connection, job_id: UUID, key: str = "a") -> str | None:
    """What keeps a waiting task: a hold, "claimable", or "not waiting"."""
    return await conn.fetchval(
        "SELECT coalesce((SELECT coalesce(w.hold, 'claimable') FROM accs.waiting w JOIN job_tasks t ON t.id = w.task_id"
        " WHERE t.job_id = $1 AND t.task_key = $2), 'not waiting')",
        job_id,
        key,
    )


async def pause(conn: Connection, name: str, kind: str = "workflow") -> str:
    return await conn.fetchval("SELECT accs.pause($1, $2)", kind, name)


async def resume(conn: Connection, name: str, kind: str = "workflow") -> str:
    return await conn.fetchval("SELECT accs.resume($1, $2)", kind, name)


async def skip(conn: Connection, *task_ids: UUID):
    return await conn.fetch("SELECT * FROM accs.skip_tasks($1)", list(task_ids))


async def retry(conn: Connection, *job_ids: UUID):
    return await conn.fetch("SELECT * FROM accs.retry_jobs($1)", list(job_ids))


def keyed(key: str, service: str = "render", name: str = "a", **fields):
    return step(name, service, concurrency_key=key, **fields)


async def live_of(conn: Connection, key: str) -> int:
    return await conn.fetchval("SELECT count(*) FROM accs.live WHERE key = $1", key)


# A claim takes a row, finds that it must not run, and puts it back


async def test_a_task_that_a_claim_puts_back_is_cancelled_all_the_same(conn: Connection, race: Race) -> None:
    await node(conn)
    await submit(conn, keyed("gpu", "audio"))
    second = await submit(conn, keyed("gpu", "render"))
    await claim(conn, service="audio")  # the key is full now; render's task still stands as claimable
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert await claim(a, service="render") == []
        cancelling = await race.blocked(b, cancel(b, second), by=a)
    assert [row["answer"] for row in await cancelling] == ["accepted"]
    assert await hold_of(conn, second) == "not waiting"
    await check(conn)
    assert [row["answer"] for row in await retry(conn, second)] == ["accepted"]
    await check(conn)


async def test_a_task_that_a_claim_puts_back_is_skipped_all_the_same(conn: Connection, race: Race) -> None:
    await node(conn)
    await submit(conn, keyed("gpu", "audio"))
    second = await submit(conn, keyed("gpu", "render"), step("b", after="a"))
    await claim(conn, service="audio")
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert await claim(a, service="render") == []
        skipping = await race.blocked(b, skip(b, (await task(conn, second, "a"))["id"]), by=a)
    assert [row["answer"] for row in await skipping] == ["accepted"]
    assert await hold_of(conn, second) == "not waiting"
    assert await hold_of(conn, second, "b") == "claimable"
    await check(conn)


async def test_a_claim_that_needs_two_rounds_counts_what_it_took_in_the_first(conn: Connection) -> None:
    await node(conn, labels={"gpu": True})
    full = await submit(conn, keyed("m", "audio"))
    first = await submit(conn, keyed("k"))
    held = await submit(conn, keyed("m"))
    other_lane = await submit(conn, keyed("k", requires={"gpu": True}))
    await claim(conn, service="audio")
    claimed = await claim(conn, 2)
    assert [row["job_id"] for row in claimed] == [first]
    assert await live_of(conn, "k") == 1
    assert {await hold_of(conn, j) for j in (held, other_lane)} == {"key"}
    assert (await job(conn, full))["status"] == "running"
    await check(conn)


@pytest.mark.parametrize("limit", [1, 3])
async def test_two_claims_at_once_keep_the_limit(conn: Connection, race: Race, limit: int) -> None:
    await node(conn)
    flow = await workflow(conn, keyed("k", concurrency_limit=limit))
    other = await workflow(conn, keyed("k", "audio"))
    for _ in range(4):
        await submit_to(conn, flow)
        await submit_to(conn, other)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        taken = await claim(a, 8, "render")
        claiming = await race.blocked(b, claim(b, 8, "audio"), by=a)
    assert len(taken) == limit
    assert await claiming == []
    assert await live_of(conn, "k") == limit
    await check(conn)


async def test_a_finish_frees_its_key_for_the_claim_that_waits_for_it(conn: Connection, race: Race) -> None:
    await node(conn)
    await submit(conn, keyed("k", "audio"))
    second = await submit(conn, keyed("k", "render"))
    (first,) = await started(conn, service="audio")
    _, claiming = await race.second_waits(lambda a: finish(a, first), lambda b: claim(b, 1, "render"))
    assert [row["job_id"] for row in claiming] == [second]
    await check(conn)


async def test_a_claim_that_finds_its_key_full_is_seen_by_the_finish_that_waits_for_it(
    conn: Connection, race: Race
) -> None:
    await node(conn)
    await submit(conn, keyed("k", "audio"))
    second = await submit(conn, keyed("k", "render"))
    (first,) = await started(conn, service="audio")
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert await claim(a, 1, "render") == []
        finishing = await race.blocked(b, finish(b, first), by=a)
    await finishing
    assert await hold_of(conn, second) == "claimable"
    await check(conn)


async def test_a_submission_during_the_last_finish_of_a_key_is_claimable(conn: Connection, race: Race) -> None:
    await node(conn)
    flow = await workflow(conn, keyed("k"))
    await submit_to(conn, flow)
    (first,) = await started(conn)
    _, submitting = await race.second_waits(lambda a: finish(a, first), lambda b: submit_to(b, flow))
    assert await hold_of(conn, submitting) == "claimable"
    await check(conn)


async def test_a_lower_limit_waits_for_the_claim_under_way_and_binds_the_next(conn: Connection, race: Race) -> None:
    await node(conn)
    flow = await workflow(conn, keyed("k", concurrency_limit=3))
    for _ in range(6):
        await submit_to(conn, flow)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        taken = await claim(a, 2)
        lowering = await race.blocked(b, b.fetchval("SELECT accs.set_concurrency_limit('k', 1)"), by=a)
    assert len(taken) == 2
    assert await lowering == "accepted"
    assert await claim(conn, 8) == []
    await start(conn, *taken)
    await finish(conn, *taken)
    assert len(await claim(conn, 8)) == 1
    await check(conn)


async def test_a_retry_that_is_due_is_cancelled_while_a_claim_promotes_it(conn: Connection, race: Race) -> None:
    await node(conn)
    first = await submit(conn, keyed("k", "audio"))
    due = await submit(conn, keyed("k", "render"))
    await cancel(conn, first)
    (attempt,) = await started(conn)
    await fail(conn, attempt)
    third = await submit(conn, keyed("k", "audio"))
    await claim(conn, service="audio")
    await pass_time(conn, 3600)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert await claim(a) == []  # promoted from backoff, and held by its key again
        cancelling = await race.blocked(b, cancel(b, due), by=a)
    await cancelling
    assert await hold_of(conn, due) == "not waiting"
    assert await tasks(conn, due) == {"a": "cancelled"}
    assert await tasks(conn, third) == {"a": "starting"}
    await check(conn)


# Pauses


async def test_a_paused_task_gives_its_place_at_the_key_to_the_next(conn: Connection) -> None:
    await node(conn)
    paused_flow = await workflow(conn, keyed("k"), name="paused")
    paused, other = await submit_to(conn, paused_flow), await submit(conn, keyed("k"))
    await pause(conn, "paused")
    assert await hold_of(conn, paused) == "paused"
    assert await hold_of(conn, other) == "claimable"
    assert [row["job_id"] for row in await claim(conn, 2)] == [other]
    await check(conn)


async def test_a_task_that_a_pause_missed_is_held_by_the_claim_that_meets_it_and_its_key_goes_on(
    conn: Connection, race: Race
) -> None:
    await node(conn)
    flow = await workflow(conn, step("a", "audio"), keyed("k", name="b", after="a"), name="paused")
    paused = await submit_to(conn, flow)
    (first,) = await started(conn, service="audio")
    a = await race.session()
    async with a.transaction():
        await finish(a, first)  # b becomes claimable, in a transaction that pause can't see
        await pause(conn, "paused")
    other = await submit(conn, keyed("k"))
    assert [await hold_of(conn, paused, "b"), await hold_of(conn, other)] == ["claimable", "key"]
    assert [row["job_id"] for row in await claim(conn)] == [other]
    assert await hold_of(conn, paused, "b") == "paused"
    await check(conn)


async def test_a_pause_while_a_finish_unblocks_lets_nothing_run(conn: Connection, race: Race) -> None:
    await node(conn)
    flow = await workflow(conn, step("a"), step("b", after="a"), name="w")
    job_id = await submit_to(conn, flow)
    (first,) = await started(conn)
    a = await race.session()
    async with a.transaction():
        await finish(a, first)
        assert await pause(conn, "w") == "accepted"
    assert await claim(conn) == []
    assert await hold_of(conn, job_id, "b") == "paused"
    await check(conn)
    assert await resume(conn, "w") == "accepted"
    assert [row["task_key"] for row in await claim(conn)] == ["b"]
    await check(conn)


async def test_a_resume_waits_for_the_finish_that_is_about_to_hold_a_task(conn: Connection, race: Race) -> None:
    await node(conn)
    flow = await workflow(conn, step("a"), step("b", after="a"), name="w")
    job_id = await submit_to(conn, flow)
    (first,) = await started(conn)
    await pause(conn, "w")
    _, resuming = await race.second_waits(lambda a: finish(a, first), lambda b: resume(b, "w"))
    assert resuming == "accepted"
    assert await hold_of(conn, job_id, "b") == "claimable"
    await check(conn)


@pytest.mark.parametrize("committed", [True, False])
async def test_a_finish_waits_for_the_resume_under_way(conn: Connection, race: Race, committed: bool) -> None:
    await node(conn)
    flow = await workflow(conn, step("a"), step("b", after="a"), name="w")
    job_id = await submit_to(conn, flow)
    (first,) = await started(conn)
    await pause(conn, "w")
    a, b = await race.session(), await race.session()
    resuming = a.transaction()
    await resuming.start()
    await resume(a, "w")
    finishing = await race.blocked(b, finish(b, first), by=a)
    await (resuming.commit() if committed else resuming.rollback())
    assert [row["answer"] for row in await finishing] == ["accepted"]
    assert await hold_of(conn, job_id, "b") == ("claimable" if committed else "paused")
    await check(conn)


async def test_a_submission_waits_for_the_resume_under_way(conn: Connection, race: Race) -> None:
    await node(conn)
    flow = await workflow(conn, step("a"), name="w")
    await pause(conn, "w")
    _, submitting = await race.second_waits(lambda a: resume(a, "w"), lambda b: submit_to(b, flow))
    assert await hold_of(conn, submitting) == "claimable"
    await check(conn)


async def test_a_due_retry_waits_for_the_resume_under_way(conn: Connection, race: Race) -> None:
    await node(conn)
    flow = await workflow(conn, step("a"), name="w")
    job_id = await submit_to(conn, flow)
    (first,) = await started(conn)
    await fail(conn, first)
    await pause(conn, "w")
    await pass_time(conn, 3600)
    _, claiming = await race.second_waits(lambda a: resume(a, "w"), claim)
    assert [row["job_id"] for row in claiming] == [job_id]
    await check(conn)


async def test_a_claim_under_way_counts_as_before_the_pause(conn: Connection, race: Race) -> None:
    await node(conn)
    flow = await workflow(conn, step("a"), name="w")
    first, second = await submit_to(conn, flow), await submit_to(conn, flow)
    a = await race.session()
    async with a.transaction():
        assert [row["job_id"] for row in await claim(a)] == [first]
        assert await pause(conn, "w") == "accepted"
    assert await tasks(conn, first) == {"a": "starting"}
    assert await hold_of(conn, second) == "paused"
    assert await claim(conn) == []
    await check(conn)


# What was passed over because somebody held its row, who then gave up


async def test_a_task_whose_cancellation_was_rolled_back_during_resume_is_not_held_for_ever(
    conn: Connection, race: Race
) -> None:
    await node(conn)
    flow = await workflow(conn, step("a"), name="w")
    job_id = await submit_to(conn, flow)
    await pause(conn, "w")
    a = await race.session()
    cancelling = a.transaction()
    await cancelling.start()
    await cancel(a, job_id)
    assert await resume(conn, "w") == "accepted"
    await cancelling.rollback()
    await conn.fetch("SELECT * FROM accs.recheck_holds()")
    assert await hold_of(conn, job_id) == "claimable"
    await check(conn)


async def test_a_task_whose_cancellation_was_rolled_back_during_a_finish_gets_its_key(
    conn: Connection, race: Race
) -> None:
    await node(conn)
    flow = await workflow(conn, keyed("k"))
    await submit_to(conn, flow)
    (first,) = await started(conn)
    second, third = await submit_to(conn, flow), await submit_to(conn, flow)
    a = await race.session()
    cancelling = a.transaction()
    await cancelling.start()
    await a.execute("DELETE FROM accs.waiting WHERE task_id = $1", (await task(conn, second, "a"))["id"])
    await finish(conn, first)
    await cancelling.rollback()
    await conn.fetch("SELECT * FROM accs.recheck_holds()")
    assert [await hold_of(conn, j) for j in (second, third)] == ["claimable", "key"]
    await check(conn)
