"""submit_jobs, submit, a plain INSERT, and instantiate_due_jobs: how tasks come to be."""

import asyncio
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.factory import (
    Row,
    chain,
    claim,
    clock,
    done,
    job,
    job_moves,
    node,
    pass_time,
    step,
    submission,
    submit,
    submit_to,
    task,
    tasks,
    workflow,
)
from tests.support.race import blocked


async def instantiate(conn: Connection, *ids: UUID, limit: int = 100) -> list[tuple[Any, ...]]:
    rows = await conn.fetch("SELECT * FROM accs.instantiate_due_jobs($1, $2)", limit, list(ids) or None)
    return [tuple(row) for row in rows]


async def insert(conn: Connection, workflow_id: UUID, **columns: Any) -> UUID:
    """What a client without accsd does."""
    names = ", ".join(["workflow_id", *columns])
    places = ", ".join(f"${i}" for i in range(1, len(columns) + 2))
    return await conn.fetchval(
        f"INSERT INTO jobs ({names}) VALUES ({places}) RETURNING id", workflow_id, *columns.values()
    )


async def test_a_due_job_has_its_tasks_when_the_submission_returns(conn: Connection):
    shape = await workflow(
        conn,
        step("a", default_params={"fps": 25}, max_attempts=7, timeout=30, backoff=[5], requires={"gpu": True}),
        step("b", "audio", after="a", node="n1", concurrency_key="k"),
    )
    row = await submission(conn, shape, options={"x": 1}, priority=3)
    assert (row["answer"], row["reason"], row["status"]) == ("accepted", None, "running")

    made = await job(conn, row["job_id"])
    assert (made["status"], made["current_task_key"], made["priority"], made["options"]) == (
        "running",
        "a",
        3,
        {"x": 1},
    )
    assert (made["task_count"], made["open_tasks"], made["progress"]) == (2, 2, 0)
    assert made["started_at"] == made["created_at"]
    a, b = await task(conn, row["job_id"], "a"), await task(conn, row["job_id"], "b")
    assert (a["params"], a["max_attempts"], a["timeout_sec"], a["backoff"]) == ({"fps": 25}, 7, 30, [5])
    assert (a["requires"], a["priority"], a["depends_on"], a["remaining"]) == ({"gpu": True}, 3, [], 0)
    assert (b["service_name"], b["assigned_node"], b["concurrency_key"]) == ("audio", "n1", "k")
    assert (b["depends_on"], b["remaining"], a["dependants"], b["dependants"]) == (["a"], 1, [b["id"]], None)
    assert a["id"] < b["id"]
    assert await conn.fetch("SELECT task_id FROM accs.waiting") == [(a["id"],)]
    assert await job_moves(conn, row["job_id"]) == [("queued", "running")]


async def test_many_jobs_are_submitted_in_one_call_and_in_its_order(conn: Connection):
    first, second = await workflow(conn, *chain("a", "b")), await workflow(conn, step("x"))
    rows = await conn.fetch(
        "SELECT * FROM accs.submit_jobs($1, $2, $3)",
        [first, second, first],
        [{"n": 1}, None, {"n": 3}],
        [None, 5, None],
    )
    assert [row["answer"] for row in rows] == ["accepted"] * 3
    found = [await job(conn, row["job_id"]) for row in rows]
    assert [row["workflow_id"] for row in found] == [first, second, first]
    assert [row["order_seq"] for row in found] == sorted(row["order_seq"] for row in found)
    assert [(row["options"], row["priority"], row["task_count"]) for row in found] == [
        ({"n": 1}, 0, 2),
        ({}, 5, 1),
        ({"n": 3}, 0, 2),
    ]


async def test_each_row_of_a_submission_is_answered_for_itself(conn: Connection):
    good, inactive = await workflow(conn), await workflow(conn)
    await conn.execute("UPDATE workflows SET is_active = false WHERE id = $1", inactive)
    rows = await conn.fetch("SELECT * FROM accs.submit_jobs($1)", [inactive, good, uuid4()])
    assert [(row["answer"], row["reason"]) for row in rows] == [
        ("refused", "workflow_inactive"),
        ("accepted", None),
        ("refused", "workflow_not_found"),
    ]
    assert rows[0]["job_id"] is None
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 1


async def test_the_same_key_is_the_same_job(conn: Connection):
    shape, other = await workflow(conn), await workflow(conn)
    first = await submission(conn, shape, key="order-17")
    again = await submission(conn, other, key="order-17", options={"other": True})
    assert (again["answer"], again["job_id"], again["status"]) == ("repeated", first["job_id"], "running")
    rows = await conn.fetch(
        "SELECT * FROM accs.submit_jobs($1, p_keys => $2)", [shape] * 4, ["new", "order-17", "new", None]
    )
    assert [row["answer"] for row in rows] == ["accepted", "repeated", "repeated", "accepted"]
    assert rows[0]["job_id"] == rows[2]["job_id"]
    assert await conn.fetchval("SELECT count(*) FROM jobs") == 3


async def test_the_same_job_id_is_the_same_job(conn: Connection):
    shape, wanted = await workflow(conn), uuid4()
    assert (await submission(conn, shape, job_id=wanted))["job_id"] == wanted
    again = await submission(conn, shape, job_id=wanted)
    assert (again["answer"], again["job_id"]) == ("repeated", wanted)


async def test_two_submissions_of_one_key_at_once_make_one_job(conn: Connection, connect: Connect):
    shape = await workflow(conn)
    other = await connect()
    async with conn.transaction():
        first = await submission(conn, shape, key="k")
        late = asyncio.ensure_future(submission(other, shape, key="k"))
        await blocked(other, conn)
    assert ((await late)["answer"], (await late)["job_id"]) == ("repeated", first["job_id"])
    assert await conn.fetchval("SELECT count(*) FROM job_tasks") == 1


async def test_a_scheduled_job_is_made_when_its_time_has_come(conn: Connection):
    later = await clock(conn) + timedelta(hours=1)
    row = await submission(conn, await workflow(conn), scheduled_at=later)
    assert row["status"] == "queued"
    assert await tasks(conn, row["job_id"]) == {}
    assert await instantiate(conn) == []
    await pass_time(conn, 3601)
    assert await instantiate(conn) == [(row["job_id"], "accepted", None)]
    made = await job(conn, row["job_id"])
    assert (made["status"], made["open_tasks"], made["started_at"] > later) == ("running", 1, True)
    assert await instantiate(conn) == []


async def test_a_time_in_the_past_is_now(conn: Connection):
    row = await submission(conn, await workflow(conn), scheduled_at=await clock(conn) - timedelta(days=3))
    assert row["status"] == "running"


async def test_options_must_be_an_object_of_bounded_size(conn: Connection):
    shape = await workflow(conn)
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute("SELECT accs.submit_jobs($1, ARRAY['[1]'::jsonb])", [shape])
    with pytest.raises(asyncpg.CheckViolationError):
        await submission(conn, shape, options={"x": "y" * 1_100_000})


async def test_submit_takes_the_newest_active_version_by_name(conn: Connection):
    ids = [await workflow(conn, name="media", version=n) for n in (1, 2, 3)]
    await conn.execute("UPDATE workflows SET is_active = false WHERE version = 3")
    made = await conn.fetchval("SELECT accs.submit('media', '{\"x\": 1}', 4, p_key => 'k')")
    row = await job(conn, made)
    assert (row["workflow_id"], row["options"], row["priority"]) == (ids[1], {"x": 1}, 4)
    assert await conn.fetchval("SELECT accs.submit('media', p_key => 'k')") == made
    assert (await job(conn, await conn.fetchval("SELECT accs.submit('media', p_version => 1)")))["workflow_id"] == ids[
        0
    ]
    for version, words in ((3, '"media" of version 3'), (None, '"other"')):
        with pytest.raises(asyncpg.PostgresError, match=f"there is no active workflow {words}") as refused:
            await conn.execute("SELECT accs.submit($1, p_version => $2)", "media" if version else "other", version)
        assert refused.value.sqlstate == "AC004"


async def test_a_plain_insert_is_a_complete_submission(conn: Connection):
    shape = await workflow(conn, *chain("a", "b"))
    made = await insert(conn, shape)
    row = await job(conn, made)
    assert (row["status"], row["priority"], row["progress"], row["options"]) == ("queued", 0, 0, {})
    assert row["order_seq"] is not None
    assert await instantiate(conn) == [(made, "accepted", None)]
    assert await tasks(conn, made) == {"a": "queued", "b": "queued"}
    assert await job_moves(conn, made) == [("queued", "running")]
    assert await conn.fetchval("SELECT count(*) FROM accs.pending_jobs") == 0


async def test_due_jobs_are_taken_in_the_order_of_their_due_times_up_to_the_limit(conn: Connection):
    shape = await workflow(conn)
    now = await clock(conn)
    ids = [await insert(conn, shape, scheduled_at=now - timedelta(minutes=m)) for m in (1, 3, 2)]
    future = await insert(conn, shape, scheduled_at=now + timedelta(minutes=1))
    taken = await instantiate(conn, limit=2)
    assert {row[0] for row in taken} == {ids[1], ids[2]}
    assert [row[0] for row in await instantiate(conn)] == [ids[0]]
    assert (await job(conn, future))["status"] == "queued"
    assert await instantiate(conn, future) == [(future, "accepted", None)]  # asked for by name


async def test_jobs_named_to_the_builder_are_answered_one_by_one(conn: Connection, connect: Connect):
    shape = await workflow(conn)
    ready, fresh, locked = await submit_to(conn, shape), await insert(conn, shape), await insert(conn, shape)
    unknown = uuid4()
    other = await connect()
    async with other.transaction():
        await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", locked)
        answers = await instantiate(conn, ready, fresh, locked, unknown)
    assert {row[0]: row[1:] for row in answers} == {
        fresh: ("accepted", None),
        ready: ("repeated", None),
        locked: ("refused", "locked"),
        unknown: ("refused", "not_found"),
    }


async def test_two_builders_at_once_make_every_task_once(conn: Connection, connect: Connect):
    shape = await workflow(conn, *chain("a", "b"))
    ids = {await insert(conn, shape) for _ in range(4)}
    other = await connect()
    async with conn.transaction():
        first = await instantiate(conn, limit=2)
        second = await instantiate(other)  # passes over what is locked, and does not wait
    assert {row[0] for row in first} | {row[0] for row in second} == ids
    assert len(first) + len(second) == 4
    assert await conn.fetchval("SELECT count(*) FROM job_tasks") == 8


async def test_a_builder_that_goes_away_leaves_all_or_nothing(conn: Connection, connect: Connect):
    made = await insert(conn, await workflow(conn, *chain("a", "b")))
    doomed = await connect()
    await doomed.execute("BEGIN")
    assert len(await instantiate(doomed)) == 1
    doomed.terminate()
    deadline = asyncio.get_running_loop().time() + 5
    while not (answers := await instantiate(conn)):
        assert asyncio.get_running_loop().time() < deadline
    assert answers == [(made, "accepted", None)]
    assert await tasks(conn, made) == {"a": "queued", "b": "queued"}


async def test_a_job_of_an_inactive_workflow_ends_in_error_with_the_reason(conn: Connection):
    shape, good = await workflow(conn, name="media"), await workflow(conn)
    bad, fine = await insert(conn, shape), await insert(conn, good)
    await conn.execute("UPDATE workflows SET is_active = false WHERE id = $1", shape)
    assert sorted(await instantiate(conn)) == sorted([(bad, "refused", "workflow_inactive"), (fine, "accepted", None)])
    row = await job(conn, bad)
    assert (row["status"], row["error_code"]) == ("error", "workflow_inactive")
    assert row["error_message"] == 'workflow "media" is not active'
    assert (row["finished_at"] is not None, await job_moves(conn, bad)) == (True, [("queued", "error")])
    assert await conn.fetchval("SELECT count(*) FROM accs.pending_jobs") == 0


async def test_one_job_that_cannot_be_made_does_not_stop_the_others(conn: Connection):
    shape = await workflow(conn)
    # The least int has no opposite, which is what the order needs of a priority.
    ids = [await insert(conn, shape, priority=p) for p in (0, -(2**31), 0)]
    answers = {row[0]: row[1:] for row in await instantiate(conn)}
    assert answers == {
        ids[0]: ("accepted", None),
        ids[1]: ("refused", "instantiate_failed"),
        ids[2]: ("accepted", None),
    }
    row = await job(conn, ids[1])
    assert (row["status"], row["error_code"], row["task_count"]) == ("error", "instantiate_failed", 0)
    assert "out of range" in row["error_message"]
    assert await conn.fetchval("SELECT count(*) FROM job_tasks") == 2


async def test_a_workflow_that_changes_during_a_submission_leaves_the_counts_right(conn: Connection, connect: Connect):
    """The job's row and its tasks are written by two statements; the steps must be those of one moment."""
    shape = await workflow(conn, *chain("a", "b"))
    pending = await insert(conn, shape)
    gate, author, submitter, builder = [await connect() for _ in range(4)]
    for caller, call in ((submitter, submit_to(submitter, shape)), (builder, instantiate(builder, pending))):
        async with gate.transaction():
            await gate.execute("LOCK TABLE task_events IN EXCLUSIVE MODE")
            late = asyncio.ensure_future(call)
            await blocked(caller, conn)
            change = asyncio.ensure_future(
                author.execute("UPDATE workflows SET steps = $1", [step("x"), step("y"), step("z"), step("zz")])
            )
            await asyncio.wait([change], timeout=0.3)
        await asyncio.gather(late, change)
        await conn.execute("UPDATE workflows SET steps = $1", chain("a", "b"))
    wrong: list[Row] = await conn.fetch(
        "SELECT * FROM jobs j WHERE task_count <> (SELECT count(*) FROM job_tasks t WHERE t.job_id = j.id)"
    )
    assert wrong == []


async def test_a_task_is_identified_in_the_order_of_its_steps_also_beyond_16384(conn: Connection):
    made = await submit(conn, *(step(f"s{i}") for i in range(20_000)))
    rows = await conn.fetch("SELECT step_no FROM job_tasks WHERE job_id = $1 ORDER BY id", made)
    assert [row["step_no"] for row in rows] == list(range(1, 20_001))
    await node(conn)
    assert [row["task_key"] for row in await claim(conn, 3)] == ["s0", "s1", "s2"]


async def test_jobs_submitted_in_one_transaction_are_done_in_their_order(conn: Connection):
    await node(conn)
    shape = await workflow(conn, *chain("a", "b"))
    async with conn.transaction():
        ids = [await submit_to(conn, shape) for _ in range(3)]
    order = [(await done(conn))[0]["job_id"] for _ in range(6)]
    assert order == [made for made in ids for _ in "ab"]


async def test_no_two_jobs_have_tasks_of_the_same_id_however_many_one_statement_makes(conn: Connection):
    """All of them in one millisecond: what is left of a job's id in its task's has the whole count in it."""
    rows = await conn.fetch(
        "WITH made AS MATERIALIZED (SELECT accs.new_id() AS id FROM generate_series(1, 20000))"
        " SELECT id, right(id::text, 8) AS short, ('x' || substr(encode(uuid_send(id), 'hex'), 14, 3))::bit(12)::int"
        " AS low FROM made"
    )
    assert len({row["short"] for row in rows}) == 20000, "the last eight digits tell them apart"
    assert len({row["short"][:3] for row in rows}) == 4096, "and they are scattered: the first digits differ"
    assert {row["low"] for row in rows} == set(range(4096)), "the count wraps, and ids are still apart"


@pytest.mark.parametrize("far", ["294276-12-31", "12000-01-01", "4713-01-01 BC"])
@pytest.mark.parametrize("column", ["scheduled_at", "created_at"])
async def test_a_time_that_no_program_can_read_is_refused(conn: Connection, column: str, far: str):
    shape = await workflow(conn)
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute(f"INSERT INTO jobs (workflow_id, {column}) VALUES ($1, '{far}')", shape)
    await conn.execute("INSERT INTO jobs (workflow_id, scheduled_at) VALUES ($1, 'infinity')", shape)


async def test_options_are_as_deep_as_a_task_can_be_handed(conn: Connection):
    def nested(levels: int) -> str:
        return '{"a":' * levels + "1" + "}" * levels

    shape = await workflow(conn)
    insert = "INSERT INTO jobs (workflow_id, options) VALUES ($1, $2::text::jsonb)"
    await conn.execute(insert, shape, nested(64))
    for depth in (65, 300, 2000):
        with pytest.raises(asyncpg.CheckViolationError, match="64 levels"):
            await conn.execute(insert, shape, nested(depth))
        with pytest.raises(asyncpg.CheckViolationError, match="64 levels"):
            await conn.execute("SELECT accs.submit_jobs(ARRAY[$1::uuid], ARRAY[$2::text::jsonb])", shape, nested(depth))
