"""A graph of steps as text: one row for each step, lines to the left of it that say what waits for what.

    ● fetch
    ├─╮
    ● │ picture
    │ ● sound
    ├─╯
    ● publish

Each lane leads down to one step that is still to come; lanes that lead to the same step are joined as soon as they can
be. What needs too many lanes is a list, indented by depth, that names what each step comes after.
"""

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from accsd.cli.output import Shown, padded, shown

# A step as far as its place in the graph is concerned: its key, and the keys that it depends on.
Step = tuple[str, Sequence[str]]

MARK: Final = "●"
_MOST_LANES: Final = 10
_MOST_STEPS: Final = 200
_DEEPEST_INDENT: Final = 10
_MOST_NAMED: Final = 4

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES: Final[Mapping[int, str]] = {
    0: " ",
    _UP: "╵",
    _DOWN: "╷",
    _UP | _DOWN: "│",
    _LEFT | _RIGHT: "─",
    _UP | _LEFT: "╯",
    _UP | _RIGHT: "╰",
    _DOWN | _LEFT: "╮",
    _DOWN | _RIGHT: "╭",
    _UP | _DOWN | _RIGHT: "├",
    _UP | _DOWN | _LEFT: "┤",
    _UP | _LEFT | _RIGHT: "┴",
    _DOWN | _LEFT | _RIGHT: "┬",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
}


@dataclass(frozen=True, slots=True)
class GraphLine:
    """One line of a drawing: `lanes`, then the step if it has one. Its mark stands at `mark_at` in `lanes`."""

    lanes: str
    key: str | None = None
    mark_at: int = 0
    note: str = ""


def draw(
    steps: Sequence[Step], mark: Callable[[str], str] = lambda _: MARK, *, most_lanes: int = _MOST_LANES
) -> list[GraphLine]:
    """The graph, or the list where it is too wide or too long for eyes. The steps must be sound (planning.dag)."""
    order = in_order(steps)
    if len(steps) <= _MOST_STEPS:
        graph = _Graph(steps, mark, most_lanes)
        if all(graph.add(key) for key in order):
            return graph.lines
    return _as_list(dict(steps), order, mark)


def in_order(steps: Sequence[Step]) -> list[str]:
    """Each step after all that it depends on; the order of the workflow wherever that is one."""
    number = {key: place for place, (key, _) in enumerate(steps)}
    remaining = {key: len(wanted) for key, wanted in steps}
    dependants = _dependants(steps)
    runnable = [number[key] for key, count in remaining.items() if count == 0]
    heapq.heapify(runnable)
    order: list[str] = []
    while runnable:
        key = steps[heapq.heappop(runnable)][0]
        order.append(key)
        for waiting in dependants[key]:
            remaining[waiting] -= 1
            if remaining[waiting] == 0:
                heapq.heappush(runnable, number[waiting])
    return order


def _dependants(steps: Sequence[Step]) -> dict[str, list[str]]:
    dependants: dict[str, list[str]] = {key: [] for key, _ in steps}
    for key, wanted in steps:
        for dependency in wanted:
            dependants[dependency].append(key)
    return dependants


class _Graph:
    def __init__(self, steps: Sequence[Step], mark: Callable[[str], str], most_lanes: int) -> None:
        self.lines: list[GraphLine] = []
        self._dependants: dict[str, list[str]] = _dependants(steps)
        self._mark = mark
        self._most_lanes = most_lanes
        self._lanes: list[str | None] = []  # the step that each leads to

    def add(self, key: str) -> bool:
        """Draws one step; False when there are too many lanes for it."""
        lane = self._lanes.index(key) if key in self._lanes else self._begin()
        self._lanes[lane] = key
        cells = [self._mark(key) if place == lane else _through(to) for place, to in enumerate(self._lanes)]
        self.lines.append(GraphLine(" ".join(cells).rstrip(), key, mark_at=2 * lane))
        self._lead_on(lane, self._dependants[key])
        while self._lanes and self._lanes[-1] is None:
            self._lanes.pop()
        return len(self._lanes) <= self._most_lanes

    def _begin(self) -> int:
        """A lane for a step that waits for none. Right below another step it would seem to follow it."""
        lane = self._free_lane()
        if self.lines and self.lines[-1].key and self.lines[-1].mark_at == 2 * lane:
            self.lines.append(GraphLine(" ".join(_through(to) for to in self._lanes).rstrip()))
        return lane

    def _free_lane(self) -> int:
        if None not in self._lanes:
            self._lanes.append(None)
        return self._lanes.index(None)

    def _lead_on(self, lane: int, targets: Sequence[str]) -> None:
        """From a step's lane to those of its dependants: the first new one goes straight down, others branch off, and
        those that have a lane already are joined."""
        before = [to is not None for to in self._lanes]
        self._lanes[lane] = None
        reached: set[int] = set()
        for target in targets:
            if target not in self._lanes:
                free = lane if self._lanes[lane] is None else self._free_lane()
                self._lanes[free] = target
            reached.add(self._lanes.index(target))
        reached.discard(lane)
        if reached:
            self.lines.append(GraphLine(self._connection(lane, reached, before).rstrip()))

    def _connection(self, lane: int, reached: set[int], before: Sequence[bool]) -> str:
        first, last = min(lane, *reached), max(lane, *reached)
        cells: list[str] = []
        for place, to in enumerate(self._lanes):
            is_within = first <= place <= last
            meets = place == lane or place in reached
            vertical = _UP * (place < len(before) and before[place]) | _DOWN * (to is not None)
            sideways = _LEFT * (is_within and place > first) | _RIGHT * (is_within and place < last)
            # A lane that is only crossed stays a plain line, so that nobody takes the crossing for a junction.
            cells.append(_LINES[vertical | sideways] if meets or not vertical else _LINES[vertical])
            cells.append("─" if first <= place < last else " ")
        return "".join(cells)


def _through(target: str | None) -> str:
    return " " if target is None else "│"


def beneath(line: GraphLine, title: str, *, goes_on: bool) -> GraphLine:
    """A line for something that belongs to the step of `line`. `goes_on`: something depends on that step."""
    before, after = line.lanes[: line.mark_at], line.lanes[line.mark_at + 1 :]
    is_graph = not line.note and goes_on
    return GraphLine(f"{before}{'│' if is_graph else ' '}{after}  ", title)


def _as_list(steps: Mapping[str, Sequence[str]], order: Sequence[str], mark: Callable[[str], str]) -> list[GraphLine]:
    depth: dict[str, int] = {}
    lines: list[GraphLine] = []
    for key in order:
        wanted = steps[key]
        depth[key] = 1 + max((depth[dependency] for dependency in wanted), default=-1)
        indent = "  " * min(depth[key], _DEEPEST_INDENT)
        lines.append(GraphLine(indent + mark(key), key, mark_at=len(indent), note=_after(wanted)))
    return lines


def _after(wanted: Sequence[str]) -> str:
    if not wanted:
        return ""
    more = f" and {len(wanted) - _MOST_NAMED} more" if len(wanted) > _MOST_NAMED else ""
    return f"after: {', '.join(wanted[:_MOST_NAMED])}{more}"


def aligned(
    lines: Sequence[GraphLine],
    cells: Mapping[str, Sequence[str]],
    headings: Sequence[str],
    style: Callable[[str], Shown] | None = None,
) -> list[Shown]:
    """The drawing with columns beside it: `cells` of each step. The first of `headings` is the drawing's own."""
    table = [[heading.upper() for heading in headings], *(_row(line, cells) for line in lines)]
    widths = [max(len(row[column]) for row in table if column < len(row)) for column in range(len(headings))]
    return [padded(row, widths, style=style) for row in table]


def _row(line: GraphLine, cells: Mapping[str, Sequence[str]]) -> list[Shown]:
    if line.key is None:
        return [shown(line.lanes)]
    return [shown(f"{line.lanes} {line.key}"), *map(shown, cells[line.key]), shown(line.note)]
