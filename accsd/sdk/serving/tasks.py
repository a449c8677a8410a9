"""The keeper: the process that has everything loaded. It has one thread, because only then may it be forked: each task
is a fork of it, in a session of its own, with its output in files, and goes on while no client listens.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from .record import DRAINING, END, ENVELOPE, STDERR, STDOUT, conclude, sizes
from .server import TaskServer

_LINGER_SECONDS = 0.5  # so that clients that listen hear how the last tasks ended
_KEPT_SECONDS = 24 * 3600.0  # for records that no agent fetched
_TICK, _IDLE = 0.05, 1.0
_SLACK_BYTES = 1024 * 1024
_STOPS = (signal.SIGTERM, signal.SIGINT)


def listen(address: str) -> socket.socket:
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        sys.exit(f"--serve needs HOST:PORT or :PORT, not {address!r}")
    family = socket.AF_INET6 if "[" in host else socket.AF_INET
    try:
        return socket.create_server((host.strip("[]"), int(port)), family=family, backlog=128)
    except OSError as error:
        sys.exit(f"--serve {address}: {error.strerror}")


class _Running:
    """One running task, as the keeper knows it."""

    def __init__(self, pid: int, record: Path, order: dict[str, Any]) -> None:
        self.pid, self.record = pid, record
        self.limit: int | None = order.get("limit")
        self.marks = {f"ACC_JOB_TASK_ID={order['task']}".encode(), f"ACC_ATTEMPT_ID={order['attempt']}".encode()}
        self.code: int | None = None
        self.kill_at: float | None = None
        self.lost: str | None = None

    def stop(self, grace: float) -> None:
        if self.kill_at is None:
            self.signal(signal.SIGTERM)
        self.kill_at = min(self.kill_at or float("inf"), time.monotonic() + grace)

    def signal(self, number: int) -> list[int]:
        """Sends the signal to all processes of the task, and returns these."""
        found = members(self.pid, self.marks)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # the process may have changed its user
                os.kill(pid, number)
        return found

    def is_flooding(self) -> bool:
        """Whether the task writes far too much. The agent stops it much earlier; this protects the disk when no agent
        listens."""
        return self.limit is not None and sum(sizes(self.record).values()) > self.limit + _SLACK_BYTES


class Keeper:
    def __init__(self, work: Callable[[], object], listener: socket.socket, folder: Path, drain: float) -> None:
        self._work, self._listener, self._folder, self._drain = work, listener, folder, drain
        self._orders, self._for_server = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._orders.setblocking(False)
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._running: dict[int, _Running] = {}
        self._server = 0
        self._stop_tasks_at: float | None = None  # once it drains

    def run(self) -> int:
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        for number in _STOPS:
            signal.signal(number, self._begin_drain)
        self._open_server()
        had_tasks = False
        while self._stop_tasks_at is None or self._running:
            had_tasks = bool(self._running)
            self._wait()
            self._reap()
            self._take_orders()
            self._tend()
        time.sleep(_LINGER_SECONDS if had_tasks else 0)
        os.kill(self._server, signal.SIGKILL)
        return 0

    def _begin_drain(self, *_: object) -> None:
        """Begins the drain: the first signal gives tasks time to end by themselves; a second one does not."""
        wait = self._drain if self._stop_tasks_at is None else 0.0
        self._stop_tasks_at = time.monotonic() + wait
        (self._folder / DRAINING).touch()

    def _open_server(self) -> None:
        self._server = _fork()
        if self._server == 0:
            try:
                _forget_signals(but=signal.SIG_IGN)
                self._orders.close()
                TaskServer(self._listener, self._folder, self._for_server).serve_forever()
            finally:
                os._exit(1)

    def _wait(self) -> None:
        is_busy = self._stop_tasks_at is not None or any(
            each.code is not None or each.kill_at is not None for each in self._running.values()
        )
        select.select([self._orders, self._woken], [], [], _TICK if is_busy else _IDLE)
        with contextlib.suppress(BlockingIOError):
            os.read(self._woken, 4096)

    def _reap(self) -> None:
        """Collects ended children. As the first process of a container the keeper gets all orphans, too."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._server:
                    time.sleep(_TICK)  # a server that dies again and again must not take all the time
                    self._open_server()
                elif pid in self._running:
                    self._running[pid].code = (
                        os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)
                    )

    def _take_orders(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                order = json.loads(self._orders.recv(65536))
                if order["do"] == "start":
                    self._start(self._folder / order["record"], order)
                for running in [each for each in self._running.values() if each.record.name == order["record"]]:
                    if order["do"] == "stop":
                        running.stop(order["grace"])

    def _start(self, record: Path, order: dict[str, Any]) -> None:
        self._forget_old()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            pid = _fork()
        except OSError as error:
            conclude(record, None, f"the service cannot start a process: {error.strerror}")
            return
        if pid == 0:
            self._become_task(record, order)
        self._running[pid] = _Running(pid, record, order)

    def _become_task(self, record: Path, order: dict[str, Any]) -> NoReturn:
        code = 1
        try:
            os.setsid()
            _forget_signals(but=signal.SIG_DFL)
            for inherited in (self._listener, self._orders, self._for_server):
                inherited.close()
            os.close(self._woken)
            os.close(self._wake)
            for number, name in ((0, os.devnull), (1, record / STDOUT), (2, record / STDERR)):
                opened = os.open(name, os.O_RDWR | os.O_APPEND)
                os.dup2(opened, number)
                os.close(opened)
            os.environ.update(order["environ"], ACC_TASK_FILE=str(record / ENVELOPE))
            returned = self._work()
            code = returned if isinstance(returned, int) else 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
            if isinstance(end.code, str):
                sys.stderr.write(f"{end.code}\n")
        except BaseException:  # noqa: BLE001 - any error ends this process, which is the task's own
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _tend(self) -> None:
        now = time.monotonic()
        for running in list(self._running.values()):
            if self._stop_tasks_at is not None and now > self._stop_tasks_at and running.kill_at is None:
                running.lost = "the service was stopped while it ran"
                running.stop(1.0)
            if running.kill_at is None and running.code is None and running.is_flooding():
                running.stop(0)
            is_late = running.kill_at is not None and now >= running.kill_at
            if (
                (is_late or running.code is not None)
                and not running.signal(signal.SIGKILL)
                and running.code is not None
            ):
                del self._running[running.pid]
                conclude(running.record, running.code, running.lost)

    def _forget_old(self) -> None:
        for end in self._folder.glob(f"*/{END}"):
            with contextlib.suppress(OSError):
                if time.time() - end.stat().st_mtime > _KEPT_SECONDS:
                    shutil.rmtree(end.parent, ignore_errors=True)


def _fork() -> int:
    """A signal waits until the child has its own handlers: by the keeper's it would say that the service drains."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    pid = -1
    try:
        pid = os.fork()
    finally:
        if pid != 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
    return pid


def _forget_signals(*, but: signal.Handlers) -> None:
    """Resets signal handlers; called in the child."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    for number in _STOPS:
        signal.signal(number, but)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def members(leader: int, marks: set[bytes]) -> list[int]:
    """A task's processes: its session, their children, and processes that name the attempt in their environment.

    It reads /proc by itself: this package is copied into images where accsd is not installed.
    """
    found: dict[int, tuple[int, int]] = {}
    named: set[int] = set()
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):
            state, parent, _, session = (
                Path("/proc", entry, "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
            )
            if state not in "ZX":
                found[int(entry)] = (int(parent), int(session))
                if marks <= set(Path("/proc", entry, "environ").read_bytes().split(b"\0")):
                    named.add(int(entry))
    ours = named | {pid for pid, (_, session) in found.items() if leader in (pid, session)}
    while more := {pid for pid, (parent, _) in found.items() if parent in ours} - ours:
        ours |= more
    return sorted(ours)
