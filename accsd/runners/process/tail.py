"""Reads two growing files from a cursor on, and hands their bytes to a caller that may be slow."""

import asyncio
import os
import stat
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final, Self

from accsd.runners.base import Cursor, Output, Stream, TakeOutput, pieces

CHUNK_BYTES: Final = 64 * 1024
_SHORTEST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 0.25


class Tail:
    """Opens each file when it is there. Memory is bounded: one chunk at a time, and `take` is awaited before the
    next."""

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
