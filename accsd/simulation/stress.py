"""Small random fleets with failing and slow machines: what must never happen is looked for in many of them.

The world checks itself at each transition; a run that ends has starved nobody, never flapped and never slept at work.
"""

from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Final

from accsd.simulation.fleet import Fleet, FleetPolicy, Label, Machines
from accsd.simulation.policies import Accsd
from accsd.simulation.trace import TraceJob
from accsd.simulation.world import World

_SERVICES: Final = ("render", "audio")
_SPAN_SEC: Final = 2 * 3600.0


@dataclass(frozen=True, slots=True)
class StressOutcome:
    """`unserved` jobs are those that only machines which are broken for good could have run."""

    jobs: int
    unserved: int
    calls: int
    wakes: int


def stress(seed: int) -> StressOutcome:
    """Raises Bug, with the seed and the time, if anything happens that must not."""
    random = Random(f"stress {seed}")
    fleet = _fleet(random)
    jobs = _jobs(random)
    world = World(fleet, jobs, seed)
    world.run(Accsd())
    return StressOutcome(len(jobs), len(jobs) - len(world.runs), world.tally.calls, world.tally.wakes)


def _fleet(random: Random) -> Fleet:
    machines = [_machine(random, number) for number in range(random.randint(3, 6))]
    policy = FleetPolicy(
        idle=_duration(random, 0, 300),
        awake=_duration(random, 0, 300),
        at_once=random.randint(1, 3),
        rounds=random.randint(1, 3),
        boot=_duration(random, 30, 180),
    )
    return Fleet(machines=machines, policy=policy)


def _machine(random: Random, number: int) -> Machines:
    services = random.sample(_SERVICES, random.randint(1, 2))
    return Machines(
        name=f"m{number}",
        services={service: random.randint(1, 3) for service in services},
        labels={"gpu": True} if random.random() < 0.4 else {},
        boot=_duration(random, 5, 150),
        jitter=_duration(random, 0, 20),
        suspend=_duration(random, 1, 20),
        methods=["wol", "script"][: random.randint(1, 2)],
        call_fails=random.uniform(0, 0.4),
        never_boots=random.uniform(0, 0.3),
        slow=random.uniform(0, 0.3),
        slow_factor=random.uniform(2, 8),
        dead=random.choice([0.0, 0.0, 0.3]),
    )


def _jobs(random: Random) -> list[TraceJob]:
    times = sorted(round(random.uniform(0, _SPAN_SEC), 1) for _ in range(random.randint(8, 15)))
    return [_job(random, number, submitted) for number, submitted in enumerate(times)]


def _job(random: Random, number: int, submitted: float) -> TraceJob:
    requires: dict[str, Label] = {"gpu": True} if random.random() < 0.2 else {}
    due = submitted + random.uniform(1, 3600) if random.random() < 0.3 else None
    return TraceJob(number, random.choice(_SERVICES), submitted, random.uniform(1, 1200), due, requires)


def _duration(random: Random, least: int, most: int) -> timedelta:
    return timedelta(seconds=random.randint(least, most))
