"""How much of what waits can run, when each task may go to some nodes only and each node has so many slots.

A maximum flow from groups of like tasks to nodes, found by augmenting paths: a task moves to another node where that
makes room for one that has no other. Taking the first free slot instead would wake a machine that nobody needs.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Self

Node = str
Group = int


class Matching:
    """Grows node by node, and is a maximum after each. Groups are numbered; the first ones are served first."""

    def __init__(self, tasks: Sequence[int]) -> None:
        self.unmet: list[int] = list(tasks)
        self._fits: dict[Node, tuple[Group, ...]] = {}
        self._placed: dict[Node, dict[Group, int]] = {}
        self._reaching: list[tuple[int, frozenset[Group]]] | None = None

    def copy(self) -> Self:
        twin = type(self)(self.unmet)
        twin._fits = dict(self._fits)
        twin._placed = {node: dict(groups) for node, groups in self._placed.items()}
        twin._reaching = self._reaching
        return twin

    def placed_on(self, node: Node) -> Mapping[Group, int]:
        return self._placed.get(node, {})

    def add(self, node: Node, slots: int, fits: tuple[Group, ...]) -> int:
        """How many more tasks can run with this node than without it. `fits`: the groups that may use its slots."""
        self._fits[node] = fits
        self._placed[node] = {}
        self._reaching = None
        free = slots
        # Without this node there was no path to a free slot: so every path ends here.
        while free > 0 and (path := self._path_to(node)):
            free -= self._move_along(path, free)
        return slots - free

    def gain(self, slots: int, fits: tuple[Group, ...]) -> int:
        """At most so many more tasks could run with such a node; none only if really none could."""
        if self._reaching is None:
            self._reaching = self._reaches()
        return min(slots, sum(tasks for tasks, reach in self._reaching if not reach.isdisjoint(fits)))

    def _path_to(self, node: Node) -> list[tuple[Group, Node]]:
        """From a waiting group to this node: each group with the node that it moves onto, where the next one leaves."""
        steps: dict[Group, tuple[Node, Group | None]] = dict.fromkeys(self._fits[node], (node, None))
        todo = deque(steps)
        while todo:
            group = todo.popleft()
            if self.unmet[group] > 0:
                return _traced(steps, group)
            for other, placed in self._placed.items():
                if group in placed:
                    for taker in self._fits[other]:
                        if taker not in steps:
                            steps[taker] = (other, group)
                            todo.append(taker)
        return []

    def _move_along(self, path: list[tuple[Group, Node]], free: int) -> int:
        moves = list(pairwise(path))
        room = min(free, self.unmet[path[0][0]], *(self._placed[node][leaving] for (_, node), (leaving, _) in moves))
        self.unmet[path[0][0]] -= room
        for (_, node), (leaving, _) in moves:
            self._put(node, leaving, -room)
        for group, node in path:
            self._put(node, group, room)
        return room

    def _put(self, node: Node, group: Group, tasks: int) -> None:
        placed = self._placed[node]
        placed[group] = placed.get(group, 0) + tasks
        if not placed[group]:
            del placed[group]

    def _reaches(self) -> list[tuple[int, frozenset[Group]]]:
        """For each waiting group its number of tasks, and the groups that could move elsewhere in its favour."""
        yields: dict[Group, set[Group]] = {}
        for node, placed in self._placed.items():
            for group in self._fits[node]:
                yields.setdefault(group, set()).update(placed)
        return [(tasks, _closure(yields, group)) for group, tasks in enumerate(self.unmet) if tasks > 0]


def _traced(steps: Mapping[Group, tuple[Node, Group | None]], first: Group) -> list[tuple[Group, Node]]:
    path: list[tuple[Group, Node]] = []
    group: Group | None = first
    while group is not None:
        node, leaving = steps[group]
        path.append((group, node))
        group = leaving
    return path


def _closure(yields: Mapping[Group, set[Group]], start: Group) -> frozenset[Group]:
    seen = {start}
    todo = [start]
    while todo:
        fresh = yields.get(todo.pop(), set()) - seen
        seen |= fresh
        todo.extend(fresh)
    return frozenset(seen)
