"""Schedules through every change of every zone's clock, held against an oracle that only looks at the clock (DS1–DS7).

In each run: three days around each change of 2024–2028 in all zones that differ, and fifty zone-years chosen by a seed.
`make calendar` takes all zones that differ, through twenty years.
"""

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache

import pytest

from accsd.planning.recurrence import Rule, Zone, parse_rule, zone_rules
from accsd.planning.recurrence.zones import transitions
from tests.support.wall_clock import EPOCH, by_the_minute, elapsed, fixed, minutes, planned, stretches

ANCHOR = datetime.fromisoformat("1970-01-01T00:00:00")
DAY = 24 * 60


Named = Callable[[int, int], list[int]]  # the minutes of a clock that an expression names, from one to another


@dataclass(frozen=True)
class Expression:
    kind: str
    expr: str
    is_elapsed: bool
    named: Named

    def rule(self, zone: str) -> Rule:
        return parse_rule(self.kind, self.expr, zone, schedule_id="s", created_at=EPOCH, anchor=ANCHOR)

    def around(self, begin: int, end: int) -> list[int]:
        """The window may be two days away from that of UTC."""
        return self.named(begin - 2 * DAY, end + 2 * DAY)


def at(*clocks: int, weekdays: str = "0123456") -> Named:
    """Clocks are written as 230 for 02:30; Monday is 0, and 1970-01-01 was a Thursday."""
    wanted = [clock // 100 * 60 + clock % 100 for clock in clocks]
    return lambda begin, end: [
        day * DAY + minute
        for day in range(begin // DAY, end // DAY + 1)
        for minute in wanted
        if str((day + 3) % 7) in weekdays
    ]


def every(step: int) -> Named:
    return lambda begin, end: list(range(begin - begin % step, end, step))


FEW = [
    Expression("cron", "30 2 * * *", False, at(230)),
    Expression("cron", "0 0 * * *", False, at(0)),
    Expression("cron", "0 0-3 * * 0-1,6", False, at(0, 100, 200, 300, weekdays="056")),
    Expression("rrule", "FREQ=DAILY;BYHOUR=1,2;BYMINUTE=15,45", False, at(115, 145, 215, 245)),
    Expression("cron", "0 */2 * * *", True, every(120)),
    Expression("rrule", "FREQ=HOURLY;INTERVAL=5", True, every(300)),
]
DENSE = [
    Expression("cron", "*/30 * * * *", True, every(30)),
    Expression("rrule", "FREQ=MINUTELY;INTERVAL=45", True, every(45)),
]


def first_of(year: int) -> datetime:
    return datetime(year, 1, 1, tzinfo=UTC)


@cache
def distinct_zones(first: int, last: int) -> dict[Zone, list[datetime]]:
    """One zone of each kind of rules from one year to another, with its changes."""
    found: dict[object, tuple[Zone, list[datetime]]] = {}
    for name in zone_rules().names():
        zone = zone_rules().zone(name)
        changes = list(transitions(zone, first_of(first), first_of(last + 1)))
        found.setdefault((zone.offset(first_of(first)), *changes), (zone, [change.at for change in changes]))
    return dict(found.values())


def differences(zone: Zone, begin: int, end: int, expressions: Iterable[Expression]) -> int:
    """Compares, and returns how many occurrences were compared."""
    walk, compared = stretches(zone.info, begin, end), 0
    for expression in expressions:
        named = expression.around(begin, end)
        seen = (elapsed if expression.is_elapsed else fixed)(walk, named)
        assert planned(expression.rule(zone.name), begin, end) == seen, f"{expression.expr} in {zone.name}"
        compared += len(seen)
    return compared


def test_the_oracle_is_the_plain_walk_by_the_minute():
    for name, day in [
        ("Europe/Berlin", "2024-03-31"),
        ("Australia/Lord_Howe", "2024-04-06"),
        ("Pacific/Apia", "2011-12-30"),
    ]:
        zone = zone_rules().zone(name)
        begin = minutes(datetime.fromisoformat(day)) - DAY
        for expression in FEW + DENSE:
            named = expression.around(begin, begin + 3 * DAY)
            quick = (elapsed if expression.is_elapsed else fixed)(stretches(zone.info, begin, begin + 3 * DAY), named)
            plain = by_the_minute(zone.info, begin, begin + 3 * DAY, set(named), is_elapsed=expression.is_elapsed)
            assert quick == plain


@pytest.mark.slow
def test_around_every_change_of_2024_to_2028_each_occurrence_is_where_the_clock_shows_it():
    compared = changes = 0
    for zone, at_changes in distinct_zones(2024, 2028).items():
        for change in at_changes:
            begin = minutes(change) - 3 * DAY
            compared += differences(zone, begin, begin + 6 * DAY, FEW + DENSE)
            changes += 1
    print(f"{compared} occurrences around {changes} changes of {len(distinct_zones(2024, 2028))} zones: no difference")
    assert compared > 100_000


@pytest.mark.slow
def test_in_fifty_years_of_zones_each_occurrence_is_where_the_clock_shows_it():
    chosen, compared = random.Random(4), 0
    for _ in range(50):
        zone = zone_rules().zone(chosen.choice(zone_rules().names()))
        begin = minutes(first_of(chosen.randint(1975, 2037)))
        compared += differences(zone, begin, begin + 365 * DAY, FEW)
    print(f"{compared} occurrences of 50 zone-years: no difference")
    assert compared > 300_000


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("Pacific/Apia", "2011-12-30"),  # a date that did not exist
        ("Pacific/Kwajalein", "1993-08-21"),
        ("Asia/Pyongyang", "2015-08-14"),  # changes of the standard offset
        ("Asia/Pyongyang", "2018-05-04"),
        ("Europe/Volgograd", "2018-10-27"),
        ("America/Caracas", "2016-05-01"),
    ],
)
def test_days_that_did_not_exist_and_new_standard_times_are_no_exceptions(name: str, change: str):
    begin = minutes(datetime.fromisoformat(change)) - 3 * DAY
    differences(zone_rules().zone(name), begin, begin + 6 * DAY, FEW + DENSE)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("year", range(2019, 2039))
def test_calendar_of_all_zones_for_a_year(year: int):
    compared = 0
    begin, end = minutes(first_of(year)), minutes(first_of(year + 1))
    zones = distinct_zones(year, year)
    for zone in zones:
        compared += differences(zone, begin, end, FEW + DENSE)
    print(f"{year}: {compared} occurrences of {len(zones)} zones: no difference")
    assert compared > 1_000_000
