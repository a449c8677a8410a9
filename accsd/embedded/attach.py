"""The user's side: finds the server of a folder or starts it, and keeps it running.

A user process never gets a stale answer: it holds users.lock (shared), so a guardian that has not begun to stop will
not begin; it holds starting.lock, so no other process is starting. If guardian.lock is taken, its holder is a guardian
whose starter removed the previous server.json first: one that exists now is that guardian's.
"""

import fcntl
import json
import os
import shutil
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import accsd
from accsd import proc
from accsd.embedded.binaries import wheel_binaries
from accsd.embedded.folder import Deadline, EmbeddedError, Folder, Server, locked, try_lock


@dataclass(frozen=True, slots=True)
class GuardianTask:
    """A guardian's instructions, as one JSON argument on its command line (so it holds no secret)."""

    folder: str
    guardian_lock_fd: int
    bindir: str
    settings: dict[str, str]


@contextmanager
def running(
    folder: Path,
    *,
    bindir: Path | None = None,
    settings: Mapping[str, str] | None = None,
    timeout: timedelta = timedelta(seconds=60),
) -> Generator[Server]:
    """The server of this folder: the one that runs already, or a new one.

    `bindir` names the binaries of another PostgreSQL than the wheel's. `settings` are `-c` options. Both are the
    starter's choice: a second user takes the server as it is.
    """
    place = Folder.at(folder)
    deadline = Deadline(timeout, f"the embedded PostgreSQL in {place.path} was not ready after {timeout}")
    with locked(place.users_lock, fcntl.LOCK_SH, deadline):
        yield _find_or_start(place, bindir, dict(settings or {}), deadline)


def find(folder: Path) -> Server | None:
    """The server that runs in this folder, if one does. The caller does not hold it: it may stop at any moment."""
    place = Folder(folder.absolute())
    if not place.guardian_lock.exists():
        return None
    lock_fd = try_lock(place.guardian_lock, fcntl.LOCK_SH)  # shared: a starter at the same moment only waits a little
    if lock_fd is not None:
        os.close(lock_fd)
        return None
    return place.server()


def wait_until_stopped(folder: Path, timeout: timedelta = timedelta(seconds=60)) -> None:
    """Waits until no guardian is left, which includes that its server is gone."""
    place = Folder.at(folder)
    deadline = Deadline(timeout, f"the embedded PostgreSQL in {place.path} is still in use after {timeout}")
    with locked(place.guardian_lock, fcntl.LOCK_EX, deadline):
        pass


def destroy(folder: Path, timeout: timedelta = timedelta(seconds=60)) -> None:
    """Waits until the last user has gone, then removes the folder and its data, wherever that really lies."""
    wait_until_stopped(folder, timeout)
    data = Folder(folder.resolve()).data
    if data.is_symlink():
        shutil.rmtree(data.resolve().parent, ignore_errors=True)
    shutil.rmtree(folder)


def _find_or_start(place: Folder, bindir: Path | None, settings: dict[str, str], deadline: Deadline) -> Server:
    with locked(place.starting_lock, fcntl.LOCK_EX, deadline):
        started = False
        while True:
            lock_fd = try_lock(place.guardian_lock, fcntl.LOCK_EX)
            if lock_fd is None:
                if server := place.server():
                    return server
                deadline.pause()
                continue
            try:
                if started:
                    raise EmbeddedError(f"the embedded PostgreSQL did not start:\n{place.log_tail()}")
                place.forget_server()
                # The wheel is looked up here: the guardian need not have this process's module path.
                _spawn_guardian(
                    place, GuardianTask(str(place.path), lock_fd, str(bindir or wheel_binaries()), settings)
                )
                started = True
            finally:
                # The guardian has its own copy of the descriptor, and with it the lock.
                os.close(lock_fd)


def _spawn_guardian(place: Folder, order: GuardianTask) -> None:
    if place.log.exists():
        place.log.replace(place.log.with_suffix(".log.old"))
    log_fd = os.open(place.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        launcher = proc.spawn(
            [sys.executable, "-m", "accsd.embedded", json.dumps(asdict(order))],
            output=log_fd,
            cwd=Path(accsd.__file__).parents[1],  # where -m finds this very package
            keep_fds=[order.guardian_lock_fd],
        )
    finally:
        os.close(log_fd)
    # The process forks the guardian and exits at once: init adopts the guardian, so that it never stays as a zombie.
    launcher.wait()
