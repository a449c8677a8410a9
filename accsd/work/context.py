"""What all attempts of a node share: the database, the store, the leases, the folder that they work in."""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Final

from accsd.db import Database
from accsd.metrics import Metrics
from accsd.model.fence import Fence
from accsd.runners.base import TASK_FILE
from accsd.settings.model import SecretSettings
from accsd.storage.base import ObjectStore
from accsd.work.cache import FileCache
from accsd.work.lease import LeaseKeeper
from accsd.work.reporter import Reporter

Mark = tuple[int, int]  # of a folder: when a mount has gone, another folder lies in its place

_FULL: Final = 65536  # bytes: with less than this no task can work


@dataclass(eq=False, slots=True, kw_only=True)
class AttemptContext:
    name: str  # of the node that owns the leases
    db: Database
    store: ObjectStore
    leases: LeaseKeeper
    reporter: Reporter
    metrics: Metrics
    attempts_folder: Path
    patience: timedelta  # how long to wait for a store that is away
    backoff_base: timedelta
    min_free_disk: int = 0  # below this no task is claimed
    files: FileCache | None = None  # of workflows; None where tasks have no folders
    secrets: Mapping[str, SecretSettings] = field(default_factory=dict[str, SecretSettings])

    def folder(self, fence: Fence) -> Path:
        return self.attempts_folder / str(fence)

    def folders_of(self, service: str) -> set[Fence]:
        """The attempts of a service that have a folder here, and those whose folder does not say its service."""
        return {fence for fence, name in self._folders().items() if name in (service, None)}

    def services_of_folders(self) -> dict[Fence, str]:
        """The services of the attempts whose folders can be read."""
        return {fence: name for fence, name in self._folders().items() if name is not None}

    def _folders(self) -> dict[Fence, str | None]:
        found: dict[Fence, str | None] = {}
        for folder in self.attempts_folder.iterdir():
            with suppress(ValueError):
                found[Fence.parse(folder.name)] = _service_of(folder)
        return found

    def folder_problem(self) -> str | None:
        """Says that the file system of the attempts' folder has gone, if it has."""
        if os.access(self.attempts_folder, os.W_OK | os.X_OK):
            return None
        there = "cannot be written" if self.attempts_folder.exists() else "is not there"
        return f"the folder {self.attempts_folder} {there}"

    def mark(self) -> Mark | None:
        try:
            found = os.stat(self.attempts_folder)
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def is_disk_full(self) -> bool:
        try:
            disk = os.statvfs(self.attempts_folder)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize < _FULL

    def disk_problem(self) -> str | None:
        """Says that free disk is below the watermark. Nothing is claimed then: a task would fail for want of disk.
        Files of workflows that no attempt needs now give way before."""
        wanted = self.min_free_disk
        try:
            free = self._free()
            if free < wanted and self.files is not None and self.files.make_room():
                free = self._free()
        except OSError as error:
            return f"the folder {self.attempts_folder} cannot be used: {error.strerror}"
        if free >= wanted:
            return None
        return f"the disk of {self.attempts_folder} has less than {wanted // 2**20} MiB free; {free} bytes"

    def _free(self) -> int:
        disk = os.statvfs(self.attempts_folder)
        return disk.f_bavail * disk.f_frsize


def _service_of(folder: Path) -> str | None:
    try:
        service: object = json.loads((folder / TASK_FILE).read_bytes()).get("service")
    except (OSError, ValueError, AttributeError):
        return None
    return service if isinstance(service, str) else None
