"""What is told as it is now, and not as events: counts, machines, operations.

The hub asks at each turn; what differs from the last answer is told, and who comes later gets the last answer first of
all. One query serves all who look, and one that takes long is asked less often.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from accsd.db.feed import Feed
from accsd.db.views.fleet import NodeView
from accsd.gateway.messages import OVERVIEW, Topic
from accsd.gateway.pace import HubPace

Operations = Callable[[Sequence[UUID]], Awaitable[Mapping[UUID, Mapping[str, Any]]]]


class PresentState(NamedTuple):
    event: str
    topics: tuple[str, ...]
    document: Mapping[str, Any]


class Present:
    def __init__(
        self, feed: Feed, pace: HubPace, *, silent: timedelta, operations: Operations | None, clock: Callable[[], float]
    ) -> None:
        """`silent`: a node that was not seen for so long is away. `operations` reads how far bulk operations are."""
        self._feed = feed
        self._pace = pace
        self._silent = silent
        self._read_operations = operations
        self._clock = clock
        self._counts: dict[str, Any] | None = None
        self._dead: dict[str, Any] | None = None
        self._counts_at: float = float("-inf")
        self._counts_every: float = pace.counts
        self._nodes: dict[str, dict[str, Any]] = {}
        self._nodes_at: float = float("-inf")
        self._nodes_every: float = pace.counts
        self._is_stirred: bool = True
        self._operations: dict[UUID, Mapping[str, Any]] = {}
        self._operations_at: float = float("-inf")

    def stir(self) -> None:
        """There is a reason to look at the machines."""
        self._is_stirred = True

    async def changes(self, wanted: Collection[str], now: float, *, is_busy: bool) -> AsyncIterator[PresentState]:
        """What is another one than before, of these topics. `is_busy`: something happens."""
        pace = self._pace
        counts_every = max(self._counts_every, pace.counts if is_busy else pace.counts_idle)
        if OVERVIEW in wanted and now - self._counts_at >= counts_every:
            for state in await self._new_counts(now):
                yield state
        nodes_every = self._nodes_every if is_busy or self._is_stirred else max(pace.nodes, self._nodes_every)
        if _has_nodes(wanted) and now - self._nodes_at >= nodes_every:
            for state in await self._new_nodes(now):
                yield state
        if self._read_operations is not None and now - self._operations_at >= pace.counts:
            for state in await self._new_operations(self._read_operations, wanted, now):
                yield state

    def known(self, topics: Collection[str]) -> Iterator[PresentState]:
        """The last answers, for who comes now."""
        if OVERVIEW in topics:
            if self._counts is not None:
                yield PresentState("counts", (OVERVIEW,), self._counts)
            if self._dead is not None:
                yield PresentState("dead", (OVERVIEW,), self._dead)
        for node in self._nodes.values():
            if any(topic in topics for topic in _topics_of(node)):
                yield PresentState("node", _topics_of(node), node)
        for operation, document in self._operations.items():
            if (topic := Topic.operation(operation)) in topics:
                yield PresentState("operation", (topic,), document)

    def forget(self, wanted: Collection[str]) -> None:
        """Keeps what somebody wants."""
        if OVERVIEW not in wanted:
            self._counts = self._dead = None
        if not _has_nodes(wanted):
            self._nodes = {}
        self._operations = {
            operation: document
            for operation, document in self._operations.items()
            if Topic.operation(operation) in wanted
        }

    async def _new_counts(self, now: float) -> list[PresentState]:
        self._counts_at = now
        counts = await self._feed.counts()
        self._counts_every = self._next_look(now)
        dead = counts.pop("dead")
        found = [PresentState("counts", (OVERVIEW,), counts)] if counts != self._counts else []
        found += [PresentState("dead", (OVERVIEW,), dead)] if dead != self._dead else []
        self._counts, self._dead = counts, dead
        return found

    async def _new_nodes(self, now: float) -> list[PresentState]:
        self._nodes_at = now
        self._is_stirred = False
        found = {node.name: self._node(node) for node in await self._feed.nodes()}
        self._nodes_every = self._next_look(now)
        gone = {name: {"name": name, "state": "removed"} for name in self._nodes.keys() - found.keys()}
        known, self._nodes = self._nodes, found
        return [
            PresentState("node", _topics_of(document), document)
            for name, document in (found | gone).items()
            if document != known.get(name)
        ]

    async def _new_operations(self, read: Operations, wanted: Collection[str], now: float) -> list[PresentState]:
        watched = [UUID(topic.partition(":")[2]) for topic in wanted if topic.startswith("operation:")]
        if not watched:
            return []
        self._operations_at = now
        found = await read(watched)
        new = {each: document for each, document in found.items() if document != self._operations.get(each)}
        self._operations |= new
        return [PresentState("operation", (Topic.operation(each),), document) for each, document in new.items()]

    def _next_look(self, began: float) -> float:
        """How long an answer of this kind is good: one that took long is asked for less often."""
        return self._pace.counts_slow if self._clock() - began > self._pace.slow else self._pace.counts

    def _node(self, node: NodeView) -> dict[str, Any]:
        return {
            "name": node.name,
            "state": node.state(self._silent),
            "since": node.since(self._silent) if node.whereabouts(self._silent) != "away" else None,
            "because": node.because,
            "live": node.live,
            "slots": node.slots,
            "quarantines": sorted(node.quarantines),
            "obstacles": node.obstacles,
            "is_machine": node.is_machine,
        }


def _has_nodes(topics: Collection[str]) -> bool:
    return OVERVIEW in topics or any(topic.startswith("node:") for topic in topics)


def _topics_of(node: Mapping[str, Any]) -> tuple[str, ...]:
    """What is no machine is told only to those who ask for it."""
    own = Topic.node(node["name"])
    return (OVERVIEW, own) if node.get("is_machine", True) else (own,)
