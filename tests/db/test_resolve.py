"""resolve_tasks and fan_out: what becomes of steps with expressions. Nothing is evaluated here: the tests say what a
resolver would have found."""

from typing import Any
from uuid import UUID

import asyncpg
import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import (
    OWNER,
    cancel,
    claim,
    dead_letters,
    done,
    fail,
    finish,
    job,
    moves,
    node,
    pass_time,
    started,
    step,
    submit,
    task,
    tasks,
)
from tests.support.resolving import ACCEPTED, fan, fan_out, fanned, resolve, retry, to_resolve, verdict_on

pytestmark = pytest.mark.every_postgresql

# A step with expressions waits until it is resolved


async def test_a_step_with_expressions_can_not_be_claimed_before_it_is_resolved(conn: Connection):
    await node(conn)
    made = await submit(
        conn, step("a"), step("b", after="a", **{"with": {"n": "${steps.a.n}"}}, default_params={"m": 1})
    )
    await done(conn)
    assert await claim(conn) == []
    assert await to_resolve(conn) == ["b"]

    assert (await resolve(conn, made, "b", given={"with": {"n": 5}, "now": "x"}))["answer"] == ACCEPTED
    (claimed,) = await started(conn)
    assert claimed["params"] == {"m": 1, "n": 5}
    assert claimed["given"] == {"with": {"n": 5}, "now": "x", "inputs": {"a": {}}}
    await finish(conn, claimed)
    assert (await job(conn, made))["status"] == "done"
    await check(conn)


async def test_a_step_without_expressions_never_waits_to_be_resolved(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", **{"with": {"n": 5}}, default_params={"m": 1}))
    assert await to_resolve(conn) == []
    assert (await task(conn, made))["resolve"] is None
    (claimed,) = await claim(conn)
    assert claimed["params"] == {"m": 1, "n": 5}


async def test_a_retry_of_an_attempt_is_given_the_same(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", **{"if": "params.x"}, backoff=[1]))
    await resolve(conn, made, "a", given={"with": {"n": 5}})
    (claimed,) = await started(conn)
    await fail(conn, claimed)
    await pass_time(conn, 2)
    assert await to_resolve(conn) == []
    (claimed,) = await started(conn)
    assert claimed["params"] == {"n": 5}


async def test_a_redrive_resolves_anew(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", **{"if": "params.x"}, max_attempts=1))
    await resolve(conn, made, "a", given={"with": {"n": 5}})
    await fail(conn, *await started(conn))
    (letter,) = await dead_letters(conn, made)
    await conn.fetch("SELECT * FROM accs.redrive($1)", [letter["id"]])
    assert await claim(conn) == []
    assert await to_resolve(conn) == ["a"]
    await resolve(conn, made, "a", given={"with": {"n": 6}})
    (claimed,) = await started(conn)
    assert claimed["params"] == {"n": 6}
    await check(conn)


async def test_a_delay_holds_the_step_until_it_is_due(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", delay=60))
    await resolve(conn, made, "a", delay=60)
    assert await claim(conn) == []
    why = await conn.fetch("SELECT * FROM accs.why($1)", (await task(conn, made))["id"])
    assert "delay" in [row["blocker"] for row in why]
    await pass_time(conn, 61)
    assert len(await claim(conn)) == 1


# Skipped, in error, done without a node


async def test_a_false_condition_skips_the_step_and_frees_what_is_below(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", **{"if": "false"}), step("b", after="a"))
    await resolve(conn, made, "a", "skip", reason="condition_false")
    assert await tasks(conn, made) == {"a": "skipped", "b": "queued"}
    await done(conn)
    assert (await job(conn, made))["status"] == "done"
    await check(conn)


async def test_an_error_of_the_resolver_is_an_attempt_that_failed_for_good(conn: Connection):
    made = await submit(conn, step("a", **{"if": "1"}), step("b", after="a"))
    await resolve(conn, made, "a", "error", reason="condition_error", message="a condition must give true or false")
    assert await tasks(conn, made) == {"a": "error", "b": "skipped"}
    assert await moves(conn, (await task(conn, made))["id"]) == [("queued", "starting"), ("starting", "error")]
    closed = await job(conn, made)
    assert (closed["status"], closed["error_code"]) == ("error", "condition_error")
    (letter,) = await dead_letters(conn, made)
    assert letter["reason"] == "permanent_error"
    await check(conn)


async def test_a_step_can_be_done_without_a_node(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", **{"if": "true"}), step("b", after="a"))
    await resolve(conn, made, "a", "done", results={"x": 1})
    row = await task(conn, made)
    assert (row["status"], row["results"]) == ("done", {"x": 1})
    assert await moves(conn, row["id"]) == [("queued", "starting"), ("starting", "running"), ("running", "done")]
    (claimed,) = await claim(conn)
    assert claimed["given"] == {"inputs": {"a": {"x": 1}}}
    await check(conn)


async def test_a_batch_of_every_kind_is_carried_out_in_one_call(conn: Connection):
    await node(conn)
    made = await submit(conn, *(step(key, **{"if": "x"}, concurrency_key="k") for key in "abcd"), step("e"))
    said = [
        await verdict_on(conn, made, "a", "run", given={"with": {}}),
        await verdict_on(conn, made, "b", "skip", reason="condition_false"),
        await verdict_on(conn, made, "c", "error", reason="template_error", message="no"),
        await verdict_on(conn, made, "d", "done", results={}),
        await verdict_on(conn, made, "e", "run"),
    ]
    answers = {
        row["id"]: (row["answer"], row["reason"])
        for row in await conn.fetch("SELECT * FROM accs.resolve_tasks($1)", said)
    }
    assert [answers[UUID(one["task_id"])] for one in said] == [
        *([(ACCEPTED, None)] * 4),
        ("refused", "not_in_expected_state"),
    ]
    assert await tasks(conn, made) == {"a": "queued", "b": "skipped", "c": "error", "d": "done", "e": "queued"}
    await check(conn)


async def test_what_was_said_before_is_repeated_and_what_is_out_of_date_refused(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", **{"if": "x"}, max_attempts=1))
    old = await verdict_on(conn, made, "a", "skip", reason="condition_false")
    await resolve(conn, made, "a")
    (again,) = await conn.fetch("SELECT * FROM accs.resolve_tasks($1)", [old])
    assert again["answer"] == "repeated"
    await fail(conn, *await started(conn))
    await retry(conn, made)
    (stale,) = await conn.fetch("SELECT * FROM accs.resolve_tasks($1)", [old])
    assert (stale["answer"], stale["reason"]) == ("refused", "stale_generation")
    assert await to_resolve(conn) == ["a"]
    await cancel(conn, made)
    assert (await resolve(conn, made, "a"))["reason"] == "not_in_expected_state"
    await check(conn)


async def test_a_paused_workflow_is_not_resolved(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a", **{"if": "x"}), step("b", after="a"))
    name = await conn.fetchval("SELECT name FROM workflows")
    await conn.fetchval("SELECT accs.pause('workflow', $1)", name)
    assert await to_resolve(conn) == []
    assert (await resolve(conn, made, "a", "skip", reason="condition_false"))["answer"] == "refused"
    await conn.fetchval("SELECT accs.resume('workflow', $1)", name)
    assert await to_resolve(conn) == ["a"]
    assert (await resolve(conn, made, "a"))["answer"] == ACCEPTED
    assert len(await claim(conn)) == 1
    await check(conn)


async def test_what_waits_to_be_resolved_wakes_no_node_and_says_why(conn: Connection):
    made = await submit(conn, step("a", **{"if": "x"}))
    assert await conn.fetch("SELECT * FROM accs.wake_demand()") == []
    blockers = await conn.fetch("SELECT * FROM accs.why($1)", (await task(conn, made))["id"])
    assert "resolve" in [row["blocker"] for row in blockers]
    await resolve(conn, made, "a")
    assert len(await conn.fetch("SELECT * FROM accs.wake_demand()")) == 1


# Multiplied


async def test_a_step_becomes_a_task_for_each_item_and_the_steps_below_wait_for_all(conn: Connection):
    made = await fanned(conn, "x", "y", "z")
    assert await tasks(conn, made) == {
        "split": "done",
        "each": "done",
        "join": "queued",
        "each[0]": "queued",
        "each[1]": "queued",
        "each[2]": "queued",
    }
    assert (await task(conn, made, "each"))["results"] == {"count": 3}
    row = await job(conn, made)
    assert (row["task_count"], row["open_tasks"]) == (6, 4)
    await check(conn)

    claimed = await started(conn, 10)
    assert [(one["task_key"], one["params"]) for one in claimed] == [
        ("each[0]", {"item": "x"}),
        ("each[1]", {"item": "y"}),
        ("each[2]", {"item": "z"}),
    ]
    assert claimed[0]["given"]["inputs"] == {"split": {}, "each": {"count": 3}}
    await finish(conn, claimed[2], results=[{"r": "z"}])
    await finish(conn, claimed[0], results=[{"r": "x"}])
    assert await to_resolve(conn) == []
    await finish(conn, claimed[1], results=[{"r": None}])
    assert await to_resolve(conn) == ["join"]
    await resolve(conn, made, "join")
    (joined,) = await started(conn)
    assert joined["given"]["inputs"] == {"each": [{"r": "x"}, {"r": None}, {"r": "z"}]}
    await finish(conn, joined)
    assert (await job(conn, made))["status"] == "done"
    await check(conn)


async def test_an_empty_list_lets_the_steps_below_go_on(conn: Connection):
    made = await fanned(conn)
    await resolve(conn, made, "join")
    (joined,) = await started(conn)
    assert joined["given"]["inputs"] == {"each": []}
    await finish(conn, joined)
    assert (await job(conn, made))["status"] == "done"
    await check(conn)


async def test_items_may_be_skipped_and_are_null_in_the_list(conn: Connection):
    made = await fanned(conn, "x", None, "z")
    assert (await task(conn, made, "each[1]"))["error_code"] == "condition_false"
    await done(conn, 2)
    await resolve(conn, made, "join")
    (joined,) = await claim(conn)
    assert joined["given"]["inputs"] == {"each": [{}, None, {}]}
    await check(conn)


async def test_only_so_many_run_at_once(conn: Connection):
    made = await fanned(conn, *"abcde", parallel=2)
    first = await started(conn, 10)
    assert [one["task_key"] for one in first] == ["each[0]", "each[1]"]
    await finish(conn, first[0])
    assert [one["task_key"] for one in await claim(conn, 10)] == ["each[2]"]
    await check(conn)
    await cancel(conn, made)
    await check(conn)


async def test_items_may_begin_one_after_the_other(conn: Connection):
    await fanned(conn, "x", "y", "z", delays=[0, 60, 120])
    assert [one["task_key"] for one in await claim(conn, 10)] == ["each[0]"]
    await pass_time(conn, 61)
    assert [one["task_key"] for one in await claim(conn, 10)] == ["each[1]"]


async def test_an_item_that_fails_for_good_stops_what_is_below(conn: Connection):
    made = await fanned(conn, "x", "y")
    x, y = await started(conn, 2)
    await fail(conn, x, permanent=True)
    assert (await task(conn, made, "join"))["error_code"] == "upstream_failed"
    await finish(conn, y)
    assert (await job(conn, made))["status"] == "error"
    await check(conn)

    await retry(conn, made)
    await check(conn)
    await done(conn)
    assert await to_resolve(conn) == ["join"]
    await resolve(conn, made, "join")
    await done(conn)
    assert (await job(conn, made))["status"] == "done"
    await check(conn)


async def test_so_many_items_may_fail_and_no_more(conn: Connection):
    made = await fanned(conn, *"abcd", tolerate=1)
    a, b, c, d = await started(conn, 4)
    await fail(conn, a, permanent=True)
    row = await task(conn, made, "each[0]")
    assert (row["status"], row["tolerated"]) == ("error", True)
    assert (await job(conn, made))["error_code"] is None
    await finish(conn, b, c, d)
    await resolve(conn, made, "join")
    (joined,) = await started(conn)
    assert joined["given"]["inputs"]["each"][0] is None
    await finish(conn, joined)
    assert (await job(conn, made))["status"] == "done"
    await check(conn)


async def test_of_two_that_fail_in_one_call_one_is_tolerated(conn: Connection):
    made = await fanned(conn, *"abc", tolerate=1)
    a, b, c = await started(conn, 3)
    await fail(conn, a, b, permanent=True)
    assert [(await task(conn, made, f"each[{n}]"))["tolerated"] for n in (0, 1)] == [True, None]
    assert (await task(conn, made, "join"))["status"] == "skipped"
    await finish(conn, c)
    assert (await job(conn, made))["status"] == "error"
    await check(conn)


async def test_a_retry_after_tolerated_failures_runs_them_and_what_went_on_without_them(conn: Connection):
    made = await fanned(conn, *"ab", tolerate=2)
    await fail(conn, *await started(conn, 2), permanent=True)
    await resolve(conn, made, "join")
    await done(conn)
    assert (await job(conn, made))["status"] == "done"
    assert (await retry(conn, made))["answer"] == ACCEPTED
    assert await tasks(conn, made) == {
        "split": "done",
        "each": "done",
        "join": "queued",
        "each[0]": "queued",
        "each[1]": "queued",
    }
    await check(conn)
    await done(conn, 2)
    await resolve(conn, made, "join")
    (joined,) = await claim(conn)
    assert joined["given"]["inputs"] == {"each": [{}, {}]}
    await check(conn)


async def test_a_job_has_at_most_100_000_tasks(conn: Connection):
    await node(conn)
    made = await submit(conn, *fan())
    await done(conn)
    async with conn.transaction():
        await conn.execute("SET LOCAL session_replication_role = replica")
        await conn.execute("UPDATE jobs SET task_count = 99999 WHERE id = $1", made)
    answer = await fan_out(conn, made, "each", 1, 2)
    assert (answer["answer"], answer["reason"]) == ("refused", "too_many_tasks")
    assert await to_resolve(conn) == ["each"]


# Multiplied again


async def ended(conn: Connection, *items: Any) -> UUID:
    made = await fanned(conn, *items, fields={"after_join": True})
    await done(conn, 10)
    await resolve(conn, made, "join")
    await done(conn)
    await done(conn)
    assert (await job(conn, made))["status"] == "done"
    return made


async def test_a_retry_with_a_longer_list_keeps_the_tasks_and_makes_the_missing_ones(conn: Connection):
    made = await ended(conn, "a", "b")
    assert (await retry(conn, made, "each"))["answer"] == ACCEPTED
    await check(conn)
    assert await claim(conn) == []
    assert await to_resolve(conn) == ["each"]
    await fan_out(conn, made, "each", "c", "d", "e")
    await check(conn)
    claimed = await started(conn, 10)
    assert [(one["task_key"], one["params"]["item"]) for one in claimed] == [
        ("each[0]", "c"),
        ("each[1]", "d"),
        ("each[2]", "e"),
    ]
    await finish(conn, *claimed)
    await resolve(conn, made, "join")
    await done(conn)
    await done(conn)
    assert (await job(conn, made))["status"] == "done"
    await check(conn)


async def test_a_retry_with_a_shorter_list_skips_what_has_no_item_any_more(conn: Connection):
    made = await ended(conn, "a", "b", "c")
    await retry(conn, made, "split")
    await done(conn)
    await fan_out(conn, made, "each", "d")
    await check(conn)
    assert {key: value for key, value in (await tasks(conn, made)).items() if "[" in key} == {
        "each[0]": "queued",
        "each[1]": "skipped",
        "each[2]": "skipped",
    }
    await done(conn, 10)
    await resolve(conn, made, "join")
    (joined,) = await started(conn)
    assert joined["given"]["inputs"] == {"each": [{}]}
    await finish(conn, joined)
    await done(conn)
    assert (await job(conn, made))["status"] == "done"
    await check(conn)

    # and back again: what had no item has one
    await retry(conn, made, "each")
    await check(conn)
    await fan_out(conn, made, "each", "e", "f")
    await check(conn)
    assert [one["task_key"] for one in await claim(conn, 10)] == ["each[0]", "each[1]"]


async def test_items_of_a_step_that_is_multiplied_again_wait_for_their_delays(conn: Connection):
    made = await ended(conn, "a", "b")
    await retry(conn, made, "each")
    await fan_out(conn, made, "each", "c", "d", "e", delays=[0, 60, 120])
    assert [one["task_key"] for one in await claim(conn, 10)] == ["each[0]"]
    await check(conn)
    await pass_time(conn, 61)
    assert [one["task_key"] for one in await claim(conn, 10)] == ["each[1]"]
    await check(conn)


async def test_an_error_while_it_is_multiplied_again_skips_what_it_was_and_a_retry_goes_on(conn: Connection):
    made = await ended(conn, "a", "b", "c")
    await retry(conn, made, "each")
    await fan_out(conn, made, "each", "d")
    await done(conn, 10)
    await resolve(conn, made, "join")
    await done(conn)
    await done(conn)
    await retry(conn, made, "each")
    await resolve(conn, made, "each", "error", reason="template_error", message="no such field")
    await check(conn)
    assert (await job(conn, made))["status"] == "error"
    await retry(conn, made)
    await check(conn)
    await fan_out(conn, made, "each", "e", "f", "g", "h")
    await check(conn)
    assert len(await started(conn, 10)) == 4
    await cancel(conn, made)
    await check(conn)
    await retry(conn, made)
    await check(conn)


async def test_a_cancelled_job_is_retried_where_it_stood(conn: Connection):
    made = await fanned(conn, "a", "b")
    await done(conn)
    await cancel(conn, made)
    await check(conn)
    await retry(conn, made)
    await check(conn)
    assert [one["task_key"] for one in await claim(conn, 10)] == ["each[1]"]


async def test_one_item_alone_is_redriven(conn: Connection):
    made = await fanned(conn, "a", "b")
    await fail(conn, (await started(conn, 2))[0], permanent=True)
    (letter,) = await dead_letters(conn, made)
    await conn.fetch("SELECT * FROM accs.redrive($1)", [letter["id"]])
    await check(conn)
    (again,) = await claim(conn, 10)
    assert (again["task_key"], again["params"]) == ("each[0]", {"item": "a"})
    await check(conn)


# Multiplied before, and not this time


async def test_a_condition_that_is_false_after_a_retry_skips_the_tasks_that_the_step_became_before(conn: Connection):
    made = await ended(conn, "a", "b")
    await retry(conn, made, "each")
    await resolve(conn, made, "each", "skip", reason="condition_false")
    await check(conn)
    assert await tasks(conn, made) == {
        "split": "done",
        "each": "skipped",
        "join": "queued",
        "last": "queued",
        "each[0]": "skipped",
        "each[1]": "skipped",
    }
    assert (await task(conn, made, "each[0]"))["error_code"] == "not_in_list"
    await resolve(conn, made, "join")
    (joined,) = await started(conn, 10)
    assert joined["given"]["inputs"] == {"each": {}}
    await finish(conn, joined)
    await done(conn)

    # and multiplied again the time after
    await retry(conn, made, "each")
    await check(conn)
    await fan_out(conn, made, "each", "c")
    await check(conn)
    await done(conn, 10)
    assert await to_resolve(conn) == ["join"]
    await check(conn)


async def test_a_step_that_is_skipped_by_hand_takes_the_tasks_along_that_it_became_before(conn: Connection):
    made = await ended(conn, "a", "b")
    await retry(conn, made, "split")
    await conn.fetch("SELECT * FROM accs.skip_tasks($1)", [(await task(conn, made, "each"))["id"]])
    await check(conn)
    await done(conn)
    assert await claim(conn, 10) == []
    assert await to_resolve(conn) == ["join"]
    await check(conn)


async def test_a_step_that_is_not_multiplied_any_more_runs_alone(conn: Connection):
    """Its workflow was rewritten between the two."""
    made = await ended(conn, "a", "b")
    await retry(conn, made, "each")
    await resolve(conn, made, "each", given={"with": {"n": 1}})
    await check(conn)
    (claimed,) = await started(conn, 10)
    assert claimed["task_key"] == "each"
    await finish(conn, claimed, results=[{"r": 1}])
    await resolve(conn, made, "join")
    (joined,) = await claim(conn)
    assert joined["given"]["inputs"] == {"each": {"r": 1}}
    await check(conn)


async def test_a_task_without_an_item_is_no_step_to_retry_from(conn: Connection):
    made = await ended(conn, "a", "b")
    await retry(conn, made, "each")
    await fan_out(conn, made, "each", None)
    await resolve(conn, made, "join")
    await done(conn)
    await done(conn)
    assert (await job(conn, made))["status"] == "done"
    for without_item in ("each[0]", "each[1]"):
        assert (await retry(conn, made, without_item))["reason"] == "step_not_found"
    await check(conn)


# Tolerated, and redriven


async def test_a_tolerated_failure_is_redriven_when_what_is_below_has_ended_and_that_runs_again(conn: Connection):
    made = await fanned(conn, "a", "b", tolerate=1)
    a, b = await started(conn, 2)
    await fail(conn, a, permanent=True)
    (letter,) = await dead_letters(conn, made)
    (answer,) = await conn.fetch("SELECT * FROM accs.redrive($1)", [letter["id"]])
    assert (answer["answer"], answer["reason"]) == ("refused", "not_in_expected_state")
    await check(conn)

    await finish(conn, b)
    await resolve(conn, made, "join")
    await done(conn)
    assert (await job(conn, made))["status"] == "done"
    (answer,) = await conn.fetch("SELECT * FROM accs.redrive($1)", [letter["id"]])
    assert answer["answer"] == ACCEPTED
    await check(conn)
    assert [one["task_key"] for one in await started(conn, 10)] == ["each[0]"]
    assert (await task(conn, made, "join"))["status"] == "queued"
    await check(conn)


# Said wrongly


async def test_of_several_verdicts_on_one_task_the_first_of_its_generation_counts(conn: Connection):
    made = await submit(conn, step("a", **{"if": "x"}, max_attempts=1))
    old = await verdict_on(conn, made, "a", "skip", reason="condition_false")
    await resolve(conn, made, "a", "error", reason="template_error", message="no")
    await retry(conn, made)
    said = [old, await verdict_on(conn, made, "a", "run"), await verdict_on(conn, made, "a", "skip")]
    rows = await conn.fetch("SELECT * FROM accs.resolve_tasks($1)", said)
    assert [(row["answer"], row["reason"]) for row in rows] == [
        ("refused", "stale_generation"),
        (ACCEPTED, None),
        (ACCEPTED, None),
    ]
    row = await task(conn, made)
    assert (row["status"], row["resolve"]) == ("queued", False)
    await check(conn)


@pytest.mark.parametrize(
    "said",
    [
        {"verdict": "jump"},
        {"verdict": None},
        {"verdict": "run", "given": 5},
        {"verdict": "run", "given": [{"with": {}}]},
        {"verdict": "run", "given": {"with": "text"}},
        {"verdict": "skip", "reason": "upstream_failed"},
        {"verdict": "done", "results": {"x": "y" * 300_000}},
    ],
)
async def test_a_verdict_that_says_nothing_is_an_error_and_changes_nothing(conn: Connection, said: dict[str, Any]):
    made = await submit(conn, step("a", **{"if": "x"}))
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await resolve(conn, made, "a", **said)
    assert await to_resolve(conn) == ["a"]


@pytest.mark.parametrize("options", [{"parallel": 0}, {"parallel": -1}, {"tolerate": -1}])
async def test_a_fan_out_with_impossible_bounds_is_an_error_and_changes_nothing(
    conn: Connection, options: dict[str, Any]
):
    await node(conn)
    made = await submit(conn, *fan())
    await done(conn)
    with pytest.raises(asyncpg.InvalidParameterValueError):
        await fan_out(conn, made, "each", 1, **options)
    assert await to_resolve(conn) == ["each"]
    await check(conn)


# Large


async def test_results_that_are_too_large_together_are_left_out_and_the_join_goes_on(conn: Connection):
    """Small where they are stored, since PostgreSQL compresses them; together more than one value can be."""
    await node(conn)
    made = await submit(conn, *fan())
    await done(conn)
    await fan_out(conn, made, "each", *range(1100))
    async with conn.transaction():
        await conn.execute("SET LOCAL session_replication_role = replica")
        await conn.execute(
            "UPDATE job_tasks SET results = jsonb_build_object('x', repeat('y', 260000)) WHERE parent IS NOT NULL"
        )
    claimed = await started(conn, 1100)
    await conn.fetch(
        "SELECT * FROM accs.finish_tasks($1, $2, $3)",
        [one["task_id"] for one in claimed],
        [one["attempt_id"] for one in claimed],
        OWNER,
    )
    (found,) = await conn.fetch("SELECT * FROM accs.step_results($1, ARRAY['each'])", [made])
    assert (found["status"], found["results"], found["size"]) == ("done", None, None)
    await resolve(conn, made, "join")
    (joined,) = await claim(conn)
    assert joined["given"] == {"omitted": ["each"], "inputs": {}}


async def test_an_item_is_handed_no_large_results_so_that_the_cost_of_a_list_is_not_its_square(conn: Connection):
    """Repeated texts, which PostgreSQL keeps in less than 4 KiB."""
    await node(conn)
    each = step("each", after=["small", "split"], for_each="${steps.split.parts}", backoff=[1])
    made = await submit(conn, step("small"), step("split"), each, step("join", after=["each", "split"]))
    large = {"parts": ["part"] * 2000}
    by_key = {one["task_key"]: one for one in await started(conn, 2)}
    await finish(conn, by_key["small"], by_key["split"], results=[{"n": 1}, large])
    assert await conn.fetchval("SELECT pg_column_size(results) FROM job_tasks WHERE task_key = 'split'") < 4096
    await fan_out(conn, made, "each", *range(200))
    items = await started(conn, 200)
    assert {one["given"]["with"]["item"] for one in items} == set(range(200))
    for one in items:
        assert one["given"]["omitted"] == ["split"]
        assert one["given"]["inputs"] == {"small": {"n": 1}, "each": {"count": 200}}
    written = await conn.fetchval("SELECT sum(octet_length(given::text)) FROM job_tasks WHERE parent IS NOT NULL")
    assert written < 200 * 200

    await fail(conn, items[0])
    await pass_time(conn, 2)
    (again,) = await started(conn)
    assert again["given"] == items[0]["given"]
    await finish(conn, again, *items[1:])
    await resolve(conn, made, "join")
    (joined,) = await claim(conn)
    assert joined["given"]["inputs"]["split"] == large, "who is one task is handed it"
    assert "omitted" not in joined["given"]
    await check(conn)


async def test_an_item_of_a_list_that_has_become_short_is_handed_it(conn: Connection):
    await node(conn)
    made = await submit(conn, *fan())
    for parts in (["x" * 100] * 50, ["x"] * 50):
        (split,) = await started(conn)
        await finish(conn, split, results=[{"parts": parts}])
        await fan_out(conn, made, "each", "a")
        (item,) = await started(conn)
        assert item["given"].get("omitted") == (["split"] if len(parts[0]) > 1 else None)
        assert item["given"]["inputs"].get("split") == (None if len(parts[0]) > 1 else {"parts": parts})
        await finish(conn, item)
        await resolve(conn, made, "join")
        await done(conn)
        await retry(conn, made, "split")


# Damage


async def test_damage_to_a_join_and_to_a_hold_is_seen_and_mended(conn: Connection):
    made = await fanned(conn, "a", "b")
    join = (await task(conn, made, "join"))["id"]
    async with conn.transaction():
        await conn.execute("SET LOCAL session_replication_role = replica")
        await conn.execute("UPDATE job_tasks SET remaining = 1 WHERE id = $1", join)
    assert [row["what"] for row in await conn.fetch("SELECT * FROM accs.damage")] == ["remaining"]
    await conn.fetch("SELECT * FROM accs.repair()")
    assert (await task(conn, made, "join"))["remaining"] == 2
    await done(conn, 2)
    await conn.execute("UPDATE accs.waiting SET hold = NULL WHERE task_id = $1", join)
    assert [row["what"] for row in await conn.fetch("SELECT * FROM accs.damage")] == ["waiting_row"]
    await conn.fetch("SELECT * FROM accs.repair()")
    assert await to_resolve(conn) == ["join"]
    await check(conn)
