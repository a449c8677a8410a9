"""Whether a worker was asked to stop, by a signal or by whoever cancels it."""

import asyncio
from collections.abc import Callable


class StopRequest:
    """How often this worker was asked to stop: once, and it drains; twice, and it hurries."""

    def __init__(self) -> None:
        self.times: int = 0
        self.changed: asyncio.Event = asyncio.Event()
        # an async function will not be cancelled, and nothing else is left
        self.when_stuck: Callable[[], None] = lambda: None

    @property
    def is_hurried(self) -> bool:
        return self.times > 1

    def again(self) -> None:
        self.times += 1
        self.changed.set()
