"""When to claim, and how many: one task for each free handler, and some ahead where tasks end faster than a round trip.

A notification makes an idle worker claim at once. While all handlers are busy it only says that there is more, and the
next claim comes when half of the tasks ahead are gone. A claim that brought fewer tasks than it asked for has emptied
the queue.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Final

from accsd.db import ClaimedTask, Fence, agent_outlook
from accsd.errors import DatabaseUnavailable, NotFound, Unavailable
from accsd.log import get_logger
from accsd.retry import Backoff, jittered
from accsd.sdk.pull.slots import HeldTasks
from accsd.wakeup import Wakeup
from accsd.work.claims import Granted, claim, held_unknown
from accsd.work.context import AttemptContext

_log = get_logger(component="pull")
_PAUSES: Final = (timedelta(seconds=0.1), timedelta(seconds=1))
_FAULT_PAUSES: Final = (timedelta(seconds=2), timedelta(seconds=60))
_LARGEST_CLAIM: Final = 1000
_LONG_SEC: Final = 0.05  # if tasks take longer, none are claimed ahead
_AHEAD_SEC: Final = 0.2  # the tasks ahead are done within this time
_AHEAD_TIMES: Final = 4  # times the concurrency, at most
_MOST_AHEAD: Final = 500  # or so many, for workers with few slots
_OUTLOOK_EVERY_SEC: Final = 1.0
_AFTER_DUE_SEC: Final = 0.002


class Pace:
    """How many tasks to claim ahead: as many as are done soon; none where tasks take long, as other nodes may be
    idle."""

    def __init__(self, concurrency: int) -> None:
        self._concurrency = concurrency
        self.most: int = max(_MOST_AHEAD, concurrency * _AHEAD_TIMES)
        self._mean: float | None = None  # seconds that a task takes
        self._spent: float = 0.0
        self._tasks: int = 0
        self.ahead: int = 0

    def count(self, seconds: float) -> None:
        """Counts a task that has run for this long."""
        self._spent += seconds
        self._tasks += 1

    def stall(self) -> None:
        """Tasks ahead did not move: tasks have become slow before the first of them has ended."""
        self._mean, self.ahead = 2 * _LONG_SEC, 0

    def take(self) -> None:
        """Recomputes the number ahead, at each claim."""
        if not self._tasks:
            return
        mean = self._spent / self._tasks
        self._mean = mean if self._mean is None else (self._mean + mean) / 2
        self._spent, self._tasks = 0.0, 0
        self.ahead = 0 if self._mean > _LONG_SEC else min(self.most, int(self._concurrency * _AHEAD_SEC / self._mean))


class Claimer:
    def __init__(
        self,
        service: str,
        context: AttemptContext,
        held: HeldTasks,
        *,
        poll: Callable[[], timedelta],
        take: Callable[[list[ClaimedTask], float], None],
        known: Callable[[], set[Fence]],
        register: Callable[[int], Awaitable[None]],
    ) -> None:
        self._service = service
        self._context = context
        self._held = held
        self._poll = poll
        self._take = take
        self._known = known
        self._register = register
        self.pace: Pace = Pace(held.concurrency)
        self._offered: int = held.concurrency
        self._wakeup: Wakeup = Wakeup()
        self._look: Wakeup = Wakeup()
        self._is_more: bool = True  # something may be claimable
        self._is_clear: bool = True  # the database and this process agree on the tasks that are held
        self._is_leaving: bool = False
        self._is_polling: bool = False  # no notification came for a while
        self._fault_pauses: Backoff = Backoff(*_FAULT_PAUSES)
        self._paused_until: float = 0.0

    def stir(self) -> None:
        """Claims soon: there is or may be something to claim."""
        self._is_more = True
        if self._can_claim():
            self._wakeup.set()

    def made_room(self, *, retries: bool) -> None:
        """Tasks have ended. `retries`: some of them will be due again, at a time that the database knows."""
        if retries:
            self._look.set()
        if self._can_claim():
            self._wakeup.set()

    def fell_sick(self) -> None:
        """Leaves work to other nodes for a while, after a failure for a reason of this machine's."""
        self._paused_until = time.monotonic() + self._fault_pauses.next().total_seconds()

    def recovered(self) -> None:
        self._fault_pauses.reset()

    def leave(self) -> None:
        """Makes no further claim; the one that is under way ends."""
        self._is_leaving = True
        self._wakeup.set()

    async def serve(self) -> None:
        outages = Backoff(*_PAUSES)
        while not self._is_leaving:
            self._wakeup.clear()
            try:
                await self._pass()
                outages.reset()
            except Unavailable as error:
                pause = outages.next()
                _log.warning("no_claims", error=str(error))
                await asyncio.sleep(pause.total_seconds())
                continue
            self._is_polling = False
            if not self._can_claim() and not await self._wakeup.wait(self._rest()):
                self._is_polling = self._is_more = True
                self._look.set()

    async def look_ahead(self) -> None:
        """Looks when the next retry is due, beside the claims, because a claim must not wait for this answer."""
        while True:
            await self._look.wait()
            self._look.clear()
            try:
                await self._look_ahead()
            except Unavailable as error:
                _log.debug("no_outlook", error=str(error))
            except NotFound:
                self.stir()  # the claim registers the node again
            await asyncio.sleep(_OUTLOOK_EVERY_SEC)

    async def _look_ahead(self) -> None:
        loop = asyncio.get_running_loop()
        for seen in await agent_outlook(self._context.db, node=self._context.name, services=[self._service]):
            if seen.claimable:
                self.stir()
            if seen.next_due is not None and seen.next_due <= self._poll():
                loop.call_later(seen.next_due.total_seconds() + _AFTER_DUE_SEC, self.stir)

    # One claim

    def _can_claim(self) -> bool:
        """What makes it true again wakes the claimer: room, news, leases that were asked about. A pause ends by
        itself."""
        return self._is_more and self._wanted() > 0 and not self._is_held_back()

    def _is_held_back(self) -> bool:
        return self._context.leases.is_frozen or time.monotonic() < self._paused_until

    def _wanted(self) -> int:
        """How many tasks to claim; 0: not now."""
        held, ahead = self._held, self.pace.ahead
        room = held.concurrency + ahead - len(held.known)
        if len(held.running) + len(held.store) >= held.concurrency and len(held.store) > ahead // 2:
            return 0
        return max(0, min(room, _LARGEST_CLAIM))

    def _rest(self) -> timedelta:
        left = self._paused_until - time.monotonic()
        return timedelta(seconds=left) if left > 0 else jittered(self._poll())

    async def _pass(self) -> None:
        if not self._is_clear:
            await self._settle()
        self.pace.take()
        if not self._can_claim():
            return
        await self._offer()
        wanted = self._wanted()
        self._is_more = False  # before the database is asked: later work is notified again
        granted = await self._claim(wanted)
        if granted is not None and granted.tasks:
            self._take(granted.tasks, granted.at)

    async def _claim(self, wanted: int) -> Granted | None:
        try:
            granted = await claim(
                self._context,
                self._service,
                limit=wanted,
                register=lambda: self._register(self._offered),
                start=True,
            )
        except DatabaseUnavailable:
            self._is_clear = False
            self._is_more = True
            raise
        if granted is None or len(granted.tasks) == wanted:
            self._is_more = True
        return granted

    async def _offer(self) -> None:
        """The database bounds how many tasks a node may hold. Room for tasks ahead is offered only while tasks are
        that fast: the fleet's planner takes an offer for slots where work is done."""
        most = self._held.concurrency + self.pace.most
        if self.pace.ahead > 0 and self._offered < most:
            await self._register(most)
            self._offered = most
        elif self._is_polling and self.pace.ahead == 0 and self._offered == most and not self._held.known:
            await self._register(self._held.concurrency)
            self._offered = self._held.concurrency

    async def _settle(self) -> None:
        """After a claim whose answer was lost: takes the tasks that the database has as ours and that we don't know."""
        unknown = await held_unknown(self._context, self._known)
        self._is_clear = True
        if unknown.tasks:
            _log.warning("claim_recovered", tasks=len(unknown.tasks))
            self._take(unknown.tasks, unknown.at)
