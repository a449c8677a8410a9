"""Which sleeping nodes to wake, by which method, and why the others are left asleep.

Plain data in, a plan out; every time is an age or a distance by one clock, so that virtual time works as well as real
time. What waits goes to nodes that are awake or were woken just now; for the rest others are woken, as few as will do,
each so early that it is ready when its work is due.

A node's methods are used in turn. A wake call that does not get through is followed by the next method at once; one
that does, by the time that the node needs to boot. After a round in vain comes a pause, twice as long each time. After
some rounds the node counts as failed, as with a circuit breaker that has opened: now and then one more round asks
whether it has come back, and being seen closes it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum
from typing import Final

from accsd.planning.cover import Cover, Demand, NodeState, Offers, WakeCalls, fewest, urgency

# Beyond twice what a node took so far: it may have to check its disks this time.
_ALLOWANCE: Final = timedelta(seconds=30)
# A node is called so much earlier than it would have to be by its own measured time: no two boots take the same.
_MARGIN: Final = timedelta(seconds=5)
_MARGIN_SHARE: Final = 0.2
# One that went to sleep just now may be on its way still, and miss the call.
_SETTLING: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class WakePolicy:
    """How persistently a node is called. `boot` is how long a node needs whose own time is not known yet."""

    boot: timedelta = timedelta(minutes=2)
    rounds: int = 3
    rest: timedelta = timedelta(minutes=15)
    longest_rest: timedelta = timedelta(hours=4)

    def patience(self, latency: timedelta | None) -> timedelta:
        """How long after a call the node is expected to be there."""
        return self.boot if latency is None else 2 * latency + _ALLOWANCE


class WakeState(StrEnum):
    CALL = "it may be called"
    COMING = "it was called and is expected"
    PAUSING = "it did not come, and is called again after a pause"
    FAILED = "it did not come for several rounds, and is asked again only now and then"


@dataclass(frozen=True, slots=True)
class NextCall:
    """What is next for a node: a wake call by `method`, or `wait`."""

    state: WakeState
    method: str | None = None
    wait: timedelta = timedelta(0)


_DEFAULT_POLICY: Final = WakePolicy()


def turn(
    methods: Sequence[str], calls: WakeCalls | None, policy: WakePolicy, latency: timedelta | None = None
) -> NextCall:
    """The next wake call of a node that has at least one method."""
    if calls is None:
        return NextCall(WakeState.CALL, methods[0])
    patience = policy.patience(latency)
    if calls.ok is not False and calls.ago < patience:
        return NextCall(WakeState.COMING, wait=patience - calls.ago)
    rounds, nth = divmod(calls.count, len(methods))
    pause = _pause(rounds, patience, policy) if nth == 0 else timedelta(0)
    if calls.ago < pause:
        state = WakeState.PAUSING if rounds < policy.rounds else WakeState.FAILED
        return NextCall(state, wait=pause - calls.ago)
    return NextCall(WakeState.CALL, methods[nth])


def _pause(rounds: int, patience: timedelta, policy: WakePolicy) -> timedelta:
    """From the last call after so many rounds in vain until the first call of the next round."""
    if rounds < policy.rounds:
        return patience * 2 ** (rounds - 1)
    # far before the 30th doubling every rest has met its limit
    return min(policy.longest_rest, policy.rest * 2 ** min(rounds - policy.rounds, 30))


class WhyNot(StrEnum):
    """Why a node is not woken."""

    DRAINED = "it is drained"
    AWAKE = "it is awake"
    NO_MATCH = "nothing that waits could run on it"
    NO_METHOD = "it has no wake_method"
    COMING = "it was called a short while ago and is expected"
    PAUSING = "it did not come when it was called, and is called again after a pause"
    FAILED = "it did not come when it was called, time and again; it is asked again only now and then"
    NOT_NEEDED = "other nodes suffice"
    NOT_YET = "what it is needed for is not due yet"
    STAGGERED = "as many nodes as may start at once are starting"


_WHILE: Final = {
    WakeState.COMING: WhyNot.COMING,
    WakeState.PAUSING: WhyNot.PAUSING,
    WakeState.FAILED: WhyNot.FAILED,
}
_WAITING: Final = frozenset(_WHILE.values())


@dataclass(frozen=True, slots=True)
class Choice:
    """A node to wake, by which method, and the most urgent demand that it will serve."""

    node: str
    method: str
    because: Demand


@dataclass(frozen=True, slots=True)
class WakePlan:
    """`unmet` is what nobody could serve, with the number of tasks; `again_in` when a node may be tried again; `later`
    the nodes whose time has not come: for which demand each is called, and in how long."""

    wake: tuple[Choice, ...] = ()
    reasons: Mapping[str, WhyNot] = field(default_factory=dict[str, WhyNot])
    unmet: tuple[tuple[Demand, int], ...] = ()
    again_in: timedelta | None = None
    later: Mapping[str, tuple[Demand, timedelta]] = field(default_factory=dict[str, tuple[Demand, timedelta]])


def plan(
    demand: Iterable[Demand],
    nodes: Iterable[NodeState],
    *,
    lease: timedelta,
    policy: WakePolicy = _DEFAULT_POLICY,
    at_once: int | None = None,
) -> WakePlan:
    """Which nodes to wake now. The plan does not depend on the order of the arguments. At most `at_once` nodes may be
    starting at a time."""
    fleet = sorted(nodes, key=lambda node: node.name)
    offers = Offers(sorted(demand, key=urgency), fleet)
    turns = {node.name: _turn(node, policy) for node in fleet if node.methods and not node.is_awake(lease)}
    why_not = {node.name: why for node in fleet if (why := _why_not(node, offers, turns, lease))}
    ready = [node for node in fleet if why_not.get(node.name) in (WhyNot.AWAKE, WhyNot.COMING)]
    candidates = sorted((node for node in fleet if node.name not in why_not), key=_reluctance)
    awake = Cover(offers, ready)
    chosen = fewest(awake, candidates)
    cover = awake.with_(chosen)
    first_on = {node.name: cover.first_on(node) for node in chosen}
    left = _left(sorted(chosen, key=lambda node: urgency(first_on[node.name])), first_on, policy, at_once)
    now = sorted(
        (name for name, time in left.items() if time <= timedelta(0)), key=lambda name: _turn_at(first_on[name])
    )
    starting = [its.wait for its in turns.values() if its.state is WakeState.COMING]
    room = len(now) if at_once is None else max(0, at_once - len(starting))
    why_not |= {name: WhyNot.NOT_YET for name, time in left.items() if time > timedelta(0)}
    why_not |= dict.fromkeys(now[room:], WhyNot.STAGGERED)
    why_not |= {node.name: WhyNot.NOT_NEEDED for node in candidates if node.name not in left}
    waits = [turns[name].wait for name, why in why_not.items() if why in _WAITING] + (starting if now[room:] else [])
    return WakePlan(
        wake=tuple(Choice(name, _method(turns[name]), first_on[name]) for name in now[:room]),
        reasons=why_not,
        unmet=cover.unmet(),
        again_in=min([*waits, *(time for time in left.values() if time > timedelta(0))], default=None),
        later={name: (first_on[name], time) for name, time in left.items() if time > timedelta(0)},
    )


def needed_for(name: str, demand: Iterable[Demand], nodes: Iterable[NodeState], *, lease: timedelta) -> Demand | None:
    """The most urgent demand that the other awake nodes could not serve without this node."""
    fleet = sorted(nodes, key=lambda node: node.name)
    others = [node for node in fleet if node.name != name and node.is_awake(lease) and not node.is_drained]
    node = next(node for node in fleet if node.name == name)
    cover = Cover(Offers(sorted(demand, key=urgency), fleet), others)
    served = cover.served
    cover.add(node)
    return cover.first_on(node) if cover.served > served and not node.is_drained else None


def left_for(name: str, demand: Iterable[Demand], nodes: Iterable[NodeState]) -> Demand | None:
    """The most urgent demand that this node could claim at this moment, even if others could too."""
    node = next(node for node in nodes if node.name == name)
    waits = [each for each in sorted(demand, key=urgency) if not each.due_in and node.could_serve(each)]
    return next((each for each in waits if node.free(each.service) and not node.is_drained), None)


def lead(latency: timedelta | None, policy: WakePolicy = _DEFAULT_POLICY) -> timedelta:
    """How long before it is needed a node is called."""
    return policy.boot if latency is None else latency * (1 + _MARGIN_SHARE) + _MARGIN


def _left(
    chosen: Sequence[NodeState], first_on: Mapping[str, Demand], policy: WakePolicy, at_once: int | None
) -> dict[str, timedelta]:
    """How long until each must be called to be ready in time. Where not all of them may start at once, the first ones
    start so early that the last one is in time too."""
    leads = [lead(node.latency, policy) for node in chosen]
    left = [first_on[node.name].due_in - its for node, its in zip(chosen, leads, strict=True)]
    for i in reversed(range(len(chosen) - (at_once or len(chosen)))):
        assert at_once, "without a limit nobody makes way"
        left[i] = min(left[i], left[i + at_once] - leads[i])
    return {node.name: time for node, time in zip(chosen, left, strict=True)}


def _reluctance(node: NodeState) -> tuple[int, bool]:
    """A node that did not wake when it was called stands behind one that was not called yet."""
    fell_asleep_just_now = node.says_asleep and node.unseen_for is not None and node.unseen_for < _SETTLING
    return node.calls.count if node.calls else 0, fell_asleep_just_now


def _turn_at(demand: Demand) -> tuple[object, ...]:
    """Which node is called first where not all may be: work that is due later can still be in time, work that waits
    already cannot."""
    return demand.due_in <= timedelta(0), urgency(demand)


def _turn(node: NodeState, policy: WakePolicy) -> NextCall:
    return turn(node.methods, node.calls, policy, node.latency)


def _why_not(node: NodeState, offers: Offers, turns: Mapping[str, NextCall], lease: timedelta) -> WhyNot | None:
    """Why the node is not woken; None if it may be."""
    if node.is_drained:
        return WhyNot.DRAINED
    if node.is_awake(lease):
        return WhyNot.AWAKE
    if not offers.of[node.name]:
        return WhyNot.NO_MATCH
    if not node.methods:
        return WhyNot.NO_METHOD
    return _WHILE.get(turns[node.name].state)


def _method(turn: NextCall) -> str:
    assert turn.method is not None, "only who may be called is chosen"
    return turn.method
