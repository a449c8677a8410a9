"""A run as a drawing of plain characters: machines awake, and at work, over time."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from accsd.simulation.report import Report

_HEIGHT: Final = 8
_AWAKE, _BUSY, _NOTHING = "░", "█", " "


def plot(report: Report, width: int, scale: float) -> list[str]:
    """`scale` is the number of machines at the top; the same for all, so that drawings can be compared."""
    columns = max(10, width - 7)
    means = _means(report.levels, columns)
    lines = [f"{report.policy}: machines awake {_AWAKE}, at work {_BUSY}"]
    for row in range(_HEIGHT, 0, -1):
        middle = (row - 0.5) * scale / _HEIGHT
        label = f"{scale * row / _HEIGHT:5.0f}" if row % 2 == 0 else " " * 5
        lines.append(f"{label} ┤{''.join(_cell(awake, busy, middle) for awake, busy in means)}".rstrip())
    end = report.levels[-1][0] / 3600 if report.levels else 0.0
    return [*lines, f"    0 └{'─' * columns}", f"       0 h{f'{end:.0f} h':>{columns - 3}}"]


def highest(reports: Sequence[Report], width: int) -> float:
    columns = max(10, width - 7)
    return max((awake for report in reports for awake, _ in _means(report.levels, columns)), default=0.0) or 1.0


def _cell(awake: float, busy: float, height: float) -> str:
    return _BUSY if busy >= height else _AWAKE if awake >= height else _NOTHING


def _means(levels: Sequence[tuple[float, int, int]], columns: int) -> list[tuple[float, float]]:
    """Of awake and busy, over as many equal stretches of time as there are columns."""
    if not levels or not levels[-1][0]:
        return [(0.0, 0.0)] * columns
    step = levels[-1][0] / columns
    sums = [[0.0, 0.0] for _ in range(columns)]
    for column, seconds, awake, busy in _pieces(levels, step, columns):
        sums[column][0] += seconds * awake / step
        sums[column][1] += seconds * busy / step
    return [(awake, busy) for awake, busy in sums]


def _pieces(
    levels: Sequence[tuple[float, int, int]], step: float, columns: int
) -> Iterator[tuple[int, float, int, int]]:
    """Each stretch of one level, cut where a column ends."""
    for (since, awake, busy), (until, _, _) in pairwise(levels):
        first, last = (min(columns - 1, int(time / step)) for time in (since, until))
        for column in range(first, last + 1):
            begin = since if column == first else column * step
            end = until if column == last else (column + 1) * step
            yield column, end - begin, awake, busy
