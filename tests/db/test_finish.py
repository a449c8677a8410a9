"""finish_tasks: the fence and its five reasons, retries and their delays, what happens below a failure."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from accsd.planning.backoff import backoff_seconds
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
    pass_time,
    release,
    start,
    started,
    step,
    submit,
    task,
    tasks,
)


def said(answers: list[Row]) -> list[tuple[str, str | None]]:
    return [(row["answer"], row["reason"]) for row in answers]


async def test_done_writes_the_results_frees_the_lease_and_closes_the_job(conn: Connection):
    await node(conn)
    made = await submit(conn)
    (a,) = await started(conn)
    assert said(await finish(conn, a, results=[{"frames": 240}])) == [("accepted", None)]

    row = await task(conn, made, "a")
    assert (row["status"], row["results"], row["progress"]) == ("done", {"frames": 240}, 1)
    assert (row["lease_owner"], row["lease_until"], row["claimed_by"]) == (None, None, "owner-1")
    assert row["finished_at"] >= row["started_at"]
    closed = await job(conn, made)
    assert (closed["status"], closed["progress"], closed["open_tasks"]) == ("done", 1, 0)
    assert closed["finished_at"] is not None
    assert await conn.fetchval("SELECT count(*) FROM accs.live") == 0
    assert await moves(conn, a["task_id"]) == [("queued", "starting"), ("starting", "running"), ("running", "done")]
    assert await job_moves(conn, made) == [("queued", "running"), ("running", "done")]


async def test_without_results_those_reported_before_stand_and_else_there_are_none(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"))
    a, b = await started(conn, 2)
    await conn.fetch(
        "SELECT * FROM accs.report_progress($1, $2, 'owner-1', '{0.5}', NULL, $3)", [a["task_id"]], [1], [{"x": 1}]
    )
    await finish(conn, a, b)
    assert (await task(conn, made, "a"))["results"] == {"x": 1}
    assert (await task(conn, made, "b"))["results"] == {}


async def test_a_finish_of_an_older_attempt_is_stale(conn: Connection):
    await node(conn)
    await submit(conn)
    (old,) = await started(conn)
    await release(conn, old)
    (new,) = await started(conn)
    (answer,) = await finish(conn, old)
    held = (answer["db_status"], answer["db_attempt_id"], answer["db_lease_owner"])
    assert (answer["answer"], answer["reason"], held) == ("refused", "stale_attempt", ("running", 2, "owner-1"))
    assert answer["db_lease_until"] == new["lease_until"]


async def test_a_finish_of_a_task_that_has_ended_is_told_so(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"), step("c"))
    a, b, c = await started(conn, 3)
    await finish(conn, a)
    (answer,) = await fail(conn, a)
    assert (answer["reason"], answer["db_status"], answer["db_attempt_id"]) == ("already_finished", "done", 1)
    await fail(conn, b, permanent=True)
    (answer,) = await finish(conn, b)
    assert (answer["reason"], answer["db_status"]) == ("already_finished", "error")
    await cancel(conn, made)
    (answer,) = await finish(conn, c)
    assert (answer["reason"], answer["db_status"], answer["db_lease_owner"]) == ("already_finished", "cancelled", None)


async def test_a_finish_of_a_task_that_was_not_started_or_was_given_back_finds_another_state(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"))
    a, b = await claim(conn, 2)
    (answer,) = await finish(conn, a)
    assert (answer["reason"], answer["db_status"]) == ("not_in_expected_state", "starting")
    await release(conn, b)
    (answer,) = await finish(conn, b)
    assert (answer["reason"], answer["db_status"]) == ("not_in_expected_state", "queued")
    (answer,) = await finish(conn, {**a, "attempt_id": 9})
    assert (answer["reason"], answer["db_attempt_id"]) == ("not_in_expected_state", 1)


async def test_a_finish_after_the_lease_or_by_another_owner_is_refused(conn: Connection):
    await node(conn)
    await submit(conn)
    (a,) = await started(conn)
    (answer,) = await finish(conn, a, owner="thief")
    assert (answer["reason"], answer["db_lease_owner"]) == ("lease_lost_or_owner_mismatch", "owner-1")
    await pass_time(conn, 60)
    (answer,) = await finish(conn, a)
    assert (answer["reason"], answer["db_status"]) == ("lease_lost_or_owner_mismatch", "running")
    assert answer["db_lease_until"] == a["lease_until"]


async def test_a_task_that_does_not_exist_is_not_found(conn: Connection):
    await node(conn)
    made = await submit(conn)
    (a,) = await started(conn)
    assert said(await finish(conn, {**a, "task_id": made})) == [("refused", "not_found")]


async def test_a_refused_finish_leaves_an_event_with_what_was_said_and_what_stands(conn: Connection):
    await node(conn)
    await submit(conn)
    (a,) = await started(conn)
    await finish(conn, a, owner="thief")
    event: Any = await conn.fetchrow("SELECT * FROM task_events WHERE type = 'refused'")
    assert (event["level"], event["job_task_id"]) == ("warn", a["task_id"])
    data = event["data"]
    assert (data["reason"], data["said"], data["owner"]) == ("lease_lost_or_owner_mismatch", "done", "thief")
    assert (event["attempt_id"], data["db_status"], data["db_lease_owner"]) == (1, "running", "owner-1")


async def test_results_that_are_too_large_are_refused_and_the_attempt_lives_on(conn: Connection):
    await node(conn)
    made = await submit(conn)
    (a,) = await started(conn)
    large = {"text": "x" * 300_000}
    assert said(await finish(conn, a, results=[large])) == [("refused", "result_too_large")]
    assert (await task(conn, made, "a"))["status"] == "running"
    assert said(await finish(conn, a, results=[{"text": "x" * 200_000}])) == [("accepted", None)]


SPECS: list[Any] = [
    None,
    {},
    {"strategy": "exponential", "base": 2, "cap": 100},
    {"strategy": "linear", "base": 10},
    {"strategy": "fixed", "base": 42},
    [30, 120, 300],
]


@pytest.mark.parametrize("spec", SPECS, ids=str)
async def test_a_failure_is_retried_after_its_backoff_until_the_attempts_are_spent(conn: Connection, spec: Any):
    await node(conn)
    made = await submit(conn, step("a", max_attempts=5, backoff=spec))
    jitter = 1.1 if not spec or (isinstance(spec, dict) and spec["strategy"] == "exponential") else 1.0
    for attempt in range(1, 5):
        (a,) = await started(conn)
        assert said(await fail(conn, a, code=f"boom{attempt}", message="it broke")) == [("accepted", None)]
        row = await task(conn, made, "a")
        assert (row["status"], row["attempt"], row["error_code"]) == ("queued", attempt, f"boom{attempt}")
        delay = (row["next_attempt_at"] - row["updated_at"]).total_seconds()
        wanted = backoff_seconds(spec, attempt)
        assert wanted - 0.001 <= delay <= wanted * jitter + 0.001
        assert await claim(conn) == []
        await pass_time(conn, delay)
    (a,) = await started(conn)
    assert (a["attempt"], a["attempt_id"]) == (4, 5)
    await fail(conn, a, code="boom5")

    row = await task(conn, made, "a")
    assert (row["status"], row["attempt"], row["next_attempt_at"]) == ("error", 5, None)
    (letter,) = await dead_letters(conn, made)
    assert (letter["reason"], letter["error_code"], letter["generation"]) == ("attempts_exhausted", "boom5", 0)
    types = await conn.fetch(
        "SELECT type FROM task_events WHERE job_task_id = $1 AND data ? 'outcome' ORDER BY id", row["id"]
    )
    assert [event["type"] for event in types] == ["retry"] * 4 + ["status"]


async def test_the_installations_base_is_used_where_the_step_has_none(conn: Connection):
    await node(conn)
    made = await submit(
        conn, step("a", backoff={"strategy": "fixed"}), step("b", backoff={"strategy": "fixed", "base": 7})
    )
    now = await clock(conn)
    await fail(conn, *await started(conn, 2), base=100)
    for key, seconds in (("a", 100), ("b", 7)):
        due = (await task(conn, made, key))["next_attempt_at"] - now
        assert timedelta(seconds=seconds) <= due < timedelta(seconds=seconds + 5)


async def test_a_permanent_error_is_not_retried(conn: Connection):
    await node(conn)
    made = await submit(conn)
    await fail(conn, *await started(conn), permanent=True, code="bad_input", message="no such file")
    row = await task(conn, made, "a")
    assert (row["status"], row["attempt"], row["error_code"], row["error_message"]) == (
        "error",
        1,
        "bad_input",
        "no such file",
    )
    (letter,) = await dead_letters(conn, made)
    assert (letter["reason"], letter["error_message"]) == ("permanent_error", "no such file")
    closed = await job(conn, made)
    assert (closed["status"], closed["error_code"], closed["error_message"]) == ("error", "bad_input", "no such file")


async def test_a_task_that_cannot_be_started_may_fail_without_having_run(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", max_attempts=2, backoff=[0]))
    (a,) = await claim(conn)
    assert said(await fail(conn, a, code="start_failed")) == [("accepted", None)]
    await fail(conn, *await claim(conn), code="start_failed")
    assert await tasks(conn, made) == {"a": "error"}
    assert await moves(conn, a["task_id"]) == [
        ("queued", "starting"),
        ("starting", "queued"),
        ("queued", "starting"),
        ("starting", "error"),
    ]


async def test_success_after_a_failure_clears_the_error(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", backoff=[0]))
    await fail(conn, *await started(conn))
    await done(conn)
    row = await task(conn, made, "a")
    assert (row["status"], row["attempt"], row["error_code"], row["error_message"]) == ("done", 1, None, None)
    assert (await job(conn, made))["error_code"] is None


async def test_below_a_failure_all_is_skipped_and_the_other_branches_finish(conn: Connection):
    await node(conn)
    made = await submit(
        conn,
        step("root"),
        step("bad", after="root"),
        step("child", after="bad"),
        step("grandchild", after="child"),
        step("good", after="root"),
        step("both", after="good bad"),
        step("after-good", after="good"),
    )
    await done(conn)
    bad, good = await started(conn, 2)
    assert (bad["task_key"], good["task_key"]) == ("bad", "good")
    await fail(conn, bad, permanent=True, code="first", message="the first failure")

    assert await tasks(conn, made) == {
        "root": "done",
        "bad": "error",
        "child": "skipped",
        "grandchild": "skipped",
        "good": "running",
        "both": "skipped",
        "after-good": "queued",
    }
    skipped = await task(conn, made, "grandchild")
    assert (skipped["error_code"], skipped["finished_at"] is not None) == ("upstream_failed", True)
    assert await moves(conn, skipped["id"]) == [("queued", "skipped")]
    assert (await job(conn, made))["status"] == "running"
    await finish(conn, good)
    (last,) = await started(conn)
    assert last["task_key"] == "after-good"
    await fail(conn, last, permanent=True, code="second", message="another")

    closed = await job(conn, made)
    assert (closed["status"], closed["error_code"], closed["error_message"]) == ("error", "first", "the first failure")
    assert (closed["progress"], closed["open_tasks"]) == (1, 0)
    assert await job_moves(conn, made) == [("queued", "running"), ("running", "error")]
    assert [letter["error_code"] for letter in await dead_letters(conn, made)] == ["first", "second"]


async def test_what_a_skipped_step_has_released_is_not_skipped_by_a_failure_above_that_step(conn: Connection):
    """`skipped` satisfies: what stands below it depends on nothing that failed."""
    await node(conn)
    made = await submit(conn, *chain("a", "b", "c", "d"))
    (a,) = await started(conn)
    await conn.fetch("SELECT * FROM accs.skip_tasks($1)", [(await task(conn, made, "b"))["id"]])
    await fail(conn, a, permanent=True)
    assert await tasks(conn, made) == {"a": "error", "b": "skipped", "c": "queued", "d": "queued"}
    await done(conn)
    await done(conn)
    closed = await job(conn, made)
    assert (closed["status"], closed["open_tasks"], closed["progress"]) == ("error", 0, 1)


async def test_two_parents_that_finish_in_one_batch_release_their_child_once(conn: Connection):
    await node(conn)
    made = await submit(conn, *diamond())
    await done(conn)
    left, right = await started(conn, 2)
    assert said(await finish(conn, left, right)) == [("accepted", None)] * 2
    row = await task(conn, made, "bottom")
    assert (row["remaining"], row["status"]) == (0, "queued")
    assert [c["task_key"] for c in await claim(conn, 5)] == ["bottom"]


async def test_a_parent_that_succeeds_and_one_that_fails_in_one_batch(conn: Connection):
    await node(conn)
    made = await submit(conn, *diamond())
    await done(conn)
    left, right = await started(conn, 2)
    await conn.fetch(
        "SELECT * FROM accs.finish_tasks($1, $2, 'owner-1', $3, NULL, $4, NULL, $5)",
        [left["task_id"], right["task_id"]],
        [1, 1],
        ["done", "error"],
        [None, "boom"],
        [None, True],
    )
    assert await tasks(conn, made) == {"top": "done", "left": "done", "right": "error", "bottom": "skipped"}
    closed = await job(conn, made)
    assert (closed["status"], closed["error_code"], closed["progress"]) == ("error", "boom", 1)
    assert await conn.fetchval("SELECT count(*) FROM accs.waiting") == 0


async def test_a_batch_with_every_kind_of_outcome_is_answered_row_by_row(conn: Connection):
    await node(conn)
    made = await submit(conn, *(step(k, backoff=[60]) for k in "abcdef"))
    claimed = await claim(conn, 6)
    a, b, c, d, e, f = claimed
    await start(conn, a, b, c, d, e)
    await finish(conn, d)
    answers = await conn.fetch(
        "SELECT * FROM accs.finish_tasks($1, $2, 'owner-1', $3, $4, $5, $6, $7)",
        [row["task_id"] for row in claimed],
        [1, 1, 1, 1, 7, 1],
        ["done", "error", "error", "done", "done", "done"],
        [{"x": 1}, None, None, None, None, None],
        [None, "again", "never", None, None, None],
        [None, "later", "no", None, None, None],
        [None, False, True, None, None, None],
    )
    assert {row["id"]: (row["answer"], row["reason"]) for row in answers} == {
        a["task_id"]: ("accepted", None),
        b["task_id"]: ("accepted", None),
        c["task_id"]: ("accepted", None),
        d["task_id"]: ("repeated", None),
        e["task_id"]: ("refused", "not_in_expected_state"),
        f["task_id"]: ("refused", "not_in_expected_state"),
    }
    assert await tasks(conn, made) == dict(
        zip("abcdef", ["done", "queued", "error", "done", "running", "starting"], strict=True)
    )
    row = await job(conn, made)
    assert (row["status"], row["open_tasks"], row["error_code"]) == ("running", 3, "never")


async def test_the_same_task_twice_in_one_batch_counts_once(conn: Connection):
    await node(conn)
    made = await submit(conn, *chain("a", "b"))
    (a,) = await started(conn)
    assert said(await finish(conn, a, a)) == [("accepted", None)]
    row = await job(conn, made)
    assert (row["open_tasks"], (await task(conn, made, "b"))["remaining"]) == (1, 0)


async def test_the_current_task_of_a_job_is_the_first_that_became_runnable(conn: Connection):
    await node(conn)
    made = await submit(conn, *diamond())
    assert (await job(conn, made))["current_task_key"] == "top"
    await done(conn)
    assert (await job(conn, made))["current_task_key"] == "left"
    left, right = await started(conn, 2)
    await finish(conn, right)
    assert (await job(conn, made))["current_task_key"] == "left"
    await finish(conn, left)
    assert (await job(conn, made))["current_task_key"] == "bottom"


async def test_several_jobs_finish_in_one_batch(conn: Connection):
    await node(conn)
    jobs = [await submit(conn, *chain("a", "b")) for _ in range(3)]
    for _ in range(2):
        assert said(await finish(conn, *await started(conn, 9))) == [("accepted", None)] * 3
    assert [(await job(conn, made))["status"] for made in jobs] == ["done"] * 3


# Found by the state machine


async def skip(conn: Connection, job_id: UUID, key: str) -> None:
    task_id = (await task(conn, job_id, key))["id"]
    (row,) = await conn.fetch("SELECT * FROM accs.skip_tasks(ARRAY[$1::uuid])", task_id)
    assert row["answer"] == "accepted"


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
