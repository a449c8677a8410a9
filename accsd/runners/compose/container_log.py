"""An attempt's output on its way from the docker CLI to the caller: counted, decoded, and read on from where the last
reading stopped, whoever made that one.

The cursor counts the bytes that were handed on, per stream; a reading of a container's log begins at the log's
beginning and skips them. Timestamps would do for a clock that never goes back. The log is kept until it is larger than
the output limit.

The engine cuts a line into parts of 16 KiB and writes a timestamp before every part, also in the middle of a line; all
parts of a line have the same one. Measured on engine 20.10, both drivers with the same output: `json-file` keeps every
newline, but writes U+FFFD for each half of a character at a cut and for every byte that is not UTF-8; `local` keeps all
bytes, but drops the newline after the last part of a long line. So containers get `local`, and with the timestamps the
lost newline can be put back.
"""

import asyncio
import re
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import anyio

from accsd import proc
from accsd.errors import Bug, DockerUnavailable
from accsd.runners.base import Cursor, Output, Stream, TakeOutput, pieces
from accsd.runners.compose.docker import Docker

PART: Final = 16 * 1024  # the longest piece of a line that the engine writes under one timestamp
_STAMP: Final = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}(?:Z|[+-]\d\d:\d\d) ")
_LONGEST_STAMP: Final = 36
_CHUNK: Final = 65536
_SILENT: Final = timedelta(seconds=60)  # a log that is read to its end never pauses so long
_LOOK_EVERY: Final = timedelta(seconds=10)
_END_WITHIN: Final = timedelta(seconds=5)


class CountedOutput:
    """Hands output to the caller and counts, per stream, how much of it the caller has."""

    def __init__(self, take: TakeOutput, since: Cursor) -> None:
        self._take: Final = take
        self._one_at_a_time: Final = asyncio.Lock()
        self._count: Final = {stream: int(since.get(stream, 0)) for stream in Stream}

    def cursor(self) -> Cursor:
        return {str(stream): count for stream, count in self._count.items()}

    async def hand_on(self, stream: Stream, data: bytes) -> None:
        async with self._one_at_a_time:
            for piece in pieces(data):
                self._count[stream] += len(piece)
                await self._take(Output(stream, piece, self.cursor()))

    def count(self, stream: Stream) -> int:
        return self._count[stream]


async def together(*coroutines: Awaitable[None]) -> None:
    """Runs all coroutines; the first failure ends the others and is raised as it is, not in a group.

    A group of anyio's, like the scopes around it: asyncio's own leaves a cancellation counted on its task when a child
    fails while it waits for the others (up to Python 3.12), and the next scope to be left takes that for a real one.
    """
    failures: list[Exception] = []
    under_way = len(coroutines)

    async def run(each: Awaitable[None]) -> None:
        nonlocal under_way
        try:
            await each
            under_way -= 1
        except Exception as error:  # noqa: BLE001 - raised again below
            failures.append(error)
            group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for each in coroutines:
            group.start_soon(run, each)
    if failures:
        raise failures[0]
    if under_way:  # the group takes it for an end like any other
        raise Bug("one of them was cancelled, and nobody had asked for it")


class Pipes:
    """Both pipes of a child, pumped until they end. They are silent when neither brings anything and nothing that they
    brought is still being handed on: one stream may say nothing for as long as the other is read."""

    def __init__(self, child: proc.Streaming, hand_on: Callable[[Stream, bytes], Awaitable[None]]) -> None:
        self._pipes: Final = {Stream.STDOUT: child.stdout, Stream.STDERR: child.stderr}
        self._hand_on: Final = hand_on
        self._being_handed_on: int = 0
        self._heard_at: float = _now()
        self.ended: Final = asyncio.Event()

    async def pump(self) -> None:
        await together(*(self._pump(stream, pipe) for stream, pipe in self._pipes.items()))
        self.ended.set()

    async def _pump(self, stream: Stream, pipe: asyncio.StreamReader) -> None:
        while data := await pipe.read(_CHUNK):
            self._being_handed_on += 1
            try:
                await self._hand_on(stream, data)
            finally:
                self._being_handed_on -= 1
                self._heard_at = _now()

    async def end_or_silence(self, limit: timedelta) -> bool:
        """Returns True when both pipes have ended, False when they have been silent for so long."""
        while not self.ended.is_set():
            left = limit.total_seconds() - (0 if self._being_handed_on else _now() - self._heard_at)
            if left <= 0:
                return False
            with anyio.move_on_after(left):
                await self.ended.wait()
        return True


async def read_log(docker: Docker, name: str, output: CountedOutput) -> None:
    """Reads the log as it is now, to its last byte. Raises DockerUnavailable where it cannot be read to the end."""
    readers = {stream: _StreamReading(stream, output) for stream in Stream}
    async with proc.streaming(docker.argv("logs", "--timestamps", name), env=docker.environ) as child:
        pipes = Pipes(child, lambda stream, data: readers[stream].feed(data))
        await together(pipes.pump(), _halt(pipes, name))
        if code := await child.wait():
            raise DockerUnavailable(f"the log of {name} could not be read: `docker logs` ended with {code}")
    for reader in readers.values():
        await reader.end()


async def _halt(pipes: Pipes, name: str) -> None:
    if not await pipes.end_or_silence(_SILENT):
        raise DockerUnavailable(f"the log of {name} came to a halt")


async def follow_log(
    docker: Docker, name: str, output: CountedOutput, has_ended: Callable[[], Awaitable[bool]]
) -> None:
    """Hands on what comes until the engine ends the stream, which says nothing about the container; or until the
    container has ended and the stream, as happens with some engines, has not."""
    readers = {stream: _StreamReading(stream, output) for stream in Stream}
    async with proc.streaming(docker.argv("logs", "--timestamps", "--follow", name), env=docker.environ) as child:
        pipes = Pipes(child, lambda stream, data: readers[stream].feed(data))
        await together(pipes.pump(), _cut_when_ended(child, pipes, has_ended))


async def _cut_when_ended(child: proc.Streaming, pipes: Pipes, has_ended: Callable[[], Awaitable[bool]]) -> None:
    """Cuts the stream of a container that has ended, once the stream brings nothing more: what a flood has left to read
    is read first."""
    while not pipes.ended.is_set() and not await has_ended():
        with anyio.move_on_after(_LOOK_EVERY.total_seconds()):
            await pipes.ended.wait()
    if not await pipes.end_or_silence(_END_WITHIN) and child.process.returncode is None:
        child.process.kill()


class _StreamReading:
    """One stream of one reading of a log: skips what was handed on before."""

    def __init__(self, stream: Stream, output: CountedOutput) -> None:
        self._stream: Final = stream
        self._output: Final = output
        self._decoder: Final = LogDecoder()
        self._to_skip: int = output.count(stream)

    async def feed(self, data: bytes) -> None:
        await self._hand_on(self._decoder.feed(data))

    async def end(self) -> None:
        await self._hand_on(self._decoder.end())

    async def _hand_on(self, content: bytes) -> None:
        fresh = content[self._to_skip :]
        self._to_skip -= len(content) - len(fresh)
        if fresh:
            await self._output.hand_on(self._stream, fresh)


class LogDecoder:
    """Takes `docker logs --timestamps` of one stream in any pieces; gives back what the task wrote."""

    def __init__(self) -> None:
        self._held: bytes = b""
        self._at: int = 0  # what is held before this has been given back
        self._expects_stamp: bool = True
        self._stamp: bytes = b""
        self._room: int = PART  # left in the part that is being read
        self._part_was_full: bool = False
        self._is_later_part: bool = False  # of a long line

    def feed(self, data: bytes) -> bytes:
        self._held += data
        content: list[bytes] = []
        while (piece := self._next()) is not None:
            content.append(piece)
        self._held, self._at = self._held[self._at :], 0
        return b"".join(content)

    def end(self) -> bytes:
        """Returns the rest, once nothing more can come; a long line that has lost its newline gets it back."""
        rest, self._held = self._held, b""
        return rest + b"\n" if self._is_later_part and not self._expects_stamp else rest

    def _next(self) -> bytes | None:
        """The next piece of content, perhaps empty; None until more is fed."""
        if self._expects_stamp:
            return self._read_stamp()
        return self._read_later_part() if self._is_later_part else self._read_part()

    def _read_stamp(self) -> bytes | None:
        found = _STAMP.match(self._held, self._at)
        if found is None and len(self._held) - self._at < _LONGEST_STAMP:
            return None
        # Where none is, this engine cuts otherwise than known: better a stamp too many than a byte lost.
        stamp = found.group() if found else b""
        self._is_later_part = self._part_was_full and stamp == self._stamp
        self._stamp, self._room, self._expects_stamp = stamp, PART, False
        self._at += len(stamp)
        return b""

    def _read_part(self) -> bytes | None:
        """Up to the newline, or until the part is full."""
        newline = self._held.find(b"\n", self._at, self._at + self._room)
        if newline >= 0:
            return self._finish_part(newline + 1)
        if len(self._held) - self._at >= self._room:
            return self._finish_part(self._at + self._room, full=True)
        return self._take(len(self._held))

    def _read_later_part(self) -> bytes | None:
        """Up to a newline where this engine writes one, to the stamp of the next line, or until the part is full."""
        full = self._at + self._room
        newline = self._held.find(b"\n", self._at, full)
        stamp = self._next_lines_stamp(newline if newline >= 0 else full)
        if stamp is not None:
            return self._finish_part(stamp) + b"\n"
        if newline >= 0:
            return self._finish_part(newline + 1)
        if (same := _STAMP.match(self._held, full)) and same.group() == self._stamp:
            return self._finish_part(full, full=True)
        # The last bytes may be the beginning of a stamp.
        return self._take(min(full, len(self._held) - _LONGEST_STAMP))

    def _next_lines_stamp(self, before: int) -> int | None:
        """A stamp that the task itself wrote into its line is older than the line; the engine's next one is not."""
        for found in _STAMP.finditer(self._held, self._at, before + _LONGEST_STAMP):
            if found.start() < before and found.group() >= self._stamp:
                return found.start()
        return None

    def _finish_part(self, end: int, *, full: bool = False) -> bytes:
        piece, self._at = self._held[self._at : end], end
        self._expects_stamp, self._part_was_full = True, full
        return piece

    def _take(self, end: int) -> bytes | None:
        """What is sure to belong to the part."""
        if end <= self._at:
            return None
        piece, self._room = self._held[self._at : end], self._room - (end - self._at)
        self._at = end
        if self._room == 0:  # full, and no stamp behind it: cut otherwise than known
            self._room = PART
        return piece


def _now() -> float:
    return asyncio.get_running_loop().time()
