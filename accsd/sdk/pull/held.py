"""What a worker has, from the claim to the answer that settles it: one record, for all who count."""

from collections import deque
from dataclasses import dataclass, field
from uuid import UUID

from accsd.sdk.pull.attempt import PullAttempt


@dataclass(frozen=True, slots=True)
class HeldTasks:
    concurrency: int
    known: dict[UUID, PullAttempt] = field(default_factory=dict[UUID, PullAttempt])  # by task: claimed, and not settled
    store: deque[PullAttempt] = field(default_factory=deque[PullAttempt])  # of these, not begun
    running: set[PullAttempt] = field(default_factory=set[PullAttempt])  # those that have a place
