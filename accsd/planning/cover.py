"""How much of the demand some nodes can serve together, and the fewest that serve as much as all of them."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Final

from accsd.planning.demand import Demand, NodeState, urgency
from accsd.planning.matching import Matching

# Fewest is a covering problem: solved exactly where trying that many nodes suffices (some 50 ms), otherwise nearly.
_EFFORT: Final = 1000


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
        """`within`: it goes on from there, and leaves that as it is."""
        self._offers: Offers = offers
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
        """At most so much more would be served with it; none only if really nothing."""
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
    """As few candidates as serve, with those that are ready, all that can be served."""
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
    """No fewer nodes than this can gain what is missing."""
    count = 0
    for gain in sorted(gains, reverse=True):
        if missing <= 0:
            break
        missing -= gain
        count += 1
    return count


def _few(ready: Cover, useful: Sequence[NodeState], goal: int) -> list[NodeState]:
    """The largest gain first, then without those that turned out to be superfluous."""
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
