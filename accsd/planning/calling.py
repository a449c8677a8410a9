"""Calling a node that is to be awake: by which method, how long it is waited for, and when it is left alone.

A node's methods are used in turn. A call that does not get through is followed by the next method at once; one that
does, by the time that the node needs to boot. After a round in vain comes a pause, twice as long each time. After some
rounds the node counts as failed, as with a circuit breaker that has opened: now and then one more round asks whether it
has come back, and being seen closes it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

# Beyond twice what a node took so far: it may have to check its disks this time.
_ALLOWANCE: Final = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class WakeCalls:
    """The calls since the node was last seen. ok is None while the last one is under way, or if its caller died."""

    count: int
    ago: timedelta
    ok: bool | None = None


@dataclass(frozen=True, slots=True)
class WakePolicy:
    """`boot` is for nodes whose own time is not known yet."""

    boot: timedelta = timedelta(minutes=2)
    rounds: int = 3
    rest: timedelta = timedelta(minutes=15)
    longest_rest: timedelta = timedelta(hours=4)

    def patience(self, latency: timedelta | None) -> timedelta:
        """How long a call is given, after which the node was expected to be there."""
        return self.boot if latency is None else 2 * latency + _ALLOWANCE


class WakeState(StrEnum):
    CALL = "it may be called"
    COMING = "it was called and is expected"
    PAUSING = "it did not come, and is called again after a pause"
    FAILED = "it did not come for several rounds, and is asked again only now and then"


@dataclass(frozen=True, slots=True)
class NextCall:
    """What is next: a call by `method`, or `wait`."""

    standing: WakeState
    method: str | None = None
    wait: timedelta = timedelta(0)


def turn(
    methods: Sequence[str], calls: WakeCalls | None, manners: WakePolicy, latency: timedelta | None = None
) -> NextCall:
    """`methods` has at least one."""
    if calls is None:
        return NextCall(WakeState.CALL, methods[0])
    patience = manners.patience(latency)
    if calls.ok is not False and calls.ago < patience:
        return NextCall(WakeState.COMING, wait=patience - calls.ago)
    rounds, nth = divmod(calls.count, len(methods))
    pause = _pause(rounds, patience, manners) if nth == 0 else timedelta(0)
    if calls.ago < pause:
        standing = WakeState.PAUSING if rounds < manners.rounds else WakeState.FAILED
        return NextCall(standing, wait=pause - calls.ago)
    return NextCall(WakeState.CALL, methods[nth])


def _pause(rounds: int, patience: timedelta, manners: WakePolicy) -> timedelta:
    """From the last call of so many rounds in vain until the first of the next."""
    if rounds < manners.rounds:
        return patience * 2 ** (rounds - 1)
    # far before the 30th doubling every rest has met its limit
    return min(manners.longest_rest, manners.rest * 2 ** min(rounds - manners.rounds, 30))
