"""Where the hub is in the feed: what it has read, what is missing in between, and the mark that clients resume from.

Events become visible in the order of their commits, not of their ids. A reader that asks for "ids above the last one"
loses those that commit late, for ever; so the missing ids are kept until they come, or until it is known that they
never will: their transactions were rolled back.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Self

from accsd.errors import InvalidValue

GIVE_UP_SEC: Final = 60.0  # the longest statement of our roles
FORGET_SEC: Final = 600.0  # a given-up id that comes after all is still told to those who are there
_FENCE_AFTER_SEC: Final = 1.0  # an id is given a moment before its transaction has a number
_MOST_HOLES: Final = 10_000


@dataclass(frozen=True, slots=True)
class Mark:
    """All events up to `low` were told, or given up. `ts` says in which months to look for those after it."""

    low: int
    ts: datetime

    @classmethod
    def parse(cls, text: str) -> Self:
        low, dot, ms = text.partition(".")
        if not (
            dot and low.isascii() and ms.isascii() and low.isdigit() and ms.isdigit() and len(low) < 19 and len(ms) < 15
        ):
            raise InvalidValue(
                f'"{text[:50]}" is no mark of a stream',
                hint="send the id of the last message, such as 1841.1763478912345",
            )
        return cls(int(low), datetime.fromtimestamp(int(ms) / 1000, UTC))

    def __str__(self) -> str:
        return f"{self.low}.{int(self.ts.timestamp() * 1000)}"


@dataclass(slots=True)
class _Hole:
    first: int
    last: int
    noticed: float
    fence: int | None = None  # transactions below it may have these ids, no others


class Position:
    """`seen` is the highest id that was read. Times are of a clock that can't be set."""

    def __init__(self, seen: int) -> None:
        self.seen = seen
        self._low: int = seen
        self._holes: list[_Hole] = []  # by id, none touches another

    @property
    def low(self) -> int:
        """All ids up to this one were read, or given up. It never goes back."""
        return self._low

    @property
    def holes(self) -> list[tuple[int, int]]:
        return [(hole.first, hole.last) for hole in self._holes]

    def youngest_hole(self, now: float) -> float | None:
        """Seconds since the last id was found missing; None: none is."""
        return min((now - hole.noticed for hole in self._holes), default=None)

    def read(self, ids: Iterable[int], now: float) -> None:
        """Ids above `seen`, in ascending order."""
        for each in ids:
            if each > self.seen + 1:
                self._holes.append(_Hole(self.seen + 1, each - 1, now))
            self.seen = each
        del self._holes[: max(0, len(self._holes) - _MOST_HOLES)]
        self._advance(now)

    def filled(self, ids: Sequence[int], now: float) -> list[int]:
        """Missing ids that have come. Those that were missing are returned."""
        found = [each for each in ids if self._fill(each)]
        self._advance(now)
        return found

    def settle(self, ended: int, begun: int, now: float) -> None:
        """The horizon of a moment before the missing ids were looked for: all transactions below `ended` were over, so
        that what they have not left was rolled back. Transactions from `begun` on had no id of ours."""
        self._holes = [hole for hole in self._holes if hole.fence is None or hole.fence > ended]
        for hole in self._holes:
            if hole.fence is None and now - hole.noticed >= _FENCE_AFTER_SEC:
                hole.fence = begun
        self._advance(now)

    def _fill(self, missing: int) -> bool:
        at = bisect_right(self._holes, missing, key=lambda hole: hole.first) - 1
        if at < 0 or self._holes[at].last < missing:
            return False
        hole = self._holes.pop(at)
        parts = ((hole.first, missing - 1), (missing + 1, hole.last))
        self._holes[at:at] = [_Hole(a, b, hole.noticed, hole.fence) for a, b in parts if a <= b]
        return True

    def _advance(self, now: float) -> None:
        self._holes = [hole for hole in self._holes if now - hole.noticed < FORGET_SEC]
        awaited = next((hole.first for hole in self._holes if now - hole.noticed < GIVE_UP_SEC), self.seen + 1)
        self._low = max(self._low, awaited - 1)
