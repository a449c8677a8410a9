"""Waking by a neighbour: a magic packet reaches a machine only from its own network, so a node that is awake there is
asked to send it."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio

from accsd.errors import AccsdError
from accsd.model import Node
from accsd.power.base import WakeFailed, WakeResult, outcome

RELAY: Final = "relay"
# A machine that hears it more than once wakes once, and one of them may have gone a moment ago.
_ASKED: Final = 3


@dataclass(frozen=True, slots=True)
class Relay:
    """`ask` sends a neighbour the order and returns what the neighbour did; it raises AccsdError where it did
    nothing."""

    neighbours: Sequence[str]
    ask: Callable[[str], Awaitable[str]]

    async def wake(self, node: Node) -> WakeResult:
        return await outcome(RELAY, self._wake(node))

    async def _wake(self, node: Node) -> str:
        """Asks all neighbours at once. One that has sent the packet is enough; the others are not waited for."""
        if not self.neighbours:
            raise WakeFailed(f"nobody in the network of node {node.name} is awake")
        done: list[str] = []
        failures: list[str] = []

        async def ask(neighbour: str) -> None:
            try:
                done.append(f"{neighbour} {await self.ask(neighbour)}")
            except AccsdError as failure:
                failures.append(f"{neighbour}: {failure}")
            else:
                group.cancel_scope.cancel()

        async with anyio.create_task_group() as group:
            for neighbour in self.neighbours[:_ASKED]:
                group.start_soon(ask, neighbour)
        if not done:
            raise WakeFailed("; ".join(failures))
        return done[0]
