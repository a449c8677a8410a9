"""What a node is asked to do, and that it is answered: at once, or when the database is back. Whoever asks is told why
there is no answer."""

from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit
from uuid import UUID, uuid4

import anyio
import pytest

from accsd.agent.orders import Orders
from accsd.db import Database
from accsd.db.orders import (
    Order,
    OrderAnswer,
    OrderKind,
    answer_order,
    answer_within,
    ask_node,
    order_answer,
    take_orders,
)
from accsd.errors import DatabaseUnavailable
from tests.support.attempts import node_of
from tests.support.bed import bed
from tests.support.cable import Cable
from tests.support.cluster import Connection, TestServer
from tests.support.eventually import eventually
from tests.support.factory import NODE, node
from tests.support.library import opened, tcp_url

SHORT = 0.3  # seconds after which a call is given up


@asynccontextmanager
async def line(server: TestServer, db_url: str) -> AsyncGenerator[tuple[Cable, str]]:
    """A cable, and the database's address by way of it."""
    there = urlsplit(tcp_url(server, db_url))
    assert there.hostname
    assert there.port
    async with Cable.to(there.hostname, there.port) as cable:
        yield cable, cable.through(tcp_url(server, db_url))


@contextmanager
def outage(cable: Cable) -> Generator[None]:
    there = cable.target
    cable.target = ("127.0.0.1", 1)  # where nobody listens
    cable.cut()
    yield
    cable.target = there


async def asked(db: Database) -> UUID:
    order_id = uuid4()
    await ask_node(db, order_id, NODE, OrderKind.SLEEP, by="ann")
    return order_id


async def ordered(db: Database) -> Order:
    await asked(db)
    (order,) = await take_orders(db, NODE)
    return order


async def test_an_order_needs_no_idle_time_and_is_answered_before_it_goes(
    db_url: str, conn: Connection, tmp_path: Path
):
    async with bed(db_url, conn, tmp_path, idle="1h", awake="1h") as its:
        order = await ordered(its.db)
        answers: list[object] = []

        async def answered() -> str:
            answers.append(await order_answer(its.db, order.id))
            return "the machine won't"

        its.when_told = answered
        its.node.sleep_orders.append(order)
        await its.sleeper.run_once()
        (answer,) = answers
        assert (getattr(answer, "ok", None), getattr(answer, "output", None)) == (True, "it goes to sleep")
        assert await conn.fetchval("SELECT message FROM accs.node_history WHERE state = 'asleep'") == "ann asked for it"


async def test_an_order_is_refused_with_the_reason(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path) as its:
        for busy, objection, said in ((True, None, "it is at work"), (False, "a file is there", "a file is there")):
            its.wakefulness.see(busy=busy)
            its.objection = objection
            order = await ordered(its.db)
            its.node.sleep_orders.append(order)
            await its.sleeper.run_once()
            answer = await order_answer(its.db, order.id)
            assert answer is not None
            assert (answer.ok, answer.output) == (False, said)
        assert its.told == 0


async def test_who_asks_while_it_goes_already_is_answered_at_once_and_does_not_send_it_back(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    async with bed(db_url, conn, tmp_path, awake="1h") as its:
        role = Orders(its.node)
        answers: list[OrderAnswer | None] = []

        async def asked_once_more() -> None:
            order_id = await asked(its.db)
            await role.run_once()
            answers.append(await order_answer(its.db, order_id))

        async def suspended() -> None:
            monkeypatch.setattr("accsd.agent.suspend.time_asleep", lambda: 3600.0)

        its.when_stopping, its.when_told = asked_once_more, suspended
        its.node.sleep_orders.append(await ordered(its.db))
        assert (await its.sleeper.run_once()).did == "slept and is awake again"
        await eventually(lambda: not its.here.context.leases.is_frozen)
        await its.sleeper.run_once()
        assert (its.told, answers) == (1, [OrderAnswer(True, "it goes to sleep")])


async def test_an_order_that_met_an_outage_is_obeyed_when_it_is_over(
    server: TestServer, db_url: str, conn: Connection, tmp_path: Path
):
    async with line(server, db_url) as (cable, url), bed(url, conn, tmp_path, db_within=SHORT, idle="1h") as its:
        order = await ordered(its.db)
        its.node.sleep_orders.append(order)
        with outage(cable), pytest.raises(DatabaseUnavailable):
            await its.sleeper.run_once()

        async def goes() -> bool:
            await its.sleeper.run_once()
            return its.told == 1

        await eventually(goes)
        assert await order_answer(its.db, order.id) == OrderAnswer(True, "it goes to sleep")


async def test_an_order_of_which_the_asker_has_given_up_is_not_obeyed(db_url: str, conn: Connection, tmp_path: Path):
    async with bed(db_url, conn, tmp_path, idle="1h") as its:
        late = replace(await ordered(its.db), taken_at=0.0)
        its.node.sleep_orders.append(late)
        await its.sleeper.run_once()
        answer = await order_answer(its.db, late.id)
        assert answer is not None
        assert (its.told, answer.ok, "too long ago" in answer.output) == (0, False, True)


async def test_what_was_done_is_answered_when_the_database_is_back(server: TestServer, db_url: str, conn: Connection):
    await node(conn, NODE)
    async with (
        line(server, db_url) as (cable, url),
        opened(url, statement_timeout_sec=SHORT) as db,
        opened(db_url) as asker,
    ):
        role = Orders(node_of(db))
        order_id = await asked(asker)
        cable.fall_silent_at("answer_order")
        with pytest.raises(DatabaseUnavailable):
            await role.run_once()
        assert await order_answer(asker, order_id) is None
        cable.flow_again()
        cable.cut()
        await role.run_once()
        assert await order_answer(asker, order_id) == OrderAnswer(False, "this node does not sleep by itself")


async def test_whoever_asks_waits_through_an_outage_and_is_told_of_one_that_lasts(
    server: TestServer, db_url: str, conn: Connection
):
    await node(conn, NODE)
    async with line(server, db_url) as (cable, url), opened(url) as asker, opened(db_url) as here:
        order_id = await asked(asker)
        half_a_second = timedelta(seconds=0.5)
        with outage(cable), pytest.raises(DatabaseUnavailable, match=r"the answer was not known within 0\.5 s: "):
            await answer_within(asker, order_id, half_a_second)
        assert await answer_within(asker, order_id, half_a_second) is None

        async def be_away_for_a_while() -> None:
            refused = cable.connections + 2
            with outage(cable):
                await answer_order(here, order_id, NODE, ok=True, output="done")
                await eventually(lambda: cable.connections > refused)

        async with anyio.create_task_group() as group:
            group.start_soon(be_away_for_a_while)
            await eventually(lambda: cable.target[1] == 1)
            assert await answer_within(asker, order_id, timedelta(seconds=5)) == OrderAnswer(True, "done")
