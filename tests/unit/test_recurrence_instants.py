"""From the wall clock to the time line: the table of changes, and the order of what comes out of it."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accsd.planning.recurrence import Rule, Touch, next_occurrences, parse_rule, zone_rules
from accsd.planning.recurrence.instant import place_of, places
from tests.support.occurrences import plan

CREATED = datetime(2024, 1, 1, tzinfo=UTC)


def rule(kind: str, expr: str, zone: str, **more: Any) -> Rule:
    return parse_rule(kind, expr, zone, schedule_id="s", created_at=CREATED, **more)


def instants(expr: str, zone: str, after: str, until: str, kind: str = "cron") -> list[str]:
    """What is due in after < due ≤ until, as day of month and time of UTC."""
    found, _ = next_occurrences(rule(kind, expr, zone), datetime.fromisoformat(after + "Z"), 2_000)
    return [f"{each.due_at:%d %H:%M}" for each in found if each.due_at <= datetime.fromisoformat(until + "Z")]


# Past dates, so that no new rules of zones change them. The windows are the local day of the change.
VECTORS = [
    ("Europe/Berlin", "2024-03-30T22:59", "2024-03-31T21:59", "30 2 * * *", ["31 01:00"]),
    ("Europe/Berlin", "2024-03-30T22:59", "2024-03-31T21:59", "0 0 * * *", ["30 23:00"]),
    ("Europe/Berlin", "2024-03-30T22:59", "2024-03-31T21:59", "15,45 2 * * *", ["31 01:00", "31 01:00"]),
    ("Europe/Berlin", "2024-03-30T22:59", "2024-03-31T02:30", "0 */2 * * *", ["30 23:00", "31 02:00"]),
    ("Europe/Berlin", "2024-10-26T21:59", "2024-10-27T22:59", "30 2 * * *", ["27 00:30"]),
    ("Europe/Berlin", "2024-10-26T21:59", "2024-10-27T22:59", "0 0 * * *", ["26 22:00"]),
    ("Europe/Berlin", "2024-10-26T21:59", "2024-10-27T22:59", "15,45 2 * * *", ["27 00:15", "27 00:45"]),
    ("Europe/Berlin", "2024-10-26T21:59", "2024-10-27T02:30", "0 */2 * * *", ["26 22:00", "27 00:00", "27 01:00"]),
    ("America/New_York", "2024-03-10T04:59", "2024-03-11T03:59", "30 2 * * *", ["10 07:00"]),
    ("America/New_York", "2024-03-10T04:59", "2024-03-11T03:59", "0 0 * * *", ["10 05:00"]),
    ("America/New_York", "2024-03-10T04:59", "2024-03-11T03:59", "15,45 2 * * *", ["10 07:00", "10 07:00"]),
    ("America/New_York", "2024-03-10T04:59", "2024-03-10T08:30", "0 */2 * * *", ["10 05:00", "10 08:00"]),
    ("America/New_York", "2024-11-03T03:59", "2024-11-04T04:59", "30 1 * * *", ["03 05:30"]),
    ("America/New_York", "2024-11-03T03:59", "2024-11-04T04:59", "30 2 * * *", ["03 07:30"]),
    ("America/New_York", "2024-11-03T03:59", "2024-11-04T04:59", "0 0 * * *", ["03 04:00"]),
    ("America/New_York", "2024-11-03T03:59", "2024-11-04T04:59", "15,45 2 * * *", ["03 07:15", "03 07:45"]),
    ("America/New_York", "2024-11-03T03:59", "2024-11-03T08:30", "0 */2 * * *", ["03 04:00", "03 07:00"]),
    ("Australia/Lord_Howe", "2024-10-05T13:29", "2024-10-06T12:59", "30 2 * * *", ["05 15:30"]),
    ("Australia/Lord_Howe", "2024-10-05T13:29", "2024-10-06T12:59", "0 0 * * *", ["05 13:30"]),
    ("Australia/Lord_Howe", "2024-10-05T13:29", "2024-10-06T12:59", "15,45 2 * * *", ["05 15:30", "05 15:45"]),
    ("Australia/Lord_Howe", "2024-10-05T13:29", "2024-10-05T17:30", "0 */2 * * *", ["05 13:30", "05 17:00"]),
    ("Australia/Lord_Howe", "2024-04-06T12:59", "2024-04-07T13:29", "30 1 * * *", ["06 14:30"]),
    ("Australia/Lord_Howe", "2024-04-06T12:59", "2024-04-07T13:29", "30 2 * * *", ["06 16:00"]),
    ("Australia/Lord_Howe", "2024-04-06T12:59", "2024-04-07T13:29", "0 0 * * *", ["06 13:00"]),
    ("Australia/Lord_Howe", "2024-04-06T12:59", "2024-04-07T13:29", "15,45 2 * * *", ["06 15:45", "06 16:15"]),
    ("Australia/Lord_Howe", "2024-04-06T12:59", "2024-04-06T17:00", "0 */2 * * *", ["06 13:00", "06 15:30"]),
    ("America/Santiago", "2024-09-08T03:59", "2024-09-09T02:59", "30 2 * * *", ["08 05:30"]),
    ("America/Santiago", "2024-09-08T03:59", "2024-09-09T02:59", "0 0 * * *", ["08 04:00"]),
    ("America/Santiago", "2024-09-08T03:59", "2024-09-09T02:59", "15,45 2 * * *", ["08 05:15", "08 05:45"]),
    ("America/Santiago", "2024-09-08T03:59", "2024-09-08T07:30", "0 */2 * * *", ["08 05:00", "08 07:00"]),
    ("America/Santiago", "2024-04-06T02:59", "2024-04-07T03:59", "45 23 * * *", ["07 02:45"]),
    ("America/Santiago", "2024-04-07T03:59", "2024-04-08T03:59", "30 2 * * *", ["07 06:30"]),
    ("America/Santiago", "2024-04-07T03:59", "2024-04-08T03:59", "0 0 * * *", ["07 04:00"]),
    ("America/Santiago", "2024-04-07T00:30", "2024-04-07T06:30", "0 */2 * * *", ["07 01:00", "07 04:00", "07 06:00"]),
    ("Africa/Cairo", "2024-04-25T21:59", "2024-04-26T20:59", "30 2 * * *", ["25 23:30"]),
    ("Africa/Cairo", "2024-04-25T21:59", "2024-04-26T20:59", "0 0 * * *", ["25 22:00"]),
    ("Africa/Cairo", "2024-04-25T21:59", "2024-04-26T01:30", "0 */2 * * *", ["25 23:00", "26 01:00"]),
]


@pytest.mark.parametrize(("zone", "after", "until", "expr", "expected"), VECTORS)
def test_a_time_is_due_when_the_table_says(zone: str, after: str, until: str, expr: str, expected: list[str]):
    """DS1, DS2, DS3, DS7."""
    assert instants(expr, zone, after, until) == expected


@pytest.mark.parametrize(("zone", "after"), sorted({(zone, after) for zone, after, *_ in VECTORS}))
def test_an_elapsed_rule_keeps_its_real_distance_through_a_change(zone: str, after: str):
    """DS4."""
    begin = datetime.fromisoformat(after + "Z") - timedelta(days=1)
    dues = plan(rule("cron", "*/30 * * * *", zone), begin, 200).dues
    assert {late - early for early, late in pairwise(dues)} == {timedelta(minutes=30)}


@pytest.mark.parametrize("expr", ["0 9 * * *", "30 2 * * *", "0 0 * * *", "0 30 2 * * *"])
@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Africa/Cairo"])
def test_a_daily_rule_fires_once_on_each_local_day(zone: str, expr: str):
    """DS4; written with seconds it means the same."""
    found, _ = next_occurrences(rule("cron", expr, zone), CREATED, 800)
    days = [each.nominal.date() for each in found if each.fires]
    assert [late - early for early, late in pairwise(days)] == [timedelta(days=1)] * 799


def test_two_times_in_one_gap_are_one_firing_and_the_other_is_merged_into_it():
    """DS5."""
    found, _ = next_occurrences(rule("cron", "15,45 2 * * *", "Europe/Berlin"), datetime(2024, 3, 31, tzinfo=UTC), 2)
    assert [f"{each.nominal:%H:%M}" for each in found] == ["02:15", "02:45"]
    assert [each.merged_into for each in found] == [None, found[0].nominal]
    assert [each.touch for each in found] == [Touch.MOVED, Touch.MOVED]


def test_a_time_that_is_moved_onto_a_real_one_is_the_one_that_fires():
    """DS5: ordered by due time, then nominal time, 02:00 is the first."""
    found, _ = next_occurrences(rule("cron", "0 2,3 * * *", "Europe/Berlin"), datetime(2024, 3, 31, tzinfo=UTC), 2)
    assert [(f"{each.nominal:%H:%M}", each.fires) for each in found] == [("02:00", True), ("03:00", False)]


def test_the_two_passes_of_a_repeated_hour_are_two_occurrences_of_an_elapsed_rule():
    """DS3."""
    found, _ = next_occurrences(
        rule("cron", "0 * * * *", "Europe/Berlin"), datetime(2024, 10, 26, 23, 30, tzinfo=UTC), 3
    )
    assert [(f"{each.nominal:%H:%M}", each.fold) for each in found] == [("02:00", 0), ("02:00", 1), ("03:00", 0)]


def test_an_hour_that_python_takes_for_repeated_is_not_where_the_clock_was_not_set_back():
    """Found by `make calendar`: Nuuk kept its summer time as standard time in 2023; its new rule begins in October."""
    zone = zone_rules().zone("America/Nuuk")
    (place,) = places(datetime.fromisoformat("2023-10-28T23:30"), zone, is_elapsed=True)
    assert (place.instant, place.fold, place.touch) == (datetime(2023, 10, 29, 1, 30, tzinfo=UTC), 0, None)
    assert place_of(place.instant, zone).fold == 0


def test_a_single_time_beside_a_rule_by_the_hour_is_not_lost_in_a_gap():
    text = "DTSTART:20240330T000000\nRRULE:FREQ=HOURLY;INTERVAL=12\nRDATE:20240331T023000"
    assert instants(text, "Europe/Berlin", "2024-03-30T23:00", "2024-03-31T12:00", "rrule") == ["31 01:00", "31 10:00"]


zones = st.sampled_from(["Europe/Berlin", "America/Santiago", "Australia/Lord_Howe", "Africa/Casablanca", "UTC"])
rules = st.sampled_from(
    [
        ("cron", "30 2 * * *"),
        ("cron", "15,45 0-3 * * *"),
        ("cron", "*/20 * * * *"),
        ("cron", "0 */3 * * 1-5"),
        ("cron", "*/40 1-2 2 * * *"),
        ("rrule", "FREQ=HOURLY;INTERVAL=7"),
        ("rrule", "FREQ=WEEKLY;BYDAY=SA,SU;BYHOUR=0,1,2,3;BYMINUTE=0,30"),
        ("rrule", "FREQ=MONTHLY;BYDAY=-1SU;BYHOUR=2;BYMINUTE=30;COUNT=20"),
        ("interval", "100m"),
    ]
)
# around the changes of the zones above in 2024
moments = st.builds(
    lambda day, seconds: datetime.fromisoformat(day + "T00:00Z") + timedelta(seconds=seconds),
    st.sampled_from(["2024-03-31", "2024-10-27", "2024-04-06", "2024-09-07", "2024-10-05", "2024-03-10", "2024-04-14"]),
    st.integers(-90_000, 180_000),
)


@given(zones, rules, moments)
@settings(max_examples=200, deadline=None)
def test_the_next_occurrence_after_a_moment_is_later_than_it(zone: str, written: tuple[str, str], moment: datetime):
    """DS6, also where the moment lies in a repeated hour."""
    found = plan(rule(*written, zone), moment, 8)
    assert all(due > moment for due in found.dues)
    keys = list(zip(found.dues, found.nominals, found.folds, strict=True))
    assert keys == sorted(set(keys))


@given(zones, rules, moments, st.lists(st.integers(1, 7), min_size=1, max_size=6))
@settings(max_examples=100, deadline=None)
def test_a_plan_in_pieces_is_the_plan_in_one_go(
    zone: str, written: tuple[str, str], moment: datetime, sizes: list[int]
):
    one = rule(*written, zone, spread=timedelta(seconds=19))
    pieces: list[tuple[datetime, int, object]] = []
    after = moment
    for size in sizes:
        piece = plan(one, after, size)
        pieces += zip(piece.nominals, piece.folds, piece.notes, strict=True)
        after = piece.dues[-1] if piece.dues else after
    whole = plan(one, moment, max(1, len(pieces)))
    assert pieces == list(zip(whole.nominals, whole.folds, whole.notes, strict=True))[: len(pieces)]


@given(zones, rules, moments, st.integers(0, 100_000))
@settings(max_examples=100, deadline=None)
def test_plans_from_two_moments_agree_on_what_both_hold(
    zone: str, written: tuple[str, str], early: datetime, seconds: int
):
    one, late = rule(*written, zone), early + timedelta(seconds=seconds)
    later, _ = next_occurrences(one, late, 10)
    earlier, _ = next_occurrences(one, early, 120)
    assert [each for each in earlier if each.due_at > late][: len(later)] == later[: len(earlier)]


def test_every_zone_that_is_offered_can_be_used():
    for name in zone_rules().names():
        assert plan(rule("cron", "0 9 * * *", name), CREATED, 1).dues
