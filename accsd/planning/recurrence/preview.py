"""What a rule will do, for people: the next occurrences, with a mark in words on each that is not as plain as its
nominal time says. Nothing needs to be stored first."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Final

from accsd.errors import InvalidValue
from accsd.planning.recurrence.instant import Touch
from accsd.planning.recurrence.occurrences import Occurrence
from accsd.planning.recurrence.plan import next_occurrences
from accsd.planning.recurrence.rule import OnTheLine, Rule

MOST_PREVIEWED: Final = 1_000


class MarkKind(StrEnum):
    MOVED = "moved"
    DOUBLED = "doubled"
    MERGED = "merged"
    EXCLUDED = "excluded"
    SKIPPED = "skipped"
    SNOOZED = "snoozed"
    AFTER_END = "after_end"


_KEEP_FROM_FIRING: Final = frozenset({MarkKind.MERGED, MarkKind.EXCLUDED, MarkKind.SKIPPED, MarkKind.AFTER_END})

Identity = tuple[datetime, int]  # nominal time and fold


@dataclass(frozen=True, slots=True)
class Mark:
    """What is particular about an occurrence. `until` is where a snooze moved it."""

    kind: MarkKind
    words: str
    until: datetime | None = None


_AFTER_LAST_RUN: Final = Mark(MarkKind.AFTER_END, "after the last run of the schedule")


@dataclass(frozen=True, slots=True)
class PreviewRow:
    nominal: datetime
    fold: int
    abbreviation: str  # of the zone at that instant: CET, CEST
    due_at: datetime
    marks: tuple[Mark, ...] = ()

    @property
    def fires(self) -> bool:
        return not any(mark.kind in _KEEP_FROM_FIRING for mark in self.marks)


def preview(
    rule: Rule,
    after: datetime,
    n: int = 10,
    *,
    marks: Mapping[Identity, Mark] | None = None,
    runs_left: int | None = None,
) -> list[PreviewRow]:
    """The next n occurrences, ordered by due time. `marks` are the skips and snoozes that the database knows. After
    `runs_left` of them that fire, and after the rule's end, occurrences are marked as being after the end."""
    if not 1 <= n <= MOST_PREVIEWED:
        raise InvalidValue(f"a preview has 1 to {MOST_PREVIEWED:,} occurrences, not {n}")
    found, _ = next_occurrences(rule, after, n, beyond_end=True)
    rows = sorted((_row(rule, each, marks or {}) for each in found[:n]), key=lambda row: (row.due_at, row.nominal))
    return rows if runs_left is None else _ended(rows, runs_left)


def _row(rule: Rule, occurrence: Occurrence, given: Mapping[Identity, Mark]) -> PreviewRow:
    marks = _marks(rule, occurrence)
    due = occurrence.due_at
    if mark := given.get((occurrence.nominal, occurrence.fold)):
        marks.append(mark)
        due = mark.until or due
    abbreviation = rule.zone.local(occurrence.instant).tzname() or ""
    return PreviewRow(occurrence.nominal, occurrence.fold, abbreviation, due, tuple(marks))


def _marks(rule: Rule, occurrence: Occurrence) -> list[Mark]:
    marks: list[Mark] = []
    if occurrence.touch is not None:
        marks.append(_touched(rule, occurrence, occurrence.touch))
    if occurrence.merged_into is not None:
        words = f"one run with {_clock(occurrence.merged_into)}, which is due at the same instant"
        marks.append(Mark(MarkKind.MERGED, words))
    if excluded := occurrence.excluded:
        label = f": {excluded.label}" if excluded.label else ""
        marks.append(Mark(MarkKind.EXCLUDED, f"excluded by the calendar {excluded.calendar}{label}"))
    if rule.end_at is not None and occurrence.instant >= rule.end_at:
        marks.append(Mark(MarkKind.AFTER_END, "after the end of the schedule"))
    return marks


def _touched(rule: Rule, occurrence: Occurrence, touch: Touch) -> Mark:
    clock = _clock(occurrence.nominal)
    if touch is Touch.MOVED:
        due = _clock(rule.zone.local(occurrence.instant))
        return Mark(MarkKind.MOVED, f"the clock skips {clock} on this day: due at {due} instead")
    is_elapsed = not isinstance(rule.source, OnTheLine) and rule.source.is_elapsed
    which = ("this is the second" if occurrence.fold else "this is the first") if is_elapsed else "due at the first"
    return Mark(MarkKind.DOUBLED, f"the clock shows {clock} twice on this day: {which}")


def _ended(rows: list[PreviewRow], runs_left: int) -> list[PreviewRow]:
    ended: list[PreviewRow] = []
    for row in rows:
        is_after = runs_left <= 0 and row.fires
        ended.append(replace(row, marks=(*row.marks, _AFTER_LAST_RUN)) if is_after else row)
        runs_left -= row.fires
    return ended


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"
