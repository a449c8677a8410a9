"""What dies beneath compose services: the daemon, the docker CLI, the engine. One result, and nothing left behind.

Executions are counted outside the database: each task notes itself in a file that is mounted into its container.
"""

import os
import shutil
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from uuid import UUID

import pytest

from tests.support.checker import check
from tests.support.cluster import Connection
from tests.support.compose import BUSYBOX, PYTHON, Engine
from tests.support.compose_node import (
    WAIT,
    ComposeNode,
    clis_of,
    job_reaches,
    kill_clis,
    living,
    steps_of_all_modes,
    tasks_of,
)
from tests.support.daemon import Daemon
from tests.support.eventually import eventually
from tests.support.factory import step, submit
from tests.support.objectstore import log_lines

pytestmark = [
    pytest.mark.needs_docker,
    pytest.mark.usefixtures("compose_engine"),
    pytest.mark.slow,
    pytest.mark.xdist_group("compose"),
]

LINES = 300


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("dockerd") is None:
        pytest.skip("a second engine needs root, unshare and dockerd")
    own = Engine()
    own.start()
    try:
        own.load(PYTHON)
        own.load(BUSYBOX)
        yield own
    finally:
        own.close()


@pytest.fixture
def own(engine: Engine, tmp_path: Path) -> Iterator[ComposeNode]:
    """A node on that engine."""
    made = ComposeNode(tmp_path, engine.environ)
    yield made
    made.close()


async def one_result(node: ComposeNode, conn: Connection, job: UUID, attempts: dict[str, int]) -> None:
    """Each step ended once, by the attempt that is named; every earlier one was begun once and never ended; no attempt
    was spent; no line of the log is missing or doubled."""
    await check(conn)
    tasks = await tasks_of(conn, job)
    for key, last in attempts.items():
        executions = node.executions(key)
        assert [each.attempt for each in executions] == list(range(1, last + 1))
        assert node.ended(key) == [last]
        task, ran = tasks[key], executions[-1]
        assert (task["attempt_id"], task["attempt"]) == (last, 0)
        assert task["results"] == {"host": ran.host, "pid": ran.pid, "attempt": last}, "by the one that began"
        lines = await log_lines(conn, node.folder / "state/objects", job, key)
        assert lines[-2 * LINES :] == [f"line {i}" for i in range(2 * LINES)]
        assert last > 1 or len(lines) == 2 * LINES
    await node.none_left()


async def test_after_kill_9_of_the_daemon_the_same_containers_and_processes_end(
    node: ComposeNode, db_url: str, conn: Connection
):
    node.add_all_modes(WAIT)
    node.add_neighbours()
    with node.daemon(db_url) as accsd:
        job = await submit(conn, *steps_of_all_modes(), options=node.options(lines=LINES))
        await node.began("run", "exec", "process")
        accsd.kill()
    task = (await tasks_of(conn, job))["exec"]["id"]
    assert living(task, 1), "the command outlives its CLI"
    with node.daemon(db_url) as accsd:
        await node.began("exec", attempt=2)
        assert not living(task, 1), "the old one is stopped before another begins"
        accsd.wait_for("adopted", times=2)
        node.go.touch()
        await job_reaches(conn, job, "done")
        await one_result(node, conn, job, {"run": 1, "exec": 2, "process": 1})
        assert accsd.stop() == 0
    node.neighbours_are_untouched()


async def test_the_death_of_a_cli_is_not_the_end_of_the_work(node: ComposeNode, db_url: str, conn: Connection):
    node.add_all_modes(WAIT)
    node.add_neighbours()
    with node.daemon(db_url) as accsd:
        job = await submit(conn, *steps_of_all_modes(), options=node.options(lines=LINES))
        await node.began("run", "exec", "process")
        await eventually(lambda: clis_of(accsd, "logs") and clis_of(accsd, "exec"), within=20)
        kill_clis(accsd)
        task = (await tasks_of(conn, job))["exec"]["id"]
        await node.began("exec", attempt=2)
        assert not living(task, 1)
        node.go.touch()
        await job_reaches(conn, job, "done")
        await one_result(node, conn, job, {"run": 1, "exec": 2, "process": 1})
        assert [ended["code"] for ended in accsd.log("ended")].count("worker_lost") == 1
    node.neighbours_are_untouched()


@pytest.mark.parametrize("end", ["killed", "cancelled"])
async def test_a_container_that_appears_after_the_end_of_its_attempt_is_removed(
    node: ComposeNode, db_url: str, conn: Connection, end: str
):
    """The engine had been told to create it when the CLI died, and took its time."""
    node.add("run", "run", WAIT)
    with node.daemon(db_url) as accsd:
        job = await submit(conn, step("run", "run"), options=node.options())
        (starting, *_) = await eventually(lambda: clis_of(accsd, "compose", "run"), within=30, interval=0.001)
        if end == "killed":
            os.kill(starting, signal.SIGKILL)
        else:
            await conn.fetch("SELECT * FROM accs.cancel_jobs($1)", [job])
        task = (await tasks_of(conn, job))["run"]["id"]
        folder = node.folder / "state" / node.name / "attempts" / f"{task}.1"
        await eventually(lambda: not folder.exists(), within=20, what="its clean-up")
        late = _created_late(node, task)
        await eventually(lambda: late not in node.ours(), within=30, interval=0.1, what="the removal of the late one")
        if end == "killed":
            await node.began("run", attempt=2)
            node.go.touch()
            await job_reaches(conn, job, "done")
        await node.none_left()
    assert [each.attempt for each in node.executions()] == ([2] if end == "killed" else [])
    await check(conn)


def _created_late(node: ComposeNode, task: UUID) -> str:
    labels = {
        "accsd.node": node.name,
        "accsd.service": "run",
        "accsd.task": str(task),
        "accsd.attempt": "1",
        "com.docker.compose.project": node.project.name,
    }
    given = [part for name, value in labels.items() for part in ("--label", f"{name}={value}")]
    made = node.docker("create", "--network", "none", "--name", f"accsd-{task}.1", *given, BUSYBOX, "sleep", "3600")
    return made[:12]


@contextmanager
def away(engine: Engine, how: signal.Signals) -> Generator[None]:
    engine.end(how)
    try:
        yield
    finally:
        engine.start()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_an_engine_that_restarts_takes_no_attempt_with_it(
    engine: Engine, own: ComposeNode, db_url: str, conn: Connection, how: signal.Signals
):
    own.add_all_modes(WAIT)
    own.add_neighbours()
    with own.daemon(db_url, http=True) as accsd:
        job = await submit(conn, *steps_of_all_modes(), options=own.options(lines=LINES))
        await own.began("run", "exec", "process")
        with away(engine, how):
            await eventually(lambda: says_that_the_engine_is_away(accsd), within=30, interval=0.2)
        await own.began("run", "exec", attempt=2)
        own.go.touch()
        await job_reaches(conn, job, "done")
        await one_result(own, conn, job, {"run": 2, "exec": 2, "process": 1})
        lost = {ended["service"]: ended["code"] for ended in accsd.log("ended") if ended["code"] != "done"}
        assert set(lost) == {"run", "exec"}
        assert set(lost.values()) <= {"worker_lost", "engine_unavailable"}
        await eventually(lambda: accsd.health()["status"] == "ok", within=20, interval=0.2)
        assert len(accsd.log("engine_away")) == 1, "said once"
    own.neighbours_are_there()


def says_that_the_engine_is_away(accsd: Daemon) -> bool:
    report = accsd.health()
    return report["status"] == "degraded" and any("Docker engine" in reason for reason in report["reasons"])


async def test_without_an_engine_at_the_start_processes_are_served_and_containers_follow(
    engine: Engine, own: ComposeNode, db_url: str, conn: Connection
):
    own.add_all_modes(WAIT)
    own.go.touch()
    with ExitStack() as without_engine:
        without_engine.enter_context(away(engine, signal.SIGTERM))
        with own.daemon(db_url, http=True) as accsd:
            plain = await submit(conn, step("process", "process"), options=own.options())
            waiting = await submit(conn, step("run", "run"), step("exec", "exec"), options=own.options())
            await job_reaches(conn, plain, "done")
            for service in ("run", "exec"):
                said = accsd.wait_for("no_claims", service=service)
                assert "the Docker engine does not answer" in said["reason"]
            assert says_that_the_engine_is_away(accsd)
            assert len(own.executions()) == 1
            without_engine.close()
            await job_reaches(conn, waiting, "done")
            await own.none_left()
            assert [task["attempt_id"] for task in (await tasks_of(conn, waiting)).values()] == [1, 1]
            await eventually(lambda: accsd.health()["status"] == "ok", within=20, interval=0.2)
            assert accsd.stop() == 0
    await check(conn)
