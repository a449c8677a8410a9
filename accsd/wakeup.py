"""A coalescing wake-up: somebody notified, or a known time has come, or the poll is due.

Any number of notifications while a role works are one more pass afterwards. Whoever waits clears it *before* reading
the table: what is written after the read notifies again.
"""

import asyncio
import random
from datetime import timedelta


class Wakeup:
    def __init__(self) -> None:
        self._event: asyncio.Event = asyncio.Event()

    def set(self, _payload: str = "") -> None:
        """Takes (and ignores) a payload, so that it can be handed to the listener as it is."""
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, at_most: timedelta | None = None) -> bool:
        """Whether it was notified; False: the time has come."""
        try:
            async with asyncio.timeout(None if at_most is None else max(at_most.total_seconds(), 0)):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


def jittered(interval: timedelta, share: float = 0.1) -> timedelta:
    """The interval give or take a share of it, so that a fleet that was started together does not poll together."""
    return interval * random.uniform(1 - share, 1 + share)


class Backoff:
    """Growing pauses with jitter, for what fails again and again; `reset` once it works."""

    def __init__(self, first: timedelta, longest: timedelta) -> None:
        self._first: timedelta = first
        self._longest: timedelta = longest
        self._failures: int = 0

    def next(self) -> timedelta:
        pause = min(self._first * 2 ** min(self._failures, 30), self._longest)
        self._failures += 1
        return jittered(pause, 0.25)

    def reset(self) -> None:
        self._failures = 0
