"""The node's state folder, and the lock that makes this process the only one here that speaks for the node."""

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
        os.close(lock)
