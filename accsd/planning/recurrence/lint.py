"""What is legal in a rule and yet probably not meant, as warnings with codes. What only the database knows comes in as
figures."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Final

from accsd.planning.recurrence.cron import HOUR, MINUTE, MONTH, MONTH_DAY, SECOND, Cron, values_of
from accsd.planning.recurrence.pattern import Freq
from accsd.planning.recurrence.plan import next_occurrences, shortest_gap
from accsd.planning.recurrence.rrule import RecurrenceSet
from accsd.planning.recurrence.rule import OnTheLine, Rule, RuleKind
from accsd.planning.recurrence.text import check_aware, shown_span
from accsd.planning.recurrence.zones import USUAL_ZONES, Transition, transitions

MANY: Final = 10  # schedules that are due at the same minute

_YEAR: Final = timedelta(days=366)
_SHORTEST_MONTH: Final = 28


@dataclass(frozen=True, slots=True)
class LintWarning:
    code: str
    message: str
    hint: str | None = None


def lint(
    rule: Rule, now: datetime, *, sharing: int | None = None, usual_run: timedelta | None = None
) -> tuple[LintWarning, ...]:
    """`sharing` is how many other schedules are due at this one's next minute, `usual_run` how long its runs take."""
    present = check_aware(now, "now")
    return (
        *_when(rule, present),
        *_zone(rule),
        *_days(rule),
        *_steps(rule),
        *_changes(rule, present),
        *_load(rule, present, sharing, usual_run),
    )


def _when(rule: Rule, now: datetime) -> Iterator[LintWarning]:
    found, exhausted = next_occurrences(rule, now, 1)
    if found and found[0].due_at <= now + _YEAR:
        return
    if rule.kind is RuleKind.ONCE and not found:
        yield LintWarning("once_in_the_past", "this time has passed: the schedule never fires")
    elif found:
        yield LintWarning("not_within_a_year", f"the next time is {found[0].nominal}, more than a year ahead")
    else:
        why = "nothing follows: the rule has ended" if exhausted else "the next time is more than a century ahead"
        yield LintWarning("never_again", why)


def _zone(rule: Rule) -> Iterator[LintWarning]:
    if usual := USUAL_ZONES.get(rule.zone.name):
        message = f"{rule.zone.name} is a zone without summer time, all year the same"
        yield LintWarning("zone_abbreviation", message, f"write {usual} if that is meant")


def _days(rule: Rule) -> Iterator[LintWarning]:
    if isinstance(rule.source, Cron):
        if rule.source.days_are_either:
            message = "both a day of month and a day of week are given: either of them is enough"
            yield LintWarning("day_or_weekday", message, "an rrule can ask for both: BYMONTHDAY=13;BYDAY=FR")
        named = values_of(MONTH_DAY, rule.source.fields[3])
        months = values_of(MONTH, rule.source.fields[4])
        days = set[int]() if rule.source.fields[3].startswith("*") else named
    elif isinstance(rule.source, RecurrenceSet) and (pattern := rule.source.pattern) is not None:
        days = set(pattern.month_days) if pattern.freq in (Freq.MONTHLY, Freq.YEARLY) else set[int]()
        months = pattern.months or frozenset(range(1, 13))
    else:
        return
    # a range that reaches over the end of short months, such as 25-31, is meant so
    late = sorted(day for day in days if day > _SHORTEST_MONTH and day - 1 not in days)
    if late and any(_is_short(month, late[-1]) for month in months):
        message = f"months without a day {late[-1]} are skipped"
        yield LintWarning("short_months", message, "the last day is L in cron, BYMONTHDAY=-1 in an rrule")


def _is_short(month: int, day: int) -> bool:
    """Whether the month has no such day, in some years at least."""
    return day > (_SHORTEST_MONTH if month == 2 else 30 if month in (4, 6, 9, 11) else 31)


def _steps(rule: Rule) -> Iterator[LintWarning]:
    if not isinstance(rule.source, Cron):
        return
    for field, text in zip((SECOND, MINUTE, HOUR), rule.source.fields, strict=False):
        for step in (int(term[2:]) for term in text.split(",") if term.startswith("*/")):
            if field.size % step:
                message = f"*/{step} in the {field.name} field begins anew each time: the last step is shorter"
                yield LintWarning("uneven_step", message, f"for real time write @every {step}{field.name[0]}")
    if rule.source.fields[3].startswith("*/"):
        message = f"{rule.source.fields[3]} in the day of month field begins anew with each month"
        yield LintWarning("uneven_step", message, "an rrule can count days: FREQ=DAILY;INTERVAL=2")


def _changes(rule: Rule, now: datetime) -> Iterator[LintWarning]:
    if isinstance(rule.source, OnTheLine):
        return
    for change in transitions(rule.zone, now, now + _YEAR):
        if told := _touched(rule, change):
            yield LintWarning("touches_dst_change", told, "a preview shows what happens")
            return


def _touched(rule: Rule, change: Transition) -> str | None:
    """What the change skips or repeats of the rule. Times that are no further apart than the change is large stay
    evenly apart in real time, if they are elapsed ones."""
    before = (change.at + change.before).replace(tzinfo=None)
    after = (change.at + change.after).replace(tzinfo=None)
    if isinstance(rule.source, OnTheLine):
        return None
    nominals = list(islice(rule.source.nominals(min(before, after)), 2))
    if not nominals or nominals[0] >= max(before, after):
        return None
    is_even = len(nominals) == 2 and nominals[1] - nominals[0] <= abs(change.after - change.before)
    if rule.source.is_elapsed and is_even:
        return None
    what = "skips" if after > before else "repeats"
    return f"the clock of {rule.zone.name} {what} {nominals[0]:%H:%M} on {nominals[0]:%Y-%m-%d}"


def _load(rule: Rule, now: datetime, sharing: int | None, usual_run: timedelta | None) -> Iterator[LintWarning]:
    found, _ = next_occurrences(rule, now, 1)
    if sharing and sharing >= MANY and found and found[0].due_at.minute == 0 and not rule.spread:
        message = f"{sharing} other schedules are due at the same full hour"
        yield LintWarning("shared_full_hour", message, "give it a spread, or write H instead of the minute")
    gap = shortest_gap(rule, now) if usual_run else None
    if gap is not None and usual_run is not None and usual_run > gap:
        message = f"a run usually takes {shown_span(usual_run)}, longer than the {shown_span(gap)} between two times"
        yield LintWarning("shorter_than_its_run", message, "overlap decides what happens to the next one")
