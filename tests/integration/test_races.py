"""Every pair of verbs that can meet on one row, brought together by a lock that is held: one outcome, right counts."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    LEASE,
    OWNER,
    Row,
    cancel,
    chain,
    claim,
    dead_letters,
    diamond,
    done,
    fail,
    finish,
    job,
    moves,
    node,
    pass_time,
    release,
    start,
    started,
    step,
    submission,
    submit,
    submit_to,
    task,
    tasks,
    workflow,
)
from tests.support.racing import Race


def answered(rows: Sequence[Row]) -> list[tuple[str, str | None]]:
    return [(row["answer"], row["reason"]) for row in rows]


ACCEPTED = [("accepted", None)]
REPEATED = [("repeated", None)]


async def reclaim(conn: Connection) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.reclaim_tasks()")


async def skip(conn: Connection, *task_ids: UUID) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.skip_tasks($1)", list(task_ids))


async def redrive(conn: Connection, *letters: int) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.redrive($1)", list(letters))


async def retry(conn: Connection, job_id: UUID) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.retry_jobs($1)", [job_id])


async def heartbeat(conn: Connection, claimed: Row, lease: timedelta = LEASE) -> Sequence[Row]:
    return await conn.fetch(
        "SELECT * FROM accs.heartbeat('n1', $1, $2, $3, $4)",
        OWNER,
        [claimed["task_id"]],
        [claimed["attempt_id"]],
        lease,
    )


async def progress(conn: Connection, claimed: Row, value: float) -> Sequence[Row]:
    return await conn.fetch(
        "SELECT * FROM accs.report_progress($1, $2, $3, ARRAY[$4::numeric])",
        [claimed["task_id"]],
        [claimed["attempt_id"]],
        OWNER,
        value,
    )


async def instantiate(conn: Connection, *job_ids: UUID) -> Sequence[Row]:
    return await conn.fetch("SELECT * FROM accs.instantiate_due_jobs(100, $1)", list(job_ids) or None)


async def insert_job(conn: Connection, flow: UUID) -> UUID:
    return await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", flow)


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


async def both_sides(conn: Connection) -> tuple[UUID, Row, Row]:
    job_id = await submit(conn, *diamond())
    await done(conn)
    left, right = await started(conn, 2)
    return job_id, left, right


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


# The lease runs out in between


async def test_a_finish_that_waits_for_a_reclaim_is_refused(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    await pass_time(conn, 120)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert answered(await reclaim(a)) == ACCEPTED
        finishing = await race.blocked(b, finish(b, claimed), by=a)
    assert answered(await finishing) == [("refused", "not_in_expected_state")]
    row = await task(conn, job_id, "a")
    assert (row["status"], row["attempt"], row["lost"]) == ("queued", 0, 1)
    await check(conn)


async def test_a_finish_that_began_within_its_lease_still_loses_to_the_reclaim_before_it(
    conn: Connection, race: Race
) -> None:
    """Its time is the time when it began: only the row itself can tell."""
    await node(conn)
    await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    late = b.transaction(isolation="read_committed")
    await late.start()
    await b.execute("SELECT accs.clock()")
    await pass_time(conn, 120)
    async with a.transaction():
        await reclaim(a)
        finishing = await race.blocked(b, finish(b, claimed), by=a)
    assert answered(await finishing) == [("refused", "not_in_expected_state")]
    await late.commit()
    (again,) = await claim(conn, owner="other")
    assert again["attempt_id"] == 2
    assert answered(await finish(conn, claimed)) == [("refused", "stale_attempt")]
    await check(conn)


async def test_a_reclaim_that_waits_for_a_finish_leaves_it_alone(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert answered(await finish(a, claimed)) == ACCEPTED
        await pass_time(conn, 120)
        reclaiming = await race.blocked(b, reclaim(b), by=a)
    assert answered(await reclaiming) == [("refused", "done_or_stale")]
    assert (await job(conn, job_id))["status"] == "done"
    await check(conn)


async def test_a_reclaim_that_waits_for_a_heartbeat_leaves_it_alone(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert answered(await heartbeat(a, claimed, timedelta(hours=1))) == ACCEPTED
        await pass_time(conn, 120)
        reclaiming = await race.blocked(b, reclaim(b), by=a)
    assert answered(await reclaiming) == [("refused", "lease_still_valid")]
    assert await tasks(conn, job_id) == {"a": "running"}
    await check(conn, timedelta(0))


async def test_a_heartbeat_that_waits_for_a_reclaim_learns_that_it_lost(conn: Connection, race: Race) -> None:
    await node(conn)
    await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    early = b.transaction()
    await early.start()
    await b.execute("SELECT accs.clock()")
    await pass_time(conn, 120)
    async with a.transaction():
        await reclaim(a)
        beating = await race.blocked(b, _heartbeat_as_of(b, claimed), by=a)
    assert answered(await beating) == [("refused", "not_in_expected_state")]
    await early.commit()
    await check(conn)


async def _heartbeat_as_of(conn: Connection, claimed: Row) -> Sequence[Row]:
    # moving the clock back for this transaction alone: its lease has not run out as far as it knows
    await conn.execute("UPDATE accs.test_clock SET shift = shift - interval '120 s'")
    return await heartbeat(conn, claimed)


@pytest.mark.parametrize("first", ["start", "reclaim"])
async def test_a_start_and_a_reclaim_have_one_winner(conn: Connection, race: Race, first: str) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await claim(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        if first == "start":
            assert answered(await start(a, claimed)) == ACCEPTED
            await pass_time(conn, 120)
            waiting = await race.blocked(b, reclaim(b), by=a)
        else:
            await pass_time(conn, 120)
            assert answered(await reclaim(a)) == ACCEPTED
            await pass_time(conn, -120)
            waiting = await race.blocked(b, start(b, claimed), by=a)
    expected = ACCEPTED if first == "start" else [("refused", "not_in_expected_state")]
    assert answered(await waiting) == expected
    assert await tasks(conn, job_id) == {"a": "queued"}
    came_from = "running" if first == "start" else "starting"
    assert (await moves(conn, claimed["task_id"]))[-1] == (came_from, "queued")
    await check(conn)


async def test_two_reclaimers_count_a_loss_once(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await started(conn)
    await pass_time(conn, 120)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await reclaim(a)
        reclaiming = await race.blocked(b, reclaim(b), by=a)
    assert answered(await reclaiming) == [("refused", "done_or_stale")]
    assert (await task(conn, job_id, "a"))["lost"] == 1
    await check(conn)


@pytest.mark.parametrize("first", ["release", "cancel"])
async def test_a_release_and_a_cancel_end_cancelled(conn: Connection, race: Race, first: str) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        if first == "release":
            assert answered(await release(a, claimed)) == ACCEPTED
            waiting = await race.blocked(b, cancel(b, job_id), by=a)
        else:
            await cancel(a, job_id)
            waiting = await race.blocked(b, release(b, claimed), by=a)
    assert answered(await waiting) == (ACCEPTED if first == "release" else [("refused", "already_finished")])
    assert await tasks(conn, job_id) == {"a": "cancelled"}
    assert await claim(conn) == []
    await check(conn)


# Redrive, retry, cancel


async def test_a_redrive_and_the_finish_of_another_branch(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id, left, right = await both_sides(conn)
    await fail(conn, left, permanent=True)
    (letter,) = await dead_letters(conn, job_id)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert answered(await redrive(a, letter["id"])) == ACCEPTED
        finishing = await race.blocked(b, finish(b, right), by=a)
    assert answered(await finishing) == ACCEPTED
    assert (await task(conn, job_id, "bottom"))["remaining"] == 1
    assert (await job(conn, job_id))["status"] == "running"
    await check(conn)
    for key in ("left", "bottom"):
        assert [row["task_key"] for row in await done(conn)] == [key]
    assert (await job(conn, job_id))["status"] == "done"
    await check(conn)


async def test_the_finish_that_closes_a_job_and_the_redrive_that_opens_it_again(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id, left, right = await both_sides(conn)
    await fail(conn, left, permanent=True)
    (letter,) = await dead_letters(conn, job_id)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await finish(a, right)
        redriving = await race.blocked(b, redrive(b, letter["id"]), by=a)
    assert answered(await redriving) == ACCEPTED
    row = await job(conn, job_id)
    assert (row["status"], row["open_tasks"], row["error_code"]) == ("running", 2, None)
    await check(conn)


async def test_two_redrives_of_one_letter_open_one_generation(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await fail(conn, *await started(conn), permanent=True)
    (letter,) = await dead_letters(conn, job_id)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await redrive(a, letter["id"])
        redriving = await race.blocked(b, redrive(b, letter["id"]), by=a)
    assert answered(await redriving) == REPEATED
    assert (await task(conn, job_id, "a"))["generation"] == 1
    await check(conn)


async def test_a_dismissal_that_waits_for_a_redrive_is_refused(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await fail(conn, *await started(conn), permanent=True)
    (letter,) = await dead_letters(conn, job_id)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await redrive(a, letter["id"])
        dismissing = await race.blocked(b, b.fetch("SELECT * FROM accs.dismiss($1)", [letter["id"]]), by=a)
    assert answered(await dismissing) == [("refused", "already_redriven")]
    await check(conn)


async def test_two_cancels_are_one(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await cancel(a, job_id)
        cancelling = await race.blocked(b, cancel(b, job_id), by=a)
    assert answered(await cancelling) == REPEATED
    await check(conn)


async def test_two_retries_are_one(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await cancel(conn, job_id)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await retry(a, job_id)
        retrying = await race.blocked(b, retry(b, job_id), by=a)
    assert answered(await retrying) == REPEATED
    assert (await job(conn, job_id))["generation"] == 1
    await check(conn)


async def test_a_cancel_during_a_retry_counts_as_before_it(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await fail(conn, *await started(conn), permanent=True)
    a = await race.session()
    async with a.transaction():
        await retry(a, job_id)
        assert answered(await cancel(conn, job_id)) == [("refused", "already_finished")]
    assert answered(await cancel(conn, job_id)) == ACCEPTED
    await check(conn)


async def test_a_retry_that_waits_for_a_cancel_opens_the_job_again(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    await started(conn)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await cancel(a, job_id)
        retrying = await race.blocked(b, retry(b, job_id), by=a)
    assert answered(await retrying) == ACCEPTED
    assert await tasks(conn, job_id) == {"a": "queued", "b": "queued"}
    await check(conn)


# Submission and instantiation


async def test_two_builders_share_the_due_jobs_without_a_task_twice(conn: Connection, race: Race) -> None:
    flow = await workflow(conn, *chain("a", "b"))
    jobs = [await insert_job(conn, flow) for _ in range(4)]
    a, b = await race.session(), await race.session()
    async with a.transaction():
        assert len(await instantiate(a, *jobs[:2])) == 2
        assert {row["job_id"] for row in await instantiate(b)} == set(jobs[2:])
    assert await conn.fetchval("SELECT count(*) FROM job_tasks") == 8
    assert await instantiate(conn) == []
    assert answered(await instantiate(conn, *jobs)) == REPEATED * 4
    await check(conn)


async def test_what_a_builder_took_and_rolled_back_is_taken_by_the_next(conn: Connection, race: Race) -> None:
    flow = await workflow(conn, step("a"))
    job_id = await insert_job(conn, flow)
    a = await race.session()
    building = a.transaction()
    await building.start()
    await instantiate(a)
    assert await instantiate(conn) == []
    assert answered(await instantiate(conn, job_id)) == [("refused", "locked")]
    await building.rollback()
    assert answered(await instantiate(conn)) == ACCEPTED
    await check(conn)


async def test_a_cancel_that_waits_for_a_builder_cancels_the_new_tasks(conn: Connection, race: Race) -> None:
    flow = await workflow(conn, *chain("a", "b"))
    job_id = await insert_job(conn, flow)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await instantiate(a)
        cancelling = await race.blocked(b, cancel(b, job_id), by=a)
    assert answered(await cancelling) == ACCEPTED
    assert await tasks(conn, job_id) == {"a": "cancelled", "b": "cancelled"}
    await check(conn)


async def test_a_builder_passes_over_a_job_that_is_being_cancelled(conn: Connection, race: Race) -> None:
    flow = await workflow(conn, step("a"))
    job_id = await insert_job(conn, flow)
    a = await race.session()
    async with a.transaction():
        await cancel(a, job_id)
        assert await instantiate(conn) == []
    assert await tasks(conn, job_id) == {}
    assert await instantiate(conn) == []
    await check(conn)


@pytest.mark.parametrize("committed", [True, False])
async def test_one_idempotency_key_from_two_sessions_is_one_job(conn: Connection, race: Race, committed: bool) -> None:
    flow = await workflow(conn, step("a"))
    a, b = await race.session(), await race.session()
    submitting = a.transaction()
    await submitting.start()
    first = await submission(a, flow, key="k")
    waiting = await race.blocked(b, submission(b, flow, key="k"), by=a)
    await (submitting.commit() if committed else submitting.rollback())
    second = await waiting
    assert second["answer"] == ("repeated" if committed else "accepted")
    assert (second["job_id"] == first["job_id"]) is committed
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 1
    await check(conn, acknowledged=[second["job_id"]])


async def change_steps(conn: Connection, flow: UUID, *steps: dict[str, object]) -> None:
    await conn.execute("UPDATE workflows SET steps = $2 WHERE id = $1", flow, list(steps))


@pytest.mark.parametrize("keys", ["abc", "a", "xy"])
async def test_steps_changed_while_a_submission_waits_are_counted_as_they_are(
    conn: Connection, race: Race, keys: str
) -> None:
    """The job is counted by one statement and its tasks are made by the next: the steps change in between."""
    await node(conn)
    flow = await workflow(conn, *chain("a", "b"))
    a, b = await race.session(), await race.session()
    submitting = a.transaction()
    await submitting.start()
    await submission(a, flow, key="k")
    waiting = await race.blocked(b, submission(b, flow, key="k"), by=a)
    await change_steps(conn, flow, *chain(*keys))
    await submitting.rollback()
    job_id = (await waiting)["job_id"]
    await check(conn)
    for _ in await tasks(conn, job_id):
        await done(conn)
    assert (await job(conn, job_id))["status"] == "done"
    await check(conn)


@pytest.mark.parametrize("keys", ["abc", "a"])
async def test_steps_changed_while_a_job_is_instantiated_are_counted_as_they_are(
    conn: Connection, race: Race, keys: str
) -> None:
    await node(conn)
    flow = await workflow(conn, *chain("a", "b"))
    job_id = await insert_job(conn, flow)
    holder, b = await race.session(), await race.session()
    async with holder.transaction():
        await holder.execute("LOCK TABLE accs.pending_jobs IN SHARE MODE")  # stops it between its two statements
        building = await race.blocked(b, instantiate(b), by=holder)
        await change_steps(conn, flow, *chain(*keys))
    assert answered(await building) == ACCEPTED
    await check(conn)
    for _ in await tasks(conn, job_id):
        await done(conn)
    assert (await job(conn, job_id))["status"] == "done"
    await check(conn)


async def test_steps_being_changed_do_not_stop_a_submission(conn: Connection, race: Race) -> None:
    flow = await workflow(conn, *chain("a", "b"))
    a = await race.session()
    async with a.transaction():
        await change_steps(a, flow, *chain("a", "b", "c"))
        before = await submit_to(conn, flow)
    after = await submit_to(conn, flow)
    assert [len(await tasks(conn, j)) for j in (before, after)] == [2, 3]
    await check(conn)


async def test_a_due_time_changed_by_hand_loses_to_the_builder_that_has_the_job(conn: Connection, race: Race) -> None:
    flow = await workflow(conn, step("a"))
    job_id = await insert_job(conn, flow)
    a, b = await race.session(), await race.session()
    async with a.transaction():
        await instantiate(a)
        changing = await race.blocked(
            b, b.execute("UPDATE jobs SET scheduled_at = now() + interval '1 day' WHERE id = $1", job_id), by=a
        )
    with pytest.raises(asyncpg.PostgresError, match="fixed once it has started"):
        await changing
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
