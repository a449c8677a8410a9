"""Who has to come back later, and when: the rate of each caller, and how much the judges have before them."""

import asyncio
import math
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from accsd.db import Database
from accsd.db.submissions import Load, load_of
from accsd.gateway.judge.refusals import Refusal
from accsd.settings.doors import JudgeSettings

WINDOW_SEC: Final = 60
_MOST_CALLERS: Final = 10_000
_LOOKS_EVERY_SEC: Final = 0.25
_LONGEST_SEC: Final = 60


class Windows:
    """So many requests of a caller in each minute, counted in this process (OJ-13)."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._counts: OrderedDict[tuple[str, str], tuple[float, int]] = OrderedDict()

    def take(self, what: str, caller: str, most: int) -> None:
        """Counts a request, or refuses it until the caller's window ends."""
        now = self._clock()
        began, count = self._counts.pop((what, caller), (now, 0))
        if now - began >= WINDOW_SEC:
            began, count = now, 0
        self._counts[what, caller] = began, min(count + 1, most + 1)
        if len(self._counts) > _MOST_CALLERS:
            self._counts.popitem(last=False)
        if count >= most:
            raise Refusal(
                "RATE_LIMITED",
                f"more than {most} requests within a minute",
                retry_after=max(1, math.ceil(began + WINDOW_SEC - now)),
            )


class Room:
    """Whether one more submission fits (OJ-14). The queue is looked at a few times a second, once for all who ask. What
    this gateway has let in meanwhile is added, so that a burst does not slip through between two looks."""

    def __init__(self, db: Database, settings: JudgeSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._db = db
        self._settings = settings
        self._clock = clock
        self._seen: Load | None = None
        self._looked_at: float = float("-inf")
        self._looking: asyncio.Lock = asyncio.Lock()
        self._entering: int = 0  # on their way into the database
        self._entered: int = 0  # arrived there since the look began

    @asynccontextmanager
    async def place(self) -> AsyncGenerator[None]:
        """Holds the place of a submission until it is in the database; refuses it if there is none, and says when
        there will be."""
        seen = await self._look()
        if seen.in_flight + self._entered + self._entering >= self._settings.inflight:
            raise Refusal(
                "INFLIGHT_CAP_REACHED",
                f"{self._settings.inflight} submissions wait or are being judged",
                retry_after=retry_after(seen),
            )
        self._entering += 1
        try:
            yield
            self._entered += 1
        finally:
            self._entering -= 1

    async def _look(self) -> Load:
        async with self._looking:
            if self._seen is None or self._clock() - self._looked_at >= _LOOKS_EVERY_SEC:
                before, began = self._entered, self._clock()
                self._seen = await load_of(self._db, self._settings.service, most=self._settings.inflight)
                self._looked_at = began
                self._entered -= before  # this look has seen them
            return self._seen


def retry_after(load: Load) -> int:
    """Seconds until what waits has been judged, at the pace of the last minutes: 1 to 60 (OJ-15)."""
    return (
        int(min(_LONGEST_SEC, max(1, math.ceil(load.drained_in)))) if math.isfinite(load.drained_in) else _LONGEST_SEC
    )
