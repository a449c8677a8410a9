"""Which sleeping nodes to wake, and why the others are left asleep (A13, tick 2).

Plain data in, a plan out; every time is an age or a distance by one clock, so that virtual time works as well as real
time. What waits goes to nodes that are awake or were woken just now; for the rest others are woken, as few as will do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from itertools import combinations
from typing import Any, Final
from uuid import UUID

from accsd.planning.matching import Matching

# Fewest is a covering problem: solved exactly where trying that many nodes suffices (some 50 ms), otherwise nearly.
_EFFORT: Final = 1000


@dataclass(frozen=True, slots=True)
class Demand:
    """Tasks that want the same kind of node, soon: the service, the labels, the name (None: any)."""

    service: str
    tasks: int
    job_id: UUID  # the first job that wants it
    requires: Mapping[str, Any] = field(default_factory=dict[str, Any])
    node: str | None = None
    due_in: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class Try:
    """The last try to wake a node. ok is None while it is under way, or for ever if its builder died."""

    ago: timedelta
    ok: bool | None = None
    unanswered: int = 1  # tries since the node was last seen


@dataclass(frozen=True, slots=True)
class NodeState:
    """What is known of a node."""

    name: str
    labels: Mapping[str, Any] = field(default_factory=dict[str, Any])
    slots: Mapping[str, int] = field(default_factory=dict[str, int])  # by service
    live: Mapping[str, int] = field(default_factory=dict[str, int])  # by service
    says_asleep: bool = False
    unseen_for: timedelta | None = None  # None: never seen
    can_be_woken: bool = False
    is_drained: bool = False
    tried: Try | None = None

    def is_awake(self, lease: timedelta) -> bool:
        """Silent for longer than a lease, it is as good as asleep: worth waking if it can be."""
        return not self.says_asleep and self.unseen_for is not None and self.unseen_for < lease

    def free(self, service: str) -> int:
        return max(0, self.slots.get(service, 0) - self.live.get(service, 0))

    def could_serve(self, demand: Demand) -> bool:
        """The rule of a claim, and that it offers the service."""
        named = demand.node is None or demand.node == self.name
        return named and self.slots.get(demand.service, 0) > 0 and has_labels(self.labels, demand.requires)


class WhyNot(StrEnum):
    """Why a node is not woken."""

    DRAINED = "it is drained"
    AWAKE = "it is awake"
    NO_MATCH = "nothing that waits could run on it"
    NO_METHOD = "it has no wake_method"
    COMING = "it was woken a short while ago and is expected"
    IN_VAIN = "waking it failed a short while ago"
    NOT_NEEDED = "other nodes suffice"


@dataclass(frozen=True, slots=True)
class Choice:
    """A node to wake, and the most urgent demand that it will serve."""

    node: str
    because: Demand


@dataclass(frozen=True, slots=True)
class Plan:
    """`unmet` is what nobody could serve, with the number of tasks; `again_in` when a node may be tried again."""

    wake: tuple[Choice, ...] = ()
    reasons: Mapping[str, WhyNot] = field(default_factory=dict[str, WhyNot])
    unmet: tuple[tuple[Demand, int], ...] = ()
    again_in: timedelta | None = None


def has_labels(labels: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    """jsonb's `required <@ labels` for plain values, where true is not 1."""
    return all(name in labels and _equal(labels[name], value) for name, value in required.items())


def _equal(left: object, right: object) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def plan(demand: Iterable[Demand], nodes: Iterable[NodeState], *, lease: timedelta, retry: timedelta) -> Plan:
    """The same plan whatever the order of its arguments."""
    wanted = sorted(demand, key=_urgency)
    fleet = sorted(nodes, key=lambda node: node.name)
    why_not = {node.name: _standing(node, wanted, lease, retry) for node in fleet}
    ready = [node for node in fleet if why_not[node.name] in (WhyNot.AWAKE, WhyNot.COMING)]
    candidates = [node for node in fleet if why_not[node.name] is None]
    # A node that did not come when it was called stands behind one that was not called yet.
    candidates.sort(key=lambda node: node.tried.unanswered if node.tried else 0)
    awake = _Cover(_Offers(wanted, fleet), ready)
    chosen = _fewest(awake, candidates)
    cover = awake.with_(chosen)
    names = {node.name for node in chosen}
    return Plan(
        wake=tuple(Choice(node.name, cover.first_on(node)) for node in chosen),
        reasons={name: why or WhyNot.NOT_NEEDED for name, why in why_not.items() if name not in names},
        unmet=cover.unmet(),
        again_in=_next_try(fleet, why_not, retry),
    )


def _urgency(demand: Demand) -> tuple[timedelta, str, str, str, str, int]:
    labels = repr(sorted(demand.requires.items()))
    return demand.due_in, demand.service, demand.node or "", labels, str(demand.job_id), demand.tasks


def _standing(node: NodeState, wanted: Sequence[Demand], lease: timedelta, retry: timedelta) -> WhyNot | None:
    """None: it may be woken."""
    if node.is_drained:
        return WhyNot.DRAINED
    if node.is_awake(lease):
        return WhyNot.AWAKE
    if not any(node.could_serve(demand) for demand in wanted):
        return WhyNot.NO_MATCH
    if not node.can_be_woken:
        return WhyNot.NO_METHOD
    if node.tried is not None and node.tried.ago < retry:
        return WhyNot.IN_VAIN if node.tried.ok is False else WhyNot.COMING
    return None


def _next_try(fleet: Sequence[NodeState], why_not: Mapping[str, WhyNot | None], retry: timedelta) -> timedelta | None:
    waits = [
        retry - node.tried.ago
        for node in fleet
        if node.tried is not None and why_not[node.name] in (WhyNot.COMING, WhyNot.IN_VAIN)
    ]
    return min(waits, default=None)


class _Offers:
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


class _Cover:
    """How much of the demand some nodes can serve together; a service's slots serve that service only."""

    def __init__(self, offers: _Offers, nodes: Iterable[NodeState] = ()) -> None:
        self._offers: _Offers = offers
        self._matchings: dict[str, Matching] = {
            service: Matching([demand.tasks for demand in groups]) for service, groups in offers.groups.items()
        }
        self.served: int = 0
        self._add_all(nodes)

    def with_(self, nodes: Iterable[NodeState]) -> "_Cover":
        wider = _Cover(self._offers)
        wider._matchings = {service: matching.copy() for service, matching in self._matchings.items()}
        wider.served = self.served
        wider._add_all(nodes)
        return wider

    def add(self, node: NodeState) -> None:
        for service, slots, fits in self._offers.of[node.name]:
            self.served += self._matchings[service].add(node.name, slots, fits)

    def _add_all(self, nodes: Iterable[NodeState]) -> None:
        for node in nodes:
            self.add(node)

    def gain(self, node: NodeState) -> int:
        """At most so much more would be served with it; none only if really nothing."""
        return sum(self._matchings[service].gain(slots, fits) for service, slots, fits in self._offers.of[node.name])

    def first_on(self, node: NodeState) -> Demand:
        placed = [
            self._offers.groups[service][group]
            for service, matching in self._matchings.items()
            for group in matching.placed_on(node.name)
        ]
        return min(placed, key=_urgency)

    def unmet(self) -> tuple[tuple[Demand, int], ...]:
        return tuple(
            (demand, tasks)
            for service, groups in self._offers.groups.items()
            for demand, tasks in zip(groups, self._matchings[service].unmet, strict=True)
            if tasks > 0
        )


def _fewest(ready: _Cover, candidates: Sequence[NodeState]) -> list[NodeState]:
    """As few candidates as serve, with those that are ready, all that can be served."""
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


def _few(ready: _Cover, useful: Sequence[NodeState], goal: int) -> list[NodeState]:
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
