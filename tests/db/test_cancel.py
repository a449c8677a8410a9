"""cancel_jobs, skip_tasks and close_jobs: the ends that no attempt brings about."""

import asyncio

from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import (
    Row,
    cancel,
    chain,
    claim,
    clock,
    done,
    finish,
    job,
    job_moves,
    moves,
    node,
    start,
    started,
    step,
    submit,
    submit_to,
    task,
    tasks,
    workflow,
)
from tests.support.race import blocked


async def skip(conn: Connection, *ids: object, reason: str = "condition_false") -> list[Row]:
    return await conn.fetch("SELECT * FROM accs.skip_tasks($1, $2)", list(ids), reason)


async def test_a_cancelled_job_ends_with_all_that_is_open_in_it(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"), step("c"), step("d"), step("e", after="d"))
    await done(conn)
    await started(conn)
    starting = await claim(conn)
    (answer,) = await cancel(conn, made, reason="not needed")

    assert (answer["answer"], answer["reason"], answer["db_status"]) == ("accepted", None, "cancelled")
    assert await tasks(conn, made) == {
        "a": "done",
        "b": "cancelled",
        "c": "cancelled",
        "d": "cancelled",
        "e": "cancelled",
    }
    row = await task(conn, made, "b")
    assert (row["lease_owner"], row["error_code"], row["error_message"]) == (None, "cancelled", "not needed")
    closed = await job(conn, made)
    assert (closed["status"], closed["open_tasks"], closed["error_code"]) == ("cancelled", 0, "cancelled")
    assert (closed["error_message"], closed["finished_at"] is not None) == ("not needed", True)
    assert await conn.fetchval("SELECT (SELECT count(*) FROM accs.waiting) + (SELECT count(*) FROM accs.live)") == 0
    assert [(await moves(conn, (await task(conn, made, key))["id"]))[-1] for key in "bcde"] == [
        ("running", "cancelled"),
        ("starting", "cancelled"),
        ("queued", "cancelled"),
        ("queued", "cancelled"),
    ]
    assert await job_moves(conn, made) == [("queued", "running"), ("running", "cancelled")]
    (late,) = await start(conn, *starting)
    assert late["reason"] == "already_finished"


async def test_a_job_that_is_not_due_yet_can_be_cancelled(conn: Connection):
    shape = await workflow(conn)
    made = await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", shape)
    await cancel(conn, made)
    assert await conn.fetchval("SELECT count(*) FROM accs.pending_jobs") == 0
    assert await conn.fetch("SELECT * FROM accs.instantiate_due_jobs()") == []
    assert await job_moves(conn, made) == [("queued", "cancelled")]


async def test_what_has_ended_cannot_be_cancelled(conn: Connection):
    await node(conn)
    made = await submit(conn)
    await done(conn)
    (answer,) = await cancel(conn, made)
    assert (answer["answer"], answer["reason"], answer["db_status"]) == ("refused", "already_finished", "done")
    (answer,) = await cancel(conn, await workflow(conn))
    assert (answer["answer"], answer["reason"]) == ("refused", "not_found")


async def test_the_services_of_running_tasks_are_told_to_look_at_their_leases(conn: Connection, connect: Connect):
    await node(conn)
    made = await submit(conn, step("a", "audio"), step("b", "audio"), step("c", "render"), step("d", "idle"))
    await started(conn, 2, "audio")
    await claim(conn, 1, "render")
    heard: list[tuple[str, str]] = []
    listener = await connect()

    def hear(_conn: object, _pid: int, channel: str, payload: object) -> None:
        heard.append((channel, str(payload)))

    for service in ("audio", "render", "idle"):
        await listener.add_listener(f"accs_{service}", hear)
    await cancel(conn, made)
    await eventually(lambda: len(heard) >= 2)
    await listener.fetchval("SELECT 1")
    assert sorted(heard) == [("accs_audio", "cancel"), ("accs_render", "cancel")]


async def test_a_cancel_waits_for_a_claim_under_way_and_takes_what_it_took(conn: Connection, connect: Connect):
    await node(conn)
    made = await submit(conn)
    other = await connect()
    async with conn.transaction():
        (claimed,) = await claim(conn)
        late = asyncio.ensure_future(cancel(other, made))
        await blocked(other, conn)
    assert [row["answer"] for row in await late] == ["accepted"]
    assert await moves(conn, claimed["task_id"]) == [("queued", "starting"), ("starting", "cancelled")]
    assert await conn.fetchval("SELECT count(*) FROM accs.live") == 0


async def test_a_cancelled_task_frees_its_concurrency_key(conn: Connection):
    await node(conn)
    shape = await workflow(conn, step("a", concurrency_key="k"))
    first = await submit_to(conn, shape)
    await submit_to(conn, shape)
    assert len(await claim(conn, 5)) == 1
    await cancel(conn, first)
    assert len(await claim(conn, 5)) == 1


async def test_a_skipped_step_satisfies_what_depends_on_it(conn: Connection):
    await node(conn)
    made = await submit(conn, *chain("a", "b", "c"))
    b = await task(conn, made, "b")
    await done(conn)
    (answer,) = await skip(conn, b["id"])
    assert (answer["answer"], answer["reason"]) == ("accepted", None)
    row = await task(conn, made, "b")
    assert (row["status"], row["error_code"], row["finished_at"] is not None) == ("skipped", "condition_false", True)
    assert await moves(conn, b["id"]) == [("queued", "skipped")]
    current = await job(conn, made)
    assert (current["current_task_key"], current["open_tasks"]) == ("c", 1)
    (c,) = await done(conn)
    assert (c["task_key"], c["given"]) == ("c", {"inputs": {"b": {}}})
    assert (await job(conn, made))["status"] == "done"


async def test_a_step_can_be_skipped_before_its_turn(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"), step("c", after="a"), step("d", after="b c"))
    await skip(conn, (await task(conn, made, "c"))["id"])
    assert (await task(conn, made, "d"))["remaining"] == 1
    await done(conn, 2)
    assert [row["task_key"] for row in await done(conn, 9)] == ["d"]
    assert (await job(conn, made))["status"] == "done"


async def test_a_job_of_which_every_step_is_skipped_is_done(conn: Connection):
    made = await submit(conn, *chain("a", "b"))
    await skip(conn, *[(await task(conn, made, key))["id"] for key in "ab"])
    closed = await job(conn, made)
    assert (closed["status"], closed["progress"], closed["open_tasks"]) == ("done", 1, 0)
    assert await conn.fetchval("SELECT count(*) FROM accs.waiting") == 0


async def test_only_a_queued_task_can_be_skipped(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"))
    (a,) = await claim(conn)
    (answer,) = await skip(conn, a["task_id"])
    assert (answer["answer"], answer["reason"], answer["db_status"]) == ("refused", "not_in_expected_state", "starting")
    await start(conn, a)
    await finish(conn, a)
    (answer,) = await skip(conn, a["task_id"])
    assert (answer["answer"], answer["reason"]) == ("refused", "already_finished")
    (answer,) = await skip(conn, made)
    assert (answer["answer"], answer["reason"]) == ("refused", "not_found")


async def test_a_skip_waits_for_a_claim_under_way_and_is_refused(conn: Connection, connect: Connect):
    await node(conn)
    made = await submit(conn)
    other = await connect()
    (a,) = await conn.fetch("SELECT id FROM job_tasks")
    async with conn.transaction():
        await claim(conn)
        late = asyncio.ensure_future(skip(other, a["id"]))
        await blocked(other, conn)
    assert [(row["answer"], row["reason"]) for row in await late] == [("refused", "not_in_expected_state")]
    assert await tasks(conn, made) == {"a": "starting"}


async def test_close_jobs_answers_what_the_last_finish_has_done_already(conn: Connection):
    await node(conn)
    open_job = await submit(conn)
    later = await submit(conn, scheduled_at=(await clock(conn)).replace(year=2999))
    closed = await submit(conn, step("a", "audio"))
    await done(conn, service="audio")
    answers = await conn.fetch("SELECT * FROM accs.close_jobs($1)", [open_job, later, closed, await workflow(conn)])
    assert [(row["answer"], row["reason"]) for row in answers] == [
        ("refused", "tasks_open"),
        ("refused", "not_in_expected_state"),
        ("repeated", None),
        ("refused", "not_found"),
    ]


async def test_close_jobs_closes_a_job_that_was_left_open(conn: Connection):
    """The net: it can only be needed where a row was broken, so the test breaks one."""
    await node(conn)
    made = await submit(conn)
    await done(conn)
    await conn.execute("SET session_replication_role = replica")
    await conn.execute(
        "UPDATE jobs SET status = 'running', open_tasks = 1, finished_at = NULL, progress = 0, task_progress = 0"
    )
    await conn.execute("RESET session_replication_role")
    answers = await conn.fetch("SELECT * FROM accs.close_jobs($1)", [made])
    assert [(row["answer"], row["reason"], row["db_status"]) for row in answers] == [("accepted", None, "done")]
    closed = await job(conn, made)
    assert (closed["status"], closed["open_tasks"], closed["progress"]) == ("done", 0, 1)
    assert (await job_moves(conn, made))[-1] == ("running", "done")


async def test_a_cancel_of_many_jobs_answers_each(conn: Connection):
    await node(conn)
    shape = await workflow(conn, *chain("a", "b"))
    rows = await conn.fetch("SELECT * FROM accs.submit_jobs($1)", [shape] * 20)
    ids = [row["job_id"] for row in rows]
    await started(conn, 5)
    answers = await cancel(conn, *ids)
    assert {row["id"]: row["answer"] for row in answers} == dict.fromkeys(ids, "accepted")
    assert await conn.fetchval("SELECT count(*) FROM job_tasks WHERE status = 'cancelled'") == 40
