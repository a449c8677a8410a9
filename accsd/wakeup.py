"""A coalescing wake-up: a notification came, or a known time has come, or the poll is due.

Any number of notifications while a role works are one more pass afterwards. The waiting role clears it *before*
reading the table: a row written after the read notifies again.
"""

import asyncio
from datetime import timedelta


class Wakeup:
    def __init__(self) -> None:
        self._event: asyncio.Event = asyncio.Event()

    def set(self, _payload: str = "") -> None:
        """Wakes. It ignores its payload, so that it can be handed to the listener as it is."""
        self._event.set()

    def clear(self) -> None:
        self._event.clear()

    async def wait(self, at_most: timedelta | None = None) -> bool:
        """Returns whether a notification came; False: the time has come."""
        try:
            async with asyncio.timeout(None if at_most is None else max(at_most.total_seconds(), 0)):
                await self._event.wait()
        except TimeoutError:
            return False
        return True
