"""A rule and the policies around it in sentences, for the person who wrote them and for the one who reads them later.
cronsim explains cron; the other kinds are told here."""

import re
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import product
from typing import Final

from accsd.errors import InvalidValue
from accsd.planning.recurrence.cron import Cron
from accsd.planning.recurrence.pattern import Freq, Pattern
from accsd.planning.recurrence.plan import next_occurrences
from accsd.planning.recurrence.points import EPOCH, Interval, LocalMoment, Moment
from accsd.planning.recurrence.rrule import RecurrenceSet
from accsd.planning.recurrence.rule import Rule
from accsd.planning.recurrence.text import quoted, shown_span

WEEKDAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTHS: Final = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
_UNITS: Final = {
    Freq.YEARLY: "year",
    Freq.MONTHLY: "month",
    Freq.WEEKLY: "week",
    Freq.DAILY: "day",
    Freq.HOURLY: "hour",
    Freq.MINUTELY: "minute",
    Freq.SECONDLY: "second",
}
_MOST_TOLD: Final = 6  # times of day; more are counted
_MISSED: Final = {
    "skip": "not at all",
    "one": "once, for the latest",
    "all": "for each time, the oldest first",
}
_OVERLAP: Final = {
    "allow": "both run",
    "skip": "skipped",
    "queue": "it waits; later ones are merged into it",
    "queue_all": "it waits, and so do later ones, in order",
    "cancel": "the last run is cancelled, and it starts when that has ended",
}


def explain(rule: Rule) -> str:
    """The rule with its zone, and what bounds, spreads and excludes its times."""
    return " ".join([f"{_told(rule)}, {rule.zone.name}.", *_conditions(rule)])


def missed_in_words(missed: str, *, catch_up: timedelta | None = None, most: int | None = None) -> str:
    """`catch_up`: what is older does not run; `most`: nor more of them than so many, the newest."""
    said = _policy(_MISSED, missed, "missed")
    if missed == "all" and most is not None:
        said += f", at most {most}"
    if missed != "skip" and catch_up is not None:
        said += f", if it is not older than {shown_span(catch_up)}"
    return f"If accsd was down: {said}."


def overlap_in_words(overlap: str) -> str:
    return f"If the last run still runs: {_policy(_OVERLAP, overlap, 'overlap')}."


def next_in_words(rule: Rule, now: datetime) -> str:
    """`Next: Mon 23 Nov 02:30 (in 6 h).`"""
    found, exhausted = next_occurrences(rule, now, 100)
    first = next((each for each in found if each.fires), None)
    if first is None:
        return "Nothing follows." if exhausted else "Nothing that runs is near."
    local = rule.zone.local(first.due_at)
    year = "" if local.year == rule.zone.local(now).year else f" {local.year}"
    return f"Next: {_day(local)}{year} {local:%H:%M} (in {_distance(first.due_at - now)})."


def _policy(words: dict[str, str], chosen: str, name: str) -> str:
    if chosen not in words:
        raise InvalidValue(f"{quoted(chosen)} is no value of {name}", hint=f"there are {', '.join(words)}")
    return words[chosen]


def _told(rule: Rule) -> str:
    source = rule.source
    if isinstance(source, Cron):
        return _cron(source)
    if isinstance(source, RecurrenceSet):
        return _recurrence(source)
    if isinstance(source, Interval):
        return _interval(source)
    return f"Once, on {_moment(source, rule)}"


def _cron(cron: Cron) -> str:
    told = re.sub(r"\b(\d+)th\b", lambda match: _ordinal(int(match[1])), cron.explained())
    if "*" in (cron.fields[3], cron.fields[5]):
        return told
    return told + (" (either of the two days is enough)" if cron.days_are_either else " (both must hold)")


def _interval(interval: Interval) -> str:
    since = "" if interval.anchor == EPOCH else f" from {interval.anchor:%Y-%m-%d %H:%M:%S} UTC on"
    return f"Every {_whole(interval.every)}{since}, in real time"


def _moment(source: Moment | LocalMoment, rule: Rule) -> str:
    local = source.nominal if isinstance(source, LocalMoment) else rule.zone.local(source.at)
    return f"{_day(local)} {local.year} at {_clock(local.hour, local.minute, local.second)}"


def _recurrence(recurrence: RecurrenceSet) -> str:
    parts: list[str] = []
    if recurrence.pattern is not None:
        parts.append(_pattern(recurrence.pattern))
        if recurrence.count is not None:
            parts.append("once" if recurrence.count == 1 else f"{recurrence.count} times")
        if recurrence.until is not None:
            parts.append(f"until {recurrence.until:%Y-%m-%d %H:%M}")
    if recurrence.dates:
        parts.append(("and at " if parts else "At ") + _counted(len(recurrence.dates), "single time"))
    if taken := len(recurrence.removed) + len(recurrence.removed_days):
        parts.append(f"but for {_counted(taken, 'excepted date')}")
    return ", ".join(parts)


def _pattern(pattern: Pattern) -> str:
    unit = _UNITS[pattern.freq]
    every = f"Every {unit}" if pattern.interval == 1 else f"Every {pattern.interval} {unit}s"
    told = " ".join([every, *_days_of(pattern), *_times_of(pattern)])
    if pattern.positions:
        told += f", of these only the {_join(_ordinal(each) for each in pattern.positions)} of each {unit}"
    return told


def _days_of(pattern: Pattern) -> Iterable[str]:
    if pattern.weekdays:
        yield "on " + _join(_weekday(*each) for each in sorted(pattern.weekdays, key=lambda each: each[::-1]))
    if pattern.month_days:
        yield f"on the {_join(_ordinal(day) for day in sorted(pattern.month_days))} day of the month"
    if pattern.year_days:
        yield f"on the {_join(_ordinal(day) for day in sorted(pattern.year_days))} day of the year"
    if pattern.weeks:
        yield f"in the {_join(_ordinal(week) for week in sorted(pattern.weeks))} week of the year"
    if pattern.months:
        yield f"in {_join(MONTHS[month - 1] for month in sorted(pattern.months))}"


def _times_of(pattern: Pattern) -> Iterable[str]:
    if not pattern.freq.seconds:
        times = list(product(pattern.hours, pattern.minutes, pattern.seconds))
        told = _join(_clock(*each) for each in times) if len(times) <= _MOST_TOLD else f"{len(times)} times of day"
        yield f"at {told}"
        return
    if pattern.hours:
        yield f"in {_numbers('hour', pattern.hours)}"
    if pattern.minutes:
        yield f"at {_numbers('minute', pattern.minutes)}"
    if pattern.seconds not in ((), (0,)):
        yield f"at {_numbers('second', pattern.seconds)}"


def _conditions(rule: Rule) -> Iterable[str]:
    if rule.start_at is not None:
        yield f"Not before {rule.start_at:%Y-%m-%d %H:%M} UTC."
    if rule.end_at is not None:
        yield f"No longer at {rule.end_at:%Y-%m-%d %H:%M} UTC."
    if rule.spread:
        yield f"Due {shown_span(rule.shift)} later, its share of {shown_span(rule.spread)}."
    if rule.exclude:
        yield f"Not on the days of {_calendars(calendar.name for calendar in rule.exclude)}."
    if rule.only_on:
        yield f"Only on the days of {_calendars(calendar.name for calendar in rule.only_on)}."


def _whole(span: timedelta) -> str:
    """In the largest unit that fits: 90 minutes, not 1 hour and 30 minutes."""
    for unit in ("days", "hours", "minutes", "seconds"):
        number, rest = divmod(span, timedelta(**{unit: 1}))
        if not rest:
            break
    return unit[:-1] if number == 1 else f"{number} {unit}"


def _calendars(names: Iterable[str]) -> str:
    return "the calendar " + _join(names)


def _numbers(unit: str, numbers: Sequence[int]) -> str:
    return f"{unit}{'s' if len(numbers) > 1 else ''} {_join(map(str, numbers))}"


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'s' if number > 1 else ''}"


def _join(words: Iterable[str]) -> str:
    *others, last = words
    return f"{', '.join(others)} and {last}" if others else last


def _weekday(ordinal: int, day: int) -> str:
    return WEEKDAYS[day] if ordinal == 0 else f"the {_ordinal(ordinal)} {WEEKDAYS[day]}"


def _ordinal(number: int) -> str:
    if number < 0:
        return "last" if number == -1 else f"{_ordinal(-number)} last"
    tens = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{tens}"


def _clock(hour: int, minute: int, second: int) -> str:
    return f"{hour:02}:{minute:02}:{second:02}" if second else f"{hour:02}:{minute:02}"


def _day(moment: datetime) -> str:
    """Not strftime's names, which follow the machine's language."""
    return f"{WEEKDAYS[moment.weekday()][:3]} {moment.day} {MONTHS[moment.month - 1][:3]}"


def _distance(span: timedelta) -> str:
    for unit, size in (("days", timedelta(days=1)), ("h", timedelta(hours=1)), ("min", timedelta(minutes=1))):
        if span >= (2 if unit == "days" else 1) * size:
            return f"{round(span / size)} {unit}"
    return f"{max(1, round(span.total_seconds()))} s"
