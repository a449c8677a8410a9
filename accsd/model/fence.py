"""The fence: one attempt at one task, and never another. It goes all the way: into the lease, the folder, the
container's labels, the object keys and every write."""

from typing import NamedTuple
from uuid import UUID


class Fence(NamedTuple):
    """Which attempt at a task speaks. The database refuses a write from any but the newest."""

    task_id: UUID
    attempt_id: int

    def __str__(self) -> str:
        return f"{self.task_id}.{self.attempt_id}"

    @classmethod
    def parse(cls, text: str) -> "Fence":
        """What str() made of one; ValueError if it is none."""
        task, _, attempt = text.rpartition(".")
        return cls(UUID(task), int(attempt))
