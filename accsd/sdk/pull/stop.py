"""Whether a worker was asked to stop, by a signal or by a cancellation."""

import asyncio
from collections.abc import Callable


class StopRequest:
    """How often this worker was asked to stop: after the first time it drains, after the second it hurries."""

    def __init__(self) -> None:
        self.times: int = 0
        self.changed: asyncio.Event = asyncio.Event()
        # Called when an async function can't be cancelled, and only the end of the process is left.
        self.when_stuck: Callable[[], None] = lambda: None

    @property
    def is_hurried(self) -> bool:
        return self.times > 1

    def again(self) -> None:
        self.times += 1
        self.changed.set()
