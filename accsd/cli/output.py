"""What commands print: tables for eyes, `-o json|jsonl|name` for programs.

A table has no lines and no colours of its own where stdout is not a terminal, so that awk and diff can read it; rich is
imported only where it is a terminal.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import click
import orjson

from accsd.cli.harmless import harmless

Row = Mapping[str, Any]
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
            click.echo(to_json(list(rows)))
        case "jsonl":
            for row in rows:
                click.echo(to_json(row))
        case "name":
            for row in rows:
                click.echo(row[name])
        case _:
            _table(rows, columns, empty)


def show_one(row: Row, output: str, *, name: str = "id") -> None:
    """One thing, as pairs."""
    if output == "table":
        width = max(len(key) for key in row)
        for key, value in row.items():
            click.echo(f"{key:<{width}}  {text(value)}")
    else:
        show([row], {}, output, name=name)


def to_json(value: Any) -> str:
    return orjson.dumps(value, default=_encoded).decode()


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
            return "\n".join(harmless(line) for line in str(value).split("\n"))


def since(moment: datetime) -> str:
    """How long ago, or in how long; the exact time is in `-o json`."""
    away = datetime.now(UTC) - moment
    return f"{duration(away)} ago" if away >= timedelta(0) else f"in {duration(-away)}"


def duration(length: timedelta) -> str:
    seconds = length.total_seconds()
    if seconds < 10:
        return f"{seconds:.1f}s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (rest, "s")]
    named = [f"{count}{unit}" for count, unit in parts if count]
    return "".join(named[:2])


def styled(status: str) -> str:
    return click.style(status, fg=_STYLES[status]) if status in _STYLES and is_terminal() else status


def is_terminal() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def _table(rows: Sequence[Row], columns: Mapping[str, str], empty: str) -> None:
    if not rows:
        if empty:
            click.echo(empty, err=True)
        return
    cells = [[heading.upper() for heading in columns.values()]]
    cells += [[text(row.get(key)).replace("\n", " ") for key in columns] for row in rows]
    widths = [max(len(line[column]) for line in cells) for column in range(len(columns))]
    for number, line in enumerate(cells):
        padded = [f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)]
        click.echo("  ".join(padded if number == 0 else [coloured(cell) for cell in padded]).rstrip())


def coloured(cell: str) -> str:
    """A cell of a table; a state has its colour."""
    word = cell.strip()
    return cell.replace(word, styled(word), 1) if word in _STYLES else cell


def _encoded(value: Any) -> Any:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)
