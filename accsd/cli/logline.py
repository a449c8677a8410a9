"""A line that a task wrote, for a terminal."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from accsd.cli.output import Shown, shown, styled

_STYLES: Final[Mapping[str, str]] = {"debug": "bright_black", "warn": "yellow", "error": "red"}


def printed(record: Mapping[str, Any], timestamps: bool, *, prefix: bool) -> Shown:
    """`prefix`: which step it is from."""
    message, level = str(record["message"]), str(record.get("level", "info"))
    text = styled(message, _STYLES[level]) if level in _STYLES else message
    when = f"{_moment(record['ts'])}  " if timestamps else ""
    return shown(when, f"{record['task']} | " if prefix else "", text)


def _moment(ts: Any) -> str:
    """Kept as text in a segment, and a time in an event."""
    moment = ts if isinstance(ts, datetime) else datetime.fromisoformat(str(ts))
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
