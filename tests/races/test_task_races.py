"""Two verbs that meet on one task, brought together by a lock that is held: one outcome, right counts."""

import asyncio

import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    cancel,
    chain,
    claim,
    done,
    fail,
    finish,
    job,
    moves,
    node,
    pass_time,
    start,
    started,
    step,
    submit,
    task,
    tasks,
)
from tests.support.race_verbs import (
    ACCEPTED,
    REPEATED,
    answered,
    both_sides,
    progress,
    skip,
)
from tests.support.racing import Race

# Claim and what ends a queued task


async def test_a_cancel_that_waits_for_a_claim_cancels_what_was_claimed(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"), step("b"))
    a, b = await race.session(), await race.session()
    async with a.transaction():
        (claimed,) = await claim(a)
        cancelling = await race.blocked(b, cancel(b, job_id), by=a)
    assert answered(await cancelling) == ACCEPTED
    assert await tasks(conn, job_id) == {"a": "cancelled", "b": "cancelled"}
    assert await moves(conn, claimed["task_id"]) == [("queued", "starting"), ("starting", "cancelled")]
    assert answered(await start(conn, claimed)) == [("refused", "already_finished")]
    await check(conn)


async def test_a_cancel_that_waits_for_a_claim_that_rolls_back_cancels_what_is_queued(
    conn: Connection, race: Race
) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    a, b = await race.session(), await race.session()
    claiming = a.transaction()
    await claiming.start()
    (claimed,) = await claim(a)
    cancelling = await race.blocked(b, cancel(b, job_id), by=a)
    await claiming.rollback()
    assert answered(await cancelling) == ACCEPTED
    assert await moves(conn, claimed["task_id"]) == [("queued", "cancelled")]
    assert await claim(conn) == []
    await check(conn)


async def test_a_claim_passes_over_what_is_being_cancelled_and_takes_the_next(conn: Connection, race: Race) -> None:
    await node(conn)
    first, second = await submit(conn, step("a")), await submit(conn, step("a"))
    a = await race.session()
    async with a.transaction():
        await cancel(a, first)
        assert [row["job_id"] for row in await claim(conn)] == [second]
    assert await tasks(conn, first) == {"a": "cancelled"}
    await check(conn)


async def test_a_skip_that_waits_for_a_claim_is_refused(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"), step("b", after="a"))
    a, b = await race.session(), await race.session()
    async with a.transaction():
        (claimed,) = await claim(a)
        skipping = await race.blocked(b, skip(b, claimed["task_id"]), by=a)
    assert answered(await skipping) == [("refused", "not_in_expected_state")]
    assert await tasks(conn, job_id) == {"a": "starting", "b": "queued"}
    await check(conn)


async def test_a_claim_passes_over_what_is_being_skipped(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"), step("b", after="a"))
    a = await race.session()
    async with a.transaction():
        await skip(a, (await task(conn, job_id, "a"))["id"])
        assert await claim(conn) == []
    assert [row["task_key"] for row in await claim(conn)] == ["b"]
    await check(conn)


async def test_a_cancel_waits_for_the_claim_of_a_due_retry(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await fail(conn, *await started(conn))
    await pass_time(conn, 3600)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        (claimed,) = await claim(a)
        cancelling = await race.blocked(b, cancel(b, job_id), by=a)
    assert answered(await cancelling) == ACCEPTED
    assert (await moves(conn, claimed["task_id"]))[-1] == ("starting", "cancelled")
    await check(conn)


async def test_a_claim_passes_over_a_due_retry_that_is_being_cancelled(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await fail(conn, *await started(conn))
    await pass_time(conn, 3600)
    a = await race.session()
    async with a.transaction():
        await cancel(a, job_id)
        assert await claim(conn) == []
    assert await tasks(conn, job_id) == {"a": "cancelled"}
    await check(conn)


# Finish


async def test_both_sides_of_a_diamond_in_one_batch_release_the_bottom_once(conn: Connection) -> None:
    await node(conn)
    job_id, left, right = await both_sides(conn)
    assert answered(await finish(conn, left, right)) == ACCEPTED * 2
    assert (await task(conn, job_id, "bottom"))["remaining"] == 0
    assert [row["task_key"] for row in await claim(conn, 5)] == ["bottom"]
    await check(conn)


async def test_both_sides_of_a_diamond_in_two_sessions_release_the_bottom_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id, left, right = await both_sides(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await finish(a, left)
        finishing = await race.blocked(b, finish(b, right), by=a)
    assert answered(await finishing) == ACCEPTED
    assert (await task(conn, job_id, "bottom"))["remaining"] == 0
    await done(conn)
    assert (await job(conn, job_id))["status"] == "done"
    await check(conn)


async def test_a_side_that_fails_while_the_other_is_done_skips_the_bottom_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id, left, right = await both_sides(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await fail(a, left, permanent=True)
        finishing = await race.blocked(b, finish(b, right), by=a)
    assert answered(await finishing) == ACCEPTED
    assert await tasks(conn, job_id) == {"top": "done", "left": "error", "right": "done", "bottom": "skipped"}
    assert (await job(conn, job_id))["status"] == "error"
    await check(conn)


async def test_both_sides_that_fail_at_once_leave_one_first_failure(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id, left, right = await both_sides(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await fail(a, left, permanent=True, code="first")
        failing = await race.blocked(b, fail(b, right, permanent=True, code="second"), by=a)
    assert answered(await failing) == ACCEPTED
    assert (await job(conn, job_id))["error_code"] == "first"
    await check(conn)


async def test_the_last_two_finishes_of_a_job_close_it_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"), step("b"))
    one, two = await started(conn, 2)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await finish(a, one)
        finishing = await race.blocked(b, finish(b, two), by=a)
    assert answered(await finishing) == ACCEPTED
    row = await job(conn, job_id)
    assert (row["status"], row["open_tasks"], row["progress"]) == ("done", 0, 1)
    await check(conn)


async def test_the_same_finish_from_two_sessions_counts_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await finish(a, claimed)
        finishing = await race.blocked(b, finish(b, claimed), by=a)
    assert answered(await finishing) == REPEATED
    assert (await job(conn, job_id))["open_tasks"] == 1
    await check(conn)


async def test_a_failure_said_from_two_sessions_spends_one_attempt(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await fail(a, claimed)
        failing = await race.blocked(b, fail(b, claimed), by=a)
    assert answered(await failing) == REPEATED
    assert (await task(conn, job_id, "a"))["attempt"] == 1
    await check(conn)


async def test_a_finish_that_waits_for_a_cancel_is_refused(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await cancel(a, job_id)
        finishing = await race.blocked(b, finish(b, claimed), by=a)
    assert answered(await finishing) == [("refused", "already_finished")]
    assert await tasks(conn, job_id) == {"a": "cancelled", "b": "cancelled"}
    await check(conn)


@pytest.mark.parametrize(("steps", "answer"), [(("a", "b"), "accepted"), (("a",), "refused")])
async def test_a_cancel_that_waits_for_a_finish_cancels_what_is_left(
    conn: Connection, race: Race, steps: tuple[str, ...], answer: str
) -> None:
    await node(conn)
    job_id = await submit(conn, *chain(*steps))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await finish(a, claimed)
        cancelling = await race.blocked(b, cancel(b, job_id), by=a)
    assert [row["answer"] for row in await cancelling] == [answer]
    assert await tasks(conn, job_id) == {"a": "done"} | ({"b": "cancelled"} if "b" in steps else {})
    await check(conn)


async def test_progress_that_waits_for_a_finish_is_refused(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await finish(a, claimed)
        reporting = await race.blocked(b, progress(b, claimed, 0.5), by=a)
    assert answered(await reporting) == [("refused", "already_finished")]
    assert float((await job(conn, job_id))["progress"]) == 0.5
    await check(conn)


async def test_a_finish_that_waits_for_progress_counts_it_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await progress(a, claimed, 0.7)
        finishing = await race.blocked(b, finish(b, claimed), by=a)
    assert answered(await finishing) == ACCEPTED
    assert (await job(conn, job_id))["task_progress"] == 1
    await check(conn)


async def test_two_reports_of_progress_add_up(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await progress(a, claimed, 0.7)
        reporting = await race.blocked(b, progress(b, claimed, 0.4), by=a)
    assert answered(await reporting) == ACCEPTED
    assert float((await job(conn, job_id))["progress"]) == 0.4
    await check(conn)


# A step that runs because the one above it was skipped


async def test_a_failure_leaves_alone_what_no_longer_depends_on_it(conn: Connection) -> None:
    """a → b → c, and b is skipped while a runs: c is claimable, and a's failure is not its business."""
    await node(conn)
    job_id = await submit(conn, *chain("a", "b", "c"), step("d", after="a"))
    (claimed,) = await started(conn)
    await skip(conn, (await task(conn, job_id, "b"))["id"])
    await fail(conn, claimed, permanent=True)
    assert await tasks(conn, job_id) == {"a": "error", "b": "skipped", "c": "queued", "d": "skipped"}
    await check(conn)
    await done(conn)
    assert (await job(conn, job_id))["status"] == "error"
    await check(conn)


async def test_a_claim_of_what_a_failure_leaves_alone_meets_no_deadlock(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b", "c"))
    (claimed,) = await started(conn)
    await skip(conn, (await task(conn, job_id, "b"))["id"])
    a, b = await race.session(), await race.session()
    async with a.transaction():
        (third,) = await claim(a)
        failing = asyncio.ensure_future(fail(b, claimed, permanent=True))
        await race.ends_or_waits(failing, b)
    assert answered(await failing) == ACCEPTED
    await start(conn, third)
    assert answered(await finish(conn, third)) == ACCEPTED
    assert (await job(conn, job_id))["status"] == "error"
    await check(conn)
