"""Verbs that meet on a whole job: submitted, instantiated, cancelled, redriven and retried at once."""

from uuid import UUID

import asyncpg
import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    cancel,
    chain,
    dead_letters,
    done,
    fail,
    finish,
    job,
    node,
    started,
    step,
    submission,
    submit,
    submit_to,
    task,
    tasks,
    workflow,
)
from tests.support.race import (
    ACCEPTED,
    REPEATED,
    Race,
    answered,
    both_sides,
    insert_job,
    instantiate,
    redrive,
    retry,
)

# Redrive, retry, cancel


async def test_a_redrive_and_the_finish_of_another_branch(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id, left, right = await both_sides(conn)
    await fail(conn, left, permanent=True)
    (letter,) = await dead_letters(conn, job_id)
    before, finishing = await race.second_waits(lambda a: redrive(a, letter["id"]), lambda b: finish(b, right))
    assert answered(before) == ACCEPTED
    assert answered(finishing) == ACCEPTED
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
    _, redriving = await race.second_waits(lambda a: finish(a, right), lambda b: redrive(b, letter["id"]))
    assert answered(redriving) == ACCEPTED
    row = await job(conn, job_id)
    assert (row["status"], row["open_tasks"], row["error_code"]) == ("running", 2, None)
    await check(conn)


async def test_two_redrives_of_one_letter_open_one_generation(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await fail(conn, *await started(conn), permanent=True)
    (letter,) = await dead_letters(conn, job_id)
    _, redriving = await race.second_waits(lambda a: redrive(a, letter["id"]), lambda b: redrive(b, letter["id"]))
    assert answered(redriving) == REPEATED
    assert (await task(conn, job_id, "a"))["generation"] == 1
    await check(conn)


async def test_a_dismissal_that_waits_for_a_redrive_is_refused(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await fail(conn, *await started(conn), permanent=True)
    (letter,) = await dead_letters(conn, job_id)
    _, dismissing = await race.second_waits(
        lambda a: redrive(a, letter["id"]), lambda b: b.fetch("SELECT * FROM accs.dismiss($1)", [letter["id"]])
    )
    assert answered(dismissing) == [("refused", "already_redriven")]
    await check(conn)


async def test_two_cancels_are_one(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    _, cancelling = await race.second_waits(lambda a: cancel(a, job_id), lambda b: cancel(b, job_id))
    assert answered(cancelling) == REPEATED
    await check(conn)


async def test_two_retries_are_one(conn: Connection, race: Race) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    await cancel(conn, job_id)
    _, retrying = await race.second_waits(lambda a: retry(a, job_id), lambda b: retry(b, job_id))
    assert answered(retrying) == REPEATED
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
    _, retrying = await race.second_waits(lambda a: cancel(a, job_id), lambda b: retry(b, job_id))
    assert answered(retrying) == ACCEPTED
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
    _, cancelling = await race.second_waits(instantiate, lambda b: cancel(b, job_id))
    assert answered(cancelling) == ACCEPTED
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
