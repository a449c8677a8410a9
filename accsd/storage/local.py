"""Files of this machine on their way into and out of a store: opened without ever following a link, read, hashed and
written in chunks, in threads.

The content of a folder may be hostile: a task wrote it. Paths beneath it are tuples of names; every step is taken from
an open descriptor, so that nothing outside can be reached, even if a link is swapped in or anything is renamed during
the walk.
"""

import ctypes
import errno
import hashlib
import os
import secrets
import stat
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final, Self

import anyio
import anyio.to_thread

from accsd.storage.base import ChecksumMismatch, TooLarge

CHUNK: Final = 1024 * 1024
FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

# From one file system to another, or by a kernel or a file system that does not know the call.
_NO_COPY: Final = (errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EPERM)
_OPENAT2 = 437  # the same number on every architecture
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_LIBC = ctypes.CDLL(None, use_errno=True)


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

    def copy(self, descriptor: int, most: int) -> int:
        """Copies the next bytes of another file, at most so many, and returns how many: 0 at its end. The kernel does
        it; a file system that can share blocks copies none."""
        try:
            return os.copy_file_range(descriptor, self._descriptor, most)
        except OSError as error:
            if error.errno not in _NO_COPY:
                raise
        data = os.read(descriptor, min(most, CHUNK))
        self._write(data)
        return len(data)

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


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class NotRegular(OSError):
    """The path is a folder, a link, a device, a pipe or a socket."""


@contextmanager
def opened(path: Path | str, flags: int = FOLDER, *, at: int | None = None) -> Generator[int]:
    descriptor = os.open(path, flags, dir_fd=at)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_regular(root: int, parts: tuple[str, ...]) -> int:
    """Opens a regular file beneath `root` for reading. OSError where there is none; NotRegular where it is something
    else.

    It is looked at before it is opened: merely opening a pipe blocks, and opening a device may do anything.
    """
    looked_at = _open_beneath(root, parts, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        kind = os.fstat(looked_at).st_mode
        if not stat.S_ISREG(kind):
            raise NotRegular(errno.EINVAL, f"is {_named(kind)}")
        return os.open(f"/proc/self/fd/{looked_at}", os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY)
    finally:
        os.close(looked_at)


@contextmanager
def folder(root: int, parts: tuple[str, ...], *, make_mode: int | None = None, durably: bool = False) -> Generator[int]:
    """Opens a folder beneath `root`; with `make_mode`, makes it where it is missing (`durably`: and syncs it)."""
    current = os.dup(root)
    try:
        for part in parts:
            if make_mode is not None:
                _make(current, part, make_mode, durably)
            step = os.open(part, FOLDER, dir_fd=current)
            os.close(current)
            current = step
        yield current
    finally:
        os.close(current)


def _make(parent: int, name: str, mode: int, durably: bool) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=parent)
        with opened(name, at=parent) as made:
            os.fchmod(made, mode)  # whatever the umask says
        if durably:
            os.fsync(parent)


def _open_beneath(root: int, parts: tuple[str, ...], flags: int) -> int:
    try:
        return _openat2(root, "/".join(parts), flags)
    except OSError as error:
        # An older kernel, or a filter of system calls that does not know this one.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    return open_stepwise(root, parts, flags)


def _openat2(root: int, path: str, flags: int) -> int:
    how = _OpenHow(flags, 0, _RESOLVE_BENEATH | _RESOLVE_NO_SYMLINKS)
    answer: int = _LIBC.syscall(_OPENAT2, root, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return answer


def open_stepwise(root: int, parts: tuple[str, ...], flags: int) -> int:
    """Does the same as openat2, one step at a time."""
    with folder(root, parts[:-1]) as parent:
        return os.open(parts[-1], flags | os.O_NOFOLLOW, dir_fd=parent)


def _named(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a folder",
        stat.S_IFLNK: "a link",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "no regular file")
