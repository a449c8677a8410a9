"""Mode run on the real engine: one container per attempt, found again by anybody, whatever died in between."""

import asyncio
import signal
from datetime import timedelta

import pytest

from accsd.errors import AttemptFailed, DockerUnavailable
from accsd.model.outcome import ErrorCode
from accsd.runners.base import Output
from accsd.runners.compose import RunRunner, container_log
from accsd.runners.compose.run import container_name
from tests.support.compose import (
    NODE,
    PYTHON,
    ComposeProject,
    Taken,
    cli_children,
    docker,
    kill_cli,
    starting_without_clearance,
)
from tests.support.eventually import eventually

pytestmark = [pytest.mark.needs_docker, pytest.mark.usefixtures("compose_engine"), pytest.mark.xdist_group("compose")]

# Every kind of line that an engine's log has trouble with; the last thing waits until a file appears.
AWKWARD = r"""
import os, sys, time
out = sys.stdout.buffer
out.write(b"first\n" + bytes(range(256)) * 3 + b"\n" + "é".encode() * 70001 + b"\n" + b"x" * 65536 + b"\n")
out.write(b"ready\n"); out.flush()
sys.stderr.write("on stderr\n"); sys.stderr.flush()
while not os.path.exists("/accsd/work/go"): time.sleep(0.02)
out.write("ü".encode() * 40000 + b"\nlast, without a newline"); out.flush()
sys.exit(7)
"""
AWKWARD_STDOUT = (
    b"first\n" + bytes(range(256)) * 3 + b"\n" + "é".encode() * 70001 + b"\n" + b"x" * 65536 + b"\n" + b"ready\n"
    + "ü".encode() * 40000 + b"\nlast, without a newline"
)  # fmt: skip


async def test_a_task_finds_its_envelope_its_folder_and_its_variables(world: ComposeProject) -> None:
    script = 'cat $ACC_TASK_FILE; echo "$ACC_TRACE_ID"; echo made > /data/work/out; echo bad >&2; exit 5'
    runner = await world.run_runner(task=["sh", "-c", script], user="guest", labels={"accs.workdir": "/data/work"})
    launch = world.launch(runner, params={"price": "5 $HOME"})
    execution, taken = await runner.start(launch), Taken()
    ending = await execution.watch(taken.take)
    assert (ending.exit_code, ending.cause) == (5, None)
    assert taken.stdout == b"""{"params":{"price":"5 $HOME"}}\na $b 'c'\n"""
    assert taken.stderr == b"bad\n"
    assert launch.workdir is not None
    assert (launch.workdir.here / "out").read_text() == "made\n"
    await execution.remove()
    await execution.remove()
    assert world.containers() == []


@pytest.mark.parametrize("mode", ["run", "exec"])
async def test_nothing_begins_before_the_lease_was_looked_at_for_the_last_time(
    world: ComposeProject, mode: str
) -> None:
    made = world.run_runner if mode == "run" else world.exec_runner
    runner = await made(task=["sleep", "60"])
    launch = world.launch(runner)
    assert not await starting_without_clearance(runner, launch)
    await runner.discard(launch.fence, launch.folder)


async def test_started_twice_is_started_once(world: ComposeProject) -> None:
    runner = await world.run_runner(task=["sh", "-c", "echo once; sleep 60"])
    launch = world.launch(runner)
    await runner.start(launch)
    first = world.containers()
    again = RunRunner(world.project, await world.declared("worker"), NODE)
    await again.start(launch)
    assert world.containers() == first
    assert len(first) == 1


async def test_the_first_tasks_at_once_share_one_network(world: ComposeProject) -> None:
    runner = await world.run_runner(task=["true"], networks=["default"])
    executions = await asyncio.gather(*(runner.start(world.launch(runner)) for _ in range(3)))
    assert [(await each.watch(Taken().take)).exit_code for each in executions] == [0, 0, 0]
    assert len(docker("network", "ls", "-q", "--filter", f"name={world.name}").split()) == 1


async def test_a_new_daemon_takes_up_the_container_and_gets_every_byte_once(world: ComposeProject) -> None:
    runner = await world.run_runner(image=PYTHON, task=["python3", "-c", AWKWARD])
    launch = world.launch(runner)
    before, after = Taken(), Taken()
    watching = asyncio.create_task((await runner.start(launch)).watch(before.take))
    await before.until(b"ready\n")
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching

    restarted = RunRunner(world.project, await world.declared("worker"), NODE)
    assert list(await restarted.survivors()) == [launch.fence]
    adopted = await restarted.adopt(launch)
    assert adopted is not None
    assert launch.workdir is not None
    (launch.workdir.here / "go").touch()
    ending = await adopted.watch(after.take, before.cursor)
    assert (ending.exit_code, ending.cause) == (7, None)
    assert before.stdout + after.stdout == AWKWARD_STDOUT
    assert before.stderr + after.stderr == b"on stderr\n"
    # and a look back from the beginning shows the same
    whole = Taken()
    await adopted.watch(whole.take)
    assert whole.stdout == AWKWARD_STDOUT


async def test_who_reads_a_flood_slowly_still_gets_every_byte_once_and_does_not_take_it_for_an_absence(
    world: ComposeProject, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its stderr says nothing for longer than an engine may be silent, while its stdout is read."""
    monkeypatch.setattr(container_log, "_SILENT", timedelta(seconds=2))
    monkeypatch.setattr(container_log, "_END_WITHIN", timedelta(0))  # all is read once more, when it has ended
    runner = await world.run_runner(task=["seq", "1", "100000"])
    execution, taken = await runner.start(world.launch(runner)), Taken()

    async def take(output: Output) -> None:
        await taken.take(output)
        await asyncio.sleep(0.03)

    ending = await execution.watch(take)
    task = asyncio.current_task()
    assert (ending.exit_code, ending.cause) == (0, None)
    assert taken.stdout == b"".join(b"%d\n" % number for number in range(1, 100_001))
    assert not execution._engine_was_away
    assert task is not None
    assert task.cancelling() == 0
    await execution.remove()


async def test_killing_only_the_cli_that_watches_changes_nothing(world: ComposeProject) -> None:
    script = "echo ready; while [ ! -e /accsd/work/go ]; do sleep 0.05; done; echo done; exit 4"
    runner = await world.run_runner(task=["sh", "-c", script])
    launch, taken = world.launch(runner), Taken()
    watching = asyncio.create_task((await runner.start(launch)).watch(taken.take))
    await taken.until(b"ready\n")
    follower = ("logs", "--timestamps", "--follow", container_name(launch.fence))
    kill_cli(*follower)
    await eventually(lambda: watching.done() or cli_children(*follower), what="another look at the log")
    assert launch.workdir is not None
    (launch.workdir.here / "go").touch()
    ending = await watching
    assert (ending.exit_code, ending.cause) == (4, None)
    assert taken.stdout == b"ready\ndone\n"


async def test_a_task_beyond_its_memory_is_oom(world: ComposeProject) -> None:
    runner = await world.run_runner(
        image=PYTHON, task=["python3", "-c", "x = b'x' * 300_000_000"], labels={"accs.limits.memory": "48m"}
    )
    ending = await (await runner.start(world.launch(runner))).watch(Taken().take)
    assert ending.cause is ErrorCode.OOM


async def test_a_limit_of_processes_reaches_the_container(world: ComposeProject) -> None:
    runner = await world.run_runner(task=["sleep", "60"], labels={"accs.limits.pids": "17"})
    launch = world.launch(runner)
    await runner.start(launch)
    assert docker("inspect", "-f", "{{.HostConfig.PidsLimit}}", container_name(launch.fence)) == "17"


async def test_a_kill_from_outside_is_killed(world: ComposeProject) -> None:
    runner = await world.run_runner(task=["sh", "-c", "echo ready; sleep 60"])
    launch, taken = world.launch(runner), Taken()
    watching = asyncio.create_task((await runner.start(launch)).watch(taken.take))
    await taken.until(b"ready\n")
    docker("kill", "-s", "KILL", container_name(launch.fence))
    ending = await watching
    assert (ending.exit_code, ending.cause) == (128 + signal.SIGKILL, ErrorCode.KILLED)


async def test_a_stop_is_not_a_kill_from_outside(world: ComposeProject) -> None:
    runner = await world.run_runner(task=["sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done"])
    launch, taken = world.launch(runner), Taken()
    execution = await runner.start(launch)
    watching = asyncio.create_task(execution.watch(taken.take))
    await taken.until(b"ready\n")
    await execution.stop(timedelta(seconds=1))
    assert (await watching).cause is None
    assert docker("inspect", "-f", "{{.State.Running}}", container_name(launch.fence)) == "false"
    await execution.stop(timedelta(seconds=1))


async def test_a_container_that_somebody_removed_is_lost(world: ComposeProject) -> None:
    runner = await world.run_runner(task=["sh", "-c", "echo ready; sleep 60"])
    launch, taken = world.launch(runner), Taken()
    watching = asyncio.create_task((await runner.start(launch)).watch(taken.take))
    await taken.until(b"ready\n")
    docker("rm", "-f", container_name(launch.fence))
    assert (await watching).cause is ErrorCode.WORKER_LOST


async def test_a_command_that_is_not_there_fails_to_start(world: ComposeProject) -> None:
    runner = await world.run_runner(task=["no-such-command"])
    launch = world.launch(runner)
    with pytest.raises(AttemptFailed, match="no-such-command") as failure:
        await runner.start(launch)
    assert failure.value.code == ErrorCode.START_FAILED
    assert list(await runner.survivors()) == [launch.fence]
    assert await runner.adopt(launch) is None
    await runner.discard(launch.fence, launch.folder)
    assert world.containers() == []


async def test_an_image_that_cannot_be_had_is_missing_and_stops_further_claims(world: ComposeProject) -> None:
    runner = await world.run_runner(image="accsd-test-no-such-image", task=["true"])
    await runner.check()
    with pytest.raises(AttemptFailed) as failure:
        await runner.start(world.launch(runner))
    assert failure.value.code == ErrorCode.IMAGE_MISSING
    with pytest.raises(DockerUnavailable, match="accsd-test-no-such-image"):
        await runner.check()


async def test_what_it_depends_on_is_started_and_left_alone(world: ComposeProject) -> None:
    await world.run_runner(task=["true"])
    labelled = {"image": "accsd-test-busybox", "labels": {"accs.mode": "run", "accs.command": '["true"]'}}
    world.write(
        {
            "worker": {**labelled, "depends_on": ["store"]},
            "store": {"image": "accsd-test-busybox", "command": ["sleep", "3600"], "stop_grace_period": "0s"},
        }
    )
    runner = RunRunner(world.project, await world.declared("worker"), NODE)
    for _ in range(2):
        assert (await (await runner.start(world.launch(runner))).watch(Taken().take)).exit_code == 0
    stores = await world.project.containers("store")
    assert [store.status for store in stores] == ["running"]


async def test_a_neighbours_container_is_never_touched(world: ComposeProject) -> None:
    """One of another node with our labels otherwise, and one that took our name."""
    runner = await world.run_runner(task=["sleep", "60"])
    theirs = await world.run_runner("another-node", task=["sleep", "60"])
    launch = world.launch(theirs)
    await theirs.start(launch)
    assert list(await runner.survivors()) == []
    await runner.discard(launch.fence, launch.folder)
    with pytest.raises(DockerUnavailable, match="somebody else's"):
        await runner.start(launch)
    assert docker("inspect", "-f", "{{.State.Running}}", container_name(launch.fence)) == "true"
    await theirs.discard(launch.fence, launch.folder)


async def test_without_an_engine_nothing_is_claimed_and_nothing_is_lost(world: ComposeProject) -> None:
    runner = await world.run_runner(away_limit=timedelta(seconds=1), task=["sleep", "60"])
    away = ComposeProject(world.folder, {"PATH": "/usr/local/bin:/usr/bin:/bin", "DOCKER_HOST": "unix:///nowhere.sock"})
    deaf = RunRunner(away.project, await world.declared("worker"), NODE, away_limit=timedelta(seconds=0.5))
    with pytest.raises(DockerUnavailable, match="does not answer"):
        await deaf.check()
    with pytest.raises(DockerUnavailable):
        await deaf.start(world.launch(deaf))
    launch = world.launch(runner)
    await runner.start(launch)
    watched = deaf._execution(launch.fence)
    assert (await watched.watch(Taken().take)).cause is ErrorCode.WORKER_LOST
    await eventually(lambda: len(world.containers()) == 1)
