"""This node goes to sleep and comes back, step by step.

    no new claims → containers stopped → no heartbeats → the goodbye → the machine is told to sleep → it is awake again

Until the goodbye was answered whatever wants the node calls it off. However it ends, the node is back at work
afterwards: the first heartbeat says so, and nothing is claimed before it was answered. Should this process die on the
way, the next one registers the node as ever.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

import anyio

from accsd import failpoints
from accsd.db import Database, Verdict, node_leaves
from accsd.log import get_logger
from accsd.model import AwakeState
from accsd.work.attempts import Attempts
from accsd.work.lease import STALL, LeaseKeeper, time_asleep
from accsd.work.reporting import Reporter

_log = get_logger(component="departure")
_CLAIMS_END: Final = timedelta(seconds=30)
_STEP_SEC: Final = 0.25

Way = Callable[[], Awaitable[str | None]]  # tells the machine to sleep; what went wrong, if anything did


@dataclass(frozen=True, slots=True)
class Returned:
    """`because` is what kept it awake (None: it has slept); `in_vain`: the machine was told to sleep, and did not."""

    because: str | None = None
    in_vain: bool = False


class Departure:
    def __init__(
        self,
        db: Database,
        *,
        node: str,
        attempts: Attempts,
        keeper: LeaseKeeper,
        reporter: Reporter,
        stop_containers: Callable[[], Awaitable[None]],
        when_back: Callable[[], None],
    ) -> None:
        self._db: Database = db
        self._node: str = node
        self._attempts: Attempts = attempts
        self._keeper: LeaseKeeper = keeper
        self._reporter: Reporter = reporter
        self._stop_containers: Callable[[], Awaitable[None]] = stop_containers
        self._when_back: Callable[[], None] = when_back
        self._called_off: str | None = None
        self._has_said_goodbye: bool = False

    @property
    def has_said_goodbye(self) -> bool:
        """The database knows that this node sleeps: whoever stops this process now says no more."""
        return self._has_said_goodbye

    def consider(self) -> None:
        """Before anybody is asked whether this node may go: what calls it off from now on counts."""
        self._called_off = None

    def call_off(self, because: str) -> None:
        """Stays awake, if there is still time."""
        self._called_off = because

    async def go(self, way: Way, *, within: timedelta, because: str, counting_on: Sequence[str] = ()) -> Returned:
        """Returns when this node is awake again, or was all the time."""
        try:
            if kept := await self._prepare() or await self._say_goodbye(because, counting_on):
                return Returned(kept)
            _log.info("goes_to_sleep", node=self._node, because=because)
            return await self._sleep(way, within)
        finally:
            self._has_said_goodbye = False
            if self._keeper.is_silent:
                self._keeper.speak_again()
            self._attempts.gate.open()
            self._when_back()

    async def _prepare(self) -> str | None:
        if not await self._attempts.gate.shut(_CLAIMS_END):
            return "a claim is under way"
        failpoints.hit("sleep.gated")
        if len(self._attempts) or self._keeper.held:
            return "work has just come"
        if self._called_off is not None:
            return self._called_off
        await self._stop_containers()
        if self._called_off is None:
            await self._keeper.fall_silent()
            await self._reporter.flush()
        return self._called_off

    async def _say_goodbye(self, because: str, counting_on: Sequence[str]) -> str | None:
        if self._called_off is not None:
            return self._called_off
        answer = await node_leaves(self._db, self._node, AwakeState.SLEEP, because=because, counting_on=counting_on)
        if answer is Verdict.REFUSED:
            return "a node that could have done its work has just gone, or it holds a lease"
        self._has_said_goodbye = True
        failpoints.hit("sleep.said")
        # heard while it was said: the builder has counted on us for that work, and would not look again soon
        return self._called_off

    async def _sleep(self, way: Way, within: timedelta) -> Returned:
        problems: list[str] = []
        was_away = False

        async def tell() -> None:
            if problem := await way():
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
    """Whether the machine was suspended, or this process stopped. Looked at in steps and not by a timer's end, because
    a timer does not tell whether the time was slept or waited."""
    asleep, ends = time_asleep(), time.monotonic() + within.total_seconds()
    while True:
        began = time.monotonic()
        await anyio.sleep(_STEP_SEC)
        if time_asleep() - asleep > 1 or time.monotonic() - began > STALL.total_seconds():
            return True
        if is_hopeless() or time.monotonic() > ends:
            return False
