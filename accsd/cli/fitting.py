"""A table that fits its terminal: the sentences of its last column are wrapped, or stand below their line."""

import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from accsd.cli.output import Row, Shown, cell, padded, say, styled

_BETWEEN: Final = "  "
_LONGEST_LINE: Final = 160
_ENOUGH: Final = 30  # columns for a sentence; with fewer it is read more easily below


def show_fitting(rows: Sequence[Row], columns: Mapping[str, str], *, empty: str = "") -> None:
    """As `show` does it for eyes. What is read by a program is never broken into lines."""
    if not rows:
        say(empty, err=True)
        return
    cells = [[cell(row.get(key)) for key in columns] for row in rows]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for _, line in fitted(list(columns.values()), cells, width):
        say(line)


def one_line(said: str, longest: int = _LONGEST_LINE) -> str:
    """Of what a tool has said at length, as much as a list bears."""
    plain = " ".join(said.split())
    return plain if len(plain) <= longest else plain[: longest - 1].rstrip() + "…"


def fitted(
    headings: Sequence[str], rows: Sequence[Sequence[str]], width: int | None
) -> Iterator[tuple[int | None, str]]:
    """The lines, each with the number of its row; None: the headings. `width` None: as wide as it gets."""
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


def _below(said: str, width: int) -> list[str]:
    return textwrap.wrap(said, width, initial_indent="    ", subsequent_indent="      ")


def _how_many(widths: Sequence[int], width: int | None) -> int:
    """So many columns fit beside each other; at least one."""
    fits = (n for n in range(len(widths), 1, -1) if width is None or _wide(widths[:n]) <= width)
    return next(fits, 1)


def _wide(widths: Sequence[int]) -> int:
    return sum(widths) + len(_BETWEEN) * (len(widths) - 1)


def _wrapped(row: Sequence[str], room: int) -> Iterator[list[str]]:
    """The row, and further ones that have only the rest of its last cell."""
    first, *others = textwrap.wrap(row[-1], room) or [""]
    yield [*row[:-1], first]
    for other in others:
        yield [*("" for _ in row[:-1]), other]


def _line(cells: Sequence[str], widths: Sequence[int], *, colour: bool = False) -> Shown:
    return padded(cells, widths, style=styled if colour else None)
