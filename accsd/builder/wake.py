"""Wakes the nodes that jobs running now or due soon will need.

It looks at waiting work and at the nodes that are awake, lets planning/wake.py decide, has the chosen nodes called,
and writes down why the others are left asleep. It does not wait for the wake calls: a slow one delays no other node.
Of several builders one makes each wake call.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from accsd.builder.calls import CallsUnderWay
from accsd.db import Database
from accsd.db.listen import CANCEL, Listener
from accsd.db.wake import FleetNode, NotWoken, look, note_not_woken, wake_demand, wake_nodes
from accsd.log import get_logger
from accsd.metrics import Metrics
from accsd.planning.cover import Demand, NodeState, WakeCalls
from accsd.planning.wake import Choice, WakePlan, WakePolicy, WhyNot, plan, turn
from accsd.power import WakeResult
from accsd.settings import WakeSettings
from accsd.supervisor import Pass
from accsd.work.wake_calls import WakeCaller

# Longer than a poll: demand that comes into sight then is still seen in time.
_MARGIN: Final = timedelta(minutes=1)
# A node whose breaker is open stays failed, whatever other reason there is, until it is called again or seen.
_SAYS_LESS: Final = frozenset({WhyNot.NO_MATCH, WhyNot.NOT_NEEDED, WhyNot.NOT_YET, WhyNot.STAGGERED})
_SHOWN: Final = 200
_SOON: Final = timedelta(seconds=1)
_IN_VAIN: Final = frozenset({WhyNot.PAUSING, WhyNot.FAILED})
_log = get_logger(role="wake")
# Nodes that are awake claim first, and a busy fleet wakes the waker once in this time.
_GATHERED_SEC: Final = 1.0
_MOST_SERVICES: Final = 500  # the poll finds the work of other services


class Waker:
    """`hear` is given the services of nodes that can be woken: it listens for work that becomes claimable for them."""

    name: Final = "wake"

    def __init__(
        self,
        db: Database,
        settings: WakeSettings,
        *,
        lease: timedelta,
        calls: CallsUnderWay,  # the end of each must wake this role
        node: str = "builder",
        metrics: Metrics | None = None,
        hear: Callable[[Iterable[str]], None] | None = None,
    ) -> None:
        self._db = db
        self._settings = settings
        self._lease = lease
        self._calls = calls
        self._metrics: Metrics = metrics or Metrics()
        self._hear = hear
        self._policy: WakePolicy = WakePolicy(settings.boot, settings.rounds, settings.rest, settings.longest_rest)
        self._caller: WakeCaller = WakeCaller(db, settings, by=node, when_called=self._count)
        self._slowest: timedelta | None = None  # None: the fleet is not known yet
        self._expected: dict[str, str] = {}  # the nodes that this builder has called, and by which method
        self._has_nothing_to_say: bool = False

    async def run_once(self) -> Pass:
        said = "; ".join(self._calls.take()) or None
        if not self._calls.is_open:
            return Pass(did=said, next_due=_SOON)
        return replace(await self._plan(), did=said)

    async def _plan(self) -> Pass:
        if self._slowest is None:
            self._know(await wake_nodes(self._db, silent=self._lease))
        if not await wake_demand(self._db, self._ahead) and self._has_nothing_to_say:
            return Pass()
        demand, fleet = await look(self._db, self._ahead, silent=self._lease)
        known = self._know(fleet)
        if all(each.is_at_work(self._lease) for each in known.values()):
            self._has_nothing_to_say = not demand
            return Pass()  # no node could be woken, and there is none whose sleep needs a reason
        # In a thread: with hundreds of nodes it takes a second, and the loop has leases to keep.
        made = await asyncio.to_thread(
            plan,
            demand,
            [each.state for each in known.values()],
            lease=self._lease,
            policy=self._policy,
            at_once=self._settings.at_once,
        )
        _log.debug("wake_planned", wake=[choice.node for choice in made.wake], reasons=dict(made.reasons))
        for choice in made.wake:
            self._call(choice, known[choice.node])
        await self._say_why_not(made, known)
        self._has_nothing_to_say = not demand
        # The end of a wake call causes another plan: a failed one leaves its work to another node.
        return Pass(next_due=made.again_in)

    @property
    def _ahead(self) -> timedelta:
        slowest = max(self._slowest or timedelta(0), self._policy.boot)
        return max(self._settings.ahead, slowest + _MARGIN)

    def _know(self, fleet: Sequence[FleetNode]) -> Mapping[str, FleetNode]:
        self._slowest = max((each.state.latency or timedelta(0) for each in fleet), default=timedelta(0))
        for each in fleet:
            if each.power == "ready" and each.node.name in self._expected:
                self._metrics.wake_tried(self._expected.pop(each.node.name), "woke")
        if self._hear is not None:
            self._hear({service for each in fleet if each.node.wake_method for service in each.state.slots})
        return {each.node.name: replace(each, state=self._state(each)) for each in fleet}

    def _state(self, known: FleetNode) -> NodeState:
        """A node that this builder is calling counts as starting, however long that takes and by whichever method: it
        is not called twice."""
        state = replace(known.state, methods=self._caller.methods(known))
        if state.name not in self._calls.nodes:
            return state
        return replace(state, calls=WakeCalls(state.calls.count if state.calls else 1, timedelta(0)))

    def _call(self, choice: Choice, known: FleetNode) -> None:
        """Starts a wake call, which goes on after this pass."""
        methods = known.state.methods

        async def call() -> list[str]:
            calls = await self._caller.call(known, methods[methods.index(choice.method) :], choice.because)
            if calls and calls[-1][0].ok:
                self._expected[choice.node] = calls[-1][0].method
            return [sentence for _, sentence in calls]

        self._calls.start(choice.node, call)

    async def _say_why_not(self, made: WakePlan, fleet: Mapping[str, FleetNode]) -> None:
        """Writes why nodes are not woken that are neither awake nor starting, if the reason has changed."""
        notes = [note for name, why in made.reasons.items() if (note := self._note(fleet[name], why, made)) is not None]
        if not notes:
            return
        for note in notes:
            if note.failed and note.known.power != "failed":
                self._expected.pop(note.known.node.name, None)
                self._metrics.wake_tried(note.known.state.methods[0], "given_up")
        await note_not_woken(self._db, notes, silent=self._lease)

    def _note(self, known: FleetNode, why: WhyNot, made: WakePlan) -> NotWoken | None:
        has_failed = known.power == "failed"
        if why in (WhyNot.AWAKE, WhyNot.COMING) or (has_failed and why in _SAYS_LESS):
            return None
        later = made.later.get(known.node.name)
        because = self._in_vain(known) if why in _IN_VAIN else why.value if later is None else _later(*later)
        return None if because == known.because else NotWoken(known, because, has_failed or why is WhyNot.FAILED)

    def _in_vain(self, known: FleetNode) -> str:
        """The reason after wake calls in vain, with times of day: it stays the same until something happens."""
        state = known.state
        assert state.calls is not None, "it did not come when it was called"
        assert known.tried_at is not None, "every call has its time"
        again = known.tried_at + state.calls.ago + turn(state.methods, state.calls, self._policy, state.latency).wait
        calls = f"{state.calls.count} call{'s' if state.calls.count > 1 else ''} by {', '.join(state.methods)}"
        error = f": {known.error[:_SHOWN]}" if known.error else ""
        return f"it did not come after {calls} (last {_clock(known.tried_at)}{error}); asked again at {_clock(again)}"

    def _count(self, result: WakeResult) -> None:
        self._metrics.wake_tried(result.method, "sent" if result.ok else "failed")


def _later(wanted: Demand, call_in: timedelta) -> str:
    """By the minute, so that it stays the same from one pass to the next."""
    now = datetime.now(UTC) + timedelta(seconds=30)
    return f"it wakes at {now + call_in:%H:%M} UTC for {wanted.wanted_by} ({now + wanted.due_in:%H:%M})"


def _clock(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%H:%M:%S} UTC"


class ServiceNews:
    """Listens for work that becomes claimable for services of sleeping nodes. Of such work only the channel of
    the service is notified. Many notifications are one wake-up of the
    waker, a moment later."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._services: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.when_heard: Callable[[], None] | None = None

    def listen_to(self, services: Iterable[str]) -> None:
        """Adds these services; it never stops listening to one."""
        for service in sorted(set(services) - self._services)[: _MOST_SERVICES - len(self._services)]:
            self._services.add(service)
            self._listener.subscribe(service, self._hear)

    def _hear(self, payload: str) -> None:
        if payload != CANCEL and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHERED_SEC, self._tell)

    def _tell(self) -> None:
        self._timer = None
        if self.when_heard is not None:
            self.when_heard()
