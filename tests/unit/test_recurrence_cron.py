"""Cron expressions: what they mean, and with which words the others are refused."""

from datetime import UTC, datetime
from typing import Any

import pytest
from cronsim import CronSim
from hypothesis import given, settings
from hypothesis import strategies as st

from accsd.errors import InvalidValue
from accsd.planning.recurrence import Rule, RuleKind, parse_rule
from accsd.planning.recurrence.cron import MONTH_DAY, WEEK_DAY, parse_cron, values_of
from tests.support.effort import refusal_within_50_ms
from tests.support.occurrences import plan

CREATED = datetime(2025, 12, 1, tzinfo=UTC)


def cron(expr: str, zone: str = "UTC", **more: Any) -> Rule:
    arguments: dict[str, Any] = {"schedule_id": "s", "created_at": CREATED} | more
    return parse_rule("cron", expr, zone, **arguments)


def nominals(expr: str, n: int, **more: Any) -> list[str]:
    return [f"{each:%Y-%m-%d %H:%M:%S}" for each in plan(cron(expr, **more), CREATED, n).nominals]


def test_nine_on_working_days():
    """The first example of the seed."""
    assert nominals("0 9 * * 1-5", 6) == [f"2025-12-0{day} 09:00:00" for day in (1, 2, 3, 4, 5, 8)]


@pytest.mark.parametrize(
    ("expr", "first", "second"),
    [
        ("*/20 * * * * *", "2025-12-01 00:00:20", "2025-12-01 00:00:40"),
        ("0 0 L * *", "2025-12-31 00:00:00", "2026-01-31 00:00:00"),
        ("0 0 LW * *", "2025-12-31 00:00:00", "2026-01-30 00:00:00"),
        ("0 0 * * 5L", "2025-12-26 00:00:00", "2026-01-30 00:00:00"),
        ("0 0 * * FRIL", "2025-12-26 00:00:00", "2026-01-30 00:00:00"),
        ("0 0 * * MON#2", "2025-12-08 00:00:00", "2026-01-12 00:00:00"),
        ("0 0 * * 7", "2025-12-07 00:00:00", "2025-12-14 00:00:00"),
        ("0 0 * jan,MAR *", "2026-01-01 00:00:00", "2026-01-02 00:00:00"),
        ("0 0 13 * 5", "2025-12-05 00:00:00", "2025-12-12 00:00:00"),
        ("0 0 */2 * 1", "2025-12-15 00:00:00", "2025-12-29 00:00:00"),
        ("5/25 4 * * *", "2025-12-01 04:05:00", "2025-12-01 04:30:00"),
        ("@hourly", "2025-12-01 01:00:00", "2025-12-01 02:00:00"),
        ("@daily", "2025-12-02 00:00:00", "2025-12-03 00:00:00"),
        ("@weekly", "2025-12-07 00:00:00", "2025-12-14 00:00:00"),
        ("@Monthly", "2026-01-01 00:00:00", "2026-02-01 00:00:00"),
        ("@yearly", "2026-01-01 00:00:00", "2027-01-01 00:00:00"),
        ("0 0 29 2 *", "2028-02-29 00:00:00", "2032-02-29 00:00:00"),
    ],
)
def test_an_expression_means(expr: str, first: str, second: str):
    """CR1."""
    assert nominals(expr, 2) == [first, second]


@pytest.mark.parametrize(
    ("expr", "field", "instead"),
    [
        ("60 * * * *", "minute", "0 to 59"),
        ("* 24 * * *", "hour", "0 to 23"),
        ("* * 0 * *", "day of month", "1 to 31"),
        ("* * 32 * *", "day of month", "1 to 31"),
        ("* * * 13 *", "month", "1 to 12"),
        ("* * * FOO *", "month", "JAN to DEC"),
        ("* * * * 8", "day of week", "0 to 7"),
        ("* * * * MON#6", "day of week", "MON#1 to MON#5"),
        ("* * * * MON#0", "day of week", "MON#1 to MON#5"),
        ("61 * * * * *", "second", "0 to 59"),
        ("*/0 * * * *", "minute", "1 or more"),
        ("*/70 * * * *", "minute", "@every 70m"),
        ("* */25 * * *", "hour", "@every 25h"),
        ("* * */32 * *", "day of month", "@every 32d"),
        ("* * * * */8", "day of week", ""),
        ("10-20/15 * * * *", "minute", "@every 15m"),
        ("* 22-4 * * *", "hour", "write 22-23,0-4"),
        ("* * * * FRI-MON", "day of week", "write 5-6,0-1"),
        ("* * * * 6-0", "day of week", "write 6,0"),
        ("* * * NOV-FEB *", "month", "write 11-12,1-2"),
        ("* * ? * *", "day of month", "write *"),
        ("* * 15W * *", "day of month", "LW"),
        ("* * L-3 * *", "day of month", "BYMONTHDAY=-3"),
        ("* * * * L", "day of week", "5L"),
        ("* L * * *", "hour", "day of month"),
        ("0 0 31 2 *", "day of month", "last day"),
        ("0 0 31 4,6,9,11 *", "day of month", "last day"),
        ("0 0 30,31 FEB *", "day of month", "last day"),
        ("* * H * *", "day of month", "minute and hour only"),
        ("H(30-10) * * * *", "minute", "H(10-30)"),
        ("H(0-70) * * * *", "minute", "0 to 59"),
        ("H/0 * * * *", "minute", "1 to 60"),
        ("H(0-9)/11 * * * *", "minute", "1 to 10"),
        ("1,,2 * * * *", "minute", ""),
        ("1-2-3 * * * *", "minute", "*/15"),
        ("1/2/3 * * * *", "minute", "*/15"),
        ("-5 * * * *", "minute", "*/15"),
        ("1.5 * * * *", "minute", "*/15"),
        ("99999999999999999999 * * * *", "minute", "*/15"),
    ],
)
def test_a_refusal_names_the_field_and_what_to_write_instead(expr: str, field: str, instead: str):
    """CR2, CR3."""
    with pytest.raises(InvalidValue) as refusal:
        cron(expr)
    assert f"the {field} field" in refusal.value.message
    assert instead in (refusal.value.hint or "")


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("", "empty"),
        ("   ", "empty"),
        ("* * * *", "5 fields"),
        ("0 0 1 1 * 2030 *", "year"),
        ("0 0 0 1 1 * 2030", "year"),
        ("* * * * * * * *", "5 fields"),
        ("@reboot", "@hourly"),
        ("@every", "interval"),
        ("@every 0s", "seconds"),
        ("@every -5m", "interval"),
        ("CRON_TZ=UTC 0 9 * * *", "time zone"),
        ("0 0 */31 2 1#5", "never fires"),
        ("٣ * * * *", "ASCII"),
        ("0 9 * * 1-5\x00", "ASCII"),
        (",".join(["1"] * 10_000) + " * * * *", "characters"),
        ("*" * 1_000_000, "characters"),
        ("<script>alert(1)</script>", "5 fields"),
        ("0 9 * * 1-5; rm -rf /", "5 fields"),
    ],
)
def test_a_hostile_expression_is_refused_within_50_ms(expr: str, words: str):
    """CR4."""
    refusal = refusal_within_50_ms(lambda: cron(expr))
    assert words in f"{refusal.message} {refusal.hint}"
    assert len(refusal.message) < 300


def test_h_is_a_share_of_the_schedule_that_never_changes():
    """CR3: written down, so that no later version changes when schedules are due."""
    one = cron("H H(0-7) * * *", schedule_id="0197a5b2-0000-7000-8000-000000000001")
    assert (one.expr, one.expanded) == ("H H(0-7) * * *", "16 3 * * *")
    quarters = cron("H/15 * * * *", schedule_id="0197a5b2-0000-7000-8000-000000000001")
    assert quarters.expanded == "4,19,34,49 * * * *"


def test_h_is_spread_evenly_over_schedules():
    minutes = [int(cron("H 3 * * *", schedule_id=str(number)).expanded.split()[0]) for number in range(600)]
    assert len(set(minutes)) == 60
    assert max(minutes.count(minute) for minute in range(60)) < 30


def test_every_in_a_cron_becomes_an_interval():
    """KI1."""
    one = cron("@every 90m")
    assert (one.kind, one.expanded) == (RuleKind.INTERVAL, "90m")


@pytest.mark.parametrize(
    ("expr", "is_elapsed"),
    [
        ("30 2 * * *", False),
        ("0 9-17 * * *", False),
        ("0,30 2 * * *", False),
        ("H 2 * * *", False),
        ("* 2 * * *", True),
        ("*/5 2 * * *", True),
        ("0 * * * *", True),
        ("H */2 * * *", True),
        ("0 30 2 * * *", False),
        ("* 30 2 * * *", True),
    ],
)
def test_a_star_in_the_time_makes_an_expression_elapsed(expr: str, is_elapsed: bool):
    """4.4: Debian's distinction."""
    assert parse_cron(expr, "s").is_elapsed is is_elapsed


numbers = st.integers(0, 59)
minute_fields = st.one_of(
    st.just("*"),
    numbers.map(str),
    st.integers(1, 60).map("*/{}".format),
    st.lists(numbers, min_size=1).map(lambda each: ",".join(map(str, each))),
)
day_fields = st.one_of(st.just("*"), st.integers(1, 28).map(str), st.just("L"), st.just("1-7"), st.just("*/3"))
week_fields = st.one_of(st.just("*"), st.integers(0, 7).map(str), st.just("MON-FRI"), st.just("5L"), st.just("2#3"))


@given(minute_fields, day_fields, week_fields)
@settings(max_examples=150, deadline=None)
def test_what_is_accepted_means_what_cronsim_says(minute: str, day: str, weekday: str):
    expr = f"{minute} 4 {day} * {weekday}"
    if len(expr) > 390:
        return
    after = CREATED.replace(tzinfo=None)
    theirs = CronSim(expr.replace("MON-FRI", "1-5"), after)
    assert list(plan(cron(expr), CREATED, 5).nominals)[:5] == [next(theirs) for _ in range(5)]


def test_the_values_of_a_field_are_what_a_reader_expects():
    assert values_of(WEEK_DAY, "5-7") == {5, 6, 0}
    assert values_of(MONTH_DAY, "1,L") == {1}
    assert values_of(MONTH_DAY, "*/10") == {1, 11, 21, 31}
