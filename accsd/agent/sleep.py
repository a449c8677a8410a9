"""Puts this node to sleep when it has been idle for its time and nobody needs it (A14).

It asks itself first, then whoever may object on this machine, and the database last: an idle node costs nothing before
its time is over. Why it stays awake is written beside its name whenever that has changed.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import anyio

from accsd.agent.idle import IdleClock, rules_of
from accsd.agent.suspend import Found, Returned, Suspension, Way
from accsd.db import Database
from accsd.db.nodes import note_awake
from accsd.db.orders import Order, answer_order
from accsd.db.waking import FleetNode, look, wake_nodes
from accsd.log import get_logger
from accsd.model import AwakeState
from accsd.passes import Pass
from accsd.planning.sleep import SleepRules, Stay, looks_ahead, reason_to_stay, stays_for
from accsd.planning.wake import Demand, NodeState, lead, left_for, needed_for
from accsd.settings import SleepSettings
from accsd.wakeup import Backoff

_log = get_logger(role="sleep")
_SOON: Final = timedelta(seconds=1)
# Vetoes cost processes and demand costs queries: how often both are looked at while one of them holds.
_RETHINK: Final = (timedelta(seconds=1), timedelta(seconds=30))
# Others who have room take what waits within moments, as they did while this node was idle: seen once, it may go.
_TAKEN_BY_OTHERS_SEC: Final = 0.1
_LOOKS: Final = 5
# A machine that can't be put to sleep is not tried again and again.
_IN_VAIN: Final = (timedelta(minutes=1), timedelta(hours=1))
# Being at work, or not, changes with every task: that is not written each time.
_CALM: Final = timedelta(seconds=10)
# Somebody else may have written something there meanwhile.
_SAY_AGAIN: Final = timedelta(minutes=5)
_GOES: Final = "it goes to sleep"
_LATE: Final = "asked to sleep, too long ago: whoever asked was told that there was no answer"
_AT_ONCE: Final = SleepRules(idle=timedelta(0), awake=timedelta(0))


class Sleeper:
    def __init__(
        self,
        db: Database,
        *,
        node: str,
        lease: timedelta,
        settings: Callable[[], SleepSettings],  # may change while we run
        wakefulness: IdleClock,
        departure: Suspension,
        veto: Callable[[], Awaitable[str | None]],
        way: Way,
        is_ready: Callable[[], bool],  # registered, and sure of its leases
        wake: Callable[[], None],
    ) -> None:
        self._db: Database = db
        self._node: str = node
        self._lease: timedelta = lease
        self._settings: Callable[[], SleepSettings] = settings
        self._wakefulness: IdleClock = wakefulness
        self._departure: Suspension = departure
        self._veto: Callable[[], Awaitable[str | None]] = veto
        self._way: Way = way
        self._is_ready: Callable[[], bool] = is_ready
        self._wake: Callable[[], None] = wake
        self._knows_latency: bool = False  # since it was last woken
        self._kept: Stay | None = None  # by somebody else than ourselves, when it was last looked at
        self._look_again_at: float = 0.0  # monotonic
        self._said: str | None = None
        self._said_at: float = float("-inf")  # monotonic
        self._in_vain: Backoff = Backoff(*_IN_VAIN)
        self._orders: list[Order] = []
        self._is_going: bool = False

    @property
    def rules(self) -> SleepRules:
        return rules_of(self._settings())

    async def run_once(self) -> Pass:
        if self._settings().method == "none":
            return Pass()
        if not self._is_ready():
            return Pass(next_due=_SOON)
        if self._orders:
            return await self._obey()
        self._departure.consider()
        await self._learn_latency()
        if own := reason_to_stay(self._wakefulness.now, self.rules):
            calm = await self._say(own.because, at_most_every=_CALM)
            return Pass(next_due=min((due for due in (own.again_in, calm) if due is not None), default=None))
        if self._kept and (left := self._look_again_at - time.monotonic()) > 0:
            await self._say(self._kept.because)
            return Pass(next_due=timedelta(seconds=left))
        found = await self._look()
        if isinstance(found, Stay):
            return await self._stay(found)
        return await self._go("it has nothing to do", found)

    def ask(self, order: Order) -> str | None:
        """A person wants it to sleep now: it need not have been idle, or awake, for any time, but everything else
        counts. Answered before it goes; or what is to be answered at once, because it goes already."""
        if self._is_going:
            return _GOES
        self._orders.append(order)
        self._wake()
        return None

    async def _obey(self) -> Pass:
        await self._answer([order for order in self._orders if order.is_late], ok=False, said=_LATE)
        if not self._orders:
            return Pass(did=_LATE, more=True)
        orders = list(self._orders)
        self._departure.consider()
        found = reason_to_stay(self._wakefulness.now, _AT_ONCE) or await self._look()
        by = orders[0].asked_by or "somebody"
        if isinstance(found, Stay):
            await self._answer(orders, ok=False, said=found.because)
            return Pass(did=f"asked to sleep by {by}, and stays awake: {found.because}", more=True)
        return await self._go(f"{by} asked for it", found)

    async def _answer(self, orders: Iterable[Order], *, ok: bool, said: str) -> None:
        for order in orders:
            await answer_order(self._db, order.id, self._node, ok=ok, output=said)
            self._orders.remove(order)  # not before: the database may be away

    async def _look(self) -> Found:
        """Who else wants it awake; otherwise those whom it counts on for what is near."""
        if objection := await self._veto():
            return Stay(objection, self._patience_with(objection, self._again_in))
        return await self._look_at_work()

    async def _look_at_work(self) -> Found:
        """What waits and others could take as well is looked at for a moment, until they have taken it."""
        for _ in range(_LOOKS):
            if not isinstance(found := await self._look_once(), Demand):
                return found
            await anyio.sleep(_TAKEN_BY_OTHERS_SEC)
        if not isinstance(found := await self._look_once(), Demand):
            return found
        return Stay(f"{found.service} of job {found.job_id} waits, and nobody else takes it", self._again_in)

    async def _look_once(self) -> Found | Demand:
        """Or what it could claim at this moment, as others could."""
        demand, fleet = await self._survey()
        if puller := next((each.name for each in fleet if self._is_our_puller(each)), None):
            return Stay(f"{puller} claims by itself on this machine, and nobody wakes it for that", self._again_in)
        if all(each.name != self._node for each in fleet):
            return []  # somebody has deleted it
        # In a thread: with hundreds of nodes it takes a while, and the loop has leases to keep.
        needed = await asyncio.to_thread(needed_for, self._node, demand, fleet, lease=self._lease)
        if needed is not None:
            return Stay(_wanted(needed), self._again_in)
        return left_for(self._node, demand, fleet) or self._counted_on(demand, fleet)

    @property
    def _again_in(self) -> timedelta:
        return min(max(stays_for(self._wakefulness.now, self.rules) / 4, _RETHINK[0]), _RETHINK[1])

    def _counted_on(self, demand: Sequence[Demand], fleet: Sequence[NodeState]) -> list[str]:
        return [
            other.name
            for other in fleet
            if other.name != self._node
            and other.is_awake(self._lease)
            and not other.is_drained
            and any(other.could_serve(each) for each in demand)
        ]

    def _patience_with(self, objection: str, first: timedelta) -> timedelta:
        """Longer each time: who works at this machine all day is not asked about each second."""
        kept = self._kept
        if kept is None or kept.because != objection or kept.again_in is None:
            return first
        return min(2 * kept.again_in, _RETHINK[1])

    async def _learn_latency(self) -> None:
        if not self._knows_latency:
            self._know(await wake_nodes(self._db, silent=self._lease))

    async def _survey(self) -> tuple[list[Demand], list[NodeState]]:
        await self._learn_latency()
        rest = self._wakefulness.now
        ahead = looks_ahead(rest, self.rules, lead(rest.latency))
        demand, known = await look(self._db, ahead, silent=self._lease)
        return demand, self._know(known)

    def _know(self, known: Iterable[FleetNode]) -> list[NodeState]:
        """Whose agent has stopped is not counted on, however lately he was seen: the goodbye would be refused."""
        fleet = [replace(each.state, says_asleep=each.node.awake_state is not AwakeState.AWAKE) for each in known]
        latencies = [state.latency for state in fleet if state.name == self._node]
        self._wakefulness.latency = latencies[0] if latencies else None
        self._knows_latency = True
        return fleet

    def _is_our_puller(self, other: NodeState) -> bool:
        """A service in pull mode: a node of its own, without a way to wake it, that would sleep with this one."""
        names = [f"{self._node}.{service}" for service in other.slots]
        return other.is_awake(self._lease) and any(f"{other.name}.".startswith(f"{name}.") for name in names)

    async def _go(self, because: str, counting_on: Sequence[str]) -> Pass:
        await self._answer(list(self._orders), ok=True, said=_GOES)
        within = self._settings().within
        self._said = self._kept = None
        self._is_going = True
        try:
            returned = await self._departure.go(
                self._way, within=within, because=because, look=self._look_at_work, counting_on=counting_on
            )
        finally:
            self._is_going = False
        if returned.because is None:
            self._in_vain.reset()
            self._wakefulness.begin_anew()
            self._knows_latency = False  # this waking was measured too
            return Pass(did="slept and is awake again", next_due=_SOON)
        self._keep(Stay(returned.because, self._pause_after(returned)))
        _log.warning("stays_awake", reason=returned.because, in_vain=returned.in_vain)
        # the heartbeat has to say first that it is awake
        return Pass(did=f"stays awake: {returned.because}", next_due=_SOON)

    def _pause_after(self, returned: Returned) -> timedelta:
        return self._in_vain.next() if returned.in_vain else _RETHINK[0]

    async def _stay(self, stay: Stay) -> Pass:
        self._keep(stay)
        await self._say(stay.because)
        return Pass(next_due=stay.again_in)

    def _keep(self, stay: Stay) -> None:
        assert stay.again_in is not None, "what others say is asked about again"
        self._kept = stay
        self._look_again_at = time.monotonic() + stay.again_in.total_seconds()

    async def _say(self, because: str, *, at_most_every: timedelta = timedelta(0)) -> timedelta | None:
        """Only what has changed; how long it has to wait, if it does."""
        since = timedelta(seconds=time.monotonic() - self._said_at) if self._said else timedelta.max
        if because == self._said and since < _SAY_AGAIN:
            return None
        if since < at_most_every:
            return at_most_every - since
        await note_awake(self._db, self._node, because)
        self._said, self._said_at = because, time.monotonic()
        return None


def _wanted(needed: Demand) -> str:
    when = "is due soon" if needed.due_in else "waits"
    return f"{needed.service} of job {needed.job_id} {when}, and nobody else who is awake can take it"
