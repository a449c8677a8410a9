"""Every step of an attempt at which the daemon can die, stop, lose its connection or raise: one end, nothing lost.

What is counted outside the database: each execution notes itself in a file.
"""

import signal
from pathlib import Path
from uuid import UUID, uuid4

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
OF_AN_ATTEMPT = [
    point
    for point in POINTS
    if not point.startswith(
        (
            *("instantiate", "reclaim", "sleep", "archive", "outbox", "plan", "settle", "events", "probe", "resolve"),
            *("tool", "operation", "joblib", "deployment", "sample", "verdict"),
        )
    )
]
# Where a machine may fall asleep in the most different states: nothing begun, begun, answered, told.
WHERE_IT_SLEEPS = ["claim.committed", "runner.started", "line.first", "artifact.put", "finish.sent", "finish.committed"]


async def job_is(conn: Connection, job: UUID, wanted: str) -> bool:
    return await conn.fetchval("SELECT status FROM jobs WHERE id = $1", job) == wanted


async def submitted(conn: Connection, tmp_path: Path) -> UUID:
    """A job whose only task has a name of its own, by which its executions are counted."""
    return await submit(conn, step(f"t{uuid4().hex[:8]}"), options={"note": str(tmp_path / "notes")})


async def ends_well(conn: Connection, job: UUID, tmp_path: Path, *, executions: int = 2) -> None:
    """One result of one attempt, its artifact, and no attempt that ran twice."""
    await eventually(lambda: job_is(conn, job, "done"), within=40)
    task = await conn.fetchrow("SELECT * FROM job_tasks WHERE job_id = $1", job)
    assert task is not None
    assert (task["attempt"], task["results"]) == (0, {"attempt": task["attempt_id"]})
    outputs = await conn.fetch("SELECT attempt_id FROM task_artifacts WHERE job_id = $1 AND kind = 'output'", job)
    assert [row["attempt_id"] for row in outputs] == [task["attempt_id"]]
    attempts = [int(note[1]) for note in notes(tmp_path / "notes") if note[0] == task["task_key"]]
    assert len(attempts) == len(set(attempts)), f"an attempt ran twice: {attempts}"
    assert len(attempts) <= executions
    assert attempts[-1] == task["attempt_id"]


async def test_killed_at_every_point_and_started_again(tmp_path: Path, db_url: str, conn: Connection):
    """Each daemon takes up what the one before has left, and dies at the next point."""
    jobs: list[UUID] = []
    for point in OF_AN_ATTEMPT:
        broken = {"ACC_FAILPOINTS": f"{point}:kill"}
        jobs.append(await submitted(conn, tmp_path))
        with daemon.running(tmp_path, db_url, config=CONFIG, environ=broken, ready=False) as accsd:
            assert accsd.process.wait(timeout=40) == -signal.SIGKILL, f"{point}\n{accsd.tail()}"
    with daemon.running(tmp_path, db_url, config=CONFIG):
        for job in jobs:
            await ends_well(conn, job, tmp_path)
        await eventually(lambda: not list((tmp_path / "state" / "n1" / "attempts").iterdir()), within=10)
    await check(conn)


@pytest.mark.parametrize("point", ["claim.committed", "finish.sent"])
async def test_killed_for_good_and_another_node_takes_over(tmp_path: Path, db_url: str, conn: Connection, point: str):
    broken = {**LEASE, "ACC_FAILPOINTS": f"{point}:kill"}
    job = await submitted(conn, tmp_path)
    with daemon.running(tmp_path, db_url, config=CONFIG, environ=broken, ready=False) as accsd:
        assert accsd.process.wait(timeout=30) == -signal.SIGKILL
    with daemon.running(tmp_path, db_url, node="n2", config=CONFIG, environ=LEASE):
        await ends_well(conn, job, tmp_path)
    await check(conn)


@pytest.mark.parametrize("point", WHERE_IT_SLEEPS)
async def test_stopped_for_longer_than_its_lease(tmp_path: Path, db_url: str, conn: Connection, point: str):
    """A stand-in for a suspend: the other node has finished by the time it goes on, and it writes nothing."""
    broken = {**LEASE, "ACC_FAILPOINTS": f"{point}:pause"}
    job = await submitted(conn, tmp_path)
    with daemon.running(tmp_path, db_url, config=CONFIG, environ=broken, ready=False, role="agent") as zombie:
        await eventually(lambda: zombie.is_stopped, within=30)
        with daemon.running(tmp_path, db_url, node="n2", config=CONFIG, environ=LEASE):
            await ends_well(conn, job, tmp_path)
            zombie.signal(signal.SIGCONT)
            await eventually(lambda: zombie.log("started"), within=20)
            folder = tmp_path / "state" / "n1" / "attempts"
            await eventually(lambda: not folder.exists() or not list(folder.iterdir()), within=20)
        assert zombie.stop() == 0
    await ends_well(conn, job, tmp_path)
    await check(conn)


# After a failure of its own an agent claims nothing for a while, longer each time: so not too many bugs at once.
@pytest.mark.parametrize(
    ("action", "points"), [("cut", OF_AN_ATTEMPT), *(("raise", OF_AN_ATTEMPT[first::4]) for first in range(4))]
)
async def test_without_its_connection_or_with_a_bug_at_every_point(
    tmp_path: Path, db_url: str, conn: Connection, action: str, points: list[str]
):
    """All of these are armed, and each fires once: a job after the other meets what is left of them."""
    broken = {**LEASE, "ACC_FAILPOINTS": ",".join(f"{point}:{action}" for point in points)}
    await conn.execute("CREATE OR REPLACE FUNCTION accs.max_lost() RETURNS int LANGUAGE sql IMMUTABLE AS 'SELECT 100'")
    with daemon.running(tmp_path, db_url, config=CONFIG, environ=broken) as accsd:
        for _ in range(3):
            await ends_well(conn, await submitted(conn, tmp_path), tmp_path, executions=len(OF_AN_ATTEMPT))
        assert accsd.stop() == 0
    await check(conn)


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
        if action != "kill":
            await ends_well(conn, job, tmp_path, executions=1)
            return
        accsd.process.wait(timeout=30)
    with daemon.running(tmp_path, db_url, config=CONFIG):
        await ends_well(conn, job, tmp_path, executions=1)
