"""What a worker has, from the claim to the answer that settles it: one record, for all who count."""

from collections import deque
from dataclasses import dataclass, field
from uuid import UUID

from accsd.sdk.pull.attempt import Attempt


@dataclass(frozen=True, slots=True)
class Held:
    concurrency: int
    known: dict[UUID, Attempt] = field(default_factory=dict[UUID, Attempt])  # by task: claimed, and not settled
    store: deque[Attempt] = field(default_factory=deque[Attempt])  # of these, not begun
    running: set[Attempt] = field(default_factory=set[Attempt])  # those that have a place
