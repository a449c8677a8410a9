"""The occurrences of a rule after an instant: mapped to the time line, bounded, ordered, merged where a change of the
zone's offset brought several to one instant, and marked where a calendar excludes them."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from typing import Final

from accsd.planning.recurrence.calendars import Exclusion, exclusion_at
from accsd.planning.recurrence.instant import PlacedTime, Touch, earliest_nominal, in_order, place_of, places
from accsd.planning.recurrence.pattern import SearchTooLong
from accsd.planning.recurrence.rrule import RecurrenceSet
from accsd.planning.recurrence.rule import OnTheClock, OnTheLine, Rule

# Nobody plans further ahead, and 1,000 occurrences of a rule for 29 February would be a search of 4,000 years.
HORIZON: Final = timedelta(days=100 * 366)

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One time that a rule names: nominal on the wall clock of its zone, with fold 1 for the second pass of a repeated
    hour. It fires unless it is merged into another one or excluded by a calendar."""

    nominal: datetime
    fold: int
    instant: datetime
    due_at: datetime
    touch: Touch | None = None
    merged_into: datetime | None = None
    excluded: Exclusion | None = None

    @property
    def fires(self) -> bool:
        return self.merged_into is None and self.excluded is None


class Walk:
    """The occurrences that are due after an instant, in groups that are due at once; a group must not be torn, or the
    rest of it would lie before the instant from which the next walk begins. With `beyond_end`, those after the rule's
    end are there too."""

    def __init__(self, rule: Rule, after: datetime, *, beyond_end: bool = False) -> None:
        self._rule: Rule = rule
        self._shift: timedelta = rule.shift
        self._from: datetime = after - self._shift
        if rule.start_at is not None:
            self._from = max(self._from, rule.start_at - _MICROSECOND)
        self._end: datetime | None = None if beyond_end else rule.end_at
        self.met_horizon: bool = False

    def __iter__(self) -> Iterator[tuple[Occurrence, ...]]:
        for _, group in groupby(self._bounded(), key=lambda place: place.instant):
            yield self._merged(list(group))

    def _bounded(self) -> Iterator[PlacedTime]:
        horizon = self._from + HORIZON
        for place in self._places():
            if self._end is not None and place.instant >= self._end:
                return
            if place.instant > horizon:
                self.met_horizon = True
                return
            if place.instant > self._from:
                yield place

    def _places(self) -> Iterator[PlacedTime]:
        source, zone = self._rule.source, self._rule.zone
        if isinstance(source, OnTheLine):
            return (place_of(instant, zone) for instant in source.instants(self._from))
        return in_order(self._found(source))

    def _found(self, source: OnTheClock) -> Iterator[tuple[PlacedTime, ...]]:
        zone, is_elapsed = self._rule.zone, source.is_elapsed
        # a time that was named by itself is not lost, also beside a rule by the hour
        dates = source.dates if isinstance(source, RecurrenceSet) else frozenset[datetime]()
        is_any_due = False
        try:
            for nominal in source.nominals(earliest_nominal(self._from, zone)):
                found = places(nominal, zone, is_elapsed=is_elapsed)
                if not found and nominal in dates:
                    found = places(nominal, zone, is_elapsed=False)
                is_any_due = is_any_due or any(place.instant > self._from for place in found)
                yield found
        except SearchTooLong:
            # what is near is planned, and the rare time after it is searched for when its turn has come
            if not is_any_due:
                raise
            self.met_horizon = True

    def _merged(self, group: list[PlacedTime]) -> tuple[Occurrence, ...]:
        rule, fired = self._rule, None
        merged: list[Occurrence] = []
        for place in group:
            excluded = exclusion_at(place, rule.zone, rule.exclude, rule.only_on)
            into = fired if excluded is None else None
            due = place.instant + self._shift
            merged.append(Occurrence(place.nominal, place.fold, place.instant, due, place.touch, into, excluded))
            if excluded is None and fired is None:
                fired = place.nominal
        return tuple(merged)
