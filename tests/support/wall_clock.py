"""An oracle for schedules: it walks along the time line and looks at the wall clock, and knows nothing of folds.

An elapsed time occurs whenever the clock shows it. A fixed time occurs when the clock first shows it, or first shows a
later one. Between two changes of an offset, which are looked for hour by hour, then minute by minute, the walk is
arithmetic. All times are minutes since 1970, of UTC or of the clock.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from accsd.planning.recurrence import Rule
from accsd.planning.recurrence.occurrences import Walk

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MINUTE: Final = timedelta(minutes=1)


@dataclass(frozen=True)
class Stretch:
    """Minutes of UTC, end excluded, in which the clock is ahead by so many minutes."""

    begin: int
    end: int
    offset: int


@dataclass(frozen=True)
class Seen:
    """An occurrence that the oracle saw: when, and which minute of the clock it was for."""

    instant: int
    nominal: int


def minutes(moment: datetime) -> int:
    return (moment.replace(tzinfo=UTC) - EPOCH) // MINUTE


def stretches(info: ZoneInfo, begin: int, end: int) -> list[Stretch]:
    """The stretches of equal offset in a window."""
    found: list[Stretch] = []
    for minute, offset in _looks(info, begin, end):
        if not found or found[-1].offset != offset:
            found.append(Stretch(minute, end, offset))
            found[-2:-1] = [Stretch(each.begin, minute, each.offset) for each in found[-2:-1]]
    return found


def _looks(info: ZoneInfo, begin: int, end: int) -> Iterator[tuple[int, int]]:
    before = _offset(info, begin)
    yield begin, before
    for hour in range(begin, end, 60):
        last = min(hour + 60, end) - 1
        if _offset(info, last) != before:
            yield from ((minute, _offset(info, minute)) for minute in range(hour, last + 1))
            before = _offset(info, last)


def _offset(info: ZoneInfo, minute: int) -> int:
    offset = (EPOCH + minute * MINUTE).astimezone(info).utcoffset()
    assert offset is not None
    assert not offset % MINUTE, "the oracle counts minutes"
    return offset // MINUTE


def elapsed(walk: list[Stretch], named: list[int]) -> list[Seen]:
    seen: list[Seen] = []
    for stretch in walk:
        low, high = stretch.begin + stretch.offset, stretch.end + stretch.offset
        shown = named[bisect_left(named, low) : bisect_left(named, high)]
        seen += [Seen(nominal - stretch.offset, nominal) for nominal in shown]
    return seen


def fixed(walk: list[Stretch], named: list[int]) -> list[Seen]:
    seen: list[Seen] = []
    reached = walk[0].begin + walk[0].offset
    for stretch in walk:
        low, high = stretch.begin + stretch.offset, stretch.end + stretch.offset
        shown = named[bisect_left(named, reached) : bisect_left(named, max(high, reached))]
        seen += [Seen(max(stretch.begin, nominal - stretch.offset), nominal) for nominal in shown]
        reached = max(reached, low, high)
    return seen


def by_the_minute(info: ZoneInfo, begin: int, end: int, named: Collection[int], *, is_elapsed: bool) -> list[Seen]:
    """The same without arithmetic, minute by minute: what the other two are held against."""
    seen: list[Seen] = []
    reached = begin + _offset(info, begin)
    for minute in range(begin, end):
        clock = minute + _offset(info, minute)
        shown = [clock] if is_elapsed else range(reached, clock + 1)
        seen += [Seen(minute, nominal) for nominal in shown if nominal in named]
        reached = max(reached, clock + 1)
    return seen


def planned(rule: Rule, begin: int, end: int) -> list[Seen]:
    """What accsd says of the same window."""
    found: list[Seen] = []
    for group in Walk(rule, EPOCH + begin * MINUTE - timedelta(seconds=1)):
        if minutes(group[0].instant) >= end:
            break
        found += [Seen(minutes(each.instant), minutes(each.nominal)) for each in group]
        assert [each.merged_into for each in group[1:]] == [group[0].nominal] * (len(group) - 1)
    return found
