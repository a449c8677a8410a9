"""Makes up the jobs of a fleet that has no trace: people who work by day, in bursts, and plan some jobs ahead."""

from collections.abc import Iterator
from itertools import accumulate
from math import log
from random import Random
from typing import Final

from accsd.simulation.fleet import Kind, Workload
from accsd.simulation.trace import TraceJob

_HOUR: Final = 3600.0
_DAY: Final = 24 * _HOUR
_WORKING_HOURS: Final = range(8, 20)
# Those who submit several jobs do so within a few minutes.
_BURST_SPREAD: Final = 120.0
# Plans are for round times, up to half a day ahead.
_ROUND: Final = 300.0
_SOONEST, _LATEST = 0.5 * _HOUR, 12 * _HOUR


def make_jobs(workload: Workload, seed: int) -> list[TraceJob]:
    random = Random(f"workload {seed}")
    made: list[tuple[float, float | None, Kind]] = []
    bursts = _bursts(workload, random)
    while len(made) < workload.jobs:
        made.extend(_of_one_burst(workload, random, next(bursts)))
    made = sorted(made[: workload.jobs], key=lambda job: job[0])
    return [
        TraceJob(number, kind.service, submitted, _duration(kind, random), due, dict(kind.requires))
        for number, (submitted, due, kind) in enumerate(made)
    ]


def _bursts(workload: Workload, random: Random) -> Iterator[float]:
    """When somebody submits: the hour by its rate, and any moment of it."""
    rates = [_rate(workload, hour) for hour in range(24 * workload.days)]
    total = list(accumulate(rates))
    while True:
        yield _HOUR * (random.choices(range(len(rates)), cum_weights=total)[0] + random.random())


def _rate(workload: Workload, hour: int) -> float:
    by_hour = 1.0 if hour % 24 in _WORKING_HOURS else workload.night
    return max(1e-9, by_hour * (workload.weekend if hour // 24 % 7 >= 5 else 1.0))


def _of_one_burst(workload: Workload, random: Random, at: float) -> list[tuple[float, float | None, Kind]]:
    """The jobs of one burst are of one kind, and planned ahead together or not at all."""
    size = 1
    while random.random() > 1 / workload.burst:
        size += 1
    kind = random.choices(workload.kinds, [kind.share for kind in workload.kinds])[0]
    due = _due(random, at) if random.random() < workload.due else None
    return [(_tenths(at + random.uniform(0, _BURST_SPREAD)), due, kind) for _ in range(size)]


def _due(random: Random, at: float) -> float:
    return _ROUND * round((at + random.uniform(_SOONEST, _LATEST)) / _ROUND)


def _duration(kind: Kind, random: Random) -> float:
    """Log-normal: the mean is exp(mu + sigma²/2)."""
    mu = log(max(0.1, kind.duration.total_seconds())) - kind.sigma**2 / 2
    return max(1.0, _tenths(random.lognormvariate(mu, kind.sigma)))


def _tenths(seconds: float) -> float:
    return round(seconds, 1)
