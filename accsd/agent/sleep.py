"""Puts this node to sleep when it has been idle for its time and is not needed.

It looks at its own state first, then at vetoes on this machine, and at the database last: an idle node costs nothing
before its time is over. The reason why it stays awake is written beside its name whenever it has changed.
"""

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Final

import anyio

from accsd.agent.node import GOES_TO_SLEEP, Node, rules_of
from accsd.agent.suspend import Found, Returned, Suspension
from accsd.db.nodes import note_awake
from accsd.db.orders import Order, answer_order
from accsd.db.wake import FleetNode, look, wake_nodes
from accsd.errors import AccsdError
from accsd.log import get_logger
from accsd.model import AwakeState
from accsd.planning.cover import Demand, NodeState
from accsd.planning.sleep import SleepRules, Stay, looks_ahead, reason_to_stay, stays_for
from accsd.planning.wake import lead, left_for, needed_for
from accsd.power.sleep import fall_asleep
from accsd.power.vetoes import veto
from accsd.retry import Backoff
from accsd.supervisor import Pass

_log = get_logger(role="sleep")
_STOPPING_SEC: Final = 60.0
_SOON: Final = timedelta(seconds=1)
# Vetoes cost processes and demand costs queries: how often both are looked at while one of them holds.
_RETHINK: Final = (timedelta(seconds=1), timedelta(seconds=30))
# Other nodes with room claim waiting work within moments, as they did while this node was idle: then this one may go.
_TAKEN_BY_OTHERS_SEC: Final = 0.1
_LOOKS: Final = 5
# Pauses after a machine did not fall asleep when it was told to.
_IN_VAIN: Final = (timedelta(minutes=1), timedelta(hours=1))
# Being at work, or not, changes with every task: it is not written each time.
_CALM: Final = timedelta(seconds=10)
# Another process may have written another reason meanwhile.
_SAY_AGAIN: Final = timedelta(minutes=5)
_LATE: Final = "asked to sleep, too long ago: whoever asked was told that there was no answer"
_AT_ONCE: Final = SleepRules(idle=timedelta(0), awake=timedelta(0))


class Machine:
    """This machine: who objects to its sleep, how its services rest, how it is told to sleep."""

    def __init__(self, node: Node) -> None:
        self._node = node

    async def veto(self) -> str | None:
        return await veto(self._node.settings.sleep, self._node.name, ours=self._node.inhibitor.pid)

    async def stop_containers(self) -> None:
        """Stops containers. One that does not stop is no reason to burn power: it sleeps with the machine."""
        for service in self._node.runs:
            try:
                with anyio.fail_after(_STOPPING_SEC):
                    await service.runner.rest(None)
            except (AccsdError, OSError) as error:  # TimeoutError is an OSError
                _log.warning("not_stopped", service=service.name, error=str(error) or type(error).__name__)

    async def fall_asleep(self) -> str | None:
        """Tells the machine to sleep; returns what went wrong, if anything did."""
        await self._node.inhibitor.let_go()
        settings = self._node.settings
        return await fall_asleep(settings.sleep, self._node.name, settings.wake.providers)


class Sleeper:
    def __init__(self, node: Node, machine: Machine | None = None) -> None:
        self._node = node
        self._machine: Machine = machine or Machine(node)
        self._suspension: Suspension = Suspension(node, self._machine.stop_containers)
        self._knows_latency: bool = False  # measured anew after each waking
        self._kept: Stay | None = None  # the last reason that came from outside of this role
        self._look_again_at: float = 0.0  # monotonic
        self._said: str | None = None
        self._said_at: float = float("-inf")  # monotonic
        self._in_vain: Backoff = Backoff(*_IN_VAIN)

    @property
    def rules(self) -> SleepRules:
        return rules_of(self._node.settings.sleep)

    @property
    def _lease(self) -> timedelta:
        return self._node.leases.length

    async def run_once(self) -> Pass:
        if not self._node.is_registered or self._node.leases.is_frozen:
            return Pass(next_due=_SOON)
        if self._node.sleep_orders:
            return await self._obey()
        self._suspension.consider()
        await self._learn_latency()
        if own := reason_to_stay(self._node.idle.now, self.rules):
            calm = await self._say(own.because, at_most_every=_CALM)
            return Pass(next_due=min((due for due in (own.again_in, calm) if due is not None), default=None))
        if self._kept and (left := self._look_again_at - time.monotonic()) > 0:
            await self._say(self._kept.because)
            return Pass(next_due=timedelta(seconds=left))
        found = await self._look()
        if isinstance(found, Stay):
            return await self._stay(found)
        return await self._go("it has nothing to do", found)

    async def _obey(self) -> Pass:
        await self._answer([order for order in self._node.sleep_orders if order.is_late], ok=False, said=_LATE)
        if not self._node.sleep_orders:
            return Pass(did=_LATE, more=True)
        orders = list(self._node.sleep_orders)
        self._suspension.consider()
        found = reason_to_stay(self._node.idle.now, _AT_ONCE) or await self._look()
        by = orders[0].asked_by or "somebody"
        if isinstance(found, Stay):
            await self._answer(orders, ok=False, said=found.because)
            return Pass(did=f"asked to sleep by {by}, and stays awake: {found.because}", more=True)
        return await self._go(f"{by} asked for it", found)

    async def _answer(self, orders: Iterable[Order], *, ok: bool, said: str) -> None:
        for order in orders:
            await answer_order(self._node.db, order.id, self._node.name, ok=ok, output=said)
            self._node.sleep_orders.remove(order)  # not before the answer: the database may be away

    async def _look(self) -> Found:
        """Why the node must stay; otherwise the nodes that it counts on for work that is near."""
        if objection := await self._machine.veto():
            return Stay(objection, self._patience_with(objection, self._again_in))
        return await self._look_at_work()

    async def _look_at_work(self) -> Found:
        """Looks a few times while work waits that other nodes could claim as well, until they have claimed it."""
        for _ in range(_LOOKS):
            if not isinstance(found := await self._look_once(), Demand):
                return found
            await anyio.sleep(_TAKEN_BY_OTHERS_SEC)
        if not isinstance(found := await self._look_once(), Demand):
            return found
        return Stay(f"{found.service} of {found.wanted_by} waits, and nobody else takes it", self._again_in)

    async def _look_once(self) -> Found | Demand:
        """As `_look`, or the work that this node, like others, could claim at this moment."""
        demand, fleet = await self._survey()
        if puller := next((each.name for each in fleet if self._is_our_puller(each)), None):
            return Stay(f"{puller} claims by itself on this machine, and nobody wakes it for that", self._again_in)
        if all(each.name != self._node.name for each in fleet):
            return []  # the node's row was deleted
        # In a thread: with hundreds of nodes it takes a while, and the loop has leases to keep.
        needed = await asyncio.to_thread(needed_for, self._node.name, demand, fleet, lease=self._lease)
        if needed is not None:
            return Stay(_wanted(needed), self._again_in)
        return left_for(self._node.name, demand, fleet) or self._counted_on(demand, fleet)

    @property
    def _again_in(self) -> timedelta:
        return min(max(stays_for(self._node.idle.now, self.rules) / 4, _RETHINK[0]), _RETHINK[1])

    def _counted_on(self, demand: Sequence[Demand], fleet: Sequence[NodeState]) -> list[str]:
        return [
            other.name
            for other in fleet
            if other.name != self._node.name
            and other.is_awake(self._lease)
            and not other.is_drained
            and any(other.could_serve(each) for each in demand)
        ]

    def _patience_with(self, objection: str, first: timedelta) -> timedelta:
        """The next look, later each time: a person who works at this machine all day is not asked about each second."""
        kept = self._kept
        if kept is None or kept.because != objection or kept.again_in is None:
            return first
        return min(2 * kept.again_in, _RETHINK[1])

    async def _learn_latency(self) -> None:
        if not self._knows_latency:
            self._know(await wake_nodes(self._node.db, silent=self._lease))

    async def _survey(self) -> tuple[list[Demand], list[NodeState]]:
        await self._learn_latency()
        rest = self._node.idle.now
        ahead = looks_ahead(rest, self.rules, lead(rest.latency))
        demand, known = await look(self._node.db, ahead, silent=self._lease)
        return demand, self._know(known)

    def _know(self, known: Iterable[FleetNode]) -> list[NodeState]:
        """The states of the fleet. A node whose agent has stopped is not counted on, however lately it was seen: the
        goodbye would be refused."""
        fleet = [replace(each.state, says_asleep=each.node.awake_state is not AwakeState.AWAKE) for each in known]
        latencies = [state.latency for state in fleet if state.name == self._node.name]
        self._node.idle.latency = latencies[0] if latencies else None
        self._knows_latency = True
        return fleet

    def _is_our_puller(self, other: NodeState) -> bool:
        """Whether the other node is a service in pull mode on this machine: it can't be woken, and sleeps with this
        one."""
        names = [f"{self._node.name}.{service}" for service in other.slots]
        return other.is_awake(self._lease) and any(f"{other.name}.".startswith(f"{name}.") for name in names)

    async def _go(self, because: str, counting_on: Sequence[str]) -> Pass:
        await self._answer(list(self._node.sleep_orders), ok=True, said=GOES_TO_SLEEP)
        within = self._node.settings.sleep.within
        self._said = self._kept = None
        self._node.is_going_to_sleep = True
        try:
            returned = await self._suspension.go(
                self._machine.fall_asleep,
                within=within,
                because=because,
                look=self._look_at_work,
                counting_on=counting_on,
            )
        finally:
            self._node.is_going_to_sleep = False
        if returned.because is None:
            self._in_vain.reset()
            self._node.idle.begin_anew()
            self._knows_latency = False  # this waking gives a new measurement
            return Pass(did="slept and is awake again", next_due=_SOON)
        self._keep(Stay(returned.because, self._pause_after(returned)))
        _log.warning("stays_awake", reason=returned.because, in_vain=returned.in_vain)
        # The heartbeat must say first that the node is awake.
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
        """Writes the reason if it has changed; returns how long it has to wait, if it does."""
        since = timedelta(seconds=time.monotonic() - self._said_at) if self._said else timedelta.max
        if because == self._said and since < _SAY_AGAIN:
            return None
        if since < at_most_every:
            return at_most_every - since
        await note_awake(self._node.db, self._node.name, because)
        self._said, self._said_at = because, time.monotonic()
        return None


def _wanted(needed: Demand) -> str:
    when = "is due soon" if needed.due_in else "waits"
    return f"{needed.service} of {needed.wanted_by} {when}, and nobody else who is awake can take it"
