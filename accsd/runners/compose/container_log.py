"""Reading a container's log on from where the last reading stopped, whoever made that one.

The cursor counts the bytes that were handed on, per stream, and a reading begins at the log's beginning and skips them:
timestamps would do for a clock that never goes back. The log is kept until it is larger than the output limit.
"""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

import anyio

from accsd import proc
from accsd.errors import Bug, DockerUnavailable
from accsd.runners.base import Cursor, Output, Stream, TakeOutput
from accsd.runners.compose.docker import Docker
from accsd.runners.compose.logs import Unstamped
from accsd.runners.pieces import pieces

_CHUNK: Final = 65536
_SILENT: Final = timedelta(seconds=60)  # a log that is read to its end never pauses so long
_LOOK_EVERY: Final = timedelta(seconds=10)
_END_WITHIN: Final = timedelta(seconds=5)


class Handed:
    """How much of each stream the caller has."""

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
    """All of them; the first failure ends the others and is raised as it is, not in a group.

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
    """Both pipes of a child, pumped until they end. Silence is when neither brings anything, and nobody is at work at
    what they brought: a stream may say nothing for as long as the other is read."""

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
        """Returns when they have ended (True), or have been silent for so long."""
        while not self.ended.is_set():
            left = limit.total_seconds() - (0 if self._being_handed_on else _now() - self._heard_at)
            if left <= 0:
                return False
            with anyio.move_on_after(left):
                await self.ended.wait()
        return True


async def read_log(docker: Docker, name: str, handed: Handed) -> None:
    """The log as it is now, to its last byte. Raises DockerUnavailable where it cannot be read to the end."""
    readers = {stream: _Reader(stream, handed) for stream in Stream}
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


async def follow_log(docker: Docker, name: str, handed: Handed, has_ended: Callable[[], Awaitable[bool]]) -> None:
    """Hands on what comes until the engine ends the stream, which says nothing about the container; or until the
    container has ended and the stream, as happens with some engines, has not."""
    readers = {stream: _Reader(stream, handed) for stream in Stream}
    async with proc.streaming(docker.argv("logs", "--timestamps", "--follow", name), env=docker.environ) as child:
        pipes = Pipes(child, lambda stream, data: readers[stream].feed(data))
        await together(pipes.pump(), _cut_when_ended(child, pipes, has_ended))


async def _cut_when_ended(child: proc.Streaming, pipes: Pipes, has_ended: Callable[[], Awaitable[bool]]) -> None:
    """What a flood has left to read is read: only a stream that brings nothing more is cut."""
    while not pipes.ended.is_set() and not await has_ended():
        with anyio.move_on_after(_LOOK_EVERY.total_seconds()):
            await pipes.ended.wait()
    if not await pipes.end_or_silence(_END_WITHIN) and child.process.returncode is None:
        child.process.kill()


def _now() -> float:
    return asyncio.get_running_loop().time()


class _Reader:
    """One stream of one reading: skips what was handed on before."""

    def __init__(self, stream: Stream, handed: Handed) -> None:
        self._stream: Final = stream
        self._handed: Final = handed
        self._unstamped: Final = Unstamped()
        self._to_skip: int = handed.count(stream)

    async def feed(self, data: bytes) -> None:
        await self._hand_on(self._unstamped.feed(data))

    async def end(self) -> None:
        await self._hand_on(self._unstamped.end())

    async def _hand_on(self, content: bytes) -> None:
        fresh = content[self._to_skip :]
        self._to_skip -= len(content) - len(fresh)
        if fresh:
            await self._handed.hand_on(self._stream, fresh)
