"""Child processes on the real kernel: stopped as a group, and verified gone."""

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import anyio
import pytest

from accsd import proc
from tests.support.eventually import eventually_sync

SHORT = timedelta(seconds=0.3)


@contextmanager
def pipe() -> Generator[tuple[int, int]]:
    ends = os.pipe()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


def python(code: str, output: int) -> proc.Child:
    return proc.spawn([sys.executable, "-c", code], output=output)


def test_a_child_that_heeds_the_signal_is_stopped_by_it() -> None:
    child = proc.spawn(["sleep", "60"])
    assert proc.stop(child) == -signal.SIGTERM
    assert not proc.is_running(child.pid)


def test_a_child_that_ignores_the_signal_is_killed_after_the_grace() -> None:
    with pipe() as (read_end, write_end):
        child = python(
            "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN);print(1, flush=True); time.sleep(60)",
            write_end,
        )
        os.read(read_end, 1)
        assert proc.stop(child, grace=SHORT) == -signal.SIGKILL


def test_a_grandchild_does_not_outlive_the_stop() -> None:
    with pipe() as (read_end, write_end):
        child = proc.spawn(["sh", "-c", "trap '' TERM; sleep 60 & echo $!; exec sleep 60"], output=write_end)
        grandchild = int(os.read(read_end, 32))
        assert proc.is_running(grandchild)
        proc.stop(child, grace=SHORT)
        assert not proc.is_running(grandchild)


def test_stopping_twice_is_a_no_op() -> None:
    child = proc.spawn(["true"])
    assert proc.stop(child) == proc.stop(child)


def test_a_child_leads_a_session_of_its_own() -> None:
    child = proc.spawn(["sleep", "60"])
    assert os.getsid(child.pid) == child.pid
    proc.stop(child)


def test_run_answers_the_exit_code_and_both_outputs() -> None:
    code, text = proc.run(["sh", "-c", "echo out; echo err >&2; exit 3"], timeout=timedelta(seconds=10))
    assert code == 3
    assert text.split() == ["out", "err"]


def test_run_past_its_limit_leaves_nothing_running(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    with pytest.raises(TimeoutError):
        proc.run(["sh", "-c", f"echo $$ > {pid_file}; sleep 60"], timeout=SHORT)
    assert not proc.is_running(int(pid_file.read_text()))


def test_a_child_gets_its_signal_when_the_parent_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    parent = proc.spawn(
        [
            sys.executable,
            "-c",
            "import signal, time; from pathlib import Path; from accsd import proc\n"
            "signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for what a shell starts in its background\n"
            "child = proc.spawn(['sleep', '60'], when_parent_dies=signal.SIGINT)\n"
            f"Path({str(pid_file)!r}).write_text(f'{{child.pid}}\\n'); time.sleep(60)",
        ],
        cwd=Path(proc.__file__).parents[1],
    )
    eventually_sync(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"))
    child = int(pid_file.read_text())
    os.kill(parent.pid, signal.SIGKILL)
    eventually_sync(lambda: not proc.is_running(child), what="the end of the child")
    proc.stop(parent)


def test_is_running_compares_whole_arguments_in_sequence() -> None:
    child = proc.spawn(["sleep", "60.5", "0.25"])
    try:
        eventually_sync(lambda: proc.is_running(child.pid, with_arguments=["60.5", "0.25"]))
        assert proc.is_running(child.pid, with_arguments=["60.5"])
        assert not proc.is_running(child.pid, with_arguments=["60"])
        assert not proc.is_running(child.pid, with_arguments=["0.25", "60.5"])
    finally:
        proc.stop(child)


async def test_a_short_command_is_called_without_blocking_the_loop():
    called = await proc.call(
        ["sh", "-c", "cat; echo no >&2; exit 3"], within=timedelta(seconds=10), stdin=b"x" * 300_000
    )
    assert (called.code, len(called.stdout), called.said) == (3, 300_000, "no")


async def test_a_call_that_takes_too_long_leaves_nobody_behind():
    with pytest.raises(TimeoutError, match="did not end within"):
        await proc.call(["sh", "-c", "sleep 7341 & sleep 7341"], within=timedelta(seconds=0.3))
    assert not [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if proc.is_running(pid, with_arguments=["7341"])
    ]


async def test_a_streamed_child_and_its_children_end_with_the_block():
    async with proc.streaming(["sh", "-c", "trap '' TERM; sleep 7342 & echo ready; sleep 7342"]) as child:
        assert await child.stdout.read(6) == b"ready\n"
    assert not [
        pid
        for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
        if proc.is_running(pid, with_arguments=["7342"])
    ]


async def test_a_streamed_child_is_gone_when_the_scope_around_it_was_cancelled():
    """anyio cancels what waits in a cancelled scope again and again: the end of a child is waited for all the same."""
    started, pids = anyio.Event(), list[int]()

    async def hold() -> None:
        async with proc.streaming(["sh", "-c", "sleep 1000 & sleep 1000"]) as child:
            pids.append(child.pid)
            started.set()
            await anyio.sleep_forever()

    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(hold)
        await started.wait()
        group.cancel_scope.cancel()
    assert [pid for pid in pids if proc.look(pid) is not None] == []
