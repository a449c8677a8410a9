"""Which processes of this machine belong to an attempt, and how to signal those and no others.

A process id alone says nothing: it is used again. Everything here goes by id and start time, and a signal goes through
a pidfd that was opened before the last look. Looking takes some milliseconds: call it in a thread.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from accsd import proc
from accsd.model.fence import Fence
from accsd.proc import Process

TASK_VARIABLE: Final = "ACC_JOB_TASK_ID"
ATTEMPT_VARIABLE: Final = "ACC_ATTEMPT_ID"

_PAUSE_SECONDS: Final = 0.005


@dataclass(frozen=True, slots=True)
class Identity:
    """Names one process for good, and never another that gets its number. `realm` is the boot and the namespace that it
    lived in."""

    pid: int
    started: int
    realm: str

    def names(self, process: Process) -> bool:
        return (self.pid, self.started) == (process.pid, process.started)


def environment(pid: int) -> dict[str, str]:
    """The variables of a process; empty for a process that we may not look into, because an attempt's processes are
    ours."""
    try:
        return proc.environment(pid)
    except PermissionError:
        return {}


def bears(pid: int, fence: Fence) -> bool:
    return _marker(environment(pid)) == (str(fence.task_id), str(fence.attempt_id))


def fence_of(variables: dict[str, str]) -> Fence | None:
    task, attempt = _marker(variables)
    try:
        return Fence.parse(f"{task}.{attempt}")
    except ValueError:
        return None


def _marker(variables: dict[str, str]) -> tuple[str | None, str | None]:
    return variables.get(TASK_VARIABLE), variables.get(ATTEMPT_VARIABLE)


def members(fence: Fence, command: Identity | None) -> list[Process]:
    """All living processes of an attempt, its shim among them: by the environment that they were started with, by the
    command's session, and by descent from any of these."""
    around = proc.everyone()
    ours = {pid for pid in around if bears(pid, fence)}
    ours |= set(_session(command, around))
    ours |= set(_descendants(ours, around.values()))
    return [around[pid] for pid in ours if not around[pid].has_ended and pid != os.getpid()]


def _session(command: Identity | None, around: dict[int, Process]) -> Iterator[int]:
    """The processes of the command's session, as long as its leader is there, dead or alive: later its number may be
    that of a stranger's session."""
    leader = around.get(command.pid) if command else None
    if command and leader and command.names(leader):
        yield from (process.pid for process in around.values() if process.session == command.pid)


def _descendants(ancestors: Iterable[int], around: Iterable[Process]) -> Iterator[int]:
    children: dict[int, list[int]] = {}
    for process in around:
        children.setdefault(process.parent, []).append(process.pid)
    walk = list(ancestors)
    for pid in walk:
        walk += children.pop(pid, ())
    yield from walk


def open_if_running(identity: Identity, fence: Fence) -> int | None:
    """A pidfd of exactly this process, which must bear the attempt's marker; None if the process has ended."""
    try:
        pidfd = os.pidfd_open(identity.pid)
    except (ProcessLookupError, OverflowError):
        return None
    process = proc.look(identity.pid)
    if process and identity.names(process) and not process.has_ended and bears(identity.pid, fence):
        return pidfd
    os.close(pidfd)
    return None


def is_running(identity: Identity, fence: Fence) -> bool:
    pidfd = open_if_running(identity, fence)
    if pidfd is not None:
        os.close(pidfd)
    return pidfd is not None


def send(process: Process, *wanted: signal.Signals) -> None:
    """Signals exactly this process, and never another that got its number: the pidfd is opened first, then the number
    is looked at."""
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        now = proc.look(process.pid)
        if now is not None and now.started == process.started:
            for one in wanted:
                # Not permitted where a task has become another user: whoever waits for its end will say so.
                with suppress(ProcessLookupError, PermissionError):
                    signal.pidfd_send_signal(pidfd, one)
    finally:
        os.close(pidfd)


def kill_all(find: Callable[[], list[Process]], within: timedelta) -> None:
    """Kills until `find` finds no process. All are stopped before the first is killed: a fork bomb would outrun us, and
    the death of a parent or leader would take away what tells that the others belong to the attempt."""
    deadline = time.monotonic() + within.total_seconds()
    while frozen := _freeze(find, deadline):
        for process in frozen:
            send(process, signal.SIGKILL)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes survived SIGKILL: {sorted(process.pid for process in frozen)}")
        time.sleep(_PAUSE_SECONDS)


def _freeze(find: Callable[[], list[Process]], deadline: float) -> list[Process]:
    frozen: dict[tuple[int, int], Process] = {}
    while new := [process for process in find() if (process.pid, process.started) not in frozen]:
        for process in new:
            send(process, signal.SIGSTOP)
            frozen[process.pid, process.started] = process
        if time.monotonic() > deadline:
            break
    return list(frozen.values())
