"""What wants nodes soon, which nodes there are, and the record of tries (A13, tick 2; A18)."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import orjson
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accsd.planning.waking import has_labels
from tests.support.checker import check
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

AHEAD = timedelta(minutes=5)
RETRY = timedelta(minutes=2)


async def demand(conn: Connection, ahead: timedelta = AHEAD) -> list[Row]:
    return await conn.fetch("SELECT * FROM accs.wake_demand($1) ORDER BY service, node, tasks", ahead)


async def wanted(conn: Connection, ahead: timedelta = AHEAD) -> list[tuple[Any, ...]]:
    return [(row["service"], row["requires"], row["node"], row["tasks"]) for row in await demand(conn, ahead)]


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
        " AND depends_on = '{}' LIMIT 1000"
    )

    assert any("steps_roots" in row[0] for row in plan)
    assert await wanted(conn) == [("render", {}, None, 1)]


async def test_its_plan_is_pinned_like_a_claims(conn: Connection):
    """With 50,000 tasks waiting, after an ANALYZE: 15 ms; without the pins up to 5 s on PostgreSQL 15."""
    query = "SELECT proconfig FROM pg_proc WHERE oid = $1::text::regproc"

    assert await conn.fetchval(query, "accs.wake_demand") == await conn.fetchval(query, "accs.claim_tasks")


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
    assert three["tried_ago"] is None


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


# The tries


async def claim_wake(conn: Connection, try_id: UUID, name: str = "n1") -> str:
    return await conn.fetchval("SELECT accs.claim_wake($1, $2, $3)", name, try_id, RETRY)


async def record_wake(conn: Connection, try_id: UUID, job: UUID, *, ok: bool = True) -> str:
    return await conn.fetchval("SELECT accs.record_wake('n1', $1, $2, $3, 'said', $4)", try_id, ok, job, {"node": "n1"})


async def tried(conn: Connection) -> tuple[Any, ...]:
    row = await conn.fetchrow("SELECT tried_ok, tries FROM accs.wake_nodes() WHERE name = 'n1'")
    assert row is not None
    return tuple(row)


async def test_a_node_is_tried_once_in_the_retry_time(conn: Connection):
    await node(conn)
    first = uuid4()

    assert await claim_wake(conn, first) == "accepted"
    assert await claim_wake(conn, first) == "repeated", "the answer was lost, and it is asked again"
    assert await claim_wake(conn, uuid4()) == "refused"
    await pass_time(conn, 119)
    assert await claim_wake(conn, uuid4()) == "refused"
    await pass_time(conn, 2)
    assert await claim_wake(conn, uuid4()) == "accepted"
    assert await claim_wake(conn, uuid4(), "nobody") == "refused"


async def test_tries_are_counted_until_the_node_is_seen_again(conn: Connection):
    await node(conn)
    for expected in (1, 2, 3):
        await pass_time(conn, 121)
        await claim_wake(conn, uuid4())
        assert await tried(conn) == (None, expected)
    await pass_time(conn, 30)
    await node(conn)
    await pass_time(conn, 121)
    await claim_wake(conn, uuid4())
    assert await tried(conn) == (None, 1)


async def test_the_end_of_a_try_is_an_event_of_the_job_once(conn: Connection):
    await node(conn)
    job = await submit(conn)
    good, bad = uuid4(), uuid4()
    await claim_wake(conn, good)

    assert await record_wake(conn, good, job) == "accepted"
    assert await record_wake(conn, good, job) == "repeated"
    assert await tried(conn) == (True, 1)
    await pass_time(conn, 121)
    await claim_wake(conn, bad)
    assert await record_wake(conn, bad, job, ok=False) == "accepted"
    assert await tried(conn) == (False, 2)

    rows = await conn.fetch("SELECT source, level, message, data FROM task_events WHERE type = 'wake' ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ("builder", "info", "said", {"node": "n1"}),
        ("builder", "warn", "said", {"node": "n1"}),
    ]
    await check(conn)


async def test_a_try_that_was_overtaken_is_history_and_changes_nothing(conn: Connection):
    await node(conn)
    job = await submit(conn)
    slow, fast = uuid4(), uuid4()
    await claim_wake(conn, slow)
    await pass_time(conn, 121)
    await claim_wake(conn, fast)

    assert await record_wake(conn, slow, job, ok=False) == "accepted"
    assert await tried(conn) == (None, 2)


async def test_a_node_that_is_removed_takes_its_tries_with_it(conn: Connection):
    await node(conn)
    await claim_wake(conn, uuid4())
    await conn.execute("DELETE FROM nodes")

    assert await conn.fetchval("SELECT count(*) FROM accs.wake_tries") == 0
