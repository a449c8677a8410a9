"""What is wanted, what is known of each node, how much of the demand some nodes can serve together, and the fewest that
serve as much as all of them. The database fills the facts in, or a simulation does.

How much can run, when each task may go to some nodes only and each node has so many slots, is a maximum flow from
groups of like tasks to nodes, found by augmenting paths: a task moves to another node where that makes room for one
that has no other. Taking the first free slot instead would wake a machine that nobody needs.
"""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import combinations, pairwise
from typing import Any, Final, Self
from uuid import UUID

from accsd.values.labels import has_labels

# Fewest is a covering problem: solved exactly where trying that many nodes suffices (some 50 ms), otherwise nearly.
_EFFORT: Final = 1000

NodeName = str
Group = int


@dataclass(frozen=True, slots=True)
class Demand:
    """Tasks that want the same kind of node, soon: the service, the labels, the name (None: any)."""

    service: str
    tasks: int
    job_id: UUID | None  # the first job that wants it; None: a schedule does, and its job does not exist yet
    requires: Mapping[str, Any] = field(default_factory=dict[str, Any])
    node: str | None = None
    due_in: timedelta = timedelta(0)
    schedule: str | None = None

    @property
    def wanted_by(self) -> str:
        return f"schedule {self.schedule}" if self.job_id is None else f"job {self.job_id}"


def urgency(demand: Demand) -> tuple[timedelta, str, str, str, str, int]:
    """A sort key by which any two demands that differ are ordered."""
    labels = repr(sorted(demand.requires.items()))
    return demand.due_in, demand.service, demand.node or "", labels, demand.wanted_by, demand.tasks


@dataclass(frozen=True, slots=True)
class WakeCalls:
    """The wake calls since the node was last seen. `ok` is None while the last one is under way, or if its caller
    died."""

    count: int
    ago: timedelta
    ok: bool | None = None


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is known of a node."""

    name: str
    labels: Mapping[str, Any] = field(default_factory=dict[str, Any])
    slots: Mapping[str, int] = field(default_factory=dict[str, int])  # by service
    live: Mapping[str, int] = field(default_factory=dict[str, int])  # by service
    says_asleep: bool = False
    unseen_for: timedelta | None = None  # None: never seen
    is_drained: bool = False
    methods: tuple[str, ...] = ()  # by which it can be woken, the best first
    latency: timedelta | None = None  # measured: from the call until it is seen
    calls: WakeCalls | None = None

    def is_awake(self, lease: timedelta) -> bool:
        """A node that has been silent for longer than a lease counts as asleep: it is worth waking if it can be
        woken."""
        return not self.says_asleep and self.unseen_for is not None and self.unseen_for < lease

    def free(self, service: str) -> int:
        return max(0, self.slots.get(service, 0) - self.live.get(service, 0))

    def could_serve(self, demand: Demand) -> bool:
        """The rule by which a node claims, and that the node offers the service."""
        named = demand.node is None or demand.node == self.name
        return named and self.slots.get(demand.service, 0) > 0 and has_labels(self.labels, demand.requires)


class Offers:
    """What each node could do for the demand, worked out once: service, slots, and which of its groups fit."""

    def __init__(self, wanted: Sequence[Demand], nodes: Iterable[NodeState]) -> None:
        self.groups: dict[str, list[Demand]] = {}
        for demand in wanted:
            self.groups.setdefault(demand.service, []).append(demand)
        self.of: dict[str, list[tuple[str, int, tuple[int, ...]]]] = {node.name: self._of(node) for node in nodes}

    def _of(self, node: NodeState) -> list[tuple[str, int, tuple[int, ...]]]:
        return [
            (service, node.free(service), fits)
            for service, groups in self.groups.items()
            if (fits := tuple(i for i, demand in enumerate(groups) if node.could_serve(demand)))
        ]


class Cover:
    """How much of the demand some nodes can serve together; a service's slots serve that service only."""

    def __init__(self, offers: Offers, nodes: Iterable[NodeState], within: "Cover | None" = None) -> None:
        """With `within`, the cover starts from that one and leaves it unchanged."""
        self._offers = offers
        self._matchings: dict[str, Matching] = {
            service: within._matchings[service].copy() if within else Matching([demand.tasks for demand in groups])
            for service, groups in offers.groups.items()
        }
        self.served: int = within.served if within else 0
        for node in nodes:
            self.add(node)

    def with_(self, nodes: Iterable[NodeState]) -> "Cover":
        return Cover(self._offers, nodes, within=self)

    def add(self, node: NodeState) -> None:
        for service, slots, fits in self._offers.of[node.name]:
            if slots:
                self.served += self._matchings[service].add(node.name, slots, fits)

    def gain(self, node: NodeState) -> int:
        """An upper bound of what the node would add; 0 only if it would really add nothing."""
        return sum(self._matchings[service].gain(slots, fits) for service, slots, fits in self._offers.of[node.name])

    def first_on(self, node: NodeState) -> Demand:
        placed = [
            self._offers.groups[service][group]
            for service, matching in self._matchings.items()
            for group in matching.placed_on(node.name)
        ]
        return min(placed, key=urgency)

    def unmet(self) -> tuple[tuple[Demand, int], ...]:
        return tuple(
            (demand, tasks)
            for service, groups in self._offers.groups.items()
            for demand, tasks in zip(groups, self._matchings[service].unmet, strict=True)
            if tasks > 0
        )


def fewest(ready: Cover, candidates: Sequence[NodeState]) -> list[NodeState]:
    """The fewest candidates that, together with the nodes that are ready, serve all that can be served."""
    if not ready.unmet():
        return []
    gains = {node.name: ready.gain(node) for node in candidates}
    # What gains nothing now gains nothing later either: others only take demand away.
    useful = [node for node in candidates if gains[node.name] > 0]
    goal = ready.with_(useful).served
    few = _few(ready, useful, goal)
    effort = 0
    for size in range(_at_least(list(gains.values()), goal - ready.served), len(few)):
        for chosen in combinations(useful, size):
            effort += size
            if effort > _EFFORT:
                return few
            if ready.with_(chosen).served == goal:
                return list(chosen)
    return few


def _at_least(gains: list[int], missing: int) -> int:
    """A lower bound: fewer nodes than this cannot gain what is missing."""
    count = 0
    for gain in sorted(gains, reverse=True):
        if missing <= 0:
            break
        missing -= gain
        count += 1
    return count


def _few(ready: Cover, useful: Sequence[NodeState], goal: int) -> list[NodeState]:
    """Takes the node with the largest gain first, then drops those that turned out to be superfluous."""
    cover = ready.with_(())
    left = list(useful)
    chosen: list[NodeState] = []
    while cover.served < goal:
        best = max(left, key=cover.gain)  # the first of equals
        left.remove(best)
        chosen.append(best)
        cover.add(best)
    for node in reversed(chosen[:]):
        others = [other for other in chosen if other is not node]
        if ready.with_(others).served == goal:
            chosen = others
    return chosen


class Matching:
    """Grows node by node, and is a maximum after each. Groups are numbered; groups with lower numbers are served
    first."""

    def __init__(self, tasks: Sequence[int]) -> None:
        self.unmet: list[int] = list(tasks)
        self._fits: dict[NodeName, tuple[Group, ...]] = {}
        self._placed: dict[NodeName, dict[Group, int]] = {}
        self._reaching: list[tuple[int, frozenset[Group]]] | None = None

    def copy(self) -> Self:
        twin = type(self)(self.unmet)
        twin._fits = dict(self._fits)
        twin._placed = {node: dict(groups) for node, groups in self._placed.items()}
        twin._reaching = self._reaching
        return twin

    def placed_on(self, node: NodeName) -> Mapping[Group, int]:
        return self._placed.get(node, {})

    def add(self, node: NodeName, slots: int, fits: tuple[Group, ...]) -> int:
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
        """An upper bound of how many more tasks could run with such a node; 0 only if really none could."""
        if self._reaching is None:
            self._reaching = self._reaches()
        return min(slots, sum(tasks for tasks, reach in self._reaching if not reach.isdisjoint(fits)))

    def _path_to(self, node: NodeName) -> list[tuple[Group, NodeName]]:
        """From a waiting group to this node: each group with the node that it moves onto, where the next one leaves."""
        steps: dict[Group, tuple[NodeName, Group | None]] = dict.fromkeys(self._fits[node], (node, None))
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

    def _move_along(self, path: list[tuple[Group, NodeName]], free: int) -> int:
        moves = list(pairwise(path))
        room = min(free, self.unmet[path[0][0]], *(self._placed[node][leaving] for (_, node), (leaving, _) in moves))
        self.unmet[path[0][0]] -= room
        for (_, node), (leaving, _) in moves:
            self._put(node, leaving, -room)
        for group, node in path:
            self._put(node, group, room)
        return room

    def _put(self, node: NodeName, group: Group, tasks: int) -> None:
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


def _traced(steps: Mapping[Group, tuple[NodeName, Group | None]], first: Group) -> list[tuple[Group, NodeName]]:
    path: list[tuple[Group, NodeName]] = []
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
