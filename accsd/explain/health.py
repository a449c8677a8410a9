"""What of the installation a person should see to, in sentences: for /health, `accsd top` and `accsd doctor`."""

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from accsd.db.views.health import BuilderView
from accsd.explain.words import duration
from accsd.health import SchedulerHealth

_SEEN_LATELY: Final = timedelta(minutes=1)


def overdue(health: SchedulerHealth) -> Iterator[str]:
    """Due times that nobody settles (a hold explains them), and schedules that nobody plans."""
    if health.overdue and health.hold is None:
        times = "1 due time of a schedule is" if health.overdue == 1 else f"{health.overdue} due times of schedules are"
        yield f"{times} not settled, {_longest(health.overdue_seconds)}"
    if health.unplanned:
        wait = "1 schedule waits" if health.unplanned == 1 else f"{health.unplanned} schedules wait"
        yield f"{wait} for a plan, {_longest(health.unplanned_seconds)}"


def no_builder(health: SchedulerHealth, builders: Sequence[BuilderView]) -> Iterator[str]:
    if not health.poller_running:
        seen = f", the last one was seen {duration(builders[0].unseen_for)} ago" if builders else ""
        yield f"no builder is running{seen}: start one with `accsd --role builder`"


def troubles(health: SchedulerHealth, builders: Sequence[BuilderView]) -> Iterator[str]:
    """What of schedules is not as it should be, and what the builders say that keeps them from their work."""
    if health.hold is not None:
        yield f"all schedules are held: {health.hold} (accsd schedules hold --lift)"
    yield from overdue(health)
    for builder in builders:
        if builder.unseen_for < _SEEN_LATELY:
            yield from (f"{builder.name}: {said}" for said in builder.obstacles.values() if not _is_hold(said, health))


def _is_hold(said: str, health: SchedulerHealth) -> bool:
    """Several roles of each builder say so, and it is said already."""
    return health.hold is not None and said.endswith(health.hold)


def _longest(seconds: float | None) -> str:
    return f"the first for {duration(timedelta(seconds=seconds or 0))}"
