"""One attempt on the real parts: given back, hurried, stopped by what fails at first, lost from sight."""

import asyncio
import shutil
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import anyio
import pytest
from structlog.contextvars import merge_contextvars
from structlog.testing import capture_logs

from accsd.db import Answer, finish_many_tasks
from accsd.errors import Bug, DockerUnavailable
from accsd.model.outcome import ErrorCode
from accsd.runners.base import NO_CURSOR, Cursor, Ending, Execution, Launch, Runner, TakeOutput
from accsd.work.attempt import Attempt
from accsd.work.attempts import Attempts
from tests.conftest import Connect
from tests.support.attempts import Shop, shop
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import node, step, submit
from tests.support.library import opened
from tests.support.tasks import EVERYTHING, NOTE, PREAMBLE, WAIT, notes

POLITE = (
    PREAMBLE
    + "signal.signal(signal.SIGTERM, lambda *_: (time.sleep(1), note('heard'), sys.exit()))\n"
    + WAIT.removeprefix(PREAMBLE)
)
DEAF = PREAMBLE + "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WAIT.removeprefix(PREAMBLE)


@asynccontextmanager
async def working(db_url: str, tmp_path: Path, conn: Connection) -> AsyncGenerator[Shop]:
    await node(conn)
    async with opened(db_url) as db, shop(db, tmp_path) as here:
        yield here
    await check(conn)


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return {"note": str(tmp_path / "notes"), "go": str(tmp_path / "go")}


async def began(tmp_path: Path) -> Path:
    await eventually(lambda: notes(tmp_path / "notes"), within=10)
    return Path(f"/proc/{notes(tmp_path / 'notes')[0][3]}")


async def row(conn: Connection) -> tuple[str, int, int]:
    found = await conn.fetchrow("SELECT status, attempt, lost FROM job_tasks")
    assert found is not None
    return found["status"], found["attempt"], found["lost"]


async def test_what_does_not_end_when_it_is_asked_to_is_killed_and_given_back(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """However long its own grace is: a daemon that is told to stop has only so much time."""
    async with working(db_url, tmp_path, conn) as here:
        monkeypatch.setattr("accsd.work.attempts._STOPPING", timedelta(seconds=0.3))
        await submit(conn, step("a"), options=options)
        await here.begin(here.serving(DEAF, stop_grace="1h"))
        process = await began(tmp_path)
        with anyio.fail_after(10):
            await here.attempts.drain(timedelta(0))
        assert not process.exists()
        assert await row(conn) == ("queued", 0, 0)
        assert not list(here.context.attempts_folder.iterdir())


async def test_a_cancelled_task_has_its_whole_grace_however_long_that_is(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """The time for cleaning up begins when the grace is over."""
    async with working(db_url, tmp_path, conn) as here:
        monkeypatch.setattr("accsd.work.attempt._CLEANING", timedelta(seconds=0.5))
        job = await submit(conn, step("a"), options=options)
        await here.begin(here.serving(POLITE, stop_grace="20s"))
        await began(tmp_path)
        await conn.fetch("SELECT FROM accs.cancel_jobs($1)", [job])
        here.context.leases.ask_now()
        await here.idle()
    assert [said[2] for said in notes(tmp_path / "notes")] == ["began", "heard"]


async def test_an_upload_that_waits_for_its_store_does_not_hold_up_a_hurried_drain(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any]
):
    async with working(db_url, tmp_path, conn) as here:
        shutil.rmtree(tmp_path / "objects", ignore_errors=True)
        (tmp_path / "objects").write_text("not a folder")
        await submit(conn, step("a"), options=options)
        await here.begin(here.serving(EVERYTHING))
        await eventually(lambda: notes(tmp_path / "notes"), within=10)
        async with anyio.create_task_group() as group:
            group.start_soon(here.attempts.drain, timedelta(hours=1))
            await anyio.wait_all_tasks_blocked()
            here.attempts.hurry()
            with anyio.fail_after(10):
                await here.idle()
        assert await row(conn) == ("queued", 0, 0)


@dataclass
class Faulty:
    """A runner whose executions fail in one way or another; everything else is the real one's."""

    real: Runner
    stops_that_fail: int = 0
    loses_sight_after: Path | None = None  # has appeared
    is_cancelled: str = ""  # by nobody: it "leaks" out, or is "counted" on the task although it was over at once

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def start(self, launch: Launch) -> Execution:
        return FaultyExecution(await self.real.start(launch), self)  # pyright: ignore[reportReturnType]


@dataclass
class FaultyExecution:
    real: Execution
    runner: Faulty

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def stop(self, grace: timedelta) -> None:
        if self.runner.stops_that_fail:
            self.runner.stops_that_fail -= 1
            raise DockerUnavailable("the engine does not answer")
        await self.real.stop(grace)

    async def watch(self, take: TakeOutput, since: Cursor = NO_CURSOR) -> Ending:
        if self.runner.loses_sight_after is not None:
            await eventually(self.runner.loses_sight_after.exists, within=10)
            return Ending(cause=ErrorCode.WORKER_LOST, detail="the engine did not come back")
        if self.runner.is_cancelled == "leaks":
            raise asyncio.CancelledError("stray")
        ending = await self.real.watch(take, since)
        if self.runner.is_cancelled == "counted":
            await self._leave_a_cancellation()
        return ending

    async def _leave_a_cancellation(self) -> None:
        """As asyncio.TaskGroup does up to Python 3.12, and some libraries do at their timeouts."""
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0)
        assert task.cancelling()


async def faulty(here: Shop, program: str, *, settings: dict[str, Any] | None = None, **faults: Any) -> Attempt:
    served = here.serving(program, **(settings or {}))
    return await here.begin(here.in_hands_of(served, Faulty(served.runner, **faults)))


async def test_a_stop_that_fails_at_first_is_tried_again_before_the_task_is_given_back(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any]
):
    async with working(db_url, tmp_path, conn) as here:
        await submit(conn, step("a"), options=options)
        attempt = await faulty(here, WAIT, stops_that_fail=2)
        process = await began(tmp_path)
        attempt.give_back("a test")
        await here.idle()
        assert not process.exists()
        assert await row(conn) == ("queued", 0, 0)
        assert not list(here.context.attempts_folder.iterdir())


async def test_what_ran_too_long_is_told_as_that_although_it_could_not_be_stopped_at_once(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any]
):
    async with working(db_url, tmp_path, conn) as here:
        await submit(conn, step("a", max_attempts=1), options=options)
        await faulty(here, WAIT, settings={"timeout": "3s"}, stops_that_fail=1)
        process = await began(tmp_path)
        await here.idle()
        assert not process.exists()
        assert await conn.fetchval("SELECT error_code FROM job_tasks") == "timeout"


async def test_what_was_lost_from_sight_is_stopped_before_it_is_given_back(
    db_url: str, conn: Connection, connect: Connect, tmp_path: Path, options: dict[str, Any]
):
    async with working(db_url, tmp_path, conn) as here:
        await submit(conn, step("a"), options=options)
        other = await connect()
        async with other.transaction():
            await faulty(here, WAIT, loses_sight_after=tmp_path / "held")
            process = await began(tmp_path)
            await other.execute("SELECT FROM jobs FOR UPDATE")
            (tmp_path / "held").touch()
            await eventually(lambda: not process.exists(), within=10, what="its end, while the release is held up")
            assert (await row(conn))[0] == "running"
        await here.idle()
        assert await row(conn) == ("queued", 0, 1)


async def test_a_heartbeat_that_hears_of_our_own_end_first_is_no_loss(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """The end is committed, its answer is on the way, and a heartbeat is answered in between."""
    async with working(db_url, tmp_path, conn) as here:

        async def answered_late(*args: Any, **values: Any) -> Mapping[UUID, Answer]:
            answers = await finish_many_tasks(*args, **values)
            assert len(here.context.leases.held) == 1
            assert await here.context.leases.beat()
            return answers

        monkeypatch.setattr("accsd.work.finish.finish_many_tasks", answered_late)
        await submit(conn, step("a"), options=options)
        await here.begin(here.serving(NOTE))
        await here.idle()
        assert await conn.fetchval("SELECT status FROM jobs") == "done"
        said = here.context.metrics.render().decode()
        assert 'accsd_leases_lost_total{reason="already_finished"} 0.0' in said
        assert 'accsd_execution_seconds_count{result="done"' in said


@pytest.mark.parametrize(("field", "called"), [("options", "options"), ("inputs", "results of earlier steps")])
async def test_what_no_envelope_can_hold_is_that_tasks_own_failure(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any], field: str, called: str
):
    """As others may have written it into the database."""
    deep: Any = {}
    for _ in range(300):
        deep = {"a": deep}
    async with working(db_url, tmp_path, conn) as here:
        await submit(conn, step("a"), options=options)
        task = (await here.claim())._replace(**{field: deep})
        attempt = here.start(task, here.serving(NOTE))
        await here.idle()
        ended = await conn.fetchrow("SELECT status, attempt, lost, error_code, error_message FROM job_tasks")
        assert ended is not None
        said = f"the task cannot be given: its {called} are nested deeper than 64 levels"
        assert tuple(ended) == ("error", 1, 0, "protocol_error", said)
        assert attempt.was_conclusive, "the service goes on claiming at once"
        assert not notes(tmp_path / "notes")


async def test_a_bug_in_whoever_hears_of_an_end_does_not_end_the_others(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any]
):
    async with working(db_url, tmp_path, conn) as here:

        def fails(_: Attempt) -> None:
            raise RuntimeError("a bug")

        await submit(conn, step("a"), step("b", "audio"), options={**options, "note": str(tmp_path / "notes")})
        await here.begin(here.serving(WAIT))
        await began(tmp_path)
        await here.begin(here.serving(NOTE, service="audio"), ended=fails)
        await eventually(lambda: len(here.attempts) == 1, within=10)
        (tmp_path / "go").touch()
        await here.idle()
        assert await conn.fetchval("SELECT status FROM jobs") == "done"


@asynccontextmanager
async def bystander(here: Shop, conn: Connection, tmp_path: Path, options: dict[str, Any]) -> AsyncGenerator[None]:
    """Another attempt, "a", which is under way all the time and must come to its own end; "b" is the test's."""
    await submit(conn, step("a"), step("b", "audio"), options=options)
    await here.begin(here.serving(WAIT))
    await began(tmp_path)
    yield
    assert here.attempts.is_open
    assert len(here.attempts) == 1
    (tmp_path / "go").touch()
    await here.idle()
    assert await conn.fetchval("SELECT status FROM job_tasks WHERE task_key = 'a'") == "done"


async def test_a_cancellation_that_leaks_out_of_one_attempt_gives_that_one_back_and_ends_no_other(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any]
):
    async with working(db_url, tmp_path, conn) as here, bystander(here, conn, tmp_path, options):
        served = here.serving(NOTE, service="audio")
        with capture_logs([merge_contextvars]) as logged:
            leaky = await here.begin(here.in_hands_of(served, Faulty(served.runner, is_cancelled="leaks")))
            await eventually(lambda: len(here.attempts) == 1, within=10)
        found = await conn.fetchrow("SELECT status, attempt, lost, error_message FROM job_tasks WHERE task_key = 'b'")
        assert found is not None
        assert (found["status"], found["attempt"], found["lost"]) == ("queued", 0, 1)
        assert not here.context.folder(leaky.fence).exists()
    (said,) = [each for each in logged if each["event"] == "attempt_failed_here"]
    assert said["error"] == "it was cancelled, and nobody had asked for it"
    assert (said["task_id"], said["attempt_id"]) == (str(leaky.fence.task_id), 1)
    assert str(said["exc_info"].__cause__) == "stray"


async def test_a_cancellation_that_somebody_left_counted_on_a_task_does_not_cost_its_verdict(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any]
):
    async with working(db_url, tmp_path, conn) as here, bystander(here, conn, tmp_path, options):
        served = here.serving(NOTE, service="audio")
        await here.begin(here.in_hands_of(served, Faulty(served.runner, is_cancelled="counted")))
        await eventually(lambda: len(here.attempts) == 1, within=10)
        assert await conn.fetchval("SELECT status FROM job_tasks WHERE task_key = 'b'") == "done"


async def test_what_leaks_out_of_the_last_step_of_an_attempt_is_told_and_left_to_the_agent(
    db_url: str, conn: Connection, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    async def leak(*_: object) -> None:
        raise asyncio.CancelledError("stray")

    async with working(db_url, tmp_path, conn) as here, bystander(here, conn, tmp_path, options):
        with monkeypatch.context() as patch, capture_logs() as logged:
            patch.setattr(Attempt, "_clean_up", leak)
            leaky = await here.begin(here.serving(NOTE, service="audio"))
            await eventually(lambda: len(here.attempts) == 1, within=10)
        assert leaky.left_something
    (said,) = [each for each in logged if each["event"] == "attempt_crashed"]
    assert (said["task_id"], said["attempt_id"], said["service"]) == (str(leaky.fence.task_id), 1, "audio")


async def test_the_group_of_attempts_does_not_end_in_silence():
    attempts = Attempts()
    with pytest.raises(Bug, match="nobody had asked for it"):  # noqa: PT012 - it is raised by what ends
        async with asyncio.timeout(10):
            serving = asyncio.ensure_future(attempts.serve())
            await anyio.wait_all_tasks_blocked()
            assert attempts._group is not None
            attempts._group.cancel_scope.cancel()
            await serving


async def test_why_a_task_failed_is_told_in_its_own_words(db_url: str, conn: Connection, tmp_path: Path):
    fails = "from accsd.sdk.wire import Permanent, main\ndef work(task): raise Permanent('no such page')\nmain(work)\n"
    async with working(db_url, tmp_path, conn) as here:
        await submit(conn, step("a"))
        await here.begin(here.serving(fails))
        await here.idle()
    told = "SELECT error_code, error_message FROM {} WHERE error_message IS NOT NULL"
    for table in ("job_tasks", "jobs"):
        assert tuple((await conn.fetch(told.format(table)))[0])[1].endswith("no such page (exit code 65)")
    assert await conn.fetchval("SELECT error_message FROM dead_letters") == "no such page (exit code 65)"
