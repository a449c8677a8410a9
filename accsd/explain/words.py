"""Lengths of time, moments and ids as people read them."""

from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

_SHORT_ID: Final = 8
_LONGEST_LINE: Final = 160


def duration(length: timedelta) -> str:
    """`0.4s`, `1m5s`, `2d3h`: the two largest units."""
    seconds = length.total_seconds()
    if seconds < 0:
        return f"-{duration(-length)}"
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    named = [f"{count}{unit}" for count, unit in parts if count]
    return "".join(named[:2])


def away(moment: datetime, now: datetime) -> str:
    """How far from now, by the database's clock."""
    span = moment - now
    return f"in {duration(span)}" if span > timedelta(0) else f"{duration(-span)} ago"


def local_text(moment: datetime) -> str:
    """A time on the wall clock, with its day: Mon 2026-11-23 02:30."""
    day = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")[moment.weekday()]
    clock = f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"
    return f"{day} {moment:%Y-%m-%d} {clock}"


def short(full: UUID | str) -> str:
    """What people see of an id, and what commands take. Ids are time-ordered, so those of one minute begin alike; their
    ends differ (accs.new_id)."""
    return str(full)[-_SHORT_ID:]


def one_line(said: str, longest: int = _LONGEST_LINE) -> str:
    """The beginning of what a tool said at length, as much as a list can show."""
    plain = " ".join(said.split())
    return plain if len(plain) <= longest else plain[: longest - 1].rstrip() + "…"


def cut(said: str, longest: int) -> str:
    """No longer than this; an ellipsis says that there was more."""
    return said if len(said) <= longest else said[: longest - 1] + "…"
