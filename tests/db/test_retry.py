"""redrive, dismiss and retry_jobs: the only ways out of a terminal state."""

from uuid import UUID

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    Row,
    cancel,
    chain,
    claim,
    clock,
    dead_letters,
    diamond,
    done,
    fail,
    finish,
    job,
    job_moves,
    moves,
    node,
    started,
    step,
    submit,
    task,
    tasks,
    workflow,
)


async def redrive(conn: Connection, *letters: int) -> list[tuple[str, str | None]]:
    rows = await conn.fetch("SELECT * FROM accs.redrive($1, 'ops')", list(letters))
    return [(row["answer"], row["reason"]) for row in rows]


async def retry(conn: Connection, job_id: UUID, step_key: str | None = None) -> tuple[str, str | None]:
    row = await conn.fetchrow("SELECT * FROM accs.retry_jobs($1, $2, 'ops')", [job_id], [step_key])
    assert row is not None
    return row["answer"], row["reason"]


async def fail_step(conn: Connection, key: str) -> Row:
    """Claims the next task, which must be this one, and fails it for good."""
    (claimed,) = await started(conn)
    assert claimed["task_key"] == key
    await fail(conn, claimed, permanent=True, code=f"{key}-broke")
    return claimed


async def letter_of(conn: Connection, job_id: UUID, key: str) -> int:
    wanted = (await task(conn, job_id, key))["id"]
    return next(row["id"] for row in reversed(await dead_letters(conn, job_id)) if row["job_task_id"] == wanted)


async def test_a_redriven_dead_letter_runs_again_with_all_that_was_skipped_below_it(conn: Connection):
    await node(conn)
    made = await submit(conn, *chain("a", "b", "c"))
    await done(conn)
    failed = await fail_step(conn, "b")
    assert (await job(conn, made))["status"] == "error"
    assert await redrive(conn, await letter_of(conn, made, "b")) == [("accepted", None)]

    assert await tasks(conn, made) == {"a": "done", "b": "queued", "c": "queued"}
    row = await task(conn, made, "b")
    assert (row["generation"], row["attempt"], row["lost"], row["attempt_id"], row["error_code"]) == (1, 0, 0, 1, None)
    reopened = await job(conn, made)
    assert (reopened["status"], reopened["generation"], reopened["open_tasks"]) == ("running", 1, 2)
    assert (reopened["error_code"], reopened["error_message"], reopened["finished_at"]) == (None, None, None)
    assert abs(float(reopened["progress"]) - 1 / 3) < 1e-9
    assert (await moves(conn, failed["task_id"]))[-1] == ("error", "queued")
    assert (await moves(conn, (await task(conn, made, "c"))["id"])) == [("queued", "skipped"), ("skipped", "queued")]
    events = await conn.fetch("SELECT source, type FROM task_events WHERE type = 'retry'")
    assert [tuple(row) for row in events] == [("ops", "retry")] * 3
    (letter,) = await dead_letters(conn, made)
    assert letter["redriven_at"] is not None

    (b,) = await done(conn)
    assert (b["task_key"], b["attempt_id"]) == ("b", 2)
    await done(conn)
    closed = await job(conn, made)
    assert (closed["status"], closed["progress"]) == ("done", 1)
    assert await job_moves(conn, made) == [
        ("queued", "running"),
        ("running", "error"),
        ("error", "running"),
        ("running", "done"),
    ]


async def test_a_second_failure_of_a_redriven_task_is_a_letter_of_its_own(conn: Connection):
    await node(conn)
    made = await submit(conn)
    await fail_step(conn, "a")
    (first,) = await dead_letters(conn, made)
    await redrive(conn, first["id"])
    await fail_step(conn, "a")
    _, second = await dead_letters(conn, made)
    assert (second["generation"], second["redriven_at"]) == (1, None)
    assert await redrive(conn, first["id"]) == [("repeated", None)]
    assert await redrive(conn, second["id"]) == [("accepted", None)]


async def test_a_child_of_two_failures_comes_back_with_the_last_of_them(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"), step("c", after="a b"), step("d", after="c"), step("e", after="a"))
    await fail_step(conn, "a")
    await fail_step(conn, "b")
    await redrive(conn, await letter_of(conn, made, "a"))
    assert await tasks(conn, made) == {"a": "queued", "b": "error", "c": "skipped", "d": "skipped", "e": "queued"}
    row = await job(conn, made)
    assert (row["status"], row["error_code"]) == ("running", "b-broke")
    await done(conn)
    await done(conn)
    assert (await job(conn, made))["status"] == "error"
    await redrive(conn, await letter_of(conn, made, "b"))
    assert await tasks(conn, made) == {"a": "done", "b": "queued", "c": "queued", "d": "queued", "e": "done"}
    for _ in range(3):
        await done(conn)
    closed = await job(conn, made)
    assert (closed["status"], closed["progress"], closed["error_code"]) == ("done", 1, None)


async def test_two_failures_above_one_child_are_redriven_together(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"), step("c", after="a b"))
    await fail_step(conn, "a")
    await fail_step(conn, "b")
    letters = [await letter_of(conn, made, key) for key in "ab"]
    assert await redrive(conn, *letters) == [("accepted", None)] * 2
    assert (await task(conn, made, "c"))["remaining"] == 2
    await done(conn, 2)
    await done(conn)
    assert (await job(conn, made))["status"] == "done"


async def test_a_dead_letter_is_redriven_while_its_job_still_runs(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"))
    await fail_step(conn, "a")
    (b,) = await started(conn)
    await redrive(conn, await letter_of(conn, made, "a"))
    assert await tasks(conn, made) == {"a": "queued", "b": "running"}
    assert await job_moves(conn, made) == [("queued", "running")]
    await done(conn)
    await fail(conn, b, permanent=True)
    assert (await job(conn, made))["error_code"] == "boom"


async def test_letters_that_do_not_exist_or_are_past_are_refused(conn: Connection):
    await node(conn)
    made = await submit(conn)
    assert await redrive(conn, 4711) == [("refused", "not_found")]
    await fail_step(conn, "a")
    letter = await letter_of(conn, made, "a")
    assert await retry(conn, made) == ("accepted", None)
    assert await redrive(conn, letter) == [("repeated", None)]  # the retry has settled it


async def test_dismissed_letters_are_settled_and_redriven_ones_cannot_be_dismissed(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"))
    await fail_step(conn, "a")
    await fail_step(conn, "b")
    a, b = [await letter_of(conn, made, key) for key in "ab"]
    await redrive(conn, b)
    rows = await conn.fetch("SELECT answer, reason FROM accs.dismiss($1)", [a, b, 4711])
    assert [tuple(row) for row in rows] == [
        ("accepted", None),
        ("refused", "already_redriven"),
        ("refused", "not_found"),
    ]
    rows = await conn.fetch("SELECT answer, reason FROM accs.dismiss($1)", [a])
    assert [tuple(row) for row in rows] == [("repeated", None)]
    assert await tasks(conn, made) == {"a": "error", "b": "queued"}


async def test_a_retried_job_runs_what_has_not_succeeded(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b", after="a"), step("c", after="b"), step("d"), step("e", after="d"))
    await done(conn)
    d = (await task(conn, made, "d"))["id"]
    await conn.fetch("SELECT * FROM accs.skip_tasks($1)", [d])
    await fail_step(conn, "b")
    await done(conn)
    assert await tasks(conn, made) == {"a": "done", "b": "error", "c": "skipped", "d": "skipped", "e": "done"}
    assert await retry(conn, made) == ("accepted", None)
    assert await tasks(conn, made) == {"a": "done", "b": "queued", "c": "queued", "d": "skipped", "e": "done"}
    await done(conn)
    await done(conn)
    assert (await job(conn, made))["status"] == "done"


async def test_a_cancelled_job_can_be_retried(conn: Connection):
    await node(conn)
    made = await submit(conn, *chain("a", "b"))
    (a,) = await started(conn)
    await conn.fetch("SELECT * FROM accs.report_progress($1, '{1}', 'owner-1', '{0.5}')", [a["task_id"]])
    await cancel(conn, made)
    assert await retry(conn, made) == ("accepted", None)
    row = await job(conn, made)
    assert (row["status"], row["progress"], row["task_progress"], row["error_code"]) == ("running", 0, 0, None)
    await done(conn)
    await done(conn)
    assert (await job(conn, made))["progress"] == 1
    assert await moves(conn, a["task_id"]) == [
        ("queued", "starting"),
        ("starting", "running"),
        ("running", "cancelled"),
        ("cancelled", "queued"),
        ("queued", "starting"),
        ("starting", "running"),
        ("running", "done"),
    ]


async def test_a_job_can_be_run_again_from_a_step_and_results_of_before_are_kept_above_it(conn: Connection):
    await node(conn)
    made = await submit(conn, *chain("a", "b", "c"), step("other"))
    while await done(conn, 2):
        pass
    assert await retry(conn, made, "b") == ("accepted", None)
    assert await tasks(conn, made) == {"a": "done", "b": "queued", "c": "queued", "other": "done"}
    row = await task(conn, made, "c")
    assert (row["remaining"], row["generation"], row["results"]) == (1, 1, None)
    assert (await job(conn, made))["current_task_key"] == "b"
    (b,) = await claim(conn)
    assert (b["attempt_id"], b["given"]) == (2, {"inputs": {"a": {}}})


async def test_a_retry_from_a_step_leaves_alone_what_another_failure_keeps_from_running(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"), step("c", after="a b"), step("d", after="a"))
    await done(conn)
    await fail_step(conn, "b")
    await done(conn)
    assert await retry(conn, made, "a") == ("accepted", None)
    assert await tasks(conn, made) == {"a": "queued", "b": "error", "c": "skipped", "d": "queued"}
    await done(conn)
    await done(conn)
    closed = await job(conn, made)
    assert (closed["status"], closed["error_code"], closed["progress"]) == ("error", "b-broke", 1)


async def test_a_step_below_one_that_was_skipped_for_its_own_reason_can_be_run_again(conn: Connection):
    """a failed, but b was skipped by its condition, so c did not depend on a any more."""
    await node(conn)
    made = await submit(conn, *chain("a", "b", "c", "d"))
    (a,) = await started(conn)
    await conn.fetch("SELECT * FROM accs.skip_tasks($1)", [(await task(conn, made, "b"))["id"]])
    await fail(conn, a, permanent=True)
    await done(conn)
    await done(conn)
    assert await tasks(conn, made) == {"a": "error", "b": "skipped", "c": "done", "d": "done"}
    assert await retry(conn, made, "c") == ("accepted", None)
    assert await tasks(conn, made) == {"a": "error", "b": "skipped", "c": "queued", "d": "queued"}
    await done(conn)
    await done(conn)
    assert (await job(conn, made))["status"] == "error"


async def test_a_retry_from_a_step_of_a_cancelled_job_cannot_hang(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"), step("c", after="a b"))
    await done(conn)
    await cancel(conn, made)
    assert await retry(conn, made, "a") == ("accepted", None)
    while await done(conn, 5):
        pass
    assert (await job(conn, made))["open_tasks"] == 0


async def test_retries_that_make_no_sense_are_refused(conn: Connection):
    await node(conn)
    made = await submit(conn, *chain("a", "b"))
    assert await retry(conn, made) == ("refused", "not_in_expected_state")
    await done(conn)
    await fail_step(conn, "b")
    assert await retry(conn, made, "x") == ("refused", "step_not_found")
    assert await retry(conn, made, "b") == ("accepted", None)
    await done(conn)
    assert await retry(conn, made) == ("refused", "nothing_to_retry")
    failed = await submit(conn, *chain("a", "b", "c"))
    await fail_step(conn, "a")
    assert await retry(conn, failed, "b") == ("refused", "earlier_step_unfinished")
    assert await retry(conn, failed, "c") == ("refused", "earlier_step_unfinished")
    assert await retry(conn, await workflow(conn)) == ("refused", "not_found")
    never = await submit(conn, scheduled_at=(await clock(conn)).replace(year=2999))
    assert await retry(conn, never) == ("refused", "not_in_expected_state")
    await cancel(conn, never)
    assert await retry(conn, never) == ("refused", "never_instantiated")


async def test_a_job_that_is_named_twice_in_one_call_is_retried_once(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", max_attempts=1))
    await fail(conn, *await started(conn))
    rows = await conn.fetch("SELECT answer FROM accs.retry_jobs(ARRAY[$1, $1]::uuid[], ARRAY['a', 'a'])", made)
    assert [row["answer"] for row in rows] == ["accepted", "repeated"]
    await check(conn)


# Found by the state machine


async def skip(conn: Connection, job_id: UUID, key: str) -> None:
    task_id = (await task(conn, job_id, key))["id"]
    (row,) = await conn.fetch("SELECT * FROM accs.skip_tasks(ARRAY[$1::uuid])", task_id)
    assert row["answer"] == "accepted"


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
    assert await redrive(conn, letter["id"]) == [("accepted", None)]
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
    rows = await conn.fetch("SELECT * FROM accs.redrive($1)", [old["id"], new["id"]])
    answers = {row["dead_letter_id"]: (row["answer"], row["reason"]) for row in rows}
    assert answers == {old["id"]: ("repeated", None), new["id"]: ("accepted", None)}
    await check(conn)


async def test_a_step_that_is_retried_again_and_again_below_which_nothing_can_run_ends_each_time(conn: Connection):
    """What it would have freed stays skipped, because of another failure, and counts nothing."""
    await node(conn)
    job_id = await submit(conn, *diamond())
    await done(conn)
    left, right = await started(conn, 2)
    await fail(conn, left, permanent=True)
    await finish(conn, right)
    for _ in range(3):
        await conn.fetch("SELECT * FROM accs.retry_jobs($1, $2)", [job_id], ["right"])
        await done(conn)
        assert (await job(conn, job_id))["status"] == "error"
        await check(conn)
