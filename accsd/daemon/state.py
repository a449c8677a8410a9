"""The node's state folder, and the lock that makes this process the only one here that speaks for the node.

The lock's file says which process holds it and which compose file is served, for `accsd doctor`: that is another
process, and may have been given no compose file.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from accsd.errors import ConfigError
from accsd.work.identity import LOCK_FILE, lock_folder


@contextmanager
def locked_state(folder: Path, node: str) -> Generator[Path]:
    """Locks the folder for as long as the block lasts. The kernel frees the lock however this process ends."""
    lock = lock_folder(folder)
    if lock is None:
        raise ConfigError(
            f'an agent runs as node "{node}" on this machine already (it holds {folder / LOCK_FILE})',
            hint="stop it, or give this one another ACC_NODE_NAME",
        )
    try:
        yield folder
    finally:
        os.ftruncate(lock, 0)
        os.close(lock)


def note_served(folder: Path, compose: Path | None) -> None:
    """Notes the compose file; called by the holder of the lock, at the start and when the settings have changed."""
    served = "" if compose is None else str(compose.absolute())
    (folder / LOCK_FILE).write_text(f"{os.getpid()}\n{served}\n")


def served_here(folder: Path) -> Path | None:
    """The compose file of the agent that runs in this folder; None: none runs, or it serves none."""
    try:
        holder, served, *_ = [*(folder / LOCK_FILE).read_text().split("\n"), "", ""]
    except (OSError, UnicodeDecodeError):
        return None
    is_there = holder.isdigit() and Path(f"/proc/{holder}").exists()
    return Path(served) if served and is_there else None
