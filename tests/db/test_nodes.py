"""register_node, forget_node, node_leaves: who is there, under which name, and what it offers."""

import asyncio
from datetime import timedelta

import asyncpg
import pytest

from tests.conftest import Connect
from tests.support.cluster import Connection
from tests.support.factory import (
    claim,
    done,
    node,
    pass_time,
    step,
    submit,
)
from tests.support.race import blocked


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


async def test_nobody_sleeps_with_a_lease_or_counting_on_somebody_who_is_not_awake(conn: Connection):
    await node(conn, render=1)
    await node(conn, "n2", render=1)
    await submit(conn)
    await claim(conn, on="n1")
    assert await conn.fetchval("SELECT accs.node_leaves('n1', 'sleep')") == "refused"
    leave = "SELECT accs.node_leaves('n2', 'sleep', 'idle', $1)"
    await conn.execute("UPDATE nodes SET awake_state = 'sleep' WHERE name = 'n1'")
    assert await conn.fetchval(leave, ["n1"]) == "refused"
    await conn.execute("SELECT accs.heartbeat('n1', 'n1', '{}', '{}', '60 s')")
    assert await conn.fetchval(leave, ["n1"]) == "accepted"
    assert await conn.fetchval(leave, ["n1"]) == "repeated"
