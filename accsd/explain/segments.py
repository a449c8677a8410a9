"""Where the time of a job went: its life cut into pieces, each with what it was spent on and what was in the way.

Pure functions: facts of the database come in, pieces that cover the time without a gap or an overlap go out. The way in
which they are cut is documented in docs/concepts.md, and it is the same for the commands, the API and the page:

The life of a task is cut at its events. It waits for its dependencies; then, before each claim, for whatever was in the
way: first a pause, then its concurrency key, then the machine that took it in the end (it was being called, it was
starting, it slept); what is left is capacity if a machine that could have taken it was there, else the lack of one.
Then the attempt is starting, and running; one whose owner was lost is lost from the claim on. A failed attempt is
followed by its backoff.

The bar of a job is that of its critical path: the chain of steps each of which began when the one before it had ended,
up to the one that ended last. Of a job that is under way, the chain leads to the step with the most steps below it.
"""

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from operator import itemgetter
from typing import Any, Final, NamedTuple
from uuid import UUID


class Kind(StrEnum):
    """What a piece of time was spent on."""

    DELAY = "delay"  # the job was for a later time, or the step says that it begins later
    QUEUED = "queued"  # the job was due, and its tasks were not made yet
    DEPENDENCY = "dependency"
    RESOLVE = "resolve"  # its condition and input were being worked out
    PAUSED = "paused"
    KEY = "key"
    WAKE = "wake"  # its machine was called and not reached yet
    BOOT = "boot"
    ASLEEP = "asleep"  # its machine slept and was not called
    CAPACITY = "capacity"  # a machine was there, and had no room
    NO_NODE = "no_node"  # no machine that could take it was there
    BACKOFF = "backoff"
    STARTING = "starting"
    RUNNING = "running"
    LOST = "lost"


class SubjectType(StrEnum):
    NODE = "node"
    TASK = "task"
    KEY = "key"
    SERVICE = "service"
    WORKFLOW = "workflow"


class Subject(NamedTuple):
    """What was in the way, or did the work."""

    type: SubjectType
    name: str


@dataclass(frozen=True, slots=True)
class Span:
    since: datetime
    until: datetime


class Segment(NamedTuple):
    """A piece of time. (A frozen dataclass takes four times as long to make, and a large job has 40,000 of them.)"""

    kind: Kind
    since: datetime
    until: datetime
    subject: Subject | None = None
    task_key: str | None = None

    @property
    def length(self) -> timedelta:
        return self.until - self.since

    def document(self) -> dict[str, Any]:
        subject = None if self.subject is None else {"type": self.subject.type, "name": self.subject.name}
        return {
            "kind": self.kind,
            "from": self.since,
            "to": self.until,
            "subject": subject,
            "task_key": self.task_key,
        }


# A piece of a task that is not named yet: plain tuples, because each is made twice.
_Piece = tuple[Kind, datetime, datetime, Subject | None]

# Facts


class Attempt(NamedTuple):
    """One attempt, as its events tell it. `again_at`: before this moment the task was not to be claimed again."""

    node: str | None
    claimed_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    outcome: str | None = None  # done, error, released, lost, cancelled; None: it is under way
    again_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Story:
    """A task in its present generation. `fits`: the machines that could take it; `hold` and `due_at` are of one that
    waits now, `delay` is what its step says."""

    id: UUID
    task_key: str
    service: str
    opened_at: datetime  # made, or reopened by a retry
    depends_on: tuple[UUID, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    ended_at: datetime | None = None
    fits: frozenset[str] = frozenset()
    key: str | None = None
    hold: str | None = None
    due_at: datetime | None = None
    delay: timedelta | None = None


@dataclass(frozen=True, slots=True)
class JobStory:
    """A job in its present generation."""

    workflow: str
    opened_at: datetime  # submitted, or reopened by a retry
    due_at: datetime | None  # for when it was scheduled
    began_at: datetime | None  # its tasks were made, or reopened; None: it waits
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class PowerSpan(Span):
    state: str  # asleep, waking, booting, ready, unknown, failed


@dataclass(frozen=True, slots=True)
class PauseSpan(Span):
    subject: Subject  # a service, a workflow or a node


@dataclass(frozen=True, slots=True)
class Facts:
    """What else was going on: what machines, pauses and holders of concurrency keys did, until `now`."""

    now: datetime
    workflow: str = ""
    power: Mapping[str, Sequence[PowerSpan]] = field(default_factory=dict[str, Sequence[PowerSpan]])
    pauses: Sequence[PauseSpan] = ()
    holders: Mapping[str, Sequence[Span]] = field(default_factory=dict[str, Sequence[Span]])
    limits: Mapping[str, int] = field(default_factory=dict[str, int])
    # A job may have thousands of tasks that wait for the same machines: those are looked at once.
    _known: dict[tuple[frozenset[str], str, frozenset[str]], list[Span]] = field(
        default_factory=dict[tuple[frozenset[str], str, frozenset[str]], list[Span]],
        init=False,
        repr=False,
        compare=False,
    )

    waits: dict[tuple[object, ...], list[_Piece]] = field(
        default_factory=dict[tuple[object, ...], list[_Piece]], init=False, repr=False, compare=False
    )
    causes: dict[tuple[object, ...], list[tuple[Kind, Subject, list[Span]]]] = field(
        default_factory=dict[tuple[object, ...], "list[tuple[Kind, Subject, list[Span]]]"],
        init=False,
        repr=False,
        compare=False,
    )

    def in_state(self, nodes: frozenset[str], state: str, unless: frozenset[str] = frozenset()) -> list[Span]:
        """When at least one of these machines was in this state, while none of the others was ready."""
        which = nodes, state, unless
        if which not in self._known:
            spans = _united(span for name in nodes for span in self.power.get(name, ()) if span.state == state)
            self._known[which] = _divided(spans, self.in_state(unless, "ready"))[1] if unless else spans
        return self._known[which]


# The pieces of a task

_SINCE: Final = 1
_UNTIL: Final = 2
_begin: Final[Callable[[Segment], datetime]] = itemgetter(_SINCE)
# Segment._make counts the members of each; a job has tens of thousands.
_segment: Final[Callable[[tuple[Kind, datetime, datetime, Subject | None, str]], Segment]] = partial(
    tuple.__new__, Segment
)


def segments(task: Story, stories: Mapping[UUID, Story], facts: Facts) -> list[Segment]:
    """The life of a task from when it was made until it ended, or until now."""
    key = task.task_key
    life = _life(task, stories, facts)
    return _merged(
        [_segment((kind, since, until, subject, key)) for kind, since, until, subject in life if since < until]
    )


def _life(task: Story, stories: Mapping[UUID, Story], facts: Facts) -> Iterator[_Piece]:
    ends = task.ended_at or facts.now
    last = _last_to_end([stories[each] for each in task.depends_on if each in stories], facts)
    at = task.opened_at
    if last is not None and (freed := min(_end(last, facts), _next_claim(task, at) or ends, ends)) > at:
        yield Kind.DEPENDENCY, at, freed, Subject(SubjectType.TASK, last.task_key)
        at = freed
    if task.delay is not None and (begins := min(at + task.delay, _next_claim(task, at) or ends)) > at:
        yield Kind.DELAY, at, begins, None
        at = begins
    for attempt in task.attempts:
        yield from _wait(task, at, attempt.claimed_at, attempt.node, facts)
        yield from _attempt(attempt, facts)
        at = max(at, attempt.ended_at or facts.now)
        if attempt.again_at is not None:
            until = min(attempt.again_at, _next_claim(task, at) or ends)
            if until > at:
                yield Kind.BACKOFF, at, until, None
                at = until
    if at >= ends:
        return
    match task.hold:
        case "resolve":
            yield Kind.RESOLVE, at, ends, None
        case "backoff":
            yield Kind.BACKOFF if task.attempts else Kind.DELAY, at, ends, None
        case _:
            yield from _wait(task, at, ends, None, facts)


def _next_claim(task: Story, after: datetime) -> datetime | None:
    claims = [each.claimed_at for each in task.attempts if each.claimed_at >= after]
    return min(claims) if claims else None


def _attempt(attempt: Attempt, facts: Facts) -> Sequence[_Piece]:
    ends = attempt.ended_at or facts.now
    where = None if attempt.node is None else Subject(SubjectType.NODE, attempt.node)
    if attempt.outcome == "lost":
        return ((Kind.LOST, attempt.claimed_at, ends, where),)
    began = min(attempt.started_at or ends, ends)
    return (Kind.STARTING, attempt.claimed_at, began, where), (Kind.RUNNING, began, ends, where)


def _wait(task: Story, since: datetime, until: datetime, node: str | None, facts: Facts) -> Sequence[_Piece]:
    """What was in the way of a task that was ready. Tasks that are alike and wait side by side are asked about once."""
    if since >= until:
        return ()
    which = task.service, task.key, task.fits, node, since, until
    if which not in facts.waits:
        facts.waits[which] = list(_waited(task, since, until, node, facts))
    return facts.waits[which]


def _waited(task: Story, since: datetime, until: datetime, node: str | None, facts: Facts) -> Iterator[_Piece]:
    """Each cause takes what is left of the time by the ones before it. `node` took the task in the end; None: nobody
    did yet, and the machines that could are asked where none of them is there."""
    left = [Span(since, until)]
    which = task.service, task.key, task.fits, node
    if which not in facts.causes:
        facts.causes[which] = list(_causes(task, node, facts))
    for kind, subject, spans in facts.causes[which]:
        taken, left = _divided(left, spans)
        yield from ((kind, each.since, each.until, subject) for each in taken)
        if not left:
            return
    could = task.fits if node is None else task.fits | {node}
    taken, left = _divided(left, facts.in_state(could, "ready"))
    service = Subject(SubjectType.SERVICE, task.service)
    yield from ((Kind.CAPACITY, each.since, each.until, service) for each in taken)
    yield from ((Kind.NO_NODE, each.since, each.until, service) for each in left)


def _causes(task: Story, node: str | None, facts: Facts) -> Iterator[tuple[Kind, Subject, list[Span]]]:
    """In the order in which they count."""
    concerned = {
        Subject(SubjectType.SERVICE, task.service),
        Subject(SubjectType.WORKFLOW, facts.workflow),
        *(Subject(SubjectType.NODE, name) for name in _awaited(task, node)),
    }
    for pause in facts.pauses:
        if pause.subject in concerned:
            yield Kind.PAUSED, pause.subject, [pause]
    if task.key is not None:
        full = _full(facts.holders.get(task.key, ()), facts.limits.get(task.key, 1))
        yield Kind.KEY, Subject(SubjectType.KEY, task.key), full
    candidates = [node] if node is not None else sorted(task.fits)
    others = task.fits if node is None else frozenset[str]()
    for kind, state in ((Kind.WAKE, "waking"), (Kind.BOOT, "booting"), (Kind.ASLEEP, "asleep")):
        for name in candidates:
            if spans := facts.in_state(frozenset({name}), state, others):
                yield kind, Subject(SubjectType.NODE, name), spans


def _awaited(task: Story, node: str | None) -> Iterable[str]:
    """The machine whose drain keeps the task: the one that took it, or the only one that could."""
    if node is not None:
        return [node]
    return task.fits if len(task.fits) == 1 else ()


def _united(spans: Iterable[Span]) -> list[Span]:
    found: list[Span] = []
    for span in sorted(spans, key=lambda each: each.since):
        if found and span.since <= found[-1].until:
            found[-1] = Span(found[-1].since, max(found[-1].until, span.until))
        else:
            found.append(Span(span.since, span.until))
    return found


def _full(holders: Sequence[Span], limit: int) -> list[Span]:
    """When as many held the key as may."""
    steps = sorted([(each.since, 1) for each in holders] + [(each.until, -1) for each in holders])
    found: list[Span] = []
    held, since = 0, None
    for moment, change in steps:
        held += change
        if held >= limit and since is None:
            since = moment
        elif held < limit and since is not None:
            if since < moment:
                found.append(Span(since, moment))
            since = None
    return found


def _divided(whole: Sequence[Span], spans: Sequence[Span]) -> tuple[list[Span], list[Span]]:
    """What of the whole the spans cover, and what is left. Both are in order, and none overlaps another of its own."""
    taken: list[Span] = []
    left: list[Span] = []
    for part in whole:
        at = part.since
        for number in range(bisect_right(spans, at, key=_until), len(spans)):
            span = spans[number]
            if span.since >= part.until:
                break
            begins, ends = max(at, span.since), min(part.until, span.until)
            if at < begins:
                left.append(Span(at, begins))
            taken.append(Span(begins, ends))
            at = ends
        if at < part.until:
            left.append(Span(at, part.until))
    return taken, left


def _until(span: Span) -> datetime:
    return span.until


def _merged(pieces: list[Segment]) -> list[Segment]:
    """In the order of time; what goes on is one piece. None of them is empty."""
    pieces.sort(key=_begin)
    found: list[Segment] = []
    for piece in pieces:
        if found and found[-1][_UNTIL] == piece[_SINCE] and _is_like(found[-1], piece):
            found[-1] = found[-1]._replace(until=piece.until)
        else:
            found.append(piece)
    return found


def _is_like(one: Segment, other: Segment) -> bool:
    return one[0] is other[0] and (one.subject, one.task_key) == (other.subject, other.task_key)


def _end(task: Story, facts: Facts) -> datetime:
    return task.ended_at or facts.now


def _last_to_end(tasks: Sequence[Story], facts: Facts) -> Story | None:
    if len(tasks) < 2:
        return tasks[0] if tasks else None
    return max(tasks, key=lambda task: (_end(task, facts), task.task_key))


# The bars of a job


def job_bar(job: JobStory, tasks: Sequence[Story], facts: Facts, path: Sequence[Story] | None = None) -> list[Segment]:
    """The job's critical path, from its submission to its end, or until now. `path`: where the caller knows it."""
    ends = job.ended_at or facts.now
    at = min(job.began_at or ends, ends)
    stories = {task.id: task for task in tasks}
    found = list(_before(job, at))
    for task in critical_path(job, tasks, facts) if path is None else path:
        until = min(_end(task, facts), ends)
        found += _clipped(segments(task, stories, facts), at, until)
        at = max(at, until)
    return _merged([piece for piece in found if piece.since < piece.until])


def _before(job: JobStory, began: datetime) -> Iterator[Segment]:
    due = min(max(job.due_at or job.opened_at, job.opened_at), began)
    yield Segment(Kind.DELAY, job.opened_at, due)
    yield Segment(Kind.QUEUED, due, began)


def _clipped(pieces: Iterable[Segment], since: datetime, until: datetime) -> Iterator[Segment]:
    for piece in pieces:
        if piece.since < until and piece.until > since:
            yield piece._replace(since=max(piece.since, since), until=min(piece.until, until))


def critical_path(job: JobStory, tasks: Sequence[Story], facts: Facts) -> list[Story]:
    """The chain of steps that brings about the end of the job, the first first. Steps that ended before the job was
    opened anew are no part of it."""
    stories = {task.id: task for task in tasks}
    mine = [task for task in tasks if task.ended_at is None or task.ended_at > job.opened_at or task.attempts]
    task = _last_to_end(mine, facts) if job.ended_at is not None else _ahead(mine, stories, facts)
    path: list[Story] = []
    while task is not None:
        path.append(task)
        before = [stories[each] for each in task.depends_on if each in stories]
        task = _last_to_end([each for each in before if _end(each, facts) > job.opened_at], facts)
    return path[::-1]


def _ahead(tasks: Sequence[Story], stories: Mapping[UUID, Story], facts: Facts) -> Story | None:
    """Of what could go on now the task with the most steps below it; of equal ones the first that could."""
    open_tasks = [task for task in tasks if task.ended_at is None]
    ready = [task for task in open_tasks if all(stories[each].ended_at for each in task.depends_on if each in stories)]
    below = steps_below(tasks)
    return min(
        ready,
        key=lambda task: (
            -below[task.id],
            (task.attempts[0].claimed_at if task.attempts else facts.now),
            task.task_key,
        ),
        default=_last_to_end(tasks, facts),
    )


def steps_below(tasks: Sequence[Story]) -> Counter[UUID]:
    """The length of the longest chain of tasks that waits for each."""
    found: Counter[UUID] = Counter()
    for task in reversed(in_order(tasks)):
        for before in task.depends_on:
            found[before] = max(found[before], found[task.id] + 1)
    return found


def in_order(tasks: Sequence[Story]) -> list[Story]:
    """Each task after all that it depends on."""
    known = {task.id: task for task in tasks}
    waits = {task.id: sum(each in known for each in task.depends_on) for task in tasks}
    behind: dict[UUID, list[Story]] = {}
    for task in tasks:
        for each in task.depends_on:
            behind.setdefault(each, []).append(task)
    free = deque(task for task in tasks if not waits[task.id])
    found: list[Story] = []
    while free:
        found.append(task := free.popleft())
        for after in behind.get(task.id, ()):
            waits[after.id] -= 1
            if not waits[after.id]:
                free.append(after)
    return found


_NOT_SPENT: Final = frozenset({Kind.DEPENDENCY})


def sums(tasks: Iterable[Story], stories: Mapping[UUID, Story], facts: Facts) -> dict[Kind, timedelta]:
    """How long each kind took in all tasks, in the order of their names here. That a task waited for another is no time
    of its own: the other's is counted."""
    found: defaultdict[Kind, timedelta] = defaultdict(timedelta)
    for task in tasks:
        for kind, since, until, _ in _life(task, stories, facts):
            if since < until:
                found[kind] += until - since
    return {kind: found[kind] for kind in Kind if kind in found and kind not in _NOT_SPENT}
