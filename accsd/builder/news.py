"""What becomes claimable for a service, for the waker: its first tasks are the builder's news, later ones are told to
whoever serves it only."""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from accsd.db.listen import CANCEL, Listener

# Those who are awake claim first, and a busy fleet wakes the waker once in this time.
_GATHERED_SEC: Final = 1.0
_MOST_SERVICES: Final = 500  # the poll finds what happens in others


class ServiceNews:
    """Many notifications are one wake-up, a moment later."""

    def __init__(self, listener: Listener) -> None:
        self._listener: Listener = listener
        self._services: set[str] = set()
        self._timer: asyncio.TimerHandle | None = None
        self.when_heard: Callable[[], None] | None = None

    def listen_to(self, services: Iterable[str]) -> None:
        """Those as well, for ever."""
        for service in sorted(set(services) - self._services)[: _MOST_SERVICES - len(self._services)]:
            self._services.add(service)
            self._listener.subscribe(service, self._hear)

    def _hear(self, payload: str) -> None:
        if payload != CANCEL and self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_GATHERED_SEC, self._tell)

    def _tell(self) -> None:
        self._timer = None
        if self.when_heard is not None:
            self.when_heard()
