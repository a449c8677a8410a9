"""Virtual time: a heap of events, the machines and the jobs, and what must never happen, checked at each transition.

A policy is told after every moment at which something happened; it starts jobs, calls machines and lets them sleep
through the verbs of this world.
"""

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from random import Random
from typing import Final, Protocol

from accsd.errors import Bug
from accsd.simulation.fleet import Fleet
from accsd.simulation.machine import Power, SimulatedMachine
from accsd.simulation.trace import Lane, ScheduledRun, TraceJob
from accsd.values.labels import has_labels

# Longer than any pause between calls: whoever has not begun by then never will.
_STARVED_AFTER: Final = 60 * 86400.0
_TOLD_EVERY: Final = 500
_PLENTY: Final = 1_000_000


class Policy(Protocol):
    name: str

    def begin(self, world: "World") -> None: ...

    def act(self, world: "World") -> None: ...


@dataclass(slots=True)
class Run:
    """A job that has begun, and where."""

    job: TraceJob
    machine: str
    began: float


@dataclass(slots=True)
class Tally:
    """What is counted on the way."""

    calls: int = 0
    wakes: int = 0
    flaps: int = 0
    skipped: int = 0  # runs of schedules, because an earlier one was open
    left_out: int = 0  # the jobs of those
    boots: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])  # who, called, ready
    levels: list[tuple[float, int, int]] = field(default_factory=list[tuple[float, int, int]])  # time, awake, busy


class World:
    def __init__(
        self,
        fleet: Fleet,
        jobs: Sequence[TraceJob],
        seed: int,
        keys: Mapping[str, int] | None = None,
        *,
        starves: bool = True,
    ) -> None:
        """`keys`: how many jobs of each may run at once; of any other, one. `starves`: a job that has to wait for two
        months is a mistake, and not one behind much that takes long."""
        self.fleet = fleet
        self._starves = starves
        self.keys: Mapping[str, int] = keys or {}
        self.live_by_key: Counter[str] = Counter()
        self.seed = seed
        self.now: float = 0.0
        self.version: int = 0  # of all that a plan could depend on, but the time
        self.machines: dict[str, SimulatedMachine] = {
            name: SimulatedMachine(name, kind, Random(f"{seed} {name}"))
            for kind in fleet.machines
            for name in kind.names()
        }
        self.waiting: dict[Lane, list[tuple[int, TraceJob]]] = {}  # heaps, by the global order
        self.upcoming: list[tuple[float, int, TraceJob]] = []  # submitted, and not due yet
        self.runs: list[Run] = []
        self.tally: Tally = Tally()
        self.could_run: dict[Lane, list[SimulatedMachine]] = {}
        self.shortest_awake: timedelta = timedelta(0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence: int = 0
        self._alarms: set[float] = set()
        self._awake: int = 0
        self._always_awake: int = 0
        self._busy: int = 0
        self._served: set[int] = set()  # jobs that some machine could run
        self._behind: dict[int, list[TraceJob]] = {}  # steps that wait for this one
        self._waits_for: Counter[int] = Counter()  # how many steps it still waits for
        self._begins: dict[ScheduledRun, bool] = {}
        self._of_run: Counter[ScheduledRun] = Counter()
        self._open: Counter[str] = Counter()  # steps of a schedule's runs that have not ended
        self._expected: int = self._expect(jobs)
        self._unfinished: int = self._expected

    def run(self, policy: Policy, tell: Callable[[float], None] = lambda _: None) -> None:
        """`tell` hears now and then which share of the jobs is done."""
        policy.begin(self)
        while self._events and (self._unfinished or self._awake):
            self.now = self._events[0][0]
            while self._events and self._events[0][0] <= self.now:
                heapq.heappop(self._events)[2]()
            policy.act(self)
            self._note_levels()
            if len(self.tally.levels) % _TOLD_EVERY == 0:
                tell(1 - self._unfinished / max(1, self._expected))
        for machine in self.machines.values():
            machine.count(self.now)
        if self._unfinished:
            raise self.broken(f"{self._unfinished} jobs were left, and nothing would ever happen again")

    # What a policy does

    def start(self, job: TraceJob, machine: SimulatedMachine) -> None:
        self.version += 1
        if machine.power is not Power.READY or not machine.has_room(job.service):
            raise self.broken(f"{machine.name} is {machine.power} or full, and was to begin job {job.number}")
        self._begin(job, machine)

    def _begin(self, job: TraceJob, machine: SimulatedMachine) -> None:
        machine.count(self.now)
        if job.key is not None:
            self.live_by_key[job.key] += 1
        self._busy += machine.tasks == 0
        machine.live[job.service] += 1
        machine.tasks += 1
        self.runs.append(Run(job, machine.name, self.now))
        self.at(self.now + job.duration, lambda: self._finish(job, machine))

    def call(self, machine: SimulatedMachine) -> bool:
        """Whether the call got through; a machine that is just falling asleep misses it."""
        self.version += 1
        self.tally.calls += 1
        machine.calls += 1
        machine.called_at = self.now
        machine.call_ok = machine.hears()
        if machine.call_ok and machine.power is Power.ASLEEP:
            self._boot(machine)
        return machine.call_ok

    def suspend(self, machine: SimulatedMachine) -> None:
        self.version += 1
        awake_for = self.now - machine.ready_since
        if machine.power is not Power.READY or machine.tasks:
            raise self.broken(f"{machine.name} is {machine.power} with {machine.tasks} leases, and was to sleep")
        if awake_for < self.shortest_awake.total_seconds() - 1e-3:
            raise self.broken(f"{machine.name} was to sleep after {awake_for:.1f} s, which is flapping")
        machine.count(self.now)
        machine.power = Power.SUSPENDING
        machine.left_at = self.now
        self.at(self.now + machine.kind.suspend.total_seconds(), lambda: self._asleep(machine))

    def at(self, when: float, happens: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._events, (max(when, self.now), self._sequence, happens))

    def alarm(self, when: float) -> None:
        """The policy is asked again then; at once would be for ever."""
        if when <= self.now:
            raise self.broken("nothing has changed, and it is asked again at once")
        if when not in self._alarms:
            self._alarms.add(when)
            self.at(when, lambda: self._alarms.discard(when))

    def all_ready(self) -> None:
        """From the beginning."""
        for machine in self.machines.values():
            machine.power = Power.READY
        self._always_awake = len(self.machines)

    def is_up(self, machine: SimulatedMachine, *, awake_for: float, idle_for: float) -> None:
        """From the beginning, and for so long already."""
        machine.power = Power.READY
        machine.ready_since, machine.idle_since = -awake_for, -idle_for
        if machine.kind.sleeps:
            self._awake += 1
        else:
            self._always_awake += 1

    def is_booting(self, machine: SimulatedMachine, *, called: float, left: float) -> None:
        """From the beginning: it was called so long ago, and takes so much longer."""
        machine.power = Power.BOOTING
        machine.called_at = -called
        self._awake += 1
        self.tally.boots.append((machine.name, -called, left))
        self.at(left, lambda: self._booted(machine))

    def room_of(self, key: str | None) -> int:
        """How many more jobs of a key may begin."""
        return _PLENTY if key is None else self.keys.get(key, 1) - self.live_by_key[key]

    def broken(self, what: str) -> Bug:
        return Bug(f"seed {self.seed}, at {self.now:.1f} s: {what}")

    # What happens

    def _expect(self, jobs: Iterable[TraceJob]) -> int:
        """How many will be done: of those that nobody could run, nobody waits for the end."""
        for job in jobs:
            if job.lane not in self.could_run:
                self.could_run[job.lane] = self.able(job)
                self.waiting[job.lane] = []
            able = job.on is not None or any(not machine.is_dead for machine in self.could_run[job.lane])
            if able and all(number in self._served for number in job.after):
                self._served.add(job.number)
                if job.run is not None:
                    self._of_run[job.run] += 1
            if job.after:
                self._waits_for[job.number] = len(job.after)
                for number in job.after:
                    self._behind.setdefault(number, []).append(job)
            else:
                self.at(job.submitted, lambda job=job: self._submit(job))
        return len(self._served)

    def able(self, job: TraceJob) -> list[SimulatedMachine]:
        return [
            machine
            for machine in self.machines.values()
            if job.service in machine.kind.services and has_labels(machine.kind.labels, job.requires)
        ]

    def _submit(self, job: TraceJob) -> None:
        self.version += 1
        if job.on is not None:
            self._begin(job, self.machines[job.on])
            return
        if self._starves and job.number in self._served:
            self.at(job.wanted_at + _STARVED_AFTER, lambda: self._must_have_begun(job))
        if job.wanted_at > self.now:
            insort(self.upcoming, (job.wanted_at, job.number, job))
            self.at(job.wanted_at, self._become_due)
            self.at(job.wanted_at - self.fleet.policy.ahead.total_seconds(), self._come_near)
        else:
            self._wait(job)

    def _wait(self, job: TraceJob) -> None:
        if job.run is None or self._does_begin(job.run):
            heapq.heappush(self.waiting[job.lane], (job.number, job))

    def _does_begin(self, run: ScheduledRun) -> bool:
        """Decided once for all steps of the run, when it is due."""
        if run not in self._begins:
            self._begins[run] = run.overlaps or not self._open[run.schedule]
            if self._begins[run]:
                self._open[run.schedule] += self._of_run[run]
            else:
                self.tally.skipped += 1
                self.tally.left_out += self._of_run[run]
                self._unfinished -= self._of_run[run]
        return self._begins[run]

    def _come_near(self) -> None:
        self.version += 1

    def _become_due(self) -> None:
        self.version += 1
        while self.upcoming and self.upcoming[0][0] <= self.now:
            _, _, job = self.upcoming.pop(0)
            self._wait(job)

    def _finish(self, job: TraceJob, machine: SimulatedMachine) -> None:
        self.version += 1
        machine.count(self.now)
        machine.live[job.service] -= 1
        machine.tasks -= 1
        self._unfinished -= 1
        if job.key is not None:
            self.live_by_key[job.key] -= 1
        if job.run is not None:
            self._open[job.run.schedule] -= 1
        for behind in self._behind.get(job.number, ()):
            self._waits_for[behind.number] -= 1
            if not self._waits_for[behind.number]:
                due = self.now + behind.delay if behind.delay else behind.due
                self._submit(replace(behind, submitted=self.now, due=due))
        if not machine.tasks:
            self._busy -= 1
            machine.idle_since = self.now

    def _boot(self, machine: SimulatedMachine) -> None:
        seconds = machine.boot_seconds()
        if seconds is None:
            return
        if machine.left_at is not None and self.now - machine.left_at < self.fleet.policy.awake.total_seconds():
            self.tally.flaps += 1
        machine.count(self.now)
        machine.power = Power.BOOTING
        self._awake += 1
        self.tally.boots.append((machine.name, self.now, self.now + seconds))
        self.at(self.now + seconds, lambda: self._booted(machine))

    def _booted(self, machine: SimulatedMachine) -> None:
        self.version += 1
        machine.count(self.now)
        machine.power = Power.READY
        machine.ready_since = machine.idle_since = self.now
        machine.measured(self.now - machine.called_at)
        machine.calls = 0
        self.tally.wakes += 1
        if not machine.kind.sleeps:
            self._awake -= 1
            self._always_awake += 1

    def _asleep(self, machine: SimulatedMachine) -> None:
        self.version += 1
        machine.count(self.now)
        machine.power = Power.ASLEEP
        self._awake -= 1

    def _must_have_begun(self, job: TraceJob) -> None:
        if (job.number, job) in self.waiting[job.lane]:
            raise self.broken(f"job {job.number} starved")

    def _note_levels(self) -> None:
        self.tally.levels.append((self.now, self._awake + self._always_awake, self._busy))
