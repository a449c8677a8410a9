"""RFC 5545 rules and sets, read strictly: known parts only, within the RFC's limits, and nothing whose meaning two
readers of the RFC would dispute. Times are local to the schedule's zone; those of another zone are converted."""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from heapq import merge
from itertools import takewhile
from typing import Final

from accsd.errors import InvalidValue
from accsd.planning.recurrence.instant import places
from accsd.planning.recurrence.pattern import Freq, Pattern, nth_nominal
from accsd.planning.recurrence.text import bounded, quoted, within_years
from accsd.planning.recurrence.zones import Zone, ZoneRules
from accsd.values.validation import did_you_mean

WEEKDAYS: Final = ("MO", "TU", "WE", "TH", "FR", "SA", "SU")
MOST_COUNTED: Final = 100_000

_LONGEST: Final = 20_000
_MOST_DATES: Final = 1_000
_PARTS: Final = (
    *("FREQ", "INTERVAL", "COUNT", "UNTIL", "BYSECOND", "BYMINUTE", "BYHOUR", "BYDAY", "BYMONTHDAY"),
    *("BYYEARDAY", "BYWEEKNO", "BYMONTH", "BYSETPOS", "WKST"),
)
_PROPERTY = re.compile(r"(RRULE|DTSTART|RDATE|EXDATE|EXRULE)((?:;[A-Z-]+=[^:;]*)*):(.*)", re.IGNORECASE)
_DATE_TIME = re.compile(r"(\d{8})(?:T(\d{6})(Z?))?")
_ORDINAL_DAY = re.compile(rf"([+-]?\d{{1,2}})?({'|'.join(WEEKDAYS)})")
_FOREVER: Final = 1_000 * 366 * 86_400  # seconds
_END_OF_DAY: Final = time(23, 59, 59)

# The parameters and the value of each line, by the name of its property.
_Properties = dict[str, list[tuple[str, str]]]

_SHORT: Final = frozenset({Freq.HOURLY, Freq.MINUTELY, Freq.SECONDLY})
# Where the RFC forbids a part.
_NOT_WITH: Final = {
    "BYWEEKNO": frozenset(Freq) - {Freq.YEARLY},
    "BYYEARDAY": frozenset({Freq.DAILY, Freq.WEEKLY, Freq.MONTHLY}),
    "BYMONTHDAY": frozenset({Freq.WEEKLY}),
}


@dataclass(frozen=True, slots=True)
class RecurrenceSet:
    """A rule, the times that are added to it, and those that are taken away from it."""

    pattern: Pattern | None
    anchor: datetime
    count: int | None = None
    until: datetime | None = None
    dates: frozenset[datetime] = frozenset()
    removed: frozenset[datetime] = frozenset()
    removed_days: frozenset[date] = frozenset()

    @property
    def is_elapsed(self) -> bool:
        return self.pattern is not None and self.pattern.freq in _SHORT

    def nominals(self, start: datetime) -> Iterator[datetime]:
        added = sorted(each for each in self.dates if each >= start)
        last: datetime | None = None
        for nominal in merge(self._by_rule(start), added):
            if nominal != last and nominal not in self.removed and nominal.date() not in self.removed_days:
                yield nominal
            last = nominal

    def _by_rule(self, start: datetime) -> Iterator[datetime]:
        if self.pattern is None:
            return iter(())
        nominals = self.pattern.nominals(start)
        end = self.until if self.count is None else _end_of(self.pattern, self.count)
        return nominals if end is None else takewhile(lambda nominal: nominal <= end, nominals)


@dataclass(frozen=True, slots=True)
class _Times:
    """Reads the times of a set as local times of the schedule's zone."""

    zone: Zone
    rules: ZoneRules

    def read(self, text: str, parameters: str, what: str) -> tuple[datetime, bool]:
        """The local time, and whether a time of day was written."""
        match = _DATE_TIME.fullmatch(text.strip().upper())
        named = _parameters(parameters, what)
        if match is None:
            raise InvalidValue(f"{what} has {quoted(text)}", hint="write 20251225T090000, 20251225T070000Z or 20251225")
        try:
            written = f"{match[1]}T{match[2] or '000000'}"
            local = datetime.strptime(written, "%Y%m%dT%H%M%S")  # noqa: DTZ007 - local to the zone
        except ValueError:
            raise InvalidValue(f"{what} has {quoted(text)}, which no calendar has") from None
        local = within_years(local)
        if match[3]:
            local = self._converted(local.replace(tzinfo=UTC))
        elif match[2] and (zone := named.get("TZID", self.zone.name)) != self.zone.name:
            local = self._converted(places(local, self.rules.zone(zone), is_elapsed=False)[0].instant)
        return local, match[2] is not None

    def _converted(self, instant: datetime) -> datetime:
        return self.zone.local(instant).replace(tzinfo=None, fold=0)


def parse_rrule(expr: str, anchor: datetime, zone: Zone, rules: ZoneRules) -> RecurrenceSet:
    """`anchor` is the DTSTART of a text that has none."""
    properties = _properties(bounded(expr, _LONGEST, "an rrule"))
    times = _Times(zone, rules)
    starts = [times.read(value, parameters, "DTSTART")[0] for parameters, value in properties.get("DTSTART", ())]
    recurrence = RecurrenceSet(None, (starts or [anchor])[0].replace(microsecond=0))
    for _, value in properties.get("RRULE", ()):
        recurrence = _with_rule(recurrence, _parts(value), times)
    recurrence = _with_dates(recurrence, properties, times)
    if recurrence.pattern is None and not recurrence.dates:
        raise InvalidValue("an rrule needs a rule or dates", hint="write FREQ=DAILY;BYHOUR=9, or RDATE:20251225T090000")
    return recurrence


def _properties(text: str) -> _Properties:
    """The lines of the text by their names; a line without a name is the rule."""
    properties: _Properties = {}
    unfolded = re.sub(r"\r?\n[ \t]", "", text)
    for line in filter(None, (line.strip() for line in unfolded.splitlines())):
        match = _PROPERTY.fullmatch(line)
        if match is None and ":" in line:
            name = re.split("[:;]", line)[0]
            raise InvalidValue(
                f"{quoted(name)} is not part of an rrule", hint="there are RRULE, DTSTART, RDATE, EXDATE"
            )
        name, parameters, value = match.groups() if match else ("RRULE", "", line)
        properties.setdefault(name.upper(), []).append((parameters, value))
    if "EXRULE" in properties:
        raise InvalidValue("EXRULE is no longer part of RFC 5545", hint="write EXDATE, or exclude a calendar")
    for name in ("RRULE", "DTSTART"):
        if len(properties.get(name, ())) > 1:
            raise InvalidValue(f"an rrule has one {name}, not {len(properties[name])}", hint="write two schedules")
    return properties


def _parameters(text: str, what: str) -> dict[str, str]:
    named = dict(part.split("=", 1) for part in text.split(";") if part)
    upper = {name.upper(): value.strip('"') for name, value in named.items()}
    if unknown := set(upper) - {"TZID", "VALUE"}:
        raise InvalidValue(f"{what} has the parameter {quoted(min(unknown))}", hint="there are TZID and VALUE")
    if upper.get("VALUE", "DATE").upper() not in ("DATE", "DATE-TIME"):
        raise InvalidValue(f"{what} has values of the type {quoted(upper['VALUE'])}", hint="write DATE or DATE-TIME")
    return upper


def _parts(text: str) -> dict[str, str]:
    parts: dict[str, str] = {}
    for part in text.strip().rstrip(";").split(";"):
        name, separator, value = (piece.strip().upper() for piece in part.partition("="))
        if name in ("RSCALE", "SKIP"):
            raise InvalidValue(f"{name} is not supported: a rule counts in the Gregorian calendar", hint="leave it out")
        if not separator or name not in _PARTS:
            raise InvalidValue(f"the rule has the unknown part {quoted(name)}{did_you_mean(name[:20], _PARTS)}")
        if name in parts:
            raise InvalidValue(f"the rule has {name} twice", hint="write its values as one list, with commas")
        if not value:
            raise InvalidValue(f"{name} has no value")
        parts[name] = value
    return parts


def _with_rule(recurrence: RecurrenceSet, parts: dict[str, str], times: _Times) -> RecurrenceSet:
    if "FREQ" not in parts:
        raise InvalidValue("the rule has no FREQ", hint="begin with FREQ=DAILY, for instance")
    if parts["FREQ"] not in set(Freq):
        raise InvalidValue(f"FREQ={parts['FREQ'][:20]} is unknown", hint=f"there are {', '.join(Freq)}")
    if "COUNT" in parts and "UNTIL" in parts:
        raise InvalidValue("the rule has both COUNT and UNTIL", hint="leave one of them out")
    pattern = _pattern(Freq(parts["FREQ"]), recurrence.anchor, parts)
    number = _number(parts, "COUNT", MOST_COUNTED) if "COUNT" in parts else None
    until = _until(parts["UNTIL"], times) if "UNTIL" in parts else None
    if until is not None and until < recurrence.anchor:
        raise InvalidValue(f"UNTIL={parts['UNTIL']} is before the rule begins, at {recurrence.anchor}")
    return replace(recurrence, pattern=pattern, count=number, until=until)


def _until(text: str, times: _Times) -> datetime:
    local, has_time = times.read(text, "", "UNTIL")
    return local if has_time else datetime.combine(local, _END_OF_DAY)


def _with_dates(recurrence: RecurrenceSet, properties: _Properties, times: _Times) -> RecurrenceSet:
    read: dict[str, list[tuple[datetime, bool]]] = {}
    for name in ("RDATE", "EXDATE"):
        written = [(value, parameters) for parameters, text in properties.get(name, ()) for value in text.split(",")]
        if len(written) > _MOST_DATES:
            raise InvalidValue(f"{name} has {len(written)} dates, more than {_MOST_DATES}", hint="use a calendar")
        read[name] = [times.read(value, parameters, name) for value, parameters in written]
    if any(not has_time for _, has_time in read["RDATE"]):
        raise InvalidValue("RDATE has a date without a time", hint="write 20251225T090000")
    return replace(
        recurrence,
        dates=frozenset(local for local, _ in read["RDATE"]),
        removed=frozenset(local for local, has_time in read["EXDATE"] if has_time),
        removed_days=frozenset(local.date() for local, has_time in read["EXDATE"] if not has_time),
    )


def _pattern(freq: Freq, anchor: datetime, parts: dict[str, str]) -> Pattern:
    for name, forbidden in _NOT_WITH.items():
        if name in parts and freq in forbidden:
            allowed = ", ".join(other for other in Freq if other not in forbidden)
            raise InvalidValue(f"{name} cannot stand with FREQ={freq}", hint=f"it goes with {allowed}")
    if "BYSETPOS" in parts and not any(name.startswith("BY") for name in parts if name != "BYSETPOS"):
        raise InvalidValue("BYSETPOS chooses among what other BY… parts name, and there are none")
    if "BYWEEKNO" in parts and "BYDAY" not in parts:
        raise InvalidValue("BYWEEKNO names a week, but no day of it", hint="add BYDAY=MO, for instance")
    written = Pattern(
        freq,
        anchor,
        interval=_number(parts, "INTERVAL", 10**9) if "INTERVAL" in parts else 1,
        months=frozenset(_numbers(parts, "BYMONTH", 1, 12)),
        month_days=frozenset(_numbers(parts, "BYMONTHDAY", 1, 31, negative=True)),
        year_days=frozenset(_numbers(parts, "BYYEARDAY", 1, 366, negative=True)),
        weeks=frozenset(_numbers(parts, "BYWEEKNO", 1, 53, negative=True)),
        weekdays=_weekdays(freq, parts),
        hours=_numbers(parts, "BYHOUR", 0, 23),
        minutes=_numbers(parts, "BYMINUTE", 0, 59),
        seconds=_numbers(parts, "BYSECOND", 0, 59),
        positions=_numbers(parts, "BYSETPOS", 1, 366, negative=True),
        week_start=_week_start(parts.get("WKST", "MO")),
    )
    return _completed(written)


def _completed(pattern: Pattern) -> Pattern:
    """What the rule leaves open comes from its anchor: the day, and the time of day below the frequency."""
    anchor, freq = pattern.anchor, pattern.freq
    fixed = {
        "hours": (anchor.hour,) if freq not in _SHORT else (),
        "minutes": (anchor.minute,) if freq not in (Freq.MINUTELY, Freq.SECONDLY) else (),
        "seconds": (anchor.second,) if freq is not Freq.SECONDLY else (),
    }
    times = {name: value for name, value in fixed.items() if not getattr(pattern, name)}
    pattern = replace(pattern, **times)
    if pattern.weekdays or pattern.month_days or pattern.year_days:
        return pattern
    if freq is Freq.WEEKLY:
        return replace(pattern, weekdays=frozenset({(0, anchor.weekday())}))
    if freq is Freq.MONTHLY:
        return replace(pattern, month_days=frozenset({anchor.day}))
    if freq is Freq.YEARLY:
        return replace(pattern, month_days=frozenset({anchor.day}), months=pattern.months or frozenset({anchor.month}))
    return pattern


def _number(parts: dict[str, str], name: str, most: int) -> int:
    text = parts[name]
    if not text.isdigit() or len(text) > 12 or not 1 <= int(text) <= most:
        raise InvalidValue(f"{name}={text[:20]} is not a whole number from 1 to {most}")
    return int(text)


def _numbers(parts: dict[str, str], name: str, least: int, most: int, *, negative: bool = False) -> tuple[int, ...]:
    span = f"{least} to {most}" + (f" or -{least} to -{most}" if negative else "")
    found: set[int] = set()
    for text in parts[name].split(",") if name in parts else ():
        match = re.fullmatch(r"([+-]?)(\d{1,3})", text.strip())
        if match is None or not least <= int(match[2]) <= most or (match[1] == "-" and not negative):
            leap = "a leap second has no time of its own here" if (name, text) == ("BYSECOND", "60") else None
            raise InvalidValue(f"{name} has {quoted(text)}, which is not from {span}", hint=leap)
        found.add(int(text))
    return tuple(sorted(found))


def _weekdays(freq: Freq, parts: dict[str, str]) -> frozenset[tuple[int, int]]:
    written = parts["BYDAY"].split(",") if "BYDAY" in parts else ()
    return frozenset(_weekday(freq, text.strip(), parts) for text in written)


def _weekday(freq: Freq, text: str, parts: dict[str, str]) -> tuple[int, int]:
    match = _ORDINAL_DAY.fullmatch(text)
    if match is None:
        raise InvalidValue(
            f"BYDAY has {quoted(text)}", hint=f"write {', '.join(WEEKDAYS)}, or -1FR for the last Friday"
        )
    ordinal, day = int(match[1] or 0), WEEKDAYS.index(match[2])
    if match[1] is None:
        return 0, day
    if freq not in (Freq.MONTHLY, Freq.YEARLY) or "BYWEEKNO" in parts:
        raise InvalidValue(f"BYDAY has {text}, and an ordinal goes with MONTHLY and YEARLY only, without BYWEEKNO")
    most = 5 if freq is Freq.MONTHLY or "BYMONTH" in parts else 53
    if not 1 <= abs(ordinal) <= most:
        raise InvalidValue(f"BYDAY has {text}, and there are at most {most} of a day in the period")
    return ordinal, day


def _week_start(text: str) -> int:
    if text not in WEEKDAYS:
        raise InvalidValue(f"WKST={text[:20]} is not a day", hint=f"write one of {', '.join(WEEKDAYS)}")
    return WEEKDAYS.index(text)


@lru_cache(maxsize=1024)
def _end_of(pattern: Pattern, number: int) -> datetime | None:
    """The last time that COUNT allows. Counting is slow, and the same each time that a plan is made."""
    anchor, length = pattern.anchor, 86_400 if pattern.freq is Freq.DAILY else pattern.freq.seconds
    bare = _completed(Pattern(pattern.freq, anchor, pattern.interval, week_start=pattern.week_start))
    if length and pattern == bare:
        seconds = (number - 1) * pattern.interval * length
        return anchor + timedelta(seconds=seconds) if seconds < _FOREVER else None
    return nth_nominal(pattern, number)
