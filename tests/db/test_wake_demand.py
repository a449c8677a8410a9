"""What wants nodes soon, and which nodes there are (A13, tick 2); tests/db/test_wake.py has the calls."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accsd.values.labels import has_labels
from tests.support.cluster import Connection
from tests.support.factory import (
    Row,
    cancel,
    claim,
    clock,
    fail,
    node,
    pass_time,
    started,
    step,
    submit,
    submit_to,
    workflow,
)
from tests.support.schedules import schedule

AHEAD = timedelta(minutes=5)


async def demand(conn: Connection, ahead: timedelta = AHEAD) -> list[Row]:
    return await conn.fetch("SELECT * FROM accs.wake_demand($1) ORDER BY service, node, tasks", ahead)


async def wanted(conn: Connection, ahead: timedelta = AHEAD) -> list[tuple[Any, ...]]:
    """Whenever it is due."""
    rows = await conn.fetch(
        "SELECT service, requires, node, sum(tasks) FROM accs.wake_demand($1) GROUP BY 1, 2, 3 ORDER BY 1, 3, 4", ahead
    )
    return [tuple(row) for row in rows]


async def later(conn: Connection, minutes: float, *steps: dict[str, Any]) -> UUID:
    return await submit(conn, *steps, scheduled_at=await clock(conn) + timedelta(minutes=minutes))


# What wants nodes


async def test_nothing_waits_so_nothing_is_wanted(conn: Connection):
    assert await demand(conn) == []


async def test_claimable_tasks_are_counted_by_service_labels_and_named_node(conn: Connection):
    steps = [step("a"), step("b"), step("c", requires={"gpu": True}), step("d", node="n7"), step("e", "audio")]
    job = await submit(conn, *steps, step("f", after="a"))

    assert await wanted(conn) == [
        ("audio", {}, None, 1),
        ("render", {}, "n7", 1),
        ("render", {"gpu": True}, None, 1),
        ("render", {}, None, 2),
    ]
    assert {(row["job_id"], row["due_in"]) for row in await demand(conn)} == {(job, timedelta(0))}


async def test_the_job_that_is_named_is_the_first_in_the_global_order(conn: Connection):
    flow = await workflow(conn)
    await submit_to(conn, flow)
    urgent = await submit_to(conn, flow, priority=5)

    assert [row["job_id"] for row in await demand(conn)] == [urgent]


async def test_a_job_due_within_five_minutes_wants_nodes_for_its_first_steps_and_one_due_in_six_does_not(
    conn: Connection,
):
    job = await later(conn, 4.9, step("a"), step("b"), step("c", after="a"))
    await later(conn, 6, step("a", "audio"))

    [row] = await demand(conn)
    assert (row["service"], row["tasks"], row["job_id"]) == ("render", 2, job)
    assert timedelta(minutes=4) < row["due_in"] < AHEAD

    await pass_time(conn, 90)
    assert [row["service"] for row in await demand(conn)] == ["audio", "render"]


async def test_what_is_due_at_different_times_is_told_apart_by_the_half_minute(conn: Connection):
    keyed = step("a", concurrency_key="disk", concurrency_limit=3)
    await submit(conn, keyed, step("b"))
    await later(conn, 1.9, step("a"))
    await later(conn, 1.8, step("a"))
    await later(conn, 4, *[{**keyed, "key": f"s{i}"} for i in range(3)])

    rows = await demand(conn)
    assert sorted((round(row["due_in"] / timedelta(minutes=1), 1), row["tasks"]) for row in rows) == [
        (0.0, 2),
        (1.8, 2),
        (4.0, 2),
    ], "of the three with a key one runs already by then"


async def test_a_plain_insert_that_no_builder_has_seen_yet_wants_its_nodes_too(conn: Connection):
    await conn.execute("INSERT INTO jobs (workflow_id) VALUES ($1)", await workflow(conn))

    assert await wanted(conn) == [("render", {}, None, 1)]
    assert [row["due_in"] for row in await demand(conn)] == [timedelta(0)]


async def test_what_runs_or_has_ended_wants_nothing_more(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b", after="a"))
    cancelled = await later(conn, 1, step("a"))
    await cancel(conn, cancelled)
    await started(conn)

    assert await demand(conn) == []


async def test_a_retry_counts_when_its_backoff_ends_within_the_time(conn: Connection):
    await node(conn)
    await submit(conn, step("a", backoff=[240, 400]))
    [task] = await started(conn)
    await fail(conn, task)

    assert await wanted(conn) == [("render", {}, None, 1)]
    assert await wanted(conn, timedelta(minutes=3)) == []
    await pass_time(conn, 241)
    assert await wanted(conn, timedelta(0)) == [("render", {}, None, 1)]


async def test_paused_services_and_workflows_want_nothing(conn: Connection):
    flow = await workflow(conn, step("a"), step("b", "audio", backoff=[60]), name="w")
    await submit_to(conn, flow)
    await submit_to(conn, flow, scheduled_at=await clock(conn) + timedelta(minutes=1))
    await node(conn)
    [task] = await started(conn, service="audio")
    await fail(conn, task)
    assert await wanted(conn) == [("audio", {}, None, 2), ("render", {}, None, 2)]

    await conn.execute("SELECT accs.pause('service', 'audio')")
    assert await wanted(conn) == [("render", {}, None, 2)]
    await conn.execute("SELECT accs.resume('service', 'audio'), accs.pause('workflow', 'w')")
    assert await wanted(conn) == []
    await conn.execute("SELECT accs.resume('workflow', 'w')")
    assert await wanted(conn) == [("audio", {}, None, 2), ("render", {}, None, 2)]


async def test_a_workflow_that_was_switched_off_wants_nothing(conn: Connection):
    await later(conn, 1, step("a"))
    await conn.execute("UPDATE workflows SET is_active = false")

    assert await demand(conn) == []


async def test_a_concurrency_key_wants_no_more_nodes_than_may_work_at_once(conn: Connection):
    keyed = [step(f"s{i}", concurrency_key="disk", concurrency_limit=2) for i in range(5)]
    await later(conn, 1, *keyed, step("free"))
    assert await wanted(conn) == [("render", {}, None, 3)]

    await submit(conn, *keyed)
    assert await wanted(conn) == [("render", {}, None, 3)]


async def test_a_large_queue_is_counted_up_to_a_bound(conn: Connection):
    await submit(conn, *[step(f"s{i}") for i in range(1500)])

    assert await wanted(conn) == [("render", {}, None, 1000)]


async def test_a_large_workflow_ahead_is_read_by_the_index_of_its_first_steps(conn: Connection):
    await later(conn, 1, step("a"), *[step(f"s{i}", after="a") for i in range(2000)])
    await conn.execute("ANALYZE accs.steps")
    plan = await conn.fetch(
        "EXPLAIN SELECT lane, concurrency_key FROM accs.steps WHERE workflow_id = (SELECT id FROM workflows)"
        " AND depends_on = '{}' AND resolve IS NULL LIMIT 1000"
    )

    assert any("steps_roots" in row[0] for row in plan)
    assert await wanted(conn) == [("render", {}, None, 1)]


async def test_its_plan_is_pinned_like_an_outlooks(conn: Connection):
    """With 50,000 tasks waiting, after an ANALYZE: 15 ms; without the pins up to 5 s on PostgreSQL 15."""
    query = "SELECT proconfig FROM pg_proc WHERE oid = $1::text::regproc"

    assert await conn.fetchval(query, "accs.wake_demand") == await conn.fetchval(query, "accs.agent_outlook")


# The nodes


async def test_the_nodes_come_with_their_ages_their_load_and_their_drains(conn: Connection):
    await node(conn, "n1", {"gpu": True}, render=2)
    await submit(conn, step("a"), step("b"), step("c", "audio"))
    await claim(conn, 2)
    await claim(conn, 1, "audio")
    await node(conn, "n2")
    await conn.execute("SELECT accs.pause('node', 'n2')")
    await conn.execute("INSERT INTO nodes (name, wake_method, mac) VALUES ('n3', 'wol', '52:54:00:12:34:56')")
    await pass_time(conn, 100)

    one, two, three = await conn.fetch("SELECT * FROM accs.wake_nodes()")
    assert (one["labels"], one["max_concurrency"], one["live"]) == (
        {"gpu": True},
        {"render": 2},
        {"audio": 1, "render": 2},
    )
    assert timedelta(seconds=100) <= one["unseen_for"] < timedelta(seconds=130)
    assert (one["is_drained"], two["is_drained"], two["live"]) == (False, True, {})
    assert (three["unseen_for"], three["wake_method"], three["awake_state"]) == (None, "wol", "unknown")
    assert (three["tried_ago"], three["power"], three["relays"]) == (None, "unknown", [])


labels = st.dictionaries(st.sampled_from("ab"), st.sampled_from([True, False, 0, 1, 1.0, 1.5, "1", "x", ""]))


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(labels, labels), max_size=20))
async def test_labels_are_compared_in_python_as_a_claim_compares_them(
    conn: Connection, pairs: list[tuple[dict[str, Any], dict[str, Any]]]
):
    rows = await conn.fetch(
        "SELECT required <@ labels FROM unnest($1::text[]::jsonb[], $2::text[]::jsonb[]) AS u (required, labels)",
        [orjson.dumps(required).decode() for required, _ in pairs],
        [orjson.dumps(has).decode() for _, has in pairs],
    )

    assert [has_labels(has, required) for required, has in pairs] == [row[0] for row in rows]


# What schedules will start


async def test_a_schedule_that_is_due_soon_wants_a_node_and_no_job_exists(conn: Connection):
    """WK1."""
    await workflow(conn, step("a", requires={"gpu": True}), step("b", after="a"), name="nightly")
    which = await schedule(conn, 240, name="nightly", workflow="nightly")
    (row,) = await demand(conn)
    assert (row["service"], row["requires"], row["tasks"]) == ("render", {"gpu": True}, 1)
    assert (row["job_id"], row["schedule"]) == (None, "nightly")
    assert timedelta(minutes=3) < row["due_in"] <= timedelta(minutes=4)
    assert await demand(conn, timedelta(minutes=1)) == []
    await conn.fetch("SELECT * FROM accs.pause_schedule($1)", str(which))
    assert await demand(conn) == []
    await conn.fetch("SELECT * FROM accs.resume_schedule($1)", str(which))
    assert len(await demand(conn)) == 1
    await conn.fetch("SELECT accs.hold_schedules()")
    assert await demand(conn) == []


async def test_an_occurrence_that_will_be_skipped_wakes_nobody(conn: Connection):
    which = await schedule(conn, 240)
    first = await conn.fetchval("SELECT nominals[1] FROM accs.plan_of WHERE schedule_id = $1", which)
    assert len(await demand(conn)) == 1
    await conn.fetch("SELECT * FROM accs.skip_occurrence($1, $2)", str(which), first)
    assert await demand(conn) == []


async def test_a_snoozed_occurrence_wakes_at_its_new_time(conn: Connection):
    which = await schedule(conn, 240)
    await conn.fetch("SELECT * FROM accs.snooze($1, '10 min')", str(which))
    assert await demand(conn) == []
    await pass_time(conn, 600)
    assert [row["schedule"] is not None for row in await demand(conn)] != []
