"""What streams tell: topics, messages, and how messages are made of events.

A message is encoded once and shared by all who get it. Job and task messages tell the state as it is now, so the last
of several events of one job stands for all; timeline entries and log lines are told one by one.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final, NamedTuple, Self, cast
from uuid import UUID

import orjson

from accsd.db.feed import Feed, FeedEvent, JobState, TaskState
from accsd.errors import InvalidValue
from accsd.explain.redaction import Redaction
from accsd.values.json import sanitise
from accsd.work.execution import is_rest_in_log

MOST_TOPICS: Final = 16
MOST_LINES: Final = 200  # of one log message: of more the last ones are told, and how many were left out

# Events after which a job or task is another one than before.
_CHANGES: Final = frozenset({"status", "retry", "changed", "progress", "repair"})
_STATUS: Final = frozenset({"status", "retry", "changed", "repair"})
# Not in a timeline that is told live: log lines have their own topic, progress is in the state.
_CHATTER: Final = frozenset({"log", "progress", "heartbeat"})
_JOB_FIELDS: Final = tuple(each.name for each in fields(JobState))
_TASK_FIELDS: Final = tuple(each.name for each in fields(TaskState))


class Topic(str):
    """overview | jobs | job:<id> | node:<name> | log:<task>:<attempt> | operation:<id>"""

    __slots__ = ()

    @classmethod
    def parse(cls, text: str) -> Self:
        kind, _, name = text.partition(":")
        try:
            match kind:
                case "overview" | "jobs" if text == kind:
                    return cls(kind)
                case "job" | "operation":
                    return cls(f"{kind}:{UUID(name)}")
                case "node" if 0 < len(name) <= 200:
                    return cls(text)
                case "log":
                    task, _, attempt = name.partition(":")
                    return cls.log(UUID(task), _positive(attempt))
                case _:
                    pass
        except ValueError:
            pass
        raise InvalidValue(
            f'"{text[:100]}" is no topic',
            hint="topics are overview, jobs, job:ID, node:NAME, log:TASK:ATTEMPT, operation:ID",
        )

    @classmethod
    def job(cls, job_id: UUID) -> Self:
        return cls(f"job:{job_id}")

    @classmethod
    def node(cls, name: str) -> Self:
        return cls(f"node:{name}")

    @classmethod
    def log(cls, task: UUID, attempt: int) -> Self:
        return cls(f"log:{task}:{attempt}")

    @classmethod
    def operation(cls, operation_id: UUID) -> Self:
        return cls(f"operation:{operation_id}")

    @property
    def kind(self) -> str:
        return self.partition(":")[0]

    @property
    def name(self) -> str:
        return self.partition(":")[2]


OVERVIEW: Final = Topic("overview")
JOBS: Final = Topic("jobs")


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10) or int(text) < 1:
        raise ValueError(text)
    return int(text)


class Message:
    """One message, encoded. `mark` is what its reader resumes from; None: it is not known yet."""

    __slots__ = ("_ndjson", "data", "event", "mark", "sse")

    def __init__(self, event: str, document: Mapping[str, Any], mark: str | None) -> None:
        self.event = event
        self.mark = mark
        self.data: bytes = encoded(document)
        head = f"event: {event}\ndata: " if mark is None else f"id: {mark}\nevent: {event}\ndata: "
        self.sse: bytes = b"%b%b\n\n" % (head.encode(), self.data)
        self._ndjson: bytes | None = None

    @property
    def ndjson(self) -> bytes:
        """The same as a line of JSON, for clients that are no browsers."""
        if self._ndjson is None:
            mark = b"null" if self.mark is None else b'"%b"' % self.mark.encode()
            self._ndjson = b'{"id":%b,"event":"%b","data":%b}\n' % (mark, self.event.encode(), self.data)
        return self._ndjson


def encoded(document: Mapping[str, Any]) -> bytes:
    try:
        return orjson.dumps(document, option=orjson.OPT_UTC_Z | orjson.OPT_NON_STR_KEYS)
    except (
        TypeError,
        ValueError,
    ):  # orjson.JSONEncodeError is a TypeError: jsonb holds numbers that orjson does not write
        return orjson.dumps(sanitise(document), option=orjson.OPT_UTC_Z, default=str)


class Told(NamedTuple):
    """What an event leads to, in the order of `key`: the event's id, or where that came too late, the next free one."""

    key: int
    event: str
    topics: tuple[str, ...]
    document: dict[str, Any]


@dataclass(frozen=True, slots=True)
class MessageFacts:
    """What the messages of some events need to know beside the events."""

    jobs: Mapping[UUID, JobState] = field(default_factory=dict[UUID, JobState])
    tasks: Mapping[UUID, TaskState] = field(default_factory=dict[UUID, TaskState])
    lines: Mapping[str, int] = field(default_factory=dict[str, int])  # by log topic: how many came before
    sealed: Mapping[str, int] = field(default_factory=dict[str, int])  # by log topic: how many are in the store


async def facts_of(
    feed: Feed, events: Sequence[FeedEvent], topics: Collection[str], lines: Mapping[str, int], *, summary: bool = False
) -> MessageFacts:
    """Reads what the messages for these topics need. `lines` are the tails that are known already."""
    jobs: set[UUID] = set()
    tasks: set[UUID] = set()
    of_all = not summary and (JOBS in topics or OVERVIEW in topics)
    of_nodes = not summary and any(topic.startswith("node:") for topic in topics)
    of_logs = any(topic.startswith("log:") for topic in topics)
    first_line: dict[str, FeedEvent] = {}
    parts: dict[str, FeedEvent] = {}
    for event in events:
        if event.type in _CHANGES:
            is_watched = f"job:{event.job_id}" in topics
            if of_all or is_watched:
                jobs.add(event.job_id)
            if event.task_id is not None and not summary and (is_watched or of_nodes):
                tasks.add(event.task_id)
        elif of_logs and (topic := log_topic_of(event)) in topics:
            (first_line if event.type == "log" else parts).setdefault(topic, event)
    return MessageFacts(
        await feed.jobs(jobs) if jobs else {},
        await feed.tasks(tasks) if tasks else {},
        {topic: await _lines_before(feed, event) for topic, event in first_line.items() if topic not in lines},
        {topic: await _sealed(feed, event) for topic, event in parts.items()},
    )


async def _lines_before(feed: Feed, event: FeedEvent) -> int:
    assert event.task_id is not None
    assert event.attempt_id is not None
    said = await feed.log_lines(event.task_id, event.attempt_id)
    return sum(line.id < event.id and not is_rest_in_log(line.message) for line in said)


async def _sealed(feed: Feed, event: FeedEvent) -> int:
    assert event.task_id is not None
    assert event.attempt_id is not None
    return await feed.sealed_lines(event.task_id, event.attempt_id)


def log_topic_of(event: FeedEvent) -> str:
    """The log that an event adds to; empty: none."""
    is_line = event.type == "log"
    data = cast("dict[str, Any]", event.data) if isinstance(event.data, dict) else {}
    is_part = event.type == "artifact" and data.get("kind") == "log"
    if event.task_id is None or event.attempt_id is None or not (is_line or is_part):
        return ""
    return f"log:{event.task_id}:{event.attempt_id}"


def topics_of(event: FeedEvent) -> Iterable[str]:
    """The topics that an event is news for, as far as the event alone says it."""
    if event.type in _CHANGES:
        yield OVERVIEW
        yield JOBS
    yield f"job:{event.job_id}"
    if log := log_topic_of(event):
        yield log


def composed(
    events: Sequence[FeedEvent],
    facts: MessageFacts,
    topics: Collection[str],
    lines: dict[str, int],
    *,
    overdue: Collection[int] = (),
    above: int = 0,
    summary: bool = False,
    redaction: Redaction | None = None,
) -> list[Told]:
    """The messages of these events (by id) for these topics, in the order of their keys. `lines` are the tails, which
    go on. The `overdue` events had been given up; they are told as the first one `above` what was."""
    key_of = {event.id: above + 1 if event.id in overdue else event.id for event in events}
    last_of_job: dict[UUID, FeedEvent] = {}
    last_of_task: dict[UUID, FeedEvent] = {}
    has_status: set[UUID] = set()
    of_logs: defaultdict[str, list[FeedEvent]] = defaultdict(list)
    told: list[Told] = []
    for event in events:
        if event.type in _CHANGES:
            last_of_job[event.job_id] = event
            if event.type in _STATUS:
                has_status.add(event.job_id)
            if event.task_id is not None:
                last_of_task[event.task_id] = event
        if not summary and event.type not in _CHATTER and event.level != "debug":
            topic = f"job:{event.job_id}"
            if topic in topics:
                told.append(Told(key_of[event.id], "event", (topic,), _entry(event, redaction)))
        if (topic := log_topic_of(event)) and topic in topics:
            of_logs[topic].append(event)
    for job_id, event in last_of_job.items():
        if (job := facts.jobs.get(job_id)) is not None:
            everywhere = () if summary else (JOBS, OVERVIEW) if job_id in has_status else (JOBS,)
            to = tuple(topic for topic in (*everywhere, f"job:{job_id}") if topic in topics)
            if to:
                told.append(Told(key_of[event.id], "job", to, _state(job, _JOB_FIELDS, event)))
    for task_id, event in last_of_task.items():
        if (task := facts.tasks.get(task_id)) is not None:
            to = tuple(topic for topic in (f"job:{task.job_id}", f"node:{task.node}") if topic in topics)
            if to:
                told.append(Told(key_of[event.id], "task", to, _state(task, _TASK_FIELDS, event)))
    for topic, said in of_logs.items():
        told.append(Told(key_of[said[-1].id], "log", (topic,), _log(topic, said, facts, lines, redaction)))
    told.sort(key=lambda each: each.key)
    return told


def _data(event: FeedEvent, redaction: Redaction | None) -> Any:
    return event.data if redaction is None else redaction.inside(event.data)


def _entry(event: FeedEvent, redaction: Redaction | None) -> dict[str, Any]:
    return {
        "event": event.id,
        "ts": event.ts,
        "job": event.job_id,
        "task": event.task_id,
        "attempt_id": event.attempt_id,
        "source": event.source,
        "level": event.level,
        "type": event.type,
        "message": event.message,
        "data": _data(event, redaction),
    }


def _state(row: JobState | TaskState, names: Iterable[str], event: FeedEvent) -> dict[str, Any]:
    return {"event": event.id, **{name: getattr(row, name) for name in names}}


def _log(
    topic: str, said: Sequence[FeedEvent], facts: MessageFacts, lines: dict[str, int], redaction: Redaction | None
) -> dict[str, Any]:
    """The lines that were written, with their numbers. Lines that are only in the store are counted, not told."""
    before = n = lines.get(topic, facts.lines.get(topic, 0))
    written: list[dict[str, Any]] = []
    for event in said:
        if event.type == "log" and not is_rest_in_log(event.message):
            n += 1
            line = {
                "n": n,
                "ts": event.ts,
                "level": event.level,
                "text": event.message,
                "data": _data(event, redaction),
            }
            written.append({"event": event.id, **line})
    shown = written[-MOST_LINES:]
    last = max(n, facts.sealed.get(topic, 0))
    lines[topic] = last
    _, task, attempt = topic.split(":")
    skipped = last - before - len(shown)
    return {
        "task": task,
        "attempt_id": int(attempt),
        "event": said[-1].id,
        "lines": shown,
        "skipped": skipped,
        "last_line": last,
    }
