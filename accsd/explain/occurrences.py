"""The times of a schedule in words: what is ahead, what was done to single ones, and what lies around a time."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from accsd.db.views.schedules import ScheduleRow, SkipRow, SnoozeRow
from accsd.errors import InvalidValue, NotFound, UserError
from accsd.explain.words import away, local_text
from accsd.planning.recurrence import (
    LintWarning,
    Mark,
    MarkKind,
    Neighbourhood,
    Occurrence,
    PreviewRow,
    Rule,
    Zone,
    next_occurrences,
    occurrence_at,
    preview,
    zone_rules,
)

Marks = Mapping[tuple[datetime, int], Mark]

_MICROSECOND: Final = timedelta(microseconds=1)
_PAGE: Final = 5000
MOST_BEHIND: Final = 100_000  # times of one backfill


def due_text(moment: datetime, timezone: str, now: datetime) -> str:
    local = in_zone(moment, timezone)
    return f"{local_text(local)} {local.tzname()} ({away(moment, now)})"


def in_zone(moment: datetime, timezone: str) -> datetime:
    """In the schedule's zone; in UTC if a plain INSERT has named one that is none."""
    try:
        return zone_rules().zone(timezone).local(moment)
    except UserError:
        return moment.astimezone(UTC)


def marks_of(skips: Iterable[SkipRow], snoozes: Iterable[SnoozeRow]) -> dict[tuple[datetime, int], Mark]:
    """What the database knows of single occurrences, for a preview."""
    skipped = {
        (each.nominal, each.fold): Mark(MarkKind.SKIPPED, f"will be skipped{who(each.by, each.reason)}")
        for each in skips
    }
    snoozed = {
        (each.nominal, each.fold): Mark(MarkKind.SNOOZED, f"snoozed{who(each.by, each.reason)}", each.due_at)
        for each in snoozes
    }
    return skipped | snoozed


def who(by: str | None, reason: str | None) -> str:
    return (f", by {by}" if by else "") + (f": {reason}" if reason else "")


def ahead(
    rule: Rule, after: datetime, n: int, *, marks: Marks | None = None, runs_left: int | None = None
) -> list[PreviewRow]:
    """A preview in which a snoozed occurrence is seen also when its own time has passed."""
    found = preview(rule, after, n, marks=marks, runs_left=runs_left)
    seen = {(row.nominal, row.fold) for row in found}
    late = [
        PreviewRow(nominal, fold, rule.zone.local(mark.until).tzname() or "", mark.until, (mark,))
        for (nominal, fold), mark in (marks or {}).items()
        if mark.until is not None and mark.until > after and (nominal, fold) not in seen
        if any(each.fold == fold for each in occurrence_at(rule, nominal).named)
    ]
    return sorted([*found, *late], key=lambda row: (row.due_at, row.nominal))[:n]


def between(rule: Rule, after: datetime, end: datetime) -> Iterator[Occurrence]:
    """What is due after an instant, of the occurrences whose own instant lies before the end; page by page, because
    there may be one each second, and never further, because there may be one each year."""
    bounded = replace(rule, end_at=end if rule.end_at is None else min(rule.end_at, end))
    exhausted = False
    while not exhausted:
        found, exhausted = next_occurrences(bounded, after, _PAGE)
        yield from found
        exhausted = exhausted or not found
        after = found[-1].due_at if found else after


def preview_document(row: PreviewRow) -> dict[str, Any]:
    """`marks` are the words that programs know, `notes` those for people."""
    return {
        "nominal": row.nominal,
        "fold": row.fold,
        "zone": row.abbreviation,
        "due_at": row.due_at,
        "fires": row.fires,
        "marks": [mark.kind.value for mark in row.marks],
        "notes": [mark.words for mark in row.marks],
    }


def preview_words(row: PreviewRow, zone: Zone, now: datetime) -> dict[str, str]:
    """One line of a preview, for eyes."""
    due = zone.local(row.due_at)
    return {
        "nominal": f"{local_text(row.nominal)} {row.abbreviation}",
        "due": f"{local_text(due)} {due.tzname()}",
        "in": away(row.due_at, now),
        "notes": "; ".join(mark.words for mark in row.marks),
    }


def warning_words(warning: LintWarning) -> str:
    return warning.message + (f" ({warning.hint})" if warning.hint else "")


def no_longer_named(rule: Rule | None, marks: Marks) -> list[str]:
    """Skips and snoozes that a new rule drops, because it does not name their times; without a rule, all of them."""
    dropped: list[str] = []
    for (nominal, fold), mark in marks.items():
        if rule is None or not any(each.fold == fold for each in occurrence_at(rule, nominal).named):
            what = "snooze" if mark.kind is MarkKind.SNOOZED else "skip"
            dropped.append(f"the {what} of {local_text(nominal)} is dropped: the new times do not have it")
    return dropped


# Around a time


def named_at(rule: Rule, moment: datetime) -> Neighbourhood:
    """What a rule names at a time that somebody typed: on the wall clock, or, with an offset, an instant."""
    if moment.tzinfo is None:
        return occurrence_at(rule, moment)
    found, _ = next_occurrences(rule, moment - _MICROSECOND, 1)
    exact = [each for each in found if moment in (each.instant, each.due_at)]
    if not exact and rule.shift:
        found, _ = next_occurrences(rule, moment + rule.shift - _MICROSECOND, 1)
        exact = [each for each in found if each.instant == moment]
    around = occurrence_at(rule, exact[0].nominal if exact else rule.zone.local(moment))
    return Neighbourhood(tuple(exact), around.before, around.after)


def neighbours(around: Neighbourhood) -> str:
    """The times beside one that the rule does not name."""
    sides = [
        f"the one {word} it is {local_text(each.nominal)}"
        for word, each in (("before", around.before), ("after", around.after))
        if each is not None
    ]
    return ", ".join(sides) or "it names no time near it"


def rule_of(row: ScheduleRow, spread: timedelta) -> Rule:
    """InvalidValue if it has no times, or such that can't be read."""
    if not row.has_times:
        raise InvalidValue(
            f'the schedule "{row.name}" has no times: its kind is {row.schedule_kind}',
            hint=f"`accsd schedules show {row.name}` says what it does",
        )
    return row.timing().rule(spread)


def the_one(name: str, rule: Rule, moment: datetime) -> Occurrence:
    """The occurrence that is meant; InvalidValue if there are two, NotFound if there is none."""
    around = named_at(rule, moment)
    match around.named:
        case (one,):
            return one
        case ():
            raise NotFound(
                f"{name} does not name {local_text(moment)}",
                hint=f"{neighbours(around)}; `accsd schedules preview {name}` lists them",
            )
        case several:
            both = " or ".join(rule.zone.local(each.instant).isoformat() for each in several)
            raise InvalidValue(f"the clock shows {local_text(moment)} twice", hint=f"write {both}")


def behind(rule: Rule, first: datetime, last: datetime, *, newest_first: bool) -> list[Occurrence]:
    """What the rule names from the first to before the last instant, but for what is merged or excluded."""
    found: list[Occurrence] = []
    for each in between(rule, first + rule.shift - _MICROSECOND, last):
        if each.fires:
            found.append(each)
        if len(found) > MOST_BEHIND:
            raise InvalidValue(f"that is more than {MOST_BEHIND:,} times", hint="backfill a shorter span")
    return found[::-1] if newest_first else found
