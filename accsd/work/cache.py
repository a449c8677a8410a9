"""The files of workflows that this machine has: fetched once, kept by checksum until room is needed.

    files/{sha256}      0400, and modified at a moment that no writer leaves behind: the seal

A task never gets at these: it is given copies (work/files.py). A link would be free, but a task may write to what lies
in its folder, and containers often run as root: one task would change the file of all others. Where the file system
can share blocks (Btrfs, XFS), the copy takes neither time nor disk.

A file is read and compared with its checksum when it comes, and when this process uses it for the first time: a crash
may have left anything. After that size and seal are looked at, which any writer changes. The nodes of one machine
share the folder, without a lock: files appear complete, under their name, and who has one open does not care whether
it is removed.
"""

import os
import secrets
import stat
import time
from collections import Counter
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from accsd.log import get_logger
from accsd.storage import ChecksumMismatch, ObjectStore
from accsd.storage.local import CHUNK, Running, Source

_log = get_logger(component="files")
_SEAL: Final = 1_000_000_000 * 10**9  # of the year 2001, in nanoseconds
_ABANDONED: Final = timedelta(days=2)  # what an earlier process has begun to fetch
_TRIES: Final = 2  # the first may have met a bad line
_MODE: Final = 0o400


def files_folder(attempts: Path) -> Path:
    """Beside the folders of the nodes, by the folder of one's attempts."""
    return attempts.parent.parent / "files"


class FileCache:
    """`limit` is how many bytes are kept, `min_free` how much of the disk is left to others. A reload changes both."""

    def __init__(self, folder: Path, *, limit: int, min_free: int = 0) -> None:
        self.limit = limit
        self.min_free = min_free
        self._folder = folder
        self._users: Counter[str] = Counter()
        self._locks: dict[str, anyio.Lock] = {}
        self._read: set[str] = set()  # what this process has compared with its checksum

    @contextmanager
    def using(self, digests: Iterable[str]) -> Generator[None]:
        """Within the block these files are not removed to make room for others."""
        held = list(digests)
        self._users.update(held)
        try:
            yield
        finally:
            self._users.subtract(held)
            for digest in held:
                if not self._users[digest]:
                    del self._users[digest]
                    self._locks.pop(digest, None)

    async def opened(self, store: ObjectStore, key: str, digest: str, size: int) -> int:
        """A descriptor of the file, fetched if it is not here; the caller closes it. Attempts that need the same file
        at the same time wait for one download. Called within `using`. Errors are those of the store."""
        async with self._locks.setdefault(digest, anyio.Lock()):
            found = await anyio.to_thread.run_sync(self._open, digest, size)
            if found is not None and await self._is_whole(found, digest):
                return found
            await anyio.to_thread.run_sync(self.make_room, size)
            return await self._fetched(store, key, digest, size)

    def make_room(self, wanted: int = 0) -> bool:
        """Removes what was not used for longest until `wanted` bytes fit, here and on the disk: there twice, since a
        task gets a copy. Returns whether something was removed. Slow: not for the event loop, but where it must be."""
        kept = sorted(self._kept())
        sizes, free = sum(size for _, size, _ in kept), self._free()
        has_removed = False
        for _, size, digest in kept:
            if sizes + wanted <= self.limit and free - 2 * wanted >= self.min_free:
                break
            if digest not in self._users:
                with suppress(OSError):
                    os.unlink(self._folder / digest)
                    sizes, free, has_removed = sizes - size, free + size, True
                    _log.info("file_removed", file=digest, bytes=size)
        return has_removed

    def _kept(self) -> Generator[tuple[float, int, str]]:
        """When it was used last, its size and its name."""
        with suppress(FileNotFoundError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    found = entry.stat(follow_symlinks=False)
                    if not entry.name.startswith("."):
                        yield found.st_atime, found.st_size, entry.name
                    elif time.time() - found.st_mtime > _ABANDONED.total_seconds():
                        os.unlink(entry.path)

    def _free(self) -> int:
        try:
            disk = os.statvfs(self._folder)
        except OSError:
            return self.min_free
        return disk.f_bavail * disk.f_frsize

    def _open(self, digest: str, size: int) -> int | None:
        """The file, if it is here and was not written to."""
        try:
            found = os.open(self._folder / digest, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        facts = os.fstat(found)
        if not stat.S_ISREG(facts.st_mode) or (facts.st_size, facts.st_mtime_ns) != (size, _SEAL):
            os.close(found)
            _log.warning("file_damaged", file=digest, found="it was written to since it was fetched")
            return None
        with suppress(PermissionError):  # another user's process has fetched it
            os.utime(found, ns=(time.time_ns(), _SEAL))
        return found

    async def _is_whole(self, found: int, digest: str) -> bool:
        """Closes the descriptor if it is not."""
        if digest in self._read:
            return True
        running = Running(digest, None)
        try:
            async with Source.of(found, running) as reading:
                while await reading.read(CHUNK):
                    pass
            running.verify(f"sha256:{digest}")
        except ChecksumMismatch:
            os.close(found)
            _log.warning("file_damaged", file=digest, found="it has another checksum")
            return False
        except BaseException:
            os.close(found)
            raise
        self._read.add(digest)
        return True

    async def _fetched(self, store: ObjectStore, key: str, digest: str, size: int) -> int:
        await anyio.to_thread.run_sync(self._make)
        arriving = self._folder / f".{secrets.token_hex(8)}.new"
        try:
            for left in reversed(range(_TRIES)):
                try:
                    await store.get_to(key, arriving, checksum=f"sha256:{digest}", limit=size, mode=_MODE)
                    break
                except ChecksumMismatch:
                    if not left:
                        raise
            found = await anyio.to_thread.run_sync(self._settle, arriving, digest)
        finally:
            arriving.unlink(missing_ok=True)  # it has its name, or it is not wanted
        self._read.add(digest)
        _log.info("file_fetched", file=digest, bytes=size)
        return found

    def _make(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _settle(self, arriving: Path, digest: str) -> int:
        """Gives a file its name, after its bytes are on the disk: a power cut must not leave one that looks whole."""
        found = os.open(arriving, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            os.fsync(found)
            os.utime(found, ns=(time.time_ns(), _SEAL))
            os.rename(arriving, self._folder / digest)
        except OSError:
            os.close(found)
            raise
        return found
