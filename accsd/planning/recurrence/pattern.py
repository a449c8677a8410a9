"""The BY… parts of an RRULE as a search over periods, from any time on, in naive local time.

dateutil walks from the anchor, which takes seconds for a rule by the minute that began years ago, and never returns
from a rule that can't match. Here a period is found by arithmetic, whatever lies between it and the anchor, and a
search ends after so many candidates without an occurrence.
"""

from bisect import bisect_left
from calendar import isleap, monthrange
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from enum import StrEnum
from itertools import count, islice, product, takewhile
from time import thread_time
from typing import Final

from accsd.errors import InvalidValue

MOST_CANDIDATES: Final = 10_000
MOST_SECONDS: Final = 0.05  # of processor time: a busy machine refuses no rule that an idle one takes

_DAY: Final = 86_400
_LAST_YEAR: Final = 3_200
_FAR: Final = timedelta(days=200 * 366)
_MIDNIGHT: Final = time()
_LOOK_AT_CLOCK: Final = 500


class Freq(StrEnum):
    YEARLY = "YEARLY"
    MONTHLY = "MONTHLY"
    WEEKLY = "WEEKLY"
    DAILY = "DAILY"
    HOURLY = "HOURLY"
    MINUTELY = "MINUTELY"
    SECONDLY = "SECONDLY"

    @property
    def seconds(self) -> int:
        """The length of a period within a day; 0 for days and longer ones."""
        return _SECONDS.get(self, 0)


_SECONDS: Final = {Freq.HOURLY: 3_600, Freq.MINUTELY: 60, Freq.SECONDLY: 1}


class SearchTooLong(InvalidValue):
    """No occurrence was found among as many candidates, or in as much time, as a search may take."""


@dataclass(slots=True)
class SearchBudget:
    """How many candidates, and how much time, a search for one occurrence may take."""

    left: int = MOST_CANDIDATES
    began: float = 0.0

    def renew(self) -> None:
        self.left, self.began = MOST_CANDIDATES, thread_time()

    def spend(self) -> None:
        self.left -= 1
        if self.left % _LOOK_AT_CLOCK == 0 and (self.left <= 0 or thread_time() - self.began > MOST_SECONDS):
            raise SearchTooLong(
                f"the rule names none of {MOST_CANDIDATES - self.left:,} candidates in a row: it never fires, or the "
                "search for the next time takes too long",
                hint="leave out BY… parts that contradict each other, or use a longer FREQ",
            )


@dataclass(frozen=True, slots=True)
class Pattern:
    """A rule with everything that it leaves open taken from its anchor. An empty part matches everything.

    Days, weeks and months count from the end where they are negative. `weekdays` are (ordinal, day), Monday being 0 and
    the ordinal 0 where any will do. `minutes` and `seconds` of a rule by the hour are those of each of its hours.
    """

    freq: Freq
    anchor: datetime
    interval: int = 1
    months: frozenset[int] = frozenset()
    month_days: frozenset[int] = frozenset()
    year_days: frozenset[int] = frozenset()
    weeks: frozenset[int] = frozenset()
    weekdays: frozenset[tuple[int, int]] = frozenset()
    hours: tuple[int, ...] = ()
    minutes: tuple[int, ...] = ()
    seconds: tuple[int, ...] = ()
    positions: tuple[int, ...] = ()
    week_start: int = 0

    def nominals(self, start: datetime) -> Iterator[datetime]:
        """The times of the rule from `start` on, ascending."""
        first = max(start, self.anchor)
        budget = SearchBudget()
        budget.renew()
        found = self._within_days(first, budget) if self.freq.seconds else self._by_days(first, budget)
        for nominal in found:
            if nominal >= first:
                yield nominal
                budget.renew()

    # Periods of a day and longer

    def _by_days(self, first: datetime, budget: SearchBudget) -> Iterator[datetime]:
        times = [hour * 3_600 + minute * 60 + second for hour, minute, second in self._times()]
        for period in count(self._aligned(self._period(first)), self.interval):
            days = self._days(period)
            if days is None:
                return
            if not days:
                budget.spend()
            fitting: list[date] = []
            for day in days:
                budget.spend()
                if self.fits(day):
                    fitting.append(day)
            yield from self._moments(fitting, times)

    def _times(self) -> Iterator[tuple[int, int, int]]:
        return product(self.hours, self.minutes, self.seconds)

    def _moments(self, days: list[date], times: list[int]) -> Iterator[datetime]:
        if not self.positions:
            for day in days:
                midnight = datetime.combine(day, _MIDNIGHT)
                yield from (midnight + timedelta(seconds=second) for second in times)
            return
        for index in _chosen(self.positions, len(days) * len(times)):
            day, second = divmod(index, len(times))
            yield datetime.combine(days[day], _MIDNIGHT) + timedelta(seconds=times[second])

    def _period(self, moment: datetime) -> int:
        """The number of the period that a time lies in."""
        ordinal = moment.toordinal()
        if self.freq is Freq.YEARLY:
            return moment.year
        if self.freq is Freq.MONTHLY:
            return moment.year * 12 + moment.month - 1
        if self.freq is Freq.WEEKLY:
            return (ordinal - 1 - self.week_start) // 7
        if self.freq is Freq.DAILY:
            return ordinal
        second = moment.hour * 3_600 + moment.minute * 60 + moment.second
        return (ordinal * _DAY + second) // self.freq.seconds

    def _aligned(self, period: int) -> int:
        """The first period from this one on that is a whole number of intervals after the anchor's."""
        return period + (self._period(self.anchor) - period) % self.interval

    def _days(self, period: int) -> list[date] | None:
        """The days of a period that may fit; None where the calendar of this room ends."""
        if self.freq is Freq.YEARLY:
            return self._days_of_year(period) if period <= _LAST_YEAR else None
        if self.freq is Freq.MONTHLY:
            return self._days_of_month(period // 12, period % 12 + 1) if period // 12 <= _LAST_YEAR else None
        days = 7 if self.freq is Freq.WEEKLY else 1
        ordinal = period * 7 + 1 + self.week_start if self.freq is Freq.WEEKLY else period
        if ordinal > _LAST_YEAR * 366:
            return None
        return [date.fromordinal(ordinal + day) for day in range(days)]

    def _days_of_year(self, year: int) -> list[date]:
        if self.year_days:
            length = 366 if isleap(year) else 365
            return [date(year, 1, 1) + timedelta(days=day - 1) for day in _counted(self.year_days, length)]
        return [day for month in range(1, 13) for day in self._days_of_month(year, month)]

    def _days_of_month(self, year: int, month: int) -> list[date]:
        if self.months and month not in self.months:
            return []
        length = monthrange(year, month)[1]
        days = _counted(self.month_days, length) if self.month_days else range(1, length + 1)
        return [date(year, month, day) for day in days]

    # Periods within a day

    def _within_days(self, first: datetime, budget: SearchBudget) -> Iterator[datetime]:
        length = self.freq.seconds
        offsets = self._offsets()
        period = self._aligned(self._period(first))
        while period * length <= _LAST_YEAR * 366 * _DAY:
            budget.spend()
            matching = self._next_matching(period)
            if matching != period:
                period = self._aligned(matching)
                continue
            day, second = divmod(period * length, _DAY)
            begin = datetime.combine(date.fromordinal(day), _MIDNIGHT) + timedelta(seconds=second)
            yield from (begin + timedelta(seconds=offset) for offset in offsets)
            period += self.interval

    def _offsets(self) -> list[int]:
        """The seconds of a period that the rule names: the same in each."""
        minutes = self.minutes if self.freq is Freq.HOURLY else (0,)
        seconds = self.seconds if self.freq is not Freq.SECONDLY else (0,)
        offsets = [minute * 60 + second for minute, second in product(minutes, seconds)]
        return [offsets[index] for index in _chosen(self.positions, len(offsets))] if self.positions else offsets

    def _next_matching(self, period: int) -> int:
        """This period if it fits; otherwise one before which none does."""
        length = self.freq.seconds
        day, second = divmod(period * length, _DAY)
        if not self.fits(date.fromordinal(day)):
            return (day + 1) * _DAY // length
        hour, minute = day * 24 + second // 3_600, (day * _DAY + second) // 60
        if self.hours and second // 3_600 not in self.hours:
            return _next(self.hours, hour, 24) * 3_600 // length
        if self.freq is not Freq.HOURLY and self.minutes and minute % 60 not in self.minutes:
            return _next(self.minutes, minute, 60) * 60 // length
        if self.freq is Freq.SECONDLY and self.seconds and second % 60 not in self.seconds:
            return _next(self.seconds, period, 60)
        return period

    def first_period_of(self, day: date) -> int:
        """The first aligned period of a day, counted from its midnight."""
        midnight = day.toordinal() * _DAY // self.freq.seconds
        return self._aligned(midnight) - midnight

    def seconds_of(self, first: int) -> list[int]:
        """The seconds of a day that the rule names, if the day fits and its first aligned period is `first`."""
        length, offsets = self.freq.seconds, self._offsets()
        begins = (period * length for period in range(first, _DAY // length, self.interval))
        return [begin + offset for begin in begins if self._fits_time(begin) for offset in offsets]

    def _fits_time(self, second: int) -> bool:
        hour, minute = second // 3_600, second // 60 % 60
        return (
            (not self.hours or hour in self.hours)
            and (self.freq is Freq.HOURLY or not self.minutes or minute in self.minutes)
            and (self.freq is not Freq.SECONDLY or not self.seconds or second % 60 in self.seconds)
        )

    # Days

    def fits(self, day: date) -> bool:
        if self.months and day.month not in self.months:
            return False
        if self.month_days and self.month_days.isdisjoint((day.day, day.day - _days_in_month(day) - 1)):
            return False
        if self.year_days and self.year_days.isdisjoint(_day_of_year(day)):
            return False
        if self.weeks and self.weeks.isdisjoint(self._week_of_year(day)):
            return False
        return not self.weekdays or self._is_weekday(day)

    def _is_weekday(self, day: date) -> bool:
        """Whether the day is one that is named: any such day, or the so-manieth of its month or year."""
        weekday = day.weekday()
        ordinals = [ordinal for ordinal, each in self.weekdays if each == weekday]
        if not ordinals or 0 in ordinals:
            return bool(ordinals)
        if self.freq is Freq.MONTHLY or self.months:
            place, length = day.day, _days_in_month(day)
        else:
            place, from_end = _day_of_year(day)
            length = place - from_end - 1
        return (place - 1) // 7 + 1 in ordinals or -((length - place) // 7) - 1 in ordinals

    def _week_of_year(self, day: date) -> tuple[int, int]:
        """The number of the week, and the one that counts from the end of the year that the week belongs to."""
        middle = day.toordinal() - (day.weekday() - self.week_start) % 7 + 3  # it decides to which year a week belongs
        year = date.fromordinal(middle).year
        first, following = date(year, 1, 1).toordinal(), date(year + 1, 1, 1).toordinal()
        return (middle - first) // 7 + 1, -((following - 1 - middle) // 7) - 1


def nth_nominal(pattern: Pattern, number: int) -> datetime | None:
    """The nominal time of the pattern's so-manieth occurrence, or None where that is centuries away."""
    last = pattern.anchor + _FAR
    if pattern.freq.seconds:
        return _nth_within_days(pattern, number, last)
    nominals = takewhile(lambda nominal: nominal < last, pattern.nominals(pattern.anchor))
    return next(islice(nominals, number - 1, None), None)


def _nth_within_days(pattern: Pattern, number: int, last: datetime) -> datetime | None:
    """Counts days instead of times: what a day holds depends only on where its first period lies."""
    held: dict[int, list[int]] = {}
    for ordinal in range(pattern.anchor.toordinal(), last.toordinal()):
        day = date.fromordinal(ordinal)
        if not pattern.fits(day):
            continue
        first = pattern.first_period_of(day)
        seconds = held[first] if first in held else held.setdefault(first, pattern.seconds_of(first))
        midnight = datetime.combine(day, _MIDNIGHT)
        if midnight <= pattern.anchor:
            number += sum(midnight + timedelta(seconds=second) < pattern.anchor for second in seconds)
        if number <= len(seconds):
            return midnight + timedelta(seconds=seconds[number - 1])
        number -= len(seconds)
    return None


def _counted(numbers: frozenset[int], length: int) -> list[int]:
    """Places from 1 to `length`, of which negative ones count from the end."""
    places = {number if number > 0 else length + 1 + number for number in numbers}
    return sorted(place for place in places if 1 <= place <= length)


def _chosen(positions: tuple[int, ...], length: int) -> list[int]:
    return [place - 1 for place in _counted(frozenset(positions), length)]


def _next(allowed: tuple[int, ...], number: int, cycle: int) -> int:
    """The first number after this one that is allowed within its cycle."""
    begin, place = number - number % cycle, number % cycle
    later = bisect_left(allowed, place + 1)
    return begin + (allowed[later] if later < len(allowed) else cycle + allowed[0])


def _days_in_month(day: date) -> int:
    return monthrange(day.year, day.month)[1]


def _day_of_year(day: date) -> tuple[int, int]:
    place = day.timetuple().tm_yday
    return place, place - (366 if isleap(day.year) else 365) - 1
