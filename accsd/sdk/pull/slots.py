"""The slots of a worker: each runs one task after the other, and their number is the concurrency.

A slot is an asyncio task that lasts, because one for each call would cost more than the rest of the worker. The next
slot is made beside a call that may wait: where functions never wait, one slot does everything. If a function leaves
variables in its context, or a cancellation of its task, its slot ends, so that the next function does not find them.
"""

import asyncio
import contextvars
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from accsd.sdk.pull.attempt import PullAttempt

_TURN_SEC: Final = 0.005  # then other tasks of the event loop have their turn


@dataclass(frozen=True, slots=True)
class HeldTasks:
    """The tasks of a worker, from the claim to the answer that settles them: one record for all its parts."""

    concurrency: int
    known: dict[UUID, PullAttempt] = field(default_factory=dict[UUID, PullAttempt])  # by task: claimed and not settled
    store: deque[PullAttempt] = field(default_factory=deque[PullAttempt])  # claimed and not begun
    running: set[PullAttempt] = field(default_factory=set[PullAttempt])  # those in a slot


class Slots:
    def __init__(
        self,
        held: HeldTasks,
        group: asyncio.TaskGroup,
        perform: Callable[[PullAttempt], Awaitable[None]],
        *,
        is_open: Callable[[], bool],
    ) -> None:
        self._held = held
        self._group = group
        self._perform = perform
        self._is_open = is_open
        self._context: contextvars.Context = contextvars.copy_context()
        self._made: int = 0
        self._is_next_made: bool = False  # a slot was made that has not begun yet

    def fill(self) -> None:
        """Makes a slot if a stored task can begin."""
        if not self._is_next_made and self._made < self._held.concurrency and self._can_begin():
            self._is_next_made = True
            self._made += 1
            self._group.create_task(self._serve(), context=self._context.copy())

    def empty(self) -> list[PullAttempt]:
        """Takes all stored attempts out of the store."""
        stored = list(self._held.store)
        self._held.store.clear()
        return stored

    def _can_begin(self) -> bool:
        held = self._held
        return bool(held.store) and len(held.running) < held.concurrency and self._is_open()

    async def _serve(self) -> None:
        self._is_next_made = False
        try:
            await self._one_after_the_other()
        finally:
            self._made -= 1
            self.fill()

    async def _one_after_the_other(self) -> None:
        slot, clean, began = asyncio.current_task(), contextvars.copy_context(), time.monotonic()
        assert slot is not None
        store, running = self._held.store, self._held.running
        while self._can_begin():
            attempt = store.popleft()
            attempt.running = slot
            running.add(attempt)
            if not self._is_next_made:
                self.fill()
            try:
                await self._perform(attempt)
            finally:
                attempt.running = None
                running.discard(attempt)
            if not _is_as_new(slot, clean):
                return
            if time.monotonic() - began > _TURN_SEC:
                await asyncio.sleep(0)
                began = time.monotonic()


def _is_as_new(slot: "asyncio.Task[None]", clean: contextvars.Context) -> bool:
    """Whether the function has left nothing here: no variable, and no cancellation of the task that it ran in."""
    if slot.cancelling() or getattr(slot, "_must_cancel", False):
        return False
    try:
        return contextvars.copy_context() == clean
    except Exception:  # noqa: BLE001 - values that can't be compared
        return False
