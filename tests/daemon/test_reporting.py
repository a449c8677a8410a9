"""The reporter on a real database: batches, bad words among good ones, outages, the pace of progress."""

from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import anyio
import pytest

from accsd.db import Database, Fence, TaskEvent
from accsd.errors import DatabaseUnavailable
from accsd.log import LoggedEvent
from accsd.model.state import Level
from accsd.work.reporter import Reporter
from tests.conftest import Connect
from tests.support.cable import Cable
from tests.support.cluster import Connection, TestServer
from tests.support.eventually import eventually
from tests.support.factory import NODE, node, started, step, submit
from tests.support.library import opened, tcp_url


@pytest.fixture
async def db(db_url: str) -> AsyncIterator[Database]:
    async with opened(db_url) as opening:
        yield opening


async def running(conn: Connection, count: int = 1) -> list[Fence]:
    await node(conn)
    await submit(conn, *(step(f"s{i}") for i in range(count)))
    return [Fence(task["task_id"], task["attempt_id"]) for task in await started(conn, count, owner=NODE)]


async def said(conn: Connection, kind: str = "log") -> list[Any]:
    rows = await conn.fetch("SELECT message FROM task_events WHERE type = $1 ORDER BY id", kind)
    return [row["message"] for row in rows]


def of_service(message: str, *, source: str = "service:x", **fields: Any) -> LoggedEvent:
    return LoggedEvent(uuid4(), None, source, Level.INFO, fields.get("type", "log"), message, None)


BAD = of_service("bad", source="a\0b")  # no text of PostgreSQL's


async def test_what_was_said_is_there_after_a_flush_in_the_order_of_saying(db: Database, conn: Connection):
    (fence,) = await running(conn)
    reporter = Reporter(db, owner=NODE)
    for i in range(1200):
        reporter.event(TaskEvent(fence, f"line {i}"))
    await reporter.flush()
    assert await said(conn) == [f"line {i}" for i in range(1200)]


async def test_one_bad_event_keeps_no_other_out_and_none_is_said_twice(db: Database, conn: Connection):
    (fence,) = await running(conn)
    reporter = Reporter(db, owner=NODE)
    for i in range(20):
        reporter.event(TaskEvent(fence, f"line {i}"))
    reporter.event(BAD)
    reporter.event(of_service("good"))
    await reporter.flush()
    assert sorted(await said(conn)) == sorted(["good", *(f"line {i}" for i in range(20))])


async def test_one_bad_progress_keeps_no_other_out(db: Database, conn: Connection):
    first, second = await running(conn, 2)
    reporter = Reporter(db, owner=NODE)
    reporter.progress(first, 0.25, "a\0b")
    reporter.progress(second, 0.5, "half")
    await reporter.flush()
    rows = await conn.fetch("SELECT id, progress::float8 FROM job_tasks")
    assert {row["id"]: row["progress"] for row in rows}[second.task_id] == 0.5


async def test_words_of_others_are_not_lost_with_an_attempt_that_is_cancelled_while_it_sends(
    db: Database, conn: Connection, connect: Connect
):
    (fence,) = await running(conn)
    reporter = Reporter(db, owner=NODE)
    other = await connect()
    async with anyio.create_task_group() as group, other.transaction():
        await other.execute("LOCK TABLE task_events IN ACCESS EXCLUSIVE MODE")
        reporter.event(TaskEvent(fence, "somebody else's"))
        group.start_soon(reporter.flush)
        await eventually(lambda: conn.fetchval("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        group.cancel_scope.cancel()
    await reporter.flush()
    assert await said(conn) == ["somebody else's"]


async def test_while_the_database_is_away_words_wait_and_the_newest_are_kept(
    server: TestServer, db_url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("accsd.work.reporter._KEPT", 10)
    monkeypatch.setattr("accsd.work.reporter._BATCH", 4)
    (fence,) = await running(conn)
    there = urlsplit(tcp_url(server, db_url))
    assert there.hostname
    assert there.port
    async with Cable.to(there.hostname, there.port) as cable:
        url = cable.through(tcp_url(server, db_url))
        async with opened(url, statement_timeout_sec=0.3, connect_timeout_sec=0.3) as away:
            reporter = Reporter(away, owner=NODE)
            cable.fall_silent()
            for i in range(8):
                reporter.event(TaskEvent(fence, f"line {i}"))
            async with anyio.create_task_group() as group:
                group.start_soon(say_more, reporter, fence)
                with pytest.raises(DatabaseUnavailable):
                    await reporter.flush()
            cable.flow_again()
            cable.cut()
            await eventually(lambda: flushed(reporter), within=10)
    assert await said(conn) == [f"line {i}" for i in range(4, 14)]


async def say_more(reporter: Reporter, fence: Fence) -> None:
    """While the first batch is under way."""
    for i in range(8, 14):
        reporter.event(TaskEvent(fence, f"line {i}"))


async def flushed(reporter: Reporter) -> bool:
    try:
        await reporter.flush()
    except DatabaseUnavailable:
        return False
    return True


async def test_only_the_newest_progress_counts_and_it_is_paced(db: Database, conn: Connection):
    (fence,) = await running(conn)
    reporter = Reporter(db, owner=NODE)
    async with anyio.create_task_group() as group:
        group.start_soon(reporter.serve)
        for i in range(100):
            reporter.progress(fence, i / 100, f"{i}")
            await anyio.sleep(0.01)
        await eventually(lambda: conn.fetchval("SELECT progress = 0.99 FROM job_tasks"))
        group.cancel_scope.cancel()
    told = await said(conn, "progress")
    assert told[-1] == "99"
    assert len(told) <= 6, "each report is an event: no more than two in a second"
