"""Which machine and process this is, as it registers: two machines with one name must not pass for one another."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

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
