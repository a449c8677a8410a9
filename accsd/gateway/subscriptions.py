"""Those who listen to the hub, and what it still remembers for those who come back."""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from accsd.gateway.messages import Message, Topic

MOST_QUEUED: Final = 256
MOST_QUEUED_BYTES: Final = 256 * 1024
_CHUNK_BYTES: Final = 64 * 1024  # of what is handed over at once: one write


class Subscription:
    """What one client has still to get: references to messages that all share. A client that does not keep up loses
    them all, and is told so, once for each topic."""

    def __init__(self, topics: Sequence[Topic]) -> None:
        self.topics: tuple[Topic, ...] = tuple(dict.fromkeys(topics))
        self.lagged: int = 0  # times that it did not keep up
        self._first: deque[Message] = deque()  # what it missed while it was away; told before the queue
        self._queue: deque[Message] = deque()
        self._bytes: int = 0
        self._news: asyncio.Event = asyncio.Event()
        self._is_ended: bool = False

    @property
    def is_ended(self) -> bool:
        """Nothing comes any more, but for what waits already."""
        return self._is_ended

    @property
    def waiting(self) -> int:
        return len(self._first) + len(self._queue)

    def begin_with(self, messages: Iterable[Message]) -> None:
        """These come before everything that was offered until now. They are not bounded by the queue."""
        self._first.extend(messages)
        self._news.set()

    def offer(self, message: Message) -> bool:
        """False: there is no room; the client lags."""
        if len(self._queue) >= MOST_QUEUED or self._bytes + len(message.sse) > max(MOST_QUEUED_BYTES, len(message.sse)):
            return False
        self._queue.append(message)
        self._bytes += len(message.sse)
        self._news.set()
        return True

    def start_over(self, resets: Iterable[Message]) -> None:
        """Drops what waits."""
        self._first.clear()
        self._queue.clear()
        self._queue.extend(resets)
        self._bytes = sum(len(message.sse) for message in self._queue)
        self._news.set()

    def end(self, last: Iterable[Message] = ()) -> None:
        """`last` come after what waits, whether or not there is room."""
        self._queue.extend(last)
        self._is_ended = True
        self._news.set()

    async def batch(self, *, within: float | None = None) -> list[Message]:
        """What waits, up to 64 KiB; empty: nothing came within so many seconds, or it is the end."""
        if not self.waiting and not self._is_ended:
            self._news.clear()
            try:
                async with asyncio.timeout(within):
                    await self._news.wait()
            except TimeoutError:
                return []
        return self._taken()

    def _taken(self) -> list[Message]:
        taken: list[Message] = []
        size = 0
        while self.waiting and size < _CHUNK_BYTES:
            if self._first:
                message = self._first.popleft()
            else:
                message = self._queue.popleft()
                self._bytes = max(0, self._bytes - len(message.sse))
            taken.append(message)
            size += len(message.sse)
        return taken

    async def __aiter__(self) -> AsyncIterator[Message]:
        while self.waiting or not self._is_ended:
            for message in await self.batch():
                yield message


class Ring:
    """The last messages, for those who come back. Complete for events above `floor`, as far as their topics were
    watched then."""

    def __init__(self, floor: int, *, most: int, most_bytes: int) -> None:
        self.floor = floor
        self._most = most
        self._most_bytes = most_bytes
        self._bytes: int = 0
        self._kept: deque[tuple[int, tuple[str, ...], Message]] = deque()

    def __len__(self) -> int:
        return len(self._kept)

    def keep(self, key: int, topics: tuple[str, ...], message: Message) -> None:
        self._kept.append((key, topics, message))
        self._bytes += len(message.sse)
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            oldest, _, dropped = self._kept.popleft()
            self._bytes -= len(dropped.sse)
            self.floor = max(self.floor, oldest)

    def forget(self, upto: int) -> None:
        """Something up to this event was not kept."""
        self._kept.clear()
        self._bytes = 0
        self.floor = max(self.floor, upto)

    def since(self, low: int, topics: Iterable[str]) -> list[Message]:
        wanted = frozenset(topics)
        return [message for key, of, message in self._kept if key > low and not wanted.isdisjoint(of)]


class Touches:
    """When something of a topic was last seen, for those who ask "has it changed since?". What it has forgotten counts
    as changed."""

    def __init__(self, floor: int, *, most: int) -> None:
        self._floor = floor
        self._most = most
        self._last: OrderedDict[str, int] = OrderedDict()

    def note(self, topic: str, key: int) -> None:
        self._last[topic] = max(key, self._last.pop(topic, 0))
        if len(self._last) > self._most:
            _, oldest = self._last.popitem(last=False)
            self._floor = max(self._floor, oldest)

    def is_newer(self, topic: str, low: int) -> bool:
        return low < self._floor or self._last.get(topic, 0) > low

    def forget(self, upto: int) -> None:
        self._last.clear()
        self._floor = max(self._floor, upto)
