"""Pumping a child's two pipes: when it is silent, and that a failure leaves nothing behind on the task that waits."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import cast

import anyio
import pytest

from accsd import proc
from accsd.errors import Bug
from accsd.runners.base import Stream
from accsd.runners.compose.container_log import Pipes, together

LONG = timedelta(hours=1)


@dataclass
class Child:
    """Two pipes without a process."""

    stdout: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)
    stderr: asyncio.StreamReader = field(default_factory=asyncio.StreamReader)

    def pipes(self, hand_on: Callable[[Stream, bytes], object]) -> Pipes:
        async def take(stream: Stream, data: bytes) -> None:
            if (waiting := hand_on(stream, data)) is not None:
                await cast("asyncio.Event", waiting).wait()

        return Pipes(cast("proc.Streaming", self), take)

    def end(self) -> None:
        self.stdout.feed_eof()
        self.stderr.feed_eof()


async def fails() -> None:
    await anyio.lowlevel.checkpoint()
    raise ValueError("a failure")


async def test_a_failure_ends_the_others_and_leaves_no_cancellation_on_the_task():
    """What asyncio.TaskGroup left there came out of the next scope, and ended every attempt of the node."""
    has_ended = asyncio.Event()

    async def goes_on() -> None:
        try:
            await anyio.sleep_forever()
        finally:
            has_ended.set()

    task = asyncio.current_task()
    assert task is not None
    async with anyio.create_task_group() as group:
        with pytest.raises(ValueError, match="a failure"):
            await together(fails(), goes_on())
        assert has_ended.is_set()
        assert task.cancelling() == 0
        group.start_soon(anyio.sleep_forever)
        group.cancel_scope.cancel()
    assert task.cancelling() == 0


async def test_a_cancellation_that_nobody_asked_for_is_no_end():
    async def is_cancelled() -> None:
        raise asyncio.CancelledError

    with pytest.raises(Bug):
        await together(is_cancelled(), anyio.sleep_forever())


async def test_a_cancellation_from_outside_reaches_all_of_them():
    with anyio.move_on_after(0.01) as scope:
        await together(anyio.sleep_forever(), anyio.sleep_forever())
    assert scope.cancelled_caught


async def test_one_stream_may_say_nothing_while_the_other_is_read():
    child, limit, heard = Child(), timedelta(seconds=1), list[bytes]()
    pipes = child.pipes(lambda _, data: heard.append(data))

    async def speak() -> None:
        until = asyncio.get_running_loop().time() + 2 * limit.total_seconds()
        while asyncio.get_running_loop().time() < until:
            child.stdout.feed_data(b"x")
            await asyncio.sleep(0.01)
        child.end()

    async with anyio.create_task_group() as group:
        group.start_soon(pipes.pump)
        group.start_soon(speak)
        assert await pipes.end_or_silence(limit)
    assert heard


async def test_who_takes_long_over_what_came_is_not_silence_and_nothing_at_all_is():
    child, limit, released = Child(), timedelta(seconds=0.1), asyncio.Event()
    pipes = child.pipes(lambda *_: released)
    was_silent, has_looked = list[bool](), anyio.Event()

    async def look() -> None:
        was_silent.append(not await pipes.end_or_silence(limit))
        has_looked.set()

    async with anyio.create_task_group() as group:
        group.start_soon(pipes.pump)
        child.stdout.feed_data(b"x")
        await anyio.wait_all_tasks_blocked()
        group.start_soon(look)
        await asyncio.sleep(4 * limit.total_seconds())
        assert was_silent == []
        released.set()
        with anyio.fail_after(10):
            await has_looked.wait()
        child.end()
    assert was_silent == [True]
    assert await pipes.end_or_silence(LONG)
