"""What a review of the daemon found: each story failed once. Real processes, forced by locks, failpoints and files."""

import os
import shutil
import signal
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from tests.conftest import Connect
from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.compose import why_no_plugin
from tests.support.eventually import eventually
from tests.support.factory import NODE, claim, node, step, submit
from tests.support.hostile import outcome, processes_left
from tests.support.tasks import EVERYTHING, NOTE, PREAMBLE, WAIT, notes, toml_service

# A violation is the last thing that it writes, and no newline follows.
FORGED_AT_THE_END = PREAMBLE + "sys.stdout.write(json.dumps({'type': 'result', 'job_id': '0' * 32}))\n"


async def task(conn: Connection, job: UUID, key: str = "a") -> dict[str, Any]:
    row = await conn.fetchrow("SELECT * FROM job_tasks WHERE job_id = $1 AND task_key = $2", job, key)
    assert row is not None
    return dict(row)


async def is_status(conn: Connection, job: UUID, wanted: str) -> bool:
    return (await task(conn, job))["status"] == wanted


async def began(note: Path) -> Path:
    """The process of the task, once it runs."""
    await eventually(lambda: notes(note), within=30)
    return Path(f"/proc/{notes(note)[0][3]}")


def folders(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state" / "n1" / "attempts").iterdir())


def waiting(tmp_path: Path) -> dict[str, Any]:
    """Options of a task that notes its beginning and waits for ever."""
    return {"note": str(tmp_path / "notes"), "go": str(tmp_path / "go")}


async def test_a_violation_without_a_newline_is_a_violation(tmp_path: Path, db_url: str, conn: Connection):
    with daemon.running(tmp_path, db_url, config=toml_service("render", FORGED_AT_THE_END)):
        job = await submit(conn, step("a", max_attempts=1))
        ended = await outcome(conn, job, within=20)
    assert (ended["error_code"], ended["lost"]) == ("protocol_error", 0)


async def test_what_is_claimed_while_sigterm_comes_is_not_lost(
    tmp_path: Path, db_url: str, conn: Connection, connect: Connect
):
    other = await connect()
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT)) as accsd:
        accsd.wait_for("node_registered")
        async with other.transaction():
            await other.execute("SELECT FROM accs.slots WHERE node = 'n1' AND service = 'render' FOR UPDATE")
            job = await submit(conn, step("a"), options=waiting(tmp_path))
            await eventually(lambda: waits_for_a_lock(conn), within=10)
            accsd.signal(signal.SIGTERM)
            accsd.wait_for("draining")
        # what was claimed may end within the grace, as anything that runs
        await began(tmp_path / "notes")
        (tmp_path / "go").touch()
        assert accsd.process.wait(timeout=20) == 0
    assert (await task(conn, job))["status"] == "done"
    await check(conn)


async def waits_for_a_lock(conn: Connection) -> bool:
    return await conn.fetchval("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'")


async def test_what_belongs_to_a_service_that_is_served_no_longer_is_stopped_and_given_back(
    tmp_path: Path, db_url: str, conn: Connection
):
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT)) as accsd:
        job = await submit(conn, step("a"), options=waiting(tmp_path))
        process = await began(tmp_path / "notes")
        accsd.kill()
    with daemon.running(tmp_path, db_url, config=toml_service("audio", NOTE)):
        await eventually(lambda: not process.exists(), within=15, what="the end of its process")
        await eventually(lambda: is_status(conn, job, "queued"), within=10)
        await eventually(lambda: not folders(tmp_path), within=10)
    assert (await task(conn, job))["attempt"] == 0
    await check(conn)


async def test_an_attempt_of_which_only_the_folder_is_left_is_given_back_and_its_folder_removed(
    tmp_path: Path, db_url: str, conn: Connection
):
    await node(conn)
    job = await submit(conn, step("a"), options=waiting(tmp_path))
    (claimed,) = await claim(conn, owner=NODE, lease=timedelta(minutes=2))
    left = tmp_path / "state" / "n1" / "attempts" / f"{claimed['task_id']}.{claimed['attempt_id']}"
    (left / "work").mkdir(parents=True)
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT)):
        await began(tmp_path / "notes")
        assert (await task(conn, job))["attempt_id"] == 2
        assert not left.exists()


async def test_a_bug_at_the_end_of_an_attempt_does_not_hold_its_task_until_the_lease_ends(
    tmp_path: Path, db_url: str, conn: Connection
):
    broken = {"ACC_FAILPOINTS": "finish.sent:raise"}
    with daemon.running(tmp_path, db_url, config=toml_service("render", EVERYTHING), environ=broken) as accsd:
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        await eventually(lambda: is_status(conn, job, "done"), within=15)
        assert len(accsd.log("attempt_failed_here")) == 1
        await eventually(lambda: not folders(tmp_path), within=10)
        assert await processes_left(conn) == []
    assert (await task(conn, job))["lost"] == 1


async def test_health_counts_the_leases_that_are_held(tmp_path: Path, db_url: str, conn: Connection):
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT), http=True) as accsd:
        await submit(conn, step("a"), options=waiting(tmp_path))
        await began(tmp_path / "notes")
        shown = accsd.health()
        assert (shown["attempts_in_flight"], shown["leases_held"]) == (1, 1)
        (tmp_path / "go").touch()
        await eventually(lambda: accsd.health()["attempts_in_flight"] == 0, within=10)
        assert accsd.health()["leases_held"] == 0


async def test_a_service_that_was_taken_out_of_the_configuration_is_no_complaint(
    tmp_path: Path, db_url: str, conn: Connection
):
    both = toml_service("render", NOTE) + toml_service("audio", NOTE)
    with daemon.running(tmp_path, db_url, config=both, http=True) as accsd:
        accsd.wait_for("node_registered")
        await eventually(lambda: accsd.health()["status"] == "ok", within=10)
        accsd.config.write_text(toml_service("render", NOTE))
        accsd.signal(signal.SIGHUP)
        accsd.wait_for("node_registered", times=2)
        assert await conn.fetchval("SELECT max_concurrency FROM nodes") == {"render": 1}
        await eventually(lambda: "agent:audio" not in accsd.health()["roles"], within=5)
        assert accsd.health()["reasons"] == []
        # and again, while the name is known
        accsd.config.write_text(both)
        accsd.signal(signal.SIGHUP)
        job = await submit(conn, step("a", "audio"), options={"note": str(tmp_path / "notes")})
        await eventually(lambda: is_status(conn, job, "done"), within=10)
        assert accsd.health()["reasons"] == []


async def test_work_is_killed_before_its_lease_ends_although_the_heartbeat_has_crashed(
    tmp_path: Path, db_url: str, conn: Connection
):
    """The role that keeps leases is down, for as long as the node's row is locked."""
    environ = {"ACC_HEARTBEAT_TTL_SEC": "6"}
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT), environ=environ) as accsd:
        job = await submit(conn, step("a"), options=waiting(tmp_path))
        process = await began(tmp_path / "notes")
        async with conn.transaction():
            # the next heartbeat fails for a reason that is no outage: the role crashes, and cannot register again
            await conn.execute("ALTER TABLE nodes ADD CONSTRAINT broken CHECK (last_seen < '2000-01-01') NOT VALID")
        accsd.wait_for("role_crashed", role="registration")
        await eventually(lambda: not process.exists(), within=10, what="the end of its process")
        left = await conn.fetchval("SELECT lease_until - accs.clock() FROM job_tasks WHERE id = $1", task_id(accsd))
        assert left is None or left > timedelta(0), "it ran on after the end of its lease"
        await conn.execute("ALTER TABLE nodes DROP CONSTRAINT broken")
        await eventually(lambda: is_status(conn, job, "running"), within=90)


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
        await began(tmp_path / "notes")
        async with other.transaction():
            stuck = await submit(conn, *(step(key) for key in "abcd"), options={"note": str(tmp_path / "others")})
            await other.execute("SELECT FROM jobs WHERE id = $1 FOR UPDATE", stuck)
            await eventually(lambda: len(notes(tmp_path / "others")) == 4, within=10)
            # longer than a lease: every one of them is kept
            claimed = await conn.fetchval("SELECT max(lease_until) FROM job_tasks")
            await eventually(lambda: kept_beyond(conn, claimed + timedelta(seconds=5)), within=12)
        (tmp_path / "go").touch()
        await eventually(lambda: is_status(conn, steady, "done"), within=10)
        await eventually(lambda: is_status(conn, stuck, "done"), within=10)
        assert accsd.log("lease_gone") == []
    assert len(notes(tmp_path / "others")) == 4


async def kept_beyond(conn: Connection, moment: datetime) -> bool:
    return await conn.fetchval("SELECT min(lease_until) > $1 FROM accs.live", moment)


async def test_nothing_is_claimed_for_services_that_are_found_while_draining(
    tmp_path: Path, db_url: str, conn: Connection
):
    if reason := why_no_plugin():
        pytest.skip(reason)
    (tmp_path / "compose.yaml").write_text("services:\n  plain:\n    image: none\n")
    hold = slow_docker(tmp_path)
    environ = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "ACC_COMPOSE_FILE": str(tmp_path / "compose.yaml")}
    config = toml_service("render", WAIT)
    with daemon.running(tmp_path, db_url, config=config, environ=environ) as accsd:
        await submit(conn, step("a"), options=waiting(tmp_path))
        await began(tmp_path / "notes")
        hold.touch()
        accsd.config.write_text(config + toml_service("audio", NOTE))
        accsd.signal(signal.SIGHUP)
        await eventually((tmp_path / "asked").exists, within=10)
        late = await submit(conn, step("a", "audio"), options={"note": str(tmp_path / "late")})
        accsd.signal(signal.SIGTERM)
        accsd.wait_for("draining")
        hold.unlink()
        accsd.wait_for("pass", role="discovery", did="serving audio, render")
        (tmp_path / "go").touch()
        assert accsd.process.wait(timeout=20) == 0
    assert (await task(conn, late))["attempt_id"] == 0


def slow_docker(folder: Path) -> Path:
    """A docker command that waits for as long as the file is there, and says so."""
    hold, asked = folder / "hold", folder / "asked"
    script = folder / "docker"
    wait = (
        f'[ -e {hold} ] && touch {asked}\nwhile [ -e {hold} ]; do sleep 0.02; done\nexec {shutil.which("docker")} "$@"'
    )
    script.write_text(f"#!/bin/sh\n{wait}\n")
    script.chmod(0o755)
    return hold


async def test_a_clock_that_was_put_forward_does_not_end_what_is_adopted(tmp_path: Path, db_url: str, conn: Connection):
    config = toml_service("render", WAIT, timeout="1h")
    with daemon.running(tmp_path, db_url, config=config) as accsd:
        job = await submit(conn, step("a"), options=waiting(tmp_path))
        await began(tmp_path / "notes")
        accsd.kill()
    (folder,) = folders(tmp_path)
    for path in folder.iterdir():  # as everything looks when the clock is two hours ahead since
        os.utime(path, (path.stat().st_atime - 7200, path.stat().st_mtime - 7200), follow_symlinks=False)
    with daemon.running(tmp_path, db_url, config=config) as accsd:
        accsd.wait_for("adopted")
        (tmp_path / "go").touch()
        await eventually(lambda: is_status(conn, job, "done"), within=10)
    assert (await task(conn, job))["attempt"] == 0


async def test_a_crash_of_one_role_shows_and_the_others_go_on(tmp_path: Path, db_url: str, conn: Connection):
    broken = {"ACC_FAILPOINTS": "heartbeat.sent:raise"}
    with daemon.running(tmp_path, db_url, config=toml_service("render", NOTE), environ=broken, http=True) as accsd:
        accsd.wait_for("role_crashed", role="registration")
        shown = accsd.health()
        assert shown["status"] == "degraded"
        assert shown["reasons"] == ["registration is restarting: Injected: heartbeat.sent"]
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        await eventually(lambda: is_status(conn, job, "done"), within=10)
        await eventually(lambda: accsd.health()["status"] == "ok", within=15, what="recovery")
        assert accsd.health()["roles"]["registration"]["restarts"] == 1


async def test_one_node_has_one_agent_on_a_machine(tmp_path: Path, db_url: str):
    config = toml_service("render", NOTE)
    with daemon.running(tmp_path, db_url, config=config) as first:
        with daemon.running(tmp_path, db_url, role="agent", config=config, ready=False) as second:
            assert second.process.wait(timeout=20) != 0
            assert 'an agent runs as node "n1" on this machine already' in second.tail()
        first.kill()
    with daemon.running(tmp_path, db_url, role="agent", config=config):
        pass  # the kernel frees the lock of whoever was killed


async def test_a_cancel_that_comes_while_it_is_started_is_no_bug(tmp_path: Path, db_url: str, conn: Connection):
    paused = {"ACC_FAILPOINTS": "runner.started:pause"}
    with daemon.running(tmp_path, db_url, config=toml_service("render", WAIT), environ=paused) as accsd:
        job = await submit(conn, step("a"), options=waiting(tmp_path))
        process = await began(tmp_path / "notes")
        await eventually(lambda: is_stopped(accsd.pid), within=10)
        await conn.fetch("SELECT * FROM accs.cancel_jobs($1)", [job])
        accsd.signal(signal.SIGCONT)
        await eventually(lambda: not process.exists(), within=10)
        await eventually(lambda: not folders(tmp_path), within=10)
        assert accsd.log("attempt_failed_here") == []
        assert accsd.log("abandoned")[0]["reason"] == "already_finished"
    assert await is_status(conn, job, "cancelled")


def is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


async def test_a_node_keeps_its_name_for_as_long_as_it_runs(tmp_path: Path, db_url: str, conn: Connection):
    services = toml_service("render", NOTE)
    config = f'[node]\nname = "n1"\n{services}'
    with daemon.running(tmp_path, db_url, config=config, environ={"ACC_NODE_NAME": ""}) as accsd:
        accsd.wait_for("node_registered")
        accsd.config.write_text(config.replace("n1", "n2"))
        accsd.signal(signal.SIGHUP)
        accsd.wait_for("reload_failed")
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        await eventually(lambda: is_status(conn, job, "done"), within=10)
        assert accsd.stop() == 0
    assert await conn.fetch("SELECT name, awake_state FROM nodes") == [("n1", "unknown")]
