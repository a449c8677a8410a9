"""The global order in which every service sees the same jobs (A9, SPEC "One system").

The claim sorts in SQL; this is the same order for whoever holds rows already: tests, the model of the state
machine, a client that shows a queue.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Protocol, TypeVar
from uuid import UUID


class OrderedJob(Protocol):
    """What the order needs of a job."""

    @property
    def priority(self) -> int: ...
    @property
    def order_seq(self) -> int: ...


class OrderedTask(Protocol):
    """What the order needs of a task."""

    @property
    def id(self) -> UUID: ...
    @property
    def created_at(self) -> datetime: ...


OrderKey = tuple[int, int, datetime, UUID]
Task = TypeVar("Task", bound=OrderedTask)


def order_key(task: OrderedTask, job: OrderedJob) -> OrderKey:
    """priority DESC, order_seq, created_at, id. Python and PostgreSQL compare UUIDs alike, byte by byte."""
    return (-job.priority, job.order_seq, task.created_at, task.id)


def next_ordered_task(candidates: Iterable[tuple[Task, OrderedJob]]) -> Task | None:
    """Of runnable tasks, each with its job, the one to claim first; None where there is none."""
    first = min(candidates, key=lambda pair: order_key(*pair), default=None)
    return first[0] if first else None
