"""The pull mode inside one process on a real database: what functions say, how they end, how much is claimed."""

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from accsd.errors import ConfigError, SchemaMismatch
from accsd.sdk import Permanent, Service, Task, Temporary
from accsd.settings import Settings
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import SERVICE, step, submit, submit_to, task, workflow

Function = Callable[[Any], Any]


@asynccontextmanager
async def serving(url: str, folder: Path, function: Function, **values: Any) -> AsyncGenerator[None]:
    """A service with this function, for as long as the block lasts."""
    service = Service(SERVICE)
    service.task(function)
    concurrency = values.pop("concurrency", 4)
    given = {"database": {"url": url}, "node": {"name": "m1", "state_dir": folder}, **values}
    ready = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        running = group.create_task(
            service.serve(concurrency=concurrency, settings=Settings.model_validate(given), when_ready=ready.set)
        )
        await ready.wait()
        try:
            yield
        finally:
            running.cancel()


async def ended(conn: Connection, job: UUID, key: str = "a", *, status: str = "done") -> dict[str, Any]:
    async def there() -> dict[str, Any]:
        row = await task(conn, job, key)
        assert row["status"] == status, (row["status"], row["error_code"], row["error_message"])
        return dict(row)

    return await eventually(there, within=10)


async def said(conn: Connection, job: UUID, kind: str = "log") -> list[str]:
    rows = await conn.fetch("SELECT message FROM task_events WHERE job_id = $1 AND type = $2 ORDER BY id", job, kind)
    return [row[0] for row in rows]


async def test_what_a_function_says_and_makes_is_in_the_database(db_url: str, conn: Connection, tmp_path: Path):
    async def make(given: Task) -> dict[str, Any]:
        if given.envelope["task_key"] == "b":
            await given.load_inputs()
            return {"read": given.input("a", "out.txt").read_text(), "upstream": given.upstream}
        given.log("a line", level="warn", peak=0.9)
        given.progress(0.5, "halfway")
        given.path("out.txt").write_text("made")
        given.artifact("out.txt")
        return {"made": 1}

    async with serving(db_url, tmp_path, make):
        job = await submit(conn, step("a"), step("b", after="a"))
        last = await ended(conn, job, "b")
    assert last["results"] == {"read": "made", "upstream": {"a": {"made": 1}}}
    assert await said(conn, job) == ["a line"]
    assert await said(conn, job, "progress") == ["halfway"]
    assert await conn.fetchval("SELECT count(*) FROM task_artifacts WHERE kind = 'output'") == 1
    assert list((tmp_path / "m1.render" / "attempts").iterdir()) == []
    await check(conn)


async def test_a_plain_function_runs_in_a_thread_and_may_ask_for_its_inputs(
    db_url: str, conn: Connection, tmp_path: Path
):
    def make(given: Task) -> dict[str, Any]:
        assert threading.current_thread() is not threading.main_thread()
        if given.envelope["task_key"] == "b":
            return {"read": given.input("a").read_text()}
        given.log("from a thread")
        given.path("out.txt").write_text("made")
        given.artifact("out.txt")
        return {}

    async with serving(db_url, tmp_path, make):
        job = await submit(conn, step("a"), step("b", after="a"))
        assert (await ended(conn, job, "b"))["results"] == {"read": "made"}
    assert await said(conn, job) == ["from a thread"]
    await check(conn)


class Params(BaseModel):
    width: int


@pytest.mark.parametrize(
    ("params", "raised", "expected"),
    [
        ({"width": "wide"}, None, ("error", "exit_nonzero", "params.width")),
        ({"width": 1}, Permanent("it is empty", "and will be"), ("error", "exit_nonzero", "it is empty; and will be")),
        ({"width": 1}, Temporary("not now"), ("queued", "exit_nonzero", "not now")),
        ({"width": 1}, ValueError("bad\0byte"), ("queued", "exit_nonzero", "ValueError: bad")),
        ({"width": 1}, asyncio.CancelledError(), ("queued", "exit_nonzero", "cancelled")),
        ({"width": 1}, SystemExit(3), ("queued", "exit_nonzero", "SystemExit: 3")),
    ],
)
async def test_how_a_function_fails_decides_whether_it_is_tried_again(
    db_url: str, conn: Connection, tmp_path: Path, params: dict[str, Any], raised: BaseException | None,
    expected: tuple[str, str, str],
):  # fmt: skip
    async def fail(_: Task[Params]) -> None:
        assert raised is not None
        raise raised

    async with serving(db_url, tmp_path, fail):
        job = await submit(conn, step("a", default_params=params, max_attempts=3))

        async def failed() -> dict[str, Any]:
            row = await task(conn, job, "a")
            assert row["attempt"] == 1
            return dict(row)

        row = await eventually(failed, within=10)
    assert (row["status"], row["error_code"]) == expected[:2]
    assert row["error_message"].startswith(expected[2])
    assert any(expected[2].split(";")[0] in line for line in await said(conn, job))
    await check(conn)


async def test_one_result_that_the_database_refuses_does_not_keep_the_others_out(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("accsd.sdk.pull.attempt.sanitise", lambda value, **_: value)  # a hole in our own cleaning

    async def answer(given: Task) -> dict[str, Any]:
        return {"text": "\0" if given.options["bad"] else "good"}

    async with serving(db_url, tmp_path, answer, concurrency=20):
        which = await workflow(conn, step("a"))
        jobs = [await submit_to(conn, which, options={"bad": n == 7}) for n in range(10)]
        for n, job in enumerate(jobs):
            if n != 7:
                await ended(conn, job)
        await eventually(lambda: conn.fetchval("SELECT lost > 0 FROM job_tasks WHERE job_id = $1", jobs[7]))
    await check(conn)


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_task_that_takes_too_long_is_stopped(db_url: str, conn: Connection, tmp_path: Path, is_async: bool):
    async def forever(_: Task) -> None:
        await asyncio.sleep(60)

    def forever_in_a_thread(given: Task) -> None:
        while True:
            given.check_cancelled()
            time.sleep(0.01)

    async with serving(db_url, tmp_path, forever if is_async else forever_in_a_thread):
        job = await submit(conn, step("a", timeout=0.3, max_attempts=1))
        row = await ended(conn, job, status="error")
    assert (row["error_code"], row["error_message"]) == ("timeout", "it ran longer than 0.3 s")
    await check(conn)


async def test_a_retry_begins_when_it_is_due_and_not_at_the_next_poll(db_url: str, conn: Connection, tmp_path: Path):
    async def second_time(given: Task) -> None:
        if given.attempt_id == 1:
            raise Temporary("not now")

    async with serving(db_url, tmp_path, second_time, poll_sec=60, backoff_base_sec=0.2):
        job = await submit(conn, step("a", max_attempts=3))
        assert (await ended(conn, job))["attempt_id"] == 2
    await check(conn)


async def test_slow_tasks_are_claimed_for_the_places_only(db_url: str, conn: Connection, tmp_path: Path):
    go = asyncio.Event()

    async def slow(_: Task) -> None:
        await go.wait()

    which = await workflow(conn, step("a"))
    async with serving(db_url, tmp_path, slow, concurrency=3):
        for _ in range(10):
            await submit_to(conn, which)
        await eventually(lambda: conn.fetchval("SELECT count(*) = 3 FROM accs.live"))
        await asyncio.sleep(0.3)  # nothing is to happen
        assert await conn.fetchval("SELECT count(*) FROM accs.live") == 3
        go.set()
        await eventually(lambda: conn.fetchval("SELECT count(*) = 10 FROM jobs WHERE status = 'done'"))
    await check(conn)


async def test_fast_tasks_are_claimed_ahead_and_given_back_at_the_end(db_url: str, conn: Connection, tmp_path: Path):
    go = asyncio.Event()
    seen = 0

    async def fast_then_slow(_: Task) -> None:
        nonlocal seen
        seen += 1
        if seen > 50:
            await go.wait()

    which = await workflow(conn, step("a"))
    for _ in range(200):
        await submit_to(conn, which)
    async with serving(db_url, tmp_path, fast_then_slow, concurrency=2, drain_sec=0):
        await eventually(lambda: conn.fetchval("SELECT count(*) > 2 FROM accs.live"))
        assert await conn.fetchval("SELECT (max_concurrency ->> 'render')::int > 2 FROM nodes")
    assert await conn.fetchval("SELECT count(*) FROM accs.live") == 0
    assert await conn.fetchval("SELECT max(lost) + max(attempt) FROM job_tasks") == 0
    await check(conn)


async def test_what_waits_behind_slow_tasks_is_left_to_others(
    db_url: str, conn: Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("accsd.sdk.pull.worker._STALE_SEC", 0.3)
    monkeypatch.setattr("accsd.sdk.pull.worker._STALE_CHECK_SEC", 0.1)
    seen = 0

    async def fast_then_slow(_: Task) -> None:
        nonlocal seen
        seen += 1
        if seen > 50:
            await asyncio.sleep(60)

    which = await workflow(conn, step("a"))
    for _ in range(200):
        await submit_to(conn, which)
    async with serving(db_url, tmp_path, fast_then_slow, concurrency=2):
        await eventually(lambda: seen >= 52)
        await eventually(lambda: conn.fetchval("SELECT count(*) = 2 FROM accs.live"))
    await check(conn)


async def test_a_thousand_leases_are_kept_by_one_statement(db_url: str, conn: Connection, tmp_path: Path):
    go = asyncio.Event()

    async def wait(_: Task) -> None:
        await go.wait()

    which = await workflow(conn, step("a"))
    await conn.fetch("SELECT * FROM accs.submit_jobs($1)", [which] * 300)
    async with serving(db_url, tmp_path, wait, concurrency=300, heartbeat_ttl_sec=2):
        await eventually(lambda: conn.fetchval("SELECT count(*) = 300 FROM accs.live"))
        first = await conn.fetchval("SELECT max(lease_until) FROM accs.live")
        kept = "SELECT count(DISTINCT lease_until) = 1 AND min(lease_until) > $1 FROM accs.live"
        await eventually(lambda: conn.fetchval(kept, first + timedelta(seconds=1)), within=10)
        go.set()
        await eventually(lambda: conn.fetchval("SELECT count(*) = 300 FROM jobs WHERE status = 'done'"))
    await check(conn)


async def test_a_claim_that_fails_for_good_ends_the_service_after_its_tasks(
    db_url: str, conn: Connection, tmp_path: Path
):
    go = asyncio.Event()

    async def wait(_: Task) -> None:
        await go.wait()

    which = await workflow(conn, step("a"))
    job = await submit_to(conn, which)

    async def upgraded() -> None:
        async with serving(db_url, tmp_path, wait):
            await eventually(lambda: conn.fetchval("SELECT count(*) = 1 FROM accs.live"))
            await conn.execute("ALTER FUNCTION accs.claim_tasks RENAME TO claim_tasks_of_tomorrow")
            await submit_to(conn, which)
            await asyncio.sleep(0.2)  # the claim fails; what runs goes on
            go.set()
            await ended(conn, job)
            await asyncio.sleep(10)  # until the service ends

    with pytest.raises(ExceptionGroup) as raised:
        await upgraded()
    assert raised.group_contains(SchemaMismatch)


async def test_it_does_not_start_while_it_is_switched_off(tmp_path: Path):
    service = Service(SERVICE)

    @service.task
    async def noop(task: Any) -> None: ...

    off = {"node": {"name": "m1", "state_dir": tmp_path}, "fallback": {"pull": False}}
    with pytest.raises(ConfigError, match=r"switched off \(fallback.pull\)"):
        await service.serve(settings=Settings.model_validate(off))


async def test_without_notifications_it_polls(db_url: str, conn: Connection, tmp_path: Path):
    async def noop(task: Any) -> None: ...

    async with serving(db_url, tmp_path, noop, fallback={"notify": False}, poll_sec=60, poll_deaf_sec=0.2):
        job = await submit(conn)
        await ended(conn, job)


async def test_a_function_emits_events_of_its_job(db_url: str, conn: Connection, tmp_path: Path):
    """EV1, EV11: from a thread or from the loop; the event knows its job."""

    async def in_loop(given: Any) -> dict[str, Any]:
        with pytest.raises(RuntimeError, match="await task"):
            given.emit("shop.order")
        return {"event": await given.emit_event("shop.order", {"n": 1}, key="k")}

    def in_thread(given: Any) -> dict[str, Any]:
        return {"event": given.emit("shop.order", {"n": 1}, key="k")}

    jobs = list[UUID]()
    for number, function in enumerate((in_loop, in_thread)):
        async with serving(db_url, tmp_path / str(number), function):
            jobs.append(await submit(conn, step("a")))
            results = (await ended(conn, jobs[-1]))["results"]
        [event] = await conn.fetch("SELECT id, job_id, source, payload FROM events")
        assert results["event"] == event["id"]
        assert (event["job_id"], event["source"], event["payload"]) == (jobs[0], f"service:{SERVICE}", {"n": 1})
