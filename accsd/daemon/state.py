"""The node's state folder, and the lock that makes this process the only one here that speaks for the node.

The file of the lock says who holds it and which compose file is served: `accsd doctor` is another process, and may have
been given none.
"""

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from accsd.errors import ConfigError

_LOCK_FILE = "lock"


@contextmanager
def locked_state(folder: Path, node: str) -> Generator[Path]:
    """The folder, ours for as long as the block lasts. The kernel frees the lock however this process ends."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / _LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"the state folder {folder} cannot be used: {error.strerror}",
            hint="name another one by node.state_dir or ACC_STATE_DIR",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ConfigError(
            f'an agent runs as node "{node}" on this machine already (it holds {folder / _LOCK_FILE})',
            hint="stop it, or give this one another ACC_NODE_NAME",
        ) from None
    try:
        yield folder
    finally:
        os.ftruncate(lock, 0)
        os.close(lock)


def note_served(folder: Path, compose: Path | None) -> None:
    """By the holder of the lock, when it starts and when its settings have changed."""
    served = "" if compose is None else str(compose.absolute())
    (folder / _LOCK_FILE).write_text(f"{os.getpid()}\n{served}\n")


def served_here(folder: Path) -> Path | None:
    """The compose file of the agent that runs in this folder; None: none runs, or it serves none."""
    try:
        holder, served, *_ = [*(folder / _LOCK_FILE).read_text().split("\n"), "", ""]
    except (OSError, UnicodeDecodeError):
        return None
    is_there = holder.isdigit() and Path(f"/proc/{holder}").exists()
    return Path(served) if served and is_there else None
