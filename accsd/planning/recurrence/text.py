"""What people write into a rule: quoted in refusals, bounded in length, and read as local times. Every parser of this
room begins here, so that no text is too long, too odd or too old for the ones behind it."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from accsd.errors import InvalidValue

# Every date that is written lies between these; so no arithmetic with it leaves what datetime can hold.
FIRST_YEAR: Final = 1900
LAST_YEAR: Final = 2999

_SHOWN: Final = 60
_ODD = re.compile(r"[^\x20-\x7e\t\r\n]")
_ISO_TIME = re.compile(
    r"\d{4}-\d\d-\d\d(?:[Tt ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?(?:\s?(?:[Zz]|[+-]\d\d(?::?\d\d)?))?)?"
)


def quoted(text: str) -> str:
    """A refused text may be anything: its quotation is short, on one line and printable."""
    cut = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return '"' + "".join(character if character.isprintable() else "?" for character in cut) + '"'


def bounded(text: str, most: int, what: str) -> str:
    """The text without the blanks around it, if it is not empty, not too long, and plain ASCII without control
    characters."""
    plain = text.strip()
    if not plain:
        raise InvalidValue(f"{what} is empty")
    if len(plain) > most:
        raise InvalidValue(f"{what} has {len(plain)} characters, more than {most}")
    if odd := _ODD.search(plain):
        raise InvalidValue(f"{what} {quoted(plain)} has the character {odd[0]!a}", hint="use plain ASCII only")
    return plain


def parse_time(written: str) -> datetime:
    """An ISO 8601 date and time, with its offset if it has one; otherwise naive."""
    text = bounded(written, 40, "a time")
    try:
        moment = datetime.fromisoformat(text.upper()) if _ISO_TIME.fullmatch(text) else None
    except ValueError as error:
        raise InvalidValue(f"{quoted(text)} is no time: {error}") from None
    if moment is None:
        raise InvalidValue(f"{quoted(text)} is no ISO 8601 time", hint="write it as 2025-12-25T09:00:00")
    return within_years(moment)


def within_years(moment: datetime) -> datetime:
    if not FIRST_YEAR <= moment.year <= LAST_YEAR:
        raise InvalidValue(f"the year {moment.year} is not between {FIRST_YEAR} and {LAST_YEAR}")
    return moment


def check_aware(moment: datetime, what: str) -> datetime:
    """The instant in UTC."""
    if moment.tzinfo is None:
        raise InvalidValue(f"{what} must have an offset from UTC", hint="write it as 2025-12-25T09:00:00+02:00")
    return within_years(moment).astimezone(UTC)


def shown_span(span: timedelta) -> str:
    """For eyes: `90 minutes`, `1 day and 12 hours`."""
    left = span // timedelta(seconds=1)
    parts: list[str] = []
    for name, size in (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count} {name}" + ("s" if count > 1 else ""))
    return " and ".join(parts) or "0 seconds"
