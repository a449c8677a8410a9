"""Cron expressions: five fields, or six with seconds first. cronsim finds the times, always naive; this module reads
the expression first, so that what is refused is refused with the field's name and with what to write instead, and
replaces `H` by the schedule's own share of the field."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from cronsim import CronSim, CronSimError

from accsd.errors import InvalidValue
from accsd.planning.recurrence.spread import share
from accsd.planning.recurrence.text import bounded, quoted

MACROS: Final = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

_MONTHS: Final = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS: Final = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_LONGEST: Final = 400  # characters: all sixty minutes, one by one, fit
_ANY_TIME: Final = datetime.fromisoformat("2000-01-01")
_MONTH_LENGTHS: Final = (31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)

_VALUE: Final = r"(?:\d{1,4}|[A-Z]{3})"
_PLAIN = re.compile(rf"(?:(\*)|({_VALUE})(?:-({_VALUE}))?)(?:/(\d{{1,4}}))?")
_HASHED = re.compile(r"H(?:\((\d{1,2})-(\d{1,2})\))?(?:/(\d{1,2}))?")
_NTH_DAY = re.compile(rf"({_VALUE})#(\d)")
_LAST_DAY = re.compile(rf"({_VALUE})L")


@dataclass(frozen=True, slots=True)
class Field:
    """What may stand in one field of an expression."""

    name: str
    first: int
    last: int
    names: tuple[str, ...] = ()
    takes_h: bool = False

    @property
    def size(self) -> int:
        return 7 if self.names is _DAYS else self.last - self.first + 1

    def value(self, word: str) -> int:
        number = self.names.index(word) + self.first if word in self.names else int(word) if word.isdigit() else -1
        if not self.first <= number <= self.last:
            span = f"{self.first} to {self.last}" + (f" or {self.names[0]} to {self.names[-1]}" if self.names else "")
            raise self.refusal(f"has {word}", f"it goes from {span}")
        return number

    def refusal(self, what: str, hint: str | None = None) -> InvalidValue:
        return InvalidValue(f"the {self.name} field {what}", hint=hint)


SECOND: Final = Field("second", 0, 59)
MINUTE: Final = Field("minute", 0, 59, takes_h=True)
HOUR: Final = Field("hour", 0, 23, takes_h=True)
MONTH_DAY: Final = Field("day of month", 1, 31)
MONTH: Final = Field("month", 1, 12, _MONTHS)
WEEK_DAY: Final = Field("day of week", 0, 7, _DAYS)
_FIELDS: Final = (SECOND, MINUTE, HOUR, MONTH_DAY, MONTH, WEEK_DAY)


@dataclass(frozen=True, slots=True)
class Cron:
    """An expression that was read: its fields in capitals and numbers, without H. Five fields begin with second 0."""

    fields: tuple[str, ...]
    has_seconds: bool

    @property
    def expanded(self) -> str:
        return " ".join(self.fields if self.has_seconds else self.fields[1:])

    @property
    def is_elapsed(self) -> bool:
        """Debian's distinction: a star in minute or hour means "every so often", and no time of day."""
        return any(field.startswith("*") for field in self.fields[:3])

    @property
    def days_are_either(self) -> bool:
        """Whether a day of month *or* a day of week is enough: both are given, and neither begins with a star."""
        return not self.fields[3].startswith("*") and not self.fields[5].startswith("*")

    def nominals(self, start: datetime) -> Iterator[datetime]:
        """Ends where there is no further one within 50 years."""
        just_before = start.replace(microsecond=0) - timedelta(seconds=0 if start.microsecond else 1)
        return CronSim(self.expanded, just_before)

    def explained(self) -> str:
        return CronSim(self.expanded, _ANY_TIME).explain()


def parse_cron(expr: str, schedule_id: str) -> Cron:
    text = bounded(expr, _LONGEST, "a cron expression").upper()
    words = _words(text)
    padded = ["0", *words] if len(words) == 5 else words
    fields = [_field(field, word, schedule_id) for field, word in zip(_FIELDS, padded, strict=True)]
    cron = Cron(tuple(fields), has_seconds=len(words) == 6)
    _check_days(cron)
    return cron


def values_of(field: Field, text: str) -> set[int]:
    """The numbers that a field of a read expression matches; L, LW, 5L and 1#2 are none."""
    return {number for term in text.split(",") for number in _numbers(field, term)}


def _words(text: str) -> list[str]:
    if text.startswith("@"):
        macro = MACROS.get(text.lower())
        if macro is None:
            raise InvalidValue(
                f"{quoted(text)} is no cron expression", hint=f"there are {', '.join(MACROS)} and @every 90m"
            )
        return macro.split()
    words = text.split()
    if words[0].startswith(("TZ=", "CRON_TZ=")):
        raise InvalidValue("a cron expression names no time zone", hint="the schedule has a time zone of its own")
    if len(words) == 7:
        raise InvalidValue("a cron expression has no year field", hint="use start_at and end_at")
    if len(words) not in (5, 6):
        raise InvalidValue(
            f"a cron expression has 5 fields, or 6 with seconds first, not {len(words)}",
            hint="the fields are minute, hour, day of month, month, day of week: 0 9 * * 1-5",
        )
    return words


def _field(field: Field, text: str, schedule_id: str) -> str:
    terms = (_term(field, term, schedule_id) for term in text.split(","))
    # 7 is Sunday too, and it is told once
    return ",".join(dict.fromkeys(re.sub(r"^7(?=$|L|#)", "0", term) if field is WEEK_DAY else term for term in terms))


def _term(field: Field, term: str, schedule_id: str) -> str:
    """The term in the words of cronsim, if it means something."""
    if match := _PLAIN.fullmatch(term):
        return _plain(field, term, match)
    if match := _HASHED.fullmatch(term):
        return _hashed(field, match, schedule_id)
    if field is MONTH_DAY and term in ("L", "LW"):
        return term
    if field is WEEK_DAY and (match := _LAST_DAY.fullmatch(term)):
        return f"{field.value(match[1])}L"
    if field is WEEK_DAY and (match := _NTH_DAY.fullmatch(term)):
        if not 1 <= int(match[2]) <= 5:
            raise field.refusal(f"has {term}", "a month has at most five of each day: MON#1 to MON#5")
        return f"{field.value(match[1])}#{match[2]}"
    raise _not_understood(field, term)


def _plain(field: Field, term: str, match: re.Match[str]) -> str:
    star, first, last, step = match.groups()
    low = field.first if star else field.value(first)
    high = field.value(last) if last else field.last
    if high < low:
        raise field.refusal(f"has the reversed range {first}-{last}", f"write {_unrolled(field, low, high)}")
    written = star or (f"{low}-{high}" if last else str(low))
    if step is None:
        return written
    size = field.size if star else high - low + 1
    if int(step) == 0:
        raise field.refusal(f"has the step 0 in {term}", "a step is 1 or more")
    if int(step) > size:
        hint = None if field.names else f"for real time write @every {step}{field.name[0]}"
        raise field.refusal(f"has a step of {step} in {term}, larger than its {size} values", hint)
    return f"{written}/{int(step)}"


def _unrolled(field: Field, low: int, high: int) -> str:
    """A reversed range, as the two that it means."""
    top = 6 if field is WEEK_DAY else field.last
    pieces = [(low, top), (field.first, high)]
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in pieces)


def _hashed(field: Field, match: re.Match[str], schedule_id: str) -> str:
    if not field.takes_h:
        raise field.refusal("has H", "H may stand in minute and hour only")
    low, high = field.value(match[1] or str(field.first)), field.value(match[2] or str(field.last))
    if high < low:
        raise field.refusal(f"has the reversed range {match[0]}", f"write H({high}-{low})")
    if match[3] is None:
        return str(low + share(schedule_id, field.name, high - low + 1))
    step = int(match[3])
    if not 1 <= step <= high - low + 1:
        raise field.refusal(f"has a step of {step} in {match[0]}", f"a step is 1 to {high - low + 1} here")
    return ",".join(str(number) for number in range(low + share(schedule_id, field.name, step), high + 1, step))


def _not_understood(field: Field, term: str) -> InvalidValue:
    if "?" in term:
        return field.refusal("has ?", "write *")
    if "W" in term and field is MONTH_DAY:
        return field.refusal(f"has {term}: nearest weekdays are not supported", "LW is the last weekday of a month")
    if term.startswith("L") and field is MONTH_DAY:
        return field.refusal(f"has {term}: only L and LW are supported", "an rrule can say BYMONTHDAY=-3")
    if term == "L" and field is WEEK_DAY:
        return field.refusal("has L without a day", "write 5L for the last Friday of a month")
    if "L" in term or "#" in term:
        return field.refusal(f"has {quoted(term)}", "L may stand in day of month, 5L and MON#2 in day of week")
    if not term:
        return field.refusal("has an empty place in its list")
    return field.refusal(f"has {quoted(term)}", "write *, 5, 1-5, */15 or a list of such with commas")


def _numbers(field: Field, term: str) -> list[int]:
    match = _PLAIN.fullmatch(term)
    if match is None:
        return []
    star, first, last, step = match.groups()
    low = field.first if star else int(first)
    # a step makes a single number the beginning of a range
    high = field.last if star or (step and not last) else int(last or first)
    return [number % 7 if field is WEEK_DAY else number for number in range(low, high + 1, int(step or 1))]


def _check_days(cron: Cron) -> None:
    """Refuses what no calendar has, such as 31 February, before cronsim searches 50 years for it."""
    days, months = values_of(MONTH_DAY, cron.fields[3]), values_of(MONTH, cron.fields[4])
    longest = max(_MONTH_LENGTHS[month - 1] for month in months)
    only_numbers = "L" not in cron.fields[3]
    if only_numbers and not cron.days_are_either and min(days) > longest:
        raise MONTH_DAY.refusal(f"has {min(days)}, and no month that is named has so many days", "L is the last day")
    try:
        cron.nominals(_ANY_TIME)
    except CronSimError as error:
        raise InvalidValue(f"the cron expression is not understood: {error}") from None
