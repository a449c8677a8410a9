"""PostgreSQL goes away under load, as by a crash: agents wait for it, go on within two seconds of its return, lose
nothing and do nothing twice without knowing."""

import asyncio
import json
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID

import anyio
import pytest

from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection, open_connection
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.factory import step
from tests.support.fleet import all_are, submit_many
from tests.support.own_server import OwnServer, own_server
from tests.support.tasks import counted_service, executions, noted

NODES = ("n1", "n2", "n3")
LEASE = timedelta(seconds=3)


@pytest.fixture
def postgres() -> Iterator[OwnServer]:
    with own_server() as own:
        yield own


@contextmanager
def fleet(folder: Path, url: str, *, work: float, **environ: str) -> Generator[list[Daemon]]:
    """A control host and three nodes with two places each."""
    with ExitStack() as stack:
        started = [
            stack.enter_context(
                daemon.running(folder, url, role="builder", node="control", environ=environ, ready=False)
            )
        ]
        for name in NODES:
            config = counted_service("render", folder / "notes", node=name, work=work, concurrency=2)
            started.append(
                stack.enter_context(
                    daemon.running(folder, url, role="agent", node=name, config=config, environ=environ, ready=False)
                )
            )
        for accsd in started:
            accsd.wait_for("listening")
        yield started


async def first_claim_after(conn: Connection, moment: datetime) -> datetime:
    async def found() -> datetime | None:
        return await conn.fetchval(
            "SELECT min(ts) FROM task_events WHERE data ->> 'to' = 'starting' AND ts > $1", moment
        )

    at = await eventually(found, within=20)
    assert at is not None
    return at


async def restarted(postgres: OwnServer, *, away: timedelta) -> datetime:
    """Stopped with -m immediate; when it took connections again."""
    await asyncio.to_thread(postgres.crash)
    await anyio.sleep(away.total_seconds())
    await asyncio.to_thread(postgres.start)
    return datetime.now(UTC)  # the database is on this machine: its clock is ours


async def each_ran(conn: Connection, notes: Path, jobs: list[UUID]) -> int:
    """Every execution had a claim of its own, and the last one of each task was the one that counted. How many ran
    more than once."""
    attempts: dict[str, list[int]] = {}
    for (task, attempt), times in executions(notes).items():
        assert times == 1, f"attempt {attempt} of {task} was executed {times} times"
        attempts.setdefault(task, []).append(attempt)
    rows = await conn.fetch("SELECT id, attempt_id, attempt FROM job_tasks WHERE job_id = ANY ($1)", jobs)
    assert {str(row["id"]) for row in rows} == set(attempts)
    for row in rows:
        assert max(attempts[str(row["id"])]) == row["attempt_id"], "the result is that of an execution"
        assert row["attempt"] == 0, "an outage spends no attempt"
    return sum(len(made) > 1 for made in attempts.values())


async def test_a_crash_under_load_costs_two_seconds_and_nothing_else(tmp_path: Path, postgres: OwnServer):
    url = await postgres.with_schema()
    notes = tmp_path / "notes"
    with fleet(tmp_path, url, work=0.1) as daemons:
        conn = await open_connection(url)
        jobs = await submit_many(conn, 30, step("a"), step("b", after="a"))
        await eventually(lambda: len(noted(notes, "end")) >= 10, within=30)
        await conn.close()
        before = datetime.now(UTC)
        back = await restarted(postgres, away=timedelta(seconds=1))
        conn = await open_connection(url)
        again = await first_claim_after(conn, before + timedelta(seconds=1))
        assert again - back < timedelta(seconds=2)
        await all_are(conn, jobs, "done", within=60)
        assert [accsd.process.poll() for accsd in daemons] == [None] * 4
        assert [accsd.stop() for accsd in daemons] == [0] * 4
    assert await each_ran(conn, notes, jobs) == 0, "it was back within the leases: nothing ran twice"
    await check(conn, acknowledged=jobs)
    await conn.close()


async def test_away_for_longer_than_the_lease(tmp_path: Path, postgres: OwnServer):
    """Every agent stops what it can't keep; what was taken from it runs again under another attempt_id."""
    url = await postgres.with_schema()
    notes = tmp_path / "notes"
    lease = {"ACC_HEARTBEAT_TTL_SEC": str(LEASE.total_seconds())}
    with fleet(tmp_path, url, work=0.5, **lease) as daemons:
        conn = await open_connection(url)
        jobs = await submit_many(conn, 24, step("a"))
        await eventually(lambda: len(noted(notes, "begin")) >= 8, within=30)
        await conn.close()
        before = datetime.now(UTC)
        back = await restarted(postgres, away=LEASE + timedelta(seconds=1))
        conn = await open_connection(url)
        again = await first_claim_after(conn, before + timedelta(seconds=1))
        # Their places are taken by leases that have run out, until cleanup takes these back.
        assert again - back < timedelta(seconds=3)
        await all_are(conn, jobs, "done", within=60)
        assert [accsd.stop() for accsd in daemons] == [0] * 4
    assert 0 < await each_ran(conn, notes, jobs) <= 2 * len(NODES)
    await check(conn, acknowledged=jobs)
    await conn.close()


async def test_a_daemon_that_starts_before_its_database_waits_for_it(tmp_path: Path, postgres: OwnServer):
    """So does one that was started while the server recovers."""
    url = await postgres.with_schema()
    await asyncio.to_thread(postgres.crash)
    config = counted_service("render", tmp_path / "notes", node="n1")
    with daemon.running(tmp_path, url, config=config, ready=False) as accsd:
        said = accsd.wait_for("waiting_for_database")
        assert "can't be reached" in said["error"]
        assert said["hint"] == "start PostgreSQL, or correct ACC_DB_URL"
        accsd.wait_for("waiting_for_database", times=2)
        await asyncio.to_thread(postgres.start)
        accsd.wait_for("started")
        conn = await open_connection(url)
        jobs = await submit_many(conn, 1, step("a"))
        await all_are(conn, jobs, "done")
        assert accsd.stop() == 0
        await conn.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_daemon_that_waits_for_its_database_ends_in_order_when_it_is_told_to(tmp_path: Path, number: signal.Signals):
    with daemon.running(tmp_path, f"postgresql://127.0.0.1:{daemon.free_port()}/accs", ready=False) as accsd:
        accsd.wait_for("waiting_for_database")
        accsd.signal(number)
        assert accsd.process.wait(timeout=20) == 0
        assert accsd.log("stopped")


def test_a_daemon_that_waits_for_its_database_goes_to_the_one_that_it_is_told_of(tmp_path: Path, postgres: OwnServer):
    url = asyncio.run(postgres.with_schema())

    def database(url: str) -> str:
        return f"[database]\nurl = {json.dumps(url)}\n"

    nowhere = database(f"postgresql://127.0.0.1:{daemon.free_port()}/accs")
    with daemon.running(tmp_path, "", config=nowhere, ready=False) as accsd:
        accsd.wait_for("waiting_for_database")
        accsd.config.write_text("[database]\nno_such_setting = 1\n")
        accsd.signal(signal.SIGHUP)
        accsd.wait_for("reload_failed")
        accsd.config.write_text(database(url))
        accsd.signal(signal.SIGHUP)
        accsd.wait_for("reloaded")
        accsd.wait_for("started")
        assert accsd.stop() == 0
