"""Calendars of exclusions: dated entries with labels, on which a schedule does not run, or on which alone it runs.
An occurrence on such a day is still an occurrence, so that its ledger can say which calendar kept it from running."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final, cast

from accsd.errors import InvalidValue
from accsd.planning.recurrence.instant import PlacedTime
from accsd.planning.recurrence.text import FIRST_YEAR, LAST_YEAR, quoted
from accsd.planning.recurrence.zones import Zone

MOST_DAYS: Final = 40_000
_LONGEST_FILE: Final = 4_000_000  # characters
_LONGEST_LABEL: Final = 200
_ONE_DAY: Final = timedelta(days=1)
_WRITTEN_ENTRY = re.compile(r"(\d{4}-\d\d-\d\d)(?:\s*(?:/|\.\.)\s*(\d{4}-\d\d-\d\d))?(?:\s+(.*))?")
_LINE = re.compile(r"([A-Z-]+)((?:;[^:;\"]*(?:\"[^\"]*\")?)*):(.*)", re.IGNORECASE)
_ICS_TIME = re.compile(r"(\d{4})(\d\d)(\d\d)(?:T(\d\d)(\d\d)(\d\d)(Z?))?")


@dataclass(frozen=True, slots=True)
class Entry:
    """A day, or the days from the first to the last."""

    first: date
    last: date
    label: str = ""


@dataclass(frozen=True, slots=True)
class Calendar:
    """Its days are those of its zone; without one, those of each schedule's own."""

    name: str
    entries: tuple[Entry, ...]
    zone: Zone | None = None
    _labels: dict[date, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        labels: dict[date, str] = {}
        for entry in self.entries:
            for day in _days(entry, self.name):
                labels.setdefault(day, entry.label)
            if len(labels) > MOST_DAYS:
                raise InvalidValue(f"the calendar {quoted(self.name)} has more than {MOST_DAYS:,} days")
        object.__setattr__(self, "_labels", labels)

    def label_at(self, place: PlacedTime, zone: Zone) -> str | None:
        """The label of the entry that an occurrence of a schedule in `zone` falls on, or None."""
        if self.zone is None or self.zone.name == zone.name:
            return self._labels.get(place.nominal.date())
        return self._labels.get(self.zone.local(place.instant).date())


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why an occurrence does not run: the calendar, and the label of its entry there."""

    calendar: str
    label: str


def exclusion_at(
    place: PlacedTime, zone: Zone, exclude: tuple[Calendar, ...], only_on: tuple[Calendar, ...]
) -> Exclusion | None:
    for calendar in exclude:
        if (label := calendar.label_at(place, zone)) is not None:
            return Exclusion(calendar.name, label)
    if only_on and all(calendar.label_at(place, zone) is None for calendar in only_on):
        return Exclusion(", ".join(calendar.name for calendar in only_on), "not one of its days")
    return None


def calendar_from_list(name: str, written: Iterable[str | Mapping[str, Any]], zone: Zone | None = None) -> Calendar:
    """Entries are written as `2025-12-25 Christmas`, `2025-12-24/2025-12-26 Christmas`, or as tables with date, or
    from and to, and label."""
    return Calendar(name, tuple(_entry(each) for each in written), zone)


def calendar_from_ics(name: str, text: str, zone: Zone | None = None) -> Calendar:
    """The days of an iCalendar file's events. An event that repeats is refused: its days would be lost in silence."""
    if len(text) > _LONGEST_FILE:
        raise InvalidValue(f"the calendar {quoted(name)} has more than {_LONGEST_FILE:,} characters")
    entries = tuple(_event(event, zone) for event in _events(text) if _value(event, "STATUS") != "CANCELLED")
    if not entries:
        raise InvalidValue(f"the calendar {quoted(name)} has no events", hint="an ICS file has lines BEGIN:VEVENT")
    return Calendar(name, entries, zone)


def _days(entry: Entry, calendar: str) -> Iterator[date]:
    length = (entry.last - entry.first).days + 1
    if not 1 <= length <= MOST_DAYS:
        problem = "ends before it begins" if length < 1 else "is too long"
        raise InvalidValue(f"the entry {entry.first} to {entry.last} of the calendar {quoted(calendar)} {problem}")
    return (entry.first + day * _ONE_DAY for day in range(length))


def _entry(written: str | Mapping[str, Any]) -> Entry:
    if isinstance(written, str):
        match = _WRITTEN_ENTRY.fullmatch(written.strip())
        if match is None:
            raise InvalidValue(
                f"{quoted(written)} is no entry of a calendar",
                hint="write 2025-12-25 Christmas, or 2025-12-24/2025-12-26 Christmas",
            )
        return Entry(_date(match[1]), _date(match[2] or match[1]), _label(match[3]))
    if unknown := set(written) - {"date", "from", "to", "label"}:
        raise InvalidValue(f"an entry of a calendar has the unknown field {quoted(str(min(unknown)))}")
    first = written.get("date", written.get("from"))
    return Entry(_date(first), _date(written.get("to", first)), _label(written.get("label")))


def _date(written: object) -> date:
    if isinstance(written, date) and not isinstance(written, datetime):
        return written
    try:
        day = date.fromisoformat(cast("str", written))
    except (TypeError, ValueError):
        raise InvalidValue(f"{quoted(str(written))} is no date", hint="write it as 2025-12-25") from None
    if not FIRST_YEAR <= day.year <= LAST_YEAR:
        raise InvalidValue(f"the year {day.year} is not between {FIRST_YEAR} and {LAST_YEAR}")
    return day


def _label(written: object) -> str:
    return str(written or "").strip()[:_LONGEST_LABEL]


def _events(text: str) -> Iterator[list[tuple[str, str]]]:
    """The lines of each event as name and value; what belongs to its alarms is left out."""
    event: list[tuple[str, str]] | None = None
    depth = 0
    for line in re.sub(r"\r?\n[ \t]", "", text).splitlines():
        match = _LINE.fullmatch(line.strip())
        name, value = (match[1].upper(), match[3]) if match else ("", "")
        if (name, value.upper()) == ("BEGIN", "VEVENT"):
            event, depth = [], 0
        elif (name, value.upper()) == ("END", "VEVENT") and event is not None:
            yield event
            event = None
        elif name in ("BEGIN", "END"):
            depth += 1 if name == "BEGIN" else -1
        elif event is not None and depth == 0:
            event.append((name, value))


def _value(event: list[tuple[str, str]], name: str) -> str | None:
    return next((value for other, value in event if other == name), None)


def _event(event: list[tuple[str, str]], zone: Zone | None) -> Entry:
    summary = _label(re.sub(r"\\([,;\\])", r"\1", _value(event, "SUMMARY") or ""))
    if any(name in ("RRULE", "RDATE") for name, _ in event):
        raise InvalidValue(f"the event {quoted(summary)} repeats", hint="export its dates one by one")
    begin, _ = _ics_time(_value(event, "DTSTART"), summary, zone)
    end, has_time = _ics_time(_value(event, "DTEND"), summary, zone) if _value(event, "DTEND") else (begin, True)
    # the end is the first moment that no longer belongs to the event
    last = end.date() - _ONE_DAY if end > begin and (not has_time or end.time() == begin.time().min) else end.date()
    return Entry(begin.date(), max(begin.date(), last), summary)


def _ics_time(written: str | None, summary: str, zone: Zone | None) -> tuple[datetime, bool]:
    match = _ICS_TIME.fullmatch((written or "").strip().upper())
    try:
        if match is None:
            raise ValueError
        numbers = [int(part or 0) for part in match.groups()[:6]]
        moment = datetime(*numbers, tzinfo=UTC)  # pyright: ignore[reportArgumentType] - six numbers
    except ValueError:
        raise InvalidValue(f"the event {quoted(summary)} has no readable date") from None
    local = zone.local(moment) if match[7] and zone else moment
    return local.replace(tzinfo=None), match[4] is not None
