"""What an operator does to an installation at work: back it up and restore it, upgrade it machine by machine."""

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from uuid import uuid4

import asyncpg
import pytest

from accsd.db.install import upgrade
from accsd.db.schema import SCHEMA_VERSION, Migration
from accsd.embedded.binaries import wheel_binaries
from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import OTHER_SERVER, ROOT, Connection, TestServer, open_connection
from tests.support.compose_node import job_reaches
from tests.support.eventually import eventually
from tests.support.factory import SERVICE, chain, step, submit, submit_to, workflow
from tests.support.tasks import NOTE, WAIT, notes, toml_service

pytestmark = pytest.mark.slow
LEASE = {"ACC_HEARTBEAT_TTL_SEC": "2"}
TIMELINE = "SELECT id, ts, type, message, data FROM task_events WHERE job_id = $1 ORDER BY id"


@pytest.fixture
def another_database(server: TestServer) -> Iterator[str]:
    """An empty one on the same server."""
    if OTHER_SERVER:
        pytest.skip("the programs of that server's version are not known")
    name = f"t_{uuid4().hex[:16]}"
    asyncio.run(_execute(server.url_of("postgres"), f"CREATE DATABASE {name}"))
    yield server.url_of(name)
    asyncio.run(_execute(server.url_of("postgres"), f"DROP DATABASE {name} WITH (FORCE)"))


async def _execute(url: str, statement: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def call(program: str, *arguments: str) -> None:
    done = subprocess.run([wheel_binaries() / program, *arguments], capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr.decode()


async def test_a_dump_of_an_installation_at_work_is_restored_and_goes_on(
    another_database: str, tmp_path: Path, db_url: str, conn: Connection
):
    config = toml_service(SERVICE, WAIT) + toml_service("quick", NOTE)
    options = {"note": str(tmp_path / "notes"), "go": str(tmp_path / "go")}
    with daemon.running(tmp_path, db_url, config=config, environ=LEASE) as accsd:
        done = await submit(conn, step("a", "quick"), options=options)
        await job_reaches(conn, done, "done")
        running = await submit(conn, *chain("b", "c"), options=options)
        await eventually(lambda: len(notes(tmp_path / "notes")) == 2, within=15)
        call("pg_dump", "-Fc", "-f", str(tmp_path / "dump"), db_url)
        timeline = await conn.fetch(TIMELINE, done)
        accsd.kill()
    call("pg_restore", "--exit-on-error", "-d", another_database, str(tmp_path / "dump"))
    restored = await open_connection(another_database)
    try:
        assert await restored.fetch(TIMELINE, done) == timeline
        with pytest.raises(asyncpg.PostgresError, match="accs"):
            await restored.execute("UPDATE jobs SET status = 'error'")
        (tmp_path / "go").touch()
        with daemon.running(tmp_path / "two", another_database, node="n2", config=config, environ=LEASE) as accsd:
            await job_reaches(restored, running, "done")
            assert accsd.stop() == 0
        tasks = await restored.fetch("SELECT task_key, attempt_id, attempt FROM job_tasks WHERE job_id = $1", running)
        assert sorted(map(tuple, tasks)) == [("b", 2, 0), ("c", 1, 0)], "what ran was taken back, and spent nothing"
        await check(restored)
    finally:
        await restored.close()


@pytest.fixture
def next_version(tmp_path: Path) -> Path:
    """accsd as it will be: the same, for a schema that is one version further."""
    copy = tmp_path / "next"
    shutil.copytree(ROOT / "accsd", copy / "accsd", ignore=shutil.ignore_patterns("__pycache__"))
    schema = copy / "accsd/db/schema.py"
    text = schema.read_text()
    schema.write_text(
        text.replace(f"SCHEMA_VERSION: Final = {SCHEMA_VERSION}", f"SCHEMA_VERSION: Final = {SCHEMA_VERSION + 1}")
    )
    assert schema.read_text() != text
    return copy


async def test_machines_are_upgraded_one_by_one_while_jobs_go_through_and_each_task_runs_once(
    next_version: Path, tmp_path: Path, db_url: str, conn: Connection
):
    """The schema first; agents of both versions work side by side until the last one is replaced."""
    config = toml_service(SERVICE, NOTE, concurrency=2)
    made = await workflow(conn, *chain("a", "b"))
    options = {"note": str(tmp_path / "notes")}
    jobs = [await submit_to(conn, made, options=options) for _ in range(4)]
    further = {"PYTHONPATH": os.pathsep.join([str(next_version), os.environ.get("PYTHONPATH", "")])}
    with ExitStack() as stack:

        def start(node: str, **how: Any) -> daemon.Daemon:
            return stack.enter_context(daemon.running(tmp_path, db_url, node=node, config=config, **how))

        old = {node: start(node) for node in ("n1", "n2")}
        await eventually(lambda: len(notes(tmp_path / "notes")) >= 4, within=20)
        await upgrade(conn, [Migration(SCHEMA_VERSION + 1, "note", "ALTER TABLE public.jobs ADD COLUMN note text")])
        for node, accsd in old.items():
            jobs += [await submit_to(conn, made, options=options) for _ in range(6)]
            assert accsd.stop() == 0, "in the middle of them"
            start(node, environ=further, prefix=["env", "-C", str(next_version)])
        for job in jobs:
            await job_reaches(conn, job, "done")
    assert len(notes(tmp_path / "notes")) == 2 * len(jobs)
    assert await conn.fetchval("SELECT count(*) FROM job_tasks WHERE attempt > 0 OR lost > 0") == 0
    await check(conn)
