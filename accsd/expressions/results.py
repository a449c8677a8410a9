"""What an expression gives back, as plain JSON or as a part of a text."""

from datetime import UTC, datetime, timedelta
from math import isfinite
from typing import Any, cast

import orjson

from accsd.errors import InvalidValue


def plain(value: object) -> Any:
    """The JSON of the library's value. Times and durations become the text that CEL's own `string()` makes of them.
    Raises InvalidValue for what JSON can't hold: words that go on from "the result"."""
    match value:
        case None | bool() | int():
            return value
        case str():
            return _storable(value)
        case float():
            return _finite(value)
        case datetime():
            return written_moment(value)
        case timedelta():
            return written_duration(value)
        case list():
            return [plain(each) for each in cast("list[object]", value)]
        case dict():
            items = cast("dict[object, object]", value).items()
            return {_key(key): plain(each) for key, each in items}
        case _:
            raise InvalidValue("is neither text, number, true, false, null, list nor object")


def written(value: Any) -> str:
    """A value of `plain` inside of a text (EX1)."""
    match value:
        case None:
            raise InvalidValue("is null, which a text can't show: give it a default, such as .?field.orValue('')")
        case str():
            return value
        case float():
            return repr(value).removesuffix(".0")
        case _:
            return orjson.dumps(value).decode()


def written_moment(moment: datetime) -> str:
    """RFC 3339 in UTC with none, three or six digits after the second, as CEL writes it."""
    if moment.tzinfo is None:
        raise InvalidValue("a time has no offset")
    digits = "microseconds" if moment.microsecond % 1000 else "milliseconds" if moment.microsecond else "seconds"
    return moment.astimezone(UTC).isoformat(timespec=digits).replace("+00:00", "Z")


def written_duration(duration: timedelta) -> str:
    """Seconds, as CEL writes them: `5400s`, `-1.500s`."""
    seconds, fraction = divmod(abs(duration) // timedelta(microseconds=1), 1_000_000)
    digits = f".{fraction:06d}" if fraction % 1000 else f".{fraction // 1000:03d}" if fraction else ""
    return f"{'-' if duration < timedelta(0) else ''}{seconds}{digits}s"


def _key(key: object) -> str:
    if not isinstance(key, str):
        raise InvalidValue("has a key that is no text")
    return _storable(key)


def _storable(text: str) -> str:
    if "\x00" in text:
        raise InvalidValue("holds the character NUL")
    return text


def _finite(value: float) -> float:
    if not isfinite(value):
        raise InvalidValue("is not a finite number")
    return value
