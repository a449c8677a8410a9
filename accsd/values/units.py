"""Durations and sizes as people write them (`10m`, `1h30m`, `512m`, `2GiB`): for settings and compose
labels.
"""

import re
from datetime import timedelta
from math import inf

from accsd.errors import InvalidValue

_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
# Docker counts in powers of 1024 whatever the letter case; so a limit means the same here and there.
_BYTES = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_LARGEST = 2**63 - 1  # what the kernel and Docker count in
_LONGEST = timedelta(days=3660)


def parse_duration(written: object) -> timedelta:
    """A number is seconds; text is `90s`, `10m`, `1h30m`, `500ms`, or a number."""
    duration = _read_duration(written)
    if not timedelta(0) <= duration <= _LONGEST:
        raise InvalidValue("a duration must be between 0 and ten years")
    return duration


def parse_size(written: object) -> int:
    """A number is bytes; text is `512m`, `2g`, `2GiB`: powers of 1024, as Docker reads them."""
    if isinstance(written, int) and not isinstance(written, bool) and 0 <= written <= _LARGEST:
        return written
    match = _SIZE.fullmatch(written.strip()) if isinstance(written, str) else None
    size = float(match[1]) * _BYTES[match[2].lower()] if match is not None else inf
    if size > _LARGEST:  # of some hundred digits, it is infinite
        raise InvalidValue("a size is a number of bytes, or text such as 512m or 2g")
    return int(size)


def shown_size(size: int) -> str:
    """For eyes: 1.5 MiB."""
    amount, units = float(size), ["B", "KiB", "MiB", "GiB", "TiB"]
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{size} B" if units[0] == "B" else f"{amount:.1f} {units[0]}"


def _read_duration(written: object) -> timedelta:
    if isinstance(written, timedelta):
        return written
    try:
        return timedelta(seconds=_seconds(written))
    except (ValueError, OverflowError):
        raise InvalidValue("a duration is a number of seconds, or text such as 90s, 10m or 1h30m") from None


def _seconds(written: object) -> float:
    if isinstance(written, int | float) and not isinstance(written, bool):
        return float(written)
    if not isinstance(written, str):
        raise ValueError
    text = written.strip()
    parts = _DURATION_PART.findall(text)
    if parts and not _DURATION_PART.sub("", text):
        return sum(float(number) * _SECONDS[unit] for number, unit in parts)
    return float(text)
