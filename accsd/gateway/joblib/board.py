"""What providers were asked and have answered: kept in memory for a while, and bounded. The sockets that a request goes
to are in this process, too."""

import asyncio
import hashlib
import json
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from accsd.settings.doors import JoblibSettings

Key = tuple[str, str]  # the full name of a provider, and the hash of what was asked
_MOST_ASKED: Final = 100_000


@dataclass(frozen=True, slots=True)
class _Kept:
    body: bytes
    until: float


def canonical(params: Mapping[str, str]) -> str:
    return json.dumps(dict(params), sort_keys=True, separators=(",", ":"))


def hash_of(params: Mapping[str, str]) -> str:
    """JB-46: the worker sends it back with the result."""
    return hashlib.sha256(canonical(params).encode()).hexdigest()


class Board:
    def __init__(self, settings: JoblibSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._results: OrderedDict[Key, _Kept] = OrderedDict()
        self._bytes: int = 0
        self._asked: OrderedDict[Key, float] = OrderedDict()  # until when
        self._waiting: defaultdict[Key, set[asyncio.Event]] = defaultdict(set)

    def result(self, key: Key) -> bytes | None:
        kept = self._results.get(key)
        if kept is not None and kept.until <= self._clock():
            self._drop(key)
            return None
        return None if kept is None else kept.body

    def ask(self, key: Key) -> bool:
        """Whether the provider is to be asked: not if the same was asked a moment ago and is not answered."""
        now = self._clock()
        if self._asked.get(key, 0.0) > now:
            return False
        self._asked[key] = now + self._settings.provider_inflight_ttl_seconds
        self._asked.move_to_end(key)
        while self._asked and (len(self._asked) > _MOST_ASKED or next(iter(self._asked.values())) <= now):
            self._asked.popitem(last=False)
        return True

    def put(self, key: Key, body: bytes) -> None:
        self._drop(key)
        self._asked.pop(key, None)
        self._results[key] = _Kept(body, self._clock() + self._settings.provider_result_ttl_seconds)
        self._bytes += len(body)
        while self._bytes > self._settings.provider_memory and len(self._results) > 1:
            self._drop(next(iter(self._results)))
        for news in self._waiting.get(key, ()):
            news.set()

    async def wait(self, key: Key, within: float) -> bytes | None:
        """The result, as soon as it is there."""
        if (there := self.result(key)) is not None or within <= 0:
            return there
        news = asyncio.Event()
        self._waiting[key].add(news)
        try:
            async with asyncio.timeout(within):
                await news.wait()
        except TimeoutError:
            return None
        finally:
            self._waiting[key].discard(news)
            if not self._waiting[key]:
                del self._waiting[key]
        return self.result(key)

    def release(self) -> None:
        """Nobody waits any longer."""
        for waiting in self._waiting.values():
            for news in waiting:
                news.set()

    def _drop(self, key: Key) -> None:
        kept = self._results.pop(key, None)
        if kept is not None:
            self._bytes -= len(kept.body)
