"""From a time on the wall clock to instants, and back: the one rule about changes of a zone's offset.

A time that exists once is that instant. A *fixed* time (daily, or at a date) that a change skips is due at the first
instant after the change, and one that a change repeats is due at its first pass. An *elapsed* time (every so many
minutes or hours) that is skipped does not occur, and one that is repeated occurs twice. So a daily schedule fires once
a day, and one for every 15 minutes does so in real minutes, through both changes.
"""

from collections import deque
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from accsd.planning.recurrence.zones import Zone, first_with

# No change of an offset is larger: some islands have moved to the other side of the date line.
LARGEST_CHANGE: Final = timedelta(hours=26)


class Touch(StrEnum):
    """What a change of the zone's offset did to a time."""

    MOVED = "moved"  # the change skipped it
    DOUBLED = "doubled"  # the change repeated it


class PlacedTime(NamedTuple):
    """Where a nominal time lies on the time line. Places are ordered by instant, then by nominal time."""

    instant: datetime
    nominal: datetime
    fold: int
    touch: Touch | None


def places(nominal: datetime, zone: Zone, *, is_elapsed: bool) -> tuple[PlacedTime, ...]:
    """The occurrences that a nominal time means: none, one or two."""
    before, after = _offsets(nominal, zone)
    if before == after:
        return (PlacedTime((nominal - before).replace(tzinfo=UTC), nominal, 0, None),)
    shown = [offset for offset in (before, after) if _shows(nominal, offset, zone)]
    if len(shown) == 1:
        return (PlacedTime((nominal - shown[0]).replace(tzinfo=UTC), nominal, 0, None),)
    if not shown:
        return () if is_elapsed else (_after_gap(nominal, zone, before, after),)
    first = PlacedTime((nominal - before).replace(tzinfo=UTC), nominal, 0, Touch.DOUBLED)
    second = PlacedTime((nominal - after).replace(tzinfo=UTC), nominal, 1, Touch.DOUBLED)
    return (first, second) if is_elapsed else (first,)


def place_of(instant: datetime, zone: Zone) -> PlacedTime:
    """The place of an instant that does not come from the wall clock."""
    local = zone.local(instant)
    nominal = local.replace(tzinfo=None, fold=0)
    is_second = bool(local.fold) and len(places(nominal, zone, is_elapsed=True)) == 2
    return PlacedTime(instant, nominal, int(is_second), None)


def instant_of(local: datetime, zone: Zone) -> datetime:
    """The instant that a person means by a time on the wall clock of a zone, as a fixed time."""
    return places(local.replace(tzinfo=None, fold=0), zone, is_elapsed=False)[0].instant


def earliest_nominal(instant: datetime, zone: Zone) -> datetime:
    """No occurrence at this instant or later has an earlier nominal time. A change that sets the clock back soon makes
    that earlier than what the clock shows now."""
    offset = min(zone.offset(instant), zone.offset(instant + LARGEST_CHANGE))
    return (instant + offset).replace(tzinfo=None)


def in_order(found_places: Iterable[tuple[PlacedTime, ...]]) -> Iterator[PlacedTime]:
    """The places of ascending nominal times, ordered: second passes wait until the first pass is over."""
    waiting: deque[PlacedTime] = deque()
    for found in found_places:
        for place in found:
            if place.fold:
                waiting.append(place)
                continue
            while waiting and waiting[0].instant < place.instant:
                yield waiting.popleft()
            yield place
    yield from waiting


def _offsets(nominal: datetime, zone: Zone) -> tuple[timedelta, timedelta]:
    """By PEP 495: a time that does not exist has the offset before the change in its first fold, the one after the
    change in its second; of a time that exists twice they are those of its two passes."""
    local = nominal.replace(tzinfo=zone.info, fold=0)
    return local.utcoffset() or timedelta(0), local.replace(fold=1).utcoffset() or timedelta(0)


def _shows(nominal: datetime, offset: timedelta, zone: Zone) -> bool:
    """Whether the clock really shows this time with this offset. Beside the last change that a zone's file lists,
    Python answers a wall-clock time by the rule for the years after it, as if that had been in force before: of Nuuk it
    says that an hour of October 2023 came twice, when the clock was not set back."""
    return zone.offset((nominal - offset).replace(tzinfo=UTC)) == offset


def _after_gap(nominal: datetime, zone: Zone, before: timedelta, after: timedelta) -> PlacedTime:
    low, high = (nominal - after).replace(tzinfo=UTC), (nominal - before).replace(tzinfo=UTC)
    return PlacedTime(first_with(zone, after, low, high), nominal, 0, Touch.MOVED)
