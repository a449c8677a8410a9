"""The engine is restarted or killed while attempts run: infrastructure, not the task's failure, and nothing is lost."""

import asyncio
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from accsd.errors import DockerUnavailable
from accsd.model.outcome import ErrorCode
from accsd.runners.base import Execution, Launch, Runner
from accsd.runners.compose import RunRunner
from tests.support.cli import Cli
from tests.support.cluster import Connection
from tests.support.compose import BUSYBOX, NODE, ComposeProject, Engine, Taken, why_not
from tests.support.compose_node import ComposeNode
from tests.support.eventually import eventually
from tests.support.factory import step, submit

pytestmark = [pytest.mark.needs_docker, pytest.mark.slow, pytest.mark.xdist_group("compose")]


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    if reason := why_not():
        pytest.skip(reason)
    if os.geteuid() != 0 or shutil.which("unshare") is None or shutil.which("dockerd") is None:
        pytest.skip("a second engine needs root, unshare and dockerd")
    own = Engine()
    own.start()
    try:
        own.load(BUSYBOX)
        yield own
    finally:
        own.close()


async def started(world: ComposeProject, runner: Runner) -> tuple[Launch, Execution, asyncio.Task, Taken]:
    taken, launch = Taken(), world.launch(runner)
    execution = await runner.start(launch)
    watching = asyncio.create_task(execution.watch(taken.take))
    await taken.until(b"ready\n")
    return launch, execution, watching, taken


async def ended(engine: Engine, how: signal.Signals) -> None:
    await asyncio.to_thread(engine.end, how)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
async def test_attempts_are_lost_with_their_engine_and_not_failed(
    engine: Engine, tmp_path: Path, how: signal.Signals
) -> None:
    world = ComposeProject(tmp_path, engine.environ)
    task = ["sh", "-c", "echo ready; exec sleep 77"]
    run = await world.run_runner(task=task, init=True)
    launch, execution, watching, taken = await started(world, run)
    unwatched = world.launch(run)
    await run.start(unwatched)
    exec_ = await world.exec_runner(task=task)
    _, _, exec_watching, _ = await started(world, exec_)

    await ended(engine, how)
    with pytest.raises(DockerUnavailable):
        await run.survivors()
    assert (await exec_watching).cause is ErrorCode.WORKER_LOST
    assert not watching.done(), "the engine may come back"
    await asyncio.to_thread(engine.start)

    ending = await watching
    assert ending.cause is ErrorCode.WORKER_LOST, ending
    assert taken.stdout == b"ready\n"
    # and by a daemon that was away at the same time
    restarted = RunRunner(world.project, (await world.declared("worker")), NODE)
    adopted = await restarted.adopt(unwatched)
    assert adopted is not None
    assert (await adopted.watch(Taken().take)).cause is ErrorCode.WORKER_LOST
    assert set(await restarted.survivors()) == {launch.fence, unwatched.fence}
    await execution.remove()
    await adopted.remove()
    assert list(await restarted.survivors()) == []


async def test_an_engine_that_is_away_shows_where_people_look_until_it_is_back(
    engine: Engine, tmp_path: Path, db_url: str, conn: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while every slot is taken, when nobody would claim and find out. The doctor was given no compose file."""
    world = ComposeNode(tmp_path, engine.environ)
    world.add("slow", "run", "", {"accs.command": '["sleep", "120"]'}, image=BUSYBOX)
    doctors = tmp_path / "doctor.toml"
    doctors.write_text(f'[node]\nname = "{world.name}"\nstate_dir = "{tmp_path / "state"}"\n')
    monkeypatch.setenv("DOCKER_HOST", engine.environ["DOCKER_HOST"])
    cli, away = Cli(db_url), "the Docker engine does not answer"
    with world.daemon(db_url):
        job = await submit(conn, step("a", "slow"))
        await eventually(lambda: conn.fetchval("SELECT status = 'running' FROM job_tasks"), within=30)
        assert "compose file" in (await cli("--config", str(doctors), "doctor")).ends(0, "offers slow").out
        await ended(engine, signal.SIGKILL)
        try:
            await eventually(lambda: conn.fetchval("SELECT count(*) FROM accs.obstacles"), within=20)
            (await cli("why", f"{job}/a")).ends(0, "it runs on node", away, "→ on", "systemctl start docker")
            (await cli("nodes")).ends(0, f"no slow: {away}")
            (await cli("--config", str(doctors), "doctor")).ends(1, "FAIL  docker", "takes no slow now")
        finally:
            await asyncio.to_thread(engine.start)
        await eventually(lambda: conn.fetchval("SELECT count(*) = 0 FROM accs.obstacles"), within=30)
