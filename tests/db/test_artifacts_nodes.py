"""record_artifact, task_inputs, register_node and node_leaves."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.factory import (
    Claimed,
    Row,
    claim,
    done,
    fail,
    finish,
    node,
    pass_time,
    release,
    started,
    step,
    submit,
)
from tests.support.race import blocked


async def record(conn: Connection, claimed: Claimed, key: str, kind: str = "output", owner: str = "owner-1") -> Row:
    row = await conn.fetchrow(
        "SELECT * FROM accs.record_artifact($1, $2, $3, $4, 'media', $5, 12, 'audio/wav', 'sha256:00')",
        claimed["task_id"],
        claimed["attempt_id"],
        owner,
        kind,
        key,
    )
    assert row is not None
    return row


async def test_an_artifact_is_recorded_once_with_its_event(conn: Connection):
    await node(conn)
    made = await submit(conn)
    (a,) = await started(conn)
    first = await record(conn, a, "outputs/x.wav")
    assert (first["answer"], first["reason"]) == ("accepted", None)
    again = await record(conn, a, "outputs/x.wav")
    assert (again["answer"], again["artifact_id"]) == ("repeated", first["artifact_id"])

    (row,) = await conn.fetch("SELECT * FROM task_artifacts")
    assert (row["job_id"], row["job_task_id"], row["attempt_id"]) == (made, a["task_id"], 1)
    assert (row["kind"], row["bucket"], row["key"], row["size_bytes"]) == ("output", "media", "outputs/x.wav", 12)
    assert (row["content_type"], row["checksum"]) == ("audio/wav", "sha256:00")
    (event,) = await conn.fetch("SELECT * FROM task_events WHERE type = 'artifact'")
    assert (event["message"], event["data"]["artifact_id"]) == ("outputs/x.wav", first["artifact_id"])


async def test_an_artifact_is_fenced_like_every_write_of_an_attempt(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"), step("c"))
    old, ended, late = await started(conn, 3)
    await release(conn, old)
    (new,) = await claim(conn)
    await record(conn, ended, "early.wav")
    await finish(conn, ended)
    assert (await record(conn, old, "x.wav"))["reason"] == "stale_attempt"
    assert (await record(conn, new, "x.wav", owner="thief"))["reason"] == "lease_lost_or_owner_mismatch"
    assert (await record(conn, ended, "y.wav"))["reason"] == "already_finished"
    assert (await record(conn, ended, "early.wav"))["answer"] == "repeated"
    assert (await record(conn, {"task_id": late["job_id"], "attempt_id": 1}, "z.wav"))["reason"] == "not_found"
    assert (await record(conn, new, "x.wav"))["answer"] == "accepted"
    await pass_time(conn, 61)
    assert (await record(conn, late, "z.wav"))["reason"] == "lease_lost_or_owner_mismatch"


async def test_a_key_that_another_task_or_attempt_has_taken_is_refused(conn: Connection):
    await node(conn)
    await submit(conn, step("a"), step("b"))
    a, b = await started(conn, 2)
    taken = await record(conn, a, "x.wav")
    other = await record(conn, b, "x.wav")
    assert (other["answer"], other["reason"], other["artifact_id"]) == ("refused", "key_taken", taken["artifact_id"])
    await release(conn, a)
    (again,) = await claim(conn)
    assert (await record(conn, again, "x.wav"))["reason"] == "key_taken"


async def test_done_removes_the_outputs_of_earlier_attempts_and_keeps_their_logs(conn: Connection):
    await node(conn)
    await submit(conn, step("a", backoff=[0]))
    (first,) = await started(conn)
    await record(conn, first, "1/x.wav")
    await record(conn, first, "1/log.jsonl", "log")
    await record(conn, first, "1/in.wav", "input")
    await fail(conn, first)
    assert await conn.fetchval("SELECT count(*) FROM task_artifacts") == 3  # until something better is there
    (second,) = await started(conn)
    await record(conn, second, "2/x.wav")
    await finish(conn, second)
    rows = await conn.fetch("SELECT key FROM task_artifacts ORDER BY key")
    assert [row["key"] for row in rows] == ["1/in.wav", "1/log.jsonl", "2/x.wav"]


async def test_an_artifact_of_an_unknown_kind_or_negative_size_is_refused(conn: Connection):
    await node(conn)
    await submit(conn)
    (a,) = await started(conn)
    with pytest.raises(asyncpg.CheckViolationError):
        await record(conn, a, "x", "picture")
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute("SELECT accs.record_artifact($1, 1, 'owner-1', 'output', 'media', 'x', -1)", a["task_id"])


async def inputs(conn: Connection, claimed: Claimed, owner: str = "owner-1") -> list[tuple[str | None, str, str]]:
    rows = await conn.fetch(
        "SELECT * FROM accs.task_inputs($1, $2, $3)", claimed["task_id"], claimed["attempt_id"], owner
    )
    return [(row["task_key"], row["kind"], row["key"]) for row in rows]


async def test_a_task_gets_what_its_direct_dependencies_put_out_and_the_inputs_of_its_job(conn: Connection):
    await node(conn)
    made = await submit(conn, step("a"), step("b", after="a"), step("c"), step("d", after="c b"), step("aside"))
    await conn.execute(
        "INSERT INTO task_artifacts (job_id, kind, bucket, key, size_bytes) VALUES ($1, 'input', 'media', 'in.wav', 5)",
        made,
    )
    for key in ("a", "b", "c"):
        (held,) = await started(conn)
        assert held["task_key"] == key
        if key == "b":
            assert await inputs(conn, held) == [(None, "input", "in.wav"), ("a", "output", "a/out")]
        await record(conn, held, f"{key}/out")
        await record(conn, held, f"{key}/log", "log")
        await finish(conn, held)
    (d,) = await started(conn)
    await record(conn, d, "d/in", "input")
    await record(conn, d, "d/out")
    assert await inputs(conn, d) == [
        (None, "input", "in.wav"),
        ("d", "input", "d/in"),
        ("c", "output", "c/out"),
        ("b", "output", "b/out"),
    ]
    (whole,) = await conn.fetch("SELECT * FROM accs.task_inputs($1, 1, 'owner-1') WHERE key = 'c/out'", d["task_id"])
    assert (whole["bucket"], whole["size_bytes"], whole["content_type"]) == ("media", 12, "audio/wav")
    assert whole["checksum"] == "sha256:00"


async def test_what_an_attempt_left_that_did_not_finish_is_no_input(conn: Connection):
    await node(conn)
    await submit(conn, step("a", backoff=[0]), step("b", after="a"))
    (first,) = await started(conn)
    await record(conn, first, "1/out")
    await fail(conn, first)
    await done(conn)
    (b,) = await started(conn)
    assert await inputs(conn, b) == []


async def test_inputs_are_told_only_to_the_attempt_that_holds_the_lease(conn: Connection):
    await node(conn)
    await submit(conn)
    (old,) = await started(conn)
    await release(conn, old)
    (new,) = await claim(conn)
    for who, owner, why in ((old, "owner-1", "stale_attempt"), (new, "thief", "lease_lost_or_owner_mismatch")):
        with pytest.raises(asyncpg.PostgresError, match=why) as refused:
            await inputs(conn, who, owner)
        assert refused.value.sqlstate == "AC002"
    assert await inputs(conn, new) == []
    await pass_time(conn, 61)
    with pytest.raises(asyncpg.PostgresError, match="lease_lost_or_owner_mismatch"):
        await inputs(conn, new)


async def test_a_node_says_goodbye_and_keeps_when_it_was_seen(conn: Connection):
    await node(conn)
    seen = await conn.fetchval("SELECT last_seen FROM nodes")
    await pass_time(conn, 50)
    for state in ("unknown", "sleep"):
        assert await conn.fetchval("SELECT accs.node_leaves('n1', $1)", state) == "accepted"
        assert await conn.fetchval("SELECT accs.node_leaves('n1', $1)", state) == "repeated"
        assert tuple(await conn.fetch("SELECT awake_state, last_seen FROM nodes")) == ((state, seen),)
    assert await conn.fetchval("SELECT accs.node_leaves('n1')") == "accepted"
    await node(conn)
    assert await conn.fetchval("SELECT awake_state FROM nodes") == "awake"
    with pytest.raises(asyncpg.PostgresError, match='node "n7" is not registered'):
        await conn.execute("SELECT accs.node_leaves('n7')")


async def test_a_node_is_registered_and_says_anew_what_it_offers(conn: Connection):
    row = await conn.fetchrow(
        "SELECT * FROM accs.register_node('n1', '{\"gpu\": true}', '{\"render\": 2}', 'wol', 'aa:bb:cc:dd:ee:ff')"
    )
    assert row is not None
    assert (row["labels"], row["max_concurrency"], row["awake_state"]) == ({"gpu": True}, {"render": 2}, "awake")
    assert (row["wake_method"], row["mac"]) == ("wol", "aa:bb:cc:dd:ee:ff")
    await pass_time(conn, 50)
    again = await conn.fetchrow("SELECT * FROM accs.register_node('n1', NULL, '{\"render\": 3}')")
    assert again is not None
    assert (again["labels"], again["max_concurrency"], again["mac"]) == ({"gpu": True}, {"render": 3}, row["mac"])
    assert again["last_seen"] - row["last_seen"] >= timedelta(seconds=50)
    assert await conn.fetchval("SELECT count(*) FROM nodes") == 1


async def test_a_node_that_was_inserted_by_hand_can_claim(conn: Connection):
    await conn.execute("INSERT INTO nodes (name) VALUES ('n1')")
    row = await conn.fetchrow("SELECT * FROM nodes")
    assert row is not None
    assert (row["labels"], row["max_concurrency"], row["awake_state"], row["last_seen"]) == ({}, {}, "unknown", None)
    await submit(conn)
    assert len(await done(conn)) == 1


async def test_what_a_node_says_must_be_objects_and_known_words(conn: Connection):
    for bad in (
        "labels) VALUES ('n', '[1]')",
        "max_concurrency) VALUES ('n', '5')",
        "awake_state) VALUES ('n', 'tired')",
    ):
        with pytest.raises(asyncpg.CheckViolationError):
            await conn.execute(f"INSERT INTO nodes (name, {bad}")


@pytest.mark.parametrize("offer", ['{"render": "x"}', '{"render": -1}', '{"render": 1.5}', '{"render": null}'])
async def test_a_capacity_that_is_no_whole_number_is_refused_before_a_claim_could_stumble_over_it(
    conn: Connection, offer: str
):
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute("SELECT name FROM accs.register_node('n', '{}', $1::text::jsonb)", offer)


async def register(conn: Connection, name: str = "n1", *, boot: str | None, instance: str, machine: str = "m") -> None:
    await conn.execute(
        "SELECT FROM accs.register_node($1, p_machine_id => $2, p_boot_id => $3, p_instance => $4, p_lease => '60 s')",
        name,
        machine,
        boot,
        instance,
    )


async def beat(conn: Connection, instance: str, name: str = "n1") -> None:
    await conn.execute("SELECT accs.heartbeat($1, $1, '{}', '{}', '60 s', $2)", name, instance)


async def test_two_machines_with_one_name_are_told_apart_by_their_boots(conn: Connection):
    await register(conn, boot="b1", instance="i1")
    await register(conn, boot="b1", instance="i2")  # its agent was restarted
    await beat(conn, "i2")
    with pytest.raises(asyncpg.PostgresError, match="is taken: machine m, boot b1, process i2") as caught:
        await register(conn, boot="b2", instance="clone")  # a clone of its disk: the same machine id
    assert caught.value.sqlstate == "AC007"
    with pytest.raises(asyncpg.PostgresError, match="is taken"):
        await beat(conn, "clone")
    await beat(conn, "i2")
    await pass_time(conn, 61)
    await register(conn, boot="b3", instance="i3", machine="other")  # a replaced machine: the old one is silent
    with pytest.raises(asyncpg.PostgresError, match="boot b3"):
        await beat(conn, "i2")  # it was asleep, and hears that it is not itself any more
    said = await conn.fetchval("SELECT message FROM accs.node_history WHERE state = 'registered'")
    assert said == "another machine has taken the name over: other, before it m"


async def test_a_machine_that_said_goodbye_may_come_back_at_once(conn: Connection):
    await register(conn, boot="b1", instance="i1")
    await conn.execute("SELECT accs.node_leaves('n1')")
    await register(conn, boot="b2", instance="i2")
    said = await conn.fetchval("SELECT message FROM accs.node_history WHERE state = 'registered'")
    assert said == "its machine has started anew"


async def test_of_two_machines_that_register_at_the_same_moment_one_is_refused(conn: Connection, connect: Connect):
    first, second = await connect(), await connect()
    async with first.transaction():
        await register(first, boot="b1", instance="i1")
        both = asyncio.ensure_future(register(second, boot="b2", instance="i2"))
        await blocked(second, conn)
    with pytest.raises(asyncpg.PostgresError, match="is taken"):
        await both


async def test_a_worker_without_a_machine_is_told_apart_by_its_process(conn: Connection):
    await register(conn, boot=None, instance="i1")
    await register(conn, boot=None, instance="i2")
    with pytest.raises(asyncpg.PostgresError, match="is taken"):
        await beat(conn, "i1")


async def test_a_machine_that_is_no_more_is_forgotten_with_all_that_was_known_of_it(conn: Connection):
    async def forget() -> tuple[str, str | None]:
        (row,) = await conn.fetch("SELECT * FROM accs.forget_node('n1')")
        return row["answer"], row["reason"]

    assert await forget() == ("refused", "not_found")
    await node(conn, render=1)
    await submit(conn, step("a"))
    assert await forget() == ("refused", "is_here")
    (task,) = await claim(conn)
    await pass_time(conn, 300)
    assert await forget() == ("refused", "holds_tasks")
    await conn.execute("SELECT accs.reclaim_tasks(); SELECT accs.pause('node', 'n1')")
    assert await forget() == ("accepted", None)
    for table in ("nodes", "accs.power", "accs.slots", "accs.pauses", "accs.node_history"):
        assert await conn.fetchval(f"SELECT count(*) FROM {table}") == 0, table
    with pytest.raises(asyncpg.PostgresError, match="is not registered"):
        await beat(conn, "i1")
    await node(conn)
    assert [row["task_id"] for row in await claim(conn)] == [task["task_id"]]


async def test_a_sight_of_a_node_is_within_the_calendar(conn: Connection):
    """A row that no program can read would keep the builder from waking anybody."""
    for far in ("infinity", "-infinity", "12000-01-01", "4713-01-01 BC"):
        with pytest.raises(asyncpg.CheckViolationError):
            await conn.execute(f"INSERT INTO nodes (name, last_seen) VALUES ('n', '{far}')")
