"""Calendars that exclude days: where they come from, and what they do to occurrences."""

from datetime import UTC, date, datetime
from typing import Any

import pytest

from accsd.errors import InvalidValue
from accsd.planning.recurrence import Calendar, Entry, calendar_from_ics, calendar_from_list, parse_rule, zone_rules
from tests.support.occurrences import Note, plan

CREATED = datetime(2025, 12, 20, tzinfo=UTC)

ICS = """BEGIN:VCALENDAR
VERSION:2.0
BEGIN:VEVENT
DTSTART;VALUE=DATE:20251225
DTEND;VALUE=DATE:20251227
SUMMARY:Christmas\\, both
  days
BEGIN:VALARM
DTSTART;VALUE=DATE:20300101
END:VALARM
END:VEVENT
BEGIN:VEVENT
DTSTART;TZID=Europe/Berlin:20251231T200000
DTEND;TZID=Europe/Berlin:20260101T000000
SUMMARY:New Year's Eve
END:VEVENT
BEGIN:VEVENT
DTSTART;VALUE=DATE:20260101
SUMMARY:New Year
END:VEVENT
BEGIN:VEVENT
DTSTART;VALUE=DATE:20260102
STATUS:CANCELLED
SUMMARY:Nothing
END:VEVENT
END:VCALENDAR
"""


def daily(**more: Any) -> list[tuple[str, Note | None]]:
    rule = parse_rule("cron", "0 0 * * *", "Europe/Berlin", schedule_id="s", created_at=CREATED, **more)
    found = plan(rule, datetime(2025, 12, 23, 12, tzinfo=UTC), 4)
    return [(f"{nominal:%d}", note) for nominal, note in zip(found.nominals, found.notes, strict=True)]


def test_an_excluded_occurrence_is_still_one_and_says_by_which_calendar():
    """CA1."""
    holidays = calendar_from_list("holidays", ["2025-12-25/2025-12-26 Christmas"])
    christmas = Note(calendar="holidays", label="Christmas")
    assert daily(exclude=[holidays]) == [("24", None), ("25", christmas), ("26", christmas), ("27", None)]


def test_only_on_excludes_all_other_days():
    """CA1: one of several calendars is enough, and `exclude` wins."""
    closing = calendar_from_list("closing", [{"date": "2025-12-24", "label": "month's end"}])
    more = calendar_from_list("more", [{"from": "2025-12-25", "to": "2025-12-26"}])
    holidays = calendar_from_list("holidays", [{"date": date(2025, 12, 25), "label": "Christmas"}])
    found = daily(only_on=[closing, more], exclude=[holidays])
    assert found == [
        ("24", None),
        ("25", Note(calendar="holidays", label="Christmas")),
        ("26", None),
        ("27", Note(calendar="closing, more", label="not one of its days")),
    ]


def test_the_day_is_the_local_one_or_that_of_the_calendars_own_zone():
    """00:00 in Berlin is 18:00 of the day before in New York."""
    new_york = zone_rules().zone("America/New_York")
    holidays = calendar_from_list("holidays", ["2025-12-25 Christmas"], new_york)
    assert [day for day, note in daily(exclude=[holidays]) if note] == ["26"]


def test_what_is_excluded_fires_not_even_for_others_that_are_merged():
    """DS5: on 30 December 2011 Apia had no day; its midnight and the next one are one instant."""
    holidays = calendar_from_list("holidays", ["2011-12-30 the day that was not"])
    created = datetime(2011, 12, 29, tzinfo=UTC)
    rule = parse_rule("cron", "0 0 * * *", "Pacific/Apia", schedule_id="s", created_at=created, exclude=[holidays])
    found = plan(rule, datetime(2011, 12, 30, 9, tzinfo=UTC), 2)
    assert found.dues[0] == found.dues[1]
    assert found.notes == (Note(calendar="holidays", label="the day that was not"), None)


def test_a_calendar_is_read_from_an_ics_file():
    """CA1."""
    assert calendar_from_ics("public", ICS.replace("\n", "\r\n")).entries == (
        Entry(date(2025, 12, 25), date(2025, 12, 26), "Christmas, both days"),
        Entry(date(2025, 12, 31), date(2025, 12, 31), "New Year's Eve"),
        Entry(date(2026, 1, 1), date(2026, 1, 1), "New Year"),
    )


def test_a_time_of_utc_in_an_ics_file_is_a_day_of_the_calendars_zone():
    text = "BEGIN:VEVENT\nDTSTART:20251224T230000Z\nDTEND:20251225T230000Z\nSUMMARY:Christmas\nEND:VEVENT\n"
    assert calendar_from_ics("c", text, zone_rules().zone("Europe/Berlin")).entries[0].first == date(2025, 12, 25)
    assert calendar_from_ics("c", text).entries[0].first == date(2025, 12, 24)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no events"),
        ("hello", "no events"),
        (ICS.replace("STATUS:CANCELLED", "RRULE:FREQ=YEARLY"), "repeats"),
        (ICS.replace("20260101\n", "2026\n"), "readable"),
        (ICS.replace("20260101\n", "20261301\n"), "readable"),
        (ICS.replace("DTSTART;VALUE=DATE:20260101\n", ""), "readable"),
        ("x" * 5_000_000, "characters"),
    ],
)
def test_an_ics_file_that_would_be_misread_is_refused(text: str, words: str):
    with pytest.raises(InvalidValue, match=words):
        calendar_from_ics("public", text)


@pytest.mark.parametrize(
    "written",
    [
        "Christmas",
        "25.12.2025",
        "2025-13-01",
        "2025-12-26/2025-12-25 backwards",
        "1900-01-01/2999-01-01 always",
        "1066-10-14 Hastings",
        {},
        {"date": "soon"},
        {"date": "2025-12-25", "lable": "Christmas"},
        {"from": 5, "to": 6},
    ],
)
def test_an_entry_that_is_no_day_is_refused(written: str | dict[str, Any]):
    with pytest.raises(InvalidValue):
        calendar_from_list("holidays", [written])


def test_a_calendar_has_bounds():
    with pytest.raises(InvalidValue, match="40,000"):
        Calendar("big", tuple(Entry(date(year, 1, 1), date(year + 60, 1, 1)) for year in (1900, 1961, 2022)))
