"""Who claims, who is called and who sleeps: accsd as its roles do it, and a fleet that is always on."""

import heapq
from collections.abc import Callable
from datetime import timedelta
from math import inf
from typing import Any, Final
from uuid import UUID

from accsd.planning.cover import Demand, NodeState, WakeCalls
from accsd.planning.sleep import IdleTime, SleepRules, looks_ahead, reason_to_stay, yields_for
from accsd.planning.wake import WakePolicy, lead, needed_for, plan
from accsd.simulation.machine import Power, SimulatedMachine
from accsd.simulation.trace import TraceJob
from accsd.simulation.world import World

# The daemon's lease and poll; a call that did not get through is known after a moment.
_LEASE: Final = timedelta(seconds=120)
_POLL_SEC: Final = 10.0
_CALL_SEC: Final = 1.0
# timedelta counts in microseconds: an alarm must not ring a rounding too early
_HAIR: Final = 1e-3


class AlwaysOn:
    """The yardstick: every machine is ready all the time."""

    name: str = "always-on"

    def begin(self, world: World) -> None:
        world.all_ready()

    def act(self, world: World) -> None:
        claim(world, lambda machine: (0.0, machine.name))


class Accsd:
    """The wake pass of the builder and the sleep pass of each node, on the real planning code."""

    name: str = "accsd"

    def __init__(self) -> None:
        self._looks_at: dict[str, float] = {}  # when an idle machine thinks about sleep again
        self._states: dict[str, tuple[object, NodeState]] = {}
        self._planned: int = -1  # the version of the world at the last plan
        self._plans_at: float = 0.0

    def begin(self, world: World) -> None:
        world.shortest_awake = world.fleet.policy.awake
        self._rules: SleepRules = world.fleet.policy.rules()
        self._policy: WakePolicy = world.fleet.policy.wake_policy()

    def act(self, world: World) -> None:
        self._claim(world)
        demand = demand_of(world)
        # Before its time, and of nothing new, a plan would be the same again.
        if demand and (world.version != self._planned or world.now >= self._plans_at):
            self._wake(world, demand)
        self._sleep(world, demand)

    def _claim(self, world: World) -> None:
        def order(machine: SimulatedMachine) -> tuple[timedelta, str]:
            return yields_for(_restfulness(machine, world.now), self._rules), machine.name

        claim(world, order)

    def _wake(self, world: World, demand: list[Demand]) -> None:
        states = [self._state(machine, world.now) for machine in world.machines.values()]
        made = plan(demand, states, lease=_LEASE, policy=self._policy, at_once=world.fleet.policy.at_once)
        heard = [world.call(world.machines[choice.node]) for choice in made.wake]
        wait = _POLL_SEC if heard else None if made.again_in is None else made.again_in.total_seconds() + _HAIR
        self._planned = world.version
        self._plans_at = inf
        if wait is not None:
            self._plans_at = world.now + (wait if all(heard) else _CALL_SEC)
            world.alarm(self._plans_at)

    def _sleep(self, world: World, demand: list[Demand]) -> None:
        for machine in world.machines.values():
            if machine.power is Power.READY and not machine.tasks and machine.kind.sleeps:
                if self._looks_at.get(machine.name, 0.0) <= world.now:
                    self._think_of_sleep(world, machine, demand)
            else:
                self._looks_at.pop(machine.name, None)

    def _think_of_sleep(self, world: World, machine: SimulatedMachine, demand: list[Demand]) -> None:
        rest = _restfulness(machine, world.now)
        again = self._looks_at[machine.name] = world.now + _POLL_SEC
        if stay := reason_to_stay(rest, self._rules):
            assert stay.again_in is not None, "an idle machine stays for a time"
            again = self._looks_at[machine.name] = world.now + stay.again_in.total_seconds() + _HAIR
        elif not self._is_needed(
            world, machine, demand, looks_ahead(rest, self._rules, lead(rest.latency, self._policy))
        ):
            world.suspend(machine)
            return
        world.alarm(again)

    def _is_needed(self, world: World, machine: SimulatedMachine, demand: list[Demand], within: timedelta) -> bool:
        near = [wanted for wanted in demand if wanted.due_in <= within]
        if not near:
            return False
        states = [self._state(other, world.now) for other in world.machines.values()]
        return needed_for(machine.name, near, states, lease=_LEASE) is not None

    def _state(self, machine: SimulatedMachine, now: float) -> NodeState:
        """What the database would say. Made anew only where something in it can have changed."""
        is_up = machine.power is Power.READY
        unseen = None if is_up or machine.left_at is None else now - machine.left_at
        settled = is_up or unseen is None or unseen > 3600
        key = (is_up, machine.tasks, machine.latency, machine.calls, now if machine.calls or not settled else None)
        known = self._states.get(machine.name)
        if known is None or known[0] != key:
            known = self._states[machine.name] = key, _state(machine, now, unseen, is_up=is_up)
        return known[1]


def claim(world: World, order: Callable[[SimulatedMachine], tuple[Any, ...]]) -> None:
    """Each free slot takes the first job of the global order that fits; of several machines, the first by `order`."""
    lanes = [lane for lane, jobs in world.waiting.items() if jobs]
    while lanes:
        lane = min(lanes, key=lambda lane: world.waiting[lane][0][0])
        free = [m for m in world.could_run[lane] if m.power is Power.READY and m.has_room(lane[0])]
        if not free or not world.room_of(lane[2]):
            lanes.remove(lane)
            continue
        _, job = heapq.heappop(world.waiting[lane])
        world.start(job, min(free, key=order))
        if not world.waiting[lane]:
            lanes.remove(lane)


def demand_of(world: World) -> list[Demand]:
    """What waits, and what is due soon, by the kind of machine and the time."""
    found = [
        _wanted(jobs[0][1], tasks, 0.0)
        for lane, jobs in world.waiting.items()
        if (tasks := min(len(jobs), world.room_of(lane[2])))
    ]
    soon = world.now + world.fleet.policy.ahead.total_seconds()
    near: dict[tuple[object, float], list[TraceJob]] = {}
    for due, _, job in world.upcoming:
        if due > soon:
            break
        near.setdefault((job.lane, due), []).append(job)
    return found + [_wanted(jobs[0], len(jobs), due - world.now) for (_, due), jobs in near.items()]


def _wanted(job: TraceJob, tasks: int, due_in: float) -> Demand:
    """What a schedule will start has no job yet."""
    ahead = due_in > 0 and job.run is not None
    return Demand(
        job.service,
        tasks,
        None if ahead else UUID(int=job.number),
        job.requires,
        due_in=timedelta(seconds=due_in),
        schedule=job.run.schedule if job.run is not None and ahead else None,
    )


def _restfulness(machine: SimulatedMachine, now: float) -> IdleTime:
    return IdleTime(
        idle_for=None if machine.tasks else timedelta(seconds=now - machine.idle_since),
        awake_for=timedelta(seconds=now - machine.ready_since),
        latency=None if machine.latency is None else timedelta(seconds=machine.latency),
    )


def _state(machine: SimulatedMachine, now: float, unseen: float | None, *, is_up: bool) -> NodeState:
    calls = (
        WakeCalls(machine.calls, timedelta(seconds=now - machine.called_at), machine.call_ok) if machine.calls else None
    )
    return NodeState(
        machine.name,
        machine.kind.labels,
        machine.kind.services,
        dict(machine.live),
        says_asleep=not is_up,
        unseen_for=timedelta(0) if is_up else None if unseen is None else timedelta(seconds=unseen),
        methods=tuple(machine.kind.methods),
        latency=None if machine.latency is None else timedelta(seconds=machine.latency),
        calls=calls,
    )
