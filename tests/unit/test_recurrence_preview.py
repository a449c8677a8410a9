"""What people are shown of a rule: the preview with its marks, the sentences, the warnings."""

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from accsd.errors import InvalidValue
from accsd.planning.recurrence import (
    Mark,
    MarkKind,
    Rule,
    calendar_from_list,
    explain,
    lint,
    missed_in_words,
    next_in_words,
    overlap_in_words,
    parse_rule,
    preview,
)
from tests.support.effort import seconds

CREATED = datetime(2026, 11, 20, 18, 30, tzinfo=UTC)


def rule(kind: str, expr: str, zone: str = "Europe/Chisinau", **more: Any) -> Rule:
    arguments: dict[str, Any] = {"schedule_id": "s", "created_at": CREATED} | more
    return parse_rule(kind, expr, zone, **arguments)


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text + "Z")


def marked(one: Rule, after: str, n: int, **more: Any) -> list[tuple[str, str, list[str]]]:
    rows = preview(one, utc(after), n, **more)
    return [(f"{row.nominal:%H:%M}", row.abbreviation, [mark.kind.value for mark in row.marks]) for row in rows]


# preview


def test_a_preview_marks_what_a_change_of_the_clock_moved_doubled_or_merged():
    """PV1, DS8."""
    gap = rule("cron", "15,45 2 * * *", "Europe/Berlin")
    assert marked(gap, "2024-03-30T12:00", 3) == [
        ("02:15", "CEST", ["moved"]),
        ("02:45", "CEST", ["moved", "merged"]),
        ("02:15", "CEST", []),
    ]
    fold = rule("cron", "0 * * * *", "Europe/Berlin")
    assert marked(fold, "2024-10-26T23:30", 3) == [
        ("02:00", "CEST", ["doubled"]),
        ("02:00", "CET", ["doubled"]),
        ("03:00", "CET", []),
    ]


def test_marks_are_told_in_words():
    """DS8."""
    rows = preview(rule("cron", "15,45 2 * * *", "Europe/Berlin"), utc("2024-03-30T12:00"), 2)
    assert [mark.words for mark in rows[1].marks] == [
        "the clock skips 02:45 on this day: due at 03:00 instead",
        "one run with 02:15, which is due at the same instant",
    ]
    first = preview(rule("cron", "30 2 * * *", "Europe/Berlin"), utc("2024-10-26T12:00"), 1)[0]
    assert first.marks[0].words == "the clock shows 02:30 twice on this day: due at the first"


def test_a_preview_marks_what_is_excluded_and_what_comes_after_the_end():
    """PV1."""
    holidays = calendar_from_list("holidays", ["2026-11-22 a Sunday"])
    one = rule("cron", "0 9 * * *", exclude=[holidays], end_at=utc("2026-11-23T00:00"))
    assert marked(one, "2026-11-20T18:30", 3) == [
        ("09:00", "EET", []),
        ("09:00", "EET", ["excluded"]),
        ("09:00", "EET", ["after_end"]),
    ]
    assert [row.fires for row in preview(one, CREATED, 3)] == [True, False, False]


def test_a_preview_takes_skips_and_snoozes_from_its_caller():
    """PV1: a snoozed occurrence stands where it is due now."""
    nominal = datetime.fromisoformat
    skip = Mark(MarkKind.SKIPPED, "by ada: nobody is there")
    snooze = Mark(MarkKind.SNOOZED, "by ada", until=utc("2026-11-23T08:00"))
    marks = {(nominal("2026-11-21T09:00"), 0): skip, (nominal("2026-11-22T09:00"), 0): snooze}
    rows = preview(rule("cron", "0 9 * * *"), CREATED, 3, marks=marks)
    assert [row.nominal.day for row in rows] == [21, 23, 22]
    assert [row.fires for row in rows] == [False, True, True]
    assert rows[2].due_at == utc("2026-11-23T08:00")


def test_a_preview_marks_what_no_run_is_left_for():
    """BO1: what does not fire does not count."""
    holidays = calendar_from_list("holidays", ["2026-11-21"])
    rows = preview(rule("cron", "0 9 * * *", exclude=[holidays]), CREATED, 4, runs_left=2)
    assert [[mark.kind.value for mark in row.marks] for row in rows] == [["excluded"], [], [], ["after_end"]]


@pytest.mark.parametrize("n", [0, 1_001])
def test_a_preview_is_of_a_thousand_at_most(n: int):
    with pytest.raises(InvalidValue, match="preview"):
        preview(rule("cron", "0 9 * * *"), CREATED, n)


@pytest.mark.parametrize(
    ("kind", "expr"),
    [
        ("cron", "0 9 * * 1-5"),
        ("cron", "* * * * *"),
        ("cron", "0 0 * * 5L"),
        ("cron", "0 0 29 2 *"),
        ("rrule", "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17"),
        ("rrule", "FREQ=MINUTELY;INTERVAL=7"),
        ("rrule", "FREQ=YEARLY;BYDAY=20MO"),
        ("interval", "90m"),
    ],
)
def test_a_thousand_occurrences_are_previewed_within_100_ms(kind: str, expr: str):
    one = rule(kind, expr)
    assert seconds(lambda: preview(one, CREATED, 1_000)) < 0.1


# words


@pytest.mark.parametrize(
    ("kind", "expr", "words"),
    [
        ("cron", "30 2 * * 1-5", "At 02:30 on Monday through Friday, Europe/Chisinau."),
        ("cron", "0 0 31 * *", "At 00:00 on the 31st day of every month, Europe/Chisinau."),
        (
            "cron",
            "0 0 13 * 5",
            "At 00:00 on the 13th day of month and on Friday (either of the two days is enough), Europe/Chisinau.",
        ),
        (
            "cron",
            "0 0 */2 * 1",
            "At 00:00 on every second day of month if it's on Monday (both must hold), Europe/Chisinau.",
        ),
        ("cron", "0 0 * * 0,7", "At 00:00 on Sunday, Europe/Chisinau."),
        ("cron", "@every 90m", "Every 90 minutes, in real time, Europe/Chisinau."),
        ("interval", "PT1H", "Every hour, in real time, Europe/Chisinau."),
        ("once", "2025-12-25T09:00:00+02:00", "Once, on Thu 25 Dec 2025 at 09:00, Europe/Chisinau."),
        ("rrule", "FREQ=MONTHLY;BYDAY=-1FR;BYHOUR=17", "Every month on the last Friday at 17:00, Europe/Chisinau."),
        ("rrule", "FREQ=DAILY;BYHOUR=9,17;COUNT=4", "Every day at 09:00 and 17:00, 4 times, Europe/Chisinau."),
        (
            "rrule",
            "FREQ=WEEKLY;INTERVAL=2;BYDAY=FR,MO;BYHOUR=9;UNTIL=20271231",
            "Every 2 weeks on Monday and Friday at 09:00, until 2027-12-31 23:59, Europe/Chisinau.",
        ),
        (
            "rrule",
            "FREQ=YEARLY;BYMONTH=11;BYDAY=4TH\nEXDATE:20271125",
            "Every year on the 4th Thursday in November at 00:00, but for 1 excepted date, Europe/Chisinau.",
        ),
        (
            "rrule",
            "FREQ=MONTHLY;BYMONTHDAY=1,-2;BYHOUR=8;BYMINUTE=30",
            "Every month on the 2nd last and 1st day of the month at 08:30, Europe/Chisinau.",
        ),
        (
            "rrule",
            "FREQ=MONTHLY;BYDAY=MO,TU,WE,TH,FR;BYSETPOS=-1",
            "Every month on Monday, Tuesday, Wednesday, Thursday and Friday at 00:00, of these only the last of each "
            "month, Europe/Chisinau.",
        ),
        (
            "rrule",
            "FREQ=MINUTELY;INTERVAL=15;BYHOUR=9,10",
            "Every 15 minutes in hours 9 and 10, Europe/Chisinau.",
        ),
        ("rrule", "FREQ=HOURLY;BYMINUTE=5", "Every hour at minute 5, Europe/Chisinau."),
        ("rrule", "FREQ=DAILY;BYMINUTE=0,5,10,15,20,25,30", "Every day at 7 times of day, Europe/Chisinau."),
        ("rrule", "FREQ=YEARLY;BYYEARDAY=100", "Every year on the 100th day of the year at 00:00, Europe/Chisinau."),
        (
            "rrule",
            "FREQ=YEARLY;BYWEEKNO=20;BYDAY=MO",
            "Every year on Monday in the 20th week of the year at 00:00, Europe/Chisinau.",
        ),
        ("rrule", "RDATE:20271225T090000", "At 1 single time, Europe/Chisinau."),
    ],
)
def test_a_rule_is_explained_in_words(kind: str, expr: str, words: str):
    """PV2; CR1: the explanation says how days of month and of week go together."""
    assert explain(rule(kind, expr)) == words


def test_bounds_spread_and_calendars_are_explained():
    """PV2."""
    holidays = calendar_from_list("holidays", ["2026-12-25"])
    told = explain(rule("cron", "0 9 * * *", start_at=CREATED, end_at=utc("2027-01-01T00:00"), exclude=[holidays]))
    assert told == (
        "At 09:00 every day, Europe/Chisinau. Not before 2026-11-20 18:30 UTC. No longer at 2027-01-01 00:00 UTC. "
        "Not on the days of the calendar holidays."
    )
    assert "later, its share of 10 minutes." in explain(rule("cron", "0 9 * * *", spread=timedelta(minutes=10)))
    assert "Only on the days of the calendar holidays." in explain(rule("cron", "0 9 * * *", only_on=[holidays]))


def test_policies_are_explained():
    """PV2."""
    assert missed_in_words("one") == "If accsd was down: once, for the latest."
    said = missed_in_words("all", catch_up=timedelta(hours=2), most=5)
    assert said == "If accsd was down: for each time, the oldest first, at most 5, if it is not older than 2 hours."
    assert overlap_in_words("skip") == "If the last run still runs: skipped."
    for missed in ("skip", "one", "all"):
        assert missed_in_words(missed)
    for overlap in ("allow", "skip", "queue", "queue_all", "cancel"):
        assert overlap_in_words(overlap)
    with pytest.raises(InvalidValue, match="missed"):
        missed_in_words("never")


@pytest.mark.parametrize(
    ("kind", "expr", "words"),
    [
        ("cron", "30 2 * * 1-5", "Next: Mon 23 Nov 02:30 (in 2 days)."),
        ("cron", "30 2 * * *", "Next: Sat 21 Nov 02:30 (in 6 h)."),
        ("cron", "31 * * * *", "Next: Fri 20 Nov 20:31 (in 1 min)."),
        ("cron", "0 0 1 1 *", "Next: Fri 1 Jan 2027 00:00 (in 41 days)."),
        ("once", "2025-12-25T09:00:00+02:00", "Nothing follows."),
    ],
)
def test_the_next_time_is_told_with_its_distance(kind: str, expr: str, words: str):
    """PV2."""
    assert next_in_words(rule(kind, expr), CREATED) == words


# lint


def codes(one: Rule, **more: Any) -> list[str]:
    return [warning.code for warning in lint(one, CREATED, **more)]


@pytest.mark.parametrize(
    ("kind", "expr", "zone", "expected"),
    [
        ("cron", "0 9 * * 1-5", "Europe/Chisinau", []),
        ("cron", "0 0 29 2 *", "UTC", ["not_within_a_year", "short_months"]),
        ("cron", "0 0 13 * 5", "UTC", ["day_or_weekday"]),
        ("cron", "*/7 * * * *", "UTC", ["uneven_step"]),
        ("cron", "0 */5 * * *", "UTC", ["uneven_step"]),
        ("cron", "0 0 */2 * *", "UTC", ["uneven_step"]),
        ("cron", "*/15 * * * *", "Europe/Chisinau", []),
        ("cron", "0 0 31 * *", "UTC", ["short_months"]),
        ("cron", "0 0 25-31 * *", "UTC", []),
        ("cron", "0 0 31 1,3 *", "UTC", []),
        ("cron", "0 0 L * *", "UTC", []),
        ("cron", "30 2 * * *", "Europe/Berlin", ["touches_dst_change"]),
        ("cron", "0 */2 * * *", "Europe/Berlin", ["touches_dst_change"]),
        ("cron", "0 * * * *", "Europe/Berlin", []),
        ("cron", "0 9 * * *", "EST", ["zone_abbreviation"]),
        ("once", "2025-12-25T09:00:00+02:00", "UTC", ["once_in_the_past"]),
        ("once", "2030-12-25T09:00:00+02:00", "UTC", ["not_within_a_year"]),
        ("rrule", "FREQ=MONTHLY;BYMONTHDAY=30", "UTC", ["short_months"]),
        ("rrule", "DTSTART:20260131T090000\nRRULE:FREQ=MONTHLY", "UTC", ["short_months"]),
        ("rrule", "DTSTART:20200101T090000\nRRULE:FREQ=DAILY;UNTIL=20210101", "UTC", ["never_again"]),
        ("interval", "7m", "Europe/Berlin", []),
    ],
)
def test_what_is_probably_not_meant_is_warned_of(kind: str, expr: str, zone: str, expected: list[str]):
    """PV3, TZ1."""
    assert codes(rule(kind, expr, zone)) == expected


def test_a_zone_without_summer_time_comes_with_the_usual_one():
    """TZ1."""
    warning = lint(rule("cron", "0 9 * * *", "MST"), CREATED)[0]
    assert "America/Denver" in (warning.hint or "")


def test_figures_of_the_database_are_warned_of():
    """PV3."""
    assert codes(rule("cron", "0 9 * * *"), sharing=12) == ["shared_full_hour"]
    assert codes(rule("cron", "7 9 * * *"), sharing=12) == []
    assert codes(rule("cron", "0 9 * * *"), sharing=3) == []
    assert codes(rule("cron", "0 9 * * *", spread=timedelta(minutes=5)), sharing=12) == []
    assert codes(rule("cron", "*/10 * * * *"), usual_run=timedelta(minutes=11)) == ["shorter_than_its_run"]
    assert codes(rule("cron", "*/10 * * * *"), usual_run=timedelta(minutes=9)) == []


def test_a_daemon_has_no_library_of_schedules_before_its_first_rule():
    program = """
import sys
import accsd.daemon.daemon
assert not {"cronsim", "dateutil", "tzdata", "accsd.planning.recurrence"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
