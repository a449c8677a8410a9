"""A job's explain bar and its expected end, from the database: reads the facts, bounded, and lets segments.py and
eta.py say what they mean."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar
from uuid import UUID

import anyio.to_thread

from accsd.db.pool import Database
from accsd.db.power import PowerChange, power_changes
from accsd.db.statistics import step_stats
from accsd.db.views import stories as reading
from accsd.db.views.stories import FittingNode, JobFacts, Move, PauseRow, QueuePlace, TaskFacts
from accsd.errors import AccsdError
from accsd.explain.eta import Eta, Queue, job_eta
from accsd.explain.segments import (
    Attempt,
    Facts,
    JobStory,
    Kind,
    PauseSpan,
    PowerSpan,
    Segment,
    Span,
    Story,
    Subject,
    SubjectType,
    critical_path,
    job_bar,
    segments,
    sums,
)
from accsd.model.state import JobStatus, TaskStatus
from accsd.values.times import FarTime
from accsd.values.units import parse_duration

_T = TypeVar("_T")
_MOST_POWER: Final = 20_000
_MOST_SHOWN: Final = 1000  # tasks with their own pieces
_FEW_TASKS: Final = 200
_SILENT: Final = timedelta(minutes=2)
_SHORT: Final = timedelta(seconds=1)
_STARTING, _RUNNING = TaskStatus.STARTING.value, TaskStatus.RUNNING.value  # as plain texts are quicker compared
_OPEN: Final = frozenset({TaskStatus.QUEUED, TaskStatus.STARTING, TaskStatus.RUNNING})


@dataclass(frozen=True, slots=True)
class Explanation:
    """`bar` is the critical path, `total` the sum over all `task_count` tasks, `tasks` the pieces of each of the first
    1,000 by its key. `complete`: no fact was left out because there were too many."""

    bar: Sequence[Segment]
    path: Sequence[str]
    total: Mapping[Kind, timedelta]
    tasks: Mapping[str, Sequence[Segment]]
    task_count: int
    eta: Eta | None
    now: datetime
    complete: bool

    def document(self) -> dict[str, Any]:
        return {
            "segments": [each.document() for each in self.bar],
            "critical_path": list(self.path),
            "sum": [{"kind": kind, "seconds": length.total_seconds()} for kind, length in self.total.items()],
            "tasks": {key: [each.document() for each in pieces] for key, pieces in self.tasks.items()},
            "eta": None if self.eta is None else self.eta.document(),
            "as_of": self.now,
            "complete": self.complete and len(self.tasks) == self.task_count,
        }


async def explain_job(db: Database, job_id: UUID, archived: Sequence[str] = ()) -> Explanation:
    """`archived`: the job's events that have left the database, as lines."""
    job = await reading.job_facts(db, job_id)
    rows = await reading.task_facts(db, job_id)
    moves = await reading.moves(db, job_id, archived)
    nodes = await reading.fitting_nodes(db, {row.lane for row in rows})
    told = await _apart(len(rows), partial(tasks_told, job, rows, moves, nodes))
    story = job_told(job, rows, moves)
    facts, is_whole = await _facts(db, job, story, told, nodes)
    cut = await _apart(len(rows), partial(_cut, story, told, facts))
    return Explanation(
        bar=cut.bar,
        path=cut.path,
        total=cut.total,
        tasks=cut.tasks,
        task_count=len(told),
        eta=await _eta(db, job, told, nodes) if job.status == JobStatus.RUNNING else None,
        now=job.now,
        complete=is_whole and len(rows) < reading.MOST_TASKS and len(moves) < reading.MOST_EVENTS,
    )


@dataclass(frozen=True, slots=True)
class _Cut:
    bar: Sequence[Segment]
    path: Sequence[str]
    total: Mapping[Kind, timedelta]
    tasks: Mapping[str, Sequence[Segment]]


def _cut(job: JobStory, tasks: Sequence[Story], facts: Facts) -> _Cut:
    by_id = {task.id: task for task in tasks}
    pieces = {task.task_key: segments(task, by_id, facts) for task in tasks[:_MOST_SHOWN]}
    path = critical_path(job, tasks, facts)
    return _Cut(job_bar(job, tasks, facts, path), [task.task_key for task in path], sums(tasks, by_id, facts), pieces)


async def _apart(tasks: int, work: Callable[[], _T]) -> _T:
    """In a thread where there are many tasks: 5,000 take a tenth of a second, and the loop has heartbeats to send."""
    return work() if tasks <= _FEW_TASKS else await anyio.to_thread.run_sync(work)


# Stories


def job_told(job: JobFacts, rows: Sequence[TaskFacts], moves: Iterable[Move]) -> JobStory:
    reopened = [move.ts for move in moves if move.task_id is None and move.generation is not None]
    opened = reopened[-1] if reopened else _near(job.created_at, job.now)
    made = min((row.created_at for row in rows), default=None)
    began = opened if reopened else job.started_at or made
    due = None if reopened or job.scheduled_at is None else _near(job.scheduled_at, job.now)
    return JobStory(job.workflow, opened, due, began, job.finished_at)


def _near(moment: datetime, now: datetime) -> datetime:
    """Any program may write these times, and the year 9999 is one."""
    return now if isinstance(moment, FarTime) else moment


def tasks_told(
    job: JobFacts, rows: Sequence[TaskFacts], moves: Iterable[Move], nodes: Iterable[FittingNode]
) -> list[Story]:
    """The story of each task in its present generation."""
    by_task: defaultdict[UUID, list[Move]] = defaultdict(list)
    for move in moves:
        if move.task_id is not None:
            by_task[move.task_id].append(move)
    fits: defaultdict[int, set[str]] = defaultdict(set)
    for node in nodes:
        fits[node.lane].add(node.name)
    dependencies = _dependencies(rows)
    # one set for all tasks of a lane: they are compared by identity then
    in_lane = {lane: frozenset(fits[lane]) for lane in {row.lane for row in rows}}
    return [_told(job, row, by_task.get(row.id, ()), in_lane[row.lane], dependencies[row.id]) for row in rows]


def _dependencies(rows: Sequence[TaskFacts]) -> dict[UUID, tuple[UUID, ...]]:
    """A step that depends on one that was multiplied waits for each of its tasks; a task for an item, for its step."""
    by_key = {row.task_key: row.id for row in rows}
    items: defaultdict[UUID, list[UUID]] = defaultdict(list)
    for row in rows:
        if row.parent is not None:
            items[row.parent].append(row.id)
    found: dict[UUID, tuple[UUID, ...]] = {}
    for row in rows:
        if row.parent is not None:
            found[row.id] = (row.parent,)
            continue
        steps = [by_key[key] for key in row.depends_on if key in by_key]
        found[row.id] = tuple(one for step in steps for one in (step, *items.get(step, ()))) if items else tuple(steps)
    return found


def _told(
    job: JobFacts, row: TaskFacts, moves: Sequence[Move], fits: frozenset[str], depends_on: tuple[UUID, ...]
) -> Story:
    opened, attempts = _attempts(row.created_at, moves)
    ended = None if row.status in _OPEN else row.finished_at
    if not attempts and row.claimed_at is not None and row.claimed_at >= opened:  # its events are not there any more
        attempts = [Attempt(row.node, row.claimed_at, row.started_at, ended, row.outcome)]
    return Story(
        id=row.id,
        task_key=row.task_key,
        service=row.service,
        opened_at=opened,
        depends_on=depends_on,
        attempts=tuple(attempts),
        ended_at=ended,
        fits=fits,
        key=row.key,
        hold=row.hold,
        due_at=row.due_at,
        delay=_delay(job.delays.get(row.task_key.partition("[")[0])),
    )


def _attempts(opened: datetime, moves: Sequence[Move]) -> tuple[datetime, list[Attempt]]:
    """When the task was opened last, and its attempts since then. Each is made once, when all of it is known: a job may
    have thousands."""
    found: list[Attempt] = []
    claim: Move | None = None
    end: Move | None = None
    started: datetime | None = None
    for move in moves:
        _, attempt_id, at, to, _, _, _, generation = move
        if generation is not None and attempt_id is None:
            opened, found, claim = at, [], None
        elif to == _STARTING:
            if claim is not None:
                found.append(_attempt(claim, started, end))
            claim, started, end = move, None, None
        elif claim is not None and to == _RUNNING:
            started = at
        elif claim is not None and attempt_id is not None and end is None:
            end = move
    if claim is not None:
        found.append(_attempt(claim, started, end))
    return opened, found


def _attempt(claim: Move, started: datetime | None, end: Move | None) -> Attempt:
    if end is None:
        return Attempt(claim.node, claim.ts, started)
    return Attempt(claim.node, claim.ts, started, end.ts, end.outcome or end.to, end.again_at)


def _delay(written: Any) -> timedelta | None:
    """What a step's delay is, if that is written plainly; what an expression gave is known only while it lasts."""
    try:
        return None if written is None else parse_duration(written)
    except (AccsdError, ValueError, TypeError):
        return None


# What else went on


async def _facts(
    db: Database, job: JobFacts, story: JobStory, tasks: Sequence[Story], nodes: Sequence[FittingNode]
) -> tuple[Facts, bool]:
    since, until = story.opened_at, story.ended_at or job.now
    names = {name for fits in {task.fits for task in tasks} for name in fits}
    names |= {attempt.node for task in tasks for attempt in task.attempts if attempt.node is not None}
    changes = await power_changes(db, since, until, nodes=sorted(names), limit=_MOST_POWER)
    pauses = await reading.pause_intervals(db, since, until)
    facts = Facts(
        now=job.now,
        workflow=job.workflow,
        power=power_spans(names, changes, nodes, since, until, job.now),
        pauses=[span for row in pauses if (span := _pause(row, until))],
    )
    waited = _waited_for_keys(tasks, job.now)
    if not waited:
        return facts, len(changes) < _MOST_POWER
    holders, limits, is_all = await reading.key_holders(db, waited.keys(), min(waited.values()), until)
    held: defaultdict[str, list[Span]] = defaultdict(list)
    for holder in holders:
        held[holder.key].append(Span(holder.since, holder.until or job.now))
    return replace(facts, holders=held, limits=limits), is_all and len(changes) < _MOST_POWER


def _pause(row: PauseRow, until: datetime) -> PauseSpan:
    return PauseSpan(row.since, row.until or until, Subject(SubjectType(row.kind), row.name))


def _waited_for_keys(tasks: Iterable[Story], now: datetime) -> dict[str, datetime]:
    """The keys of tasks that waited for longer than a moment, and since when."""
    found: dict[str, datetime] = {}
    for task in tasks:
        claimed = [attempt.claimed_at for attempt in task.attempts] or [task.ended_at or now]
        if task.key is not None and claimed[-1] - task.opened_at > _SHORT:
            found[task.key] = min(found.get(task.key, now), task.opened_at)
    return found


def power_spans(
    names: Iterable[str],
    changes: Sequence[PowerChange],
    nodes: Iterable[FittingNode],
    since: datetime,
    until: datetime,
    now: datetime,
) -> dict[str, list[PowerSpan]]:
    """What each machine's power was. One of which nothing was logged counts as there: it works under a node's name, or
    was there before there was a log. One that counts as there and is silent was there until it was last seen."""
    silent = {node.name: node.last_seen for node in nodes if node.last_seen and now - node.last_seen > _SILENT}
    by_node: defaultdict[str, list[PowerChange]] = defaultdict(list)
    for change in changes:
        by_node[change.node].append(change)
    found: dict[str, list[PowerSpan]] = {}
    for name in names:
        its = by_node.get(name)
        if its is None:
            found[name] = [PowerSpan(since, until, "ready")]
            continue
        ends = [after.ts for after in its[1:]] + [until]
        spans = [PowerSpan(max(one.ts, since), end, one.state) for one, end in zip(its, ends, strict=True)]
        if name in silent and spans[-1].state == "ready":
            spans[-1] = replace(spans[-1], until=max(spans[-1].since, min(silent[name], spans[-1].until)))
        found[name] = [span for span in spans if span.since < span.until]
    return found


# The expected end


async def _eta(db: Database, job: JobFacts, tasks: Sequence[Story], nodes: Sequence[FittingNode]) -> Eta:
    usual = await step_stats(db, job.workflow)
    waiting = await reading.places(db, job.id)
    return await _apart(len(tasks), lambda: job_eta(job.now, tasks, usual, queues(waiting, nodes, job.now)))


def queues(waiting: Iterable[QueuePlace], nodes: Sequence[FittingNode], now: datetime) -> dict[UUID, Queue]:
    """What stands before each task that could be claimed or waits for its time. What is held otherwise is not in it."""
    found: dict[UUID, Queue] = {}
    for place in waiting:
        if place.hold not in (None, "backoff"):
            continue
        mine = [node for node in nodes if node.lane == place.lane]
        there = [node for node in mine if _is_there(node, now)]
        if there:
            found[place.task_id] = Queue(place.due_at, None, place.ahead, sum(node.slots for node in there))
            continue
        comes = min(
            ((_wake_left(node, now), node.slots) for node in mine if node.latency is not None and node.can_be_woken),
            default=None,
        )
        found[place.task_id] = (
            Queue(place.due_at) if comes is None else Queue(place.due_at, comes[0], place.ahead, comes[1])
        )
    return found


def _is_there(node: FittingNode, now: datetime) -> bool:
    return node.awake_state == "awake" and node.last_seen is not None and now - node.last_seen < _SILENT


def _wake_left(node: FittingNode, now: datetime) -> timedelta:
    """The usual time, less what has gone by since it was called."""
    assert node.latency is not None, "asked before"
    gone = timedelta(0) if node.called_at is None else now - node.called_at
    return max(node.latency - gone, timedelta(0))
