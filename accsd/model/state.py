"""The words that the tables use, and the moves between them.

The table accs.transitions in schema.sql enforces the moves; a test holds the sets below equal to it, so that Python can
reason about a move without asking.
"""

from enum import StrEnum
from typing import TypeAlias


class TaskStatus(StrEnum):
    """Where a task stands; each label with the moves that lead out of it."""

    QUEUED = "queued"  # → starting (claim), skipped (condition false, upstream failed), cancelled
    STARTING = "starting"  # → running (start), queued (as from running), error (cannot start), cancelled
    RUNNING = "running"  # → done, error, queued (given back, lease expired, retry), cancelled
    DONE = "done"  # → queued (retry from a step: a new generation)
    ERROR = "error"  # → queued (redrive, retry: a new generation)
    SKIPPED = "skipped"  # → queued (redrive, retry: a new generation)
    CANCELLED = "cancelled"  # → queued (retry: a new generation)

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_TASK_STATUSES

    @property
    def is_leased(self) -> bool:
        """Somebody owns the task: a lease is present exactly in these states."""
        return self in LEASED_TASK_STATUSES

    @property
    def satisfies_dependants(self) -> bool:
        return self in SATISFYING_TASK_STATUSES


class JobStatus(StrEnum):
    """Where a job stands; each label with the moves that lead out of it."""

    QUEUED = "queued"  # → running (instantiated), error (its workflow cannot be instantiated), cancelled
    RUNNING = "running"  # → done, error, cancelled
    DONE = "done"  # → running (retry)
    ERROR = "error"  # → running (retry)
    CANCELLED = "cancelled"  # → running (retry)

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL_JOB_STATUSES


Status: TypeAlias = TaskStatus | JobStatus

TERMINAL_TASK_STATUSES = frozenset({TaskStatus.DONE, TaskStatus.ERROR, TaskStatus.SKIPPED, TaskStatus.CANCELLED})
LEASED_TASK_STATUSES = frozenset({TaskStatus.STARTING, TaskStatus.RUNNING})
SATISFYING_TASK_STATUSES = frozenset({TaskStatus.DONE, TaskStatus.SKIPPED})
TERMINAL_JOB_STATUSES = frozenset({JobStatus.DONE, JobStatus.ERROR, JobStatus.CANCELLED})

TASK_TRANSITIONS: frozenset[tuple[TaskStatus, TaskStatus]] = frozenset(
    {
        (TaskStatus.QUEUED, TaskStatus.STARTING),
        (TaskStatus.QUEUED, TaskStatus.SKIPPED),
        (TaskStatus.QUEUED, TaskStatus.CANCELLED),
        (TaskStatus.STARTING, TaskStatus.RUNNING),
        (TaskStatus.STARTING, TaskStatus.QUEUED),
        (TaskStatus.STARTING, TaskStatus.ERROR),
        (TaskStatus.STARTING, TaskStatus.CANCELLED),
        (TaskStatus.RUNNING, TaskStatus.DONE),
        (TaskStatus.RUNNING, TaskStatus.ERROR),
        (TaskStatus.RUNNING, TaskStatus.QUEUED),
        (TaskStatus.RUNNING, TaskStatus.CANCELLED),
        (TaskStatus.DONE, TaskStatus.QUEUED),
        (TaskStatus.ERROR, TaskStatus.QUEUED),
        (TaskStatus.SKIPPED, TaskStatus.QUEUED),
        (TaskStatus.CANCELLED, TaskStatus.QUEUED),
    }
)

JOB_TRANSITIONS: frozenset[tuple[JobStatus, JobStatus]] = frozenset(
    {
        (JobStatus.QUEUED, JobStatus.RUNNING),
        (JobStatus.QUEUED, JobStatus.ERROR),
        (JobStatus.QUEUED, JobStatus.CANCELLED),
        (JobStatus.RUNNING, JobStatus.DONE),
        (JobStatus.RUNNING, JobStatus.ERROR),
        (JobStatus.RUNNING, JobStatus.CANCELLED),
        (JobStatus.DONE, JobStatus.RUNNING),
        (JobStatus.ERROR, JobStatus.RUNNING),
        (JobStatus.CANCELLED, JobStatus.RUNNING),
    }
)


class Level(StrEnum):
    """How much an event matters."""

    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class EventType(StrEnum):
    """The events that accsd writes itself. The set is open: a service may name its own."""

    STATUS = "status"  # a transition; there is exactly one for each
    PROGRESS = "progress"
    LOG = "log"
    TRUNCATED = "truncated"  # a log that is not whole, and why
    ARTIFACT = "artifact"
    HEARTBEAT = "heartbeat"
    RETRY = "retry"  # a failed attempt that will be repeated, and a redrive
    REFUSED = "refused"  # a write of an attempt that no longer holds the task, and what the database held
    CHANGED = "changed"  # a job's priority, options or due time, by whom
    CACHE = "cache"  # a step with cache: whose result it is done with, or why it runs
    WAKE = "wake"  # a node was woken, or was not
    REPAIR = "repair"  # what disagreed with the rows of the tasks and was mended: a bug somewhere


class ArtifactKind(StrEnum):
    """On which side of a task an object stands."""

    INPUT = "input"
    OUTPUT = "output"
    LOG = "log"


class AwakeState(StrEnum):
    """What is known of a node."""

    UNKNOWN = "unknown"
    AWAKE = "awake"
    SLEEP = "sleep"


class WakeMethod(StrEnum):
    """By what a node is woken."""

    WOL = "wol"
    PROVIDER = "provider"
    SCRIPT = "script"


class ListenerState(StrEnum):
    OFF = "off"  # not begun
    LISTENING = "listening"
    DEAF = "deaf"  # notifications do not arrive for now: it reconnects, and the poll finds the work, later
    POLLING = "polling"  # LISTEN does not work on this way (a pooler): known, and looked at again now and then
