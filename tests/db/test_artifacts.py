"""record_artifact and task_inputs: the objects that attempts leave and are given."""

import asyncpg
import pytest

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


async def test_outputs_leave_with_earlier_attempts_only_whatever_else_is_said_of_the_task(conn: Connection):
    await node(conn)
    await submit(conn, step("a"))
    (old,) = await started(conn)
    await record(conn, old, "first.wav")
    await release(conn, old)
    (new,) = await started(conn)
    await record(conn, new, "second.wav")
    rows = await conn.fetch("SELECT * FROM accs.finish_tasks($1, '{2,9}', 'owner-1')", [new["task_id"]] * 2)
    assert rows[0]["answer"] == "accepted"
    assert await conn.fetchval("SELECT array_agg(key) FROM task_artifacts") == ["second.wav"]


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
