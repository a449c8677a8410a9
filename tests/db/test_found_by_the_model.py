"""What the model and the state machine found in schema.sql, each as the shortest story that shows it."""

from typing import Any
from uuid import UUID

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    cancel,
    chain,
    claim,
    dead_letters,
    done,
    fail,
    finish,
    job,
    node,
    started,
    step,
    submit,
    task,
    tasks,
    workflow,
)


async def skip(conn: Connection, job_id: UUID, key: str) -> None:
    task_id = (await task(conn, job_id, key))["id"]
    (row,) = await conn.fetch("SELECT * FROM accs.skip_tasks(ARRAY[$1::uuid])", task_id)
    assert row["answer"] == "accepted"


async def redrive(conn: Connection, *letters: int) -> list[tuple[Any, ...]]:
    rows = await conn.fetch("SELECT * FROM accs.redrive($1)", list(letters))
    return [(row["dead_letter_id"], row["answer"], row["reason"]) for row in rows]


async def retry(conn: Connection, job_id: UUID, step_key: str | None = None) -> tuple[str, str | None]:
    (row,) = await conn.fetch("SELECT * FROM accs.retry_jobs(ARRAY[$1::uuid], ARRAY[$2::text])", job_id, step_key)
    return row["answer"], row["reason"]


async def test_a_failure_stops_at_a_step_that_was_skipped_by_hand(conn: Connection) -> None:
    """What depends on a skipped step only is satisfied, whether it was claimed before the failure or not."""
    await node(conn)
    job_id = await submit(conn, *chain("a", "b", "c"))
    await skip(conn, job_id, "b")
    (a,) = await started(conn)
    await fail(conn, a, permanent=True)
    assert await tasks(conn, job_id) == {"a": "error", "b": "skipped", "c": "queued"}
    await check(conn)
    await done(conn)
    assert await tasks(conn, job_id) == {"a": "error", "b": "skipped", "c": "done"}
    assert (await job(conn, job_id))["status"] == "error"
    await check(conn)


async def test_a_step_below_one_that_was_skipped_by_hand_can_be_retried_while_the_failure_above_stands(
    conn: Connection,
) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b", "c"))
    await skip(conn, job_id, "b")
    (a,) = await started(conn)
    await fail(conn, a, permanent=True)
    await done(conn)
    assert await retry(conn, job_id, "c") == ("accepted", None)
    await check(conn)
    await done(conn)
    assert (await job(conn, job_id))["status"] == "error"
    await check(conn)


async def test_a_redriven_step_does_not_bring_back_what_also_waits_for_a_cancelled_one(conn: Connection) -> None:
    """It would wait for ever, and its job with it."""
    await node(conn)
    job_id = await submit(conn, step("a"), step("b"), step("c", after="a b"))
    a, _b = await started(conn, 2)
    await fail(conn, a, permanent=True)
    await cancel(conn, job_id)
    (letter,) = await dead_letters(conn, job_id)
    assert await redrive(conn, letter["id"]) == [(letter["id"], "accepted", None)]
    await check(conn)
    assert await tasks(conn, job_id) == {"a": "queued", "b": "cancelled", "c": "skipped"}
    await done(conn)
    assert (await job(conn, job_id))["status"] == "error"
    await check(conn)
    assert await retry(conn, job_id) == ("accepted", None)
    await done(conn)
    await done(conn)
    assert (await job(conn, job_id))["status"] == "done"
    await check(conn)


async def test_a_step_retried_does_not_bring_back_what_also_waits_for_a_skipped_branch(conn: Connection) -> None:
    """c stands below the failure of a through b. To run it after x alone would be to run it without b."""
    await node(conn)
    job_id = await submit(conn, step("a"), step("b", after="a"), step("x"), step("c", after="b x"))
    a, x = await started(conn, 2)
    await finish(conn, x)
    await fail(conn, a, permanent=True)
    assert await retry(conn, job_id, "x") == ("accepted", None)
    await done(conn)
    assert await tasks(conn, job_id) == {"a": "error", "b": "skipped", "x": "done", "c": "skipped"}
    assert (await job(conn, job_id))["status"] == "error"
    await check(conn)


async def test_an_old_dead_letter_of_a_task_is_repeated_even_beside_its_new_one(conn: Connection) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (a,) = await started(conn)
    await fail(conn, a, permanent=True)
    (old,) = await dead_letters(conn, job_id)
    await redrive(conn, old["id"])
    (a,) = await started(conn)
    await fail(conn, a, permanent=True)
    _, new = await dead_letters(conn, job_id)
    answers = await redrive(conn, old["id"], new["id"])
    assert sorted(answers) == [(old["id"], "repeated", None), (new["id"], "accepted", None)]
    await check(conn)


async def test_a_paused_workflow_does_not_keep_others_from_a_claim_without_keys(conn: Connection) -> None:
    await node(conn)
    await workflow(conn, name="asleep")
    await submit(conn, step("a"))
    assert await conn.fetchval("SELECT accs.pause('workflow', 'asleep')") == "accepted"
    assert len(await claim(conn)) == 1
    await check(conn)


async def test_a_recheck_of_the_holds_that_frees_nothing_counts_none(conn: Connection) -> None:
    assert await conn.fetchval("SELECT accs.recheck_holds()") == 0
