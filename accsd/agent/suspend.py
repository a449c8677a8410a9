"""This node goes to sleep and comes back, step by step.

    no new claims → containers stopped → no heartbeats → the goodbye → one more look → the machine is told to sleep →
    it is awake again

News of work on the way makes the node look again, and it goes on if other nodes claim that work: where a service is
busy there is no moment without news. Work from before the goodbye shows in the look after it. Work that comes later
finds a sleeping node, and the builder wakes one. However it ends, the node is back at work afterwards: the first
heartbeat says so, and nothing is claimed before it was answered. Should this process die meanwhile, the next one
registers the node as ever.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import anyio

from accsd import failpoints
from accsd.agent.node import Node
from accsd.clock import time_asleep
from accsd.db import Verdict, node_leaves
from accsd.errors import AccsdError
from accsd.log import get_logger, redact
from accsd.model import AwakeState
from accsd.planning.sleep import Stay
from accsd.values.json import sanitise
from accsd.work.lease import STALL

_log = get_logger(component="suspend")
_CLAIMS_END: Final = timedelta(seconds=30)
_STEP_SEC: Final = 0.25

FallAsleep = Callable[[], Awaitable[str | None]]  # tells the machine to sleep; returns what went wrong, if anything did
Found = Stay | Sequence[str]  # why it stays; otherwise the nodes that it counts on
Look = Callable[[], Awaitable[Found]]


@dataclass(frozen=True, slots=True)
class Returned:
    """`because` is why it stayed awake (None: it has slept); `in_vain`: the machine was told to sleep, and did not."""

    because: str | None = None
    in_vain: bool = False


class Suspension:
    def __init__(self, node: Node, stop_containers: Callable[[], Awaitable[None]]) -> None:
        self._node = node
        self._stop_containers = stop_containers

    def consider(self) -> None:
        """Begins to watch for news, before the first look whether this node may sleep."""
        self._node.must_stay = None
        self._node.has_news = False

    @property
    def _called_off(self) -> Stay | None:
        return None if self._node.must_stay is None else Stay(self._node.must_stay)

    async def go(
        self, fall_asleep: FallAsleep, *, within: timedelta, because: str, look: Look, counting_on: Sequence[str] = ()
    ) -> Returned:
        """Returns when this node is awake again, or was all the time. `counting_on` is what the last look found."""
        try:
            found = await self._prepare(look, counting_on)
            if not isinstance(found, Stay):
                found = await self._say_goodbye(because, found, look)
            if isinstance(found, Stay):
                returned = Returned(found.because)
            else:
                _log.info("goes_to_sleep", node=self._node.name, because=because)
                returned = await self._sleep(fall_asleep, within)
            if self._node.has_said_goodbye and returned.because is not None:
                await self._take_back_goodbye(returned.because)
            return returned
        finally:
            self._node.has_said_goodbye = False
            if self._node.leases.is_silent:
                self._node.leases.speak_again()
            self._node.attempts.gate.open()
            self._node.look()

    async def _prepare(self, look: Look, counting_on: Sequence[str]) -> Found:
        if not await self._node.attempts.gate.shut(_CLAIMS_END):
            return Stay("a claim is under way")
        failpoints.hit("sleep.gated")
        if len(self._node.attempts) or self._node.leases.held:
            return Stay("work has just come")
        found = await self._look_again(look, counting_on)
        if isinstance(found, Stay):
            return found
        await self._stop_containers()
        found = await self._look_again(look, found)
        if isinstance(found, Stay):
            return found
        await self._node.leases.fall_silent()
        await self._node.reporter.flush()
        return self._called_off or found

    async def _look_again(self, look: Look, counting_on: Sequence[str]) -> Found:
        """Looks again only if there was news since the last look."""
        if self._called_off is not None:
            return self._called_off
        if not self._node.has_news:
            return counting_on
        self._node.has_news = False
        return await look()

    async def _say_goodbye(self, because: str, counting_on: Sequence[str], look: Look) -> Found:
        answer = await node_leaves(
            self._node.db, self._node.name, AwakeState.SLEEP, because=because, counting_on=counting_on
        )
        if answer is Verdict.REFUSED:
            return Stay("a node that could have done its work has just gone, or it holds a lease")
        self._node.has_said_goodbye = True
        failpoints.hit("sleep.said")
        # The builder counted on this node for work that came before the goodbye, and would not look again soon.
        found = await look()
        return self._called_off or found

    async def _take_back_goodbye(self, because: str) -> None:
        """Writes into the node's history why it did not sleep: a person who asked for it looks there. If this can't be
        written now, the heartbeat still says that the node is back."""
        try:
            await node_leaves(
                self._node.db, self._node.name, AwakeState.UNKNOWN, because=sanitise(because, scrub=redact)
            )
        except AccsdError as error:
            _log.warning("left_unsaid", because=because, error=str(error))

    async def _sleep(self, fall_asleep: FallAsleep, within: timedelta) -> Returned:
        problems: list[str] = []
        was_away = False

        async def tell() -> None:
            if problem := await fall_asleep():
                problems.append(problem)

        async with anyio.create_task_group() as group:
            group.start_soon(tell)
            was_away = await _until_away(within, lambda: bool(problems))
            group.cancel_scope.cancel()
        if was_away:
            failpoints.hit("sleep.resumed")
            return Returned()
        return Returned(problems[0] if problems else "it did not fall asleep when it was told to", in_vain=True)


async def _until_away(within: timedelta, is_hopeless: Callable[[], bool]) -> bool:
    """Whether the machine was suspended, or this process stopped. It looks in steps instead of setting one timer: a
    timer does not tell whether the time was slept or waited."""
    asleep, ends = time_asleep(), time.monotonic() + within.total_seconds()
    while True:
        began = time.monotonic()
        await anyio.sleep(_STEP_SEC)
        if time_asleep() - asleep > 1 or time.monotonic() - began > STALL.total_seconds():
            return True
        if is_hopeless() or time.monotonic() > ends:
            return False
