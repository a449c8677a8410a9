"""The process runner's ordinary days: what a command gets, how its end is told, and that it starts once."""

import asyncio
import json
import os
import sys
import time
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import uvloop

from accsd import failpoints
from accsd.errors import AttemptFailed
from accsd.model.outcome import ErrorCode
from accsd.runners.base import Output, Stream
from tests.machine.process_runner import ENVELOPE, NO_GRACE, Collected, Node, numbers, python, running
from tests.support.eventually import eventually, eventually_sync

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest):
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
def node(tmp_path: Path):
    node = Node(tmp_path)
    yield node
    eventually_sync(lambda: not node.left())


async def test_a_command_gets_the_envelope_its_folder_and_a_minimal_environment(node: Node, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_DAEMON", "x")
    code = (
        "import os, sys; sys.stdout.write(sys.stdin.read()); print(os.getcwd()); print(sorted(os.environ)); "
        "print(os.getsid(0) == os.getpid()); print(len(os.listdir('/proc/self/fd'))); print('oh', file=sys.stderr)"
    )
    runner = node.runner(python(code), environment={"COLOUR": "red"})
    launch = node.launch(ACC_JOB_ID="j")
    collected = Collected()
    execution = await runner.start(launch)
    ending = await execution.watch(collected)
    envelope, folder, environ, leads_session, files = collected.text().splitlines()
    assert envelope.encode() + b"\n" == ENVELOPE
    assert folder == str(launch.folder / "work")
    names = set(json.loads(environ.replace("'", '"')))
    assert {"COLOUR", "ACC_JOB_ID", "ACC_JOB_TASK_ID", "ACC_ATTEMPT_ID", "ACC_TASK_FILE", "PATH"} <= names
    assert "SECRET_OF_THE_DAEMON" not in names
    assert (leads_session, files) == ("True", "4")  # stdin, stdout, stderr, and the folder that is being listed
    assert collected.text(Stream.STDERR) == "oh\n"
    assert (ending.exit_code, ending.cause) == (0, None)
    assert ending.max_rss_bytes
    assert ending.max_rss_bytes > 1_000_000
    assert ending.cpu
    assert ending.cpu < timedelta(seconds=10)


async def test_a_word_of_the_command_that_names_a_file_beside_the_configuration_finds_it(node: Node):
    (node.root / "render.py").write_text("print('rendered')")
    collected = Collected()
    execution = await node.runner([sys.executable, "render.py"]).start(node.launch())
    assert (await execution.watch(collected)).exit_code == 0
    assert collected.text() == "rendered\n"


@pytest.mark.parametrize(
    ("script", "exit_code", "cause"),
    [
        ("exit 0", 0, None),
        ("exit 65", 65, None),
        ("kill -KILL $$", 137, ErrorCode.KILLED),
        ("kill -SEGV $$", 139, ErrorCode.KILLED),
    ],
)
async def test_the_end_is_told_by_the_exit_code_or_the_signal(node: Node, script: str, exit_code: int, cause):
    execution = await node.runner(["sh", "-c", script]).start(node.launch())
    ending = await execution.watch(Collected())
    assert (ending.exit_code, ending.cause) == (exit_code, cause)


async def test_a_command_gets_its_signals_back_although_the_shim_blocks_them(node: Node):
    execution = await node.runner(["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"]).start(node.launch())
    collected = Collected()
    await execution.watch(collected)
    masks = [int(line.split()[1], 16) for line in collected.text().splitlines()]
    of_the_c_library = 0b11 << 31  # signals 32 and 33, which nobody else can set
    assert [mask & ~of_the_c_library for mask in masks] == [0, 0]


@pytest.mark.parametrize("kind", ["missing", "not executable", "a folder"])
async def test_what_cannot_be_executed_has_failed_to_start(node: Node, kind: str):
    (node.root / "plain").write_text("#!/bin/sh\n")
    word = {"missing": "no-such-program", "not executable": "plain", "a folder": str(node.root)}[kind]
    runner, launch = node.runner([word]), node.launch()
    for _ in range(2):  # and so it stays
        with pytest.raises(AttemptFailed) as failed:
            await runner.start(launch)
        assert failed.value.code == ErrorCode.START_FAILED
        assert word in failed.value.message


@pytest.mark.parametrize("environment", [{"A": "x\0y"}, {"A=B": "x"}])
async def test_an_impossible_environment_has_failed_to_start(node: Node, environment: dict[str, str]):
    with pytest.raises(AttemptFailed) as failed:
        await node.runner(["true"], environment=environment).start(node.launch())
    assert failed.value.code == ErrorCode.START_FAILED


async def test_an_unreadable_envelope_is_not_the_tasks_failure(node: Node):
    launch = node.launch()
    (launch.folder / "task.json").unlink()
    with pytest.raises(AttemptFailed) as failed:
        await node.runner(["true"]).start(launch)
    assert failed.value.code == ErrorCode.NODE_UNFIT


async def test_a_command_never_begins_when_its_lease_is_over_by_the_clock_that_goes_on_in_a_suspend(node: Node):
    """The agent looked at the lease in time; the machine slept before the shim had got so far."""
    effect = node.root / "effect"
    now = time.clock_gettime(time.CLOCK_BOOTTIME)

    async def over() -> float:
        return now

    async def good() -> float:
        return now + 60

    runner = node.runner(["touch", str(effect)])
    late = replace(node.launch(), clearance=over)
    with pytest.raises(AttemptFailed) as failed:
        await runner.start(late)
    assert (failed.value.code, "its lease was over" in failed.value.message) == (ErrorCode.WORKER_LOST, True)
    with pytest.raises(AttemptFailed):  # nor later
        await runner.start(replace(late, clearance=good))
    assert not effect.exists()
    assert not node.left()
    execution = await runner.start(replace(node.launch(), clearance=good))
    assert (await execution.watch(Collected())).exit_code == 0
    assert effect.exists()


async def test_started_many_times_at_once_it_runs_once(node: Node):
    launch = node.launch()
    count = node.root / "count"
    runners = [node.runner(["sh", "-c", f"echo x >> {count}; echo done"]) for _ in range(4)]
    executions = await asyncio.gather(*(runner.start(launch) for runner in runners))
    executions.append(await runners[0].start(launch))
    for execution in executions:
        collected = Collected()
        assert (await execution.watch(collected)).exit_code == 0
        assert collected.text() == "done\n"
    assert count.read_text() == "x\n"


async def test_a_removed_attempt_is_not_started_again(node: Node):
    runner, launch = node.runner(["sleep", "60"]), node.launch()
    execution = await runner.start(launch)
    assert await runner.survivors() == [launch.fence]
    await execution.remove()
    await execution.remove()
    assert await runner.survivors() == []
    with pytest.raises(AttemptFailed) as failed:
        await runner.start(launch)
    assert failed.value.code == ErrorCode.WORKER_LOST


async def test_what_was_discarded_before_its_shim_came_is_not_started_by_a_late_one(node: Node):
    runner, launch = node.runner(["true"]), node.launch()
    await runner.discard(launch.fence, launch.folder)
    with pytest.raises(AttemptFailed) as failed:
        await runner.start(launch)
    assert failed.value.code == ErrorCode.WORKER_LOST


async def test_a_start_that_failed_after_the_spawn_leaves_an_attempt_that_can_be_discarded(node: Node):
    runner, launch = node.runner(["sleep", "60"]), node.launch()
    failpoints.arm("runner.created:raise")
    with pytest.raises(failpoints.Injected):
        await runner.start(launch)
    await runner.discard(launch.fence, launch.folder)
    assert node.left() == []
    assert await runner.adopt(launch) is None


async def test_output_is_handed_on_while_it_runs_and_with_a_cursor_behind_it(node: Node):
    first = asyncio.Event()
    gate = node.root / "gate"
    runner = node.runner(["sh", "-c", f"echo one; while [ ! -e {gate} ]; do sleep 0.01; done; echo two"])
    execution = await runner.start(node.launch())
    collected = Collected()

    async def take(output: Output) -> None:
        await collected(output)
        first.set()

    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(execution.watch(take))
        await asyncio.wait_for(first.wait(), 5)
        assert collected.cursor == {"stdout": 4, "stderr": 0}
        gate.touch()
    assert watching.result().exit_code == 0
    rest = Collected()
    await execution.watch(rest, {"stdout": 4, "stderr": 0})
    assert (collected.text(), rest.text()) == ("one\ntwo\n", "two\n")


async def test_a_cancelled_watch_leaves_the_work_alone(node: Node):
    execution = await node.runner(["sleep", "60"]).start(node.launch())
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(execution.watch(Collected()), 0.05)
    assert len(node.left()) == 2
    await execution.stop(NO_GRACE)


async def test_a_grandchild_that_holds_stdout_neither_delays_the_end_nor_outlives_it(node: Node):
    pids = node.root / "pids"
    runner = node.runner(["sh", "-c", f"setsid sleep 60 & echo $! > {pids}; echo said; exit 4"])
    collected = Collected()
    began = time.monotonic()
    execution = await runner.start(node.launch())
    ending = await execution.watch(collected)
    assert (ending.exit_code, collected.text()) == (4, "said\n")
    assert time.monotonic() - began < 5
    assert not running(numbers(pids, 1)()[0])


async def test_much_output_is_watched_with_bounded_memory(node: Node):
    length = 200 * 1024 * 1024
    execution = await node.runner(["head", "-c", str(length), "/dev/zero"]).start(node.launch())
    seen, largest, before = 0, 0, _resident()

    async def take(output: Output) -> None:
        nonlocal seen, largest
        seen += len(output.data)
        largest = max(largest, len(output.data))

    assert (await execution.watch(take)).exit_code == 0
    assert (seen, largest <= 65536) == (length, True)
    assert _resident() - before < 16 * 1024 * 1024
    await execution.remove()


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_a_node_can_take_work_and_has_nothing_to_rest(node: Node):
    runner = node.runner(["true"])
    await runner.check()
    assert not await runner.rest(timedelta(hours=1))
    await eventually(lambda: not node.left())
