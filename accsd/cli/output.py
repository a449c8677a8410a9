"""What commands print: tables for eyes, `-o json|jsonl|name` for programs.

Names, messages and options were written by others and may hold anything, and a terminal obeys. So everything that is
said goes through `say`, which makes it harmless: only what is `Shown` already keeps its escape sequences, and only
`styled` and what is put together here makes that. JSON stays exact.

A table has no lines and no colours of its own where stdout is not a terminal, so that awk and diff can read it.
"""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import orjson

from accsd.explain.words import away, duration
from accsd.values.times import FarTime

Row = Mapping[str, Any]

_ESCAPES: Final = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
# What JSON allows as it is and a terminal may obey: DEL, the C1 controls, and what turns the direction of writing.
_RAW_CONTROLS: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_BETWEEN: Final = "  "
_ENOUGH: Final = 30  # columns for a sentence; with fewer it is read more easily below

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
_LEVEL_STYLES: Final[Mapping[str, str]] = {"debug": "bright_black", "warn": "yellow", "error": "red"}


# What may reach a terminal


class Shown(str):
    """Text that is fit for a terminal: the escape sequences in it are ours. An f-string makes plain text of it again,
    which then loses its colour."""

    __slots__ = ()


def shown(*parts: str) -> Shown:
    """Joins the parts to one text; each part that is not Shown is made harmless."""
    return Shown("".join(part if isinstance(part, Shown) else _harmless_lines(part) for part in parts))


def say(*parts: str, err: bool = False, end: str = "\n") -> None:
    """The one way to the terminal for words."""
    click.echo(shown(*parts, end), err=err, nl=False)


def _harmless_lines(text: str) -> str:
    return "\n".join(harmless(line) for line in text.split("\n"))


def harmless(text: str) -> str:
    """Removes escape sequences; every other character that does not print is written as its number."""
    plain = _ESCAPES.sub("", text)
    return "".join(c if c.isprintable() or c == "\t" else f"\\x{ord(c):02x}" for c in plain)


def styled(status: str, colour: str | None = None, *, bold: bool = False) -> Shown:
    """Colours a text by the state that it names, or in this colour, if stdout is a terminal."""
    colour = colour or _STYLES.get(status)
    if not is_terminal() or (colour is None and not bold):
        return shown(status)
    return Shown(click.style(shown(status), fg=colour, bold=bold or None))


def is_terminal() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def log_line(record: Mapping[str, Any], timestamps: bool, *, prefix: bool) -> Shown:
    """A line that a task wrote. `prefix`: which step it is from."""
    message, level = str(record["message"]), str(record.get("level", "info"))
    text = styled(message, _LEVEL_STYLES[level]) if level in _LEVEL_STYLES else message
    when = f"{_to_the_millisecond(record['ts'])}  " if timestamps else ""
    return shown(when, f"{record['task']} | " if prefix else "", text)


def _to_the_millisecond(ts: Any) -> str:
    """`ts` is a text in a stored segment, and a time in an event."""
    moment = ts if isinstance(ts, datetime) else datetime.fromisoformat(str(ts))
    return moment.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


# Rows, for eyes and for programs


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
    """Prints rows. `columns`: key of the row → heading. `name` is the key that `-o name` prints. `empty` is said
    instead of an empty table."""
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
    """Prints one thing as pairs."""
    if output == "table":
        width = max(len(key) for key in row)
        for key, value in row.items():
            say(f"{key:<{width}}  {text(value)}")
    else:
        show([row], {}, output, name=name)


def say_json(value: Any) -> None:
    click.echo(to_json(value))


def to_json(value: Any) -> str:
    """One line of JSON; a control character in it is written as its number, which is the same JSON."""
    return _RAW_CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", orjson.dumps(value, default=_encoded).decode())


def _encoded(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def since(moment: datetime) -> str:
    """How long ago, or in how long, by this machine's clock. A moment that is too far off for that is given as it
    is."""
    return str(moment) if isinstance(moment, FarTime) else away(moment, datetime.now(UTC))


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


# Tables


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
    """A value as one line, for a cell of a table."""
    return shown(text(value).replace("\n", " "))


def padded(cells: Sequence[str], widths: Sequence[int], *, style: Callable[[str], Shown] | None) -> Shown:
    """One line of a table. A style has no width; a cell beyond the widths is not padded."""
    parts: list[str] = []
    for number, each in enumerate(map(shown, cells)):
        room = widths[number] - len(each) if number < len(widths) else 0
        parts += ["  " if number else "", each if style is None else style(each), " " * room]
    return Shown(shown(*parts).rstrip())


def show_fitting(rows: Sequence[Row], columns: Mapping[str, str], *, empty: str = "") -> None:
    """A table for eyes that fits its terminal: the sentences of its last column are wrapped, or stand below their line.
    What is read by a program is never broken into lines."""
    if not rows:
        say(empty, err=True)
        return
    cells = [[cell(row.get(key)) for key in columns] for row in rows]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for _, line in fitted(list(columns.values()), cells, width):
        say(line)


def fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> Iterator[tuple[int | None, str]]:
    """Yields the lines, each with the number of its row (None: the headings). `width` None: lines have any length."""
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    beside = _how_many(widths, width)
    room = None if width is None else width - _wide(widths[:-1]) - len(_BETWEEN)
    parts = [(number, row) for number, row in enumerate(rows)]
    if beside == len(widths) - 1 and room is not None and room >= _ENOUGH:
        parts = [(number, part) for number, row in parts for part in _wrapped(row, room)]
        beside, widths = len(widths), [*widths[:-1], room]
    yield None, _line([heading.upper() for heading in headings[:beside]], widths)
    for number, row in parts:
        yield number, _line(row[:beside], widths, colour=True)
        for heading, words in zip(headings[beside:], row[beside:], strict=True):
            below = f"{heading}: {words}" if heading else words
            if words:
                yield from ((number, line) for line in _below(below, max(width or 0, _ENOUGH)))


def _line(cells: Sequence[str], widths: Sequence[int], *, colour: bool = False) -> Shown:
    return padded(cells, widths, style=styled if colour else None)


def _how_many(widths: Sequence[int], width: int | None) -> int:
    """How many columns fit beside each other; at least one."""
    fits = (n for n in range(len(widths), 1, -1) if width is None or _wide(widths[:n]) <= width)
    return next(fits, 1)


def _wide(widths: Sequence[int]) -> int:
    return sum(widths) + len(_BETWEEN) * (len(widths) - 1)


def _wrapped(row: Sequence[str], room: int) -> Iterator[list[str]]:
    """Yields the row, then rows that have only the rest of its last cell."""
    first, *others = textwrap.wrap(row[-1], room) or [""]
    yield [*row[:-1], first]
    for other in others:
        yield [*("" for _ in row[:-1]), other]


def _below(said: str, width: int) -> list[str]:
    return textwrap.wrap(said, width, initial_indent="    ", subsequent_indent="      ")
