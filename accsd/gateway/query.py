"""Filters of jobs as people type them: `status:error workflow:media option.shot:"010_020" took:>1h since:2d rendering`.

A word with a colon is a qualifier, every other word is text that a job must mention; quotes make one word of several,
and text of what looks like a qualifier. The same names are the parameters of a request. Pure: the caller says what time
it is. What is not understood is said with its position, so that whoever typed it sees it underlined.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson

from accsd.db.views.job_list import JobFilter
from accsd.errors import InvalidValue
from accsd.model.state import JobStatus
from accsd.values.validation import did_you_mean

_LONGEST: Final = 2000
_MOST_WORDS: Final = 20
_DEEPEST: Final = 16
_TOKEN: Final = re.compile(r"""(?:[^\s"]|"(?:[^"\\]|\\.)*")+""")
_QUALIFIER: Final = re.compile(r"([A-Za-z_]+(?:\.[^\s:\"]*)?):")
_LENGTH: Final = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)(s|m|h|d|w)")
_SECONDS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST_TIME: Final = timedelta(days=100_000)
_STATUSES: Final = [status.value for status in JobStatus]
# The qualifier, and the field of the filter that it sets.
_PLAIN: Final = {
    "workflow": "workflow",
    "service": "service",
    "node": "node",
    "by": "by",
    "created_by": "by",
    "error": "error_code",
    "error_code": "error_code",
    "key": "key",
}
_NAMES: Final = ("status", "workflow", "service", "node", "since", "until", "took", "by", "error", "key", "option.NAME")
PARAMETERS: Final = (  # of a request; `q` says the same and more
    "q",
    "status",
    "workflow",
    "service",
    "node",
    "since",
    "until",
    "took",
    "created_by",
    "error_code",
    "key",
)


class QueryInvalid(InvalidValue):
    """A query that is not understood. `parameter` is the one that it came in; `position` counts its characters from 0,
    and `length` is how many of them are at fault."""

    code: Final = "query_invalid"

    def __init__(self, message: str, *, parameter: str, position: int, length: int, hint: str | None = None) -> None:
        super().__init__(f"{parameter}, character {position + 1}: {message}", hint=hint)
        self.parameter: str = parameter
        self.position: int = position
        self.length: int = length


@dataclass(frozen=True, slots=True)
class _Word:
    """A word of a query: what it says, without its quotes, and where it stands."""

    parameter: str
    position: int
    length: int
    value: str
    is_quoted: bool = False

    def refused(self, message: str, hint: str | None = None) -> QueryInvalid:
        return QueryInvalid(message, parameter=self.parameter, position=self.position, length=self.length, hint=hint)


def read_filter(parameters: Mapping[str, str], now: datetime) -> JobFilter:
    """The filter of a request: its parameters, and `q`. What both say must be the same. Raises QueryInvalid."""
    asked = parse(parameters.get("q", ""), now)
    for name in PARAMETERS[1:]:
        text = parameters.get(name)
        if text:
            asked = _qualified(asked, name, _Word(name, 0, len(text), text), now)
    return asked


def parse(text: str, now: datetime) -> JobFilter:
    """The filter that a query says. Raises QueryInvalid."""
    if len(text) > _LONGEST:
        raise QueryInvalid(
            f"the query is longer than {_LONGEST} characters", parameter="q", position=_LONGEST, length=len(text)
        )
    asked = JobFilter()
    end = 0
    for token in _TOKEN.finditer(text):
        _only_space(text, end, token.start())
        end = token.end()
        asked = _with_token(asked, token, now)
    _only_space(text, end, len(text))
    return asked


def _only_space(text: str, start: int, end: int) -> None:
    """What lies between two words is space, or a quote that is never closed."""
    if skipped := text[start:end].strip():
        at = text.index(skipped, start)
        raise QueryInvalid(
            "the quote is not closed", parameter="q", position=at, length=len(text) - at, hint='end it with "'
        )


def _with_token(asked: JobFilter, token: re.Match[str], now: datetime) -> JobFilter:
    qualifier = _QUALIFIER.match(token[0])
    whole = _Word("q", token.start(), len(token[0]), token[0])
    if qualifier is None:
        word = _unquoted(whole)
        if not word.value:
            return asked
        if len(asked.words) >= _MOST_WORDS:
            raise word.refused(f"a query has at most {_MOST_WORDS} words of text")
        return replace(asked, words=(*asked.words, word.value))
    start = token.start() + qualifier.end()
    value = _unquoted(_Word("q", start, token.end() - start, token[0][qualifier.end() :]))
    if not value.value and not value.is_quoted:
        raise whole.refused(f"{qualifier[0]} says nothing", hint=f"write {qualifier[0]}VALUE, without a space")
    return _qualified(asked, qualifier[1], value, now, whole)


def _unquoted(word: _Word) -> _Word:
    if '"' not in word.value:
        return word
    plain = re.sub(r'"((?:[^"\\]|\\.)*)"', lambda quoted: re.sub(r"\\(.)", r"\1", quoted[1]), word.value)
    return replace(word, value=plain, is_quoted=True)


def _qualified(asked: JobFilter, name: str, value: _Word, now: datetime, whole: _Word | None = None) -> JobFilter:
    """The filter with one more condition."""
    name, _, path = name.partition(".")
    match name.lower():
        case "option" if path:
            return replace(asked, options=_with_option(asked.options or {}, path.split("."), value))
        case "status" if not path:
            statuses = tuple(dict.fromkeys(_status(value, part) for part in value.value.split(",")))
            return _set(asked, "statuses", statuses, value)
        case "since" | "until" as bound if not path:
            return _set(asked, bound, moment(value, now), value)
        case "took" if not path:
            return _took(asked, value)
        case plain if plain in _PLAIN and not path:
            return _set(asked, _PLAIN[plain], value.value, value)
        case _:
            raise (whole or value).refused(
                f'there is no qualifier "{name}"{did_you_mean(name, _NAMES)}',
                hint=f"qualifiers: {', '.join(_NAMES)}. Text with a colon stands in quotes",
            )


def _set(asked: JobFilter, field: str, value: Any, word: _Word) -> JobFilter:
    before = getattr(asked, field)
    if before not in (None, (), value):
        raise word.refused("it is said twice, and not the same", hint="say it once")
    return replace(asked, **{field: value})


def _status(word: _Word, part: str) -> str:
    if part not in _STATUSES:
        raise word.refused(
            f'"{part[:40]}" is no state of a job{did_you_mean(part, _STATUSES)}', hint=f"states: {', '.join(_STATUSES)}"
        )
    return part


def moment(word: _Word, now: datetime) -> datetime:
    """`2d` (ago), `today`, `yesterday`, a date, a time. What has no zone is UTC."""
    if word.value in ("today", "yesterday"):
        midnight = now.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return midnight - timedelta(days=word.value == "yesterday")
    try:
        if (length := _length(word.value)) is not None:
            return now - length
        read = datetime.fromisoformat(word.value.replace(" ", "T"))
        zoned = read if read.tzinfo is not None else read.replace(tzinfo=UTC)
        return zoned.astimezone(UTC)
    except (ValueError, OverflowError):
        raise word.refused(
            f'"{word.value[:40]}" is no time', hint=f"write 2d, 3h, today, {now.date()} or {now.date()}T18:30Z"
        ) from None


def _took(asked: JobFilter, word: _Word) -> JobFilter:
    comparison, length = word.value[:1], _length(word.value[1:].lstrip("="))
    if comparison not in ("<", ">") or length is None:
        raise word.refused(f'"{word.value[:40]}" is no comparison', hint="write took:>1h or took:<90s")
    return _set(asked, "took_over" if comparison == ">" else "took_under", length, word)


def _length(text: str) -> timedelta | None:
    """`90s`, `1h30m`, `2d`; None for what is no length."""
    parts = _LENGTH.findall(text)
    if not parts or "".join(f"{count}{unit}" for count, unit in parts) != text:
        return None
    seconds = sum(float(count) * _SECONDS[unit] for count, unit in parts)
    return timedelta(seconds=seconds) if seconds <= _LONGEST_TIME.total_seconds() else None


def _with_option(options: Mapping[str, Any], path: list[str], value: _Word) -> dict[str, Any]:
    """Options that must be among a job's own. What is not quoted and reads as a number, true, false or null is that."""
    if not all(path) or len(path) > _DEEPEST:
        raise value.refused(
            "the name of the option is not complete", hint="write option.NAME:VALUE or option.A.B:VALUE"
        )
    nested: Any = value.value if value.is_quoted else _plain_json(value.value)
    for part in reversed(path):
        nested = {part: nested}
    return _merged(options, nested)


def _merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    both = {name: _merged(one[name], value) for name, value in other.items() if _are_tables(one.get(name), value)}
    return {**one, **other, **both}


def _are_tables(*values: object) -> bool:
    return all(isinstance(value, dict) for value in values)


def _plain_json(text: str) -> Any:
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
    return text if isinstance(read, dict | list | str) else read
