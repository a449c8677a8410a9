"""Mode exec on the real engine: a command in the running service, and what becomes of it when something dies."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from accsd.errors import AttemptFailed
from accsd.model.outcome import ErrorCode
from accsd.runners.compose import ExecRunner
from tests.support.compose import NODE, PYTHON, ComposeProject, Taken, docker, kill_cli
from tests.support.eventually import eventually

pytestmark = [pytest.mark.needs_docker, pytest.mark.usefixtures("compose_engine"), pytest.mark.xdist_group("compose")]

WAIT = ["sh", "-c", "echo ready; sleep 77"]
# A child in a session of its own that ignores TERM, and one that has forgotten its environment as well.
FAMILY = ["sh", "-c", "setsid sh -c \"trap '' TERM; sleep 78\" & env -i sleep 79 & echo ready; sleep 77"]


def sleepers(world: ComposeProject) -> set[str]:
    """How long each process of the service's container sleeps, but for the service itself."""
    (container,) = world.containers()
    listed = docker("exec", container, "ps", "-o", "args").splitlines()
    return {line.split()[1] for line in listed if line.startswith("sleep ")} - {"3600"}


async def started(world: ComposeProject, runner: ExecRunner) -> tuple[Any, asyncio.Task[Any], Taken]:
    taken = Taken()
    execution = await runner.start(world.launch(runner))
    watching = asyncio.create_task(execution.watch(taken.take))
    await taken.until(b"ready\n")
    return execution, watching, taken


async def test_the_service_is_started_and_the_task_speaks_through_its_pipes(world: ComposeProject) -> None:
    """As another user than root, with a folder beneath one that the service mounts."""
    (world.folder / "shared").mkdir()
    runner = await world.exec_runner(
        task=[
            "sh",
            "-c",
            'cat; echo "$ACC_TRACE_ID"; echo made > /data/jobs/$ACC_JOB_TASK_ID.1/out; echo bad >&2; exit 5',
        ],
        volumes=["./shared:/data"],
        labels={"accs.workdir": "/data/jobs"},
        user="guest",
    )
    launch = world.launch(runner, params={"big": "x" * 200_000})
    assert launch.workdir is not None
    assert launch.workdir.here == world.folder / "shared/jobs" / str(launch.fence)
    assert launch.workdir.seen == f"/data/jobs/{launch.fence}"
    execution, taken = await runner.start(launch), Taken()
    assert await runner.start(launch) is execution
    ending = await execution.watch(taken.take)
    assert (ending.exit_code, ending.cause) == (5, None)
    assert taken.stdout == (launch.folder / "task.json").read_bytes() + b"a $b 'c'\n"
    assert taken.stderr == b"bad\n"
    assert (launch.workdir.here / "out").read_text() == "made\n"
    await execution.remove()
    # a second task finds the same container
    container = world.containers()
    assert (await (await runner.start(world.launch(runner))).watch(Taken().take)).exit_code == 5
    assert world.containers() == container


async def test_without_a_mount_there_is_no_folder(world: ComposeProject) -> None:
    runner = await world.exec_runner(task=WAIT, labels={"accs.workdir": "/data"})
    assert world.launch(runner).workdir is None


async def test_two_first_tasks_start_the_service_once(world: ComposeProject) -> None:
    runner = await world.exec_runner(task=["true"])
    both = await asyncio.gather(*(runner.start(world.launch(runner)) for _ in range(2)))
    assert [(await each.watch(Taken().take)).exit_code for each in both] == [0, 0]
    assert len(world.containers()) == 1


async def test_a_container_that_died_since_it_was_seen_costs_one_attempt_no_budget_and_is_started_again(
    world: ComposeProject,
) -> None:
    runner = await world.exec_runner(task=["true"])
    assert (await (await runner.start(world.launch(runner))).watch(Taken().take)).exit_code == 0
    docker("kill", *world.containers())
    ending = await (await runner.start(world.launch(runner))).watch(Taken().take)
    assert ending.cause is ErrorCode.WORKER_LOST
    assert (await (await runner.start(world.launch(runner))).watch(Taken().take)).exit_code == 0


@pytest.mark.parametrize(("look_from_host", "user"), [(True, "root"), (False, "root"), (False, "guest")])
async def test_a_stop_reaches_grandchildren_and_nobody_else(
    world: ComposeProject, look_from_host: bool, user: str
) -> None:
    runner = await world.exec_runner(task=FAMILY, look_from_host=look_from_host, user=user)
    execution, watching, _ = await started(world, runner)
    (container,) = world.containers()
    docker("exec", "-d", "-e", "ACC_ATTEMPT_ID=1", container, "sleep", "80")
    await eventually(lambda: sleepers(world) == {"77", "78", "79", "80"}, within=15, interval=0.2)
    await execution.stop(timedelta(seconds=0.5))
    assert sleepers(world) == {"80"}
    assert (await watching).cause is None
    await execution.stop(timedelta(0))
    await execution.remove()


async def test_killing_only_the_cli_loses_the_worker_and_stops_the_command(world: ComposeProject) -> None:
    runner = await world.exec_runner(task=WAIT)
    execution, watching, _ = await started(world, runner)
    kill_cli("exec", "--interactive")
    ending = await watching
    assert (ending.exit_code, ending.cause) == (None, ErrorCode.WORKER_LOST)
    assert sleepers(world) == set()
    await execution.remove()


async def test_what_a_dead_daemon_left_is_found_and_discarded(world: ComposeProject) -> None:
    runner = await world.exec_runner(task=WAIT)
    taken, launch = Taken(), world.launch(runner)
    watching = asyncio.create_task((await runner.start(launch)).watch(taken.take))
    await taken.until(b"ready\n")
    watching.cancel()  # so that the first daemon does not notice the death of its CLI
    kill_cli("exec", "--interactive")

    restarted = ExecRunner(world.project, await world.declared("worker"), NODE)
    neighbour = ExecRunner(world.project, await world.declared("worker"), "another-node")
    assert list(await neighbour.survivors()) == []
    await neighbour.discard(launch.fence, launch.folder)
    assert list(await restarted.survivors()) == [launch.fence]
    assert await restarted.adopt(launch) is None
    with pytest.raises(AttemptFailed) as failure:
        await restarted.start(launch)
    assert failure.value.code == ErrorCode.WORKER_LOST
    assert list(await restarted.survivors()) == []
    assert sleepers(world) == set()


async def test_a_restarted_service_loses_the_worker(world: ComposeProject) -> None:
    runner = await world.exec_runner(task=WAIT)
    execution, watching, _ = await started(world, runner)
    docker("restart", "-t", "0", *world.containers())
    assert (await watching).cause is ErrorCode.WORKER_LOST
    await execution.remove()


async def test_oom_is_told_from_a_kill(world: ComposeProject) -> None:
    eat = "if 'eat' in sys.stdin.read(): x = b'x' * 300_000_000"
    greedy = f"import sys, time\nprint('ready', flush=True)\n{eat}\ntime.sleep(77)"
    runner = await world.exec_runner(image=PYTHON, task=["python3", "-c", greedy], mem_limit="64m")
    execution = await runner.start(world.launch(runner, verb="eat"))
    assert (await execution.watch(Taken().take)).cause is ErrorCode.OOM
    await execution.remove()
    # in the same container, which has seen an oom
    execution, watching, _ = await started(world, runner)
    docker("exec", *world.containers(), "killall", "-KILL", "python3")
    assert (await watching).cause is ErrorCode.KILLED
    await execution.remove()


async def test_a_command_that_is_not_there_fails_to_start(world: ComposeProject) -> None:
    runner = await world.exec_runner(task=["no-such-command"])
    ending = await (await runner.start(world.launch(runner))).watch(Taken().take)
    assert ending.cause is ErrorCode.START_FAILED
    assert "no-such-command" in (ending.detail or "")


async def test_an_idle_service_is_stopped_and_started_again(world: ComposeProject) -> None:
    runner = await world.exec_runner(task=["true"], labels={"accs.idle-stop": "10m"})
    execution = await runner.start(world.launch(runner))
    assert not await runner.rest(timedelta(hours=1)), "a task is under way"
    assert not await runner.rest(None)
    await execution.watch(Taken().take)
    await execution.remove()
    assert not await runner.rest(timedelta(minutes=9))
    assert await runner.rest(timedelta(minutes=10))
    assert not await runner.rest(timedelta(minutes=11)), "it is stopped already"
    again = await runner.start(world.launch(runner))
    assert (await again.watch(Taken().take)).exit_code == 0
    await again.remove()
    assert await runner.rest(None), "the machine goes to sleep: however long it was idle"
