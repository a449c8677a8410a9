"""start_tasks, heartbeat and report_progress: what an attempt says while it lives."""

from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any

from tests.support.cluster import Connection
from tests.support.factory import (
    LEASE,
    Claimed,
    Row,
    cancel,
    claim,
    clock,
    done,
    dump,
    fail,
    finish,
    job,
    moves,
    node,
    pass_time,
    release,
    start,
    started,
    step,
    submit,
    task,
)


async def heartbeat(conn: Connection, *claimed: Claimed, owner: str = "owner-1", lease: timedelta = LEASE) -> list[Row]:
    return await conn.fetch(
        "SELECT * FROM accs.heartbeat('n1', $1, $2, $3, $4)",
        owner,
        [c["task_id"] for c in claimed],
        [c["attempt_id"] for c in claimed],
        lease,
    )


async def progress(
    conn: Connection,
    claimed: Claimed,
    value: Any,
    *,
    message: str | None = None,
    results: dict[str, Any] | None = None,
    owner: str = "owner-1",
) -> Row:
    row = await conn.fetchrow(
        "SELECT * FROM accs.report_progress($1, $2, $3, $4, $5, $6)",
        [claimed["task_id"]],
        [claimed["attempt_id"]],
        owner,
        [value],
        [message],
        [results],
    )
    assert row is not None
    return row


def said(answers: list[Row]) -> list[tuple[str, str | None]]:
    return [(row["answer"], row["reason"]) for row in answers]


async def test_a_claimed_task_is_started_once(conn: Connection):
    await node(conn)
    made = await submit(conn)
    (a,) = await claim(conn)
    assert said(await start(conn, a)) == [("accepted", None)]
    row = await task(conn, made, "a")
    assert (row["status"], row["started_at"] is not None) == ("running", True)
    assert await moves(conn, a["task_id"]) == [("queued", "starting"), ("starting", "running")]
    assert said(await start(conn, a)) == [("repeated", None)]


async def test_a_start_is_refused_with_the_reason_and_what_the_database_holds(conn: Connection):
    await node(conn)
    await submit(conn, *(step(k) for k in "abcdef"))
    stale, finished, back, theirs, expired, unknown = await claim(conn, 6)
    await release(conn, stale)
    await claim(conn)
    await fail(conn, finished, permanent=True)
    await release(conn, back)
    unknown = {**unknown, "task_id": stale["job_id"]}

    (answer,) = await start(conn, stale)
    assert (answer["reason"], answer["db_status"], answer["db_attempt_id"]) == ("stale_attempt", "starting", 2)
    (answer,) = await start(conn, finished)
    assert (answer["reason"], answer["db_status"], answer["db_lease_owner"]) == ("already_finished", "error", None)
    assert said(await start(conn, back)) == [("refused", "not_in_expected_state")]
    (answer,) = await start(conn, theirs, owner="thief")
    assert (answer["reason"], answer["db_lease_owner"]) == ("lease_lost_or_owner_mismatch", "owner-1")
    assert said(await start(conn, unknown)) == [("refused", "not_found")]
    await pass_time(conn, 61)
    assert said(await start(conn, expired)) == [("refused", "lease_lost_or_owner_mismatch")]


async def test_a_batch_is_answered_row_by_row(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"), step("c"))
    a, b, c = await claim(conn, 3)
    await start(conn, b)
    answers = {row["id"]: row["answer"] for row in await start(conn, a, b, {**c, "attempt_id": 7})}
    assert answers == {a["task_id"]: "accepted", b["task_id"]: "repeated", c["task_id"]: "refused"}


async def test_a_heartbeat_extends_the_leases_and_says_that_the_node_is_there(conn: Connection):
    await node(conn)
    await conn.execute("UPDATE nodes SET awake_state = 'sleep', last_seen = NULL")
    made = await submit(conn, step("a"), step("b"))
    (a,) = await started(conn)
    (b,) = await claim(conn)
    await pass_time(conn, 50)
    answers = await heartbeat(conn, a, b)

    now = await clock(conn)
    assert said(answers) == [("accepted", None)] * 2
    for key in "ab":
        left = (await task(conn, made, key))["lease_until"] - now
        assert timedelta(seconds=55) < left <= timedelta(seconds=60)
    assert await conn.fetchval(
        "SELECT bool_and(l.lease_until = t.lease_until) FROM accs.live l JOIN job_tasks t ON t.id = l.task_id"
    )
    assert await conn.fetchval("SELECT awake_state FROM nodes") == "awake"
    assert await conn.fetchval("SELECT last_seen > accs.clock() - interval '5 s' FROM nodes")


async def test_a_heartbeat_without_tasks_is_the_nodes_own(conn: Connection):
    await node(conn)
    await pass_time(conn, 100)
    assert await heartbeat(conn) == []
    assert await conn.fetchval("SELECT last_seen > accs.clock() - interval '5 s' FROM nodes")


async def test_a_heartbeat_that_comes_too_late_or_from_another_is_refused(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"))
    a, b = await started(conn, 2)
    assert said(await heartbeat(conn, a, owner="thief")) == [("refused", "lease_lost_or_owner_mismatch")]
    await finish(conn, b)
    assert said(await heartbeat(conn, b)) == [("refused", "already_finished")]
    await pass_time(conn, 60)
    assert said(await heartbeat(conn, a)) == [("refused", "lease_lost_or_owner_mismatch")]
    await cancel(conn, made)
    assert said(await heartbeat(conn, a)) == [("refused", "already_finished")]


async def test_the_progress_of_a_job_is_exactly_the_mean_of_its_tasks(conn: Connection):
    await node(conn)
    made = await submit(conn, *(step(f"s{i}", max_attempts=2, backoff=[0]) for i in range(7)))
    random = Random(5)
    running = {row["task_key"]: row for row in await started(conn, 7)}
    # What each step adds: what it last reported while it lives, 0 while it waits, 1 once it has ended.
    adds = dict.fromkeys(running, Decimal(0))

    for _ in range(60):
        key = random.choice(sorted(running))
        value = Decimal(random.randint(-2000, 12_000)) / 10_000
        assert (await progress(conn, running[key], value))["answer"] == "accepted"
        adds[key] = min(Decimal(1), max(Decimal(0), value))
        if random.random() < 0.2:
            key = random.choice(sorted(running))
            await release(conn, running.pop(key))
            adds[key] = Decimal(0)
            running |= {row["task_key"]: row for row in await started(conn)}
        row = await job(conn, made)
        assert row["task_progress"] == sum(adds.values())
        assert abs(row["progress"] - sum(adds.values()) / 7) < Decimal("1e-12")

    for key in sorted(running)[:3]:
        await finish(conn, running.pop(key))
        adds[key] = Decimal(1)
        assert (await job(conn, made))["task_progress"] == sum(adds.values())
    key = sorted(running)[0]
    await fail(conn, running.pop(key))
    adds[key] = Decimal(0)
    assert (await job(conn, made))["task_progress"] == sum(adds.values())
    key = sorted(running)[0]
    await fail(conn, running.pop(key), permanent=True)
    adds[key] = Decimal(1)
    assert (await job(conn, made))["task_progress"] == sum(adds.values())
    while rest := await done(conn, 5):
        for row in rest:
            adds[row["task_key"]] = Decimal(1)
        assert (await job(conn, made))["task_progress"] == sum(adds.values())
    for row in running.values():
        await finish(conn, row)
    assert (await job(conn, made))["progress"] == 1


async def test_progress_is_clamped_rounded_and_written_as_an_event(conn: Connection):
    await node(conn)
    made = await submit(conn)
    (a,) = await started(conn)
    for given, kept in [(7, 1), (-3, 0), ("NaN", 1), ("0.123456", "0.1235")]:
        assert (await progress(conn, a, Decimal(given), message="frame"))["answer"] == "accepted"
        assert (await task(conn, made, "a"))["progress"] == Decimal(kept)
    event: Any = await conn.fetchrow("SELECT * FROM task_events WHERE type = 'progress' ORDER BY id DESC LIMIT 1")
    assert (event["source"], event["message"]) == ("service:render", "frame")
    assert (event["data"], event["attempt_id"]) == ({"progress": 0.1235}, 1)


async def test_a_report_without_a_figure_leaves_the_progress_as_it_was(conn: Connection):
    await node(conn)
    made = await submit(conn)
    (a,) = await started(conn)
    await progress(conn, a, Decimal("0.5"))
    await progress(conn, a, None, results={"frames": 12})
    row = await task(conn, made, "a")
    assert (row["progress"], row["results"]) == (Decimal("0.5"), {"frames": 12})
    await progress(conn, a, Decimal("0.6"))
    assert (await task(conn, made, "a"))["results"] == {"frames": 12}


async def test_progress_is_fenced_and_a_refusal_changes_nothing(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"))
    a, b = await claim(conn, 2)
    await start(conn, a)
    before = await dump(conn)
    half = Decimal("0.5")
    assert said([await progress(conn, b, half)]) == [("refused", "not_in_expected_state")]
    assert said([await progress(conn, a, half, owner="x")]) == [("refused", "lease_lost_or_owner_mismatch")]
    assert said([await progress(conn, {**a, "attempt_id": 0}, half)]) == [("refused", "stale_attempt")]
    too_large = {"text": "x" * 300_000}
    assert said([await progress(conn, a, half, results=too_large)]) == [("refused", "result_too_large")]
    assert await dump(conn) == before
