"""The identity of this process: a node of its own, named after the machine's node and the service, by the first free
lock.

The holder of a name's lock knows that the earlier holder is dead: the kernel frees a lock however its process ends.
"""

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accsd.errors import ConfigError
from accsd.work.identity import lock_folder

_MOST: Final = 1000  # processes of one service on one machine


@dataclass(frozen=True, slots=True)
class Instance:
    name: str
    attempts: Path  # emptied at the start: no process owns what an earlier one left

    @property
    def objects(self) -> Path:
        """The default store: like the agent's, it is shared by the nodes of one machine where no store is
        configured."""
        return self.attempts.parent.parent / "objects"


@contextmanager
def locked_instance(root: Path, node: str, service: str) -> Generator[Instance]:
    """Locks the first free name: `node.service` for the first process on a machine, `node.service.2` for the second."""
    name, lock = _first_free(root, f"{node}.{service}")
    try:
        attempts = root / name / "attempts"
        shutil.rmtree(attempts, ignore_errors=True)
        yield Instance(name, attempts)
    finally:
        os.close(lock)


def _first_free(root: Path, base: str) -> tuple[str, int]:
    for number in range(1, _MOST + 1):
        name = base if number == 1 else f"{base}.{number}"
        if (lock := lock_folder(root / name)) is not None:
            return name, lock
    raise ConfigError(f"{_MOST} processes of {base} run on this machine already")
