"""Every step of an attempt at which the daemon can die, stop, lose its connection or raise: one end, nothing lost.

What is counted outside the database: each execution notes itself in a file.
"""

import signal
from pathlib import Path
from uuid import UUID

import pytest

from accsd.failpoints import POINTS
from tests.support import daemon
from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.tasks import EVERYTHING, notes, toml_service

CONFIG = toml_service("render", EVERYTHING)
LEASE = {"ACC_HEARTBEAT_TTL_SEC": "3"}
# An agent meets all of them with one job; the builder's come before, and reclaim needs a lost lease.
OF_AN_ATTEMPT = [point for point in POINTS if not point.startswith(("instantiate", "reclaim"))]
# Before these the command cannot have run; after the others it has, and its attempt is known.
NEVER_RAN = {"claim.sent", "claim.committed"}


async def job_is(conn: Connection, job: UUID, wanted: str) -> bool:
    return await conn.fetchval("SELECT status FROM jobs WHERE id = $1", job) == wanted


async def ends_well(conn: Connection, job: UUID, tmp_path: Path, *, executions: int) -> None:
    """One result of one attempt, its artifact and its log, and as many executions as attempts were started."""
    await eventually(lambda: job_is(conn, job, "done"), within=40)
    await check(conn)
    task = await conn.fetchrow("SELECT * FROM job_tasks WHERE job_id = $1", job)
    assert task is not None
    assert (task["attempt"], task["results"]) == (0, {"attempt": task["attempt_id"]})
    outputs = await conn.fetch("SELECT attempt_id FROM task_artifacts WHERE job_id = $1 AND kind = 'output'", job)
    assert [row["attempt_id"] for row in outputs] == [task["attempt_id"]]
    attempts = [int(note[1]) for note in notes(tmp_path / "notes")]
    assert len(attempts) == len(set(attempts)), f"an attempt ran twice: {attempts}"
    assert len(attempts) <= executions
    assert attempts[-1] == task["attempt_id"]


@pytest.mark.parametrize("point", OF_AN_ATTEMPT)
async def test_killed_and_started_again(tmp_path: Path, db_url: str, conn: Connection, point: str):
    with daemon.running(
        tmp_path, db_url, config=CONFIG, environ={"ACC_FAILPOINTS": f"{point}:kill"}, ready=False
    ) as accsd:
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        assert accsd.process.wait(timeout=30) == -signal.SIGKILL
    with daemon.running(tmp_path, db_url, config=CONFIG):
        await ends_well(conn, job, tmp_path, executions=2)
        await eventually(lambda: not list((tmp_path / "state" / "n1" / "attempts").iterdir()), within=10)


@pytest.mark.parametrize("point", ["claim.committed", "runner.started", "artifact.row", "finish.sent"])
async def test_killed_for_good_and_another_node_takes_over(tmp_path: Path, db_url: str, conn: Connection, point: str):
    broken = {**LEASE, "ACC_FAILPOINTS": f"{point}:kill"}
    with daemon.running(tmp_path, db_url, config=CONFIG, environ=broken, ready=False) as accsd:
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        assert accsd.process.wait(timeout=30) == -signal.SIGKILL
    with daemon.running(tmp_path, db_url, node="n2", config=CONFIG, environ=LEASE):
        await ends_well(conn, job, tmp_path, executions=2)


@pytest.mark.parametrize("point", OF_AN_ATTEMPT)
async def test_stopped_for_longer_than_its_lease(tmp_path: Path, db_url: str, conn: Connection, point: str):
    """A stand-in for a suspend: the other node has finished by the time it goes on, and it writes nothing."""
    broken = {**LEASE, "ACC_FAILPOINTS": f"{point}:pause"}
    with daemon.running(tmp_path, db_url, config=CONFIG, environ=broken, ready=False, role="agent") as zombie:
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        await eventually(lambda: _is_stopped(zombie.pid), within=30)
        with daemon.running(tmp_path, db_url, node="n2", config=CONFIG, environ=LEASE):
            await ends_well(conn, job, tmp_path, executions=2)
            zombie.signal(signal.SIGCONT)
            await eventually(lambda: zombie.log("started"), within=20)
            folder = tmp_path / "state" / "n1" / "attempts"
            await eventually(lambda: not folder.exists() or not list(folder.iterdir()), within=20)
        assert zombie.stop() == 0
    await ends_well(conn, job, tmp_path, executions=2)


@pytest.mark.parametrize("point", OF_AN_ATTEMPT)
@pytest.mark.parametrize("action", ["cut", "raise"])
async def test_without_its_connection_or_with_a_bug(
    tmp_path: Path, db_url: str, conn: Connection, point: str, action: str
):
    broken = {**LEASE, "ACC_FAILPOINTS": f"{point}:{action}"}
    with daemon.running(tmp_path, db_url, config=CONFIG, environ=broken):
        job = await submit(conn, step("a"), options={"note": str(tmp_path / "notes")})
        await ends_well(conn, job, tmp_path, executions=2)


@pytest.mark.parametrize("action", ["kill", "cut", "raise"])
async def test_a_builder_that_fails_after_instantiating(tmp_path: Path, db_url: str, conn: Connection, action: str):
    workflow = await conn.fetchval("INSERT INTO workflows (name, steps) VALUES ('w', $1) RETURNING id", [step("a")])
    job = await conn.fetchval(
        "INSERT INTO jobs (workflow_id, options) VALUES ($1, $2) RETURNING id",
        workflow,
        {"note": str(tmp_path / "notes")},
    )
    broken = {"ACC_FAILPOINTS": f"instantiate.committed:{action}"}
    with daemon.running(tmp_path, db_url, config=CONFIG, environ=broken, ready=False) as accsd:
        if action == "kill":
            accsd.process.wait(timeout=30)
        else:
            await ends_well(conn, job, tmp_path, executions=1)
    with daemon.running(tmp_path, db_url, config=CONFIG):
        await ends_well(conn, job, tmp_path, executions=1)


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
