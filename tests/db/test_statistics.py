"""count_events and forget_statistics: what has happened is counted once, whoever counts and however late it commits."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.factory import (
    claim,
    done,
    fail,
    finish,
    node,
    pass_time,
    release,
    start,
    started,
    step,
    stop_clock,
    submit,
    submit_to,
    workflow,
)

LONG = timedelta(hours=1)


@pytest.fixture(autouse=True)
async def still(conn: Connection) -> None:
    await stop_clock(conn)


async def count(conn: Connection, limit: int = 5000) -> tuple[int, bool]:
    row = await conn.fetchrow("SELECT * FROM accs.count_events($1)", limit)
    assert row is not None
    return row["events"], row["more"]


async def totals(conn: Connection) -> dict[str, Any]:
    row = await conn.fetchrow(
        """SELECT coalesce(sum(done), 0)::int AS done, coalesce(sum(error), 0)::int AS error,
                  coalesce(sum(retried), 0)::int AS retried, coalesce(sum(lost), 0)::int AS lost,
                  round(coalesce(sum(wait_s), 0)) AS wait, round(coalesce(sum(run_s), 0)) AS run FROM accs.outcomes"""
    )
    assert row is not None
    return {name: value for name, value in row.items() if value}


async def gaps(conn: Connection) -> int:
    return await conn.fetchval("SELECT count(*) FROM accs.event_gaps")


# Outcomes


async def test_each_end_of_an_attempt_is_counted_by_its_kind_with_its_times(conn: Connection):
    await node(conn)
    await submit(conn, step("a", max_attempts=2, backoff=[15]))
    await pass_time(conn, 30)
    (first,) = await claim(conn, lease=LONG)
    await pass_time(conn, 2)
    await start(conn, first)
    await pass_time(conn, 100)
    await fail(conn, first)
    await count(conn)
    assert await totals(conn) == {"retried": 1, "wait": 30, "run": 100}
    await pass_time(conn, 20)
    (second,) = await started(conn, lease=LONG)
    await pass_time(conn, 200)
    await count(conn)
    assert (await totals(conn))["run"] == 100, "it runs"
    await finish(conn, second)
    await count(conn)
    assert await totals(conn) == {"retried": 1, "done": 1, "wait": 35, "run": 300}


async def test_done_error_lost_and_released_are_told_apart(conn: Connection):
    await node(conn)
    for key in ("done", "dead", "lost", "back"):
        await submit(conn, step(key, max_attempts=1))
    good, bad, lost, back = await started(conn, 4)
    await pass_time(conn, 10)
    await finish(conn, good)
    await fail(conn, bad)
    await release(conn, back)
    await pass_time(conn, 60)
    assert len(await conn.fetch("SELECT * FROM accs.reclaim_tasks()")) == 1, lost["task_key"]
    await count(conn)
    assert await totals(conn) == {"done": 1, "error": 1, "lost": 1, "run": 20}


async def test_a_wait_begins_when_the_last_dependency_has_ended(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"), step("c", after="a b"))
    a, b = await started(conn, 2)
    await pass_time(conn, 5)
    await finish(conn, a)
    await pass_time(conn, 20)
    await finish(conn, b)
    await pass_time(conn, 7)
    await done(conn)
    await count(conn)
    assert await totals(conn) == {"done": 3, "run": 30, "wait": 7}


async def test_an_attempt_that_was_followed_by_another_before_the_pass_keeps_its_times(conn: Connection):
    await node(conn)
    await submit(conn, step("a", max_attempts=3, backoff=[1]))
    (first,) = await started(conn)
    await pass_time(conn, 50)
    await fail(conn, first)
    await pass_time(conn, 2)
    (second,) = await started(conn)
    await pass_time(conn, 10)
    await finish(conn, second)
    await count(conn)
    assert await totals(conn) == {"retried": 1, "done": 1, "run": 60, "wait": 1}


async def test_a_second_run_of_a_job_does_not_wait_since_the_first(conn: Connection):
    await node(conn)
    job = await submit(conn, step("a", max_attempts=1))
    await fail(conn, *await started(conn))
    await pass_time(conn, 86_400)
    await conn.execute("SELECT * FROM accs.retry_jobs($1)", [job])
    await pass_time(conn, 3)
    await done(conn)
    await count(conn)
    assert await totals(conn) == {"error": 1, "done": 1, "wait": 3}


async def test_what_a_resolver_ends_is_nobodys_attempt(conn: Connection):
    job = await submit(conn, step("a", **{"if": "true"}))
    await conn.execute(
        "SELECT * FROM accs.resolve_tasks($1)",
        [{"task_id": str(await _task(conn, job)), "generation": 0, "verdict": "done", "results": {}}],
    )
    assert (await count(conn))[0] > 0
    assert await totals(conn) == {}


async def _task(conn: Connection, job: UUID) -> UUID:
    return await conn.fetchval("SELECT id FROM job_tasks WHERE job_id = $1", job)


# Once


async def test_nothing_is_counted_twice_and_a_long_history_takes_several_passes(conn: Connection):
    await node(conn)
    which = await workflow(conn, step("a"))
    for _ in range(10):
        await submit_to(conn, which)
    await done(conn, 10)
    events = await conn.fetchval("SELECT count(*) FROM task_events")
    passes = [await count(conn, 15) for _ in range(-(-events // 15))]
    assert sum(read for read, _ in passes) == events
    assert [more for _, more in passes] == [True] * (len(passes) - 1) + [False]
    assert await totals(conn) == {"done": 10}
    assert await count(conn) == (0, False)
    assert await totals(conn) == {"done": 10}


async def test_an_event_that_commits_late_is_counted_when_it_does(conn: Connection, connect: Connect):
    """Its id is lower than one that was counted before."""
    await node(conn)
    for _ in range(2):
        await submit(conn, step("a"))
    slow, quick = await started(conn, 2)
    await count(conn)
    late = await connect()
    transaction = late.transaction()
    await transaction.start()
    await finish(late, slow)
    await finish(conn, quick)
    await count(conn)
    assert await totals(conn) == {"done": 1}
    assert await gaps(conn) == 1
    await pass_time(conn, 900)
    await count(conn)
    await count(conn)
    assert await gaps(conn) == 1, "its transaction is still under way"
    await transaction.commit()
    await count(conn)
    await count(conn)
    assert (await totals(conn))["done"] == 2
    assert await gaps(conn) == 0


async def test_ids_that_were_rolled_back_are_given_up(conn: Connection):
    await node(conn)
    await submit(conn, step("a"))
    (task,) = await started(conn, lease=LONG)
    transaction = conn.transaction()
    await transaction.start()
    await finish(conn, task)
    await transaction.rollback()
    await count(conn)
    assert await gaps(conn) == 1
    await pass_time(conn, 30)
    await count(conn)
    assert await gaps(conn) == 1, "its owner might not have begun to write"
    await pass_time(conn, 40)
    await count(conn)
    assert await gaps(conn) == 0
    await finish(conn, task)
    await count(conn)
    assert (await totals(conn))["done"] == 1


async def test_of_two_builders_at_once_one_counts_and_the_other_does_not_wait(conn: Connection, connect: Connect):
    await node(conn)
    await submit(conn, step("a"))
    await done(conn)
    other = await connect()
    async with other.transaction():
        assert (await count(other))[0] > 0
        assert await asyncio.wait_for(count(conn), 5) == (0, False)
        assert await asyncio.wait_for(conn.fetchval("SELECT accs.forget_statistics()"), 5) == 0
    assert await count(conn) == (0, False)
    assert await totals(conn) == {"done": 1}


async def test_a_pass_that_is_killed_is_made_again(conn: Connection, connect: Connect):
    await node(conn)
    await submit(conn, step("a"))
    await done(conn)
    other = await connect()
    transaction = other.transaction()
    await transaction.start()
    await count(other)
    await transaction.rollback()
    await count(conn)
    assert await totals(conn) == {"done": 1}


# Steps


async def test_steps_are_known_by_their_last_runs_in_all_versions_of_a_workflow(conn: Connection):
    await node(conn)
    for version in (1, 2):
        which = await workflow(conn, step("a"), name="clip", version=version)
        for seconds in (10, 20, 30):
            await submit_to(conn, which)
            (task,) = await started(conn)
            await pass_time(conn, seconds)
            await finish(conn, task)
    await count(conn)
    [found] = await conn.fetch("SELECT * FROM accs.step_stats")
    assert (found["workflow"], found["task_key"], found["n"]) == ("clip", "a", 6)
    assert (round(found["p50"]), round(found["p95"]), round(found["wait_p50"])) == (20, 30, 0)
    assert [round(seconds) for seconds in found["runs"]] == [30, 20, 10, 30, 20, 10], "the newest first"


async def test_a_failed_attempt_says_nothing_of_how_long_a_step_takes(conn: Connection):
    await node(conn)
    await submit(conn, step("a", max_attempts=1))
    await fail(conn, *await started(conn))
    await count(conn)
    assert await conn.fetch("SELECT FROM accs.step_stats") == []


# Samples


async def sampled(conn: Connection) -> list[tuple[str, int, int]]:
    rows = await conn.fetch("SELECT service, live, slots FROM accs.samples ORDER BY ts, service")
    return [(row["service"], row["live"], row["slots"]) for row in rows]


async def test_a_sample_is_taken_once_a_minute_where_something_has_changed(conn: Connection):
    await node(conn, render=2, audio=1)
    await submit(conn, step("a"))
    await count(conn)
    assert await sampled(conn) == [("audio", 0, 1), ("render", 0, 2)]
    (task,) = await started(conn)
    await count(conn)
    assert len(await sampled(conn)) == 2, "the minute is not over"
    for _ in range(3):
        await pass_time(conn, 58)
        await conn.execute("SELECT FROM accs.heartbeat('n1', 'owner-1', $1, $2, '2 min')", [task["task_id"]], [1])
        await count(conn)
    assert (await sampled(conn))[2:] == [("render", 1, 2)]
    await conn.execute("SELECT FROM accs.register_node('n1', '{}', '{\"render\": 3}')")
    await finish(conn, task)
    await pass_time(conn, 60)
    await count(conn)
    assert (await sampled(conn))[3:] == [("audio", 0, 0), ("render", 0, 3)]
    await pass_time(conn, 600)
    await count(conn)
    assert (await sampled(conn))[5:] == [("render", 0, 0)], "it is away"


async def test_what_is_no_machine_is_not_sampled(conn: Connection):
    await node(conn, "control/h", {"accs.kind": "control"}, accs=4)
    await count(conn)
    assert await sampled(conn) == []


# What is old


async def test_old_minutes_become_quarters_of_an_hour_and_the_oldest_are_forgotten(conn: Connection):
    await conn.execute(
        """INSERT INTO accs.outcomes (minute, service, done, run_s)
           SELECT date_bin('15 min', accs.clock(), '2000-01-01Z') - s.age + m.n * interval '1 min', 'render', 1, 2.5
             FROM (VALUES (interval '20 days'), ('1 day'), ('401 days')) AS s (age), generate_series(0, 29) AS m (n)"""
    )
    await conn.execute("SELECT accs.forget_statistics()")
    found = await conn.fetch(
        "SELECT seconds, count(*) AS n, sum(done) AS done, sum(run_s) AS run FROM accs.outcomes GROUP BY 1 ORDER BY 1"
    )
    assert [tuple(row) for row in found] == [(60, 30, 30, 75.0), (900, 2, 30, 75.0)]
    assert await conn.fetchval("SELECT accs.forget_statistics()") == 0, "once an hour is enough"


async def test_of_old_samples_the_last_of_each_quarter_is_kept(conn: Connection):
    await node(conn)
    await conn.execute(
        """INSERT INTO accs.samples (ts, node, service, live, slots)
           SELECT date_bin('15 min', accs.clock(), '2000-01-01Z') - s.age + m.n * interval '1 min', 'n1', 'render',
                  m.n, 9
             FROM (VALUES (interval '20 days'), ('1 day'), ('401 days')) AS s (age), generate_series(0, 29) AS m (n)"""
    )
    await conn.execute("SELECT accs.forget_statistics()")
    found = [row["live"] for row in await conn.fetch("SELECT live FROM accs.samples ORDER BY ts")]
    assert found == [29, 14, 29, *range(30)], "of the forgotten ones the last, to know how it stood"
