"""release_tasks and reclaim_tasks: work that comes back without having failed."""

from datetime import timedelta

from tests.support.cluster import Connection
from tests.support.factory import (
    Row,
    claim,
    clock,
    dead_letters,
    done,
    finish,
    job,
    moves,
    node,
    pass_time,
    release,
    started,
    step,
    submit,
    task,
    tasks,
)


async def reclaim(conn: Connection, limit: int = 100, grace: float = 1) -> list[Row]:
    return await conn.fetch("SELECT * FROM accs.reclaim_tasks($1, $2)", limit, timedelta(seconds=grace))


async def test_a_task_that_is_given_back_spends_no_attempt_and_is_claimable_at_once(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"))
    (a,) = await started(conn)
    (b,) = await claim(conn)
    answers = await release(conn, a, b, reason="draining")
    assert [row["answer"] for row in answers] == ["accepted", "accepted"]

    row = await task(conn, made, "a")
    assert (row["status"], row["attempt"], row["lost"], row["attempt_id"]) == ("queued", 0, 0, 1)
    assert (row["lease_owner"], row["next_attempt_at"], row["error_code"]) == (None, None, None)
    assert await moves(conn, a["task_id"]) == [("queued", "starting"), ("starting", "running"), ("running", "queued")]
    assert (await moves(conn, b["task_id"]))[-1] == ("starting", "queued")
    assert (
        await conn.fetchval("SELECT message FROM task_events WHERE data ->> 'outcome' = 'released' LIMIT 1")
        == "draining"
    )
    assert [(c["task_key"], c["attempt_id"]) for c in await claim(conn, 2)] == [("a", 2), ("b", 2)]


async def test_a_loss_says_what_was_lost_up_to_the_dead_letter(conn: Connection):
    await node(conn)
    made = await submit(conn)
    given_back = "SELECT * FROM accs.release_tasks($1, $2, 'owner-1', $3, true, NULL, $4)"
    losses = [("worker_lost", "gone")] * 3 + [("agent_disk", "the disk is full"), ("image_missing", "no such image")]
    for code, reason in losses:
        (a,) = await claim(conn)
        await conn.fetch(given_back, [a["task_id"]], [a["attempt_id"]], reason, code)
        row = await task(conn, made, "a")
        assert (row["error_code"], row["error_message"], row["attempt"]) == (code, reason, 0)
    (letter,) = await dead_letters(conn, made)
    assert (letter["reason"], letter["error_code"], letter["error_message"]) == (
        "lost_too_often",
        "image_missing",
        "no such image",
    )
    assert (await job(conn, made))["error_code"] == "image_missing"


async def test_a_code_means_nothing_where_nothing_was_lost(conn: Connection):
    await node(conn)
    made = await submit(conn)
    (a,) = await claim(conn)
    await conn.fetch(
        "SELECT accs.release_tasks($1, $2, 'owner-1', 'draining', p_code => 'agent_disk')",
        [a["task_id"]],
        [a["attempt_id"]],
    )
    assert (await task(conn, made, "a"))["error_code"] is None
    assert await conn.fetchval("SELECT count(*) FROM task_events WHERE data ? 'error_code'") == 0


async def test_a_task_can_be_given_back_for_later(conn: Connection):
    await node(conn)
    made = await submit(conn)
    await release(conn, *await started(conn), delay=timedelta(seconds=20))
    left = (await task(conn, made, "a"))["next_attempt_at"] - await clock(conn)
    assert timedelta(seconds=15) < left <= timedelta(seconds=20)
    assert await claim(conn) == []
    await pass_time(conn, 21)
    assert len(await claim(conn)) == 1


async def test_only_the_owner_of_a_good_lease_gives_back(conn: Connection):
    await node(conn)
    await submit(conn)
    (a,) = await started(conn)
    (answer,) = await release(conn, a, owner="thief")
    assert (answer["answer"], answer["reason"]) == ("refused", "lease_lost_or_owner_mismatch")
    await pass_time(conn, 61)
    (answer,) = await release(conn, a)
    assert (answer["answer"], answer["reason"]) == ("refused", "lease_lost_or_owner_mismatch")


async def test_a_task_given_back_as_lost_counts_among_the_losses(conn: Connection):
    await node(conn)
    made = await submit(conn)
    for _ in range(5):
        await release(conn, *await started(conn), lost=True, reason="the machine went away")
    row = await task(conn, made, "a")
    assert (row["status"], row["lost"], row["attempt"], row["error_code"]) == ("error", 5, 0, "worker_lost")
    assert [letter["reason"] for letter in await dead_letters(conn, made)] == ["lost_too_often"]


async def test_an_expired_lease_is_taken_back_after_the_grace_and_spends_no_attempt(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"))
    (a,) = await started(conn)
    (b,) = await claim(conn, lease=timedelta(seconds=300))
    await pass_time(conn, 60.5)
    assert await reclaim(conn) == []
    await pass_time(conn, 1)
    (answer,) = await reclaim(conn)

    assert (answer["id"], answer["answer"], answer["reason"]) == (a["task_id"], "accepted", None)
    row = await task(conn, made, "a")
    assert (row["status"], row["attempt"], row["lost"], row["error_code"]) == ("queued", 0, 1, "worker_lost")
    assert row["error_message"] == "owner-1 did not keep its lease"
    assert (await tasks(conn, made))["b"] == "starting"
    assert (await moves(conn, a["task_id"]))[-1] == ("running", "queued")
    assert await reclaim(conn) == []
    (again,) = await claim(conn, owner="owner-2")
    assert again["attempt_id"] == 2
    (late,) = await finish(conn, a)
    assert late["reason"] == "stale_attempt"
    del b


async def test_after_five_lost_owners_a_task_is_a_dead_letter(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b", after="a"))
    for lost in range(1, 6):
        assert len(await claim(conn)) == 1
        await pass_time(conn, 62)
        assert [row["answer"] for row in await reclaim(conn)] == ["accepted"]
        assert (await task(conn, made, "a"))["lost"] == lost
    assert await tasks(conn, made) == {"a": "error", "b": "skipped"}
    (letter,) = await dead_letters(conn, made)
    assert (letter["reason"], letter["error_code"]) == ("lost_too_often", "worker_lost")
    closed = await job(conn, made)
    assert (closed["status"], closed["error_code"]) == ("error", "worker_lost")


async def test_the_oldest_are_taken_back_first_as_many_as_asked(conn: Connection):
    await node(conn)
    await submit(conn, *(step(f"s{i}") for i in range(5)))
    claimed = [(await claim(conn, lease=timedelta(seconds=s)))[0] for s in (50, 10, 40, 20, 30)]
    await pass_time(conn, 100)
    first = await reclaim(conn, 2)
    assert {row["id"] for row in first} == {claimed[1]["task_id"], claimed[3]["task_id"]}
    assert len(await reclaim(conn, 100)) == 3


async def test_what_was_reported_before_the_loss_does_not_count_any_more(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b"))
    a, _ = await started(conn, 2)
    await conn.fetch("SELECT * FROM accs.report_progress($1, $2, 'owner-1', '{0.8}')", [a["task_id"]], [1])
    assert float((await job(conn, made))["progress"]) == 0.4
    await pass_time(conn, 62)
    await reclaim(conn)
    assert (await job(conn, made))["progress"] == 0
    await done(conn, 2)
    assert (await job(conn, made))["progress"] == 1
