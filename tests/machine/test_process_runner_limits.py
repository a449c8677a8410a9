"""The limits of the process runner, held by the shim: memory and the number of processes."""

import os
import shutil
import signal
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from accsd import proc
from accsd.model.outcome import ErrorCode
from accsd.runners.process import processes, shim_tree
from accsd.runners.process.files import AttemptFiles
from tests.machine.process_runner import Collected, Node, python, running
from tests.support.eventually import eventually, eventually_sync

MIB = 1024 * 1024


@pytest.fixture
def node(tmp_path: Path):
    node = Node(tmp_path)
    yield node
    eventually_sync(lambda: not node.left())


async def test_more_memory_than_the_limit_is_oom(node: Node):
    code = "import os, time; print('x', flush=True); kept = b'x' * 200 * 1024 * 1024; time.sleep(60)"
    execution = await node.runner(python(code), limits={"memory": "64m"}).start(node.launch())
    collected = Collected()
    ending = await execution.watch(collected)
    assert (ending.cause, ending.exit_code, collected.text()) == (ErrorCode.OOM, 137, "x\n")
    assert ending.max_rss_bytes
    assert ending.max_rss_bytes > 64 * MIB


async def test_memory_counts_over_all_processes_and_whatever_their_session(node: Node):
    code = (
        "import os, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        os.setsid(); kept = b'x' * 40 * 1024 * 1024; time.sleep(60)\n"
        "time.sleep(60)"
    )
    execution = await node.runner(python(code), limits={"memory": "100m"}).start(node.launch())
    assert (await execution.watch(Collected())).cause is ErrorCode.OOM


async def test_shared_pages_are_counted_once(node: Node):
    """Five processes that share 60 MiB have 300 MiB resident, and use 60."""
    code = "import os, time\nkept = b'x' * 60 * 1024 * 1024\nany(os.fork() == 0 for _ in range(4))\ntime.sleep(0.4)"
    execution = await node.runner(python(code), limits={"memory": "200m"}).start(node.launch())
    ending = await execution.watch(Collected())
    assert (ending.cause, ending.exit_code) == (None, 0)


BOMB = """
import os, sys, time
def grow(depth):
    for _ in range(2):
        if os.fork() == 0:
            if sys.argv[1] == "sessions": os.setsid()
            time.sleep(0.01)
            if depth: grow(depth - 1)
            time.sleep(60)
grow(7)
time.sleep(60)
"""


@pytest.mark.parametrize("kind", ["one group", "sessions"])
async def test_a_fork_bomb_is_contained_by_the_limit(node: Node, kind: str):
    execution = await node.runner([*python(BOMB), kind], limits={"pids": 20}).start(node.launch())
    ending = await execution.watch(Collected())
    assert (ending.cause, ending.exit_code) == (ErrorCode.PIDS_LIMIT, 137)
    assert node.left() == []


async def test_limits_hold_while_no_daemon_is_there(node: Node):
    launch = node.launch()
    await node.runner([*python(BOMB), "one group"], limits={"pids": 20}).start(launch)
    record = await eventually(lambda: AttemptFiles(launch.folder).exit(), within=10)
    assert record is not None
    assert record.limit == "pids_limit"
    assert record.nobody_left


async def test_within_its_limits_a_command_is_left_alone_and_its_end_is_told_at_once(node: Node):
    limits = {"memory": "500m", "pids": 10}
    execution = await node.runner(["sh", "-c", "true | true | true; exit 7"], limits=limits).start(node.launch())
    ending = await execution.watch(Collected())
    assert (ending.cause, ending.exit_code) == (None, 7)


async def test_the_family_is_the_same_on_a_kernel_without_lists_of_children(node: Node, monkeypatch):
    child = proc.spawn(["sh", "-c", "sleep 60 & sleep 60"])
    try:
        await eventually(lambda: len(shim_tree._children(child.pid)) == 2)
        by_lists = sorted(shim_tree._children(child.pid))
        monkeypatch.setattr(shim_tree, "_HAS_LISTS", False)
        assert sorted(shim_tree._children(child.pid)) == by_lists
    finally:
        proc.stop(child)


def test_all_are_stopped_before_the_first_is_killed():
    children = [proc.spawn(["sleep", "60"]) for _ in range(3)]
    looks = count()

    def states() -> list[str]:
        return [Path(f"/proc/{child.pid}/stat").read_text().split()[2] for child in children]

    def find() -> list[proc.Process]:
        if next(looks) == 1:  # the second one, by which nobody may have been killed; a stop takes a moment
            eventually_sync(lambda: states() == ["T", "T", "T"])
        found = [proc.look(child.pid) for child in children]
        return [process for process in found if process is not None and not process.has_ended]

    processes.kill_all(find, timedelta(seconds=10))
    assert next(looks) > 1
    assert [proc.stop(child) for child in children] == [-signal.SIGKILL] * 3


async def test_a_program_may_have_any_name(node: Node):
    program = node.root / "a) Z (b"
    shutil.copy("/bin/sleep", program)
    child = proc.spawn([program, "60"])
    try:
        process = await eventually(lambda: proc.look(child.pid))
        assert process is not None
        assert (process.parent, process.session, process.has_ended) == (os.getpid(), child.pid, False)
        assert process.started == shim_tree.start_time(child.pid)
    finally:
        proc.stop(child)


async def test_orphans_are_reaped_while_the_command_runs(node: Node):
    code = "(sleep 0 & echo $! >&2); read line; until [ -e gate ]; do sleep 0.01; done"
    execution = await node.runner(["sh", "-c", code]).start(launch := node.launch())
    orphan = int(await eventually(AttemptFiles(launch.folder).stderr.read_text))
    await eventually(lambda: not running(orphan) and not Path(f"/proc/{orphan}").exists())
    (launch.folder / "work" / "gate").touch()
    assert (await execution.watch(Collected())).exit_code == 0
