"""What is wanted and what is known of each node: what planning decides about. The database fills them in, or a
simulation does."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any
from uuid import UUID

from accsd.planning.calling import WakeCalls


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
        """Silent for longer than a lease, it is as good as asleep: worth waking if it can be."""
        return not self.says_asleep and self.unseen_for is not None and self.unseen_for < lease

    def free(self, service: str) -> int:
        return max(0, self.slots.get(service, 0) - self.live.get(service, 0))

    def could_serve(self, demand: Demand) -> bool:
        """The rule of a claim, and that it offers the service."""
        named = demand.node is None or demand.node == self.name
        return named and self.slots.get(demand.service, 0) > 0 and has_labels(self.labels, demand.requires)


def has_labels(labels: Mapping[str, Any], required: Mapping[str, Any]) -> bool:
    """jsonb's `required <@ labels` for plain values, where true is not 1."""
    return not required or all(name in labels and _equal(labels[name], value) for name, value in required.items())


def _equal(left: object, right: object) -> bool:
    return isinstance(left, bool) == isinstance(right, bool) and left == right


def urgency(demand: Demand) -> tuple[timedelta, str, str, str, UUID, int]:
    """An order of its own for any two that differ."""
    labels = repr(sorted(demand.requires.items()))
    return demand.due_in, demand.service, demand.node or "", labels, demand.job_id, demand.tasks
