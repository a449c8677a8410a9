"""How often one caller may ask, and how much it may have under way at once; in this process alone."""

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from accsd.gateway.problems import HttpProblem
from accsd.settings import GatewayLimits

_MOST_CALLERS: Final = 10_000
_LESS_FOR_SHARES: Final = 5  # times than a reader: all who have the same link together
_BURST: Final = 2.0  # so many times the rate may be asked at once


@dataclass(slots=True)
class _Bucket:
    left: float
    filled_at: float


@contextmanager
def counting(under_way: Counter[str], caller: str) -> Generator[None]:
    """Counts for the caller for as long as it lasts."""
    under_way[caller] += 1
    try:
        yield
    finally:
        under_way[caller] -= 1
        if not under_way[caller]:
            del under_way[caller]


class CountedAnswer(Response):
    """An answer that counts for its caller for as long as it is being made and sent. Who asks first whether there is
    room awaits nothing between."""

    def __init__(self, inner: ASGIApp, under_way: Counter[str], caller: str) -> None:
        super().__init__()
        self._inner = inner
        self._under_way = under_way
        self._caller = caller

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with counting(self._under_way, self._caller):
            await self._inner(scope, receive, send)


class Buckets:
    def __init__(self, limits: GatewayLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self._rates: dict[str, float] = {
            "read": limits.reads_per_second,
            "share": limits.reads_per_second / _LESS_FOR_SHARES,
            "write": limits.writes_per_second,
            "login": limits.logins_per_minute / 60,
        }
        self._bursts: dict[str, float] = {
            "read": max(1.0, _BURST * limits.reads_per_second),
            "share": max(1.0, limits.reads_per_second / 2),  # a page asks for a dozen things at once
            "write": max(1.0, _BURST * limits.writes_per_second),
            "login": max(1.0, limits.logins_per_minute),
        }
        self._clock = clock
        self._buckets: OrderedDict[tuple[str, str], _Bucket] = OrderedDict()

    def take_hook(self, name: str, per_minute: int) -> None:
        """Counts a delivery of a webhook."""
        self._take("hook", name, per_minute / 60, max(1.0, per_minute / 10))

    def take(self, what: str, caller: str) -> None:
        """Counts a request, or raises `rate_limited` with the time at which one is allowed again."""
        self._take(what, caller, self._rates[what], self._bursts[what])

    def _take(self, what: str, caller: str, rate: float, burst: float) -> None:
        now = self._clock()
        bucket = self._buckets.pop((what, caller), None) or _Bucket(burst, now)
        bucket.left = min(burst, bucket.left + (now - bucket.filled_at) * rate)
        bucket.filled_at = now
        self._buckets[what, caller] = bucket
        if len(self._buckets) > _MOST_CALLERS:
            self._buckets.popitem(last=False)  # the one that has not asked for the longest time
        if bucket.left < 1:
            wait = (1 - bucket.left) / rate
            raise HttpProblem(
                "rate_limited",
                "too many logins from this address" if what == "login" else f"more than {rate:.3g} a second",
                hint="`gateway.limits` has the rates",
                headers={"Retry-After": str(max(1, round(wait + 0.5)))},
            )
        bucket.left -= 1
