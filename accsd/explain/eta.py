"""When a job will probably begin and end: facts in, two moments out, and how much they are worth.

A moment is given only where the steps that decide it were seen often enough and vary little; else only how long it
usually takes, from to. Nothing that was never seen is guessed. A job that takes longer than usual ends "now" at the
earliest, and never in the past.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from accsd.db.statistics import StepStats
from accsd.explain.segments import Story, in_order
from accsd.explain.words import duration

_ENOUGH: Final = 5  # runs of a step
_STEADY: Final = 4.0  # p95 is less than so many times p50
_NOTHING: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class Queue:
    """What stands before a task that could be claimed: `wake_left` until the best machine for it is there (None: one
    is), `ahead` tasks of the same lane, and the `slots` of the machines that are there or come (0: none does)."""

    due_at: datetime | None = None
    wake_left: timedelta | None = None
    ahead: int = 0
    slots: int = 0


@dataclass(frozen=True, slots=True)
class Eta:
    """`expected_start` of what waits first, `expected_end` of the job: only where they are worth something. `usually`
    is how long such a job takes, from the middle to the slow ones; `n` is the fewest runs that this is known by."""

    expected_start: datetime | None
    expected_end: datetime | None
    usually: tuple[timedelta, timedelta] | None
    n: int
    is_overdue: bool = False  # it takes longer than usual already

    def document(self) -> dict[str, Any]:
        low, high = self.usually or (None, None)
        return {
            "expected_start": self.expected_start,
            "expected_end": self.expected_end,
            "usual_seconds": None if low is None else low.total_seconds(),
            "slow_seconds": None if high is None else high.total_seconds(),
            "n": self.n,
            "is_overdue": self.is_overdue,
        }


def is_worth_saying(usual: StepStats) -> bool:
    return usual.n >= _ENOUGH and usual.p50 > 0 and usual.p95 / usual.p50 < _STEADY


def expected_start(now: datetime, queue: Queue, usual: StepStats | None) -> datetime | None:
    """The longest of: its due time, the rest of the usual wake time, and the tasks before it. None: it is not known how
    long those take, or nobody works on them."""
    if queue.slots <= 0:
        return None
    waits = [now, queue.due_at or now, now + max(queue.wake_left or _NOTHING, _NOTHING)]
    if queue.ahead:
        if usual is None or not is_worth_saying(usual):
            return None
        waits.append(now + timedelta(seconds=queue.ahead / queue.slots * usual.p50))
    return max(waits)


def job_eta(now: datetime, tasks: Sequence[Story], usual: Mapping[str, StepStats], queues: Mapping[UUID, Queue]) -> Eta:
    """`usual` by the key of the step. Tasks that have ended are the past."""
    ordered = in_order(tasks)
    known = {task.id: usual.get(step_of(task.task_key)) for task in ordered}
    open_tasks = [task for task in ordered if task.ended_at is None]
    not_ended = {task.id for task in open_tasks}
    starts = {
        task.id: expected_start(now, queues[task.id], known[task.id]) if task.id in queues else None
        for task in open_tasks
        if not _runs(task) and not_ended.isdisjoint(task.depends_on)
    }
    first = min((start for start in starts.values() if start is not None), default=None)
    if not open_tasks or any(known[task.id] is None for task in open_tasks):
        return Eta(first, None, None, 0)
    ends, decides = _ends(now, open_tasks, known, starts)
    path = _path(open_tasks, ends, decides)
    end = max((end for end in ends.values() if end is not None), default=None)
    running = [task for task in path if _runs(task)]
    is_worth = all(is_worth_saying(stats) for task in path if (stats := known[task.id]) is not None)
    whole = [stats for stats in known.values() if stats is not None]
    return Eta(
        first,
        end if is_worth and None not in ends.values() else None,
        _usually(ordered, known) if len(whole) == len(ordered) else None,
        min(stats.n for task in path if (stats := known[task.id]) is not None) if path else 0,
        is_overdue=any(_ran(task, now) > timedelta(seconds=_stats(known, task).p95) for task in running),
    )


def step_of(task_key: str) -> str:
    """The step of a task: `encode[3]` is one of `encode`."""
    return task_key.partition("[")[0]


def _runs(task: Story) -> bool:
    return bool(task.attempts) and task.attempts[-1].ended_at is None


def _ran(task: Story, now: datetime) -> timedelta:
    began = task.attempts[-1].started_at
    return _NOTHING if began is None else now - began


def _stats(known: Mapping[UUID, StepStats | None], task: Story) -> StepStats:
    found = known[task.id]
    assert found is not None, "what is not known is left out before"
    return found


def _ends(
    now: datetime,
    tasks: Sequence[Story],
    known: Mapping[UUID, StepStats | None],
    starts: Mapping[UUID, datetime | None],
) -> tuple[dict[UUID, datetime | None], dict[UUID, UUID | None]]:
    """When each ends that has not, and which of those before it decides that; None where something before it is not
    known."""
    ends: dict[UUID, datetime | None] = {}
    decides: dict[UUID, UUID | None] = {}
    for task in tasks:
        before = [(each, ends[each]) for each in task.depends_on if each in ends]
        own = starts.get(task.id, now)
        if own is None or any(end is None for _, end in before):
            ends[task.id] = decides[task.id] = None
            continue
        last = max(((end, each) for each, end in before if end is not None), default=None)
        begins = max(own, last[0]) if last else own
        left = timedelta(seconds=_stats(known, task).p50) - (_ran(task, now) if _runs(task) else _NOTHING)
        ends[task.id] = begins + max(left, _NOTHING)
        decides[task.id] = last[1] if last and last[0] >= own else None
    return ends, decides


def _path(
    tasks: Sequence[Story], ends: Mapping[UUID, datetime | None], decides: Mapping[UUID, UUID | None]
) -> list[Story]:
    by_id = {task.id: task for task in tasks}
    last = max(((end, task) for task, end in ends.items() if end is not None), default=None)
    path: list[Story] = []
    at = last[1] if last else None
    while at is not None:
        path.append(by_id[at])
        at = decides[at]
    return path


def _usually(tasks: Sequence[Story], known: Mapping[UUID, StepStats | None]) -> tuple[timedelta, timedelta]:
    """How long the longest chain of all steps takes, usually and when they are slow."""
    usual = _longest(tasks, {task.id: _stats(known, task).p50 for task in tasks})
    return usual, _longest(tasks, {task.id: _stats(known, task).p95 for task in tasks})


def _longest(tasks: Sequence[Story], seconds: Mapping[UUID, float]) -> timedelta:
    ends: dict[UUID, float] = {}
    for task in tasks:
        before = max((ends[each] for each in task.depends_on if each in ends), default=0.0)
        ends[task.id] = before + seconds[task.id]
    return timedelta(seconds=max(ends.values(), default=0.0))


def eta_words(eta: Eta, now: datetime) -> str | None:
    """`≈ 14:20 (usually 12m0s)`, `usually 8m0s to 40m0s`; None: nothing is known. Times are local ones."""
    usually = None
    if eta.usually is not None:
        low, high = (duration(length) for length in eta.usually)
        usually = f"usually {low}" if eta.expected_end is not None or low == high else f"usually {low} to {high}"
    if eta.is_overdue:
        return f"longer than usual already ({usually})" if usually else "longer than usual already"
    if eta.expected_end is not None:
        return f"≈ {_clock(eta.expected_end, now)}" + (f" ({usually})" if usually else "")
    return usually


def _clock(moment: datetime, now: datetime) -> str:
    local = moment.astimezone()
    return f"{local:%H:%M}" if moment - now < timedelta(hours=20) else f"{local:%a %d %b %H:%M}"
