"""Runs plain functions in daemon threads: a function that does not return must not keep the process alive."""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

Function = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Call:
    function: Function
    argument: object
    context: contextvars.Context
    answer: asyncio.Future[Any]


class Threads:
    """A pool of threads. All methods but `_work` belong to the event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads: int = 0
        self._pending: int = 0
        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()

    def call(self, function: Function, argument: object) -> asyncio.Future[Any]:
        """Calls the function in a thread, with the caller's context. A cancelled wait does not stop the function."""
        answer: asyncio.Future[Any] = self._loop.create_future()
        self._calls.put(_Call(function, argument, contextvars.copy_context(), answer))
        self._pending += 1
        if self._pending > self._threads and self._threads < self._most:
            self._threads += 1
            threading.Thread(target=self._work, name=f"task-{self._threads}", daemon=True).start()
        return answer

    def close(self) -> None:
        """Ends the threads: idle ones at once, the others after their call."""
        for _ in range(self._threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            result: object = None
            error: BaseException | None = None
            try:
                result = call.context.run(call.function, call.argument)
            except StopIteration as stop:  # a future refuses this exception
                error = RuntimeError(f"StopIteration: {stop}")
            except BaseException as raised:  # noqa: BLE001 - raised again where it is waited for
                error = raised
            with suppress(RuntimeError):  # the loop has ended, and no caller waits any more
                self._loop.call_soon_threadsafe(self._ended, call.answer, result, error)

    def _ended(self, answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
        self._pending -= 1
        if answer.done():
            return
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)
