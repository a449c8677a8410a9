"""Objects as files beneath one folder: for a single machine, a shared mount, and the demo.

A key is a path beneath the folder, walked from descriptor to descriptor so that no link leads out of it. An object
that is being written lies in `.incoming` beside the objects (the same file system, and no key begins with it); a crash
leaves its file there, and a later start removes it.
"""

import errno
import os
import stat
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
import anyio.to_thread

from accsd.errors import ConfigError, InvalidValue, NotFound, StorageUnavailable
from accsd.storage import local
from accsd.storage.base import (
    MOST_BYTES_AT_ONCE,
    Listed,
    StoredObject,
    TooLarge,
    check_key,
    check_prefix,
    check_span,
    content_type_or_default,
)
from accsd.storage.local import CHUNK, Arrival, Running, Source, arriving, arriving_at

T = TypeVar("T")
Parts = tuple[str, ...]

_INCOMING: Final = ".incoming"
_PRIVATE: Final = 0o700
_ABANDONED: Final = timedelta(days=2)  # longer than any upload of another machine that shares the folder
_TRIES: Final = 20  # a deletion may remove the folder that a put is about to use, but not that often

_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_NOT_PERMITTED: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_NOTHING_THERE: Final = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class FileStore:
    def __init__(self, root: Path, bucket: str) -> None:
        self._path = root
        self._bucket = bucket

    @property
    def bucket(self) -> str:
        return self._bucket

    async def check(self) -> None:
        await self._in_thread(self._sweep)

    async def put_file(
        self, key: str, source: Path | int, *, content_type: str | None = None, limit: int | None = None
    ) -> StoredObject:
        parts, running = _parts(key), Running(key, limit)
        async with Source.of(source, running) as reading, self._incoming() as arrival:
            while chunk := await reading.read(CHUNK):
                with self._translating():
                    await arrival.write(chunk)
            await self._in_thread(self._settle, arrival, parts)
        return StoredObject(self._bucket, key, running.size, running.checksum, content_type_or_default(content_type))

    async def put_bytes(self, key: str, data: bytes, *, content_type: str | None = None) -> StoredObject:
        parts, running = _parts(key), Running(key, None)
        running.add(data)
        async with self._incoming() as arrival:
            with self._translating():
                await arrival.write(data)
            await self._in_thread(self._settle, arrival, parts)
        return StoredObject(self._bucket, key, running.size, running.checksum, content_type_or_default(content_type))

    async def get_to(
        self, key: str, target: Path, *, checksum: str | None = None, limit: int | None = None, mode: int = 0o600
    ) -> StoredObject:
        running = Running(key, limit)
        descriptor = await self._in_thread(self._open, key)
        try:
            async with (
                Source.of(descriptor, running) as reading,
                arriving_at(target, running, checksum, mode) as arrival,
            ):
                while chunk := await self._read(reading):
                    await arrival.write(chunk)
        finally:
            os.close(descriptor)
        return StoredObject(self._bucket, key, running.size, running.checksum)

    async def get_bytes(
        self, key: str, *, start: int = 0, length: int | None = None, checksum: str | None = None
    ) -> bytes:
        check_span(start, length)
        data = await self._in_thread(self._read_part, key, start, length)
        running = Running(key, None)
        running.add(data)
        running.verify(checksum)
        return data

    async def stat(self, key: str) -> Listed:
        return await self._in_thread(self._stat, key)

    async def list(self, prefix: str = "") -> AsyncIterator[Listed]:
        waiting: list[Parts | Listed] = [check_prefix(prefix)]
        while waiting:
            item = waiting.pop()
            if isinstance(item, Listed):
                yield item
            else:
                waiting.extend(await self._in_thread(self._scan, item, prefix))

    async def delete(self, key: str) -> None:
        await self._in_thread(self._delete, _parts(key))

    # Everything below runs in a thread, but for the wrappers.

    async def _in_thread(self, work: Callable[..., T], *arguments: object) -> T:
        with self._translating():
            return await anyio.to_thread.run_sync(partial(work, *arguments))

    async def _read(self, reading: Source) -> bytes:
        with self._translating():
            return await reading.read(CHUNK)

    @asynccontextmanager
    async def _incoming(self) -> AsyncGenerator[Arrival]:
        folder = await self._in_thread(self._open_incoming)
        try:
            async with arriving(folder) as arrival:
                yield arrival
        finally:
            os.close(folder)

    @contextmanager
    def _translating(self) -> Generator[None]:
        """Translates errors, except for a full disk, which stays an OSError whichever disk it is."""
        try:
            yield
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise
            if error.errno in _NOT_PERMITTED:
                raise ConfigError(
                    f"the storage folder {self._path} cannot be used: {error.strerror}",
                    hint="see storage.url (ACC_STORAGE_URL) and who owns that folder",
                ) from error
            raise StorageUnavailable(f"the storage folder {self._path} fails: {error.strerror}") from error

    @contextmanager
    def _root(self) -> Generator[int]:
        # Opened each time: a mount that comes back is another folder than the one that went away.
        with suppress(FileExistsError):
            self._path.mkdir(mode=_PRIVATE, parents=True)
        with local.opened(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) as root:
            yield root

    @contextmanager
    def _folder(self, parts: Parts, *, make: bool = False) -> Generator[int]:
        mode = _PRIVATE if make else None
        with self._root() as root, local.folder(root, parts, make_mode=mode, durably=True) as folder:
            yield folder

    def _open_incoming(self) -> int:
        with self._folder((_INCOMING,), make=True) as folder:
            return os.dup(folder)

    def _settle(self, arrival: Arrival, parts: Parts) -> None:
        arrival.sync()
        for _ in range(_TRIES):
            try:
                with self._folder(parts[:-1], make=True) as folder:
                    arrival.move(parts[-1], folder)
                    os.fsync(folder)
                return
            except FileNotFoundError:
                continue
            except (IsADirectoryError, NotADirectoryError) as error:
                raise InvalidValue(f"object {'/'.join(parts)} and another one cannot both be files") from error
        raise StorageUnavailable(f"the folder of object {'/'.join(parts)} is removed again and again")

    def _open(self, key: str) -> int:
        with _nothing_there(key), self._root() as root:
            return local.open_regular(root, _parts(key))

    def _read_part(self, key: str, start: int, length: int | None) -> bytes:
        descriptor = self._open(key)
        try:
            there = max(0, os.fstat(descriptor).st_size - start)
            wanted = there if length is None else min(length, there)
            if wanted > MOST_BYTES_AT_ONCE:
                raise TooLarge(f"object {key} is larger than the {MOST_BYTES_AT_ONCE} bytes that are read at once")
            return os.pread(descriptor, wanted, start)  # below 2 GiB one call reads all there is
        finally:
            os.close(descriptor)

    def _stat(self, key: str) -> Listed:
        *parents, name = _parts(key)
        with _nothing_there(key), self._folder(tuple(parents)) as folder:
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                raise local.NotRegular(errno.EINVAL, "is no object")
            return _listed(key, status)

    def _scan(self, parts: Parts, prefix: str) -> Sequence[Parts | Listed]:
        """Scans one folder: returns its objects, and its folders to be scanned later."""
        found: list[Parts | Listed] = []
        with suppress(FileNotFoundError, NotADirectoryError), self._folder(parts) as folder, os.scandir(folder) as seen:
            for entry in seen:
                key = "/".join((*parts, entry.name))
                if not key.startswith(prefix) or not entry.name.isprintable() or key == _INCOMING:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    found.append((*parts, entry.name))
                elif entry.is_file(follow_symlinks=False):
                    with suppress(FileNotFoundError):
                        found.append(_listed(key, entry.stat(follow_symlinks=False)))
        return found

    def _delete(self, parts: Parts) -> None:
        with suppress(FileNotFoundError, NotADirectoryError, IsADirectoryError), self._folder(parts[:-1]) as folder:
            os.unlink(parts[-1], dir_fd=folder)
        with suppress(OSError):  # stops at the first folder that is not empty
            for depth in range(len(parts) - 1, 0, -1):
                with self._folder(parts[: depth - 1]) as folder:
                    os.rmdir(parts[depth - 1], dir_fd=folder)

    def _sweep(self) -> None:
        oldest = time.time() - _ABANDONED.total_seconds()
        folder = self._open_incoming()
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    with suppress(FileNotFoundError):
                        if entry.stat(follow_symlinks=False).st_mtime < oldest:
                            os.unlink(entry.name, dir_fd=folder)
        finally:
            os.close(folder)


def _parts(key: str) -> Parts:
    parts = check_key(key)
    if parts[0] == _INCOMING:
        raise InvalidValue(f"{key[:200]!a} is not an object key: {_INCOMING} is for what is being written")
    return parts


@contextmanager
def _nothing_there(key: str) -> Generator[None]:
    try:
        yield
    except local.NotRegular as error:
        raise NotFound(f"there is no object {key}") from error
    except OSError as error:
        if error.errno in _NOTHING_THERE:
            raise NotFound(f"there is no object {key}") from error
        raise


def _listed(key: str, status: os.stat_result) -> Listed:
    return Listed(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))
