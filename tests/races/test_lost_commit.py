"""The connection is cut right after COMMIT: the server has done it, and the client asks again.

Once with the verb as a statement of its own, as everybody should call it, and once inside BEGIN … COMMIT.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import asyncpg
import pytest

from tests.support.cable import Cable
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer, open_connection
from tests.support.eventually import eventually
from tests.support.factory import (
    LEASE,
    NODE,
    OWNER,
    Row,
    cancel,
    chain,
    claim,
    dead_letters,
    diamond,
    done,
    fail,
    finish,
    job,
    moves,
    node,
    pass_time,
    release,
    start,
    started,
    step,
    submission,
    submit,
    submit_to,
    task,
    tasks,
    workflow,
)
from tests.support.library import tcp_url

pytestmark = pytest.mark.every_postgresql

CUT = (asyncpg.ConnectionDoesNotExistError, asyncpg.InterfaceError, OSError)

Ask = Callable[[Connection], Awaitable[Any]]


class Client:
    """Somebody who reaches the database by a cable, and connects anew when it was cut."""

    def __init__(self, cable: Cable, url: str) -> None:
        self.cable = cable
        self._url = url

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Connection]:
        conn = await open_connection(self._url)
        try:
            yield conn
        finally:
            conn.terminate()

    async def ask_and_hear_nothing(self, ask: Ask, how: str) -> None:
        async with self.connected() as conn:
            ending = conn.transaction() if how == "COMMIT" else None
            if ending is not None:
                await ending.start()
                await ask(conn)
            self.cable.lose_answer_to("COMMIT" if ending else " accs.")
            with pytest.raises(CUT):
                await (ending.commit() if ending else ask(conn))
        assert self.cable.left_to_lose == 0, "the answer was there, and it was lost"

    async def ask(self, ask: Ask) -> Any:
        async with self.connected() as conn:
            return await ask(conn)


@pytest.fixture
async def client(server: TestServer, db_url: str) -> AsyncIterator[Client]:
    url = tcp_url(server, db_url)
    parts = urlsplit(url)
    assert parts.hostname is not None
    async with Cable.to(parts.hostname, parts.port or 5432) as cable:
        yield Client(cable, cable.through(url))


both_ways = pytest.mark.parametrize("how", ["the verb alone", "COMMIT"])


def answers(rows: Sequence[Row]) -> list[str]:
    return [row["answer"] for row in rows]


@both_ways
async def test_a_submission_asked_again_is_the_same_job(conn: Connection, client: Client, how: str) -> None:
    flow = await workflow(conn, *chain("a", "b"))

    async def ask(c: Connection) -> Row:
        return await submission(c, flow, key="order-17")

    await client.ask_and_hear_nothing(ask, how)
    made = await conn.fetchval("SELECT id FROM jobs")
    again = await client.ask(ask)
    assert (again["answer"], again["job_id"]) == ("repeated", made)
    assert await conn.fetchval("SELECT count(*) FROM job_tasks") == 2
    await check(conn, acknowledged=[made])


@both_ways
async def test_what_was_claimed_unheard_is_found_by_adopt_and_claimed_by_nobody_else(
    conn: Connection, client: Client, how: str
) -> None:
    await node(conn)
    flow = await workflow(conn, step("a", default_params={"big": "x" * 9000}))
    jobs = [await submit_to(conn, flow) for _ in range(5)]
    await client.ask_and_hear_nothing(lambda c: claim(c, 3), how)

    async def adopt(c: Connection) -> Sequence[Row]:
        return await c.fetch("SELECT * FROM accs.adopt_tasks($1, $2, $3)", OWNER, NODE, LEASE)

    mine = await client.ask(adopt)
    assert [row["job_id"] for row in mine] == jobs[:3]
    assert {row["attempt_id"] for row in mine} == {1}
    assert [row["job_id"] for row in await claim(conn, 5, owner="other")] == jobs[3:]
    assert [row["task_id"] for row in await client.ask(adopt)] == [row["task_id"] for row in mine]
    await start(conn, *mine)
    assert answers(await finish(conn, *mine)) == ["accepted"] * 3
    await check(conn)


@both_ways
async def test_a_failure_said_again_spends_one_attempt(conn: Connection, client: Client, how: str) -> None:
    await node(conn)
    job_id = await submit(conn, step("a"))
    (claimed,) = await started(conn)
    await client.ask_and_hear_nothing(lambda c: fail(c, claimed), how)
    assert answers(await client.ask(lambda c: fail(c, claimed))) == ["repeated"]
    await pass_time(conn, 3600)
    (second,) = await started(conn, owner="other")
    assert answers(await client.ask(lambda c: fail(c, claimed))) == ["repeated"]  # even now
    row = await task(conn, job_id, "a")
    assert (row["attempt"], row["attempt_id"], row["status"]) == (1, 2, "running")
    assert answers(await finish(conn, second, owner="other")) == ["accepted"]
    await check(conn)


@both_ways
async def test_a_done_said_again_releases_its_dependants_once(conn: Connection, client: Client, how: str) -> None:
    await node(conn)
    job_id = await submit(conn, *diamond())
    await done(conn)
    left, _ = await started(conn, 2)
    await client.ask_and_hear_nothing(lambda c: finish(c, left), how)
    assert answers(await client.ask(lambda c: finish(c, left))) == ["repeated"]
    assert (await task(conn, job_id, "bottom"))["remaining"] == 1
    await check(conn)


@both_ways
async def test_a_cancel_said_again_changes_nothing(conn: Connection, client: Client, how: str) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    (claimed,) = await started(conn)
    await client.ask_and_hear_nothing(lambda c: cancel(c, job_id), how)
    assert answers(await client.ask(lambda c: cancel(c, job_id))) == ["repeated"]
    assert (await moves(conn, claimed["task_id"])).count(("running", "cancelled")) == 1
    await check(conn)


@both_ways
async def test_a_redrive_said_again_opens_one_generation(conn: Connection, client: Client, how: str) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    await fail(conn, *await started(conn), permanent=True)
    (letter,) = await dead_letters(conn, job_id)

    async def ask(c: Connection) -> Sequence[Row]:
        return await c.fetch("SELECT * FROM accs.redrive($1)", [letter["id"]])

    await client.ask_and_hear_nothing(ask, how)
    assert answers(await client.ask(ask)) == ["repeated"]
    assert (await task(conn, job_id, "a"))["generation"] == 1
    assert (await job(conn, job_id))["open_tasks"] == 2
    await check(conn)


async def again_is_repeated(client: Client, ask: Ask) -> None:
    await client.ask_and_hear_nothing(ask, "the verb alone")
    assert answers(await client.ask(ask)) == ["repeated"]


async def test_a_start_said_again_is_repeated(conn: Connection, client: Client) -> None:
    await node(conn)
    await submit(conn, step("a"))
    (claimed,) = await claim(conn)
    await again_is_repeated(client, lambda c: start(c, claimed))
    await check(conn)


async def test_a_release_said_again_is_repeated(conn: Connection, client: Client) -> None:
    await node(conn)
    await submit(conn, step("a"))
    (claimed,) = await started(conn)
    await again_is_repeated(client, lambda c: release(c, claimed))
    await check(conn)


async def test_a_retry_of_a_job_said_again_is_repeated(conn: Connection, client: Client) -> None:
    job_id = await submit(conn, step("a"))
    await cancel(conn, job_id)
    await again_is_repeated(client, lambda c: c.fetch("SELECT * FROM accs.retry_jobs($1)", [job_id]))
    await check(conn)


async def test_a_skip_said_again_is_repeated(conn: Connection, client: Client) -> None:
    job_id = await submit(conn, *chain("a", "b"))
    task_id = (await task(conn, job_id, "a"))["id"]
    await again_is_repeated(client, lambda c: c.fetch("SELECT * FROM accs.skip_tasks($1)", [task_id]))
    assert (await task(conn, job_id, "b"))["remaining"] == 0
    await check(conn)


async def test_an_instantiation_said_again_is_repeated(conn: Connection, client: Client) -> None:
    flow = await workflow(conn, *chain("a", "b"))
    job_id: UUID = await conn.fetchval("INSERT INTO jobs (workflow_id) VALUES ($1) RETURNING id", flow)
    await again_is_repeated(client, lambda c: c.fetch("SELECT * FROM accs.instantiate_due_jobs(10, $1)", [job_id]))
    assert len(await tasks(conn, job_id)) == 2
    await check(conn)


async def test_a_client_that_goes_before_its_commit_has_done_nothing(conn: Connection, client: Client) -> None:
    await node(conn)
    job_id = await submit(conn, *chain("a", "b"))
    async with client.connected() as c:
        await c.execute("BEGIN")
        (claimed,) = await claim(c)
        client.cable.cut()

    async def claimable() -> Sequence[Row]:
        return await claim(conn)

    (again,) = await eventually(claimable, what="the server's notice of the cut")
    assert (again["task_id"], again["attempt_id"]) == (claimed["task_id"], claimed["attempt_id"])
    assert await tasks(conn, job_id) == {"a": "starting", "b": "queued"}
    await check(conn)


async def test_a_silent_client_keeps_nothing_locked_longer_than_its_session_may_idle(
    conn: Connection, client: Client
) -> None:
    await node(conn)
    await submit(conn, step("a"))
    async with client.connected() as c:
        await c.execute("SET idle_in_transaction_session_timeout = '200ms'")
        await c.execute("BEGIN")
        await claim(c)
        client.cable.fall_silent()
        assert await claim(conn) == []

        async def claimable() -> Sequence[Row]:
            return await claim(conn)

        assert len(await eventually(claimable, what="the end of the idle session")) == 1
        client.cable.flow_again()
    await check(conn)
