"""Schedules in words: what became of a due time, what is lost, what a preview shows."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from accsd.db.views.firings import FiringRow, UsualTimes
from accsd.db.views.schedules import SkipRow, SnoozeRow
from accsd.errors import ScheduleInvalid
from accsd.explain.ledger import fate, losing
from accsd.explain.occurrences import ahead, between, marks_of, named_at, no_longer_named
from accsd.model.schedule import ScheduleDef
from accsd.planning.recurrence import Rule, parse_rule, parse_time

NOW = datetime(2024, 10, 26, 12, tzinfo=UTC)


def rule(expr: str, **more: Any) -> Rule:
    return parse_rule("cron", expr, "Europe/Berlin", schedule_id="s", created_at=NOW, **more)


def firing(outcome: str, reason: str, hour: int = 0, **more: Any) -> FiringRow:
    due = NOW - timedelta(hours=hour)
    given: dict[str, Any] = {
        "nominal": due.replace(tzinfo=None),
        "fold": 0,
        "cause_id": 0,
        "outcome": outcome,
        "reason": reason,
        "due_at": due,
        "settled_at": due,
        "late": timedelta(0),
        "job_id": None,
        "job_status": None,
        "revision": 1,
        "settled_by": None,
        "merged_into": None,
        "until_nominal": None,
        "times": None,
        "detail": None,
    }
    return FiringRow(**given | more)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        (firing("fired", "on_time"), "ran on time"),
        (
            firing("skipped", "requested", detail={"by": "ana", "reason": "fest"}),
            "skipped, as somebody wanted, by ana: fest",
        ),
        (firing("skipped", "excluded", detail={"calendar": "c", "label": "Easter"}), "excludes it (c: Easter)"),
        (firing("merged", "catch_up", merged_into=parse_time("2024-10-26T03:00")), "(Sat 2024-10-26 03:00)"),
        (firing("missed", "down", until_nominal=parse_time("2024-10-26T03:00"), times=7), "7 times until Sat"),
        (firing("snoozed", "requested", detail={"by": "ana"}), "snoozed until Sat 2024-10-26 14:00, by ana"),
        (firing("skipped", "broken", detail={"problem": "no room"}), "its firing failed (no room)"),
        (firing("fired", "of_tomorrow"), "fired: of_tomorrow"),
    ],
)
def test_each_row_of_the_ledger_is_a_sentence(row: FiringRow, words: str):
    assert words in fate(row, "Europe/Berlin")


def test_what_nobody_wanted_to_run_is_not_lost():
    rows = [
        firing("fired", "on_time", 1),
        firing("skipped", "overlap", 2),
        firing("skipped", "requested", 3),
        firing("merged", "dst_gap", 4),
        firing("missed", "down", 5, times=40),
    ]
    found = losing(rows, UsualTimes(timedelta(minutes=2), timedelta(hours=2)))
    assert found.lost == {"missed (down)": 40, "skipped (overlap)": 1}
    assert (found.of, found.gap) == (44, timedelta(hours=1))
    assert str(found).endswith("(one each 1h, a job usually waits 2m, and runs 2h)")
    assert str(losing([], UsualTimes(None, None))) == "nothing was due yet"
    assert str(losing(rows[:1], UsualTimes(None, None))).startswith("no: the last 1 all ran")


def test_a_snoozed_occurrence_is_ahead_also_when_its_own_time_has_passed():
    past, until = parse_time("2024-10-26T13:00"), NOW + timedelta(minutes=90)
    marks = marks_of(
        [SkipRow(parse_time("2024-10-26T15:00"), 0, "ana", "fest")], [SnoozeRow(past, 0, until, None, None)]
    )
    rows = ahead(rule("0 * * * *"), NOW, 3, marks=marks)
    assert [(row.nominal.hour, [mark.kind.value for mark in row.marks]) for row in rows] == [
        (15, ["skipped"]),
        (13, ["snoozed"]),
        (16, []),
    ]
    assert [row.nominal.hour for row in ahead(rule("30 * * * *"), NOW, 2, marks=marks)] == [14, 15]
    assert len(no_longer_named(rule("30 * * * *"), marks)) == 2
    assert no_longer_named(rule("0 * * * *"), marks) == []


@pytest.mark.parametrize(
    ("typed", "folds"),
    [
        ("2024-10-27T02:30", [0, 1]),
        ("2024-10-27T02:30+02:00", [0]),
        ("2024-10-27T01:30Z", [1]),
        ("2024-10-27T02:31", []),
        ("2024-10-27T01:31Z", []),
    ],
)
def test_a_time_with_an_offset_is_one_pass_of_a_repeated_hour(typed: str, folds: list[int]):
    for spread in (timedelta(0), timedelta(minutes=10)):
        found = named_at(rule("*/30 * * * *", spread=spread), parse_time(typed))
        assert [each.fold for each in found.named] == folds
        assert found.before is not None
        assert found.after is not None


def test_occurrences_between_two_instants_are_counted_through_pages():
    day = timedelta(days=1)
    assert len(list(between(rule("*/10 * * * * *"), NOW, NOW + day))) == 8639
    assert list(between(rule("0 0 1 1 *"), NOW, NOW + day)) == []


def test_times_without_an_offset_are_local_to_the_schedules_zone():
    given = {"name": "s", "workflow": "w", "cron": "0 0 * * *", "timezone": "Europe/Berlin"}
    columns = ScheduleDef.model_validate(given | {"start_at": "2024-07-01", "end_at": "2024-12-01T00:00Z"}).columns()
    assert columns["start_at"] == datetime(2024, 6, 30, 22, tzinfo=UTC)
    assert columns["end_at"] == datetime(2024, 12, 1, tzinfo=UTC)
    assert (columns["schedule_kind"], columns["schedule_expr"]) == ("cron", "0 0 * * *")
    assert "anchor" not in columns


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"priority": "high"}, "priority must be a whole number"),
        ({"grace": "soon"}, "grace a duration is"),
        ({"options": {"a": float("nan")}}, "options holds a value"),
        ({"pause_for": "0s", "pause_after": 1}, "pause_for must be greater"),
        ({"missed": "maybe"}, "missed must be"),
        ({"at": "2024-01-01"}, "says when by one of cron, rrule, at, every, event, condition, not 2"),
    ],
)
def test_a_wrong_definition_is_refused_in_words(fields: dict[str, Any], words: str):
    with pytest.raises(ScheduleInvalid, match=r'^schedule "s": ') as refused:
        ScheduleDef.model_validate({"name": "s", "workflow": "w", "cron": "0 0 * * *"} | fields)
    assert words in refused.value.message
