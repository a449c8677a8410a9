"""ask_node, take_orders, answer_order: what a node is asked to do."""

from uuid import UUID, uuid4

import asyncpg
import pytest

from tests.support.cluster import Connection
from tests.support.factory import node, pass_time


async def ask(conn: Connection, order: UUID, kind: str = "sleep", target: str | None = None) -> str:
    return await conn.fetchval("SELECT accs.ask_node($1, 'n1', $2, $3, 'ann', '10 s')", order, kind, target)


async def test_an_order_is_heard_given_out_once_and_answered_once(conn: Connection):
    await node(conn)
    await conn.fetch("SELECT * FROM accs.register_node('n2', p_mac => '52:54:00:00:00:02')")
    heard: list[str] = []
    await conn.add_listener("accs_orders", lambda *said: heard.append(said[-1]))
    order = uuid4()
    assert await ask(conn, order, "relay", "n2") == "accepted"
    assert await ask(conn, order, "relay", "n2") == "repeated"
    [taken] = await conn.fetch("SELECT * FROM accs.take_orders('n1')")
    assert tuple(taken) == (order, "relay", "n2", "52:54:00:00:00:02", "ann")
    assert await conn.fetch("SELECT * FROM accs.take_orders('n1')") == []
    assert heard == ["n1"]
    answer = "SELECT accs.answer_order($1, $2, true, 'sent')"
    assert await conn.fetchval(answer, order, "n2") == "refused", "it was not asked"
    assert await conn.fetchval(answer, order, "n1") == "accepted"
    assert await conn.fetchval(answer, order, "n1") == "repeated"


async def test_an_order_grows_old(conn: Connection):
    await node(conn)
    await ask(conn, uuid4())
    await pass_time(conn, 11)
    assert await conn.fetch("SELECT * FROM accs.take_orders('n1')") == []
    await pass_time(conn, 86400)
    await ask(conn, uuid4())
    assert await conn.fetchval("SELECT count(*) FROM accs.node_orders") == 1
    with pytest.raises(asyncpg.CheckViolationError):
        await ask(conn, uuid4(), "relay")


async def test_a_node_that_is_removed_takes_its_orders_and_its_power_with_it(conn: Connection):
    await node(conn)
    await ask(conn, uuid4())
    await conn.execute("DELETE FROM nodes")
    for table in ("power", "node_history", "node_orders"):
        assert await conn.fetchval(f"SELECT count(*) FROM accs.{table}") == 0
