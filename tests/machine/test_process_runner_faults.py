"""The process runner when things die: daemons, shims, and tasks that do not want to. On the real kernel."""

import asyncio
import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from uuid import uuid4

import pytest
import uvloop

from accsd import proc
from accsd.model.fence import Fence
from accsd.model.outcome import ErrorCode
from accsd.runners.base import Launch
from accsd.runners.process import processes, shim
from accsd.runners.process.files import AttemptFiles
from accsd.runners.process.shim_tree import start_time
from tests.machine.process_runner import NO_GRACE, Collected, Node, numbers, python, running
from tests.support.eventually import eventually, eventually_sync

pytestmark = pytest.mark.filterwarnings("ignore:Overriding the .event_loop_policy. fixture")
GRACE = timedelta(seconds=0.3)
LONG = timedelta(seconds=30)


@pytest.fixture(params=["asyncio", "uvloop"])
def event_loop_policy(request: pytest.FixtureRequest):
    return uvloop.EventLoopPolicy() if request.param == "uvloop" else asyncio.DefaultEventLoopPolicy()


@pytest.fixture
def node(tmp_path: Path):
    node = Node(tmp_path)
    yield node
    eventually_sync(lambda: not node.left())


DAEMON = """
import asyncio, json, os, sys, time
from pathlib import Path
from accsd import failpoints
from accsd.model.fence import Fence
from accsd.runners.base import Output
from tests.machine.process_runner import Node

async def main():
    root, key, command, point = sys.argv[1:]
    failpoints.arm(point or None)
    node = Node(Path(root))
    execution = await node.runner(json.loads(command)).start(node.launch(Fence.parse(key)))
    async def take(output: Output):
        with open(node.root / "first", "ab") as seen:
            seen.write(output.data)
        (node.root / "cursor.draft").write_text(json.dumps(output.cursor))
        os.rename(node.root / "cursor.draft", node.root / "cursor")
        if output.data.count(b"\\n") and (node.root / "first").read_bytes().count(b"\\n") >= 3:
            (node.root / "enough").touch()
            time.sleep(60)  # until it is killed
    await execution.watch(take)

asyncio.run(main())
"""


def daemon(node: Node, key: Fence, command: list[str], point: str = "") -> proc.Child:
    here = Path(__file__).parents[2]
    argv = [sys.executable, "-c", DAEMON, str(node.root), str(key), json.dumps(command), point]
    return proc.spawn(argv, cwd=here, output=2)


async def shim_of(launch: Launch) -> int:
    identity = await eventually(AttemptFiles(launch.folder).shim)
    assert identity is not None
    return identity.pid


async def test_a_killed_daemons_successor_gets_every_line_once_and_the_exit_code(node: Node):
    gate = node.root / "gate"
    command = [
        "sh",
        "-c",
        f"for i in 1 2 3; do echo $i; done; until [ -e {gate} ]; do sleep 0.01; done; seq 4 2000; exit 9",
    ]
    launch = node.launch()
    first = daemon(node, launch.fence, command)
    await eventually((node.root / "enough").exists, within=10)
    os.kill(first.pid, signal.SIGKILL)
    proc.stop(first)
    gate.touch()
    runner = node.runner(command)
    assert await runner.survivors() == [launch.fence]
    execution = await runner.adopt(launch)
    assert execution is not None
    collected = Collected()
    ending = await execution.watch(collected, json.loads((node.root / "cursor").read_text()))
    lines = ((node.root / "first").read_text() + collected.text()).split()
    assert lines == [str(number) for number in range(1, 2001)]
    assert (ending.exit_code, ending.cause) == (9, None)


@pytest.mark.parametrize("point", ["runner.created", "runner.started"])
async def test_a_daemon_killed_while_it_starts_an_attempt_has_started_it_once_or_not_at_all(node: Node, point: str):
    count = node.root / "count"
    command = ["sh", "-c", f"echo x >> {count}; echo done"]
    launch = node.launch()
    first = daemon(node, launch.fence, command, f"{point}:kill")
    assert await asyncio.to_thread(first.wait, 20) == -signal.SIGKILL
    execution = await node.runner(command).start(launch)
    collected = Collected()
    assert (await execution.watch(collected)).exit_code == 0
    assert (count.read_text(), collected.text()) == ("x\n", "done\n")


async def test_an_attempt_that_ended_while_no_daemon_was_there_is_adopted_with_its_end(node: Node):
    runner, launch = node.runner(["sh", "-c", "echo done; exit 5"]), node.launch()
    await runner.start(launch)
    await eventually(lambda: AttemptFiles(launch.folder).exit())
    execution = await node.runner(["true"]).adopt(launch)
    assert execution is not None
    assert (await execution.watch(Collected())).exit_code == 5


async def test_a_killed_shim_means_worker_lost_and_the_command_is_gone(node: Node):
    # Its child has neither its session nor its environment.
    command = "env -i setsid /bin/sleep 60 & echo $! >&2; echo said; exec sleep 60"
    runner, launch = node.runner(["sh", "-c", command]), node.launch()
    execution = await runner.start(launch)
    files = AttemptFiles(launch.folder)
    child = int(await eventually(files.stderr.read_text))
    await eventually(files.stdout.read_text)
    collected = Collected()
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(execution.watch(collected))
        os.kill(await shim_of(launch), signal.SIGKILL)
    ending = watching.result()
    assert (ending.exit_code, ending.cause) == (None, ErrorCode.WORKER_LOST)
    assert collected.text() == "said\n"
    assert not running(child)
    assert node.left() == []


async def test_the_orphans_of_a_killed_shim_are_not_adopted_but_discarded(node: Node):
    # Without its environment the command is found by its session.
    runner, launch = node.runner(["env", "-i", "/bin/sleep", "60"]), node.launch()
    await runner.start(launch)
    command = await eventually(AttemptFiles(launch.folder).command)
    assert command is not None
    os.kill(await shim_of(launch), signal.SIGKILL)
    await eventually(lambda: not node.left())
    assert running(command.pid)
    successor = node.runner(["true"])
    assert await successor.survivors() == [launch.fence]
    assert await successor.adopt(launch) is None
    await successor.discard(launch.fence, launch.folder)
    await successor.discard(launch.fence, None)
    assert not running(command.pid)
    assert await successor.survivors() == []


async def test_signals_to_the_shim_do_not_end_it(node: Node):
    gate = node.root / "gate"
    runner, launch = node.runner(["sh", "-c", f"until [ -e {gate} ]; do sleep 0.01; done; exit 6"]), node.launch()
    execution = await runner.start(launch)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGQUIT):
        os.kill(await shim_of(launch), number)
    gate.touch()
    assert (await execution.watch(Collected())).exit_code == 6


async def test_a_polite_command_ends_within_the_grace(node: Node):
    code = "trap 'echo bye; exit 3' TERM; echo ready; while :; do sleep 0.01; done"
    execution = await node.runner(["sh", "-c", code]).start(launch := node.launch())
    await eventually(AttemptFiles(launch.folder).stdout.read_text)
    collected = Collected()
    async with asyncio.TaskGroup() as tasks:
        watching = tasks.create_task(execution.watch(collected))
        await execution.stop(LONG)
        await execution.stop(LONG)
    ending = watching.result()
    assert (ending.exit_code, ending.cause, collected.text()) == (3, None, "ready\nbye\n")


STUBBORN = """
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
def note(): os.write(3, b"%d " % os.getpid())
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND), 3)
note()
if os.fork() == 0:  # a session of its own
    os.setsid(); note(); time.sleep(60)
if os.fork() == 0:  # twice forked, a session of its own, no environment
    os.setsid()
    if os.fork() == 0:
        note(); os.execve("/bin/sleep", ["sleep", "60"], {})
    os._exit(0)
time.sleep(60)
"""


@pytest.mark.parametrize("by", ["the daemon", "a successor"])
async def test_who_ignores_the_signal_and_hides_in_sessions_is_gone_after_the_stop(node: Node, by: str):
    pids = node.root / "pids"
    runner, launch = (
        node.runner([*python(STUBBORN), str(pids)]),
        node.launch(),
    )
    execution = await runner.start(launch)
    found = await eventually(numbers(pids, 3))
    assert all(map(running, found))
    if by == "the daemon":
        await asyncio.gather(execution.stop(GRACE), execution.stop(GRACE))
    else:
        await node.runner(["true"]).discard(launch.fence, None)
    assert not any(map(running, found))
    ending = await execution.watch(Collected())
    assert ending.exit_code in (137, None)


async def test_an_attempt_whose_stop_was_cut_short_is_not_blamed_for_our_signal(node: Node):
    runner, launch = node.runner(["sleep", "60"]), node.launch()
    await (await runner.start(launch)).stop(LONG)
    execution = await node.runner(["true"]).adopt(launch)
    assert execution is not None
    assert (await execution.watch(Collected())).cause is ErrorCode.WORKER_LOST


async def test_a_strangers_number_in_the_state_file_is_never_signalled(node: Node):
    stranger = proc.spawn(["sleep", "60"])
    try:
        for started in (1, start_time(stranger.pid)):  # a number used again, and a perfect forgery
            launch = node.launch()
            state = f"pid {stranger.pid}\nstarted {started}\nrealm {shim.realm()}\nservice echo\n"
            (launch.folder / shim.STATE_FILE).write_text(state)
            runner = node.runner(["true"])
            assert await runner.adopt(launch) is None
            ending = await (await runner.start(launch)).watch(Collected())
            assert ending.cause is ErrorCode.WORKER_LOST
            await runner.discard(launch.fence, launch.folder)
            assert running(stranger.pid)
    finally:
        proc.stop(stranger)


async def test_a_stranger_who_leads_a_session_with_the_commands_number_is_never_signalled(node: Node):
    stranger = proc.spawn(["sleep", "60"])
    try:
        launch = node.launch()
        (launch.folder / shim.COMMAND_FILE).write_text(f"pid {stranger.pid}\nstarted 1\nrealm {shim.realm()}\n")
        await node.runner(["true"]).discard(launch.fence, launch.folder)
        assert running(stranger.pid)
    finally:
        proc.stop(stranger)


@pytest.mark.parametrize(
    "garbage", [b"", b"\xff\0\xff", b"pid -1\nstarted x\n", b"pid 1\nstarted 1\nrealm r\nservice echo\n"]
)
async def test_garbage_in_a_folder_stops_nobody(node: Node, garbage: bytes):
    launch, runner = node.launch(), node.runner(["true"])
    for name in (shim.STATE_FILE, shim.EXIT_FILE, shim.COMMAND_FILE):
        (launch.folder / name).write_bytes(garbage)
    (node.attempts / "lost+found").mkdir()
    (node.attempts / f"{uuid4()}.1").write_text("a file")
    assert await runner.survivors() == []
    assert await runner.adopt(launch) is None
    await runner.discard(launch.fence, launch.folder)


async def test_after_a_reboot_an_attempt_is_known_but_not_adopted(node: Node):
    runner, launch = node.runner(["true"]), node.launch()
    await (await runner.start(launch)).watch(Collected())
    state = launch.folder / shim.STATE_FILE
    state.write_text(state.read_text().replace(shim.realm(), "another-boot/pid:[1]"))
    assert await runner.survivors() == [launch.fence]
    assert await runner.adopt(launch) is None
    await runner.discard(launch.fence, launch.folder)
    assert await runner.survivors() == []


async def test_runners_side_by_side_do_not_touch_each_other(node: Node, tmp_path: Path):
    other_node = Node(tmp_path / "other")
    places = [(node, "echo"), (node, "render"), (other_node, "echo")]
    runners = [place.runner(["sleep", "60"], service=service) for place, service in places]
    launches = [place.launch() for place, _ in places]
    executions = [await runner.start(launch) for runner, launch in zip(runners, launches, strict=True)]
    assert [await runner.survivors() for runner in runners] == [[launch.fence] for launch in launches]
    await executions[0].stop(NO_GRACE)
    await runners[0].discard(launches[0].fence, None)
    assert [len(place.left()) for place in (node, other_node)] == [2, 2]
    for runner, launch in zip(runners, launches, strict=True):
        await runner.discard(launch.fence, None)
    assert other_node.left() == []


async def test_processes_whose_folder_has_gone_are_still_found(node: Node):
    runner, launch = node.runner(["sleep", "60"]), node.launch()
    await runner.start(launch)
    hidden = node.root / "moved"
    launch.folder.rename(hidden)
    assert await runner.survivors() == [launch.fence]
    await runner.discard(launch.fence, None)
    assert await runner.survivors() == []
    assert processes.members(launch.fence, None) == []
    hidden.rename(launch.folder)
