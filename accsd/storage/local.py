"""Files of this machine on their way into and out of a store: read, hashed and written in chunks, in threads."""

import hashlib
import os
import secrets
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self

import anyio
import anyio.to_thread

from accsd.storage.base import ChecksumMismatch, TooLarge
from accsd.storage.beneath import opened

CHUNK: Final = 1024 * 1024


class Running:
    """Size and checksum of the bytes so far."""

    def __init__(self, key: str, limit: int | None) -> None:
        self.size: int = 0
        self._key = key
        self._limit = limit
        self._sha256 = hashlib.sha256()

    @property
    def checksum(self) -> str:
        return f"sha256:{self._sha256.hexdigest()}"

    def add(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if self._limit is not None and self.size > self._limit:
            raise TooLarge(f"object {self._key} has more than the allowed {self._limit} bytes")
        self._sha256.update(chunk)

    def verify(self, expected: str | None) -> None:
        if expected is not None and expected != self.checksum:
            raise ChecksumMismatch(f"object {self._key} should have checksum {expected}, and has {self.checksum}")


class Source:
    """A file that is being sent. Its checksum is that of the bytes that went out, even if it changes meanwhile."""

    def __init__(self, descriptor: int, running: Running) -> None:
        self._descriptor = descriptor
        self._running = running

    @classmethod
    @asynccontextmanager
    async def of(cls, source: Path | int, running: Running) -> AsyncGenerator[Self]:
        if isinstance(source, int):
            yield cls(source, running)
            return
        descriptor = await anyio.to_thread.run_sync(os.open, source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            yield cls(descriptor, running)
        finally:
            os.close(descriptor)

    async def size(self) -> int:
        """The size now; it may change."""
        return (await anyio.to_thread.run_sync(os.fstat, self._descriptor)).st_size

    async def read(self, size: int) -> bytes:
        """The next bytes: fewer than `size` only at the end."""
        return await anyio.to_thread.run_sync(self._read, size)

    def _read(self, size: int) -> bytes:
        # By position: a descriptor may be read again from its beginning, and its own position belongs to the caller.
        data = os.pread(self._descriptor, size, self._running.size)
        while len(data) < size and (
            more := os.pread(self._descriptor, size - len(data), self._running.size + len(data))
        ):
            data += more
        self._running.add(data)
        return data


class Arrival:
    """A file that is written under a temporary name, and gets its own name when it is complete."""

    def __init__(self, folder: int) -> None:
        self._folder = folder  # a descriptor; left open
        self._name = f".{secrets.token_hex(8)}.part"
        self._descriptor = os.open(
            self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder
        )

    async def write(self, chunk: bytes) -> None:
        await anyio.to_thread.run_sync(self._write, chunk)

    def _write(self, chunk: bytes) -> None:
        view = memoryview(chunk)
        while view:
            view = view[os.write(self._descriptor, view) :]

    def chmod(self, mode: int) -> None:
        os.fchmod(self._descriptor, mode)

    def sync(self) -> None:
        os.fsync(self._descriptor)

    def move(self, name: str, folder: int) -> None:
        """Moves the file atomically, over any file that has that name."""
        os.rename(self._name, name, src_dir_fd=self._folder, dst_dir_fd=folder)

    def close(self) -> None:
        """Removes the file if it was not moved."""
        os.close(self._descriptor)
        with suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder)


@asynccontextmanager
async def arriving(folder: int) -> AsyncGenerator[Arrival]:
    arrival = await anyio.to_thread.run_sync(Arrival, folder)
    try:
        yield arrival
    finally:
        with anyio.CancelScope(shield=True):  # removing a large file takes a while, and must happen in any case
            await anyio.to_thread.run_sync(arrival.close)


@asynccontextmanager
async def arriving_at(target: Path, running: Running, checksum: str | None, mode: int) -> AsyncGenerator[Arrival]:
    """Wraps a download: `target` exists afterwards if the block ended well and the checksum is the expected one."""
    with opened(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as folder:
        async with arriving(folder) as arrival:
            yield arrival
            running.verify(checksum)
            arrival.chmod(mode)
            arrival.move(target.name, folder)
