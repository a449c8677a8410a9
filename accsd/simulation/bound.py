"""The fewest node-hours with which the jobs could have run without waiting, for somebody who knew all of them before.

Where every machine is on, jobs begin the moment they are wanted. N(t) is the fewest machines that hold what runs then,
if jobs could move between machines at any time. Each of these has to boot once and to suspend once, and again after
each gap in which it was not needed, or stays awake in it, whichever is less. Machines without a service in common are
counted apart. Nobody who lets no job wait can do better; somebody who lets jobs wait could, by up to the boots.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from accsd.simulation.machine import SimulatedMachine
from accsd.simulation.trace import Lane, TraceJob
from accsd.simulation.world import Run, World


@dataclass(frozen=True, slots=True)
class Bound:
    """`busy` would remain if booting took no time."""

    busy: float
    hours: float


def lower_bound(always_on: World) -> Bound:
    """From a run in which every machine was on."""
    busy = boots = 0.0
    for services in _apart(always_on.machines.values()):
        machines = [m for m in always_on.machines.values() if not services.isdisjoint(m.kind.services)]
        levels = _levels([run for run in always_on.runs if run.job.service in services], always_on)
        restart = min((m.kind.boot + m.kind.suspend).total_seconds() for m in machines)
        busy += sum(level * (until - since) for since, until, level in levels)
        boots += _restarts(levels, restart)
    return Bound(busy / 3600, (busy + boots) / 3600)


def _apart(machines: Iterable[SimulatedMachine]) -> list[set[str]]:
    """Sets of services of which no machine offers any two of different sets."""
    found: list[set[str]] = []
    for machine in machines:
        joined = set(machine.kind.services)
        for other in [services for services in found if not services.isdisjoint(joined)]:
            found.remove(other)
            joined |= other
        found.append(joined)
    return found


def _levels(runs: Sequence[Run], world: World) -> list[tuple[float, float, int]]:
    """(since, until, N): at each time no fewer than the most demanding service, or lane, needs for itself."""
    changes = sorted(
        [(run.began, 1, run.job) for run in runs] + [(run.began + run.job.duration, -1, run.job) for run in runs],
        key=lambda change: change[:2],
    )
    room = _Room(world)
    running: Counter[Lane] = Counter()
    levels: list[tuple[float, float, int]] = []
    for number, (time, by, job) in enumerate(changes):
        for lane in {job.lane, (job.service, (), None)}:
            running[lane] += by
        until = changes[number + 1][0] if number + 1 < len(changes) else time
        if until > time:
            levels.append((time, until, max(room.machines(lane, count) for lane, count in running.items())))
    return levels


class _Room:
    """How many machines a number of jobs needs: those with the most slots first."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._slots: dict[Lane, list[int]] = {}

    def machines(self, lane: Lane, jobs: int) -> int:
        if lane not in self._slots:
            able = self._world.able(TraceJob(0, lane[0], 0.0, 0.0, requires=dict(lane[1])))
            self._slots[lane] = list(accumulate(sorted((m.kind.services[lane[0]] for m in able), reverse=True)))
        return bisect_left(self._slots[lane], jobs) + 1 if jobs else 0


def _restarts(levels: Sequence[tuple[float, float, int]], restart: float) -> float:
    """The n-th machine is needed whenever the level is n or more."""
    total = 0.0
    left_at: dict[int, float] = {}
    for since, until, level in levels:
        for nth in range(1, level + 1):
            gap = since - left_at.get(nth, float("-inf"))
            total += min(gap, restart)
            left_at[nth] = until
    return total
