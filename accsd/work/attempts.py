"""The attempts under way on this node: one task group for all of them, counted by service, drained in order."""

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta

import anyio
from anyio.abc import TaskGroup

from accsd.errors import Bug
from accsd.log import get_logger
from accsd.model.fence import Fence
from accsd.work.attempt import Attempt
from accsd.work.execution import contained

_log = get_logger(component="attempts")
# How long attempts may take to stop after the grace of a drain; then they are killed and their tasks released.
_STOPPING = timedelta(seconds=20)
_GIVING_BACK = timedelta(seconds=20)


class Attempts:
    """Agents start attempts here. Attempts outlive the agent that started them, but not `serve`."""

    def __init__(self, *, when_changed: Callable[[], None] = lambda: None) -> None:
        self.when_changed = when_changed
        self._group: TaskGroup | None = None
        self._under_way: dict[Fence, Attempt] = {}
        self._changed: asyncio.Event = asyncio.Event()
        self._is_hurried: bool = False
        self.gate: Gate = Gate()  # agents claim only while it is open

    def __len__(self) -> int:
        return len(self._under_way)

    def fences(self) -> set[Fence]:
        return set(self._under_way)

    def by_service(self) -> Counter[str]:
        return Counter(attempt.service for attempt in self._under_way.values())

    async def serve(self) -> None:
        """Runs the attempts until it is cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            try:
                await anyio.sleep_forever()
            finally:
                self._group = None
        raise Bug("the group of attempts ended, and nobody had asked for it")

    @property
    def is_open(self) -> bool:
        return self._group is not None

    def start(self, attempt: Attempt, when_ended: Callable[[Attempt], None]) -> None:
        assert self._group is not None, "an agent claims only while attempts can be started"
        assert attempt.fence not in self._under_way, attempt.fence
        self._under_way[attempt.fence] = attempt
        self.when_changed()
        self._group.start_soon(self._run, attempt, when_ended, name=f"attempt {attempt.fence}")

    async def _run(self, attempt: Attempt, when_ended: Callable[[Attempt], None]) -> None:
        """Runs one attempt. A bug in it, or in the callback that hears of its end, must not end the others; its agent
        settles what it leaves undone."""
        try:
            with contained():
                await attempt.run()
        except Exception as error:  # noqa: BLE001 - see above
            attempt.left_something = True
            self._tell_bug(attempt, error)
        finally:
            self._under_way.pop(attempt.fence, None)
            self._changed.set()
            self.when_changed()
            try:
                when_ended(attempt)
            except Exception as error:  # noqa: BLE001 - see above
                self._tell_bug(attempt, error)

    def _tell_bug(self, attempt: Attempt, error: Exception) -> None:
        ids = {"task_id": str(attempt.fence.task_id), "attempt_id": attempt.fence.attempt_id}
        _log.error("attempt_crashed", **ids, service=attempt.service, error=repr(error), exc_info=error)

    async def drain(self, grace: timedelta) -> None:
        """Waits at most `grace` until all attempts have ended, then stops the others and gives their tasks back."""
        if await self._idle_within(grace, unless_hurried=True):
            return
        self._give_back_all("the agent is stopping", at_once=False)
        if await self._idle_within(_STOPPING, unless_hurried=True):
            return
        self.hurry()
        if not await self._idle_within(_GIVING_BACK):
            _log.error("drain_incomplete", left=[str(fence) for fence in self._under_way])

    def hurry(self) -> None:
        """Ends the grace of the drain, and that of attempts which are being stopped."""
        self._is_hurried = True
        self._changed.set()
        self._give_back_all("the agent was told to stop at once", at_once=True)

    def _give_back_all(self, reason: str, *, at_once: bool) -> None:
        for attempt in list(self._under_way.values()):
            attempt.give_back(reason, at_once=at_once)

    async def _idle_within(self, limit: timedelta, *, unless_hurried: bool = False) -> bool:
        with anyio.move_on_after(limit.total_seconds()):
            while self._under_way and not (unless_hurried and self._is_hurried):
                self._changed.clear()
                await self._changed.wait()
        return not self._under_way


class Gate:
    def __init__(self) -> None:
        self._is_open: bool = True
        self._inside: int = 0
        self._empty: asyncio.Event = asyncio.Event()
        self._empty.set()

    @property
    def is_open(self) -> bool:
        return self._is_open

    @contextmanager
    def passing(self) -> Generator[None]:
        """Wraps a claim while the gate is open: what is claimed in the block has become an attempt at its end."""
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if self._inside == 0:
                self._empty.set()

    async def shut(self, within: timedelta) -> bool:
        """Shuts the gate. Returns whether all claims under way became attempts `within` this time."""
        self._is_open = False
        with anyio.move_on_after(within.total_seconds()):
            await self._empty.wait()
        return self._empty.is_set()

    def open(self) -> None:
        self._is_open = True
