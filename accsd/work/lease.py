"""Keeps the leases of this node: one statement for the node and all its tasks, and a deadline that needs no database.

A lease is good until a fixed time after the *sending* of the last heartbeat that was answered, less a margin in which
the work can be killed: no other node can own the task before our process is gone. The clock is the one that goes on
while the machine is suspended. After a suspend (or a stop of this process) every lease is asked about before anything
else happens: nothing begins before the answer, and work that runs already may run on for half the margin without one.
"""

import asyncio
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from uuid import UUID

import anyio

from accsd import clock, failpoints
from accsd.db import Database, Fence, heartbeat
from accsd.errors import DatabaseUnavailable
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.retry import jittered
from accsd.wakeup import Wakeup
from accsd.work.identity import NodeIdentity

_log = get_logger(component="lease")
# The part of a lease that is kept free at its end for killing the work.
_MARGIN = 0.2
_LONGEST_MARGIN = timedelta(seconds=10)
# A process that is later than this was stopped or starved: as after a suspend, it asks before it acts.
STALL = timedelta(seconds=2)
_STALL_SEC = STALL.total_seconds()
_AFTER_FAILURE = timedelta(seconds=1)
NOT_KEPT = "not_kept_in_time"


@dataclass(eq=False, slots=True)
class Lease:
    """The right to work at one attempt. `reason` says why it has ended early, if it has."""

    fence: Fence
    good_until: float  # by boot_time()
    reason: str | None = None
    is_being_ended: bool = False  # by us: a heartbeat may hear of that end before we do, and that is no loss

    @property
    def is_gone(self) -> bool:
        return self.reason is not None

    @property
    def is_good(self) -> bool:
        """No other node can have the task now, whatever the database would say."""
        return not self.is_gone and clock.boot_time() < self.good_until

    @property
    def is_cancelled(self) -> bool:
        """The task was ended on purpose: the work may still be stopped politely."""
        return self.reason == "already_finished"

    @property
    def is_unanswered(self) -> bool:
        """We gave the lease up by our own clock: the database was away, and may still say that the task is ours."""
        return self.reason == NOT_KEPT

    def lose(self, reason: str) -> None:
        if not self.is_gone:
            self.reason = reason


@dataclass(eq=False, slots=True)
class WatchedLease(Lease):
    """A lease whose loss an attempt waits for."""

    gone: asyncio.Event = field(default_factory=asyncio.Event)

    def lose(self, reason: str) -> None:
        Lease.lose(self, reason)
        self.gone.set()


class LeaseKeeper:
    def __init__(
        self,
        db: Database,
        *,
        node: str,
        lease: timedelta,
        every: timedelta,
        metrics: Metrics,
        identity: NodeIdentity | None = None,
        when_resumed: Callable[[], None] = lambda: None,
        when_changed: Callable[[], None] = lambda: None,
    ) -> None:
        self._db = db
        self._node = node
        self._lease = lease
        self._every = every
        self._margin: timedelta = min(lease * _MARGIN, _LONGEST_MARGIN)
        self._metrics = metrics
        self._identity: NodeIdentity = identity or NodeIdentity()
        self.when_resumed = when_resumed
        self.when_changed = when_changed
        self._held: dict[UUID, Lease] = {}  # by task
        self._due: Wakeup = Wakeup()
        self._asleep: float = clock.time_asleep()
        self._expected: float = float("inf")  # monotonic: when the watch looks next
        self._absences: int = 0
        self._asks: int = 0  # how often leases had to be asked about
        self._revalidating: bool = False
        self._answered: asyncio.Event = asyncio.Event()  # a new one for each heartbeat
        self._may_speak: asyncio.Event = asyncio.Event()
        self._may_speak.set()
        self._speaking: asyncio.Lock = asyncio.Lock()
        self._asked_until: float = 0.0  # by boot_time(): how long the answer may take after a pause

    @property
    def length(self) -> timedelta:
        return self._lease

    @property
    def identity(self) -> NodeIdentity:
        """The identity under which this process registers its node and keeps its leases."""
        return self._identity

    @property
    def is_frozen(self) -> bool:
        """Leases are being asked about, or must be: nothing is claimed and nothing begins meanwhile."""
        return self._revalidating or self._was_away()

    @property
    def absences(self) -> int:
        """How often this machine was suspended, or this process stopped."""
        return self._absences

    @property
    def is_silent(self) -> bool:
        return not self._may_speak.is_set()

    @property
    def held(self) -> Sequence[Fence]:
        return [lease.fence for lease in self._held.values()]

    @contextmanager
    def holding(self, fence: Fence, *, granted: float) -> Generator[WatchedLease]:
        """Keeps a lease, which the database gave when asked at `granted`, for as long as the block lasts."""
        lease = WatchedLease(fence, self.good_until(granted))
        self.hold(lease)
        try:
            yield lease
        finally:
            self.let_go(lease)

    def hold(self, *leases: Lease) -> None:
        """Keeps leases until they are let go. After a claim that was answered late, because it waited for a lock, our
        clock says that the lease is over already: the database is asked before it is given up."""
        if not all(lease.is_good for lease in leases):
            self._ask()
        for lease in leases:
            other = self._held.setdefault(lease.fence.task_id, lease)
            if other is not lease:
                self._hold_one_of(lease, other)
        self.when_changed()

    def _hold_one_of(self, lease: Lease, other: Lease) -> None:
        if other.fence.attempt_id > lease.fence.attempt_id:
            self._lose(lease, "stale_attempt")
            return
        self._lose(other, "stale_attempt")  # our own earlier attempt: the task was reclaimed, and claimed by us again
        self._held[lease.fence.task_id] = lease

    def let_go(self, *leases: Lease) -> None:
        for lease in leases:
            if self._held.get(lease.fence.task_id) is lease:
                del self._held[lease.fence.task_id]
        self.when_changed()

    async def confirmed(self, lease: Lease) -> float:
        """Returns, before the work begins, when the lease is known to be good: the time (by boot_time()) until which
        it is. It never returns for a lost lease: the waiting attempt is cancelled."""
        while self.is_frozen or not lease.is_good:
            await self._answered.wait()
        return lease.good_until

    def ask_now(self) -> None:
        """Sends a heartbeat at once: a notification said that tasks were cancelled."""
        self._due.set()

    async def fall_silent(self) -> None:
        """Stops heartbeats and waits for the one under way: it would say that this node is awake."""
        self._may_speak.clear()
        async with self._speaking:
            pass

    def speak_again(self) -> None:
        """Sends a heartbeat at once: leases lost meanwhile are known before anything is claimed."""
        self._may_speak.set()
        self._revalidating = True
        self._due.set()

    async def may_speak(self) -> None:
        """Returns when silence has ended. Other calls that would say that this node is awake wait here, too."""
        await self._may_speak.wait()

    async def beat_on(self) -> None:
        """Sends heartbeats for as long as this node is present."""
        while True:
            self._due.clear()
            if self.is_silent:
                await self._due.wait()
                continue
            asks = self._asks
            async with self._speaking:
                answered = await self.beat()
            # The answer to an earlier heartbeat, such as one before a suspend, does not say whose the leases are now.
            if answered and self._revalidating and asks == self._asks:
                self._revalidating = False
                self.when_resumed()
            if answered:
                self._answered.set()
                self._answered = asyncio.Event()
            await self._due.wait(jittered(self._every) if answered else min(self._every, _AFTER_FAILURE))

    async def beat(self) -> bool:
        """One statement for all leases; those that it refuses are lost. Returns whether the database answered."""
        asked = [lease for lease in self._held.values() if not lease.is_gone]
        sent = clock.boot_time()
        failpoints.hit("heartbeat.sent")
        try:
            answers = await heartbeat(
                self._db,
                [lease.fence for lease in asked],
                owner=self._node,
                node=self._node,
                lease=self._lease,
                instance=self._identity.instance,
                within=self._margin.total_seconds() / 2,  # the other half is for killing the work
            )
        except DatabaseUnavailable as error:
            self._metrics.heartbeat(False)
            _log.warning("heartbeat_failed", error=str(error), leases=len(asked))
            return False
        self._metrics.heartbeat(True)
        for lease in asked:
            answer = answers.get(lease.fence.task_id)
            if answer is not None and answer.is_effective:
                lease.good_until = self.good_until(sent)
            elif self._held.get(lease.fence.task_id) is lease and not lease.is_being_ended:
                self._lose(lease, (answer and answer.reason) or "lease_lost_or_owner_mismatch")
        return True

    async def serve(self) -> None:
        """Watches the deadlines, as a role of its own: a heartbeat that hangs or crashes must not delay it."""
        self._expected = time.monotonic()
        while True:
            if self._was_away():
                self._ask_after_absence()
            self._asleep = clock.time_asleep()
            self._lose_overdue()
            pause = self._until_next()
            self._expected = time.monotonic() + pause
            await anyio.sleep(pause)

    def _was_away(self) -> bool:
        return clock.time_asleep() - self._asleep > 1 or time.monotonic() - self._expected > _STALL_SEC

    def _ask_after_absence(self) -> None:
        _log.warning("was_away", leases=len(self._held))
        self._absences += 1
        self._ask()

    def _ask(self) -> None:
        self._asks += 1
        self._revalidating = True
        self._asked_until = clock.boot_time() + self._margin.total_seconds() / 2
        self._due.set()

    def _lose_overdue(self) -> None:
        now = clock.boot_time()
        for lease in list(self._held.values()):
            if now >= max(lease.good_until, self._asked_until) and not lease.is_gone:
                self._lose(lease, NOT_KEPT)

    def _lose(self, lease: Lease, reason: str) -> None:
        self._metrics.lease_lost(reason)
        _log.warning("lease_gone", task_id=str(lease.fence.task_id), attempt_id=lease.fence.attempt_id, reason=reason)
        lease.lose(reason)

    def good_until(self, sent: float) -> float:
        """Until when a lease is good that was asked for at `sent`; both times are by boot_time()."""
        return sent + (self._lease - self._margin).total_seconds()

    def _until_next(self) -> float:
        """Seconds to the first deadline; at most one, to notice a suspend soon."""
        ends = [max(lease.good_until, self._asked_until) for lease in self._held.values() if not lease.is_gone]
        now = clock.boot_time()
        return max(0.0, min(1.0, min(ends, default=now + 1) - now))
