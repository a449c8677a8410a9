"""The role that settles events, on a real database: expressions are evaluated, and accsd's own events are told."""

from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from accsd.builder.events import Evaluator
from accsd.db import Database, Verdict, emit_event
from accsd.db.topics import events
from accsd.metrics import Metrics
from tests.support.cluster import Connection
from tests.support.factory import done, node, pass_time, step, workflow
from tests.support.library import opened
from tests.support.schedules import all_roles, call, jobs_of, ledger, row, told


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def listen(conn: Connection, topic: str, **columns: Any) -> UUID:
    given = {"name": "s", "schedule_kind": "event", "schedule_expr": topic, "workflow": "w", "overlap": "allow"}
    given |= columns
    await workflow(conn, name="w", version=await conn.fetchval("SELECT count(*) + 1 FROM workflows"))
    places = ", ".join(f"${i + 1}" for i in range(len(given)))
    return await conn.fetchval(
        f"INSERT INTO schedules ({', '.join(given)}) VALUES ({places}) RETURNING id", *given.values()
    )


async def test_a_filter_lets_through_and_options_are_filled_in(db: Database, conn: Connection):
    """EV4, EV10: whole values keep their types."""
    options = {"order": "${event.payload.order}", "say": "order ${event.payload.order.n} of ${event.topic}", "x": 1}
    which = await listen(conn, "shop.*", filter="event.payload.order.n > 2 && event.source == 'shop'", options=options)
    await all_roles(db)
    for n in (1, 3):
        await emit_event(db, "shop.order", {"order": {"n": n}}, source="shop")
    await all_roles(db)
    [job] = await jobs_of(conn, which)
    assert job["options"] == {"order": {"n": 3}, "say": "order 3 of shop.order", "x": 1}
    assert await conn.fetchval("SELECT filtered FROM accs.event_tallies") == 1
    assert await told(conn, which) == [("fired", "event")]


async def test_an_expression_that_fails_is_told_and_starts_nothing(db: Database, conn: Connection):
    """EV4, EV10: with the path of the option."""
    filtered = await listen(conn, "a", filter="event.payload.n > 2", name="filtered")
    mapped = await listen(conn, "a", options={"deep": ["${event.payload.n}"]}, name="mapped")
    await emit_event(db, "a", {"m": 1})
    await all_roles(db)
    [row_of_filter], [row_of_mapping] = await ledger(conn, filtered), await ledger(conn, mapped)
    assert (row_of_filter["outcome"], row_of_filter["reason"]) == ("skipped", "filter_error")
    assert "there is no event.payload.n" in row_of_filter["detail"]["problem"]
    assert (row_of_mapping["outcome"], row_of_mapping["reason"]) == ("skipped", "refused")
    assert "options" in row_of_mapping["detail"]["problem"]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"schedule_expr": "a.*.b"}, "no topic to listen to"),
        ({"filter": "event.payload. > 1"}, "filter"),
        ({"filter": "evnt.topic == 'a'"}, "event"),
        ({"filter": "'text'"}, "true or false"),
        ({"gather": {"quite": "10s"}}, "quite"),
        ({"gather": {"by": "event.key"}}, "when it ends"),
        ({"gather": {"quiet": "soon"}}, "gather.quiet"),
        ({"gather": {"size": 0}}, "gather.size"),
        ({"gather": {"size": 2, "by": "event."}}, "gather.by"),
        ({"options": {"a": "${event.}"}}, "options.a"),
    ],
)
async def test_what_can_not_work_is_broken_with_the_reason(
    db: Database, conn: Connection, columns: dict[str, Any], said: str
):
    """EV3, SQ10."""
    which = await listen(conn, columns.pop("schedule_expr", "a"), **columns)
    await all_roles(db)
    found = await row(conn, which)
    assert found["state"] == "broken"
    assert said in found["state_reason"]
    assert await conn.fetch("SELECT * FROM accs.agenda") == []


async def test_a_filter_that_is_mended_goes_on(db: Database, conn: Connection):
    which = await listen(conn, "a", filter="(")
    await all_roles(db)
    await emit_event(db, "a")
    await all_roles(db)
    await conn.execute("UPDATE schedules SET filter = 'true' WHERE id = $1", which)
    await all_roles(db)
    assert (await row(conn, which))["state"] == "active"
    await emit_event(db, "a")
    await all_roles(db)
    assert [outcome for outcome, _ in await told(conn, which)] == ["skipped", "fired"]


async def test_events_are_gathered_by_an_expression(db: Database, conn: Connection):
    """EV8."""
    which = await listen(conn, "a", gather={"by": "event.payload.user", "quiet": "10s"})
    for user in ("x", "y", "x", "z" * 300, "z" * 300):
        await emit_event(db, "a", {"user": user})
    await all_roles(db)
    assert await jobs_of(conn, which) == []
    await pass_time(conn, 11)
    await all_roles(db)
    assert sorted(job["trigger"]["gathered"]["count"] for job in await jobs_of(conn, which)) == [1, 2, 2]


async def test_a_workflow_follows_another_by_itself(db: Database, conn: Connection):
    """EV12: the machinery is switched on by the role."""
    await node(conn)
    which = await listen(
        conn, "accs.job.*", filter="event.payload.workflow == 'first'", options={"n": "${event.payload.results.a.n}"}
    )
    await all_roles(db)
    await workflow(conn, step("a"), name="first")
    await conn.fetchval("SELECT accs.submit('first')")
    [claimed] = await conn.fetch("SELECT * FROM accs.claim_tasks('render', 'n1', 'n1', 1, '1 min', true)")
    await conn.fetch(
        "SELECT * FROM accs.finish_tasks($1, $2, 'n1', '{done}', $3)",
        [claimed["task_id"]],
        [claimed["attempt_id"]],
        [{"n": 5}],
    )
    await all_roles(db)
    assert [job["options"] for job in await jobs_of(conn, which)] == [{"n": 5}]
    await done(conn)
    await all_roles(db)
    assert await told(conn, which) == [("fired", "event")]  # its own end is filtered out
    await call(conn, "end_schedule", "s")
    await all_roles(db)
    assert await conn.fetchval("SELECT tgenabled FROM pg_trigger WHERE tgname = 'emit_outcome'") == b"D"


async def test_while_all_are_held_the_role_says_so_and_events_wait(db: Database, conn: Connection):
    """EV13, PA4."""
    which = await listen(conn, "a")
    await all_roles(db)
    await conn.fetchval("SELECT accs.hold_schedules('a fire', 'ops')")
    await emit_event(db, "a")
    passed = await Evaluator(db, node="n1", metrics=Metrics()).run_once()
    assert passed.obstacle == "all schedules are held: a fire, by ops"
    await conn.fetchval("SELECT accs.hold_schedules(p_lift => true)")
    await all_roles(db)
    assert await told(conn, which) == [("fired", "event")]


async def test_a_schedule_that_is_locked_does_not_stop_the_others(db: Database, conn: Connection, connect: Any):
    stuck = await listen(conn, "a", filter="true", name="stuck")
    free = await listen(conn, "a", filter="true", name="free")
    await all_roles(db)
    other = await connect()
    evaluator = Evaluator(db, node="n1", metrics=Metrics())
    async with other.transaction():
        await other.execute("SELECT FROM schedules WHERE id = $1 FOR UPDATE", stuck)
        for _ in range(3):
            await emit_event(db, "a")
            await evaluator.run_once()
        passed = await evaluator.run_once()
        assert passed.next_due == timedelta(milliseconds=50)
    assert await told(conn, free) == [("fired", "event")] * 3
    assert await told(conn, stuck) == []
    await all_roles(db)
    assert await told(conn, stuck) == [("fired", "event")] * 3


async def test_the_list_says_what_each_event_caused(db: Database, conn: Connection):
    """EV14."""
    await listen(conn, "a.b", gather={"quiet": "10s"})
    await all_roles(db)
    first = await emit_event(db, "a.b", {"n": 1}, key="k")
    again = await emit_event(db, "a.b", {"n": 1}, key="k")
    assert (again.event_id, again.verdict) == (first.event_id, Verdict.REPEATED)
    await emit_event(db, "c")
    [other, found] = await events(db)
    assert (other.topic, found.topic, found.caused[0].outcome) == ("c", "a.b", "waiting")
    await all_roles(db)
    [found] = await events(db, pattern="a.*")
    assert found.caused[0].outcome == "gathering"
    await pass_time(conn, 11)
    await all_roles(db)
    [found] = await events(db, pattern="a.**")
    [job] = await conn.fetch("SELECT id FROM jobs")
    assert [(each.schedule, each.outcome, each.job_id) for each in found.caused] == [("s", "merged", job["id"])]
    assert [each.topic for each in await events(db, after=first.event_id)] == ["c"]
    assert await events(db, pattern="a") == []
