"""The log of each node's power: one row for each change, and what a machine draws."""

from uuid import uuid4

import asyncpg
import pytest

from tests.support.cluster import Connection
from tests.support.factory import node, pass_time

Logged = list[tuple[str, str | None]]


async def logged(conn: Connection, name: str = "n1") -> Logged:
    rows = await conn.fetch("SELECT state, method FROM accs.power_log WHERE node = $1 ORDER BY ts, id", name)
    return [(row["state"], row["method"]) for row in rows]


async def call(conn: Connection, method: str = "wol", *, ok: bool = True) -> None:
    """One wake call, as a builder makes it."""
    after = await conn.fetchval("SELECT try_id FROM accs.power WHERE node = 'n1'")
    seen = await conn.fetchval("SELECT last_seen FROM nodes WHERE name = 'n1'")
    this = uuid4()
    assert await conn.fetchval("SELECT accs.claim_wake('n1', $1, $2, $3, $4)", this, method, after, seen) == "accepted"
    await conn.execute(
        "SELECT accs.record_wake('n1', $1, $2, NULL, 'it is called', $3)", this, ok, {"method": method, "ok": ok}
    )


async def test_a_night_of_a_node_is_one_row_for_each_change(conn: Connection):
    await node(conn, render=1)
    await conn.execute("SELECT accs.node_leaves('n1', 'sleep', 'nothing to do')")
    await conn.execute("SELECT accs.node_leaves('n1', 'sleep', 'nothing to do')")
    await pass_time(conn, 3600)
    await call(conn)
    await pass_time(conn, 40)
    await conn.execute("SELECT FROM accs.heartbeat('n1', 'n1', '{}', '{}', '1 min')")
    await conn.execute("SELECT FROM accs.heartbeat('n1', 'n1', '{}', '{}', '1 min')")
    assert await logged(conn) == [
        ("ready", None),
        ("asleep", None),
        ("waking", "wol"),
        ("booting", "wol"),
        ("ready", "wol"),
    ]
    rows = await conn.fetch("SELECT because, ts FROM accs.power_log WHERE state IN ('asleep', 'booting', 'ready')")
    assert [row["because"] for row in rows][1:3] == ["nothing to do", "it is called"]
    assert round((rows[-1]["ts"] - rows[-2]["ts"]).total_seconds()) == 40


async def test_a_call_that_does_not_get_through_leaves_the_node_asleep(conn: Connection):
    await node(conn)
    await conn.execute("SELECT accs.node_leaves('n1', 'sleep')")
    await call(conn, ok=False)
    await call(conn, "script")
    assert [state for state, _ in await logged(conn)] == ["ready", "asleep", "waking", "asleep", "waking", "booting"]


async def test_a_power_cut_shows_as_a_time_in_which_nobody_knew(conn: Connection):
    """Nothing wanted the node meanwhile, so nobody noticed; it says so itself when it comes back."""
    await node(conn)
    await pass_time(conn, 60)
    await conn.execute("SELECT FROM accs.heartbeat('n1', 'n1', '{}', '{}', '1 min')")
    await pass_time(conn, 1800)
    await node(conn)
    await node(conn)
    rows = await conn.fetch("SELECT state, ts FROM accs.power_log ORDER BY ts, id")
    assert [row["state"] for row in rows] == ["ready", "unknown", "ready"]
    assert round((rows[2]["ts"] - rows[1]["ts"]).total_seconds()) == 1800


async def test_watts_are_registered_kept_and_forgotten(conn: Connection):
    watts = {"asleep": 4, "booting": 120, "idle": 80, "busy": 300}
    register = "SELECT FROM accs.register_node('n1', p_watts => $1)"
    drawn = "SELECT watts FROM accs.power WHERE node = 'n1'"
    await conn.execute(register, watts)
    assert await conn.fetchval(drawn) == watts
    await conn.execute(register, None)
    assert await conn.fetchval(drawn) == watts, "null leaves it as it is"
    await conn.execute(register, {})
    assert await conn.fetchval(drawn) is None
    with pytest.raises(asyncpg.CheckViolationError):
        await conn.execute(register, {"idle": -1})


async def test_a_node_that_is_forgotten_takes_its_log_along(conn: Connection):
    await node(conn)
    await pass_time(conn, 300)
    assert await conn.fetchval("SELECT answer FROM accs.forget_node('n1')") == "accepted"
    assert await logged(conn) == []


async def test_what_is_older_than_400_days_goes_and_how_it_stood_then_stays_known(conn: Connection):
    await node(conn)
    for _ in range(3):
        await conn.execute("SELECT accs.node_leaves('n1', 'sleep')")
        await pass_time(conn, 3600)
        await node(conn)
        await pass_time(conn, 3600)
    await pass_time(conn, 400 * 86400)
    await conn.execute("SELECT accs.node_leaves('n1', 'sleep')")
    assert await conn.fetchval("SELECT accs.forget_statistics()") == 6
    assert await logged(conn) == [("ready", None), ("asleep", None)]
