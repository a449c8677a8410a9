"""accs.why: a wait always has a reason. Each blocker is made once, and asked for."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.support.cluster import Connection
from tests.support.factory import (
    Row,
    cancel,
    claim,
    clock,
    done,
    fail,
    job,
    node,
    pass_time,
    release,
    started,
    step,
    submit,
    submit_to,
    task,
    workflow,
)

pytestmark = pytest.mark.every_postgresql


async def why(conn: Connection, job_id: UUID, key: str | None = None) -> dict[str, Row]:
    """By blocker; of several of one kind the last."""
    about = job_id if key is None else (await task(conn, job_id, key))["id"]
    return {row["blocker"]: row for row in await conn.fetch("SELECT * FROM accs.why($1)", about)}


async def sole(conn: Connection, job_id: UUID, blocker: str, key: str | None = "a") -> Row:
    found = await why(conn, job_id, key)
    assert list(found) == [blocker], found
    return found[blocker]


async def offer(conn: Connection, name: str = "n1", labels: dict[str, Any] | None = None, slots: int = 1) -> None:
    await node(conn, name, labels, render=slots)


async def falls_asleep(conn: Connection, name: str = "n1") -> None:
    await conn.fetch("SELECT accs.node_leaves($1, 'sleep')", name)


async def pause(conn: Connection, kind: str, name: str) -> None:
    await conn.fetch("SELECT accs.pause($1, $2, 'maintenance', 'ann')", kind, name)


PAUSED = {"reason": "maintenance", "by": "ann"}


# Before there are tasks


async def test_a_job_that_is_not_due_says_until_when(conn: Connection):
    due = await clock(conn) + timedelta(hours=1)
    job_id = await submit(conn, scheduled_at=due)
    row = await sole(conn, job_id, "not_due", None)
    assert (row["until"], row["since"]) == (due, (await job(conn, job_id))["created_at"])


async def test_a_due_job_that_no_builder_has_taken_says_since_when_and_that_no_daemon_is_there(conn: Connection):
    shape = await workflow(conn, name="media")
    job_id = await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", shape)
    await pause(conn, "workflow", "media")
    found = await why(conn, job_id)
    assert list(found) == ["not_instantiated", "workflow_paused"]
    assert found["not_instantiated"]["detail"] == {"daemons": 0}
    assert found["not_instantiated"]["since"] == (await job(conn, job_id))["created_at"]


async def test_what_nobody_knows_is_not_found(conn: Connection):
    with pytest.raises(asyncpg.PostgresError) as refused:
        await conn.fetch("SELECT * FROM accs.why($1)", uuid4())
    assert refused.value.sqlstate == "AC004"


# What keeps a task by itself


async def test_each_unfinished_dependency_is_a_blocker_with_its_state(conn: Connection):
    await offer(conn, slots=2)
    job_id = await submit(conn, step("x"), step("y"), step("z"), step("a", after="x y z"))
    await done(conn)
    await started(conn)
    y = await task(conn, job_id, "y")
    rows = await conn.fetch("SELECT * FROM accs.why($1)", (await task(conn, job_id, "a"))["id"])
    assert [(row["blocker"], row["detail"]["task_key"], row["detail"]["status"]) for row in rows] == [
        ("dependency", "y", "running"),
        ("dependency", "z", "queued"),
    ]
    assert (rows[0]["since"], rows[0]["detail"]["task_id"]) == (y["started_at"], str(y["id"]))


async def test_a_backoff_says_until_when_and_what_failed_last(conn: Connection):
    await offer(conn)
    job_id = await submit(conn, step("a", backoff=[30]))
    await fail(conn, *await started(conn))
    row = await sole(conn, job_id, "backoff")
    assert row["until"] - row["since"] == timedelta(seconds=30)
    assert {"error_code": "boom", "error_message": "it broke", "attempt": 1, "max_attempts": 3}.items() <= row[
        "detail"
    ].items()


async def test_a_backoff_that_is_over_is_no_blocker_any_more(conn: Connection):
    await offer(conn)
    job_id = await submit(conn, step("a", backoff=[30]))
    await fail(conn, *await started(conn))
    due = (await task(conn, job_id, "a"))["next_attempt_at"]
    await pass_time(conn, 40)
    await offer(conn)
    assert (await sole(conn, job_id, "unclaimed"))["since"] == due


async def test_a_paused_service_and_a_paused_workflow_are_both_named(conn: Connection):
    await offer(conn)
    job_id = await submit_to(conn, await workflow(conn, name="media"))
    await pause(conn, "service", "render")
    await pause(conn, "workflow", "media")
    found = await why(conn, job_id, "a")
    assert {name: row["detail"] for name, row in found.items()} == {
        "service_paused": {"name": "render", **PAUSED},
        "workflow_paused": {"name": "media", **PAUSED},
    }
    assert found["service_paused"]["since"] is not None


async def test_a_taken_concurrency_key_names_those_who_hold_it(conn: Connection):
    await offer(conn, slots=9)
    shape = await workflow(conn, step("a", concurrency_key="licence", concurrency_limit=1))
    holder = await submit_to(conn, shape)
    await started(conn)
    await submit_to(conn, shape)
    last = await submit_to(conn, shape)
    detail = (await sole(conn, last, "key"))["detail"]
    assert (detail["key"], detail["limit"], detail["taken"], detail["ahead"]) == ("licence", 1, 1, 1)
    assert [(by["job_id"], by["node"]) for by in detail["by"]] == [(str(holder), "n1")]


async def test_a_place_that_was_lost_is_damage(conn: Connection):
    await offer(conn)
    job_id = await submit(conn, step("a"))
    await conn.execute("DELETE FROM accs.waiting")
    await sole(conn, job_id, "misplaced")


# Nodes


async def test_without_a_node_that_offers_the_service(conn: Connection):
    await node(conn, "n1", audio=1)
    await offer(conn, "n2", slots=0)
    job_id = await submit(conn, step("a"))
    detail = (await sole(conn, job_id, "service_not_offered"))["detail"]
    assert detail == {"service": "render", "nodes": 2, "without_slots": ["n2"]}


async def test_labels_that_no_node_has_name_the_nearest_one_and_what_it_lacks(conn: Connection):
    await offer(conn, "far", {"gpu": False})
    await offer(conn, "near", {"gpu": True, "zone": "b"})
    job_id = await submit(conn, step("a", requires={"gpu": True, "zone": "a"}))
    detail = (await sole(conn, job_id, "labels"))["detail"]
    assert (detail["nearest"], detail["missing"]) == ("near", {"zone": {"wanted": "a", "has": "b"}})


async def test_a_named_node_that_is_unknown_or_does_not_offer_the_service(conn: Connection):
    await offer(conn)
    job_id = await submit(conn, step("a", node="n9"))
    assert (await sole(conn, job_id, "node_unknown"))["detail"] == {"node": "n9"}
    await node(conn, "n9", audio=1)
    assert (await sole(conn, job_id, "service_not_offered"))["detail"]["node"] == "n9"


async def test_a_named_node_that_is_asleep_is_the_blocker_although_others_are_free(conn: Connection):
    await offer(conn)
    await offer(conn, "n9")
    await falls_asleep(conn, "n9")
    job_id = await submit(conn, step("a", node="n9"))
    assert (await sole(conn, job_id, "node_asleep"))["detail"]["node"] == "n9"


async def test_full_nodes_name_what_they_run(conn: Connection):
    await offer(conn)
    holder = await submit(conn, step("a"))
    await started(conn)
    job_id = await submit(conn, step("a"))
    detail = (await sole(conn, job_id, "node_full"))["detail"]
    assert (detail["node"], detail["slots"], detail["live"]) == ("n1", 1, 1)
    assert [by["job_id"] for by in detail["by"]] == [str(holder)]


async def test_sleeping_nodes_tell_how_far_waking_them_has_come(conn: Connection):
    await conn.fetch("SELECT * FROM accs.register_node('n1', '{}', '{\"render\": 1}', 'wol', '52:54:00:00:00:01')")
    await falls_asleep(conn)
    job_id = await submit(conn, step("a"))
    before = (await sole(conn, job_id, "node_asleep"))["detail"]
    assert before["power"] == "asleep"
    assert "tried_at" not in before
    try_id = uuid4()
    seen = await conn.fetchval("SELECT last_seen FROM nodes")
    await conn.fetch("SELECT accs.claim_wake('n1', $1, 'wol', NULL, $2)", try_id, seen)
    assert (await sole(conn, job_id, "node_asleep"))["detail"]["power"] == "waking"
    await conn.fetch(
        "SELECT accs.record_wake('n1', $1, false, $2, 'said', '{\"error\": \"no route\"}')", try_id, job_id
    )
    detail = (await sole(conn, job_id, "node_asleep"))["detail"]
    assert (detail["method"], detail["tried_ok"], detail["tries"], detail["error"]) == ("wol", False, 1, "no route")
    await conn.fetch("SELECT accs.note_not_woken('{n1}', ARRAY[$1::uuid], '{true}', '{in vain}', '1 min')", try_id)
    detail = (await sole(conn, job_id, "node_asleep"))["detail"]
    assert (detail["power"], detail["because"]) == ("failed", "in vain")


async def test_a_node_that_was_not_seen_for_a_lease_is_away_since_it_was_last_seen(conn: Connection):
    await offer(conn)
    seen = await conn.fetchval("SELECT last_seen FROM nodes")
    job_id = await submit(conn, step("a"))
    await pass_time(conn, 3600)
    assert (await sole(conn, job_id, "node_away"))["since"] == seen


async def test_drained_nodes_say_why_and_by_whom(conn: Connection):
    await offer(conn)
    await offer(conn, "n2")
    await pause(conn, "node", "n1")
    job_id = await submit(conn, step("a"))
    assert (await sole(conn, job_id, "unclaimed"))["detail"]["nodes"] == ["n2"]
    await pause(conn, "node", "n2")
    rows = await conn.fetch("SELECT * FROM accs.why($1)", (await task(conn, job_id, "a"))["id"])
    assert [(row["blocker"], row["detail"]["node"]) for row in rows] == [("node_drained", "n1"), ("node_drained", "n2")]
    assert (rows[0]["detail"]["reason"], rows[0]["detail"]["drained_by"]) == ("maintenance", "ann")


async def test_nodes_that_are_only_busy_do_not_blur_why_a_blocked_task_waits(conn: Connection):
    await offer(conn)
    job_id = await submit(conn, step("x"), step("a", after="x"))
    await started(conn)
    await sole(conn, job_id, "dependency")
    await pause(conn, "node", "n1")
    assert set(await why(conn, job_id, "a")) == {"dependency", "node_drained"}


async def test_what_is_claimable_and_not_claimed_says_since_when_and_how_many_are_ahead(conn: Connection):
    await offer(conn, slots=5)
    await submit(conn, step("a"))
    job_id = await submit(conn, step("a"))
    row = await sole(conn, job_id, "unclaimed")
    assert row["detail"] == {"service": "render", "nodes": ["n1"], "ahead": 1}
    assert row["since"] == (await task(conn, job_id, "a"))["created_at"]


# Live and ended


async def test_what_runs_says_where_since_when_and_how_long_its_lease_is(conn: Connection):
    await offer(conn)
    job_id = await submit(conn, step("a"))
    await claim(conn)
    assert (await sole(conn, job_id, "starting"))["detail"]["node"] == "n1"
    held = await task(conn, job_id, "a")
    await conn.fetch("SELECT accs.start_tasks($1, $2, 'owner-1')", [held["id"]], [held["attempt_id"]])
    row = await sole(conn, job_id, "running")
    assert (row["until"], row["detail"]["is_expired"]) == (held["lease_until"], False)
    await pass_time(conn, 3600)
    assert (await sole(conn, job_id, "running"))["detail"]["is_expired"] is True


async def test_what_failed_names_its_dead_letter_and_what_was_skipped_names_the_failure(conn: Connection):
    await offer(conn)
    job_id = await submit(conn, step("a", max_attempts=1), step("b", after="a"))
    await fail(conn, *await started(conn))
    letter = await conn.fetchval("SELECT id FROM dead_letters")
    detail = (await sole(conn, job_id, "error"))["detail"]
    assert (detail["error_code"], detail["dead_letter"], detail["reason"]) == ("boom", letter, "attempts_exhausted")
    assert (await sole(conn, job_id, "skipped", "b"))["detail"]["failed"] == ["a"]
    assert (await sole(conn, job_id, "error", None))["detail"]["error_code"] == "boom"


async def test_done_and_cancelled_say_so(conn: Connection):
    await offer(conn)
    job_id = await submit(conn, step("a"), step("b"))
    await done(conn)
    await sole(conn, job_id, "done")
    await cancel(conn, job_id, reason="not needed")
    assert (await sole(conn, job_id, "cancelled", "b"))["detail"]["error_message"] == "not needed"


async def test_given_back_with_a_delay_is_a_backoff_that_blames_nobody(conn: Connection):
    await offer(conn)
    job_id = await submit(conn, step("a"))
    await release(conn, *await started(conn), delay=timedelta(seconds=20))
    detail = (await sole(conn, job_id, "backoff"))["detail"]
    assert (detail["outcome"], "error_code" in detail) == ("released", False)
