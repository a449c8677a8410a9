"""S4: how much waits, runs, has failed and is stuck, and what of schedules is amiss, in one cheap question."""

from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from tests.support.cluster import Connection
from tests.support.factory import Row, claim, done, fail, node, pass_time, started, step, submit, workflow
from tests.support.schedules import call, replan, schedule, settle_all

NOTHING = {
    "pending": 0,
    "running": 0,
    "failed": 0,
    "stuck_running": 0,
    "poller_running": False,
    "overdue": 0,
    "overdue_for": None,
    "unplanned": 0,
    "unplanned_for": None,
    "broken": 0,
    "hold": None,
}


async def health(conn: Connection, most: int = 10_000) -> Row:
    return await call(conn, "scheduler_health", most)


async def differs(conn: Connection) -> dict[str, Any]:
    """What is not as in an installation where nothing happens."""
    found = dict(await health(conn))
    assert found.keys() == NOTHING.keys()
    return {name: value for name, value in found.items() if value != NOTHING[name]}


async def test_jobs_tasks_and_due_times_are_pending_and_what_is_live_is_running(conn: Connection):
    assert await differs(conn) == {}
    await node(conn)
    await submit(conn, step("a"), step("b"), step("c", after="a"))
    assert await differs(conn) == {"pending": 2}
    await conn.execute("INSERT INTO jobs (workflow_id) SELECT id FROM workflows")
    assert await differs(conn) == {"pending": 3}
    await schedule(conn, 60)
    assert await differs(conn) == {"pending": 3}, "its time has not come"
    await pass_time(conn, 61)
    assert await differs(conn) == {"pending": 4}
    await claim(conn)
    assert await differs(conn) == {"pending": 3, "running": 1}


async def test_a_dead_letter_has_failed_until_somebody_deals_with_it(conn: Connection):
    await node(conn)
    await submit(conn, step("a", max_attempts=1))
    await fail(conn, *await started(conn))
    assert await differs(conn) == {"failed": 1}
    await conn.fetch("SELECT * FROM accs.dismiss(ARRAY(SELECT id FROM dead_letters))")
    assert await differs(conn) == {}


async def test_a_lease_that_is_over_and_a_run_of_more_than_ten_minutes_are_stuck(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"))
    await started(conn, lease=timedelta(hours=1))
    await pass_time(conn, 590)
    await started(conn, lease=timedelta(seconds=30))
    assert await differs(conn) == {"running": 2}
    await pass_time(conn, 11)
    assert await differs(conn) == {"running": 2, "stuck_running": 1}
    await pass_time(conn, 20)
    assert await differs(conn) == {"running": 2, "stuck_running": 2}


async def test_a_builder_is_there_for_a_minute_after_it_was_seen(conn: Connection):
    assert await conn.fetchval("SELECT accs.note_daemon('n1', '{builder}')") == "accepted"
    assert await conn.fetchval("SELECT accs.note_daemon('n1', '{builder}')") == "repeated"
    assert await differs(conn) == {"poller_running": True}
    await pass_time(conn, 59)
    assert await differs(conn) == {"poller_running": True}
    await pass_time(conn, 2)
    assert await differs(conn) == {}
    assert await conn.fetchval("SELECT accs.note_daemon('n1', '{builder}')") == "accepted"
    assert await differs(conn) == {"poller_running": True}


async def test_an_agent_is_no_builder_and_stands_beside_the_builder_of_its_machine(conn: Connection):
    say = "SELECT accs.note_daemon('n1', $1, '1.0', accs.clock(), 'listening')"
    assert await conn.fetchval(say, ["agent"]) == "accepted"
    assert await differs(conn) == {}, "no builder was seen"
    assert await conn.fetchval(say, ["agent", "builder"]) == "accepted"
    assert await differs(conn) == {"poller_running": True}
    found = await conn.fetch("SELECT name, roles, version, hearing FROM accs.daemons ORDER BY roles")
    assert [tuple(row) for row in found] == [
        ("n1", ["agent"], "1.0", "listening"),
        ("n1", ["agent", "builder"], "1.0", "listening"),
    ]


async def test_obstacles_are_written_at_once_and_builders_that_have_gone_are_forgotten(conn: Connection):
    await conn.execute("SELECT accs.note_daemon('old', '{builder}')")
    await pass_time(conn, 86_401)
    await conn.execute("SELECT accs.note_daemon('n1', '{builder}')")
    assert (
        await conn.fetchval("SELECT accs.note_daemon('n1', '{builder}', p_problems => '{\"planner\": \"no rules\"}')")
        == "accepted"
    )
    [found] = await conn.fetch("SELECT name, problems FROM accs.daemons")
    assert (found["name"], found["problems"]) == ("n1", {"planner": "no rules"})
    await pass_time(conn, -3600)
    assert (
        await conn.fetchval("SELECT accs.note_daemon('n1', '{builder}', p_problems => '{\"planner\": \"no rules\"}')")
        == "accepted"
    ), "set back"


async def test_what_nobody_settles_or_plans_is_overdue_after_a_minute(conn: Connection):
    """SQ5."""
    await schedule(conn, 60, name="planned")
    await pass_time(conn, 50)
    await schedule(conn, 600, name="unplanned", plan=False)
    await pass_time(conn, 65)
    found = await differs(conn)
    assert (found.pop("pending"), found.pop("unplanned"), found.pop("unplanned_for").seconds) == (2, 1, 65)
    assert found == {}, "less than a minute is nothing"
    await pass_time(conn, 10)
    assert (await health(conn))["overdue"] == 1
    assert timedelta(seconds=60) < (await health(conn))["overdue_for"] < timedelta(seconds=70)
    await settle_all(conn)
    assert {"overdue", "unplanned"}.isdisjoint(await differs(conn))


async def test_a_schedule_that_is_paused_is_not_overdue(conn: Connection):
    """PA1: what it skips is settled in batches, with a scheduler that runs."""
    await schedule(conn, 1, name="s")
    await call(conn, "pause_schedule", "s")
    for _ in range(10):
        await pass_time(conn, 30)
        await settle_all(conn)
        assert (await health(conn))["overdue"] == 0


async def test_broken_schedules_are_counted_and_a_hold_is_said_with_its_reason(conn: Connection):
    which = await schedule(conn, 60, plan=False)
    plan = {"id": str(which), "revision": 1, "after": (await call(conn, "schedules_to_plan"))["settled_until"]}
    await conn.fetch("SELECT * FROM accs.plan_schedules($1)", [plan | {"problem": "no"}])
    await conn.fetchval("SELECT accs.hold_schedules('a fire', 'ops')")
    assert await differs(conn) == {"broken": 1, "hold": "a fire, by ops"}
    await conn.execute("UPDATE schedules SET schedule_expr = '61s'")
    await replan(conn)
    assert (await health(conn))["broken"] == 0


async def test_nothing_is_counted_further_than_asked(conn: Connection):
    await node(conn)
    for _ in range(5):
        await submit(conn, step("a"))
    assert (await health(conn, 3))["pending"] == 3
    await done(conn, 5)
    assert (await health(conn, 3))["pending"] == 0


FILL = """
SET session_replication_role = replica;
INSERT INTO jobs (id, workflow_id, status, order_seq)
SELECT ('018f0000-0000-7000-8000-' || lpad(to_hex(i), 12, '0'))::uuid, w.id, 'running', i
  FROM generate_series(1, 60000) i, (SELECT id FROM workflows LIMIT 1) w;
INSERT INTO job_tasks (id, job_id, task_key, service_name, status, step_no, lane, lease_owner, lease_until, started_at)
SELECT j.id, j.id, 'a', 'render', CASE WHEN l.live THEN 'running' ELSE 'queued' END, 0, 1,
       CASE WHEN l.live THEN 'n1' END, CASE WHEN l.live THEN now() + interval '1 min' END, now()
  FROM jobs j, LATERAL (SELECT j.order_seq <= 3000 AS live) l;
INSERT INTO accs.live (task_id, job_id, service, node, owner, attempt_id, lease_until)
SELECT t.id, t.job_id, 'render', 'n1', 'n1', 1, t.lease_until FROM job_tasks t WHERE t.status = 'running';
INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at)
SELECT t.id, 1, 0, 1, now() FROM job_tasks t WHERE t.status = 'queued';
INSERT INTO schedules (name, schedule_kind, schedule_expr, workflow, state)
SELECT 's' || i, 'interval', '1h', 'w', CASE WHEN i % 5000 = 0 THEN 'broken' ELSE 'active' END
  FROM generate_series(1, 50000) i;
INSERT INTO accs.agenda (schedule_id, what, due_at)
SELECT id, 'occurrence', now() + interval '1 h' FROM schedules;
INSERT INTO dead_letters (job_id, job_task_id, generation, service_name, reason, dismissed_at)
SELECT id, id, 0, 'render', 'poison', now() FROM jobs;
SET session_replication_role = origin;
ANALYZE;
"""


async def test_it_touches_what_it_counts_however_much_there_is(conn: Connection):
    """60,000 jobs, 57,000 waiting tasks, 50,000 schedules: read are the 3,000 live ones, and a bound of the others."""
    await workflow(conn)
    await conn.execute(FILL)
    source = await conn.fetchval("SELECT prosrc FROM pg_proc WHERE proname = 'scheduler_health'")
    _, _, body = source.removesuffix("END ").partition("RETURN QUERY")
    explained = await conn.fetchval(
        f"EXPLAIN (ANALYZE, FORMAT JSON) {body.replace('p_most', '10000').replace('v_now', 'now()')}"
    )
    read = {node["Relation Name"]: 0 for node in nodes_of(explained[0]["Plan"]) if "Relation Name" in node}
    for each in nodes_of(explained[0]["Plan"]):
        if "Relation Name" in each:
            seen = each["Actual Rows"] + each.get("Rows Removed by Filter", 0)
            read[each["Relation Name"]] += round(seen * each["Actual Loops"])
    assert read["live"] <= 3000
    assert read["job_tasks"] <= 3000
    assert read["waiting"] + read["pending_jobs"] <= 10_000
    assert (read["schedules"], read["agenda"], read["dead_letters"]) == (10, 0, 0)
    found = await health(conn)
    assert (found["pending"], found["running"], found["broken"]) == (10_000, 3000, 10)


def nodes_of(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for child in plan.get("Plans", []) for node in nodes_of(child))]


async def test_who_reads_may_ask_and_every_daemon_may_say_that_it_is_there(conn: Connection):
    """Least privilege, by the table of verbs that the roles are granted by."""
    may = {row["name"]: set(row["may"]) for row in await conn.fetch("SELECT name, may FROM accs.verbs")}
    assert may["scheduler_health"] == {"scheduler", "api", "archive", "reader"}
    assert may["note_daemon"] == {"scheduler", "agent", "api"}
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute("SELECT accs.note_daemon('n1', '{king}')")
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute("SELECT accs.note_daemon('n1', '{builder}', p_problems => '[]')")
