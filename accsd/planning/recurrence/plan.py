"""The next occurrences of a rule, and whether a time is an occurrence at all."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise, takewhile
from typing import Final

from accsd.errors import InvalidValue
from accsd.planning.recurrence.instant import places
from accsd.planning.recurrence.occurrences import Occurrence, Walk
from accsd.planning.recurrence.rule import Rule
from accsd.planning.recurrence.text import check_aware, within_years

MOST_PLANNED: Final = 10_000

_MICROSECOND: Final = timedelta(microseconds=1)
# How far to look back for the occurrence before a time: each span is walked only if the shorter ones were empty.
_LOOKING_BACK: Final = (*(timedelta(minutes=16**n) for n in range(6)), timedelta(days=50 * 366))


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """The occurrences that a local time names (two, if an hour is repeated), and those before and after it."""

    named: tuple[Occurrence, ...]
    before: Occurrence | None
    after: Occurrence | None


def next_occurrences(rule: Rule, after: datetime, n: int, *, beyond_end: bool = False) -> tuple[list[Occurrence], bool]:
    """The next n occurrences that are due after an instant; more, if the last of them are due at once, and fewer, if
    the others lie beyond the horizon of this room. And whether nothing follows them."""
    if not 1 <= n <= MOST_PLANNED:
        raise InvalidValue(f"{n} is not a number of occurrences from 1 to {MOST_PLANNED:,}")
    walk = Walk(rule, check_aware(after, "the instant after which a plan begins"), beyond_end=beyond_end)
    found: list[Occurrence] = []
    for group in walk:
        if len(found) >= n:
            return found, False
        found += group
    return found, not walk.met_horizon


def occurrence_at(rule: Rule, local: datetime) -> Neighbourhood:
    """What a rule names at a time on the wall clock of its zone, and around it."""
    nominal = within_years(local.replace(tzinfo=None, fold=0))
    first, last = _dues_of(rule, nominal)
    named: list[Occurrence] = []
    after: Occurrence | None = None
    for each in _rows(rule, first - _MICROSECOND):
        if each.nominal == nominal:
            named.append(each)
        elif (each.due_at, each.nominal) > (last, nominal):
            after = each
            break
    return Neighbourhood(tuple(named), _before(rule, (first, nominal)), after)


def shortest_gap(rule: Rule, after: datetime, n: int = 100) -> timedelta | None:
    """Between two of the next n occurrences; None where there are not two."""
    found, _ = next_occurrences(rule, after, n)
    gaps = (late.due_at - early.due_at for early, late in pairwise(found))
    return min((gap for gap in gaps if gap), default=None)


def _rows(rule: Rule, after: datetime) -> Iterator[Occurrence]:
    return (each for group in Walk(rule, after) for each in group)


def _dues_of(rule: Rule, nominal: datetime) -> tuple[datetime, datetime]:
    """When an occurrence with this nominal time would be due: at first and at last."""
    found = places(nominal, rule.zone, is_elapsed=True) or places(nominal, rule.zone, is_elapsed=False)
    return found[0].instant + rule.shift, found[-1].instant + rule.shift


def _before(rule: Rule, limit: tuple[datetime, datetime]) -> Occurrence | None:
    """The last occurrence before a due and nominal time."""
    for span in _LOOKING_BACK:
        earlier = takewhile(lambda each: (each.due_at, each.nominal) < limit, _rows(rule, limit[0] - span))
        last = deque(earlier, maxlen=1)
        if last:
            return last[0]
    return None
