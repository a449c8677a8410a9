"""Times as people type them: an ISO time, `in 10m`, `18:30`, `2h ago`. What has no zone is local time."""

import re
from datetime import datetime, time, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from accsd.errors import InvalidValue

if TYPE_CHECKING:
    from accsd.planning.recurrence import Zone

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw])[a-z]*\s*")
_LONGEST: Final = timedelta(days=100_000)
_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")


def length(text: str) -> timedelta:
    """`90s`, `10m`, `1h30m`, `2 days`; a bare number is seconds."""
    typed = text.strip().lower()
    if re.fullmatch(r"\d+(\.\d+)?", typed):
        return _bounded(float(typed), text)
    parts = _LENGTH.findall(typed)
    if not parts or _LENGTH.sub("", typed):
        raise InvalidValue(f'"{text}" is not a length of time', hint="write 90s, 10m, 1h30m or 2d")
    return _bounded(sum(float(count) * _UNITS[unit] for count, unit in parts), text)


def _bounded(seconds: float, text: str) -> timedelta:
    """Refuses a length that would lead out of the calendar."""
    if seconds > _LONGEST.total_seconds():
        raise InvalidValue(f'"{text[:40]}" is too long a time', hint=f"write at most {_LONGEST.days}d")
    return timedelta(seconds=seconds)


def future(text: str, now: datetime) -> datetime:
    """A moment for --at. `now` is the database's; a time of day is its next occurrence."""
    typed = text.strip()
    if typed == "now":
        return now
    if typed.startswith(("in ", "+")):
        return now + length(typed.removeprefix("in ").removeprefix("+"))
    moment = _moment(typed, now)
    if _CLOCK.fullmatch(typed) and moment <= now:
        return _moment(typed, now + timedelta(days=1))
    return moment


def past(text: str, now: datetime) -> datetime:
    """A moment for --since: `2h` and `2h ago` are the same; a time of day is its last occurrence."""
    typed = text.strip().removesuffix("ago").strip()
    if typed in ("today", "yesterday"):
        midnight = datetime.combine(now.astimezone().date(), time()) - timedelta(days=typed == "yesterday")
        return midnight.astimezone()
    if _LENGTH.match(typed):
        return now - length(typed)
    moment = _moment(typed, now)
    if _CLOCK.fullmatch(typed) and moment > now:
        return _moment(typed, now - timedelta(days=1))
    return moment


def on_the_wall(text: str, zone: "Zone", now: datetime, *, ahead: bool) -> datetime:
    """A time that a schedule names, as its wall clock shows it: `2026-10-25T02:30`, `02:30`, `sunday 02:30`, `yesterday
    02:30`. One with an offset is an instant. A day or a time of day without a date is the next one, or the last."""
    from accsd.planning.recurrence import parse_time

    typed = text.strip()
    day, _, rest = typed.lower().rpartition(" ")
    clock = _CLOCK.fullmatch(rest)
    if clock is None or (day and day not in ("today", "yesterday", "tomorrow") and day[:3] not in _DAYS):
        return parse_time(typed)
    local = zone.local(now).replace(tzinfo=None)
    at = datetime.combine(local.date(), _clock(clock))
    match day:
        case "today" | "yesterday" | "tomorrow":
            return at + timedelta(days={"today": 0, "yesterday": -1, "tomorrow": 1}[day])
        case "":
            step = 1
        case _:
            at += timedelta(days=(_DAYS.index(day[:3]) - at.weekday()) % 7)
            step = 7
    if ahead:
        return at if at > local else at + timedelta(days=step)
    return at if at <= local else at - timedelta(days=step)


def in_zone(text: str, zone: "Zone", now: datetime, *, ahead: bool) -> datetime:
    """A moment of a schedule: what has no offset is local to its zone. A time of day is its next or last occurrence."""
    from accsd.planning.recurrence import instant_of, parse_time

    typed = text.strip()
    if clock := _CLOCK.fullmatch(typed):
        return _clock_in_zone(clock, zone, now, ahead=ahead)
    if not typed[:4].isdecimal() or _LENGTH.match(typed):
        return future(typed, now) if ahead else past(typed, now)
    moment = parse_time(typed)
    return instant_of(moment, zone) if moment.tzinfo is None else moment


def _clock_in_zone(clock: re.Match[str], zone: "Zone", now: datetime, *, ahead: bool) -> datetime:
    from accsd.planning.recurrence import instant_of

    today, at = zone.local(now).date(), _clock(clock)
    days = [today, today + timedelta(days=1)] if ahead else [today, today - timedelta(days=1)]
    moments = [instant_of(datetime.combine(day, at), zone) for day in days]
    return next((moment for moment in moments if (moment > now) == ahead), moments[-1])


def _clock(clock: re.Match[str]) -> time:
    try:
        hour, minute, second = (int(part or 0) for part in clock.groups())
        return time(hour, minute, second)
    except ValueError:
        raise InvalidValue(f'"{clock[0]}" is not a time of day') from None


def _moment(typed: str, now: datetime) -> datetime:
    try:
        if clock := _CLOCK.fullmatch(typed):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            return datetime.combine(now.astimezone().date(), time(hour, minute, second)).astimezone()
        return datetime.fromisoformat(typed).astimezone()
    except (ValueError, OverflowError):  # OverflowError: a time that another zone would put before year 1 or after 9999
        raise InvalidValue(
            f'"{typed}" is not a time', hint=f'write 18:30, "in 10m" or {now.date().isoformat()}T18:30'
        ) from None


class _Length(click.ParamType[timedelta]):
    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        return value if isinstance(value, timedelta) else length(str(value))


LENGTH: Final = _Length()
