"""The pull mode where things go wrong: functions that misbehave, leases that lapse, a late or early end."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import pytest
from pydantic import BaseModel, field_validator

from accsd.clock import boot_time
from accsd.db import Answer, Database, Fence, release_tasks
from accsd.sdk.pull.attempt import Handler
from accsd.sdk.pull.process import serve
from accsd.sdk.pull.stop import StopRequest
from accsd.sdk.wire import Cancelled, Task
from accsd.settings import Settings
from tests.daemon.test_pull import ended, serving
from tests.support.cable import Cable
from tests.support.checker import check
from tests.support.cluster import Connection, TestServer
from tests.support.eventually import eventually
from tests.support.factory import SERVICE, chain, step, submit, submit_to, task, workflow
from tests.support.library import tcp_url

NODE = "m1.render"
TENANT: ContextVar[str] = ContextVar("tenant", default="nobody")


class Panic(BaseException):
    """As extensions in other languages raise it: not an Exception."""


@pytest.mark.parametrize("raised", [Panic("index out of bounds"), BaseExceptionGroup("two", [Cancelled()])])
async def test_whatever_a_function_raises_ends_its_own_task_only(
    db_url: str, conn: Connection, tmp_path: Path, raised: BaseException
):
    go = asyncio.Event()

    async def fail(given: Task) -> None:
        if given.envelope["task_key"] == "bad":
            raise raised
        await go.wait()

    async with serving(db_url, tmp_path, fail):
        job = await submit(conn, step("good"), step("bad", max_attempts=1))
        row = await ended(conn, job, "bad", status="error")
        go.set()
        await ended(conn, job, "good")
    assert (row["error_code"], row["error_message"]) == ("exit_nonzero", f"{type(raised).__name__}: {raised}")
    assert (await task(conn, job, "good"))["attempt_id"] == 1
    await check(conn)


async def test_what_one_task_leaves_in_its_context_the_next_one_does_not_see(
    db_url: str, conn: Connection, tmp_path: Path
):
    async def tell(given: Task) -> dict[str, Any]:
        seen = TENANT.get()
        TENANT.set(str(given.task_id))
        return {"seen": seen}

    which = await workflow(conn, step("a"))
    jobs = [await submit_to(conn, which) for _ in range(5)]
    async with serving(db_url, tmp_path, tell, concurrency=1):
        assert [(await ended(conn, job))["results"]["seen"] for job in jobs] == ["nobody"] * 5
    await check(conn)


async def test_a_cancellation_that_a_function_leaves_behind_does_not_reach_the_next_one(
    db_url: str, conn: Connection, tmp_path: Path
):
    """It asks for its own end and returns before it comes."""

    async def ask(given: Task) -> dict[str, Any]:
        running = asyncio.current_task()
        assert running is not None
        await asyncio.sleep(0)
        asked = running.cancelling()
        if given.options["n"] % 2 == 0:
            running.cancel()
        if given.options["n"] > 2:
            time.sleep(0.01)  # noqa: ASYNC251 - longer than a turn of its place, so that it waits before the next one
        return {"asked": asked}

    which = await workflow(conn, step("a", max_attempts=1))
    jobs = [await submit_to(conn, which, options={"n": n}) for n in range(6)]
    async with serving(db_url, tmp_path, ask, concurrency=1):
        assert [(await ended(conn, job))["results"] for job in jobs] == [{"asked": 0}] * 6
    await check(conn)


async def test_a_function_that_cancels_itself_fails_and_its_place_goes_on(
    db_url: str, conn: Connection, tmp_path: Path
):
    async def give_up(given: Task) -> dict[str, Any]:
        running = asyncio.current_task()
        assert running is not None
        if given.envelope["task_key"] == "bad":
            running.cancel()
            await asyncio.sleep(0)
        async with asyncio.timeout(30):
            await asyncio.sleep(0)
        return {"asked": running.cancelling()}

    async with serving(db_url, tmp_path, give_up, concurrency=1):
        job = await submit(conn, step("bad", max_attempts=1), step("good"))
        assert (await ended(conn, job, "bad", status="error"))["error_message"] == "it cancelled itself"
        assert (await ended(conn, job, "good"))["results"] == {"asked": 0}
    await check(conn)


async def test_functions_that_never_wait_share_a_place_and_leave_the_loop_to_others(
    db_url: str, conn: Connection, tmp_path: Path
):
    """However many places there are: a second one would have nothing to do, and leases have to be kept meanwhile."""
    places: set[asyncio.Task[Any] | None] = set()
    order: list[str] = []

    async def count(_: Task) -> None:
        places.add(asyncio.current_task())
        order.append("task")
        asyncio.get_running_loop().call_soon(order.append, "turn")
        time.sleep(0.0005)  # noqa: ASYNC251 - as one that computes

    which = await workflow(conn, step("a"))
    for _ in range(60):
        await submit_to(conn, which)
    async with serving(db_url, tmp_path, count, concurrency=60):
        await eventually(lambda: conn.fetchval("SELECT bool_and(status = 'done') FROM jobs"), within=10)
    assert order.count("task") == 60
    assert order.index("turn") < 30, "the loop has its turn between two of them"
    assert len(places) < 30
    await check(conn)


class Sized(BaseModel):
    size: Any

    @field_validator("size")
    @classmethod
    def _is_small(cls, size: Any) -> Any:
        return size if size < 10 else None


async def test_params_that_its_type_cannot_even_compare_are_wrong_for_good(
    db_url: str, conn: Connection, tmp_path: Path
):
    async def never(_: Task[Sized]) -> None:
        raise AssertionError

    async with serving(db_url, tmp_path, never):
        job = await submit(conn, step("a", default_params={"size": "large"}, max_attempts=3))
        row = await ended(conn, job, status="error")
    assert row["error_message"].startswith("params: ")
    await check(conn)


async def test_a_step_may_have_all_the_time_of_the_world(db_url: str, conn: Connection, tmp_path: Path):
    async def nothing(_: Task) -> None:
        pass

    async with serving(db_url, tmp_path, nothing):
        await ended(conn, await submit(conn, step("a", timeout=1e300)))
    await check(conn)


async def test_it_says_goodbye_when_it_is_cancelled(db_url: str, conn: Connection, tmp_path: Path):
    async def nothing(_: Task) -> None:
        pass

    async with serving(db_url, tmp_path, nothing):
        assert await conn.fetchval("SELECT awake_state FROM nodes WHERE name = $1", NODE) == "awake"
    assert await conn.fetchval("SELECT awake_state FROM nodes WHERE name = $1", NODE) == "unknown"


async def test_a_function_that_will_not_be_cancelled_is_told_of_when_nothing_else_is_left(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("accsd.sdk.pull.worker._CANCELLED", timedelta(seconds=0.1))
    begun, stuck, asked = asyncio.Event(), asyncio.Event(), StopRequest()
    asked.when_stuck = stuck.set  # a process of its own ends here

    async def stay(_: Task) -> None:
        begun.set()
        while not stuck.is_set():
            with suppress(asyncio.CancelledError):
                await stuck.wait()

    handler = Handler(SERVICE, stay, is_async=True, read_params=dict, timeout=None, stop_grace=timedelta())
    given = {"database": {"url": db_url}, "node": {"name": "m1", "state_dir": tmp_path}, "drain_sec": 0}
    settings = Settings.model_validate(given)
    await submit(conn, step("a"))
    async with asyncio.timeout(20), asyncio.TaskGroup() as group:
        group.create_task(serve(handler, settings, concurrency=1, node=None, asked=asked, when_ready=lambda _: None))
        await begun.wait()
        asked.again()
    assert stuck.is_set()


async def test_what_waits_behind_slow_tasks_is_left_to_others_although_some_of_them_end(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("accsd.sdk.pull.worker._STALE_SEC", 0.5)
    monkeypatch.setattr("accsd.sdk.pull.worker._STALE_CHECK_SEC", 0.1)
    seen = 0

    async def fast_then_slow(_: Task) -> None:
        nonlocal seen
        seen += 1
        if seen > 50:
            await asyncio.sleep(0.3)

    which = await workflow(conn, step("a"))
    for _ in range(200):
        await submit_to(conn, which)
    async with serving(db_url, tmp_path, fast_then_slow, concurrency=2):
        await eventually(lambda: seen >= 53)
        await eventually(lambda: conn.fetchval("SELECT count(*) <= 2 FROM accs.live"), within=3)
    await check(conn)


async def test_an_attempt_whose_lease_was_not_kept_is_given_back_and_not_begun_again(
    server: TestServer, db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("accsd.sdk.pull.claimer._PAUSES", (timedelta(seconds=0.05),) * 2)
    begun: list[int | None] = []
    given_up = asyncio.Event()

    async def wait(given: Task) -> None:
        begun.append(given.attempt_id)
        try:
            await asyncio.sleep(60 if len(begun) == 1 else 0)
        except asyncio.CancelledError:
            given_up.set()
            raise

    url = tcp_url(server, db_url)
    there = urlsplit(url)
    assert there.hostname
    assert there.port
    async with (
        Cable.to(there.hostname, there.port) as cable,
        serving(cable.through(url), tmp_path, wait, heartbeat_ttl_sec=4, poll_sec=0.1, poll_deaf_sec=0.1),
    ):
        job = await submit(conn, step("a"))
        await eventually(lambda: begun)
        cable.target = ("127.0.0.1", 1)  # nobody listens there
        cable.cut()
        async with asyncio.timeout(10):
            await given_up.wait()
        assert await conn.fetchval("SELECT lease_until > accs.clock() FROM accs.live"), "the database still says ours"
        cable.target = (there.hostname, there.port)
        await ended(conn, job)
    assert begun == [1, 2]
    await check(conn)


async def test_what_is_given_back_at_the_end_goes_in_one_statement(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    calls: list[int] = []

    async def counted(db: Database, fences: Sequence[Fence], **said: Any) -> dict[UUID, Answer]:
        calls.append(len(fences))
        return await release_tasks(db, fences, **said)

    monkeypatch.setattr("accsd.work.finish.release_tasks", counted)
    seen = 0

    async def fast_then_slow(_: Task) -> None:
        nonlocal seen
        seen += 1
        if seen > 50:
            await asyncio.sleep(60)

    which = await workflow(conn, step("a"))
    await conn.fetch("SELECT * FROM accs.submit_jobs($1)", [which] * 300)
    async with serving(db_url, tmp_path, fast_then_slow, concurrency=2, drain_sec=0):
        await eventually(lambda: conn.fetchval("SELECT count(*) > 100 FROM accs.live"))
    assert await conn.fetchval("SELECT count(*) FROM accs.live") == 0
    assert sum(calls) > 100
    assert len(calls) < 10
    await check(conn)


async def test_a_batch_for_which_a_statement_has_not_enough_time_is_told_in_parts(
    db_url: str, conn: Connection, tmp_path: Path
):
    await conn.execute("ALTER FUNCTION accs.finish_tasks RENAME TO finish_quickly")
    await conn.execute("""
        CREATE FUNCTION accs.finish_tasks(
          p1 uuid[], p2 int[], p3 text, p4 text[], p5 jsonb[], p6 text[], p7 text[], p8 boolean[], p9 float8,
          p10 boolean)
        RETURNS SETOF accs.answer LANGUAGE plpgsql AS $$ BEGIN
          PERFORM pg_sleep(0.01 * cardinality(p1));
          RETURN QUERY SELECT * FROM accs.finish_quickly(p1, p2, p3, p4, p5, p6, p7, p8, p9, p10);
        END $$""")
    together = asyncio.Barrier(120)

    async def meet(_: Task) -> None:
        await together.wait()

    which = await workflow(conn, step("a"))
    await conn.fetch("SELECT * FROM accs.submit_jobs($1)", [which] * 120)
    brief = {"url": db_url, "statement_timeout_sec": 1}
    async with serving(db_url, tmp_path, meet, concurrency=120, database=brief):
        await eventually(lambda: conn.fetchval("SELECT count(*) = 120 FROM jobs WHERE status = 'done'"), within=15)
    assert await conn.fetchval("SELECT max(attempt_id) FROM job_tasks") == 1
    await check(conn)


async def test_the_next_step_does_not_wait_for_the_poll_where_nothing_is_heard(
    db_url: str, conn: Connection, tmp_path: Path
):
    async def nothing(_: Task) -> None:
        pass

    job = await submit(conn, *chain("a", "b", "c"))
    async with serving(db_url, tmp_path, nothing, fallback={"notify": False}, poll_deaf_sec=60):
        await ended(conn, job, "c")
    await check(conn)


async def test_a_claim_that_was_answered_late_is_asked_about_and_begins(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """It had waited for a lock for longer than the lease lasts; in the database the lease begins after the wait."""
    monkeypatch.setattr("accsd.work.claims.boot_time", lambda: boot_time() - 3600)

    async def run(_: Task) -> None:
        pass

    async with serving(db_url, tmp_path, run):
        job = await submit(conn, step("a"))
        assert (await ended(conn, job))["attempt_id"] == 1
    await check(conn)
