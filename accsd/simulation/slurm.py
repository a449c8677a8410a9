"""Slurm's power saving, to compare with: a job is bound to a node when it is to start, and a node that sleeps is
resumed for it then; a node that was idle for SuspendTime is suspended.

What is better here than there: nodes that are up are always preferred, and every decision is made at once.
"""

import heapq
from typing import Final

from accsd.simulation.machine import Power, SimulatedMachine
from accsd.simulation.trace import TraceJob
from accsd.simulation.world import World

_MINUTE: Final = 60.0
_HAIR: Final = 1e-3


class _Rate:
    """So many in a minute."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._times: list[float] = []

    def allows(self, now: float) -> bool:
        self._times = [time for time in self._times if time > now - _MINUTE]
        return len(self._times) < self._most

    def take(self, now: float) -> None:
        self._times.append(now)


class SlurmPolicy:
    name: str = "slurm"

    def __init__(self) -> None:
        self._bound: dict[str, list[TraceJob]] = {}  # to nodes that are being resumed
        self._gives_up_at: dict[str, float] = {}
        self._down_until: dict[str, float] = {}

    def begin(self, world: World) -> None:
        self._resumes: _Rate = _Rate(world.fleet.slurm.resume_rate)
        self._suspends: _Rate = _Rate(world.fleet.slurm.suspend_rate)

    def act(self, world: World) -> None:
        self._begin_bound(world)
        self._give_up(world)
        self._allocate(world)
        self._suspend_idle(world)

    def _begin_bound(self, world: World) -> None:
        for name in [name for name in self._bound if world.machines[name].power is Power.READY]:
            del self._gives_up_at[name]
            for job in self._bound.pop(name):
                world.start(job, world.machines[name])

    def _give_up(self, world: World) -> None:
        """ResumeTimeout: the node is down, and its jobs are queued again."""
        for name in [name for name, at in self._gives_up_at.items() if at <= world.now]:
            del self._gives_up_at[name]
            self._down_until[name] = world.now + world.fleet.slurm.down.total_seconds()
            world.at(self._down_until[name] + _HAIR, lambda: None)
            for job in self._bound.pop(name):
                heapq.heappush(world.waiting[job.lane], (job.number, job))

    def _allocate(self, world: World) -> None:
        lanes = [lane for lane, jobs in world.waiting.items() if jobs]
        while lanes:
            lane = min(lanes, key=lambda lane: world.waiting[lane][0][0])
            node = self._node_for(world, lane[0], world.could_run[lane])
            if node is None:
                lanes.remove(lane)
                continue
            self._give(world, heapq.heappop(world.waiting[lane])[1], node)
            if not world.waiting[lane]:
                lanes.remove(lane)

    def _node_for(self, world: World, service: str, able: list[SimulatedMachine]) -> SimulatedMachine | None:
        """The first by name: of those that are up, then of those that come up, then of those that sleep."""
        usable = [machine for machine in able if self._down_until.get(machine.name, 0.0) <= world.now]
        up = [machine for machine in usable if machine.power is Power.READY and machine.has_room(service)]
        coming = [machine for machine in usable if machine.name in self._bound and self._has_room(machine, service)]
        asleep = [m for m in usable if m.power is Power.ASLEEP and m.name not in self._bound]
        if asleep and not self._resumes.allows(world.now):
            world.alarm(world.now + 1.0)
            asleep = []
        return next((min(some, key=lambda machine: machine.name) for some in (up, coming, asleep) if some), None)

    def _has_room(self, machine: SimulatedMachine, service: str) -> bool:
        bound = sum(job.service == service for job in self._bound[machine.name])
        return bound < machine.kind.services.get(service, 0)

    def _give(self, world: World, job: TraceJob, machine: SimulatedMachine) -> None:
        if machine.power is Power.READY:
            world.start(job, machine)
            return
        if machine.name not in self._bound:
            world.call(machine)
            self._resumes.take(world.now)
            self._gives_up_at[machine.name] = world.now + world.fleet.slurm.resume_timeout.total_seconds()
            world.at(self._gives_up_at[machine.name], lambda: None)
        self._bound.setdefault(machine.name, []).append(job)

    def _suspend_idle(self, world: World) -> None:
        limit = world.fleet.slurm.suspend_time.total_seconds()
        for machine in world.machines.values():
            if machine.power is Power.READY and not machine.tasks:
                if world.now < machine.idle_since + limit:
                    world.alarm(machine.idle_since + limit)
                elif self._suspends.allows(world.now):
                    self._suspends.take(world.now)
                    world.suspend(machine)
                else:
                    world.alarm(world.now + 1.0)
