"""Who is there: streams, by the topics that they watch, and requests that wait until something changes."""

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from accsd.errors import TooManyWaiting
from accsd.gateway.messages import Message, Topic
from accsd.gateway.pace import HubPace
from accsd.gateway.subscriptions import Subscription
from accsd.metrics import Metrics


@dataclass(slots=True)
class _Watched:
    """A topic that somebody watches, or has watched a moment ago. `since`: complete in the ring from here on."""

    since: int
    by: set[Subscription]
    left_at: float = 0.0


class Audience:
    def __init__(self, pace: HubPace, metrics: Metrics) -> None:
        self._pace = pace
        self._metrics = metrics
        self._streams: set[Subscription] = set()
        self._topics: dict[str, _Watched] = {}
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        self._waiting: int = 0

    @property
    def streams(self) -> tuple[Subscription, ...]:
        return tuple(self._streams)

    @property
    def waiting(self) -> int:
        return self._waiting

    @property
    def topics(self) -> Mapping[str, object]:
        """What streams watch, or have watched a moment ago."""
        return self._topics

    @property
    def wanted(self) -> frozenset[str]:
        return frozenset(self._topics) | frozenset(self._waiters)

    @property
    def is_there(self) -> bool:
        """Whether somebody looks now."""
        return bool(self._streams or self._waiting)

    @property
    def lingers(self) -> bool:
        """Whether somebody looks, or has looked a moment ago and may come back."""
        return bool(self._topics or self._waiting)

    def join(self, stream: Subscription, since: int) -> None:
        """`since`: what comes after this event is told to the stream."""
        self._streams.add(stream)
        for topic in stream.topics:
            self._topics.setdefault(topic, _Watched(since, set())).by.add(stream)
        self._metrics.stream_clients(len(self._streams))

    def leave(self, stream: Subscription, now: float) -> None:
        self._streams.discard(stream)
        for topic in stream.topics:
            watched = self._topics[topic]
            watched.by.discard(stream)
            watched.left_at = now
        self._metrics.stream_clients(len(self._streams))

    def forget(self, now: float) -> list[str]:
        """Forgets topics that nobody has watched for a while, and says which."""
        left = [t for t, w in self._topics.items() if not w.by and now - w.left_at >= self._pace.linger]
        for topic in left:
            del self._topics[topic]
        return left

    def begin_again(self, since: int) -> None:
        """Nothing before this event is remembered."""
        for watched in self._topics.values():
            watched.since = since

    def has_watched(self, topics: Iterable[str], since: int) -> bool:
        """Whether all that came after this event was made for these topics."""
        return all(self._topics[topic].since <= since for topic in topics)

    def offer(self, message: Message, topics: Iterable[str]) -> Iterator[Subscription]:
        """To those who watch one of the topics. Yields those who do not keep up."""
        to: set[Subscription] = set()
        for topic in topics:
            if (watched := self._topics.get(topic)) is not None:
                to |= watched.by
        return self._offer_to(to, message)

    def offer_to_all(self, message: Message) -> Iterator[Subscription]:
        return self._offer_to(self.streams, message)

    def _offer_to(self, streams: Iterable[Subscription], message: Message) -> Iterator[Subscription]:
        n = 0
        for stream in streams:
            n += 1
            if not stream.offer(message):
                stream.lagged += 1
                self._metrics.stream_lagged()
                yield stream
        self._metrics.stream_messages(n)

    # Those who wait

    async def wait(self, topic: Topic, *, within: float) -> bool:
        """Waits until something of a topic is released; False: nothing was, within so many seconds."""
        news = asyncio.Event()
        self._waiters[topic].add(news)
        self._waiting += 1
        try:
            async with asyncio.timeout(within):
                await news.wait()
        except TimeoutError:
            return False
        finally:
            self._waiting -= 1
            self._waiters[topic].discard(news)
            if not self._waiters[topic]:
                del self._waiters[topic]
        return True

    def require_room(self) -> None:
        if self._waiting >= self._pace.waiters:
            raise TooManyWaiting(
                f"{self._waiting} requests wait already", hint="ask again in a moment, or follow a stream"
            )

    def release(self, topics: Iterable[str]) -> None:
        for topic in topics:
            for news in self._waiters.get(topic, ()):
                news.set()

    def release_all(self) -> None:
        self.release(tuple(self._waiters))
