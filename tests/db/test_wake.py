"""Waking as a recorded state machine: each call, who makes it, what came of it, and what the node's history says."""

from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from tests.conftest import Connect
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.factory import Row, node, pass_time, submit
from tests.support.race import Race

LEASE = timedelta(seconds=120)


async def power(conn: Connection, name: str = "n1") -> Row:
    row = await conn.fetchrow("SELECT * FROM accs.power WHERE node = $1", name)
    assert row is not None
    return row


async def history(conn: Connection, name: str = "n1") -> list[tuple[str, str]]:
    rows = await conn.fetch("SELECT state, message FROM accs.node_history WHERE node = $1 ORDER BY id", name)
    return [(row["state"], row["message"]) for row in rows]


async def falls_asleep(conn: Connection, name: str = "n1") -> str:
    return await conn.fetchval("SELECT accs.node_leaves($1, 'sleep', 'idle for 5 min')", name)


async def claim_wake(
    conn: Connection, try_id: UUID, after: UUID | None = None, *, method: str = "wol", name: str = "n1"
) -> str:
    """By one who saw the node as it is now."""
    seen = await conn.fetchval("SELECT last_seen FROM nodes WHERE name = $1", name)
    return await conn.fetchval("SELECT accs.claim_wake($1, $2, $3, $4, $5)", name, try_id, method, after, seen)


async def record_wake(conn: Connection, try_id: UUID, job: UUID | None = None, *, ok: bool = True) -> str:
    data: dict[str, Any] = {"node": "n1"} if ok else {"node": "n1", "error": "no route"}
    return await conn.fetchval("SELECT accs.record_wake('n1', $1, $2, $3, 'said', $4)", try_id, ok, job, data)


async def call(
    conn: Connection, after: UUID | None = None, *, ok: bool = True, method: str = "wol", job: UUID | None = None
) -> UUID:
    try_id = uuid4()
    assert await claim_wake(conn, try_id, after, method=method) == "accepted"
    assert await record_wake(conn, try_id, job, ok=ok) == "accepted"
    return try_id


async def heartbeat(conn: Connection, name: str = "n1") -> None:
    await conn.fetch("SELECT * FROM accs.heartbeat($1, 'o', '{}', '{}', '1 min')", name)


async def test_a_node_goes_from_asleep_by_waking_and_booting_to_ready(conn: Connection):
    await node(conn)
    assert (await power(conn))["state"] == "ready"
    await falls_asleep(conn)
    assert (await power(conn))["state"] == "asleep"

    first = uuid4()
    assert await claim_wake(conn, first) == "accepted"
    assert (await power(conn))["state"] == "waking"
    await record_wake(conn, first, ok=False)
    assert ((await power(conn))["state"], (await power(conn))["error"]) == ("asleep", "no route")
    await call(conn, first, method="relay")
    assert ((await power(conn))["state"], (await power(conn))["tries"]) == ("booting", 2)
    await pass_time(conn, 40)
    await heartbeat(conn)

    row = await power(conn)
    assert (row["state"], row["tries"], row["brought_by"], row["because"]) == ("ready", 0, "relay", None)
    assert [state for state, _ in await history(conn)] == ["ready", "asleep", "asleep", "booting", "ready"]
    assert (await history(conn))[-1][1].startswith("it is there, 40")
    assert (await history(conn))[-1][1].endswith(" s after it was called by relay")


async def test_a_heartbeat_of_a_node_that_is_ready_changes_nothing(conn: Connection):
    await node(conn)
    before = await power(conn)
    for _ in range(3):
        await heartbeat(conn)
    assert await power(conn) == before
    assert len(await history(conn)) == 1


async def test_who_makes_a_call_must_have_known_the_last_one(conn: Connection):
    await node(conn)
    await falls_asleep(conn)
    first, second = uuid4(), uuid4()

    assert await claim_wake(conn, first) == "accepted"
    assert await claim_wake(conn, first) == "repeated", "the answer was lost, and it is asked again"
    assert await claim_wake(conn, uuid4()) == "refused", "he did not know of the first call"
    assert await claim_wake(conn, second, first) == "accepted"
    assert await claim_wake(conn, uuid4(), first) == "refused"
    assert await claim_wake(conn, uuid4(), name="nobody") == "refused"
    assert (await power(conn))["tries"] == 2


async def test_a_node_that_was_seen_between_plan_and_call_is_not_called(conn: Connection):
    await node(conn)
    await falls_asleep(conn)
    planned = await conn.fetchval("SELECT last_seen FROM nodes")
    await heartbeat(conn)
    answer = await conn.fetchval("SELECT accs.claim_wake('n1', $1, 'wol', NULL, $2)", uuid4(), planned)
    assert answer == "refused"
    assert (await power(conn))["state"] == "ready"


async def test_a_call_waits_for_a_heartbeat_that_is_under_way_and_is_refused_then(conn: Connection, connect: Connect):
    race = Race(connect, conn)
    await node(conn)
    await falls_asleep(conn)
    agent, builder = await race.session(), await race.session()
    async with agent.transaction():
        await heartbeat(agent)
        calling = await race.blocked(builder, claim_wake(builder, uuid4()), by=agent)
    assert await calling == "refused"


async def test_calls_are_counted_until_the_node_is_seen(conn: Connection):
    await node(conn)
    await falls_asleep(conn)
    last: UUID | None = None
    for expected in (1, 2, 3):
        last = await call(conn, last)
        assert (await power(conn))["tries"] == expected
    await heartbeat(conn)
    await falls_asleep(conn)
    await call(conn)
    assert (await power(conn))["tries"] == 1


async def test_the_end_of_a_call_is_an_event_of_the_job_once(conn: Connection):
    await node(conn)
    job = await submit(conn)
    await falls_asleep(conn)
    good = await call(conn, job=job)
    assert await record_wake(conn, good, job) == "repeated"
    await call(conn, good, ok=False, job=job)
    await call(conn, (await power(conn))["try_id"], job=None)

    rows = await conn.fetch("SELECT source, level, message, data FROM task_events WHERE type = 'wake' ORDER BY id")
    assert [tuple(row) for row in rows] == [
        ("builder", "info", "said", {"node": "n1"}),
        ("builder", "warn", "said", {"node": "n1", "error": "no route"}),
    ]
    await check(conn)


async def test_a_call_that_was_overtaken_is_history_and_changes_nothing(conn: Connection):
    await node(conn)
    await falls_asleep(conn)
    slow, fast = uuid4(), uuid4()
    await claim_wake(conn, slow)
    await claim_wake(conn, fast, slow)

    assert await record_wake(conn, slow, ok=False) == "accepted"
    assert ((await power(conn))["state"], (await power(conn))["ok"]) == ("waking", None)
    await heartbeat(conn)
    assert await record_wake(conn, fast) == "accepted"
    assert (await power(conn))["state"] == "ready", "it was there before the script that woke it ended"


async def test_the_latency_follows_what_is_measured_slowly(conn: Connection):
    await node(conn)
    for took, usual in ((40, 40), (40, 40), (140, 70)):
        await falls_asleep(conn)
        await call(conn)
        await pass_time(conn, took)
        await heartbeat(conn)
        row = await power(conn)
        assert abs(row["last_latency"] - timedelta(seconds=took)) < timedelta(seconds=3)
        assert abs(row["latency"] - timedelta(seconds=usual)) < timedelta(seconds=3)


async def test_who_was_switched_on_by_hand_long_after_a_call_has_measured_nothing(conn: Connection):
    await node(conn)
    await falls_asleep(conn)
    await call(conn, method="relay")
    await pass_time(conn, 3 * 86_400)
    await heartbeat(conn)
    row = await power(conn)
    assert (row["latency"], row["last_latency"], row["brought_by"]) == (None, None, None)
    assert (await history(conn))[-1] == ("ready", "it is there")


async def test_the_latency_is_that_of_the_last_call_that_got_through_or_of_the_one_under_way(conn: Connection):
    await node(conn)
    await falls_asleep(conn)
    last = await call(conn)
    await pass_time(conn, 600)
    last = await call(conn, last, method="relay")
    await call(conn, last, ok=False, method="script")
    await pass_time(conn, 30)
    await heartbeat(conn)
    assert abs((await power(conn))["last_latency"] - timedelta(seconds=30)) < timedelta(seconds=3)
    assert (await power(conn))["brought_by"] == "relay"

    await falls_asleep(conn)
    await claim_wake(conn, uuid4(), method="script")
    await pass_time(conn, 50)
    await heartbeat(conn)
    assert abs((await power(conn))["last_latency"] - timedelta(seconds=50)) < timedelta(seconds=3)
    assert (await power(conn))["brought_by"] == "script"


async def test_a_node_that_comes_by_itself_measures_nothing(conn: Connection):
    await node(conn)
    await falls_asleep(conn)
    await pass_time(conn, 600)
    await heartbeat(conn)
    assert ((await power(conn))["latency"], (await power(conn))["last_latency"]) == (None, None)
    assert (await history(conn))[-1] == ("ready", "it is there")


async def test_the_builder_hears_of_a_node_that_came_when_it_was_called(conn: Connection):
    await node(conn)
    heard: list[str] = []
    await conn.add_listener("accs_builder", lambda *said: heard.append(said[-1]))
    await falls_asleep(conn)
    await heartbeat(conn)
    await conn.fetchval("SELECT 1")
    assert heard == []
    await falls_asleep(conn)
    await call(conn)
    await heartbeat(conn)
    await conn.fetchval("SELECT 1")
    assert heard == [""]


async def test_history_keeps_the_last_thousand_things_of_each_node(conn: Connection):
    await node(conn)
    await node(conn, "n2")
    await conn.execute("SELECT accs.note_power('n1', 'ready', 'thing ' || i) FROM generate_series(1, 1100) i")
    rows = await history(conn)
    assert (len(rows), rows[0][1], rows[-1][1]) == (1000, "thing 101", "thing 1100")
    assert len(await history(conn, "n2")) == 1


# Why not


async def not_woken(conn: Connection, because: str, *, failed: bool = False, after: UUID | None = None) -> int:
    query = "SELECT accs.note_not_woken(ARRAY['n1'], $1, $2, $3, $4)"
    return await conn.fetchval(query, [after], [failed], [because], LEASE)


async def test_why_a_node_is_not_woken_is_noted_where_it_is_news(conn: Connection):
    await node(conn)
    assert await not_woken(conn, "it sleeps") == 0, "it is awake"
    await falls_asleep(conn)
    assert await not_woken(conn, "others suffice") == 1
    assert await not_woken(conn, "others suffice") == 0
    assert ((await power(conn))["state"], (await power(conn))["because"]) == ("asleep", "others suffice")


async def test_a_failed_node_is_failed_until_it_is_called_again_or_seen(conn: Connection):
    await node(conn)
    await falls_asleep(conn)
    last = await call(conn)
    assert await not_woken(conn, "3 calls", failed=True, after=last) == 1
    assert ((await power(conn))["state"], (await history(conn))[-1]) == ("failed", ("failed", "3 calls"))
    last = await call(conn, last)
    assert (await power(conn))["state"] == "booting"
    assert await not_woken(conn, "4 calls", failed=True, after=last) == 1
    await heartbeat(conn)
    assert (await power(conn))["state"] == "ready"


async def test_what_was_planned_before_the_last_call_is_not_noted(conn: Connection):
    await node(conn)
    await falls_asleep(conn)
    await call(conn)
    assert await not_woken(conn, "others suffice") == 0
    assert (await power(conn))["state"] == "booting"


async def test_a_node_that_fell_silent_is_unknown_and_one_that_never_registered_is_noted_too(conn: Connection):
    await node(conn)
    await pass_time(conn, 121)
    assert await not_woken(conn, "nothing for it") == 1
    assert (await power(conn))["state"] == "unknown"
    await conn.execute("DELETE FROM nodes")
    await conn.execute("INSERT INTO nodes (name) VALUES ('n1')")
    assert await not_woken(conn, "nothing for it") == 1
    assert (await power(conn))["because"] == "nothing for it"


# Neighbours


async def test_relays_are_neighbours_who_are_awake(conn: Connection):
    register = "SELECT * FROM accs.register_node($1, p_networks => $2::text[]::cidr[])"
    for name, networks in {
        "n1": ["10.0.1.0/24"],
        "near": ["10.0.1.0/24", "10.0.2.0/24"],
        "far": ["10.0.2.0/24"],
        "asleep": ["10.0.1.0/24"],
    }.items():
        await conn.fetch(register, name, networks)
    await falls_asleep(conn)
    await falls_asleep(conn, "asleep")
    relays = "SELECT relays FROM accs.wake_nodes($1) WHERE name = 'n1'"
    assert await conn.fetchval(relays, LEASE) == ["near"]
    await pass_time(conn, 121)
    assert await conn.fetchval(relays, LEASE) == []
