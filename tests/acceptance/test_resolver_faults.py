"""Steps with conditions and lists while control hosts die and the database goes away: each is resolved once, each list
leaves all of its tasks or none, and every task that should run is executed once, as counted outside the database."""

import asyncio
import signal
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

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

ITEMS = {"items": [1, 2, 3]}
# never → skipped; each → three tasks, one of which is skipped; join waits for both
STEPS: list[dict[str, Any]] = [
    step("split"),
    step("never", after="split", **{"if": "size(params.items) > 99"}),
    step("each", after="split", for_each="${params.items}", if_item="item != 2", **{"with": {"n": "${item}"}}),
    step("join", after=["never", "each"], **{"with": {"all": "${size(steps.each)}"}}),
]


@pytest.fixture
def postgres() -> Iterator[OwnServer]:
    with own_server() as own:
        yield own


@contextmanager
def agent(folder: Path, url: str, *, work: float = 0) -> Generator[Daemon]:
    config = counted_service("render", folder / "notes", node="n1", work=work, concurrency=4)
    with daemon.running(folder, url, role="agent", node="n1", config=config, ready=False) as accsd:
        yield accsd


@contextmanager
def builder(folder: Path, url: str, name: str = "control", **environ: str) -> Generator[Daemon]:
    with daemon.running(folder, url, role="builder", node=name, environ=environ, ready=False) as accsd:
        yield accsd


async def end_well(conn: Connection, notes: Path, jobs: Sequence[UUID]) -> None:
    """Each task that is done on a node was executed once, and nothing else was."""
    await all_are(conn, jobs, "done", within=60)
    rows = await conn.fetch("SELECT * FROM job_tasks WHERE job_id = ANY ($1)", list(jobs))
    statuses = {(row["job_id"], row["task_key"]): row["status"] for row in rows}
    expected = {"split": "done", "never": "skipped", "each": "done", "join": "done"}
    expected |= {"each[0]": "done", "each[1]": "skipped", "each[2]": "done"}
    assert statuses == {(job, key): status for job in jobs for key, status in expected.items()}
    ran = {(str(row["id"]), 1) for row in rows if row["status"] == "done" and row["items"] is None}
    assert executions(notes) == dict.fromkeys(ran, 1)
    joins = [row for row in rows if row["task_key"] == "join"]
    assert [row["given"]["with"] for row in joins] == [{"all": 3}] * len(jobs)
    assert await conn.fetch("SELECT * FROM accs.damage") == []
    await check(conn, acknowledged=list(jobs))


@pytest.mark.parametrize("point", ["resolve.evaluated", "resolve.committed"])
async def test_a_control_host_that_dies_whenever_it_has_resolved_something(
    tmp_path: Path, db_url: str, conn: Connection, point: str
):
    jobs = await submit_many(conn, 3, *STEPS, options=ITEMS)
    with agent(tmp_path, db_url):
        for _ in range(2):
            with builder(tmp_path, db_url, ACC_FAILPOINTS=f"{point}:kill") as dying:
                assert dying.process.wait(timeout=40) == -signal.SIGKILL, dying.tail()
        with builder(tmp_path, db_url):
            await end_well(conn, tmp_path / "notes", jobs)


@pytest.mark.parametrize("action", ["cut", "raise"])
async def test_a_resolver_that_loses_its_connection_or_has_a_bug(
    tmp_path: Path, db_url: str, conn: Connection, action: str
):
    broken = ",".join(f"{point}:{action}" for point in ("resolve.evaluated", "resolve.committed"))
    jobs = await submit_many(conn, 3, *STEPS, options=ITEMS)
    with agent(tmp_path, db_url), builder(tmp_path, db_url, ACC_FAILPOINTS=broken) as control:
        await end_well(conn, tmp_path / "notes", jobs)
        assert control.stop() == 0


@pytest.mark.parametrize("commits", [True, False])
async def test_a_control_host_that_dies_in_the_middle_of_a_fan_out_leaves_all_tasks_or_none(
    tmp_path: Path, db_url: str, conn: Connection, connect: Any, commits: bool
):
    """The fan-out waits for its concurrency key, with all its tasks written, when its control host is killed."""
    held = [*STEPS[:2], {**STEPS[2], "concurrency_key": "k", "concurrency_limit": 5}, STEPS[3]]
    jobs = await submit_many(conn, 1, *held, options=ITEMS)
    holder = await connect()
    waiting = (
        "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%accs.fan_out%'"
        " AND datname = current_database() AND pid <> pg_backend_pid()"
    )
    with agent(tmp_path, db_url):
        with builder(tmp_path, db_url) as dying:
            async with holder.transaction():
                await holder.execute("SELECT FROM accs.concurrency_keys WHERE key = 'k' FOR NO KEY UPDATE")
                pid = await eventually(lambda: conn.fetchval(waiting), within=30)
                dying.signal(signal.SIGKILL)
                dying.process.wait(timeout=10)
                if not commits:
                    await conn.fetchval("SELECT pg_terminate_backend($1)", pid)
                assert await conn.fetchval("SELECT count(*) FROM job_tasks WHERE parent IS NOT NULL") == 0
        with builder(tmp_path, db_url):
            await end_well(conn, tmp_path / "notes", jobs)


async def test_two_control_hosts_resolve_each_step_once(tmp_path: Path, db_url: str, conn: Connection):
    with ExitStack() as stack:
        stack.enter_context(agent(tmp_path, db_url))
        for name in ("control-1", "control-2"):
            stack.enter_context(builder(tmp_path, db_url, name)).wait_for("listening")
        jobs = await submit_many(conn, 12, *STEPS, options=ITEMS)
        await end_well(conn, tmp_path / "notes", jobs)


async def test_a_database_that_goes_away_loses_no_step(tmp_path: Path, postgres: OwnServer):
    url = await postgres.with_schema()
    notes = tmp_path / "notes"
    with agent(tmp_path, url, work=0.1) as node, builder(tmp_path, url) as control:
        control.wait_for("listening")
        conn = await open_connection(url)
        jobs = await submit_many(conn, 10, *STEPS, options=ITEMS)
        await eventually(lambda: len(noted(notes, "end")) >= 12, within=30)
        await conn.close()
        await asyncio.to_thread(postgres.crash)
        await asyncio.to_thread(postgres.start)
        conn = await open_connection(url)
        await end_well(conn, notes, jobs)
        assert [control.stop(), node.stop()] == [0, 0]
    await conn.close()
