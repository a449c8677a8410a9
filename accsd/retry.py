"""Retries: how long to pause between two tries, and through which outages a call is repeated.

Everything that retries in this process pauses by a Backoff. It is imported by the database room and by commands that a
person waits for, so it imports neither anyio nor structlog.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final, TypeVar

from accsd.errors import DatabaseUnavailable, Unavailable

T = TypeVar("T")

# A database that comes back is asked within a second.
DATABASE_PAUSES: Final = (timedelta(seconds=0.1), timedelta(seconds=1))
_MOST_DOUBLINGS: Final = 30  # every pause has reached its limit long before


def jittered(interval: timedelta, share: float = 0.1) -> timedelta:
    """The interval plus or minus a share of it, so that a fleet that was started together does not poll together."""
    return interval * random.uniform(1 - share, 1 + share)


@dataclass(eq=False, slots=True)
class Backoff:
    """Pauses between failures: each twice as long as the one before, from `first` up to `longest`, times a random
    factor between the two of `spread`. Call `reset` after a success."""

    first: timedelta
    longest: timedelta
    spread: tuple[float, float] = (0.75, 1.25)
    failures: int = field(default=0, init=False)

    def next(self) -> timedelta:
        pause = min(self.first * 2 ** min(self.failures, _MOST_DOUBLINGS), self.longest)
        self.failures += 1
        return pause * random.uniform(*self.spread)

    async def pause(self) -> None:
        await asyncio.sleep(self.next().total_seconds())

    def reset(self) -> None:
        self.failures = 0


async def until_answered(call: Callable[[], Awaitable[T]]) -> T:
    """Repeats a call while the database is away, for ever. Within an attempt, the end of its lease cancels this too."""
    pauses = Backoff(*DATABASE_PAUSES)
    while True:
        try:
            return await call()
        except DatabaseUnavailable as error:
            _warn_of_database(error)
            await pauses.pause()


async def while_away(
    call: Callable[[], Awaitable[T]],
    *,
    away: type[Unavailable],
    except_for: tuple[type[Unavailable], ...] = (),
    pauses: Backoff,
    patience: timedelta,
) -> T:
    """Repeats a call while it raises `away` (`except_for` some kinds of it). No try begins later than `patience` after
    the first failure; then the last failure is raised. An absence is limited, the length of a call is not."""
    now = asyncio.get_running_loop().time
    until: float | None = None
    while True:
        try:
            return await call()
        except away as error:
            if isinstance(error, except_for):
                raise
            until = now() + patience.total_seconds() if until is None else until
            pause = pauses.next().total_seconds()
            if now() + pause > until:
                raise
        await asyncio.sleep(pause)


def _warn_of_database(error: DatabaseUnavailable) -> None:
    from accsd.log import get_logger  # imports structlog, a third of the start of a command that needs none

    log = get_logger(component="attempt")
    log.warning("database_away", error=str(error))
