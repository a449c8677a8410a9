"""Leases of a daemon in trouble: its role crashes, its calls hang, an attempt meets a bug."""

import signal
from datetime import datetime, timedelta
from pathlib import Path
from uuid import UUID

from tests.conftest import Connect
from tests.support import daemon
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import step, submit, task
from tests.support.fleet import task_is
from tests.support.tasks import (
    EVERYTHING,
    NOTE,
    WAIT,
    attempt_folders,
    notes,
    process_of,
    processes_left,
    toml_service,
    waiting,
)


async def test_health_counts_the_leases_that_are_held(tmp_path: Path, db_url: str, conn: Connection):
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT), http=True) as accsd:
        await submit(conn, step("a"), options=waiting(tmp_path))
        await process_of(tmp_path / "notes")
        shown = accsd.health()
        assert (shown["attempts_in_flight"], shown["leases_held"]) == (1, 1)
        (tmp_path / "go").touch()
        await eventually(lambda: accsd.health()["attempts_in_flight"] == 0, within=10)
        assert accsd.health()["leases_held"] == 0


async def test_work_is_killed_before_its_lease_ends_although_the_heartbeat_has_crashed(
    tmp_path: Path, db_url: str, conn: Connection
):
    """The role that keeps leases is down, for as long as the node's row is locked."""
    environ = {"ACC_HEARTBEAT_TTL_SEC": "6"}
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT), environ=environ) as accsd:
        job = await submit(conn, step("a"), options=waiting(tmp_path))
        process = await process_of(tmp_path / "notes")
        async with conn.transaction():
            # the next heartbeat fails for a reason that is no outage: the role crashes, and cannot register again
            await conn.execute("ALTER TABLE nodes ADD CONSTRAINT broken CHECK (last_seen < '2000-01-01') NOT VALID")
        accsd.wait_for("role_crashed", role="registration")
        await eventually(lambda: not process.exists(), within=10, what="the end of its process")
        left = await conn.fetchval("SELECT lease_until - accs.clock() FROM job_tasks WHERE id = $1", task_id(accsd))
        assert left is None or left > timedelta(0), "it ran on after the end of its lease"
        await conn.execute("ALTER TABLE nodes DROP CONSTRAINT broken")
        await eventually(lambda: task_is(conn, job, "running"), within=90)


def task_id(accsd: daemon.Daemon) -> UUID:
    return UUID(accsd.log("lease_gone")[-1]["task_id"])


async def test_heartbeats_do_not_wait_behind_calls_that_hang(
    tmp_path: Path, db_url: str, conn: Connection, connect: Connect
):
    """Somebody holds the row of a job whose tasks end: they wait with every connection of the pool."""
    other = await connect()
    config = toml_service("audio", WAIT) + toml_service("render", NOTE, concurrency=4)
    environ = {"ACC_HEARTBEAT_TTL_SEC": "4", "ACC_DB_POOL_SIZE": "2"}
    with daemon.running(tmp_path, db_url, config=config, environ=environ) as accsd:
        steady = await submit(conn, step("a", "audio"), options=waiting(tmp_path))
        await process_of(tmp_path / "notes")
        async with other.transaction():
            stuck = await submit(conn, *(step(key) for key in "abcd"), options={"note": str(tmp_path / "others")})
            await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", stuck)
            await eventually(lambda: len(notes(tmp_path / "others")) == 4, within=10)
            # longer than a lease: every one of them is kept
            claimed = await conn.fetchval("SELECT max(lease_until) FROM job_tasks")
            await eventually(lambda: kept_beyond(conn, claimed + timedelta(seconds=5)), within=12)
        (tmp_path / "go").touch()
        await eventually(lambda: task_is(conn, steady, "done"), within=10)
        await eventually(lambda: task_is(conn, stuck, "done"), within=10)
        assert accsd.log("lease_gone") == []
    assert len(notes(tmp_path / "others")) == 4


async def kept_beyond(conn: Connection, moment: datetime) -> bool:
    return await conn.fetchval("SELECT min(lease_until) > $1 FROM accs.live", moment)


async def test_a_bug_at_the_end_of_an_attempt_does_not_hold_its_task_until_the_lease_ends(
    tmp_path: Path, db_url: str, conn: Connection
):
    broken = {"ACC_FAILPOINTS": "finish.sent:raise"}
    with daemon.running(tmp_path, db_url, config=toml_service("render", EVERYTHING), environ=broken) as accsd:
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        await eventually(lambda: task_is(conn, job, "done"), within=15)
        assert len(accsd.log("attempt_failed_here")) == 1
        await eventually(lambda: not attempt_folders(tmp_path), within=10)
        assert await processes_left(conn) == []
    assert (await task(conn, job))["lost"] == 1


async def test_a_cancel_that_comes_while_it_is_started_is_no_bug(tmp_path: Path, db_url: str, conn: Connection):
    paused = {"ACC_FAILPOINTS": "runner.started:pause"}
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT), environ=paused) as accsd:
        job = await submit(conn, step("a"), options=waiting(tmp_path))
        process = await process_of(tmp_path / "notes")
        await eventually(lambda: is_stopped(accsd.pid), within=10)
        await conn.fetch("SELECT * FROM accs.cancel_jobs($1)", [job])
        accsd.signal(signal.SIGCONT)
        await eventually(lambda: not process.exists(), within=10)
        await eventually(lambda: not attempt_folders(tmp_path), within=10)
        assert accsd.log("attempt_failed_here") == []
        assert accsd.log("abandoned")[0]["reason"] == "already_finished"
    assert await task_is(conn, job, "cancelled")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def test_a_crash_of_one_role_shows_and_the_others_go_on(tmp_path: Path, db_url: str, conn: Connection):
    broken = {"ACC_FAILPOINTS": "heartbeat.sent:raise"}
    with daemon.running(tmp_path, db_url, config=toml_service("render", NOTE), environ=broken, http=True) as accsd:
        accsd.wait_for("role_crashed", role="registration")
        shown = accsd.health()
        assert shown["status"] == "degraded"
        assert shown["reasons"] == ["registration is restarting: Injected: heartbeat.sent"]
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        await eventually(lambda: task_is(conn, job, "done"), within=10)
        await eventually(lambda: accsd.health()["status"] == "ok", within=15, what="recovery")
        assert accsd.health()["roles"]["registration"]["restarts"] == 1
