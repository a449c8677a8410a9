"""Which machine and process registers as a node: two machines with one name must not pass for one another."""

import fcntl
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from accsd.errors import ConfigError

LOCK_FILE: Final = "lock"  # in the state folder of a node
_MACHINE_ID: Final = Path("/etc/machine-id")
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """Clones of a disk share a machine's id, but no boot. A worker without a machine of its own gives its instance."""

    machine_id: str | None = None
    boot_id: str | None = None
    instance: str = field(default_factory=lambda: secrets.token_hex(8))

    @classmethod
    def of_this_machine(cls, environ: Mapping[str, str]) -> "NodeIdentity":
        return cls(_read(_MACHINE_ID), environ.get("ACC_BOOT_ID") or _read(_BOOT_ID))


def _read(path: Path) -> str | None:
    try:
        return path.read_text().strip() or None
    except OSError:  # a container has no machine id
        return None


def lock_folder(folder: Path) -> int | None:
    """Makes this process the only one on this machine that speaks for the node whose state lies in the folder. The
    descriptor holds the lock, and the kernel frees it however the process ends. None: another process holds it."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"the state folder {folder} cannot be used: {error.strerror}",
            hint="name another one by node.state_dir or ACC_STATE_DIR",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
