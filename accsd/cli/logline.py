"""A line that a task wrote, for a terminal."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import click

from accsd.cli.harmless import harmless
from accsd.cli.output import is_terminal

_STYLES: Final[Mapping[str, str]] = {"debug": "bright_black", "warn": "yellow", "error": "red"}


def printed(record: Mapping[str, Any], timestamps: bool, *, prefix: bool) -> str:
    """`prefix`: which step it is from."""
    text = harmless(str(record["message"]))
    level = str(record.get("level", "info"))
    if level in _STYLES and is_terminal():
        text = click.style(text, fg=_STYLES[level])
    when = f"{_moment(record['ts'])}  " if timestamps else ""
    return when + (f"{record['task']} | " if prefix else "") + text


def _moment(ts: Any) -> str:
    """Kept as text in a segment, and a time in an event."""
    moment = ts if isinstance(ts, datetime) else datetime.fromisoformat(str(ts))
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
