"""One run in figures, and several side by side."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from accsd.simulation.bound import Bound
from accsd.simulation.world import Run, World

# Later than this is late: a claim takes a moment in life.
_PUNCTUAL_SEC: Final = 1.0


@dataclass(frozen=True, slots=True)
class Report:
    """Hours are node-hours awake, boots and suspends included; waits are seconds from when a job was wanted.
    `skipped` are runs of schedules whose last run was still open."""

    policy: str
    seed: int
    jobs: int
    unserved: int
    skipped: int
    hours: float
    bound: float
    ratio: float
    kwh: float
    wait_p50: float
    wait_p95: float
    wait_max: float
    due: int
    late: int
    late_by_a_boot: int
    latest: float
    calls: int
    wakes: int
    wake_failures: int
    flaps: int
    levels: tuple[tuple[float, int, int], ...] = field(default=(), repr=False)

    def figures(self) -> dict[str, Any]:
        found = {name: value for name, value in asdict(self).items() if name != "levels"}
        return {name: round(value, 3) if isinstance(value, float) else value for name, value in found.items()}


def report(policy: str, world: World, bound: Bound, jobs: int) -> Report:
    waits = sorted(run.began - run.job.wanted_at for run in world.runs)
    lateness = [(_lateness(run), run) for run in world.runs if run.job.due is not None]
    hours = sum(machine.hours_awake() for machine in world.machines.values())
    return Report(
        policy=policy,
        seed=world.seed,
        jobs=jobs,
        unserved=jobs - len(world.runs) - world.tally.left_out,
        skipped=world.tally.skipped,
        hours=hours,
        bound=bound.hours,
        ratio=hours / bound.hours if bound.hours else 0.0,
        kwh=sum(machine.kilowatt_hours() for machine in world.machines.values()),
        wait_p50=_quantile(waits, 0.5),
        wait_p95=_quantile(waits, 0.95),
        wait_max=waits[-1] if waits else 0.0,
        due=len(lateness),
        late=sum(late > _PUNCTUAL_SEC for late, _ in lateness),
        late_by_a_boot=sum(late > _longest_boot(world, run) for late, run in lateness),
        latest=max((late for late, _ in lateness), default=0.0),
        calls=world.tally.calls,
        wakes=world.tally.wakes,
        wake_failures=world.tally.calls - world.tally.wakes,
        flaps=world.tally.flaps,
        levels=tuple(world.tally.levels),
    )


def _lateness(run: Run) -> float:
    return run.began - run.job.wanted_at


def _longest_boot(world: World, run: Run) -> float:
    """Of a machine such as the one that it ran on; three jitters are more than all but one boot of a thousand takes."""
    kind = world.machines[run.machine].kind
    return (kind.boot + 3 * kind.jitter).total_seconds() + _PUNCTUAL_SEC


def _quantile(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def mean(reports: Sequence[Report]) -> dict[str, float]:
    """Of each figure."""
    figures = [report.figures() for report in reports]
    numbers = [name for name, value in figures[0].items() if not isinstance(value, str)]
    return {name: sum(each[name] for each in figures) / len(figures) for name in numbers}
