"""Reading a container's log on from where the last reading stopped, whoever made that one.

The cursor counts the bytes that were handed on, per stream, and a reading begins at the log's beginning and skips them:
timestamps would do for a clock that never goes back. The log is kept until it is larger than the output limit.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Final

from accsd import proc
from accsd.errors import DockerUnavailable
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


async def pump(
    pipe: asyncio.StreamReader, hand_on: Callable[[bytes], Awaitable[None]], silent: timedelta | None = None
) -> None:
    """All of a pipe, piece by piece; TimeoutError where it is silent for too long."""
    while True:
        async with asyncio.timeout(silent.total_seconds() if silent else None):
            data = await pipe.read(_CHUNK)
        if not data:
            return
        await hand_on(data)


async def together(*coroutines: Awaitable[None]) -> None:
    """All of them; the first failure ends the others and is raised as it is, not in a group."""

    async def run(each: Awaitable[None]) -> None:
        await each

    try:
        async with asyncio.TaskGroup() as group:
            for each in coroutines:
                group.create_task(run(each))
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None


async def read_log(docker: Docker, name: str, handed: Handed) -> None:
    """The log as it is now, to its last byte. Raises DockerUnavailable where it cannot be read to the end."""
    readers = {stream: _Reader(stream, handed) for stream in Stream}
    async with proc.streaming(docker.argv("logs", "--timestamps", name), env=docker.environ) as child:
        try:
            await together(
                pump(child.stdout, readers[Stream.STDOUT].feed, _SILENT),
                pump(child.stderr, readers[Stream.STDERR].feed, _SILENT),
            )
        except TimeoutError as error:
            raise DockerUnavailable(f"the log of {name} came to a halt") from error
        if code := await child.wait():
            raise DockerUnavailable(f"the log of {name} could not be read: `docker logs` ended with {code}")
    for reader in readers.values():
        await reader.end()


async def follow_log(docker: Docker, name: str, handed: Handed, has_ended: Callable[[], Awaitable[bool]]) -> None:
    """Hands on what comes until the engine ends the stream, which says nothing about the container; or until the
    container has ended and the stream, as happens with some engines, has not."""
    readers = {stream: _Reader(stream, handed) for stream in Stream}
    drained = asyncio.Event()

    async def drain(child: proc.Streaming) -> None:
        await together(pump(child.stdout, readers[Stream.STDOUT].feed), pump(child.stderr, readers[Stream.STDERR].feed))
        drained.set()

    async with proc.streaming(docker.argv("logs", "--timestamps", "--follow", name), env=docker.environ) as child:
        await together(drain(child), _cut_when_ended(child, has_ended, drained))


async def _cut_when_ended(
    child: proc.Streaming, has_ended: Callable[[], Awaitable[bool]], drained: asyncio.Event
) -> None:
    while not drained.is_set() and not await has_ended():
        await _set_within(drained, _LOOK_EVERY)
    if not await _set_within(drained, _END_WITHIN) and child.process.returncode is None:
        child.process.kill()


async def _set_within(event: asyncio.Event, limit: timedelta) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(limit.total_seconds()):
            await event.wait()
    return event.is_set()


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
