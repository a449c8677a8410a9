"""What the waker does when a call does not get through, or nobody comes: the next method, a neighbour, a pause, another
node; and what it writes down."""

from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio
import pytest

from accsd.agent.orders import Orders
from accsd.db import Database
from accsd.db.wake import look
from accsd.metrics import Metrics
from accsd.model import Node
from accsd.power import methods_of, networks
from accsd.settings import WakeSettings
from accsd.supervisor import Pass
from tests.conftest import Connect
from tests.support.attempts import node_of
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import claim, node, pass_time, started, step, submit
from tests.support.library import opened
from tests.support.race import Race
from tests.support.waking import LEASE, Builder

AHEAD = timedelta(minutes=5)
MAC = "52:54:00:00:00:01"
FAR = "203.0.113.0/24"  # nobody is in it


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as database:
        yield database


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "wake"
    path.write_text(f"#!/bin/sh\necho $1 >> {tmp_path}/woken\n")
    path.chmod(0o755)
    return str(path)


async def sleeps(conn: Connection, name: str = "n1", slots: int = 1, **fields: Any) -> None:
    """With `script`, `mac` … of its row; it is woken by the first of them."""
    await node(conn, name, render=slots)
    method = {"mac": "wol", "provider_ref": "provider", "script": "script"}[next(iter(fields))]
    await conn.execute("UPDATE nodes SET wake_method = $2 WHERE name = $1", name, method)
    for field, value in fields.items():
        await conn.execute(f"UPDATE nodes SET {field} = $2 WHERE name = $1", name, value)
    await conn.fetch("SELECT accs.node_leaves($1, 'sleep')", name)


async def calls(conn: Connection) -> list[tuple[str, str, bool]]:
    rows = await conn.fetch("SELECT data FROM task_events WHERE type = 'wake' ORDER BY id")
    return [(row["data"]["node"], row["data"]["method"], row["data"]["ok"]) for row in rows]


async def power(conn: Connection, name: str = "n1") -> tuple[str, str]:
    row = await conn.fetchrow("SELECT state, because FROM accs.power WHERE node = $1", name)
    assert row is not None
    return row["state"], row["because"]


async def passes(waker: Builder) -> Pass:
    """As the supervisor makes them, until there is nothing more at once."""
    while (done := await waker.run_once()).more:
        pass
    return done


def waker(db: Database, **given: Any) -> Builder:
    return Builder(db, WakeSettings.model_validate({"port": 1, **given}), node="control")


# Methods


def test_a_nodes_methods_are_its_own_wish_first_and_then_what_its_fields_allow():
    said = Node(name="n1", mac=MAC, script="/wake", provider_ref="studio/n1")
    for wish, order in {
        "wol": ("wol", "provider", "script"),
        "script": ("script", "wol", "provider"),
        "provider": ("provider", "wol", "script"),
    }.items():
        assert methods_of(Node.model_validate({**said.model_dump(), "wake_method": wish})) == order
    assert methods_of(said) == (), "it does not want to be woken"
    assert methods_of(Node.model_validate({"name": "n1", "wake_method": "wol"})) == ("wol",), "it shall say what lacks"


def test_a_neighbour_stands_behind_our_own_packet_or_before_it_where_that_can_not_arrive():
    said = Node.model_validate({"name": "n1", "wake_method": "wol", "mac": MAC, "script": "/wake"})
    assert methods_of(said, has_relay=True) == ("wol", "relay", "script")
    assert methods_of(said, has_relay=True, is_near=False) == ("relay", "wol", "script")
    without = Node.model_validate({"name": "n1", "wake_method": "script", "script": "/wake"})
    assert methods_of(without, has_relay=True) == ("script",)


def test_what_brought_a_node_the_last_time_is_tried_first():
    said = Node.model_validate({"name": "n1", "wake_method": "wol", "mac": MAC, "script": "/wake"})
    assert methods_of(said, has_relay=True, brought_by="script") == ("script", "wol", "relay")
    assert methods_of(said, brought_by="relay") == ("wol", "script"), "there is no neighbour now"


# Fallback


async def test_a_call_that_does_not_get_through_is_followed_by_the_next_method_in_the_same_pass(
    conn: Connection, db: Database, script: str
):
    await sleeps(conn, provider_ref="nobody/n1", mac="nonsense", script=script)
    await submit(conn)
    done = await waker(db).run_once()
    assert await calls(conn) == [("n1", "provider", False), ("n1", "wol", False), ("n1", "script", True)]
    assert done.did is not None
    assert done.did.endswith("node n1 woken by script for render")
    assert (await power(conn))[0] == "booting"


async def test_a_node_that_does_not_come_is_called_by_the_next_method_after_its_time(
    conn: Connection, db: Database, script: str
):
    await sleeps(conn, mac=MAC, script=script)
    await submit(conn)
    builder = waker(db)
    done = await passes(builder)
    assert done.next_due is not None
    assert timedelta(seconds=110) < done.next_due <= timedelta(minutes=2)
    await pass_time(conn, 60)
    await passes(builder)
    assert await calls(conn) == [("n1", "wol", True)], "it is expected"
    await pass_time(conn, 61)
    await passes(builder)
    assert await calls(conn) == [("n1", "wol", True), ("n1", "script", True)]


async def test_a_neighbour_is_asked_before_a_packet_that_could_not_arrive(conn: Connection, db: Database):
    await sleeps(conn, mac=MAC)
    await node(conn, "peer", audio=1)
    await conn.execute("UPDATE accs.power SET networks = ARRAY[$1::text::cidr]", FAR)
    await submit(conn)
    async with anyio.create_task_group() as group:
        group.start_soon(waker(db).run_once)
        orders = Orders(node_of(db, name="peer", wake={"port": 1}))

        async def did() -> str | None:
            return (await orders.run_once()).did

        said = await eventually(did)
        assert said is not None
        assert said.startswith("node n1 called for control: sent to ")
    [data] = await conn.fetchrow("SELECT data FROM task_events WHERE type = 'wake'") or []
    assert (data["method"], data["ok"]) == ("relay", True)
    assert data["output"].startswith("peer sent to ")


async def test_a_neighbour_who_can_not_send_it_says_why_and_the_next_method_follows(conn: Connection, db: Database):
    await sleeps(conn, mac=MAC)
    await node(conn, "peer", audio=1)
    await conn.execute("UPDATE accs.power SET networks = ARRAY[$1::text::cidr]", FAR)
    await submit(conn)
    async with anyio.create_task_group() as group:
        group.start_soon(waker(db).run_once)
        orders = Orders(node_of(db, name="peer", wake={"interface": "nowhere"}))

        async def did() -> str | None:
            return (await orders.run_once()).did

        await eventually(did)
    assert await calls(conn) == [("n1", "relay", False), ("n1", "wol", True)]
    [message] = await conn.fetchrow("SELECT message FROM task_events WHERE type = 'wake' ORDER BY id") or []
    assert "peer: the interface nowhere is down" in message


async def test_a_node_that_does_not_sleep_by_itself_says_so(conn: Connection, db: Database):
    await node(conn, "n1")
    await conn.fetch("SELECT accs.ask_node(gen_random_uuid(), 'n1', 'sleep', NULL, 'ann', '10 s')")
    await Orders(node_of(db)).run_once()
    answer = await conn.fetchrow("SELECT ok, output FROM accs.node_orders")
    assert answer is not None
    assert tuple(answer) == (False, "this node does not sleep by itself")


def test_a_machines_networks_leave_out_those_inside_it():
    assert not any(network.startswith(("127.", "169.254.")) for network in networks())
    assert all("/" in network for network in networks())


# Breaker


async def test_after_some_rounds_in_vain_the_breaker_opens_and_half_opens_by_itself(
    conn: Connection, db: Database, script: str
):
    await sleeps(conn, mac="nonsense")
    await sleeps(conn, "n2", script=script)
    await conn.fetch("SELECT accs.pause('node', 'n2')")
    await submit(conn)
    builder = waker(db, rounds=2, boot=60, rest=600)
    await passes(builder)
    state, because = await power(conn)
    assert state == "asleep"
    assert because.startswith("it did not come after 1 call by wol (last ")
    assert "node n1 has no valid MAC address" in because
    assert (await passes(builder)).did is None, "nothing more for now"
    assert await power(conn) == (state, because), "and the same words"

    await pass_time(conn, 61)
    await passes(builder)
    state, because = await power(conn)
    assert (state, because[:37]) == ("failed", "it did not come after 2 calls by wol ")
    await conn.fetch("SELECT accs.pause('service', 'render')")
    await passes(builder)
    assert await power(conn) == (state, because), "although nothing wants it now"
    await conn.fetch("SELECT accs.resume('service', 'render')")
    await conn.fetch("SELECT accs.resume('node', 'n2')")
    await passes(builder)
    assert (await calls(conn))[-1] == ("n2", "script", True), "another one takes its work"

    await conn.fetch("SELECT accs.pause('node', 'n2')")
    await pass_time(conn, 590)
    await passes(builder)
    assert (await power(conn))[0] == "failed"
    await pass_time(conn, 20)
    await passes(builder)
    assert [name for name, *_ in await calls(conn)] == ["n1", "n1", "n2", "n1"], "asked whether it has come back"
    await conn.fetch("SELECT * FROM accs.heartbeat('n1', 'o', '{}', '{}', '1 min')")
    assert (await power(conn))[0] == "ready"


async def test_no_more_nodes_start_at_a_time_than_may(conn: Connection, db: Database, script: str):
    for name in ("n1", "n2", "n3"):
        await sleeps(conn, name, script=script)
    await submit(conn, step("a"), step("b"), step("c"))
    builder = waker(db, at_once=2)
    await passes(builder)
    assert sorted(name for name, *_ in await calls(conn)) == ["n1", "n2"]  # they are called side by side
    assert (await power(conn, "n3"))[1] == "as many nodes as may start at once are starting"
    await conn.fetch("SELECT * FROM accs.heartbeat('n1', 'o', '{}', '{}', '1 min')")
    await passes(builder)
    assert sorted(name for name, *_ in await calls(conn)) == ["n1", "n2", "n3"]


# What it says


async def test_when_nothing_waits_any_more_it_says_so_once_and_asks_one_question_from_then_on(
    conn: Connection, db: Database, script: str
):
    await sleeps(conn, script=script)
    await node(conn, "on", render=1)
    await submit(conn)
    builder = waker(db)
    await passes(builder)
    assert await power(conn) == ("asleep", "other nodes suffice")
    await started(conn, on="on")
    await passes(builder)
    assert await power(conn) == ("asleep", "nothing that waits could run on it")
    asked: list[bool] = []
    db.observe(lambda answered, _: asked.append(answered))
    assert await builder.run_once() == Pass()
    assert asked == [True]


async def test_it_listens_to_what_nodes_offer_that_can_be_woken(conn: Connection, db: Database, script: str):
    await sleeps(conn, script=script)
    await node(conn, "n2", audio=1)
    heard: list[set[str]] = []
    await Builder(db, WakeSettings(), hear=lambda services: heard.append(set(services))).run_once()
    assert heard[0] == {"render"}


async def test_what_came_of_the_calls_is_counted(conn: Connection, db: Database, script: str):
    await sleeps(conn, script=script)
    await sleeps(conn, "n2", mac="nonsense")
    await submit(conn, step("a"), step("b"))
    metrics = Metrics()
    builder = Builder(db, WakeSettings(rounds=1), metrics=metrics)
    await passes(builder)
    await conn.fetch("SELECT * FROM accs.heartbeat('n1', 'o', '{}', '{}', '1 min')")
    await passes(builder)
    said = metrics.render().decode()
    for method, outcome in (("script", "sent"), ("script", "woke"), ("wol", "failed"), ("wol", "given_up")):
        assert f'accsd_wake_tries_total{{method="{method}",outcome="{outcome}"}} 1.0' in said


async def test_a_task_that_is_claimed_while_it_looks_does_not_fill_its_node_and_want_another(
    conn: Connection, connect: Connect
):
    """What waits and who is awake are of one moment."""
    await node(conn, "on", render=1)
    await submit(conn)
    race = Race(connect, conn)
    locking, looking = await race.session(), await race.session()
    async with locking.transaction():
        await locking.execute("LOCK accs.pending_jobs")  # in the way of who looks what waits, not of a claim
        found = await race.blocked(looking, look(Database.over(looking), AHEAD, silent=LEASE), by=locking)
        assert len(await claim(conn, on="on")) == 1
    demand, [known] = await found
    assert ([each.tasks for each in demand], known.state.free("render")) == ([1], 1)
