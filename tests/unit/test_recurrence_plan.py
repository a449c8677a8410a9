"""Rules of all kinds as plans: points in time, bounds, spread, columns, and whether a time is an occurrence."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from accsd.errors import InvalidValue
from accsd.planning.recurrence import (
    Neighbourhood,
    Rule,
    RuleKind,
    explain,
    lint,
    occurrence_at,
    parse_rule,
    zone_rules,
)
from accsd.planning.recurrence.spread import share, shift
from tests.support.effort import refusal_within_50_ms
from tests.support.occurrences import Note, plan

CREATED = datetime(2025, 12, 1, tzinfo=UTC)


def rule(kind: str, expr: str, zone: str = "UTC", **more: Any) -> Rule:
    arguments: dict[str, Any] = {"schedule_id": "s", "created_at": CREATED} | more
    return parse_rule(kind, expr, zone, **arguments)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text + "Z")


# once


def test_once_with_an_offset_is_that_instant_and_its_nominal_is_local():
    """The third example of the seed."""
    found = plan(rule("once", "2025-12-25T09:00:00+02:00", "Europe/Berlin"), CREATED)
    assert found.dues == (utc("2025-12-25T07:00"),)
    assert found.nominals == (datetime.fromisoformat("2025-12-25T08:00"),)
    assert found.exhausted


def test_once_without_an_offset_is_local_to_the_zone():
    """4.2, with DS2 and DS3."""
    assert plan(rule("once", "2025-12-25 09:00", "Europe/Chisinau"), CREATED).dues == (utc("2025-12-25T07:00"),)
    in_gap = plan(rule("once", "2024-03-31T02:30", "Europe/Berlin"), utc("2024-01-01T00:00"))
    assert in_gap.dues == (utc("2024-03-31T01:00"),)
    in_fold = plan(rule("once", "2024-10-27T02:30", "Europe/Berlin"), utc("2024-01-01T00:00"))
    assert (in_fold.dues, in_fold.folds) == ((utc("2024-10-27T00:30"),), (0,))


def test_once_with_an_offset_can_name_the_second_pass_of_a_repeated_hour():
    found = plan(rule("once", "2024-10-27T02:30:00+01:00", "Europe/Berlin"), utc("2024-01-01T00:00"))
    assert (found.nominals, found.folds) == ((datetime.fromisoformat("2024-10-27T02:30"),), (1,))


def test_once_in_the_past_is_exhausted():
    found = plan(rule("once", "2025-11-25T09:00:00Z"), CREATED)
    assert (len(found), found.exhausted) == (0, True)


@pytest.mark.parametrize(
    "expr",
    [
        *("", "tomorrow", "2025-02-30T09:00", "2025-12-25T25:00", "12/25/2025", "1766649600", "2025-W52-4", "20251225"),
        *("2025-12-25T09:00:00+25:00", "2025-12-25T09:00:00 Europe/Berlin", "0001-01-01T00:00:00", "9999-12-31T23:59"),
        *("2025-12-25T09:00:60", "infinity", "٢٠٢٥-12-25", "2025-12-25T09:00:00" + "0" * 1_000_000),
    ],
)
def test_a_time_that_is_none_is_refused_within_50_ms(expr: str):
    refusal_within_50_ms(lambda: rule("once", expr))


# interval


@pytest.mark.parametrize(
    ("expr", "every"),
    [
        ("90m", timedelta(minutes=90)),
        ("1h30m", timedelta(minutes=90)),
        ("PT90M", timedelta(minutes=90)),
        ("pt1h30m", timedelta(minutes=90)),
        ("P1DT12H", timedelta(hours=36)),
        ("P2W", timedelta(weeks=2)),
        ("1s", timedelta(seconds=1)),
        ("0.5h", timedelta(minutes=30)),
    ],
)
def test_an_interval_counts_from_the_epoch(expr: str, every: timedelta):
    """KI1."""
    dues = plan(rule("interval", expr), CREATED, 3).dues
    assert dues[1] - dues[0] == every
    assert (dues[0] - datetime(1970, 1, 1, tzinfo=UTC)) % every == timedelta(0)


def test_an_interval_counts_from_start_at_where_there_is_one():
    """KI1: its phase does not move with the moment that is asked about."""
    one = rule("interval", "90m", start_at=utc("2025-12-01T00:10"))
    assert plan(one, CREATED, 2).dues == (utc("2025-12-01T00:10"), utc("2025-12-01T01:40"))
    assert plan(one, utc("2025-12-01T01:39"), 1).dues == (utc("2025-12-01T01:40"),)


def test_an_interval_knows_no_summer_time():
    """KI1: the nominal times are those that the clock shows."""
    found = plan(rule("interval", "30m", "Europe/Berlin"), utc("2024-10-26T23:45"), 4)
    assert [f"{each:%H:%M}" for each in found.nominals] == ["02:00", "02:30", "02:00", "02:30"]
    assert found.folds == (0, 0, 1, 1)


@pytest.mark.parametrize(
    "expr",
    [
        *("", "0s", "500ms", "1.5s", "90", "ninety", "-5m", "P1M", "P1Y", "PT", "P", "nan", "inf", "1e9s", "5m 3x"),
        *("100000d", "P9999W", "1m" * 100_000, "PT" + "9" * 5_000 + "S", "5 m o'clock"),
    ],
)
def test_an_interval_that_is_none_is_refused_within_50_ms(expr: str):
    """KI1: one second is the least."""
    refusal_within_50_ms(lambda: rule("interval", expr))


# bounds


def test_start_at_is_included_and_end_at_is_not():
    """BO1."""
    one = rule("cron", "0 9 * * *", start_at=utc("2025-12-03T09:00"), end_at=utc("2025-12-05T09:00"))
    found = plan(one, CREATED)
    assert found.dues == (utc("2025-12-03T09:00"), utc("2025-12-04T09:00"))
    assert found.exhausted


def test_bounds_are_about_instants_and_not_about_due_times():
    """BO1 with SP1."""
    one = rule("cron", "0 9 * * *", end_at=utc("2025-12-02T09:01"), spread=timedelta(hours=5))
    assert plan(one, utc("2025-12-02T00:00")).dues == (utc("2025-12-02T09:00") + one.shift,)


def test_bounds_that_leave_nothing_are_refused():
    with pytest.raises(InvalidValue, match="end_at"):
        rule("cron", "0 9 * * *", start_at=CREATED, end_at=CREATED)
    with pytest.raises(InvalidValue, match="offset"):
        rule("cron", "0 9 * * *", start_at=datetime.fromisoformat("2025-12-03T09:00"))


def test_a_plan_knows_whether_anything_follows():
    """BO2."""
    three = rule("rrule", "FREQ=DAILY;COUNT=3", anchor=datetime.fromisoformat("2025-12-02T00:00"))
    assert [plan(three, CREATED, n).exhausted for n in (1, 2, 3, 4)] == [False, False, True, True]
    assert not plan(rule("cron", "0 0 29 2 *"), CREATED, 1_000).exhausted


# spread


def test_a_spread_is_the_same_for_each_occurrence_and_leaves_the_nominal_round():
    """SP1."""
    one = rule("cron", "0 9 * * *", spread=timedelta(minutes=10))
    found = plan(one, CREATED, 3)
    assert {due - nominal.replace(tzinfo=UTC) for due, nominal in zip(found.dues, found.nominals, strict=True)} == {
        one.shift
    }
    assert timedelta(0) < one.shift < timedelta(minutes=10)


def test_a_share_never_changes():
    """SP1: written down, so that no later version changes when schedules are due."""
    assert shift("0197a5b2-0000-7000-8000-000000000001", timedelta(minutes=10)) == timedelta(
        seconds=190, microseconds=848763
    )
    shares = [share(str(number), "spread", 1_000) for number in range(5_000)]
    assert 480 < sum(shares) / len(shares) < 520
    assert (min(shares), max(shares)) == (0, 999)


def test_next_after_the_instant_but_before_the_due_time_is_that_occurrence():
    one = rule("cron", "0 9 * * *", spread=timedelta(minutes=10))
    assert plan(one, utc("2025-12-01T09:00"), 1).dues == (utc("2025-12-01T09:00") + one.shift,)
    assert plan(one, utc("2025-12-01T09:00") + one.shift, 1).nominals == (datetime.fromisoformat("2025-12-02T09:00"),)


@pytest.mark.parametrize(
    ("expr", "spread"),
    [
        ("0 9 * * *", timedelta(hours=24)),
        ("0,5 9 * * *", timedelta(minutes=5)),
        ("* * * * *", timedelta(minutes=1)),
        ("0 9 * * *", timedelta(seconds=-1)),
    ],
)
def test_a_spread_as_long_as_the_shortest_gap_is_refused(expr: str, spread: timedelta):
    """SP2."""
    with pytest.raises(InvalidValue, match="spread"):
        rule("cron", expr, spread=spread)


# columns


def test_a_plan_has_columns_of_equal_length_with_notes():
    found = plan(rule("cron", "15,45 2 * * *", "Europe/Berlin"), utc("2024-03-30T12:00"), 3)
    into = datetime.fromisoformat("2024-03-31T02:15")
    assert found.notes == (None, Note(merged_into=into), None)
    assert len(found.nominals) == len(found.folds) == len(found.dues) == len(found) == 3


def test_a_plan_does_not_tear_what_is_due_at_one_instant():
    """A plan that continues after the last due time would lose the rest."""
    found = plan(rule("cron", "15,45 2 * * *", "Europe/Berlin"), utc("2024-03-30T12:00"), 1)
    assert len(found) == 2


@pytest.mark.parametrize("n", [0, -1, 10_001])
def test_a_plan_of_too_many_or_none_is_refused(n: int):
    with pytest.raises(InvalidValue):
        plan(rule("cron", "0 9 * * *"), CREATED, n)


def test_a_plan_needs_an_instant():
    with pytest.raises(InvalidValue, match="offset"):
        plan(rule("cron", "0 9 * * *"), datetime.fromisoformat("2025-12-01T00:00"))


@pytest.mark.parametrize("kind", ["event", "condition", "CRON", "", "x" * 1_000])
def test_kinds_without_times_are_not_of_this_room(kind: str):
    with pytest.raises(InvalidValue, match="kind"):
        rule(kind, "0 9 * * *")


def test_the_same_arguments_make_the_same_rule():
    assert rule("rrule", "FREQ=DAILY", "Europe/Berlin") == rule("rrule", "FREQ=DAILY", "Europe/Berlin")
    assert rule("cron", "0 9 * * *").kind is RuleKind.CRON


# is this an occurrence?


def around(one: Rule, local: str) -> tuple[list[str], str, str]:
    found: Neighbourhood = occurrence_at(one, datetime.fromisoformat(local))
    named = [f"{each.nominal:%m-%d %H:%M}" + "+" * each.fold for each in found.named]
    before, after = (f"{each.nominal:%m-%d %H:%M}" if each else "" for each in (found.before, found.after))
    return named, before, after


@pytest.mark.parametrize(
    ("kind", "expr", "local", "expected"),
    [
        ("cron", "0 9 * * 1-5", "2025-12-05T09:00", (["12-05 09:00"], "12-04 09:00", "12-08 09:00")),
        ("cron", "0 9 * * 1-5", "2025-12-06T09:00", ([], "12-05 09:00", "12-08 09:00")),
        ("cron", "30 2 * * *", "2024-03-31T02:30", (["03-31 02:30"], "03-30 02:30", "04-01 02:30")),
        ("cron", "*/15 * * * *", "2024-03-31T02:30", ([], "03-31 01:45", "03-31 03:00")),
        ("cron", "0 * * * *", "2024-10-27T02:00", (["10-27 02:00", "10-27 02:00+"], "10-27 01:00", "10-27 03:00")),
        ("cron", "30 2 * * *", "2024-10-27T02:30", (["10-27 02:30"], "10-26 02:30", "10-28 02:30")),
        ("interval", "90m", "2025-12-01T01:00", (["12-01 01:00"], "11-30 23:30", "12-01 02:30")),
        ("once", "2025-12-25T09:00", "2025-12-25T09:01", ([], "12-25 09:00", "")),
        ("once", "2025-12-25T09:00", "2025-12-25T08:59", ([], "", "12-25 09:00")),
        ("cron", "0 0 29 2 *", "2025-12-25T08:59", ([], "02-29 00:00", "02-29 00:00")),
    ],
)
def test_a_local_time_is_an_occurrence_or_has_neighbours(kind: str, expr: str, local: str, expected: Any):
    """LG6, SK1."""
    assert around(rule(kind, expr, "Europe/Berlin"), local) == expected


# hostile input

Made = TypeVar("Made")
WORDS = st.sampled_from(
    [
        *("*", "/", "-", ",", "#", "L", "W", "H", "(", ")", " ", "  ", "?", "0", "1", "5", "7", "29", "31", "59", "60"),
        *("MON", "FEB", "@every ", "@daily", "90m", "PT", "P", "T", "Z", "+02:00", ":", "2025-12-25", "2999", "\n"),
        *("FREQ=", "SECONDLY", "DAILY", "MONTHLY", "YEARLY", ";", "INTERVAL=", "COUNT=", "UNTIL=", "BYDAY=", "-1FR"),
        *("BYHOUR=", "BYMONTH=", "BYMONTHDAY=", "BYSETPOS=", "BYWEEKNO=", "RDATE:", "EXDATE:", "DTSTART:", "TZID="),
        *("20251225T090000", "999999999", "\x00", "\ud800", "😀", "٣", "%s", "../"),
    ]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(WORDS, max_size=14).map("".join))


def made(make: Callable[[], Made]) -> Made | str:
    """What was made, or the reason why not."""
    try:
        return make()
    except InvalidValue as refusal:
        return refusal.message


@given(st.sampled_from(list(RuleKind)), TEXTS, st.sampled_from(["UTC", "Europe/Berlin"]))
@example(RuleKind.RRULE, "FREQ=YEARLY;BYMONTH=12;INTERVAL=999999999", "UTC")
@settings(max_examples=1_500, deadline=None)
def test_any_text_is_a_rule_that_can_be_planned_or_is_refused_with_a_reason(kind: RuleKind, expr: str, zone: str):
    one = made(lambda: rule(kind, expr, zone))
    if isinstance(one, str):
        assert one.isprintable()
        return
    assert all(due > CREATED for due in plan(one, CREATED, 8).dues)
    assert explain(one)
    lint(one, CREATED)


@given(TEXTS)
def test_any_text_is_a_zone_or_is_refused_with_a_reason(name: str):
    zone = made(lambda: zone_rules().zone(name))
    assert zone.isprintable() if isinstance(zone, str) else zone.name == name.strip()
