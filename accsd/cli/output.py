"""What commands print: tables for eyes, `-o json|jsonl|name` for programs.

Names, messages and options were written by others and may hold anything, and a terminal obeys. So everything that is
said goes through `say`, which makes it harmless: only what is `Shown` already keeps its escape sequences, and only
`styled` and what is put together here makes that. JSON stays exact.

A table has no lines and no colours of its own where stdout is not a terminal, so that awk and diff can read it.
"""

import os
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import orjson

from accsd.cli.harmless import harmless
from accsd.values.times import FarTime

Row = Mapping[str, Any]

# What JSON allows as it is and a terminal may obey: DEL, the C1 controls, and what turns the direction of writing.
_RAW_CONTROLS: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

FORMATS: Final = ("table", "json", "jsonl", "name")

# By state, on a terminal. NO_COLOR takes them away.
_STYLES: Final[Mapping[str, str]] = {
    "done": "green",
    "running": "cyan",
    "starting": "cyan",
    "queued": "white",
    "error": "red",
    "cancelled": "yellow",
    "skipped": "bright_black",
    "awake": "green",
    "sleep": "blue",
    "asleep": "blue",
    "waking": "cyan",
    "booting": "cyan",
    "failed": "red",
    "away": "red",
    "drained": "yellow",
}


class Shown(str):
    """Text that is fit for a terminal: the escape sequences in it are ours. An f-string makes plain text of it again,
    which costs it its colour and nobody more than that."""

    __slots__ = ()


def shown(*parts: str) -> Shown:
    """The parts as one text, each made harmless unless it is already."""
    return Shown("".join(part if isinstance(part, Shown) else _harmless_lines(part) for part in parts))


def say(*parts: str, err: bool = False, end: str = "\n") -> None:
    """The one way to the terminal for words."""
    click.echo(shown(*parts, end), err=err, nl=False)


def say_json(value: Any) -> None:
    click.echo(to_json(value))


def _harmless_lines(text: str) -> str:
    return "\n".join(harmless(line) for line in text.split("\n"))


def output_option(default: str = "table") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(
        "-o",
        "--output",
        "output",
        type=click.Choice(FORMATS),
        default=default,
        show_default=True,
        help="table for eyes; json, jsonl or name for programs.",
    )


def show(rows: Sequence[Row], columns: Mapping[str, str], output: str, *, name: str = "id", empty: str = "") -> None:
    """`columns`: key of the row → heading. `name` is the key that `-o name` prints. `empty` is said to eyes only."""
    match output:
        case "json":
            say_json(list(rows))
        case "jsonl":
            for row in rows:
                say_json(row)
        case "name":
            for row in rows:
                say(str(row[name]))
        case _:
            _table(rows, columns, empty)


def show_one(row: Row, output: str, *, name: str = "id") -> None:
    """One thing, as pairs."""
    if output == "table":
        width = max(len(key) for key in row)
        for key, value in row.items():
            say(f"{key:<{width}}  {text(value)}")
    else:
        show([row], {}, output, name=name)


def to_json(value: Any) -> str:
    """One line; a control character in it is written as its number, which is the same JSON."""
    return _RAW_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", orjson.dumps(value, default=_encoded).decode())


def text(value: Any) -> str:
    """A value for eyes."""
    match value:
        case None:
            return ""
        case datetime():
            return since(value)
        case timedelta():
            return duration(value)
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.2f}"
        case dict() | list():
            return to_json(value)
        case _:
            return shown(str(value))


def since(moment: datetime) -> str:
    """How long ago, or in how long; the exact time is in `-o json`. One that is too far off for that: as it is."""
    if isinstance(moment, FarTime):
        return str(moment)
    away = datetime.now(UTC) - moment
    return f"{duration(away)} ago" if away >= timedelta(0) else f"in {duration(-away)}"


def duration(length: timedelta) -> str:
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


def styled(status: str, colour: str | None = None, *, bold: bool = False) -> Shown:
    """In the colour of its state, or in this one, where stdout is a terminal."""
    colour = colour or _STYLES.get(status)
    if not is_terminal() or (colour is None and not bold):
        return shown(status)
    return Shown(click.style(shown(status), fg=colour, bold=bold or None))


def is_terminal() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _table(rows: Sequence[Row], columns: Mapping[str, str], empty: str) -> None:
    if not rows:
        if empty:
            say(empty, err=True)
        return
    cells = [[heading.upper() for heading in columns.values()]]
    cells += [[cell(row.get(key)) for key in columns] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    for number, line in enumerate(cells):
        say(padded(line, widths, style=None if number == 0 else styled))


def cell(value: Any) -> Shown:
    """A value as one line of a table's cell, as long as it will be seen."""
    return shown(text(value).replace("\n", " "))


def padded(cells: Sequence[str], widths: Sequence[int], *, style: Callable[[str], Shown] | None) -> Shown:
    """One line of a table. A style has no width; what stands beyond the widths is as wide as it is."""
    parts: list[str] = []
    for number, each in enumerate(map(shown, cells)):
        room = widths[number] - len(each) if number < len(widths) else 0
        parts += ["  " if number else "", each if style is None else style(each), " " * room]
    return Shown(shown(*parts).rstrip())


def _encoded(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
