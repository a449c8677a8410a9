"""repair: every kind of damage to the narrow tables and the counts is found, mended and put on record."""

import asyncio
from collections import Counter
from uuid import UUID

from tests.conftest import Connect
from tests.support.checker import check, violations
from tests.support.cluster import Connection
from tests.support.factory import (
    chain,
    claim,
    done,
    dump,
    fail,
    finish,
    job,
    node,
    pass_time,
    started,
    step,
    submit,
    submit_to,
    task,
    workflow,
)
from tests.support.planted import past_the_guard
from tests.support.race import blocked
from tests.support.resolving import fan_out


async def repair(conn: Connection, limit: int = 1000) -> dict[str, int]:
    rows = await conn.fetch("SELECT * FROM accs.repair($1)", limit)
    return {row["what"]: row["repaired"] for row in rows}


async def shown(conn: Connection) -> dict[str, int]:
    return Counter(row["what"] for row in await conn.fetch("SELECT what FROM accs.damage"))


async def world(conn: Connection) -> UUID:
    """Tasks and jobs in every state; gives a job of which one step runs, one depends on that and one waits."""
    await node(conn, labels={"gpu": True})
    await submit(conn, step("a", "ended"))
    await done(conn, 1, "ended")
    await submit(conn, step("a", "failing", backoff=[60]), step("k", "keyed", concurrency_key="key"))
    await fail(conn, *await started(conn, 1, "failing"))
    await submit(conn, step("k", "keyed", concurrency_key="key"), step("x", "dying"), step("y", "dying", after="x"))
    await fail(conn, *await started(conn, 1, "dying"), permanent=True)
    await claim(conn, 1, "keyed")
    await submit(conn, step("a", requires={"gpu": True}))
    await claim(conn)
    made = await submit(conn, *chain("a", "b"), step("c"))
    await started(conn)
    steps = (step("if", "lists", **{"if": "params.x"}), step("each", "lists", for_each=2), step("join", after="each"))
    await fan_out(conn, await submit(conn, *steps), "each", "x", "y", parallel=1)
    later = "INSERT INTO jobs (workflow_id, scheduled_at) VALUES ($1, now() + interval '1 day')"
    await conn.execute(later, await workflow(conn))
    await check(conn)
    return made


def of(key: str) -> str:
    return f"(SELECT id FROM job_tasks WHERE job_id = '{{job}}' AND task_key = '{key}')"


def waits(key: str) -> str:
    return (
        "INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at)"
        " SELECT t.id, t.lane, 0, j.order_seq, t.created_at FROM job_tasks t JOIN jobs j ON j.id = t.job_id"
        f" WHERE t.id = {of(key)}"
    )


def is_live(task_id: str, job_id: str) -> str:
    return (
        "INSERT INTO accs.live (task_id, job_id, service, node, owner, attempt_id, lease_until)"
        f" VALUES ({task_id}, {job_id}, 'render', 'n1', 'owner-1', 1, now())"
    )


NOBODY = "'00000000-0000-0000-0000-000000000007'"

# What is wrong, what repair calls it, and how to plant it.
DAMAGES: list[tuple[str, dict[str, int], list[str]]] = [
    ("a task that runs is waiting too", {"waiting_row": 1}, [waits("a")]),
    ("a task is waiting before its dependency is done", {"waiting_row": 1}, [waits("b")]),
    (
        "a waiting row stands in the wrong place",
        {"waiting_row": 1},
        [f"UPDATE accs.waiting SET lane = lane + 1, rank = 5 WHERE task_id = {of('c')}"],
    ),
    (
        "a retry is due at another time than its task says",
        {"waiting_row": 1},
        ["UPDATE accs.waiting SET due_at = due_at + interval '1 year' WHERE hold = 'backoff'"],
    ),
    (
        "a task that is not there waits",
        {"waiting_row": 1},
        [f"INSERT INTO accs.waiting (task_id, lane, rank, order_seq, created_at) VALUES ({NOBODY}, 1, 0, 1, now())"],
    ),
    ("a queued task does not wait", {"waiting_missing": 1}, [f"DELETE FROM accs.waiting WHERE task_id = {of('c')}"]),
    ("nothing waits at all", {"waiting_missing": 6}, ["DELETE FROM accs.waiting"]),
    ("a queued task is live", {"live_row": 1}, [is_live(of("c"), "'{job}'")]),
    (
        "a live row is another attempt's",
        {"live_row": 1},
        [f"UPDATE accs.live SET attempt_id = 9, owner = 'x', progress = 1 WHERE task_id = {of('a')}"],
    ),
    ("a task that is not there is live", {"live_row": 1}, [is_live(NOBODY, NOBODY)]),
    ("a running task is not live", {"live_missing": 1}, [f"DELETE FROM accs.live WHERE task_id = {of('a')}"]),
    ("the holder of a key is not live", {"live_missing": 1}, ["DELETE FROM accs.live WHERE key = 'key'"]),
    (
        "a claimable task waits for a dependency that it does not have",
        {"remaining": 1, "waiting_row": 1},
        [f"UPDATE job_tasks SET remaining = 2 WHERE id = {of('c')}"],
    ),
    ("a task waits for too much", {"remaining": 1}, [f"UPDATE job_tasks SET remaining = 2 WHERE id = {of('b')}"]),
    (
        "a task waits for too little",
        {"remaining": 1, "waiting_missing": 1},
        [f"UPDATE job_tasks SET remaining = 0 WHERE id = {of('b')}"],
    ),
    (
        "a task that waits for too little is claimable",
        {"remaining": 1},
        [f"UPDATE job_tasks SET remaining = 0 WHERE id = {of('b')}", waits("b")],
    ),
    (
        "a step that waits to be resolved can be claimed",
        {"waiting_row": 1},
        ["UPDATE accs.waiting SET hold = NULL WHERE hold = 'resolve'"],
    ),
    (
        "a step that waits to be resolved does not wait",
        {"waiting_missing": 1},
        ["DELETE FROM accs.waiting WHERE hold = 'resolve'"],
    ),
    (
        "a task that needs no resolver waits for one",
        {"waiting_row": 1},
        [f"UPDATE accs.waiting SET hold = 'resolve' WHERE task_id = {of('c')}"],
    ),
    (
        "a task of an item waits without the limit of its step",
        {"waiting_row": 1},
        ["UPDATE accs.waiting SET key = NULL WHERE key LIKE 'map/%' AND hold IS NULL"],
    ),
    (
        "a join waits for a task too few",
        {"remaining": 1},
        ["UPDATE job_tasks SET remaining = 1 WHERE task_key = 'join'"],
    ),
    (
        "a join waits for none of the tasks",
        {"remaining": 1, "waiting_missing": 1},
        ["UPDATE job_tasks SET remaining = 0 WHERE task_key = 'join'"],
    ),
    (
        "a job does not count the tasks of the items",
        {"job_counts": 1},
        ["UPDATE jobs SET task_count = 3, open_tasks = 2 WHERE task_count = 5"],
    ),
    ("a scheduled job is not pending", {"pending_missing": 1}, ["DELETE FROM accs.pending_jobs"]),
    (
        "a scheduled job is due at another time",
        {"pending_row": 1},
        ["UPDATE accs.pending_jobs SET due_at = due_at + interval '1 year'"],
    ),
    ("a running job is pending", {"pending_row": 1}, ["INSERT INTO accs.pending_jobs VALUES ('{job}', now())"]),
    (
        "a job that is not there is pending",
        {"pending_row": 1},
        [f"INSERT INTO accs.pending_jobs VALUES ({NOBODY}, now())"],
    ),
    ("a job has too few open tasks", {"job_counts": 1}, ["UPDATE jobs SET open_tasks = 1 WHERE id = '{job}'"]),
    ("a job counts too many tasks", {"job_counts": 1}, ["UPDATE jobs SET task_count = 9 WHERE id = '{job}'"]),
    ("a job is further than its tasks", {"job_counts": 1}, ["UPDATE jobs SET task_progress = 2 WHERE id = '{job}'"]),
    ("the share of a job is wrong", {"job_counts": 1}, ["UPDATE jobs SET progress = 0.9 WHERE id = '{job}'"]),
]


async def test_every_kind_of_damage_is_mended_and_put_on_record(conn: Connection):
    made = await world(conn)
    before = await dump(conn, "task_events", "jobs", "job_tasks")  # those have the time of the repair
    for name, expected, statements in DAMAGES:
        undo = conn.transaction()
        await undo.start()
        await past_the_guard(conn, *(statement.format(job=made) for statement in statements))
        assert await violations(conn), f"{name}: that is no damage"
        assert await shown(conn) == expected, name
        assert await repair(conn) == expected, name
        assert await violations(conn) == [], name
        assert await dump(conn, "task_events", "jobs", "job_tasks") == before, name
        assert await repair(conn) == {}, f"{name}: once is enough"
        events = await conn.fetch("SELECT level, message FROM task_events WHERE type = 'repair'")
        if NOBODY not in "".join(statements):  # whose job is unknown
            told = sorted(f"repaired: {what}" for what, n in expected.items() for _ in range(n))
            assert sorted(event["message"] for event in events) == told, name
            assert {event["level"] for event in events} == {"error"}, name
        await undo.rollback()


async def test_a_job_whose_tasks_have_all_ended_is_closed_with_its_events(conn: Connection):
    await node(conn)
    good = await submit(conn)
    bad = await submit(conn, step("a"), step("b"))
    await done(conn)
    await fail(conn, *await started(conn), permanent=True)
    await done(conn)
    # the last finish has forgotten the job
    for which in (good, bad):
        await past_the_guard(
            conn,
            f"UPDATE jobs SET status = 'running', finished_at = NULL WHERE id = '{which}'",
            "SET LOCAL session_replication_role = replica",
            f"DELETE FROM task_events WHERE job_id = '{which}' AND job_task_id IS NULL AND data ->> 'from' = 'running'",
        )
    assert await repair(conn) == {"job_open": 2}
    assert [(await job(conn, which))["status"] for which in (good, bad)] == ["done", "error"]
    assert (await job(conn, bad))["error_code"] == "boom"
    await check(conn)


async def test_a_running_job_without_any_task_ends_in_error(conn: Connection):
    made = await submit_to(conn, await workflow(conn))
    await past_the_guard(
        conn,
        f"DELETE FROM accs.waiting WHERE task_id = (SELECT id FROM job_tasks WHERE job_id = '{made}')",
        f"DELETE FROM job_tasks WHERE job_id = '{made}'",
    )
    assert await repair(conn) == {"job_counts": 1, "job_open": 1}
    row = await job(conn, made)
    assert (row["status"], row["error_code"], row["task_count"]) == ("error", "no_tasks", 0)
    await check(conn)


async def test_what_was_mended_can_go_on(conn: Connection):
    made = await world(conn)
    await past_the_guard(
        conn,
        "DELETE FROM accs.waiting",
        "DELETE FROM accs.live",
        f"UPDATE job_tasks SET remaining = 3 WHERE job_id = '{made}' AND task_key = 'b'",
        f"UPDATE jobs SET open_tasks = 1, task_progress = 1 WHERE id = '{made}'",
    )
    await repair(conn)
    await check(conn)
    held = await conn.fetch("SELECT task_id, attempt_id, node FROM accs.live WHERE job_id = $1", made)
    assert [row["node"] for row in held] == ["n1"], "the claim's event knows the node"
    await conn.fetch(
        "SELECT accs.finish_tasks($1, $2, 'owner-1')",
        [row["task_id"] for row in held],
        [row["attempt_id"] for row in held],
    )
    assert len(await done(conn, 2)) == 2
    assert (await job(conn, made))["status"] == "done"
    await pass_time(conn, 100)
    await conn.execute("SELECT accs.reclaim_tasks()")
    await check(conn)


async def test_a_freed_key_lets_the_next_one_stand(conn: Connection):
    await node(conn)
    await submit(conn, step("a", concurrency_key="k"), step("b", concurrency_key="k"))
    (a,) = await claim(conn, 5)
    await past_the_guard(
        conn,
        f"UPDATE job_tasks SET status = 'queued', lease_owner = NULL, lease_until = NULL WHERE id = '{a['task_id']}'",
    )
    assert await repair(conn) == {"waiting_missing": 1, "live_row": 1}
    assert [row["task_key"] for row in await claim(conn, 5)] == ["a"]


async def test_at_most_so_much_is_mended_at_once(conn: Connection):
    for _ in range(5):
        await submit(conn, step("a"), step("b"))
    await past_the_guard(conn, "DELETE FROM accs.waiting")
    assert await repair(conn, 4) == {"waiting_missing": 4}
    assert await repair(conn, 4) == {"waiting_missing": 4}
    assert await repair(conn, 4) == {"waiting_missing": 2}
    assert await repair(conn, 4) == {}
    await check(conn)


async def test_a_job_that_somebody_has_locked_is_left_to_the_next_time(conn: Connection, connect: Connect):
    made, other = await submit(conn), await submit(conn)
    await past_the_guard(conn, "DELETE FROM accs.waiting")
    holder = await connect()
    async with holder.transaction():
        await holder.execute("SELECT FROM jobs WHERE id = $1 FOR NO KEY UPDATE", made)
        assert await repair(conn) == {"waiting_missing": 1}
        waiting = await conn.fetch("SELECT task_id FROM accs.waiting")
        assert [row["task_id"] for row in waiting] == [(await task(conn, other, "a"))["id"]]
    assert await repair(conn) == {"waiting_missing": 1}
    await check(conn)


async def test_a_finish_waits_for_the_repair_of_its_task_and_is_counted(conn: Connection, connect: Connect):
    await node(conn)
    made = await submit(conn, *chain("a", "b"))
    (running,) = await started(conn)
    await past_the_guard(conn, "DELETE FROM accs.live")
    other = await connect()
    async with conn.transaction():
        assert await repair(conn) == {"live_missing": 1}
        ending = asyncio.create_task(finish(other, running))
        await blocked(other, await connect())
    assert [row["answer"] for row in await ending] == ["accepted"]
    assert (await job(conn, made))["open_tasks"] == 1
    assert await shown(conn) == {}
    await done(conn)
    assert (await job(conn, made))["status"] == "done"


async def test_two_repairs_do_not_meet(conn: Connection, connect: Connect):
    await submit(conn)
    await past_the_guard(conn, "DELETE FROM accs.waiting")
    other = await connect()
    async with other.transaction():
        assert await repair(other) == {"waiting_missing": 1}
        assert await repair(conn) == {}
    assert await repair(conn) == {}
    await check(conn)


async def test_what_is_too_much_for_one_call_is_looked_through_in_several(conn: Connection):
    shape = await workflow(conn)
    await conn.fetch("SELECT accs.submit_jobs($1)", [shape] * 1100)
    await past_the_guard(
        conn, "DELETE FROM accs.waiting WHERE task_id = (SELECT id FROM job_tasks ORDER BY job_id DESC LIMIT 1)"
    )
    for found in (0, 0, 1, 0, 1):
        rows = await conn.fetch("SELECT what FROM accs.find_damage(1000, '0')")
        assert len(rows) == found, "500 jobs at a time, and from the beginning again after the last one"
    assert await repair(conn) == {"waiting_missing": 1}
