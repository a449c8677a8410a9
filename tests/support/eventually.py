"""Waiting for something that another process or task is about to do."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


async def eventually(
    condition: Callable[[], T | Awaitable[T]], *, within: float = 5.0, interval: float = 0.01, what: str = ""
) -> T:
    """The first true value of `condition` (sync or async). A failing `assert` in it counts as not yet."""
    deadline = time.monotonic() + within
    while True:
        failure: AssertionError | None = None
        value: T | None = None
        try:
            answer = condition()
            value = await answer if inspect.isawaitable(answer) else answer
        except AssertionError as error:
            failure = error
        if value:
            return value
        if time.monotonic() > deadline:
            raise failure or _too_late(what, within, value)
        await asyncio.sleep(interval)


def eventually_sync(condition: Callable[[], T], *, within: float = 5.0, interval: float = 0.01, what: str = "") -> T:
    """The same for tests of plain processes, which have no event loop."""
    deadline = time.monotonic() + within
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise _too_late(what, within, value)
        time.sleep(interval)
    return value


def _too_late(what: str, within: float, value: object) -> AssertionError:
    return AssertionError(f"{what or 'it'} did not happen within {within} s (last value: {value!r})")
