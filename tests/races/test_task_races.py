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
from tests.support.race import (
    ACCEPTED,
    REPEATED,
    Race,
    answered,
    both_sides,
    progress,
    skip,
)

pytestmark = pytest.mark.every_postgresql

# Claim and what ends a queued task


async def test_a_cancel_that_waits_for_a_claim_cancels_what_was_claimed(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"), step("b"))
    (claimed,), cancelling = await race.second_waits(claim, lambda b: cancel(b, job_id))
    assert answered(cancelling) == ACCEPTED
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
    (claimed,), cancelling = await race.second_waits(claim, lambda b: cancel(b, job_id))
    assert answered(cancelling) == ACCEPTED
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
    _, finishing = await race.second_waits(lambda a: finish(a, left), lambda b: finish(b, right))
    assert answered(finishing) == ACCEPTED
    assert (await task(conn, job_id, "bottom"))["remaining"] == 0
    await done(conn)
    assert (await job(conn, job_id))["status"] == "done"
    await check(conn)


async def test_a_side_that_fails_while_the_other_is_done_skips_the_bottom_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id, left, right = await both_sides(conn)
    _, finishing = await race.second_waits(lambda a: fail(a, left, permanent=True), lambda b: finish(b, right))
    assert answered(finishing) == ACCEPTED
    assert await tasks(conn, job_id) == {"top": "done", "left": "error", "right": "done", "bottom": "skipped"}
    assert (await job(conn, job_id))["status"] == "error"
    await check(conn)


async def test_both_sides_that_fail_at_once_leave_one_first_failure(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id, left, right = await both_sides(conn)
    _, failing = await race.second_waits(
        lambda a: fail(a, left, permanent=True, code="first"), lambda b: fail(b, right, permanent=True, code="second")
    )
    assert answered(failing) == ACCEPTED
    assert (await job(conn, job_id))["error_code"] == "first"
    await check(conn)


async def test_the_last_two_finishes_of_a_job_close_it_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"), step("b"))
    one, two = await started(conn, 2)
    _, finishing = await race.second_waits(lambda a: finish(a, one), lambda b: finish(b, two))
    assert answered(finishing) == ACCEPTED
    row = await job(conn, job_id)
    assert (row["status"], row["open_tasks"], row["progress"]) == ("done", 0, 1)
    await check(conn)


async def test_the_same_finish_from_two_sessions_counts_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    (claimed,) = await started(conn)
    _, finishing = await race.second_waits(lambda a: finish(a, claimed), lambda b: finish(b, claimed))
    assert answered(finishing) == REPEATED
    assert (await job(conn, job_id))["open_tasks"] == 1
    await check(conn)


async def test_a_failure_said_from_two_sessions_spends_one_attempt(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    _, failing = await race.second_waits(lambda a: fail(a, claimed), lambda b: fail(b, claimed))
    assert answered(failing) == REPEATED
    assert (await task(conn, job_id, "a"))["attempt"] == 1
    await check(conn)


async def test_a_finish_that_waits_for_a_cancel_is_refused(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    (claimed,) = await started(conn)
    _, finishing = await race.second_waits(lambda a: cancel(a, job_id), lambda b: finish(b, claimed))
    assert answered(finishing) == [("refused", "already_finished")]
    assert await tasks(conn, job_id) == {"a": "cancelled", "b": "cancelled"}
    await check(conn)


@pytest.mark.parametrize(("steps", "answer"), [(("a", "b"), "accepted"), (("a",), "refused")])
async def test_a_cancel_that_waits_for_a_finish_cancels_what_is_left(
    conn: Connection, race: Race, steps: tuple[str, ...], answer: str
) -> None:
    await node(conn)
    job_id = await submit(conn, *chain(*steps))
    (claimed,) = await started(conn)
    _, cancelling = await race.second_waits(lambda a: finish(a, claimed), lambda b: cancel(b, job_id))
    assert [row["answer"] for row in cancelling] == [answer]
    assert await tasks(conn, job_id) == {"a": "done"} | ({"b": "cancelled"} if "b" in steps else {})
    await check(conn)


async def test_progress_that_waits_for_a_finish_is_refused(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    (claimed,) = await started(conn)
    _, reporting = await race.second_waits(lambda a: finish(a, claimed), lambda b: progress(b, claimed, 0.5))
    assert answered(reporting) == [("refused", "already_finished")]
    assert float((await job(conn, job_id))["progress"]) == 0.5
    await check(conn)


async def test_a_finish_that_waits_for_progress_counts_it_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    (claimed,) = await started(conn)
    _, finishing = await race.second_waits(lambda a: progress(a, claimed, 0.7), lambda b: finish(b, claimed))
    assert answered(finishing) == ACCEPTED
    assert (await job(conn, job_id))["task_progress"] == 1
    await check(conn)


async def test_two_reports_of_progress_add_up(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    _, reporting = await race.second_waits(lambda a: progress(a, claimed, 0.7), lambda b: progress(b, claimed, 0.4))
    assert answered(reporting) == ACCEPTED
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
