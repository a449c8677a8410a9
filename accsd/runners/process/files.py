"""The files that the process runner and its shim keep in an attempt's folder: who runs the attempt, how it ended, what
it wrote, which is read while it grows.

A task may do anything to these files, and so may a power cut: a file that cannot be read counts as absent.
"""

import asyncio
import os
import stat
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final, Self

from accsd.runners.base import Cursor, Output, Stream, TakeOutput, pieces
from accsd.runners.process import shim
from accsd.runners.process.processes import Identity

_STOP_FILE: Final = "stop"
_LARGEST_RECORD: Final = 4096
CHUNK_BYTES: Final = 64 * 1024
_SHORTEST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.25


@dataclass(frozen=True, slots=True)
class ExitRecord:
    """What the shim wrote down at the end. One of `code`, `signal` and `errno` (the command could not be executed) is
    there."""

    code: int | None
    signal: int | None
    errno: int | None
    limit: str | None  # oom or pids_limit: why the shim killed it
    seen: int | None  # how much of it there was
    max_rss_bytes: int | None
    cpu: timedelta | None
    nobody_left: bool


@dataclass(frozen=True, slots=True)
class AttemptFiles:
    folder: Path

    @property
    def stdout(self) -> Path:
        return self.folder / shim.STDOUT_FILE

    @property
    def stderr(self) -> Path:
        return self.folder / shim.STDERR_FILE

    @property
    def log(self) -> Path:
        return self.folder / shim.LOG_FILE

    @property
    def is_claimed(self) -> bool:
        """Whether a shim has the attempt or has had it, or the attempt was buried."""
        return os.path.lexists(self.folder / shim.STATE_FILE)

    def shim(self) -> Identity | None:
        return _identity(self._read(shim.STATE_FILE))

    def command(self) -> Identity | None:
        return _identity(self._read(shim.COMMAND_FILE))

    def service(self) -> str | None:
        """The service of the attempt; None where no shim has it."""
        state = self._read(shim.STATE_FILE)
        return state.get("service") if _identity(state) else None

    def exit(self) -> ExitRecord | None:
        found = self._read(shim.EXIT_FILE)
        numbers = {name: _number(found.get(name)) for name in ("code", "signal", "errno", "seen", "rss", "cpu_us")}
        if numbers["code"] is numbers["signal"] is numbers["errno"] is None:
            return None
        cpu = numbers["cpu_us"]
        return ExitRecord(
            code=numbers["code"],
            signal=numbers["signal"],
            errno=numbers["errno"],
            limit=found.get("limit"),
            seen=numbers["seen"],
            max_rss_bytes=numbers["rss"],
            cpu=None if cpu is None else timedelta(microseconds=cpu),
            nobody_left=found.get("left") == "0",
        )

    @property
    def stop_was_asked(self) -> bool:
        return (self.folder / _STOP_FILE).exists()

    def note_stop(self) -> None:
        """Tells a successor of this daemon that the coming signal is ours, and not somebody else's."""
        with suppress(OSError):  # a full disk is no reason not to stop it
            os.close(os.open(self.folder / _STOP_FILE, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))

    def bury(self) -> None:
        """Makes sure that no shim can take the attempt any more, not even one that is just starting."""
        with suppress(OSError):  # it is claimed already, or the folder is gone: no shim can have that either
            os.close(os.open(self.folder / shim.STATE_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))

    def clear(self) -> None:
        """Removes all files but the state file, which is emptied: an attempt that was removed is not started again."""
        with suppress(OSError):
            os.close(os.open(self.folder / shim.STATE_FILE, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW))
        names = (shim.COMMAND_FILE, shim.EXIT_FILE, shim.STDOUT_FILE, shim.STDERR_FILE, shim.LOG_FILE, _STOP_FILE)
        for name in (*names, f"{shim.EXIT_FILE}.draft"):
            with suppress(OSError):
                (self.folder / name).unlink()

    def last_words(self) -> str:
        try:
            return self.log.read_text(errors="replace").strip()[-2000:]
        except OSError:
            return ""

    def _read(self, name: str) -> dict[str, str]:
        try:
            with open(os.open(self.folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                text = file.read(_LARGEST_RECORD).decode(errors="replace")
        except OSError:
            return {}
        return {key: value for key, _, value in (line.partition(" ") for line in text.splitlines())}


def _identity(found: dict[str, str]) -> Identity | None:
    pid, started, realm = _number(found.get("pid")), _number(found.get("started")), found.get("realm")
    # 0 and 1 are everybody and init.
    if pid is None or pid <= 1 or started is None or not realm:
        return None
    return Identity(pid, started, realm)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


class Tail:
    """Reads stdout and stderr while they grow, from a cursor on. Each file is opened when it is there. Memory is
    bounded: one chunk at a time, and `take` is awaited before the next."""

    def __init__(self, paths: dict[Stream, Path], since: Cursor) -> None:
        self._paths = paths
        self._offsets = {stream: max(0, int(since.get(stream.value, 0))) for stream in paths}
        self._files: dict[Stream, int] = {}
        self._closing = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    async def follow(self, take: TakeOutput, ended: asyncio.Event) -> None:
        """Reads until the end is known. What was written until then and is not read yet is left to drain()."""
        pause = _SHORTEST_PAUSE
        while not ended.is_set():
            longest = await self._round(take)
            if longest == CHUNK_BYTES:
                continue  # there is more
            pause = _SHORTEST_PAUSE if longest else min(_LONGEST_PAUSE, pause * 1.5)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await ended.wait()

    async def drain(self, take: TakeOutput) -> None:
        """Reads all that is there now, and not what a process may still add."""
        sizes = {stream: self._size(stream) for stream in self._paths}
        while await self._round(take, sizes):
            pass

    async def _round(self, take: TakeOutput, sizes: dict[Stream, int] | None = None) -> int:
        """Reads a chunk of each file in turn, so that a loud stream does not silence the other. Returns the length of
        the longest."""
        longest = 0
        await asyncio.sleep(0)  # others have work too, and `take` may never wait
        for stream in self._paths:
            left = CHUNK_BYTES if sizes is None else min(CHUNK_BYTES, sizes[stream] - self._offsets[stream])
            if left > 0 and (data := self._read(stream, left)):
                waiting = self._waiting()
                for piece in pieces(data):
                    self._offsets[stream] += len(piece)
                    waiting = max(0, waiting - len(piece))
                    await take(Output(stream, piece, self._cursor(), waiting))
                longest = max(longest, len(data))
        return longest

    def _cursor(self) -> Cursor:
        return {stream.value: offset for stream, offset in self._offsets.items()}

    def _waiting(self) -> int:
        return sum(max(0, self._size(stream) - offset) for stream, offset in self._offsets.items())

    def _read(self, stream: Stream, length: int) -> bytes:
        file = self._open(stream)
        return b"" if file is None else os.pread(file, length, self._offsets[stream])

    def _size(self, stream: Stream) -> int:
        file = self._open(stream)
        return 0 if file is None else os.fstat(file).st_size

    def _open(self, stream: Stream) -> int | None:
        if stream not in self._files:
            file = _open_regular(self._paths[stream])
            if file is None:
                return None
            self._closing.callback(os.close, file)
            self._files[stream] = file
        return self._files[stream]


def _open_regular(path: Path) -> int | None:
    try:
        # Without waiting: a task may have put a pipe in the file's place.
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    return None
