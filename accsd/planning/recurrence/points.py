"""The two kinds that name points in time: `once`, and `interval`, which counts real time and knows no summer time.
Neither cron nor RRULE can say "every 90 minutes" with a phase that restarts and edits do not move."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from accsd.errors import InvalidValue
from accsd.planning.recurrence.text import bounded, parse_time, quoted
from accsd.values.units import parse_duration

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
EVERY: Final = "@every"

_LEAST: Final = timedelta(seconds=1)
_ISO_DURATION = re.compile(
    r"P(?:(\d{1,6})W)?(?:(\d{1,6})D)?(?:T(?=\d)(?:(\d{1,6})H)?(?:(\d{1,8})M)?(?:(\d{1,9})S)?)?", re.IGNORECASE
)
_PLAIN_DURATION = re.compile(r"(?:\d{1,9}(?:\.\d{1,6})?\s?(?:ms|s|m|h|d)\s?){1,5}")
_ISO_UNITS: Final = ("weeks", "days", "hours", "minutes", "seconds")
_HINT: Final = "write it as 90m, 1h30m or PT90M"


@dataclass(frozen=True, slots=True)
class Interval:
    """anchor + n × every, for every whole n."""

    every: timedelta
    anchor: datetime

    def instants(self, after: datetime) -> Iterator[datetime]:
        instant = self.anchor + ((after - self.anchor) // self.every + 1) * self.every
        while True:
            yield instant
            instant += self.every


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant, written with its offset."""

    at: datetime

    def instants(self, after: datetime) -> Iterator[datetime]:
        return iter((self.at,) if self.at > after else ())


@dataclass(frozen=True, slots=True)
class LocalMoment:
    """One time on the wall clock of the schedule's zone."""

    nominal: datetime

    @property
    def is_elapsed(self) -> bool:
        return False

    def nominals(self, start: datetime) -> Iterator[datetime]:
        return iter((self.nominal,) if self.nominal >= start else ())


def parse_once(expr: str) -> Moment | LocalMoment:
    moment = parse_time(expr)
    return LocalMoment(moment) if moment.tzinfo is None else Moment(moment.astimezone(UTC))


def parse_interval(expr: str, anchor: datetime | None) -> Interval:
    text = bounded(expr, 40, "an interval").removeprefix(EVERY).strip()
    every = _duration(text)
    if every < _LEAST or every % _LEAST:
        raise InvalidValue(f"the interval {quoted(text)} is not a whole number of seconds, one at least", hint=_HINT)
    return Interval(every, anchor or EPOCH)


def _duration(text: str) -> timedelta:
    if re.match(r"P[^T]*[YM]", text, re.IGNORECASE):
        raise InvalidValue(
            f"the interval {quoted(text)} has years or months, which are of different lengths",
            hint="write an rrule, such as FREQ=MONTHLY",
        )
    if (match := _ISO_DURATION.fullmatch(text)) and any(match.groups()):
        parts = {unit: int(count) for unit, count in zip(_ISO_UNITS, match.groups(), strict=True) if count}
        return parse_duration(timedelta(**parts))
    if not _PLAIN_DURATION.fullmatch(text):
        raise InvalidValue(f"{quoted(text)} is no interval", hint=_HINT)
    return parse_duration(text)
