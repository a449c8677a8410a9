"""One rehearsal: the same jobs on the same fleet under each policy."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from accsd.simulation.bound import lower_bound
from accsd.simulation.fleet import Fleet, Machines
from accsd.simulation.policies import Accsd, AlwaysOn
from accsd.simulation.report import Report, report
from accsd.simulation.slurm import SlurmPolicy
from accsd.simulation.trace import Lane, TraceJob
from accsd.simulation.world import Policy, World
from accsd.values.labels import has_labels

POLICIES: Final[Mapping[str, Callable[[], Policy]]] = {
    "accsd": Accsd,
    "slurm": SlurmPolicy,
    "always-on": AlwaysOn,
}


Progress = Callable[[str], None]


def rehearse(
    fleet: Fleet, jobs: Sequence[TraceJob], policies: Sequence[str], seed: int, tell: Progress = lambda _: None
) -> list[Report]:
    """`tell` hears how far it is, now and then."""
    always_on = _run(fleet, jobs, AlwaysOn(), seed, tell)
    bound = lower_bound(always_on)
    worlds = {
        name: always_on if name == AlwaysOn.name else _run(fleet, jobs, POLICIES[name](), seed, tell)
        for name in policies
    }
    return [report(name, world, bound, len(jobs)) for name, world in worlds.items()]


def wanted_by_none(fleet: Fleet, jobs: Iterable[TraceJob]) -> dict[str, int]:
    """How many jobs no machine of the fleet could run, by what they want."""
    counts = Counter(job.lane for job in jobs)
    return {
        _words(lane): count for lane, count in counts.items() if not any(_fits(kind, lane) for kind in fleet.machines)
    }


def _fits(kind: Machines, lane: Lane) -> bool:
    return lane[0] in kind.services and has_labels(kind.labels, dict(lane[1]))


def _words(lane: Lane) -> str:
    service, labels, _ = lane
    named = ", ".join(f"{name}={value}" for name, value in labels)
    return f"{service} with {named}" if named else service


def _run(fleet: Fleet, jobs: Sequence[TraceJob], policy: Policy, seed: int, tell: Progress = lambda _: None) -> World:
    world = World(fleet, jobs, seed)
    world.run(policy, lambda share: tell(f"seed {seed}, {policy.name}: {share:.0%} of the jobs"))
    return world
